//! The one thread that writes: it takes what is queued as one transaction, so that many callers
//! share one flush of the disk. Knows nothing of what is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{OpenError, StoreError};

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
    is_failing: Arc<AtomicBool>,
}

impl Writer {
    /// Starts a thread that writes by `connection`.
    pub fn start(connection: Connection) -> Result<Self, OpenError> {
        let (queue, waiting) = mpsc::channel(QUEUE_LENGTH);
        let is_failing = Arc::new(AtomicBool::new(false));
        let health = Arc::clone(&is_failing);
        std::thread::Builder::new()
            .name("weir-store".to_owned())
            .spawn(move || write(&connection, waiting, &health))
            .map_err(|error| OpenError::System { said: format!("no thread: {error}") })?;
        Ok(Self { queue, is_failing })
    }

    /// Whether the last transaction failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
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
        self.queue.send(work).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

/// Undoes what `work` has done where it fails half-way.
fn whole<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, StoreError> {
    connection.execute_batch("SAVEPOINT work")?;
    let done = work(connection);
    // Some failures, such as a full disk, end the whole transaction by themselves.
    if !connection.is_autocommit() {
        let end = if done.is_ok() { "RELEASE work" } else { "ROLLBACK TO work; RELEASE work" };
        connection.execute_batch(end)?;
    }
    Ok(done?)
}

/// Writes until nobody holds the other end.
fn write(connection: &Connection, mut waiting: mpsc::Receiver<Work>, is_failing: &AtomicBool) {
    while let Some(first) = waiting.blocking_recv() {
        let mut told = Vec::new();
        let outcome = transaction(connection, first, &mut waiting, &mut told);
        report(&outcome, is_failing);
        for tell in told {
            tell(outcome.clone());
        }
    }
}

/// Does `first` and what waits behind it as one transaction.
fn transaction(
    connection: &Connection,
    first: Work,
    waiting: &mut mpsc::Receiver<Work>,
    told: &mut Vec<Told>,
) -> Result<(), StoreError> {
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
        let error = StoreError::from(error);
        told.push(first(Err(error.clone())));
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
    if let Err(error) = connection.execute_batch("COMMIT") {
        // A rollback that fails has nothing left to roll back.
        let _ = connection.execute_batch("ROLLBACK");
        return Err(error.into());
    }
    Ok(())
}

/// Logs the first failure after a success and the first success after a failure.
fn report(outcome: &Result<(), StoreError>, is_failing: &AtomicBool) {
    match outcome {
        Ok(()) if is_failing.swap(false, Ordering::Relaxed) => {
            tracing::info!(target: "weir::store", "the store can be written again");
        }
        Err(error) if !is_failing.swap(true, Ordering::Relaxed) => {
            tracing::warn!(
                target: "weir::store",
                %error,
                "the store cannot be written; requests go on without it"
            );
        }
        _ => {}
    }
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
        Writer::start(connection).expect("a thread")
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
