//! Budgets: set, listed, removed, and what was spent of one before anybody counted. How much may be
//! spent is decided by `counters`, what a request costs by whoever settles it.

mod book;
mod spent;

use std::fmt;
use std::sync::Arc;

use rusqlite::{Connection, params};

pub use book::{Applied, Book};

use super::keys::rows;
use super::ledger::{Intent, RequestId, ends};
use super::{Backend, Store, StoreError};
use crate::budget::{Budget, BudgetId, Measure, Scope};

/// The most budgets of a store.
pub const MAX_BUDGETS: i64 = 10_000;

/// Why a budget was not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetError {
    /// One that there cannot be.
    Invalid(String),
    /// There are as many as a store may hold.
    TooMany,
    Store(StoreError),
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(said) => f.write_str(said),
            Self::TooMany => {
                write!(f, "there are {MAX_BUDGETS} budgets already, and no more may be")
            }
            Self::Store(error) => write!(f, "the store: {error}"),
        }
    }
}

impl std::error::Error for BudgetError {}

impl From<StoreError> for BudgetError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What is asked of the journal to begin a count with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentQuery {
    pub scope: Scope,
    pub measure: Measure,
    /// Requests that began from here on, in milliseconds since 1970.
    pub from_ms: u64,
    /// The length of the buckets that it is told in, all in one at `None`.
    pub bucket_ms: Option<u64>,
    /// Requests that are not counted: whoever counts settles them.
    pub open: Vec<RequestId>,
    /// Whether [`Spent::open`] is of use. Otherwise it may be empty.
    pub wants_open: bool,
}

/// What the journal has of a scope, true of one moment: each request has ended or is open.
#[derive(Debug, Default)]
pub struct Spent {
    /// What requests that have ended came to, by the first moments of buckets.
    pub ended: Vec<(u64, u64)>,
    /// All requests that are open, of this scope and of others, those of [`SpentQuery::open`] too.
    pub open: Vec<Intent>,
}

impl Store {
    /// Sets a budget, which takes the place of one with the same id, for the next request on.
    pub async fn set_budget(&self, budget: Budget, now_ms: u64) -> Result<(), BudgetError> {
        budget.check().map_err(BudgetError::Invalid)?;
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.set_budget(budget, now_ms).await?,
        };
        let mark = sqlite.mark().clone();
        let work = move |connection: &Connection| {
            let id = budget.id.to_string();
            let others = "SELECT count(*) FROM budget WHERE id <> ?1";
            let others: i64 = connection.query_row(others, [&id], |row| row.get(0))?;
            if others >= MAX_BUDGETS {
                return Ok(Err(BudgetError::TooMany));
            }
            connection.execute(
                "INSERT INTO budget VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET settings = excluded.settings",
                params![id, budget.to_json(), i64::try_from(now_ms).unwrap_or(i64::MAX)],
            )?;
            mark.write(rows::raise_version(connection)?);
            Ok(Ok(()))
        };
        sqlite.write(work).await?
    }

    /// Removes a budget; whether there was one.
    pub async fn remove_budget(&self, id: &BudgetId) -> Result<bool, StoreError> {
        let id = id.to_string();
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.remove_budget(id).await,
        };
        let mark = sqlite.mark().clone();
        let work = move |connection: &Connection| {
            let is_removed = connection.execute("DELETE FROM budget WHERE id = ?1", [id])? > 0;
            if is_removed {
                mark.write(rows::raise_version(connection)?);
            }
            Ok(is_removed)
        };
        sqlite.write(work).await
    }

    /// All budgets in the order of their ids, with how often keys and budgets had been changed.
    pub async fn budgets(&self) -> Result<(u64, Vec<Budget>), StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.budgets().await,
        };
        let work = |connection: &Connection| {
            // Asked first: what changes between the two is read again.
            let version = rows::version(connection)?;
            let mut statement =
                connection.prepare_cached("SELECT id, settings FROM budget ORDER BY id")?;
            let mut rows = statement.query([])?;
            let mut budgets = Vec::new();
            while let Some(row) = rows.next()? {
                let (id, settings): (String, String) = (row.get(0)?, row.get(1)?);
                budgets.extend(understood(&id, &settings));
            }
            Ok((version, budgets))
        };
        sqlite.read(work).await
    }

    /// What requests came to, and those that are open.
    pub async fn spent(&self, query: SpentQuery) -> Result<Spent, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.spent(query).await,
        };
        let (ledger, from_ms) = (Arc::clone(sqlite.ledger()), query.from_ms);
        let mut in_logs = Vec::new();
        if query.wants_open {
            // Logs are read first, so that no request is missed that ends, or whose log is finished,
            // in between.
            let read = tokio::task::spawn_blocking(move || ends::open_since(&ledger, from_ms));
            in_logs = read.await.map_err(|_| StoreError::Closed)?;
        }
        self.gather().await;
        let work = move |connection: &Connection| {
            // A store in memory reads inside the transaction of whoever writes.
            let begin = || connection.unchecked_transaction();
            let _moment = connection.is_autocommit().then(begin).transpose()?;
            let open = ends::still_open(connection, in_logs, query.from_ms)?;
            Ok(Spent { ended: spent::spent(connection, &query)?, open })
        };
        sqlite.read(work).await
    }
}

/// A budget by its row; `None`, and a word of it, where this weir does not understand it.
pub(super) fn understood(id: &str, settings: &str) -> Option<Budget> {
    let read = Budget::read(id, settings);
    if read.is_none() {
        tracing::warn!(
            target: "weir::budget",
            id,
            "passed over a budget that this weir does not understand"
        );
    }
    read
}
