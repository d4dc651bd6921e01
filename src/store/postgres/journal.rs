//! The journal of requests in PostgreSQL. What is to be written is queued, and a task takes what is
//! queued as one: so that how many requests there can be does not depend on how far away the server
//! is. Intents have one such task and settlements another, so that neither waits for the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};

use super::super::StoreError;
use super::super::ledger::frame;
use super::super::ledger::{Intent, RequestId, Settlement};
use super::connection::{Connection, Failure};
use super::written::{self, Frames, Remembered};
use super::{Postgres, Shared, instances, watch};

/// What waits for a task; what is past it waits in its caller.
const QUEUE_LENGTH: usize = 1024;
/// The most that is written as one.
const MAX_GROUP: usize = 256;

/// A frame, as logs have it, to be written to the tables.
pub struct Waiting {
    frame: Vec<u8>,
    /// Told whether that was new.
    told: oneshot::Sender<Result<bool, StoreError>>,
}

/// Ways to the two tasks.
pub struct Queues {
    intents: mpsc::Sender<Waiting>,
    endings: mpsc::Sender<Waiting>,
}

/// The tasks' ends of the ways to them.
pub struct Ends {
    intents: mpsc::Receiver<Waiting>,
    endings: mpsc::Receiver<Waiting>,
}

impl Queues {
    pub fn new() -> (Self, Ends) {
        let (intents, of_intents) = mpsc::channel(QUEUE_LENGTH);
        let (endings, of_endings) = mpsc::channel(QUEUE_LENGTH);
        (Self { intents, endings }, Ends { intents: of_intents, endings: of_endings })
    }
}

impl Queues {
    /// How many requests wait to be written.
    pub fn waiting(&self) -> u64 {
        let waiting = |queue: &mpsc::Sender<Waiting>| QUEUE_LENGTH - queue.capacity();
        (waiting(&self.intents) + waiting(&self.endings)) as u64
    }
}

/// Starts the tasks, which end with the runtime.
pub fn start(runtime: &tokio::runtime::Handle, shared: &Arc<Shared>, ends: Ends) {
    runtime.spawn(write_all(Arc::clone(shared), ends.intents));
    runtime.spawn(write_all(Arc::clone(shared), ends.endings));
}

impl Postgres {
    /// Writes down that a request is about to be sent. It is committed when this returns.
    pub async fn open_request(&self, intent: &Intent) -> Result<(), StoreError> {
        self.begin().await?;
        self.write(&self.0.shared.queues.intents, frame::opened(intent)).await.map(drop)
    }

    /// Writes down how a request ended; `false` if that was done before.
    pub async fn settle_request(
        &self,
        intent: &Intent,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        self.write(&self.0.shared.queues.endings, frame::settled(intent, settlement)).await
    }

    /// Forgets a request that was not sent after all.
    pub async fn release_request(&self, id: RequestId) -> Result<(), StoreError> {
        self.write(&self.0.shared.queues.intents, frame::released(id)).await.map(drop)
    }

    async fn write(
        &self,
        queue: &mpsc::Sender<Waiting>,
        frame: Vec<u8>,
    ) -> Result<bool, StoreError> {
        let (told, answered) = oneshot::channel();
        queue.send(Waiting { frame, told }).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    /// Says that this weir lives, and from now on again and again. To be done before anything is
    /// written in its name.
    pub(super) async fn begin(&self) -> Result<(), StoreError> {
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

    /// Watches the server, if that is not done already.
    pub fn watch(&self) {
        if !self.0.shared.is_watched.swap(true, Ordering::Relaxed) {
            self.0.runtime.spawn(watch::watch(Arc::clone(&self.0.shared)));
        }
    }
}

/// Writes what is queued, until the runtime ends.
async fn write_all(shared: Arc<Shared>, mut queue: mpsc::Receiver<Waiting>) {
    let mut writer = Writer { shared, connection: None, remembered: Remembered::default() };
    while let Some(first) = queue.recv().await {
        let mut group = vec![first];
        gather(&mut queue, &mut group).await;
        let written = writer.write(&group).await;
        let health = writer.shared.pool.health();
        health.report(written.as_ref().map(drop));
        match written {
            Ok(outcomes) => {
                for (waiting, outcome) in group.into_iter().zip(outcomes) {
                    // A caller that has left is not told.
                    let _ = waiting.told.send(outcome);
                }
            }
            Err(error) => {
                // What waited behind it has waited as long, and would only wait in turn.
                while let Ok(more) = queue.try_recv() {
                    group.push(more);
                }
                for waiting in group {
                    let _ = waiting.told.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Adds what is queued to a group, and what is as good as queued: who can run already runs first. Each
/// group costs the same few wake-ups, however many it is of.
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

/// What a task keeps.
struct Writer {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    remembered: Remembered,
}

impl Writer {
    /// Writes a group as one; what came of each. An error is the server's, and all have it.
    async fn write(
        &mut self,
        group: &[Waiting],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let frames: Vec<&[u8]> = group.iter().map(|waiting| &waiting.frame[..]).collect();
        match self.try_twice(&frames).await {
            Ok(outcomes) => Ok(outcomes.into_iter().map(Ok).collect()),
            Err(failure) if failure.is_refusal() && frames.len() > 1 => {
                // Something of it the server does not take: that must not keep the rest out.
                let mut outcomes = Vec::with_capacity(frames.len());
                for frame in frames {
                    match self.try_twice(&[frame]).await {
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

    /// Writes frames as one, and once more where the connection was lost or others were in the way:
    /// what is written twice counts once.
    async fn try_twice(&mut self, frames: &[&[u8]]) -> Result<Vec<bool>, Failure> {
        match self.try_once(frames).await {
            Err(failure) if failure.may_pass() => self.try_once(frames).await,
            done => done,
        }
    }

    async fn try_once(&mut self, frames: &[&[u8]]) -> Result<Vec<bool>, Failure> {
        // Taken, so that one that is left in the middle is not used again.
        let connection = match self.connection.take().filter(Connection::is_usable) {
            Some(connection) => connection,
            None => {
                let connection = self.shared.pool.connect().await?;
                written::prepare(&connection).await?;
                connection
            }
        };
        let frames = Frames::read(self.shared.instance, frames);
        let patience = self.shared.pool.health().patience();
        let writing = written::write(&connection, &mut self.remembered, &frames);
        let written = tokio::time::timeout(patience, writing).await;
        let written = written.map_err(|_| Failure::Slow)?;
        if written.is_err() && connection.is_in_transaction() {
            // One that cannot be rolled back is not used again.
            let _ = connection.roll_back().await;
        }
        self.connection = Some(connection);
        written
    }
}
