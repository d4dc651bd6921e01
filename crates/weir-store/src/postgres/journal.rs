//! Request journal in PostgreSQL. Writes are queued, and a task writes everything queued as one
//! group, so that throughput does not depend on the distance to the server. Intents and settlements
//! have separate tasks, so that neither waits for the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};

use super::super::{StoreError, Stored};
use super::connection::{Connection, Served, ServerFailure, timeout};
use super::group_write::{self, UsageCache, WriteGroup};
use super::{Postgres, ServerState, instances, watch};

/// Queue length of a task; further writes wait in their callers.
const QUEUE_LENGTH: usize = 1024;
/// Maximum size of a group.
const MAX_GROUP: usize = 256;

/// A record, in the write-ahead log's format, to be written to the tables.
pub(super) struct Waiting {
    record: Vec<u8>,
    /// Receives whether it was new.
    reply: oneshot::Sender<Stored<bool>>,
}

/// Senders to the two tasks.
pub(super) struct Queues {
    pub intents: mpsc::Sender<Waiting>,
    pub endings: mpsc::Sender<Waiting>,
}

impl Queues {
    /// Creates the senders, and the receivers of the two tasks.
    pub(super) fn new() -> (Self, [mpsc::Receiver<Waiting>; 2]) {
        let (intents, of_intents) = mpsc::channel(QUEUE_LENGTH);
        let (endings, of_endings) = mpsc::channel(QUEUE_LENGTH);
        (Self { intents, endings }, [of_intents, of_endings])
    }

    /// Returns the number of requests waiting to be written.
    pub(super) fn waiting(&self) -> u64 {
        let waiting = |queue: &mpsc::Sender<Waiting>| QUEUE_LENGTH - queue.capacity();
        (waiting(&self.intents) + waiting(&self.endings)) as u64
    }
}

/// Starts the tasks, which end with the runtime.
pub(super) fn start(
    runtime: &tokio::runtime::Handle,
    shared: &Arc<ServerState>,
    receivers: [mpsc::Receiver<Waiting>; 2],
) {
    for queue in receivers {
        runtime.spawn(write_all(Arc::clone(shared), queue));
    }
}

impl Postgres {
    /// Queues a record, and returns after its commit whether it was new.
    pub(super) async fn enqueue(
        &self,
        queue: &mpsc::Sender<Waiting>,
        record: Vec<u8>,
    ) -> Stored<bool> {
        let (reply, answer) = oneshot::channel();
        queue.send(Waiting { record, reply }).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Marks this weir as alive, now and regularly. Call it before any write in its name.
    pub(super) async fn begin(&self) -> Stored<()> {
        if self.0.shared.is_registered.load(Ordering::Acquire) {
            return Ok(());
        }
        self.run(|shared| async move {
            let connection = shared.pool.lease().await?;
            instances::beat(&connection, &shared.instance).await?;
            shared.is_registered.store(true, Ordering::Release);
            Ok(())
        })
        .await?;
        self.watch();
        Ok(())
    }

    /// Starts watching the server, once.
    pub(crate) fn watch(&self) {
        if !self.0.shared.is_watched.swap(true, Ordering::Relaxed) {
            self.0.runtime.spawn(watch::watch(Arc::clone(&self.0.shared)));
        }
    }
}

/// Writes queued records until the runtime ends.
async fn write_all(shared: Arc<ServerState>, mut queue: mpsc::Receiver<Waiting>) {
    let mut writer = GroupWriter { shared, connection: None, usage_cache: UsageCache::default() };
    while let Some(first) = queue.recv().await {
        let mut group = vec![first];
        gather(&mut queue, &mut group).await;
        let written = writer.write(&group).await;
        let health = &writer.shared.pool.health;
        health.report(written.as_ref().map(drop));
        match written {
            Ok(outcomes) => {
                for (waiting, outcome) in group.into_iter().zip(outcomes) {
                    // The caller may have left.
                    let _ = waiting.reply.send(outcome);
                }
            }
            Err(error) => {
                // Work queued behind it has waited as long, and would otherwise wait for another
                // turn.
                while let Ok(more) = queue.try_recv() {
                    group.push(more);
                }
                for waiting in group {
                    let _ = waiting.reply.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Collects queued records, and yields first so that runnable tasks can add theirs. Each group
/// costs the same few wake-ups, independent of its size.
async fn gather(queue: &mut mpsc::Receiver<Waiting>, group: &mut Vec<Waiting>) {
    loop {
        tokio::task::yield_now().await;
        let before = group.len();
        while group.len() < MAX_GROUP
            && let Ok(more) = queue.try_recv()
        {
            group.push(more);
        }
        if group.len() == MAX_GROUP || group.len() == before {
            return;
        }
    }
}

/// State of a task.
struct GroupWriter {
    shared: Arc<ServerState>,
    connection: Option<Connection>,
    usage_cache: UsageCache,
}

impl GroupWriter {
    /// Writes a group as one; returns the outcome of each record. A server error applies to all.
    async fn write(&mut self, group: &[Waiting]) -> Stored<Vec<Stored<bool>>> {
        let records: Vec<&[u8]> = group.iter().map(|waiting| &waiting.record[..]).collect();
        match self.write_with_retry(&records).await {
            Ok(outcomes) => Ok(outcomes.into_iter().map(Ok).collect()),
            Err(failure) if failure.is_refusal() && records.len() > 1 => {
                // The server refuses one of the records, which must not block the others.
                let mut outcomes = Vec::with_capacity(records.len());
                for record in records {
                    match self.write_with_retry(&[record]).await {
                        Ok(written) => outcomes.extend(written.into_iter().map(Ok)),
                        Err(failure) if failure.is_refusal() => outcomes.push(Err(failure.into())),
                        Err(failure) => return Err(failure.into()),
                    }
                }
                Ok(outcomes)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Writes records as one group, and again after a lost connection or a conflict: a repeated
    /// record counts once.
    async fn write_with_retry(&mut self, records: &[&[u8]]) -> Served<Vec<bool>> {
        match self.write_once(records).await {
            Err(failure) if failure.is_retryable() => self.write_once(records).await,
            done => done,
        }
    }

    async fn write_once(&mut self, records: &[&[u8]]) -> Served<Vec<bool>> {
        // Taken out, so that an interrupted connection is not reused.
        let connection = match self.connection.take().filter(Connection::is_usable) {
            Some(connection) => connection,
            None => {
                let connection = self.shared.pool.connect().await?;
                group_write::prepare(&connection).await?;
                connection
            }
        };
        let records = WriteGroup::decode(self.shared.instance, records);
        let timeout = timeout(&self.shared.pool.health);
        let writing = group_write::write(&connection, &mut self.usage_cache, &records);
        let written = tokio::time::timeout(timeout, writing).await;
        let written = written.map_err(|_| ServerFailure::TimedOut)?;
        if written.is_err() && connection.is_in_transaction() {
            // If rollback fails, the connection is not reused.
            let _ = connection.roll_back().await;
        }
        self.connection = Some(connection);
        written
    }
}
