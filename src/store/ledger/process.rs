//! What the handles of one process on a store in SQLite share for the journal: its log, and when that
//! is moved into the tables. Knows no other back end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use tokio::sync::OnceCell;

use super::super::sqlite::Sqlite;
use super::super::writer::Shared;
use super::super::{OpenError, StoreError, StoreOptions};
use super::frame::Behind;
use super::instances::Instance;
use super::log::Log;
use super::moved::{self, Moved};
use super::sums::RowsOfDay;

/// The most transactions that are made to see what others have written down: more than a log can
/// take.
const MAX_ROUNDS: usize = 1000;

/// What the handles on one store share for the journal.
pub struct Ledger {
    pub(super) instance: Instance,
    pub(super) log: Log,
    /// Set once the instance's lock is held and its log is there.
    begun: OnceCell<()>,
    pub(super) rows: RowsOfDay,
    /// Whether files of logs may be finished and not deleted yet.
    pub(super) has_finished: AtomicBool,
}

impl Ledger {
    /// For the store in the file at `path`, or in memory.
    pub fn new(path: Option<&Path>, options: StoreOptions) -> Result<Arc<Self>, OpenError> {
        let instance = Instance::new(path)?;
        let folder = instance.folder().map(Path::to_owned);
        Ok(Arc::new(Self {
            log: Log::new(instance.id(), folder, options.max_log_bytes),
            instance,
            begun: OnceCell::new(),
            rows: RowsOfDay::default(),
            has_finished: AtomicBool::new(true),
        }))
    }

    /// Makes what must be there before a request is written down.
    pub async fn begin(self: &Arc<Self>) -> Result<(), StoreError> {
        let begin = || async {
            self.instance.hold().await?;
            let own = Arc::clone(self);
            let begun = tokio::task::spawn_blocking(move || own.log.begin());
            let failed = |error: std::io::Error| {
                StoreError::Failed(format!("no log can be made beside the store: {error}"))
            };
            begun.await.map_err(|_| StoreError::Closed)?.map_err(failed)
        };
        let begun = self.begun.get_or_try_init(begin).await;
        begun.copied().inspect_err(|error| self.log.report(error))
    }

    /// The log of requests.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Whether requests cannot be written down.
    pub fn is_failing(&self) -> bool {
        self.log.is_failing()
    }

    /// Brings what was written down to the disk, and waits for it.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.log.sync().map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Moves what was written down into the tables.
    pub fn move_own(&self, writer: &Shared) -> Result<(), StoreError> {
        self.log.turn();
        while self.log.is_unmoved() {
            let moved = writer.run_blocking(|connection| moved::own(connection, self))?;
            self.log.note_moved(moved.own);
            if !moved.has_more {
                break;
            }
        }
        Ok(())
    }

    /// Whether something written down is not in the tables.
    pub fn is_unmoved(&self) -> bool {
        self.log.is_unmoved()
    }

    /// Says that nothing more will be written down.
    pub fn close(&self) {
        self.log.close();
    }

    /// The files of logs that nothing is left in. To be deleted once all that is committed by now
    /// is on the disk.
    pub fn finished(&self, connection: &Connection) -> Result<Vec<PathBuf>, StoreError> {
        if !self.has_finished.swap(false, Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        Ok(moved::finished(connection, self)?)
    }

    /// Says that files that are finished could not be deleted.
    pub fn keep_finished(&self) {
        self.has_finished.store(true, Ordering::Relaxed);
    }
}

/// Has moved what was written down, sooner or later.
pub fn written_down(sqlite: &Sqlite) {
    sqlite.note_written();
    if sqlite.ledger().log.should_be_moved()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        let sqlite = sqlite.clone();
        runtime.spawn(async move { gather(&sqlite).await });
    }
}

/// Moves what all processes have written down so far into the tables. Where that fails the tables
/// are a little behind, which is better than no answer; the writer has told of it.
pub async fn gather(sqlite: &Sqlite) {
    let ledger = sqlite.ledger();
    for _ in 0..MAX_ROUNDS {
        let own = Arc::clone(ledger);
        let is_any = sqlite.read(move |connection| moved::is_any(connection, &own)).await;
        if is_any == Ok(false) {
            break;
        }
        let own = Arc::clone(ledger);
        let moved = sqlite.write(move |connection| moved::all(connection, &own)).await;
        let Ok(Moved { own, has_more }) = moved else { break };
        ledger.log.note_moved(own);
        if !has_more {
            break;
        }
    }
    ledger.log.note_tried();
}

/// Writes the row of a request that was not opened here: an ended process's, one that could not be
/// written down, or one that has ended before. Once all that is written down is in the tables, they
/// tell which.
pub async fn settle_directly(sqlite: &Sqlite, frame: Vec<u8>) -> Result<bool, StoreError> {
    let ledger = Arc::clone(sqlite.ledger());
    let settle = move |connection: &Connection| {
        let mut moved = moved::all(connection, &ledger)?;
        while moved.has_more {
            moved = moved::all(connection, &ledger)?;
        }
        let taken = moved::take(connection, &ledger.rows, &frame, Behind::Nothing, true)?;
        Ok((moved.own, taken.new_rows > 0))
    };
    let (own, is_new) = sqlite.write(settle).await?;
    sqlite.ledger().log.note_moved(own);
    Ok(is_new)
}
