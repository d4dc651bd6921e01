//! How often keys were changed, where every process can see it for the price of one read: eight
//! bytes in a file beside the store. The store's own count is what counts. This one is never behind
//! it for long, and whoever finds it missing or different asks the store.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rusqlite::Connection;

use super::rows;

/// What the file's name is, behind the store's.
const ENDING: &str = ".keys";

/// A mark. Clones share it.
#[derive(Clone)]
pub struct Mark(Arc<Place>);

enum Place {
    /// Beside a store in memory, which no other process sees.
    Memory(AtomicU64),
    /// The file is kept open; `None` while there is none.
    File { path: PathBuf, file: RwLock<Option<File>> },
}

impl Mark {
    /// Of the store in the file at `path`, or in memory.
    pub fn new(path: Option<&Path>) -> Self {
        Self(Arc::new(match path {
            None => Place::Memory(AtomicU64::new(0)),
            Some(path) => {
                let mut name = path.as_os_str().to_owned();
                name.push(ENDING);
                Place::File { path: name.into(), file: RwLock::new(None) }
            }
        }))
    }

    /// How often keys were changed, as far as the mark knows; `None` where it cannot tell.
    pub fn read(&self) -> Option<u64> {
        match &*self.0 {
            Place::Memory(count) => Some(count.load(Ordering::Acquire)),
            Place::File { file, .. } => {
                let file = file.read().unwrap_or_else(PoisonError::into_inner);
                count_in(file.as_ref()?)
            }
        }
    }

    /// Opens the file anew where it is not the one that is open, or none is. One that is missing
    /// stays so until keys are changed or the store is opened again.
    pub fn reopen(&self) {
        let Place::File { path, file } = &*self.0 else { return };
        if self.read().is_none() {
            *file.write().unwrap_or_else(PoisonError::into_inner) = File::open(path).ok();
        }
    }

    /// Tells all processes that keys were changed `count` times. To be called in the transaction
    /// that counts it, so that of two changes the later is told last: until it is committed, others
    /// find a difference and ask the store.
    pub fn write(&self, count: u64) {
        match &*self.0 {
            Place::Memory(of) => of.store(count, Ordering::Release),
            Place::File { path, file } => {
                if write_to(path, count).is_err() {
                    // What is there is wrong now. Where it cannot be removed either, others notice
                    // when they next ask the store of their own accord.
                    let _ = std::fs::remove_file(path);
                }
                *file.write().unwrap_or_else(PoisonError::into_inner) = File::open(path).ok();
            }
        }
    }

    /// Makes the mark agree with the store, as a loss of power, a rollback or a copy of the store
    /// without it may have left it.
    pub fn agree(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        self.reopen();
        let is_right = self.read() == Some(rows::version(connection)?);
        let is_private = matches!(&*self.0, Place::File { path, .. } if is_private(path));
        if is_right && (is_private || matches!(*self.0, Place::Memory(_))) {
            return Ok(());
        }
        // With nobody writing, no later change can be told meanwhile.
        let behaviour = rusqlite::TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behaviour)?;
        self.write(rows::version(&transaction)?);
        transaction.commit()
    }
}

fn write_to(path: &Path, count: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    // Written in place: whoever has the file open reads on in it.
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let file = options.open(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{FileExt, PermissionsExt};
        file.write_all_at(&count.to_be_bytes(), 0)?;
        if !is_private(path) {
            file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        }
        Ok(())
    }
    #[cfg(not(unix))]
    {
        use std::io::Write;
        (&file).write_all(&count.to_be_bytes())
    }
}

/// What `file` says, unless it has lost its name: a new one may have taken its place.
#[cfg(unix)]
fn count_in(file: &File) -> Option<u64> {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0).ok()?;
    (file.metadata().ok()?.nlink() > 0).then_some(u64::from_be_bytes(bytes))
}

/// Elsewhere the store is asked.
#[cfg(not(unix))]
fn count_in(_file: &File) -> Option<u64> {
    None
}

#[cfg(unix)]
fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o077 == 0)
}

/// Elsewhere a file has the permissions of its folder, which is the user's own.
#[cfg(not(unix))]
fn is_private(_path: &Path) -> bool {
    true
}
