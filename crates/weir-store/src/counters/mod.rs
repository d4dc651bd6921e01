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
mod reservation;

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::budgets::Applied;
use super::ledger::RequestId;
use super::redis::Redis;
use super::{Store, Stored};
use memory::Memory;
use redis::RedisCounters;

pub use members::{Listed, MAX_MEMBERS};
pub use redis::Options as RedisOptions;
pub use reservation::{
    BudgetStatus, MAX_WAITING, NoRoom, Owner, Reservation, Spending, written_moment,
};

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
    pub async fn opened(&self) -> Stored<bool> {
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
    pub async fn follow(&self) -> Stored<()> {
        match &self.place {
            Place::Memory(memory) => memory.follow().await,
            // Its background task does.
            Place::Redis(_) => Ok(()),
        }
    }

    /// Time zone of calendar windows.
    pub fn zone(&self) -> &TimeZone {
        match &self.place {
            Place::Memory(memory) => &memory.zone,
            Place::Redis(redis) => &redis.zone,
        }
    }

    /// Returns the state of budgets at `now_ms`.
    pub async fn statuses(&self, applied: Vec<Applied>, now_ms: u64) -> Stored<Vec<BudgetStatus>> {
        match &self.place {
            Place::Memory(memory) => memory.statuses(&applied, now_ms).await,
            Place::Redis(redis) => redis.statuses(&applied, now_ms).await,
        }
    }
}
