//! Single writer: one connection, one transaction at a time. A thread runs all queued work in one
//! transaction, so that many callers share a commit. The work is opaque here.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::cached;
use super::sync::Dirty;
use crate::health::Health;
use crate::{Activity, OpenError, StoreError, Stored};

/// How long the thread waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// The same while writes fail, so that callers do not wait longer than necessary.
const PROBE_TIMEOUT: Duration = Duration::from_millis(20);
/// Queue length of the thread; further work waits in its callers.
const QUEUE_LENGTH: usize = 256;
/// Maximum pieces of work per transaction.
const MAX_GROUP: usize = 128;

/// A piece of work: receives the connection, or the error. It answers its caller only after it
/// learns whether the transaction was committed.
type Work = Box<dyn FnOnce(Stored<&Connection>) -> IntentJson + Send>;
/// Answers the caller, given the transaction's outcome.
type IntentJson = Box<dyn FnOnce(Stored<()>) + Send>;

/// Handle on the thread, which ends with the last handle.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Work>,
    pub(super) shared: Arc<WriterState>,
}

/// State shared by the thread and the handles.
pub(crate) struct WriterState {
    connection: Mutex<Connection>,
    health: Health,
    /// Notified of each commit that is not on disk yet; `None` if commits wait for the disk.
    dirty: Option<Dirty>,
}

impl WriterState {
    /// Locks the connection for writing, with no transaction open.
    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        without_transaction(self.connection.lock())
    }

    /// Runs `work` as a separate transaction on this thread, which may wait for others.
    pub(crate) fn run_blocking<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Stored<T> {
        let connection = self.connection();
        let begun = begin_within(&connection, self.busy_timeout()).map_err(StoreError::from);
        if begun.is_err() {
            self.report(begun.as_ref().copied());
        }
        begun?;
        self.finish(connection, work)
    }

    /// Returns the timeout for other processes.
    fn busy_timeout(&self) -> Duration {
        if self.health.is_failing() { PROBE_TIMEOUT } else { BUSY_TIMEOUT }
    }

    /// Runs `work` in the open transaction, and ends it.
    fn finish<T>(
        &self,
        connection: MutexGuard<'_, Connection>,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Stored<T> {
        let done = work(&connection).map_err(StoreError::from);
        if let Err(error) = &done {
            drop(without_transaction(connection));
            self.report(Err(error));
            return done;
        }
        let committed = commit(&connection);
        drop(connection);
        self.report(committed.as_ref().copied());
        committed.and(done)
    }

    /// Records an outcome.
    fn report(&self, outcome: Result<(), &StoreError>) {
        if let (Ok(()), Some(dirty)) = (outcome, &self.dirty) {
            dirty.note();
        }
        self.health.report(outcome);
    }
}

/// Ends a transaction that a panic or a failure has left open.
fn without_transaction(connection: MutexGuard<'_, Connection>) -> MutexGuard<'_, Connection> {
    if !connection.is_autocommit() {
        // If this fails, no transaction is open, or the next one reports the error.
        let _ = run_cached(&connection, "ROLLBACK");
    }
    connection
}

impl Writer {
    /// Starts a thread that writes on `connection`. Commits reach the disk before they return, or
    /// are signalled to `dirty`.
    pub(crate) fn start(connection: Connection, dirty: Option<Dirty>) -> Result<Self, OpenError> {
        // Only the thread waits for others, and reports it.
        connection.busy_timeout(Duration::ZERO)?;
        let (queue, waiting) = mpsc::channel(QUEUE_LENGTH);
        let shared = Arc::new(WriterState {
            connection: Mutex::new(connection),
            health: Health::new(
                "the store cannot be written; ledger.on_failure decides whether requests are sent \
                 anyway",
                "the store can be written again",
            ),
            dirty,
        });
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("weir-store".to_owned())
            .spawn(move || write(&own, waiting))
            .map_err(|error| OpenError::System {
                message: format!("cannot start a thread: {error}"),
            })?;
        Ok(Self { queue, shared })
    }

    /// Returns whether the last transaction failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.shared.health.is_failing()
    }

    /// Returns the write activity so far, and the queued work.
    pub(crate) fn activity(&self) -> Activity {
        let (writes, failed_writes) = self.shared.health.counts();
        Activity {
            writes,
            failed_writes,
            queued: (QUEUE_LENGTH - self.queue.capacity()) as u64,
            transactions: self.shared.health.latency.read(),
            ..Activity::default()
        }
    }

    /// Runs `work` completely or not at all, and returns its result after the commit.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Stored<T> {
        self.run_steps(move |connection| Ok(work(connection)?)).await
    }

    /// As [`Self::run`], for work with errors of its own.
    pub(crate) async fn run_steps<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            let done = connection.and_then(|connection| atomically(connection, work));
            Box::new(move |committed: Stored<()>| {
                // The caller may have left.
                let _ = answer.send(done.and_then(|done| committed.map(|()| done)));
            })
        });
        let place = self.queue.reserve().await.map_err(|_| StoreError::Closed)?;
        place.send(work);
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

/// Undoes the effects of `work` if it fails halfway.
fn atomically<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Stored<T>,
) -> Stored<T> {
    run_cached(connection, "SAVEPOINT work")?;
    let done = work(connection);
    // Some failures, such as a full disk, end the whole transaction.
    if !connection.is_autocommit() {
        if done.is_err() {
            run_cached(connection, "ROLLBACK TO work")?;
        }
        run_cached(connection, "RELEASE work")?;
    }
    done
}

/// Runs a statement without parameters and results.
fn run_cached(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    cached::run(connection, sql, []).map(drop)
}

fn commit(connection: &Connection) -> Stored<()> {
    run_cached(connection, "COMMIT").map_err(|error| {
        // If rollback fails, there is nothing left to roll back.
        let _ = run_cached(connection, "ROLLBACK");
        error.into()
    })
}

/// Writes until all handles are dropped.
fn write(shared: &WriterState, mut waiting: mpsc::Receiver<Work>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut replies = Vec::new();
        let connection = shared.connection();
        let begun = Instant::now();
        let outcome =
            transaction(&connection, shared.busy_timeout(), first, &mut waiting, &mut replies);
        drop(connection);
        shared.health.latency.note(begun.elapsed());
        shared.report(outcome.as_ref().copied());
        for reply in replies {
            reply(outcome.clone());
        }
    }
    if let Some(dirty) = &shared.dirty {
        dirty.end();
    }
}

/// Runs `first` and the work queued behind it as one transaction.
fn transaction(
    connection: &Connection,
    timeout: Duration,
    first: Work,
    waiting: &mut mpsc::Receiver<Work>,
    replies: &mut Vec<IntentJson>,
) -> Stored<()> {
    if let Err(error) = begin_within(connection, timeout) {
        let error = StoreError::from(error);
        replies.push(first(Err(error.clone())));
        // Work queued behind it has waited as long, and would otherwise wait for another turn.
        while let Ok(work) = waiting.try_recv() {
            replies.push(work(Err(error.clone())));
        }
        return Err(error);
    }
    let mut next = Some(first);
    while let Some(work) = next {
        replies.push(work(Ok(connection)));
        if connection.is_autocommit() {
            return Err(StoreError::Failed("the transaction was rolled back".to_owned()));
        }
        next = if replies.len() < MAX_GROUP { waiting.try_recv().ok() } else { None };
    }
    commit(connection)
}

/// Begins a transaction as soon as other processes end theirs, within `patience`.
fn begin_within(connection: &Connection, timeout: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(timeout)?;
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

    async fn add(writer: &Writer, bytes: usize) -> Stored<i64> {
        writer
            .run(move |connection| {
                connection.execute("INSERT INTO kept VALUES (zeroblob(?1))", [bytes as i64])?;
                connection.query_row("SELECT count(*) FROM kept", [], |row| row.get(0))
            })
            .await
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_and_recovers() {
        let writer = small();
        assert_eq!(add(&writer, 10).await, Ok(1));
        assert_eq!(add(&writer, 1 << 20).await, Err(StoreError::Full));
        assert!(writer.is_failing());
        assert_eq!(add(&writer, 10).await, Ok(2));
        assert!(!writer.is_failing());
    }

    #[tokio::test]
    async fn work_that_fails_halfway_leaves_nothing_and_affects_no_other() {
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
