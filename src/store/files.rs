//! Files that are their owner's alone, and their folders on the disk. Knows nothing of what is in them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Makes a file that is not there yet, which nobody but its owner can read.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path)
}

/// Makes the file, which nobody but its owner can read, and its folder. SQLite gives the files it
/// makes beside it the same permissions.
///
/// A file that is there is not opened: closing it would give up the locks that this process may
/// hold on it.
pub fn make_private(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut folders = fs::DirBuilder::new();
    folders.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        folders.mode(0o700);
    }
    if let Some(folder) = folder {
        folders.create(folder)?;
    }
    match create_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_file = fs::metadata(path)?.is_file();
            if is_file { Ok(()) } else { Err(io::Error::other("it is no file")) }
        }
        made => made.map(drop),
    }
}

/// Takes a file's permissions from all but its owner.
#[cfg(unix)]
pub fn close_to_others(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Elsewhere a file has the permissions of its folder, which is the user's own.
#[cfg(not(unix))]
pub fn close_to_others(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Brings the entry that the folder of the file at `path` has for it to the disk.
#[cfg(unix)]
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Elsewhere a folder cannot be opened, and the system keeps its entries in order.
#[cfg(not(unix))]
pub fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}
