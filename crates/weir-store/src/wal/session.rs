//! Ledger session: journal state shared by a process's handles on a SQLite store, with its log and
//! its checkpointing. For SQLite only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use tokio::sync::OnceCell;

use super::RequestLog;
use super::checkpoint;
use super::instances::Instance;
use crate::sqlite::totals::DayRows;
use crate::sqlite::writer::WriterState;
use crate::{OpenError, StoreError, StoreOptions, Stored};

/// Journal state shared by all handles on one store.
pub(crate) struct Session {
    pub instance: Instance,
    pub log: RequestLog,
    /// Set once the instance's lock is held and its log exists.
    started: OnceCell<()>,
    pub(crate) day_rows: DayRows,
    /// Whether there may be finished log files that are not deleted yet.
    pub(super) has_finished: AtomicBool,
}

impl Session {
    /// Creates the session for the store in the file at `path`, or in memory.
    pub(crate) fn new(path: Option<&Path>, options: StoreOptions) -> Result<Arc<Self>, OpenError> {
        let instance = Instance::new(path)?;
        let folder = instance.folder().map(Path::to_owned);
        Ok(Arc::new(Self {
            log: RequestLog::new(instance.id, folder, options.max_log_bytes),
            instance,
            started: OnceCell::new(),
            day_rows: DayRows::default(),
            has_finished: AtomicBool::new(true),
        }))
    }

    /// Creates the lock and the log that requests need.
    pub(crate) async fn start(self: &Arc<Self>) -> Stored<()> {
        let start = || async {
            self.instance.lock_file().await?;
            let own = Arc::clone(self);
            let started = tokio::task::spawn_blocking(move || own.log.create_first_segment());
            let failed = |error: std::io::Error| {
                StoreError::Failed(format!("cannot create a log next to the store: {error}"))
            };
            started.await.map_err(|_| StoreError::Closed)?.map_err(failed)
        };
        let started = self.started.get_or_try_init(start).await;
        started.copied().inspect_err(|error| self.log.report(error))
    }

    /// Syncs the log to disk and waits for it.
    pub(crate) fn sync(&self) -> Stored<()> {
        self.log.sync().map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Moves this process's records into the tables.
    pub(crate) fn checkpoint_own(&self, writer: &WriterState) -> Stored<()> {
        self.log.rotate_if_due();
        while self.log.is_checkpoint_pending() {
            let progress = writer.run_blocking(|connection| checkpoint::own(connection, self))?;
            self.log.advance_checkpoint(progress.own);
            if !progress.has_more {
                break;
            }
        }
        Ok(())
    }

    /// Returns the finished log files. Delete them after all current commits are on disk.
    pub(crate) fn finished_segments(&self, connection: &Connection) -> Stored<Vec<PathBuf>> {
        if !self.has_finished.swap(false, Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        Ok(checkpoint::finished_segments(connection, self)?)
    }

    /// Notes that finished files could not be deleted.
    pub(crate) fn retry_finished(&self) {
        self.has_finished.store(true, Ordering::Relaxed);
    }
}
