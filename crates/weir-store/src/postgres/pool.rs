//! Connection pool for occasional statements. A failed connection is not reused, and an unreachable
//! server is not retried at once.
//!
//! Written by hand: group writes have connections of their own outside the pool, so deadpool-postgres
//! could hold only these few. The separate limit for long statements, the shared backoff and the
//! check for a transaction left open would remain here; it would replace the list of idle
//! connections and one semaphore.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::super::{StoreError, Stored};
use super::address::Address;
use super::connection::{Connection, Served, ServerFailure, timeout};
use crate::health::Health;

/// Maximum number of connections.
const CONNECTIONS: usize = 4;
/// How many of them may run long statements.
const LONG_CONNECTIONS: usize = 2;
/// Initial and maximum pause after a failed connection.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Connections to one server.
pub(super) struct Pool {
    address: Address,
    pub(super) health: Arc<Health>,
    pub(super) changed: Arc<Notify>,
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
    long_places: Semaphore,
    backoff: Mutex<Backoff>,
    /// Schema of the tables; empty until it is known.
    schema: OnceLock<String>,
}

/// Backoff for an unreachable server.
#[derive(Default)]
struct Backoff {
    pause: Duration,
    /// `None` while it is reachable.
    closed: Option<(Instant, String)>,
}

/// A leased connection; it returns to the pool if it is usable.
pub(super) struct LeasedConnection<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    _place: SemaphorePermit<'a>,
    _long_place: Option<SemaphorePermit<'a>>,
}

impl Pool {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            health: Arc::new(Health::new(
                "the store cannot be used; ledger.on_failure decides whether requests are sent \
                 anyway",
                "the store can be used again",
            )),
            changed: Arc::default(),
            idle: Mutex::default(),
            places: Semaphore::new(CONNECTIONS),
            long_places: Semaphore::new(LONG_CONNECTIONS),
            backoff: Mutex::default(),
            schema: OnceLock::new(),
        }
    }

    /// Fixes the schema in which tables are looked up, even if other schemas have the same names.
    pub(super) fn set_schema(&self, schema: String) {
        // Set once, when the store is opened.
        let _ = self.schema.set(schema);
    }

    /// Returns the schema, which separates the tables from other stores on the same server.
    pub(super) fn schema(&self) -> &str {
        self.schema.get().map_or("", String::as_str)
    }

    /// Leases a connection as soon as one is free.
    pub(super) async fn lease(&self) -> Stored<LeasedConnection<'_>> {
        self.lease_with(None).await
    }

    /// Leases a connection for long statements; there are fewer of these.
    pub(super) async fn long_lease(&self) -> Stored<LeasedConnection<'_>> {
        let place = self.long_places.acquire().await.map_err(|_| StoreError::Closed)?;
        self.lease_with(Some(place)).await
    }

    async fn lease_with<'a>(
        &'a self,
        long_place: Option<SemaphorePermit<'a>>,
    ) -> Stored<LeasedConnection<'a>> {
        let waited = tokio::time::timeout(timeout(&self.health), self.places.acquire()).await;
        let place = waited.map_err(|_| ServerFailure::TimedOut)?.map_err(|_| StoreError::Closed)?;
        let idle = loop {
            let idle = self.idle.lock().pop();
            if idle.as_ref().is_none_or(Connection::is_usable) {
                break idle;
            }
        };
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(LeasedConnection {
            pool: self,
            connection: Some(connection),
            _place: place,
            _long_place: long_place,
        })
    }

    /// Opens a connection outside the pool.
    pub(super) async fn connect(&self) -> Served<Connection> {
        {
            let backoff = self.backoff.lock();
            if let Some((until, message)) = &backoff.closed
                && Instant::now() < *until
            {
                return Err(ServerFailure::Unreachable(message.clone()));
            }
        }
        let opened = self.open().await;
        let mut backoff = self.backoff.lock();
        match &opened {
            Ok(_) => *backoff = Backoff::default(),
            Err(failure) => {
                backoff.pause = (backoff.pause * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
                backoff.closed = Some((Instant::now() + backoff.pause, failure.message()));
            }
        }
        opened
    }

    async fn open(&self) -> Served<Connection> {
        let connection = Connection::open(&self.address, &self.health, &self.changed).await?;
        if let Some(schema) = self.schema.get() {
            connection.batch(&format!("SET search_path = {schema}")).await?;
        }
        Ok(connection)
    }
}

impl Deref for LeasedConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is taken only when the lease ends")
    }
}

impl Drop for LeasedConnection<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(Connection::is_usable) {
            self.pool.idle.lock().push(connection);
        }
    }
}
