//! A copy of the whole store in one new file, made while others write.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use rusqlite::Connection;

use super::super::StoreError;

/// Writes what `connection` sees at this moment to a new file at `path`, which nobody but its owner
/// can read: the store's secret is in it. The file has its name only once it is whole.
pub fn write(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let said = |error: io::Error| StoreError::Failed(format!("{}: {error}", path.display()));
    if fs::symlink_metadata(path).is_ok() {
        return Err(said(io::ErrorKind::AlreadyExists.into()));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = Path::new(&name);
    let copied = copy(connection, partial).and_then(|()| fs::rename(partial, path).map_err(said));
    if copied.is_err() {
        // What cannot be removed says by its name that it is not whole.
        let _ = fs::remove_file(partial);
    }
    copied
}

fn copy(connection: &Connection, partial: &Path) -> Result<(), StoreError> {
    let said = |error: io::Error| StoreError::Failed(format!("{}: {error}", partial.display()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let file = options.open(partial).map_err(said)?;
    let Some(name) = partial.to_str() else {
        return Err(said(io::Error::other("the name is not UTF-8")));
    };
    connection.execute("VACUUM INTO ?1", [name])?;
    file.sync_all().map_err(said)
}
