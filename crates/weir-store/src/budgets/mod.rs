//! Stored budgets, independent of the back end: errors, queries of past spending, and a cache.
//! `counters` enforces limits; the settlement code computes costs.

mod cache;
mod rows;
pub(crate) mod spent;

pub use cache::{Applied, BudgetCache};

use crate::StoreError;
use crate::budget::{Budget, Measure, Scope};
use crate::ledger::{Intent, RequestId};

/// Maximum number of budgets in a store.
pub const MAX_BUDGETS: i64 = 10_000;

/// Error of setting a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The budget is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The store holds the maximum number of budgets.
    #[error("there are {MAX_BUDGETS} budgets already, the maximum")]
    TooMany,
    #[error("the store: {0}")]
    Store(#[from] StoreError),
}

/// Query of the journal for a counter's initial value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentQuery {
    pub scope: Scope,
    pub measure: Measure,
    /// Includes requests that began at or after this time, in milliseconds since 1970.
    pub from_ms: u64,
    /// Bucket length of the result; `None` for a single bucket.
    pub bucket_ms: Option<u64>,
    /// Requests to leave out: the caller settles them.
    pub open: Vec<RequestId>,
    /// Whether [`Spent::open`] is needed; otherwise it may be empty.
    pub wants_open: bool,
}

/// Journal data for a scope at one moment: each request is either ended or open.
#[derive(Debug, Default)]
pub struct Spent {
    /// Totals of ended requests, by bucket start.
    pub ended: Vec<(u64, u64)>,
    /// All open requests, of any scope, including those of [`SpentQuery::open`].
    pub open: Vec<Intent>,
}

/// Parses a budget's row; logs and returns `None` if this version does not understand it.
fn parse_row(id: &str, settings: &str) -> Option<Budget> {
    let parsed = Budget::read(id, settings);
    if parsed.is_none() {
        tracing::warn!(
            target: "weir::budget",
            id,
            "skipped a budget that this version of weir does not understand"
        );
    }
    parsed
}
