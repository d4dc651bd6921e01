//! A connection to the server, with cached prepared statements and a timeout on every answer. Any
//! error closes it, except a refusal by the server itself.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use super::super::{OpenError, StoreError};
use super::address::Address;
use crate::health::Health;

/// Timeout of a statement that a request waits for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a statement that reads or changes much.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// Limits enforced by the server: a weir that is suspended in mid-transaction must not block
/// others, and one that is gone must not continue.
const SETTINGS: &str = "SET lock_timeout = '4s'; SET statement_timeout = '60s';
    SET idle_in_transaction_session_timeout = '5s'";

/// Parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

/// Result of an operation on the server.
pub(super) type Served<T> = Result<T, ServerFailure>;

/// Error of an operation on the server.
#[derive(Debug)]
pub enum ServerFailure {
    /// Error reported by the server or the connection.
    Reported(tokio_postgres::Error),
    /// No answer in time.
    TimedOut,
    /// Not attempted: the server was unreachable a moment ago.
    Unreachable(String),
}

impl ServerFailure {
    /// Returns the server's error code, if the server refused something.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Reported(error) => error.code(),
            Self::TimedOut | Self::Unreachable(_) => None,
        }
    }

    /// Returns whether the server refused the statement but would accept the next.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Reported(error) if error.as_db_error().is_some())
    }

    /// Returns whether an immediate retry may succeed: a conflict with others, or a lost
    /// connection.
    pub fn is_retryable(&self) -> bool {
        const PASSING: [SqlState; 2] =
            [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
        let is_lost = matches!(self, Self::Reported(error) if error.as_db_error().is_none());
        is_lost || self.code().is_some_and(|code| PASSING.contains(code))
    }

    /// Returns whether a retry soon is useless: the server refuses the role, or lacks the required
    /// TLS.
    pub fn is_permanent(&self) -> bool {
        const PASSING: [SqlState; 2] =
            [SqlState::CANNOT_CONNECT_NOW, SqlState::TOO_MANY_CONNECTIONS];
        let is_tls = matches!(self, Self::Reported(error) if error.to_string().contains("TLS"));
        is_tls || self.is_refusal() && !self.code().is_some_and(|code| PASSING.contains(code))
    }

    /// Formats the error. Never includes row contents, which the server's details may quote.
    pub fn message(&self) -> String {
        match self {
            Self::TimedOut => "PostgreSQL has not answered in time".to_owned(),
            Self::Unreachable(message) => message.clone(),
            Self::Reported(error) => match error.as_db_error() {
                Some(refused) => {
                    format!("PostgreSQL says: {} ({})", refused.message(), refused.code().code())
                }
                None => {
                    let mut message = format!("PostgreSQL cannot be reached: {error}");
                    let mut cause = std::error::Error::source(error);
                    while let Some(error) = cause {
                        message = format!("{message}: {error}");
                        cause = error.source();
                    }
                    let hint = hint(&message);
                    message + hint
                }
            },
        }
    }
}

/// Suggests a fix, if one is known.
fn hint(message: &str) -> &'static str {
    if message.contains("certificate") {
        "; name a file with the certificate's root in SSL_CERT_FILE, or write sslmode=disable in \
         store.url if nobody else can read the traffic"
    } else {
        ""
    }
}

impl From<tokio_postgres::Error> for ServerFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Reported(error)
    }
}

impl From<ServerFailure> for StoreError {
    fn from(failure: ServerFailure) -> Self {
        match failure.code() {
            Some(code) if *code == SqlState::DISK_FULL => Self::Full,
            _ => Self::Failed(failure.message()),
        }
    }
}

impl From<ServerFailure> for OpenError {
    fn from(failure: ServerFailure) -> Self {
        Self::Unusable { message: failure.message() }
    }
}

/// Returns the current timeout: short while the server does not answer.
pub(super) fn timeout(health: &Health) -> Duration {
    if health.is_failing() { TIMEOUT / 5 } else { TIMEOUT }
}

/// A connection. Dropping it closes it at once, even during a statement.
pub(super) struct Connection {
    client: Client,
    driver: AbortHandle,
    statements: Mutex<HashMap<String, Statement>>,
    health: Arc<Health>,
    /// Set after a missing answer.
    is_unusable: AtomicBool,
    is_in_transaction: AtomicBool,
}

impl Connection {
    /// Connects. Notifications of changed keys go to `changed`, once the connection listens.
    pub(super) async fn open(
        address: &Address,
        health: &Arc<Health>,
        changed: &Arc<Notify>,
    ) -> Served<Self> {
        // The timeout includes name resolution, and a server that accepts but does not answer.
        let connecting = address.config.connect(address.tls.clone());
        let connected = tokio::time::timeout(timeout(health), connecting).await;
        let (client, mut connection) = connected.map_err(|_| ServerFailure::TimedOut)??;
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

    /// Returns whether it accepts another statement.
    pub(super) fn is_usable(&self) -> bool {
        let is_unusable = self.is_unusable.load(Ordering::Relaxed) || self.client.is_closed();
        !is_unusable && !self.is_in_transaction()
    }

    /// Returns whether a transaction is open.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.is_in_transaction.load(Ordering::Relaxed)
    }

    /// Runs statements without parameters.
    pub(super) async fn batch(&self, sql: &str) -> Served<()> {
        self.within(timeout(&self.health), self.client.batch_execute(sql)).await
    }

    /// Returns the rows of a statement.
    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Served<Vec<Row>> {
        let answer = async {
            let statement = self.prepared(sql).await?;
            self.client.query(&statement, params).await
        };
        self.within(timeout(&self.health), answer).await
    }

    /// Returns the single row of a statement.
    pub(super) async fn row(&self, sql: &str, params: &[Param<'_>]) -> Served<Option<Row>> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    /// Returns the rows of an infrequent statement that may take as long as `patience`.
    pub(super) async fn rows_within(
        &self,
        timeout: Duration,
        sql: &str,
        params: &[Param<'_>],
    ) -> Served<Vec<Row>> {
        self.within(timeout, self.client.query(sql, params)).await
    }

    /// Runs a statement; returns the number of changed rows.
    pub(super) async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Served<u64> {
        let answer = async {
            let statement = self.prepared(sql).await?;
            self.client.execute(&statement, params).await
        };
        self.within(timeout(&self.health), answer).await
    }

    /// Begins a transaction. Without [`Self::commit`] or [`Self::roll_back`], the connection is not
    /// reused.
    pub(super) async fn begin(&self) -> Served<()> {
        self.is_in_transaction.store(true, Ordering::Relaxed);
        self.batch("BEGIN").await
    }

    pub(super) async fn commit(&self) -> Served<()> {
        self.batch("COMMIT").await?;
        self.is_in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn roll_back(&self) -> Served<()> {
        self.batch("ROLLBACK").await?;
        self.is_in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Prepares a statement in advance, so that it can be pipelined.
    pub(super) async fn prepare(&self, sql: &str) -> Served<()> {
        self.within(timeout(&self.health), self.prepared(sql)).await.map(drop)
    }

    async fn prepared(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let known = self.statements.lock().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let mut statements = self.statements.lock();
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    async fn within<T>(
        &self,
        timeout: Duration,
        asked_at: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Served<T> {
        match tokio::time::timeout(timeout, asked_at).await {
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(error)) => {
                // Another server has replaced this one; a new connection finds it.
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    self.is_unusable.store(true, Ordering::Relaxed);
                }
                Err(error.into())
            }
            Err(_) => {
                self.is_unusable.store(true, Ordering::Relaxed);
                Err(ServerFailure::TimedOut)
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
