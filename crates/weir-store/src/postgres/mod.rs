//! PostgreSQL store, shared by weirs on several machines. All communication with the server runs on
//! a separate thread: callers on any runtime wait for its answers, each with a timeout. The tables
//! have the same meaning as SQLite's, documented there.

mod address;
mod budgets;
mod columns;
mod connection;
mod group_write;
mod instances;
mod journal;
mod leader;
mod pool;
mod queries;
mod replica;
mod schema;
mod steps;
mod values;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{OpenError, SECRET_BYTES, StoreError, Stored};
use address::Address;
use connection::Connection;
use journal::Queues;
use leader::LeaderLease;
use pool::Pool;
use replica::Replicas;
use watch::ChangeCount;

use crate::secret::random;

/// How long opening retries an unreachable server, which may be starting.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// Time limit for announcing the end of this weir.
const SIGN_OFF_TIMEOUT: Duration = Duration::from_secs(1);

/// Handle on the store's thread, which ends with the last handle.
#[derive(Clone)]
pub(crate) struct Postgres(Arc<Inner>);

struct Inner {
    runtime: Handle,
    shared: Arc<ServerState>,
    /// Dropping it ends the thread.
    _alive: oneshot::Sender<()>,
}

/// State shared by all tasks of a store.
pub(crate) struct ServerState {
    pool: Pool,
    secret: [u8; SECRET_BYTES],
    /// Id of this weir while it lives.
    instance: [u8; 16],
    /// Whether it has been marked as alive.
    is_registered: AtomicBool,
    is_watched: AtomicBool,
    keys: ChangeCount,
    leader: LeaderLease,
    replicas: Replicas,
    queues: Queues,
}

impl Postgres {
    /// Opens the database at `url` and creates its tables if missing. Blocks while opening.
    pub(crate) fn open(url: &str) -> Result<Self, OpenError> {
        let address = Address::read(url)?;
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    let message = format!("the store's thread cannot start: {error}");
                    // The caller no longer waits.
                    let _ = reply.send(Err(OpenError::System { message }));
                    return;
                }
            };
            let (alive, ended) = oneshot::channel();
            let shared = match runtime.block_on(open(address, runtime.handle())) {
                Ok(shared) => shared,
                Err(error) => {
                    let _ = reply.send(Err(error));
                    return;
                }
            };
            let (handle, own) = (runtime.handle().clone(), Arc::clone(&shared));
            let opened = Self(Arc::new(Inner { runtime: handle, shared, _alive: alive }));
            if reply.send(Ok(opened)).is_ok() {
                // This only signals that the last handle was dropped.
                let _ = runtime.block_on(ended);
                runtime.block_on(sign_off(&own));
            }
        };
        let started = std::thread::Builder::new().name("weir-postgres".to_owned()).spawn(run);
        let system = |message: String| OpenError::System { message };
        started.map_err(|error| system(format!("cannot start a thread: {error}")))?;
        answer.recv().map_err(|_| system("the store's thread has ended".to_owned()))?
    }

    /// Validates a URL for [`Self::open`].
    pub(crate) fn check_url(url: &str) -> Result<(), OpenError> {
        Address::read(url).map(drop)
    }

    /// Runs the read-only `work` on the store's thread. A successful read says nothing about the
    /// server accepting writes.
    async fn read<T: Send + 'static, W>(
        &self,
        work: impl FnOnce(Arc<ServerState>) -> W,
    ) -> Stored<T>
    where
        W: Future<Output = Stored<T>> + Send + 'static,
    {
        let done = self.0.runtime.spawn(work(Arc::clone(&self.0.shared)));
        done.await.map_err(|_| StoreError::Closed)?
    }

    /// Runs `work` on the store's thread, to its end even if the caller leaves.
    async fn run<T: Send + 'static, W>(&self, work: impl FnOnce(Arc<ServerState>) -> W) -> Stored<T>
    where
        W: Future<Output = Stored<T>> + Send + 'static,
    {
        let shared = Arc::clone(&self.0.shared);
        let work = work(Arc::clone(&shared));
        let done = self.0.runtime.spawn(async move {
            let begun = Instant::now();
            let done = work.await;
            shared.pool.health.latency.note(begun.elapsed());
            shared.pool.health.report(done.as_ref().map(drop));
            done
        });
        done.await.map_err(|_| StoreError::Closed)?
    }
}

/// Opens the database; retries for a while if the server is unreachable.
async fn open(address: Address, runtime: &Handle) -> Result<Arc<ServerState>, OpenError> {
    let (deadline, shown) = (Instant::now() + OPEN_TIMEOUT, address.shown.clone());
    let pool = Pool::new(address);
    let connection: Connection = loop {
        match pool.connect().await {
            Ok(connection) => break connection,
            Err(failure) if failure.is_permanent() || Instant::now() + OPEN_PAUSE > deadline => {
                let message = format!("{shown}: {}", failure.message());
                return Err(OpenError::Unusable { message });
            }
            Err(_) => tokio::time::sleep(OPEN_PAUSE).await,
        }
    };
    let prepared = schema::prepare(&connection).await?;
    pool.set_schema(prepared.schema);
    let (queues, receivers) = Queues::new();
    let shared = Arc::new(ServerState {
        pool,
        secret: prepared.secret,
        instance: random()?,
        is_registered: AtomicBool::new(false),
        is_watched: AtomicBool::new(false),
        keys: ChangeCount::default(),
        leader: LeaderLease::default(),
        replicas: Replicas::default(),
        queues,
    });
    journal::start(runtime, &shared, receivers);
    Ok(shared)
}

/// Announces the end of this weir, so that others need not wait to detect it.
async fn sign_off(shared: &ServerState) {
    if !shared.is_registered.load(Ordering::Acquire) {
        return;
    }
    let leave = async {
        // If the server cannot be reached, it detects the end itself.
        if let Ok(connection) = shared.pool.lease().await {
            let _ = instances::end(&connection, &shared.instance).await;
        }
    };
    let _ = tokio::time::timeout(SIGN_OFF_TIMEOUT, leave).await;
}
