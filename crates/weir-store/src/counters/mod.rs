//! Budget counters: spent and held amounts. Before a request is sent, it holds its worst-case cost
//! in all its budgets in one step; it is settled once when it ends. One interface over all back
//! ends. Past spending comes from the journal, the source of truth.
//!
//! A request waits if the room it needs is held by others: in order of arrival, at most for
//! `Reservation::patience`.

pub(super) mod leader_lock;
mod members;
mod memory;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::budgets::{Applied, Spent, SpentQuery};
use super::ledger::{KeyNames, RequestId, sanitise};
use super::redis::Redis;
use super::{Store, StoreError};
use crate::budget::counter::Count;
use crate::budget::{Ask, Budget, Measure, NanoUsd, Scope, Scopes, Span};
use memory::Memory;
use redis::RedisCounters;

pub use members::{Listed, MAX_MEMBERS};
pub use redis::Options as RedisOptions;

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
async fn read_past(
    store: &Store,
    applied: &Applied,
    span: &Span,
    zone: &TimeZone,
    open: Vec<RequestId>,
) -> Result<Spent, StoreError> {
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// Names of its virtual key, if any.
    pub key: Option<Arc<KeyNames>>,
    pub model: String,
}

impl Owner {
    /// Creates an owner; `model` is the name in the journal, which identifies past spending.
    pub fn new(key: Option<Arc<KeyNames>>, model: &str) -> Self {
        Self { key, model: sanitise(model).into_owned() }
    }

    /// Returns its scopes.
    pub fn scopes(&self) -> Scopes<'_> {
        let key = self.key.as_deref();
        Scopes {
            organisation: key.map(|names| names.organisation.as_str()),
            team: key.map(|names| names.team.as_str()),
            user: key.map(|names| names.user.as_str()),
            key: key.map(|names| names.key.as_str()),
            model: Some(&self.model),
        }
    }
}

/// An admitted request.
#[derive(Debug)]
#[must_use = "a hold must be settled"]
pub struct Granted {
    pub held: Held,
    /// Output limit per choice that is covered by the hold.
    pub output_tokens: u64,
    /// State of its budgets, including its hold.
    pub statuses: Vec<BudgetStatus>,
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
type Answer = Result<(u64, Vec<BudgetStatus>), NoRoom>;

/// Actual usage of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spending {
    pub nano_usd: u64,
    pub tokens: u64,
}

impl Spending {
    fn of(self, measure: Measure) -> u64 {
        match measure {
            Measure::NanoUsd => self.nano_usd,
            Measure::Tokens => self.tokens,
        }
    }
}

/// Hold of a request. If dropped without settlement, it is released: the request was not sent.
#[derive(Debug)]
#[must_use = "a dropped hold is released"]
pub struct Held {
    /// `None` once it is settled.
    counters: Option<Counters>,
    id: RequestId,
}

impl Held {
    /// Returns the id of the request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Confirms that the journal has the request as open. Returns whether the hold still exists, so
    /// that the request may be sent.
    pub async fn opened(&self) -> Result<bool, StoreError> {
        match self.counters.as_ref().map(|counters| &counters.place) {
            Some(Place::Redis(redis)) => redis.opened(self.id).await,
            Some(Place::Memory(_)) | None => Ok(true),
        }
    }

    /// Replaces the hold by the actual usage.
    pub async fn settle(mut self, spending: Spending) {
        if let Some(counters) = self.counters.take() {
            match &counters.place {
                Place::Memory(memory) => memory.settle(self.id, spending),
                Place::Redis(redis) => redis.settle(self.id, spending).await,
            }
        }
    }

    /// Hands the settlement to another process; this handle does nothing more.
    pub fn forget(mut self) {
        if let Some(counters) = self.counters.take() {
            match &counters.place {
                Place::Memory(memory) => memory.leave(self.id),
                Place::Redis(redis) => redis.forget(self.id),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(counters) = self.counters.take() {
            match &counters.place {
                Place::Memory(memory) => memory.settle(self.id, Spending::default()),
                Place::Redis(redis) => redis.release(self.id),
            }
        }
    }
}

/// All budget counters. Clones share them.
#[derive(Debug, Clone)]
pub struct Counters {
    place: Place,
}

/// Back end of the counters. A new one is an arm here and passes the same conformance suite.
#[derive(Debug, Clone)]
enum Place {
    /// In this process, for a store that no other process counts for.
    Memory(Arc<Memory>),
    /// In Redis, for a store shared by several instances.
    Redis(Arc<RedisCounters>),
}

impl Counters {
    /// Creates counters in this process. Calendar windows use `zone`.
    pub fn in_memory(store: Store, zone: TimeZone) -> Self {
        Self { place: Place::Memory(Arc::new(Memory::new(store, zone))) }
    }

    /// Creates counters in Redis, shared with other instances on the same store. Requires a
    /// runtime.
    pub fn in_redis(redis: Redis, store: Store, zone: TimeZone, options: RedisOptions) -> Self {
        Self { place: Place::Redis(RedisCounters::new(redis, store, zone, options)) }
    }

    /// Registers a request that is about to be sent without a budget: a budget that is set while it
    /// runs still counts it.
    pub fn note(&self, id: RequestId, begun_ms: u64, owner: Owner) -> Held {
        match &self.place {
            Place::Memory(memory) => memory.note(id, begun_ms, owner),
            Place::Redis(redis) => redis.note(id, begun_ms, owner),
        }
        Held { counters: Some(self.clone()), id }
    }

    /// Registers a request that another process sent and left open in the journal.
    pub fn adopt(&self, id: RequestId, begun_ms: u64, owner: Owner) -> Held {
        match &self.place {
            Place::Memory(memory) => memory.adopt(id, begun_ms, owner),
            Place::Redis(redis) => redis.adopt(id, begun_ms, owner),
        }
        Held { counters: Some(self.clone()), id }
    }

    /// Holds a request's worst-case cost in all its budgets, or in none.
    pub async fn reserve(&self, wanted: Reservation, owner: Owner) -> Result<Granted, NoRoom> {
        let id = wanted.id;
        let (output_tokens, statuses) = match &self.place {
            Place::Memory(memory) => memory.reserve(wanted, owner).await?,
            Place::Redis(redis) => redis.reserve(wanted, owner).await?,
        };
        let held = Held { counters: Some(self.clone()), id };
        Ok(Granted { held, output_tokens, statuses })
    }

    /// Settles requests of other processes that have ended in the journal.
    pub async fn follow(&self) -> Result<(), StoreError> {
        match &self.place {
            Place::Memory(memory) => memory.follow().await,
            // Its background task does.
            Place::Redis(_) => Ok(()),
        }
    }

    /// Time zone of calendar windows.
    fn zone(&self) -> &TimeZone {
        match &self.place {
            Place::Memory(memory) => memory.zone(),
            Place::Redis(redis) => redis.zone(),
        }
    }

    /// Returns the state of budgets at `now_ms`.
    pub async fn statuses(
        &self,
        applied: Vec<Applied>,
        now_ms: u64,
    ) -> Result<Vec<BudgetStatus>, StoreError> {
        match &self.place {
            Place::Memory(memory) => memory.statuses(&applied, now_ms).await,
            Place::Redis(redis) => redis.statuses(&applied, now_ms).await,
        }
    }
}
