//! Read-only connections next to the writing one. Limited in number: further reads wait.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use crate::{StoreError, Stored};

/// Timeout for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum concurrent reads.
const READERS: usize = 4;

/// Read-only connections. Clones share them.
#[derive(Clone)]
pub(super) struct Readers(Arc<ReaderPool>);

struct ReaderPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// Connection for reads that never wait.
    immediate: Mutex<Option<Connection>>,
    places: Semaphore,
}

impl Readers {
    /// Creates connections to the file at `path`, opened on first use.
    pub(super) fn new(path: &Path) -> Self {
        Self(Arc::new(ReaderPool {
            path: path.to_owned(),
            idle: Mutex::new(Vec::new()),
            immediate: Mutex::new(None),
            places: Semaphore::new(READERS),
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Runs `work` on a blocking thread, as soon as a connection is free.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        let _place = self.0.places.acquire().await.map_err(|_| StoreError::Closed)?;
        let readers = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || {
            let idle = readers.idle.lock().ok().and_then(|mut idle| idle.pop());
            let connection = match idle {
                Some(connection) => connection,
                None => connect(&readers.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?,
            };
            let read = work(&connection)?;
            // A failed connection is closed, and so is a surplus one.
            if let Ok(mut idle) = readers.idle.lock()
                && idle.len() < READERS
            {
                idle.push(connection);
            }
            Ok::<T, StoreError>(read)
        });
        read.await.map_err(|_| StoreError::Closed)?
    }

    /// Runs `work`, which reads a page or two, on the caller's thread; `None` if it fails or would
    /// wait for another process.
    pub(super) fn read_now<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<T> {
        let mut place = self.0.immediate.lock().ok()?;
        if place.is_none() {
            let connection = connect(&self.0.path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
            connection.busy_timeout(Duration::ZERO).ok()?;
            *place = Some(connection);
        }
        let read = work(place.as_ref()?).ok();
        if read.is_none() {
            // A failed connection is reopened.
            *place = None;
        }
        read
    }
}

/// Connects to the file at `path`.
pub(super) fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    // URIs are disabled: a path is always a path.
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}
