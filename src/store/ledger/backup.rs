//! A copy of the whole store in one new file, made while others write. Requests that are open in
//! somebody's log are open in the copy.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use rusqlite::Connection;

use super::super::StoreError;
use super::instances::Instance;
use super::{RequestId, journal, moved};

/// Requests by whose they are, with the contents of their frames.
type Open = Vec<([u8; 16], HashMap<RequestId, Vec<u8>>)>;

/// Writes what `connection` sees at this moment to a new file at `path`, which nobody but its owner
/// can read: the store's secret is in it. The file has its name only once it is whole.
pub fn write(connection: &Connection, instance: &Instance, path: &Path) -> Result<(), StoreError> {
    let said = |error: io::Error| StoreError::Failed(format!("{}: {error}", path.display()));
    if fs::symlink_metadata(path).is_ok() {
        return Err(said(io::ErrorKind::AlreadyExists.into()));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = Path::new(&name);
    // Before the moment of the copy: what ends in between is open in it, or has its row.
    let open = open_requests(instance);
    let copied = copy(connection, partial)
        .and_then(|()| complete(partial, &open))
        .and_then(|()| fs::rename(partial, path).map_err(said));
    if copied.is_err() {
        // What cannot be removed says by its name that it is not whole.
        let _ = fs::remove_file(partial);
    }
    copied
}

fn open_requests(instance: &Instance) -> Open {
    let logs = instance.logs();
    let of = |files: &[super::instances::LogFile]| {
        // A log that cannot be read, or is gone by now, has told of it or was moved.
        let open = moved::open_in(files).unwrap_or_default();
        (files[0].instance, open)
    };
    logs.chunk_by(|one, next| one.instance == next.instance).map(of).collect()
}

/// Adds to the copy what is in no table.
fn complete(partial: &Path, open: &Open) -> Result<(), StoreError> {
    let mut copy = Connection::open(partial)?;
    // Nobody else has it yet, and one that is not whole is removed.
    copy.pragma_update_and_check(None, "journal_mode", "memory", |_| Ok(()))?;
    let transaction = copy.transaction()?;
    for (instance, requests) in open {
        for (id, content) in requests {
            journal::insert_intent(&transaction, *instance, *id, content)?;
        }
    }
    transaction.commit()?;
    Ok(())
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
