//! A store in PostgreSQL, which weirs on several machines share. All that speaks to the server runs on
//! a thread of its own: callers wait for its answers, on whatever runtime they are, and each answer
//! has its bounds. What the tables mean is told beside SQLite's, whose rules these share.

mod address;
mod budgets;
mod columns;
mod connection;
mod instances;
mod journal;
mod keys;
mod mirror;
mod pool;
mod queries;
mod schema;
mod values;
mod watch;
mod written;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Activity, OpenError, SECRET_BYTES, State, StoreError};
use address::Address;
use budgets::Counting;
use connection::Connection;
use journal::Queues;
use keys::Known;
use mirror::Mirrors;
use pool::Pool;

/// How long a server that cannot be reached is tried when the store is opened: it may be starting.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait between two tries.
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// How long saying that this weir has ended may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle on the thread, which ends with the last one.
#[derive(Clone)]
pub struct Postgres(Arc<Inner>);

struct Inner {
    runtime: Handle,
    shared: Arc<Shared>,
    /// Its end ends the thread.
    _alive: oneshot::Sender<()>,
}

/// What all tasks of a store share.
pub struct Shared {
    pool: Pool,
    secret: [u8; SECRET_BYTES],
    /// What this weir is called while it lives.
    instance: [u8; 16],
    /// Whether it has said that it lives.
    is_registered: AtomicBool,
    is_watched: AtomicBool,
    keys: Known,
    counting: Counting,
    mirrors: Mirrors,
    queues: Queues,
}

impl Postgres {
    /// Opens the database that `url` names and makes its tables where they are missing. Blocks while
    /// it is opened.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        let address = Address::read(url)?;
        let (told, heard) = std::sync::mpsc::sync_channel(1);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    let said = format!("the store's thread cannot begin: {error}");
                    // Nobody waits for it any more.
                    let _ = told.send(Err(OpenError::System { said }));
                    return;
                }
            };
            let (alive, ended) = oneshot::channel();
            let shared = match runtime.block_on(open(address, runtime.handle())) {
                Ok(shared) => shared,
                Err(error) => {
                    let _ = told.send(Err(error));
                    return;
                }
            };
            let (handle, own) = (runtime.handle().clone(), Arc::clone(&shared));
            let opened = Self(Arc::new(Inner { runtime: handle, shared, _alive: alive }));
            if told.send(Ok(opened)).is_ok() {
                // Only the end of the last handle is told here.
                let _ = runtime.block_on(ended);
                runtime.block_on(take_leave(&own));
            }
        };
        let started = std::thread::Builder::new().name("weir-postgres".to_owned()).spawn(run);
        let system = |said: String| OpenError::System { said };
        started.map_err(|error| system(format!("no thread: {error}")))?;
        heard.recv().map_err(|_| system("the store's thread has ended".to_owned()))?
    }

    /// Refuses a URL that [`Self::open`] could not read.
    pub fn check_url(url: &str) -> Result<(), OpenError> {
        Address::read(url).map(drop)
    }

    /// A secret that was made with the tables and stays with them.
    pub fn secret(&self) -> [u8; SECRET_BYTES] {
        self.0.shared.secret
    }

    /// What the server was asked so far, and what waits.
    pub fn activity(&self) -> Activity {
        let shared = &self.0.shared;
        let (writes, failed_writes) = shared.pool.health().counts();
        Activity { writes, failed_writes, queued: shared.queues.waiting(), log_bytes: 0 }
    }

    pub fn state(&self) -> State {
        if self.0.shared.pool.health().is_failing() { State::Failing } else { State::Server }
    }

    /// Does `work`, which only reads, on the store's thread. That the server can be read says nothing of
    /// whether it can be written.
    async fn read<T: Send + 'static, W>(
        &self,
        work: impl FnOnce(Arc<Shared>) -> W,
    ) -> Result<T, StoreError>
    where
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let done = self.0.runtime.spawn(work(Arc::clone(&self.0.shared)));
        done.await.map_err(|_| StoreError::Closed)?
    }

    /// Does `work` on the store's thread. It goes on to its end where the caller has left.
    async fn run<T: Send + 'static, W>(
        &self,
        work: impl FnOnce(Arc<Shared>) -> W,
    ) -> Result<T, StoreError>
    where
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let shared = Arc::clone(&self.0.shared);
        let work = work(Arc::clone(&shared));
        let done = self.0.runtime.spawn(async move {
            let done = work.await;
            shared.pool.health().report(done.as_ref().map(drop));
            done
        });
        done.await.map_err(|_| StoreError::Closed)?
    }

    /// Waits until all that was committed before survives a loss of power of the server's.
    pub async fn sync(&self) -> Result<(), StoreError> {
        self.run(|shared| async move {
            let connection = shared.pool.lease().await?;
            connection.begin().await?;
            // A commit that waits for the disk brings there all that were before it.
            connection.batch("SET LOCAL synchronous_commit = on").await?;
            schema::put(&connection, "synced", &[]).await?;
            Ok(connection.commit().await?)
        })
        .await
    }
}

/// Opens the database, and tries again for a while where it cannot be reached.
async fn open(address: Address, runtime: &Handle) -> Result<Arc<Shared>, OpenError> {
    let (deadline, shown) = (Instant::now() + OPEN_TIMEOUT, address.shown().to_owned());
    let pool = Pool::new(address);
    let connection: Connection = loop {
        match pool.connect().await {
            Ok(connection) => break connection,
            Err(failure) if failure.is_lasting() || Instant::now() + OPEN_PAUSE > deadline => {
                let said = format!("{shown}: {}", failure.said());
                return Err(OpenError::Unusable { said });
            }
            Err(_) => tokio::time::sleep(OPEN_PAUSE).await,
        }
    };
    let prepared = schema::prepare(&connection).await?;
    pool.settle_on(prepared.schema);
    let mut instance = [0; 16];
    getrandom::fill(&mut instance)
        .map_err(|error| OpenError::System { said: format!("no random bytes: {error}") })?;
    let (queues, ends) = Queues::new();
    let shared = Arc::new(Shared {
        pool,
        secret: prepared.secret,
        instance,
        is_registered: AtomicBool::new(false),
        is_watched: AtomicBool::new(false),
        keys: Known::default(),
        counting: Counting::default(),
        mirrors: Mirrors::default(),
        queues,
    });
    journal::start(runtime, &shared, ends);
    Ok(shared)
}

/// Says that this weir has ended, so that others need not wait to see it.
async fn take_leave(shared: &Shared) {
    if !shared.is_registered.load(Ordering::Acquire) {
        return;
    }
    let leave = async {
        // A server that cannot be told sees it for itself.
        if let Ok(connection) = shared.pool.lease().await {
            let _ = instances::end(&connection, &shared.instance).await;
        }
    };
    let _ = tokio::time::timeout(LEAVE_TIMEOUT, leave).await;
}
