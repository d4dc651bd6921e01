//! Reservations, what they count for, and the state of the budgets that they are held in.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::budget::counter::Count;
use crate::budget::{Ask, Budget, Measure, NanoUsd, Room, Scope, Scopes, Span};
use crate::budgets::{Applied, Spent, SpentQuery};
use crate::ledger::{Attribution, Caller, Intent, RequestId, sanitise};
use crate::{Store, StoreError, Stored};

/// Maximum number of waiting requests, over all budgets.
pub const MAX_WAITING: usize = 10_000;

/// Reservation request.
#[derive(Debug, Clone)]
pub struct Reservation {
    pub id: RequestId,
    /// Arrival time, in milliseconds since 1970; selects the buckets.
    pub begun_ms: u64,
    /// Budgets that apply to it.
    pub applied: Vec<Applied>,
    pub ask: Ask,
    /// Maximum time to wait for other requests.
    pub patience: Duration,
}

/// Number of windows after the current one with a bucket of their own: the last has what is later, too.
const LATER_WINDOWS: usize = 2;

/// Reads a counter's initial value from the journal, without the requests in `open`: by bucket, and what was
/// spent under a clock that was ahead by the window in which it counts.
pub(super) async fn read_past(
    store: &Store,
    applied: &Applied,
    span: &Span,
    zone: &TimeZone,
    open: Vec<RequestId>,
) -> Stored<Spent> {
    let id = &applied.budget.id;
    let from = |from_ms: u64, wants_open: bool| SpentQuery {
        scope: applied.scope.clone(),
        measure: id.measure,
        from_ms,
        bucket_ms: id.window.bucket_length_ms(),
        open: open.clone(),
        wants_open,
    };
    let mut past = store.spent(from(span.first_ms, true)).await?;
    for (bucket_ms, _) in &mut past.ended {
        *bucket_ms = span.first_ms.max(*bucket_ms);
    }
    let mut current = *span;
    for _ in 0..LATER_WINDOWS {
        let Some(next_ms) = id.window.ends_ms(&current) else { break };
        let later = store.spent(from(next_ms, false)).await?.ended;
        let later = later.iter().fold(0, |sum: u64, (_, spent)| sum.saturating_add(*spent));
        let (Some((_, own)), 1..) = (past.ended.last_mut(), later) else { break };
        *own = own.saturating_sub(later);
        past.ended.push((next_ms, later));
        current = id.window.span(zone, next_ms);
    }
    Ok(past)
}

/// The party that a request counts for, whether or not it has budgets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub caller: Caller,
    pub origin: Arc<Attribution>,
    pub model: String,
}

impl Owner {
    /// Creates an owner; `model` is the name in the journal, which identifies past spending.
    pub fn new(caller: &Caller, origin: Arc<Attribution>, model: &str) -> Self {
        Self { caller: caller.clone(), origin, model: sanitise(model).into_owned() }
    }

    /// Returns the owner of a request that another process left open.
    pub fn of(intent: &Intent) -> Self {
        Self::new(&intent.caller, Arc::new(intent.attribution.clone()), &intent.model)
    }

    /// Returns its scopes.
    pub fn scopes(&self) -> Scopes<'_> {
        let key = self.caller.key.as_deref();
        Scopes {
            organisation: key.map(|names| names.organisation.as_str()),
            team: key.map(|names| names.team.as_str()),
            user: key.map(|names| names.user.as_str()),
            key: key.map(|names| names.key.as_str()),
            model: Some(&self.model),
            conversation: self.origin.conversation.as_deref(),
            agent: self.origin.agent.as_deref(),
            tag: self.origin.tag.as_deref(),
            tenant: self.caller.tenant.0,
        }
    }
}

/// State of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetStatus {
    pub budget: Arc<Budget>,
    pub scope: Scope,
    pub count: Count,
}

impl BudgetStatus {
    /// Returns the budget's name for its member: `key:key_1/usd/day` of the budget `key:*/usd/day`.
    pub fn name(&self) -> String {
        let id = &self.budget.id;
        format!("{}/{}/{}", self.scope, id.measure.word(), id.window)
    }

    /// Returns when some of it becomes free again, in machine-readable form.
    pub fn resets_at(&self) -> Option<String> {
        self.count.resets_ms.and_then(written_moment)
    }

    /// Formats it as JSON, with money as decimal text.
    pub fn json(&self) -> Value {
        let measure = self.budget.id.measure;
        let amount = |amount: u64| match measure {
            Measure::NanoUsd => Value::from(NanoUsd(amount).to_decimal()),
            Measure::Tokens => Value::from(amount),
        };
        let mut row = json!({
            "budget": self.budget.id.to_string(),
            "scope": self.scope.to_string(),
            "measure": measure.word(),
            "per": self.budget.id.window.to_string(),
            "limit": amount(self.budget.limit),
            "warn_at": self.budget.warn_permille.map(|permille| f64::from(permille) / 1000.0),
        });
        // A budget for each member has no spending of its own.
        if !self.scope.is_each() {
            row["spent"] = amount(self.count.spent);
            row["held"] = amount(self.count.held);
            row["left"] = amount(self.left());
            row["resets_at"] = self.resets_at().into();
        }
        row
    }

    /// Returns what a decision about it needs.
    pub(super) fn room(&self) -> Room {
        let Count { spent, held, .. } = self.count;
        Room { measure: self.budget.id.measure, limit: self.budget.limit, spent, held }
    }

    /// Returns the remaining amount, ignoring holds.
    pub fn left(&self) -> u64 {
        self.budget.limit.saturating_sub(self.count.spent).saturating_sub(self.count.held)
    }
}

/// Formats a time for people and programs.
pub fn written_moment(moment_ms: u64) -> Option<String> {
    let moment = Timestamp::from_millisecond(i64::try_from(moment_ms).ok()?).ok()?;
    Some(moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Reason why a request is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoom {
    /// This budget is exhausted.
    Exhausted(BudgetStatus),
    /// Others hold the rest for longer than the wait, or too many requests wait already.
    Held,
    /// The counters are unavailable.
    Store(StoreError),
}

impl From<StoreError> for NoRoom {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Admission result: the output limit and the state of the budgets.
pub(super) type Answer = Result<(u64, Vec<BudgetStatus>), NoRoom>;

/// Actual usage of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spending {
    pub nano_usd: u64,
    pub tokens: u64,
}

impl Spending {
    pub(super) fn of(self, measure: Measure) -> u64 {
        match measure {
            Measure::NanoUsd => self.nano_usd,
            Measure::Tokens => self.tokens,
        }
    }
}
