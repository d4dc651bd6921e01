//! SQLite store: a file shared by several processes, or memory. One connection writes; reads have
//! separate connections. Callers' threads never wait for the disk: their own writes are short and
//! go to the system's memory, and a thread syncs them.

mod backup;
pub(super) mod cached;
mod change_counter;
mod changes;
mod conversations;
mod journal;
mod log;
mod lookup;
mod readers;
pub(super) mod rows;
mod schema;
mod spent;
mod steps;
mod sync;
pub(super) mod totals;
mod values;
pub(super) mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::time::Instant;

use crate::files::{close_to_others, make_private};
use crate::sql::stored;
use crate::wal::Session;
use crate::{OpenError, SECRET_BYTES, StoreError, StoreOptions, Stored};
use change_counter::ChangeCounter;
use changes::ChangeState;
use readers::{Readers, connect};
use sync::Dirty;
use writer::Writer;

/// How long opening waits for others that create the same file.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Size that SQLite's WAL keeps after a checkpoint.
const MAX_LOG_BYTES: i64 = 16 << 20;
/// Cached statements per connection.
const STATEMENTS: usize = 64;

/// A SQLite database.
#[derive(Clone)]
pub(crate) struct Sqlite {
    writer: Writer,
    /// `None` if there is only one connection: in memory.
    readers: Option<Readers>,
    secret: [u8; SECRET_BYTES],
    /// `None` without a disk.
    dirty: Option<Dirty>,
    session: Arc<Session>,
    changes: Arc<ChangeState>,
}

impl Sqlite {
    /// Opens the file at `path`; creates it and its folder if missing.
    pub(crate) fn open(path: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        loop {
            match Self::open_once(path, options) {
                // If two processes create a file at once, SQLite refuses some steps without
                // waiting.
                Err(OpenError::Busy) if Instant::now() < deadline => std::thread::yield_now(),
                opened => return opened,
            }
        }
    }

    fn open_once(path: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        let unusable = |error: io::Error| OpenError::Unusable { message: error.to_string() };
        make_private(path).map_err(unusable)?;
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        schema::recognise(&connection)?;
        close_to_others(path).map_err(unusable)?;
        let wal: String =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        // If the file system does not support WAL, SQLite keeps its rollback journal, which is only
        // slower.
        let is_wal = wal == "wal";
        // A commit in the WAL survives the process; a thread syncs the WAL.
        let synchronous = if is_wal { "normal" } else { "full" };
        connection.pragma_update(None, "synchronous", synchronous)?;
        if is_wal {
            // The sync thread runs checkpoints.
            connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
        }
        connection.pragma_update_and_check(
            None,
            "journal_size_limit",
            MAX_LOG_BYTES,
            |_| Ok(()),
        )?;
        let (readers, dirty) = (Some(Readers::new(path)), Some(Dirty::default()));
        let sqlite = Self::start(connection, readers, dirty, options)?;
        if let Some(dirty) = &sqlite.dirty {
            let shared = Arc::clone(&sqlite.writer.shared);
            let session = Arc::clone(&sqlite.session);
            sync::start(path, options.sync_interval, dirty.clone(), shared, session)?;
        }
        Ok(sqlite)
    }

    /// Creates an in-memory database.
    pub(crate) fn in_memory() -> Result<Self, OpenError> {
        Self::start(Connection::open_in_memory()?, None, None, StoreOptions::default())
    }

    fn start(
        mut connection: Connection,
        readers: Option<Readers>,
        dirty: Option<Dirty>,
        options: StoreOptions,
    ) -> Result<Self, OpenError> {
        // Deleted content is overwritten.
        connection.pragma_update_and_check(None, "secure_delete", "on", |_| Ok(()))?;
        let secret = schema::prepare(&mut connection)?;
        let counter = ChangeCounter::new(readers.as_ref().map(Readers::path));
        counter.repair(&mut connection)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let session = Session::new(readers.as_ref().map(Readers::path), options)?;
        let writer = Writer::start(connection, dirty.clone())?;
        Ok(Self {
            writer,
            readers,
            secret,
            dirty,
            session,
            changes: Arc::new(ChangeState::new(counter)),
        })
    }

    /// Notifies the sync thread that a request was recorded.
    pub(crate) fn note_written(&self) {
        if let Some(dirty) = &self.dirty {
            dirty.note();
        }
    }

    /// Returns whether there is a file.
    pub(crate) fn is_file(&self) -> bool {
        self.readers.is_some()
    }

    /// Runs the read-only `work`, concurrently with writers.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Stored<T> {
        self.read_steps(move |connection| Ok(work(connection)?)).await
    }

    /// As [`Self::read`], for work with errors of its own.
    async fn read_steps<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        match &self.readers {
            Some(readers) => readers.run(work).await,
            None => self.writer.run_steps(work).await,
        }
    }

    /// Runs `work`, which reads a page or two, on the caller's thread; `None` if it fails or would
    /// wait for another process.
    pub(crate) fn read_now<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<T> {
        self.readers.as_ref()?.read_now(work)
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::DiskFull) => Self::Full,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::Foreign,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            _ => Self::Unusable { message: error.to_string() },
        }
    }
}
