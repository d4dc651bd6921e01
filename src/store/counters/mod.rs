//! What is spent and held of each budget: a request holds what it may come to in all its budgets in one
//! step, before it is sent, and is settled once, when it has ended. One seam, wherever counts are
//! kept. What was spent before anybody counted is asked of the journal, whose rows are the truth.
//!
//! Who finds no room that others may leave waits, in the order in which they came, and not for longer
//! than `Reservation::patience`.

mod memory;
mod redis;
pub(super) mod sole;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::budgets::Applied;
use super::ledger::{KeyNames, RequestId, harmless};
use super::redis::Redis;
use super::{Store, StoreError};
use crate::budget::counter::Count;
use crate::budget::{Ask, Budget, Measure, NanoUsd, Scope, Scopes};
use memory::Memory;
use redis::InRedis;

pub use redis::Options as RedisOptions;

/// The most requests that wait for others at once, over all budgets.
pub const MAX_WAITING: usize = 10_000;

/// What a request asks for.
#[derive(Debug, Clone)]
pub struct Reservation {
    pub id: RequestId,
    /// When it came, in milliseconds since 1970: says what it counts for.
    pub begun_ms: u64,
    /// The budgets that it is in.
    pub applied: Vec<Applied>,
    pub ask: Ask,
    /// How long it waits for others at most.
    pub patience: Duration,
}

/// Who a request is counted for, whether or not there are budgets yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// The names of the virtual key that it came with, if any.
    pub key: Option<Arc<KeyNames>>,
    pub model: String,
}

impl Owner {
    /// With the model's name as the journal has it, which says what of it was spent before.
    pub fn new(key: Option<Arc<KeyNames>>, model: &str) -> Self {
        Self { key, model: harmless(model).into_owned() }
    }

    /// The scopes that it is in.
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

/// A request that may be sent.
#[derive(Debug)]
#[must_use = "what is held is to be settled"]
pub struct Granted {
    pub held: Held,
    /// The most output of each answer that is held for it.
    pub output_tokens: u64,
    /// How its budgets stand, what is held for it included.
    pub standings: Vec<Standing>,
}

/// How a budget stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub budget: Arc<Budget>,
    pub scope: Scope,
    pub count: Count,
}

impl Standing {
    /// What it is called, and whom it counts for: `key:key_1/usd/day` of the budget `key:*/usd/day`.
    pub fn name(&self) -> String {
        let id = &self.budget.id;
        format!("{}/{}/{}", self.scope, id.measure.word(), id.window)
    }

    /// When some of it is free again, as programs read moments.
    pub fn resets_at(&self) -> Option<String> {
        self.count.resets_ms.and_then(written_moment)
    }

    /// It as JSON, money as decimal texts.
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
        // Of one for each by itself nobody in particular has spent anything.
        if !self.scope.is_each() {
            row["spent"] = amount(self.count.spent);
            row["held"] = amount(self.count.held);
            row["left"] = amount(self.left());
            row["resets_at"] = self.resets_at().into();
        }
        row
    }

    /// What is left of it, what is held set aside.
    pub fn left(&self) -> u64 {
        self.budget.limit.saturating_sub(self.count.spent).saturating_sub(self.count.held)
    }
}

/// A moment as people and programs read it.
pub fn written_moment(moment_ms: u64) -> Option<String> {
    let moment = Timestamp::from_millisecond(i64::try_from(moment_ms).ok()?).ok()?;
    Some(moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Why a request may not be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoom {
    /// This budget has not enough left.
    Exhausted(Standing),
    /// Others hold what is left, for longer than was waited, or too many wait already.
    Held,
    /// What is counted cannot be reached.
    Store(StoreError),
}

impl From<StoreError> for NoRoom {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What becomes of a request: the output that it may have and how its budgets stand then.
type Answer = Result<(u64, Vec<Standing>), NoRoom>;

/// What a request came to.
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

/// What a request holds. Dropped without being settled it is given back: the request was not sent.
#[derive(Debug)]
#[must_use = "what is dropped is given back"]
pub struct Held {
    /// `None` once it is settled.
    counters: Option<Counters>,
    id: RequestId,
}

impl Held {
    /// The request that holds it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Says that the journal has the request as open; whether what it holds is still held, so that it may
    /// be sent.
    pub async fn opened(&self) -> Result<bool, StoreError> {
        match self.counters.as_ref().map(|counters| &counters.place) {
            Some(Place::Redis(redis)) => redis.opened(self.id).await,
            Some(Place::Memory(_)) | None => Ok(true),
        }
    }

    /// Puts what the request came to in the place of what was held for it.
    pub async fn settle(mut self, spending: Spending) {
        if let Some(counters) = self.counters.take() {
            match &counters.place {
                Place::Memory(memory) => memory.settle(self.id, spending),
                Place::Redis(redis) => redis.settle(self.id, spending).await,
            }
        }
    }

    /// Says that another settles the request: this handle has nothing to do with it any more.
    pub fn forget(mut self) {
        if let Some(counters) = self.counters.take() {
            match &counters.place {
                Place::Memory(memory) => memory.settle(self.id, Spending::default()),
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
                Place::Redis(redis) => redis.give_back(self.id),
            }
        }
    }
}

/// All counts. Clones share them.
#[derive(Debug, Clone)]
pub struct Counters {
    place: Place,
}

/// Where counts are kept. A further place is an arm here and passes the same conformance suite.
#[derive(Debug, Clone)]
enum Place {
    /// In this process, for a store that it has to itself.
    Memory(Arc<Memory>),
    /// In Redis, for a store that several instances share.
    Redis(Arc<InRedis>),
}

impl Counters {
    /// Counts in this process. Windows of the calendar are those of `zone`.
    pub fn in_memory(store: Store, zone: TimeZone) -> Self {
        Self { place: Place::Memory(Arc::new(Memory::new(store, zone))) }
    }

    /// Counts in Redis, which other instances on the same store count in as well. Has to be made
    /// inside a runtime.
    pub fn in_redis(redis: Redis, store: Store, zone: TimeZone, options: RedisOptions) -> Self {
        Self { place: Place::Redis(InRedis::new(redis, store, zone, options)) }
    }

    /// Notes a request that is about to be sent and is in no budget at the moment: one that is set
    /// while it is under way counts it all the same.
    pub fn note(&self, id: RequestId, begun_ms: u64, owner: Owner) -> Held {
        match &self.place {
            Place::Memory(memory) => memory.note(id, begun_ms, owner),
            Place::Redis(redis) => redis.note(id, begun_ms, owner),
        }
        Held { counters: Some(self.clone()), id }
    }

    /// Notes a request that another process has sent and left open in the journal.
    pub fn adopt(&self, id: RequestId, begun_ms: u64, owner: Owner) -> Held {
        match &self.place {
            Place::Memory(memory) => memory.note(id, begun_ms, owner),
            Place::Redis(redis) => redis.adopt(id, begun_ms, owner),
        }
        Held { counters: Some(self.clone()), id }
    }

    /// Holds what a request may come to in all its budgets, or in none.
    pub async fn reserve(&self, wanted: Reservation, owner: Owner) -> Result<Granted, NoRoom> {
        let id = wanted.id;
        let (output_tokens, standings) = match &self.place {
            Place::Memory(memory) => memory.reserve(wanted, owner).await?,
            Place::Redis(redis) => redis.reserve(wanted, owner).await?,
        };
        let held = Held { counters: Some(self.clone()), id };
        Ok(Granted { held, output_tokens, standings })
    }

    /// How budgets stand at `now_ms`.
    pub async fn standings(
        &self,
        applied: Vec<Applied>,
        now_ms: u64,
    ) -> Result<Vec<Standing>, StoreError> {
        match &self.place {
            Place::Memory(memory) => memory.standings(&applied, now_ms).await,
            Place::Redis(redis) => redis.standings(&applied, now_ms).await,
        }
    }
}
