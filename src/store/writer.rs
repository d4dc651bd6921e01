//! The one way to write: one connection, one transaction at a time. A thread takes what is queued
//! as one transaction, so that many callers share one. Knows nothing of what is written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::sync::Dirty;
use super::{Activity, OpenError, StoreError};

/// How long the thread waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it is waited for while writing fails: callers wait for no more than they must.
const PROBE: Duration = Duration::from_millis(20);
/// Pieces of work that wait for the thread; those past it wait in their callers.
const QUEUE_LENGTH: usize = 256;
/// The most that one transaction does.
const MAX_GROUP: usize = 128;

/// A piece of work: given the connection, or why there is none. It tells its caller nothing until
/// it hears whether what it did was committed.
type Work = Box<dyn FnOnce(Result<&Connection, StoreError>) -> Told + Send>;
/// Tells the caller, given what became of the transaction.
type Told = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A handle on the thread, which ends with the last one.
#[derive(Clone)]
pub struct Writer {
    queue: mpsc::Sender<Work>,
    shared: Arc<Shared>,
}

/// What the thread and the handles share.
pub struct Shared {
    connection: Mutex<Connection>,
    is_failing: AtomicBool,
    /// Told of each commit that is not on the disk yet; `None` where commits wait for the disk.
    dirty: Option<Dirty>,
    writes: AtomicU64,
    failed_writes: AtomicU64,
}

impl Shared {
    /// The connection, once nobody else writes, with no transaction open.
    pub fn connection(&self) -> MutexGuard<'_, Connection> {
        usable(self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does `work` as a transaction of its own on this thread, which may wait for others.
    pub fn run_blocking<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let connection = self.connection();
        let begun = begin_in_time(&connection, self.patience()).map_err(StoreError::from);
        if begun.is_err() {
            self.report(begun.as_ref().copied());
        }
        begun?;
        self.finish(connection, work)
    }

    /// How long others are waited for.
    fn patience(&self) -> Duration {
        if self.is_failing.load(Ordering::Relaxed) { PROBE } else { BUSY_TIMEOUT }
    }

    /// Does `work` in the transaction that has begun, and ends it.
    fn finish<T>(
        &self,
        connection: MutexGuard<'_, Connection>,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let done = work(&connection).map_err(StoreError::from);
        if let Err(error) = &done {
            drop(usable(connection));
            self.report(Err(error));
            return done;
        }
        let committed = commit(&connection);
        drop(connection);
        self.report(committed.as_ref().copied());
        committed.and(done)
    }

    /// Tells of a commit, and logs the first failure after a success and the first success after a
    /// failure.
    fn report(&self, outcome: Result<(), &StoreError>) {
        let count = if outcome.is_ok() { &self.writes } else { &self.failed_writes };
        count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                if let Some(dirty) = &self.dirty {
                    dirty.note();
                }
                // Most often there is nothing to change, and reading is cheaper.
                if self.is_failing.load(Ordering::Relaxed)
                    && self.is_failing.swap(false, Ordering::Relaxed)
                {
                    tracing::info!(target: "weir::store", "the store can be written again");
                }
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        target: "weir::store",
                        %error,
                        "the store cannot be written; ledger.on_failure says whether requests go on without it"
                    );
                }
            }
        }
    }
}

/// Ends a transaction that a panic or a failure has left open.
fn usable(connection: MutexGuard<'_, Connection>) -> MutexGuard<'_, Connection> {
    if !connection.is_autocommit() {
        // One that fails leaves no transaction either, or the next one tells of it.
        let _ = run_cached(&connection, "ROLLBACK");
    }
    connection
}

impl Writer {
    /// Starts a thread that writes by `connection`, whose commits are on the disk once they are
    /// done, or are told to `dirty`.
    pub fn start(connection: Connection, dirty: Option<Dirty>) -> Result<Self, OpenError> {
        // The thread alone waits for others, and says so.
        connection.busy_timeout(Duration::ZERO)?;
        let (queue, waiting) = mpsc::channel(QUEUE_LENGTH);
        let shared = Arc::new(Shared {
            connection: Mutex::new(connection),
            is_failing: AtomicBool::new(false),
            dirty,
            writes: AtomicU64::new(0),
            failed_writes: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("weir-store".to_owned())
            .spawn(move || write(&own, waiting))
            .map_err(|error| OpenError::System { said: format!("no thread: {error}") })?;
        Ok(Self { queue, shared })
    }

    /// Whether the last transaction failed.
    pub fn is_failing(&self) -> bool {
        self.shared.is_failing.load(Ordering::Relaxed)
    }

    /// What was written so far, and what waits.
    pub fn activity(&self) -> Activity {
        Activity {
            writes: self.shared.writes.load(Ordering::Relaxed),
            failed_writes: self.shared.failed_writes.load(Ordering::Relaxed),
            queued: (QUEUE_LENGTH - self.queue.capacity()) as u64,
            log_bytes: 0,
        }
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Does `work`, whole or not at all, and gives what it gave once that is committed.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            let done = connection.and_then(|connection| whole(connection, work));
            Box::new(move |committed: Result<(), StoreError>| {
                // A caller that has left is not told.
                let _ = answer.send(done.and_then(|done| committed.map(|()| done)));
            })
        });
        let place = self.queue.reserve().await.map_err(|_| StoreError::Closed)?;
        place.send(work);
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

/// Undoes what `work` has done where it fails half-way.
fn whole<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, StoreError> {
    run_cached(connection, "SAVEPOINT work")?;
    let done = work(connection);
    // Some failures, such as a full disk, end the whole transaction by themselves.
    if !connection.is_autocommit() {
        if done.is_err() {
            run_cached(connection, "ROLLBACK TO work")?;
        }
        run_cached(connection, "RELEASE work")?;
    }
    Ok(done?)
}

/// Runs a statement that takes nothing and gives nothing.
fn run_cached(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn commit(connection: &Connection) -> Result<(), StoreError> {
    run_cached(connection, "COMMIT").map_err(|error| {
        // A rollback that fails has nothing left to roll back.
        let _ = run_cached(connection, "ROLLBACK");
        error.into()
    })
}

/// Writes until nobody holds the other end.
fn write(shared: &Shared, mut waiting: mpsc::Receiver<Work>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut told = Vec::new();
        let connection = shared.connection();
        let outcome = transaction(&connection, shared.patience(), first, &mut waiting, &mut told);
        drop(connection);
        shared.report(outcome.as_ref().copied());
        for tell in told {
            tell(outcome.clone());
        }
    }
    if let Some(dirty) = &shared.dirty {
        dirty.end();
    }
}

/// Does `first` and what waits behind it as one transaction.
fn transaction(
    connection: &Connection,
    patience: Duration,
    first: Work,
    waiting: &mut mpsc::Receiver<Work>,
    told: &mut Vec<Told>,
) -> Result<(), StoreError> {
    if let Err(error) = begin_in_time(connection, patience) {
        let error = StoreError::from(error);
        told.push(first(Err(error.clone())));
        // What waited behind it has waited as long, and would only wait in turn.
        while let Ok(work) = waiting.try_recv() {
            told.push(work(Err(error.clone())));
        }
        return Err(error);
    }
    let mut next = Some(first);
    while let Some(work) = next {
        told.push(work(Ok(connection)));
        if connection.is_autocommit() {
            return Err(StoreError::Failed("the transaction was rolled back".to_owned()));
        }
        next = if told.len() < MAX_GROUP { waiting.try_recv().ok() } else { None };
    }
    commit(connection)
}

/// Begins a transaction as soon as other processes have ended theirs, within `patience`.
fn begin_in_time(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(patience)?;
    let begun = run_cached(connection, "BEGIN IMMEDIATE");
    connection.busy_timeout(Duration::ZERO)?;
    begun
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer on a table that has room for a few pages only.
    fn small() -> Writer {
        let connection = Connection::open_in_memory().expect("memory");
        connection
            .execute_batch("CREATE TABLE kept (value BLOB); PRAGMA max_page_count = 8")
            .expect("SQL");
        Writer::start(connection, None).expect("a thread")
    }

    async fn add(writer: &Writer, bytes: usize) -> Result<i64, StoreError> {
        writer
            .run(move |connection| {
                connection.execute("INSERT INTO kept VALUES (zeroblob(?1))", [bytes as i64])?;
                connection.query_row("SELECT count(*) FROM kept", [], |row| row.get(0))
            })
            .await
    }

    #[tokio::test]
    async fn a_full_disk_is_told_and_passes() {
        let writer = small();
        assert_eq!(add(&writer, 10).await, Ok(1));
        assert_eq!(add(&writer, 1 << 20).await, Err(StoreError::Full));
        assert!(writer.is_failing());
        assert_eq!(add(&writer, 10).await, Ok(2));
        assert!(!writer.is_failing());
    }

    #[tokio::test]
    async fn work_that_fails_half_way_leaves_nothing_and_harms_no_other() {
        let writer = small();
        let half = writer.run(|connection| {
            connection.execute("INSERT INTO kept VALUES (x'00')", [])?;
            connection.execute("INSERT INTO missing VALUES (x'00')", [])
        });
        let (before, half, after) = tokio::join!(add(&writer, 1), half, add(&writer, 1));
        assert_eq!((before, after), (Ok(1), Ok(2)));
        assert!(matches!(half, Err(StoreError::Failed(_))), "{half:?}");
    }
}
