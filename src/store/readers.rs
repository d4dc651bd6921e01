//! Connections that only read, beside the one that writes. A few at once: what reads more waits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use super::StoreError;

/// How long another process's transaction is waited for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How many reads may be under way at once.
const READERS: usize = 4;

/// Connections that only read. Clones share them.
#[derive(Clone)]
pub struct Readers(Arc<Shared>);

struct Shared {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// One that never waits.
    glancing: Mutex<Option<Connection>>,
    places: Semaphore,
}

impl Readers {
    /// On the file at `path`, which is opened when there is something to read.
    pub fn new(path: &Path) -> Self {
        Self(Arc::new(Shared {
            path: path.to_owned(),
            idle: Mutex::new(Vec::new()),
            glancing: Mutex::new(None),
            places: Semaphore::new(READERS),
        }))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Does `work` on a thread that may wait for the disk, as soon as few others read.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _place = self.0.places.acquire().await.map_err(|_| StoreError::Closed)?;
        let readers = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || {
            let idle = readers.idle.lock().ok().and_then(|mut idle| idle.pop());
            let connection = match idle {
                Some(connection) => connection,
                None => connect(&readers.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?,
            };
            let read = work(&connection)?;
            // One that has failed is closed; so is one more than there are places for.
            if let Ok(mut idle) = readers.idle.lock()
                && idle.len() < READERS
            {
                idle.push(connection);
            }
            Ok::<T, StoreError>(read)
        });
        read.await.map_err(|_| StoreError::Closed)?
    }

    /// Does `work`, which reads a page or two, on the caller's own thread; `None` where that fails
    /// or would have to wait for another process.
    pub fn glance<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Option<T> {
        let mut place = self.0.glancing.lock().ok()?;
        if place.is_none() {
            let connection = connect(&self.0.path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
            connection.busy_timeout(Duration::ZERO).ok()?;
            *place = Some(connection);
        }
        let seen = work(place.as_ref()?).ok();
        if seen.is_none() {
            // One that has failed is opened anew.
            *place = None;
        }
        seen
    }
}

/// A connection to the file at `path`.
pub fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    // Without the flag for URIs: a path is a path, whatever it looks like.
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}
