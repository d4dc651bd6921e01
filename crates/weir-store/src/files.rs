//! Private files, readable only by their owner, and folder sync. Independent of file contents.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Creates a new file that only its owner can read.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    private().create_new(true).open(path)
}

/// Returns options to write a file that only its owner can read if it is created.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

/// Creates a folder that only its owner can open, and those above it.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let mut folders = fs::DirBuilder::new();
    folders.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        folders.mode(0o700);
    }
    folders.create(path)
}

/// Returns the path of a file next to that at `path`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes a file completely or not at all: into a new one next to it, opened with `options`, to which
/// `put` gives the name.
pub fn write_whole(
    path: &Path,
    options: &OpenOptions,
    text: &str,
    put: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let new = beside(path, &format!(".{}.new", std::process::id()));
    let mut file = options.open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let written = written.and_then(|()| put(&new, path));
    // After a rename there is nothing left to remove.
    let _ = fs::remove_file(&new);
    written
}

/// Gives a file another name that no file has.
pub fn put_new(new: &Path, path: &Path) -> io::Result<()> {
    fs::hard_link(new, path).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no links.
        _ => fs::rename(new, path),
    })
}

/// Creates the file, readable only by its owner, and its folder. SQLite gives its companion files
/// the same permissions.
///
/// An existing file is not opened: closing it would release the locks that this process may hold on
/// it.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        create_folder(folder)?;
    }
    match create_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_file = fs::metadata(path)?.is_file();
            if is_file { Ok(()) } else { Err(io::Error::other("it is not a file")) }
        }
        made => made.map(drop),
    }
}

/// Removes all permissions except the owner's.
#[cfg(unix)]
pub(crate) fn close_to_others(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// On other systems a file inherits the permissions of its folder, which belongs to the user.
#[cfg(not(unix))]
pub fn close_to_others(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Syncs the folder entry of the file at `path` to the disk.
#[cfg(unix)]
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// On other systems a folder cannot be opened, and the system orders its entries.
#[cfg(not(unix))]
pub fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}
