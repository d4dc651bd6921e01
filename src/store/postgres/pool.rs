//! A few connections that all share who ask for something now and then. One that has failed is not
//! used again, and a server that cannot be reached is not asked for anew at once.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::super::StoreError;
use super::address::Address;
use super::connection::{Connection, Failure, Health};

/// How many connections there are at most.
const CONNECTIONS: usize = 4;
/// How many of them may do what takes long.
const LONG_CONNECTIONS: usize = 2;
/// How long a server that could not be reached is left alone, at first and at most.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Connections to one server.
pub struct Pool {
    address: Address,
    health: Arc<Health>,
    changed: Arc<Notify>,
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
    long_places: Semaphore,
    gate: Mutex<Gate>,
    /// Where the tables are; empty until that is known.
    schema: OnceLock<String>,
}

/// When a server that could not be reached is tried again.
#[derive(Default)]
struct Gate {
    backoff: Duration,
    /// `None` while it can be reached.
    closed: Option<(Instant, String)>,
}

/// A connection on loan; it goes back if it can be used again.
pub struct Lease<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    _place: SemaphorePermit<'a>,
    _long_place: Option<SemaphorePermit<'a>>,
}

impl Pool {
    pub fn new(address: Address) -> Self {
        Self {
            address,
            health: Arc::default(),
            changed: Arc::default(),
            idle: Mutex::default(),
            places: Semaphore::new(CONNECTIONS),
            long_places: Semaphore::new(LONG_CONNECTIONS),
            gate: Mutex::default(),
            schema: OnceLock::new(),
        }
    }

    /// Has the tables looked for in one schema from now on, whatever else is named like them.
    pub fn settle_on(&self, schema: String) {
        // It is settled once, when the store is opened.
        let _ = self.schema.set(schema);
    }

    /// What tells the tables' place from that of other stores on the same server.
    pub fn schema(&self) -> &str {
        self.schema.get().map_or("", String::as_str)
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Told when some connection hears that keys were changed.
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// A connection, as soon as few others have one.
    pub async fn lease(&self) -> Result<Lease<'_>, StoreError> {
        self.lease_with(None).await
    }

    /// One for what takes long, of which there are fewer.
    pub async fn long_lease(&self) -> Result<Lease<'_>, StoreError> {
        let place = self.long_places.acquire().await.map_err(|_| StoreError::Closed)?;
        self.lease_with(Some(place)).await
    }

    async fn lease_with<'a>(
        &'a self,
        long_place: Option<SemaphorePermit<'a>>,
    ) -> Result<Lease<'a>, StoreError> {
        let waited = tokio::time::timeout(self.health.patience(), self.places.acquire()).await;
        let place = waited.map_err(|_| Failure::Slow)?.map_err(|_| StoreError::Closed)?;
        let idle = loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if idle.as_ref().is_none_or(Connection::is_usable) {
                break idle;
            }
        };
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(Lease {
            pool: self,
            connection: Some(connection),
            _place: place,
            _long_place: long_place,
        })
    }

    /// A connection beside the shared ones.
    pub async fn connect(&self) -> Result<Connection, Failure> {
        {
            let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((until, said)) = &gate.closed
                && Instant::now() < *until
            {
                return Err(Failure::Away(said.clone()));
            }
        }
        let opened = self.open().await;
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        match &opened {
            Ok(_) => *gate = Gate::default(),
            Err(failure) => {
                gate.backoff = (gate.backoff * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
                gate.closed = Some((Instant::now() + gate.backoff, failure.said()));
            }
        }
        opened
    }

    async fn open(&self) -> Result<Connection, Failure> {
        let connection = Connection::open(&self.address, &self.health, &self.changed).await?;
        if let Some(schema) = self.schema.get() {
            connection.batch(&format!("SET search_path = {schema}")).await?;
        }
        Ok(connection)
    }
}

impl Deref for Lease<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is taken when the lease ends, and not before")
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(Connection::is_usable) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}
