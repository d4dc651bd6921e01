//! One connection to the server: statements prepared once, every answer waited for within bounds.
//! Whatever goes wrong on it ends it, unless the server itself has refused a statement.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use super::super::{OpenError, StoreError};
use super::address::Address;

/// How long a statement may take that is asked while a request waits.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long one may take that reads or changes much.
pub const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// What the server itself bounds: a weir that is held still in the middle of something must not hold
/// others up, and one that is gone must not go on.
const SETTINGS: &str = "SET lock_timeout = '4s'; SET statement_timeout = '60s';
    SET idle_in_transaction_session_timeout = '5s'";

/// What a statement is given.
pub type Given<'a> = &'a (dyn ToSql + Sync);

/// Why something did not happen.
#[derive(Debug)]
pub enum Failure {
    /// What the server, or the way to it, said.
    Said(tokio_postgres::Error),
    /// No answer came in time.
    Slow,
    /// The server was not asked: it could not be reached a moment ago.
    Away(String),
}

impl Failure {
    /// The server's code for it, where the server has refused something.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Said(error) => error.code(),
            Self::Slow | Self::Away(_) => None,
        }
    }

    /// Whether the server refused the statement and would take the next.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Said(error) if error.as_db_error().is_some())
    }

    /// Whether the same may succeed at once: others were in the way, or the connection was lost.
    pub fn may_pass(&self) -> bool {
        const PASSING: [SqlState; 2] =
            [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
        let is_lost = matches!(self, Self::Said(error) if error.as_db_error().is_none());
        is_lost || self.code().is_some_and(|code| PASSING.contains(code))
    }

    /// Whether it is of no use to try again a moment later: the server has refused whoever asks, or
    /// has not the TLS that is wanted.
    pub fn is_lasting(&self) -> bool {
        const PASSING: [SqlState; 2] =
            [SqlState::CANNOT_CONNECT_NOW, SqlState::TOO_MANY_CONNECTIONS];
        let is_tls = matches!(self, Self::Said(error) if error.to_string().contains("TLS"));
        is_tls || self.is_refusal() && !self.code().is_some_and(|code| PASSING.contains(code))
    }

    /// What is told of it. Never a row's content: the server's details may quote it.
    pub fn said(&self) -> String {
        match self {
            Self::Slow => "PostgreSQL has not answered in time".to_owned(),
            Self::Away(said) => said.clone(),
            Self::Said(error) => match error.as_db_error() {
                Some(refused) => {
                    format!("PostgreSQL says: {} ({})", refused.message(), refused.code().code())
                }
                None => {
                    let mut said = format!("PostgreSQL cannot be reached: {error}");
                    let mut cause = std::error::Error::source(error);
                    while let Some(error) = cause {
                        said = format!("{said}: {error}");
                        cause = error.source();
                    }
                    let cure = cure(&said);
                    said + cure
                }
            },
        }
    }
}

/// What may help, where that can be told.
fn cure(said: &str) -> &'static str {
    if said.contains("certificate") {
        "; name a file with the certificate's root in SSL_CERT_FILE, or write sslmode=disable in \
         store.url where nobody else can listen"
    } else {
        ""
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Said(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure.code() {
            Some(code) if *code == SqlState::DISK_FULL => Self::Full,
            _ => Self::Failed(failure.said()),
        }
    }
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        Self::Unusable { said: failure.said() }
    }
}

/// Whether the server answers, as all who ask it share.
#[derive(Default)]
pub struct Health {
    is_failing: AtomicBool,
    successes: AtomicU64,
    failures: AtomicU64,
}

impl Health {
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// How often the server did what it was asked, and how often not.
    pub fn counts(&self) -> (u64, u64) {
        (self.successes.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// How long an answer is waited for: while none come, no longer than it takes to see that.
    pub fn patience(&self) -> Duration {
        if self.is_failing() { PATIENCE / 5 } else { PATIENCE }
    }

    /// Notes what came of something, and logs the first failure after a success and the first
    /// success after a failure.
    pub fn report(&self, outcome: Result<(), &StoreError>) {
        let count = if outcome.is_ok() { &self.successes } else { &self.failures };
        count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                if self.is_failing() && self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(target: "weir::store", "the store can be used again");
                }
            }
            // These say nothing of the server.
            Err(StoreError::TooLarge { .. } | StoreError::Closed) => {}
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        target: "weir::store",
                        %error,
                        "the store cannot be used; ledger.on_failure says whether requests go on without it"
                    );
                }
            }
        }
    }
}

/// A connection. It ends at once when it is dropped, whatever it was doing.
pub struct Connection {
    client: Client,
    driver: AbortHandle,
    statements: Mutex<HashMap<String, Statement>>,
    health: Arc<Health>,
    /// Set once an answer is missing.
    is_unusable: AtomicBool,
    is_in_transaction: AtomicBool,
}

impl Connection {
    /// Connects. Word of changed keys goes to `changed`, once that is listened for.
    pub async fn open(
        address: &Address,
        health: &Arc<Health>,
        changed: &Arc<Notify>,
    ) -> Result<Self, Failure> {
        // Name resolution and a server that takes a connection and says nothing are bounded as well.
        let connecting = address.config.connect(address.tls.clone());
        let connected = tokio::time::timeout(health.patience(), connecting).await;
        let (client, mut connection) = connected.map_err(|_| Failure::Slow)??;
        let changed = Arc::clone(changed);
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if matches!(message, AsyncMessage::Notification(_)) {
                    changed.notify_one();
                }
            }
        });
        let connection = Self {
            client,
            driver: driver.abort_handle(),
            statements: Mutex::default(),
            health: Arc::clone(health),
            is_unusable: AtomicBool::new(false),
            is_in_transaction: AtomicBool::new(false),
        };
        connection.batch(SETTINGS).await?;
        Ok(connection)
    }

    /// Whether it can be asked something else.
    pub fn is_usable(&self) -> bool {
        let is_unusable = self.is_unusable.load(Ordering::Relaxed) || self.client.is_closed();
        !is_unusable && !self.is_in_transaction()
    }

    /// Whether a transaction has begun and not ended.
    pub fn is_in_transaction(&self) -> bool {
        self.is_in_transaction.load(Ordering::Relaxed)
    }

    /// Runs statements that are given nothing.
    pub async fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.within(self.health.patience(), self.client.batch_execute(sql)).await
    }

    /// The rows that a statement gives.
    pub async fn rows(&self, sql: &str, given: &[Given<'_>]) -> Result<Vec<Row>, Failure> {
        let asked = async {
            let statement = self.prepared(sql).await?;
            self.client.query(&statement, given).await
        };
        self.within(self.health.patience(), asked).await
    }

    /// The one row that a statement gives.
    pub async fn row(&self, sql: &str, given: &[Given<'_>]) -> Result<Option<Row>, Failure> {
        Ok(self.rows(sql, given).await?.into_iter().next())
    }

    /// The rows of a statement that may take as long as `patience`, and is not asked often.
    pub async fn rows_within(
        &self,
        patience: Duration,
        sql: &str,
        given: &[Given<'_>],
    ) -> Result<Vec<Row>, Failure> {
        self.within(patience, self.client.query(sql, given)).await
    }

    /// Runs a statement; how many rows it changed.
    pub async fn execute(&self, sql: &str, given: &[Given<'_>]) -> Result<u64, Failure> {
        let asked = async {
            let statement = self.prepared(sql).await?;
            self.client.execute(&statement, given).await
        };
        self.within(self.health.patience(), asked).await
    }

    /// Begins a transaction. Unless it is ended by [`Self::commit`] or [`Self::roll_back`] the
    /// connection is not used again.
    pub async fn begin(&self) -> Result<(), Failure> {
        self.is_in_transaction.store(true, Ordering::Relaxed);
        self.batch("BEGIN").await
    }

    pub async fn commit(&self) -> Result<(), Failure> {
        self.batch("COMMIT").await?;
        self.is_in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub async fn roll_back(&self) -> Result<(), Failure> {
        self.batch("ROLLBACK").await?;
        self.is_in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Compiles a statement before it is needed, so that it can be asked behind others at once.
    pub async fn prepare(&self, sql: &str) -> Result<(), Failure> {
        self.within(self.health.patience(), self.prepared(sql)).await.map(drop)
    }

    async fn prepared(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let known =
            self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    async fn within<T>(
        &self,
        patience: Duration,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(patience, asked).await {
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(error)) => {
                // Another server has taken this one's place, and a new connection finds it.
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    self.is_unusable.store(true, Ordering::Relaxed);
                }
                Err(error.into())
            }
            Err(_) => {
                self.is_unusable.store(true, Ordering::Relaxed);
                Err(Failure::Slow)
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
