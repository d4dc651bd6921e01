//! Change counter of keys and budgets, visible to all processes at the cost of one read: eight
//! bytes in a file next to the store. The store's own count is authoritative. The file is never
//! behind for long, and a reader that finds it missing or different asks the store.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rusqlite::{Connection, params};

use super::cached;
use crate::files::{beside, private};

/// Suffix of the file's name, after the store's.
const SUFFIX: &str = ".keys";

/// Name of the store's own count.
const VERSION: &str = "keys_version";

/// Returns the store's own count.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u64> {
    let select = "SELECT value FROM meta WHERE name = ?1";
    let found = cached::first(connection, select, [VERSION], |row| row.get(0))?;
    Ok(found.map_or(0, u64::from_be_bytes))
}

/// Counts a change in the store, and publishes the count.
pub(super) fn count_change(
    connection: &Connection,
    counter: &ChangeCounter,
) -> rusqlite::Result<()> {
    let next = version(connection)?.wrapping_add(1);
    let put = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value";
    cached::run(connection, put, params![VERSION, next.to_be_bytes()])?;
    counter.write(next);
    Ok(())
}

/// A change counter. Clones share it.
#[derive(Clone)]
pub(crate) struct ChangeCounter(Arc<Place>);

enum Place {
    /// For an in-memory store, which no other process sees.
    Memory(AtomicU64),
    /// The file stays open; `None` if there is none.
    File { path: PathBuf, file: RwLock<Option<File>> },
}

impl ChangeCounter {
    /// Creates the counter of the store in the file at `path`, or in memory.
    pub(crate) fn new(path: Option<&Path>) -> Self {
        Self(Arc::new(match path {
            None => Place::Memory(AtomicU64::new(0)),
            Some(path) => Place::File { path: beside(path, SUFFIX), file: RwLock::new(None) },
        }))
    }

    /// Returns the count; `None` if it is unknown.
    pub(crate) fn read(&self) -> Option<u64> {
        match &*self.0 {
            Place::Memory(count) => Some(count.load(Ordering::Acquire)),
            Place::File { file, .. } => {
                let file = file.read();
                read_count(file.as_ref()?)
            }
        }
    }

    /// Reopens the file if it was replaced or none is open. A missing file stays missing until keys
    /// change or the store is opened again.
    pub(crate) fn reopen(&self) {
        let Place::File { path, file } = &*self.0 else { return };
        if self.read().is_none() {
            *file.write() = File::open(path).ok();
        }
    }

    /// Publishes the count to all processes. Call it within the transaction that counts the change,
    /// so that the later of two changes is published last. Until the commit, readers see a
    /// difference and ask the store.
    pub(crate) fn write(&self, count: u64) {
        match &*self.0 {
            Place::Memory(of) => of.store(count, Ordering::Release),
            Place::File { path, file } => {
                if write_to(path, count).is_err() {
                    // Its content is wrong now. If it cannot be removed either, others notice at
                    // their next regular read of the store.
                    let _ = std::fs::remove_file(path);
                }
                *file.write() = File::open(path).ok();
            }
        }
    }

    /// Brings the file in line with the store after a power loss, a rollback, or a copy of the
    /// store without the file.
    pub(crate) fn repair(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        self.reopen();
        let is_equal = self.read() == Some(version(connection)?);
        let is_private = matches!(&*self.0, Place::File { path, .. } if is_private(path));
        if is_equal && (is_private || matches!(*self.0, Place::Memory(_))) {
            return Ok(());
        }
        // With the write lock held, no later change can be published meanwhile.
        let behaviour = rusqlite::TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behaviour)?;
        self.write(version(&transaction)?);
        transaction.commit()
    }
}

fn write_to(path: &Path, count: u64) -> io::Result<()> {
    // Written in place: readers with an open handle continue to use it.
    let file = private().create(true).truncate(false).open(path)?;
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

/// Returns the content of `file`, unless its name was removed: a new file may have replaced it.
#[cfg(unix)]
fn read_count(file: &File) -> Option<u64> {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0).ok()?;
    (file.metadata().ok()?.nlink() > 0).then_some(u64::from_be_bytes(bytes))
}

/// On other systems the store is read instead.
#[cfg(not(unix))]
fn read_count(_file: &File) -> Option<u64> {
    None
}

#[cfg(unix)]
fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o077 == 0)
}

/// On other systems a file inherits the permissions of its folder, which belongs to the user.
#[cfg(not(unix))]
fn is_private(_path: &Path) -> bool {
    true
}
