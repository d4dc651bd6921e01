//! Rate limits: concurrent requests, requests per minute and tokens per minute, by name. One
//! interface for counting in one process or in several; `budget::rate` does the arithmetic. Names
//! are opaque here.

mod memory;
mod redis;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::redis::Redis;
use crate::budget::rate::{Left, TooMany};
use memory::{Memory, Used};
use redis::RedisRates;

/// Limits of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub max_concurrent: Option<u64>,
}

/// The exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Too many concurrent requests.
    Places { most: u64 },
    /// Too many requests per minute.
    Requests(TooMany),
    /// Too many tokens per minute.
    Tokens(TooMany),
}

/// Rate counters of all names.
pub struct Rates {
    memory: Arc<Memory>,
    /// Set if several instances count together.
    redis: Option<Arc<RedisRates>>,
}

/// A request that was admitted, and its slot.
#[must_use = "a dropped place is released"]
pub struct Place {
    limits: Limits,
    counted_in: CountedIn,
    slot: Option<Slot>,
    /// Tokens counted for the request so far.
    taken_tokens: u64,
    left: MinuteLeft,
}

/// Rest of the per-minute limits at the time of admission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MinuteLeft {
    pub requests: Option<Left>,
    pub tokens: Option<Left>,
}

/// Where a place is counted.
enum CountedIn {
    Memory(Used),
    Redis(redis::Taken),
}

/// One of the concurrent requests of a name, until it is dropped.
#[derive(Debug)]
#[must_use = "a dropped slot is free for another request"]
pub struct Slot(#[expect(dead_code, reason = "its drop frees it")] Box<dyn Any + Send + Sync>);

impl Rates {
    /// Counts in this process only.
    pub fn in_memory() -> Self {
        Self { memory: Arc::default(), redis: None }
    }

    /// Counts in Redis, shared with other instances, and in this process while Redis is
    /// unreachable. An abandoned place becomes free after `life`. Requires a runtime.
    pub fn in_redis(redis: Redis, life: Duration) -> Self {
        Self { memory: Arc::default(), redis: Some(RedisRates::new(redis, life)) }
    }

    /// Takes a place and counts a request, or neither.
    pub async fn admit(&self, name: &str, limits: Limits) -> Result<Place, Refused> {
        let place = |counted_in, slot: Box<dyn Any + Send + Sync>, requests| {
            let left = MinuteLeft { requests, tokens: None };
            Place { limits, counted_in, slot: Some(Slot(slot)), taken_tokens: 0, left }
        };
        if let Some(redis) = &self.redis
            && let Ok(admitted) = redis.admit(name, limits).await
        {
            return admitted
                .map(|(taken, slot, left)| place(CountedIn::Redis(taken), Box::new(slot), left));
        }
        let admitted = self.memory.admit(name, limits);
        admitted.map(|(used, slot, left)| place(CountedIn::Memory(used), Box::new(slot), left))
    }
}

impl Place {
    /// Counts a request's input tokens as known before sending; 0 if unknown. Refuses it if the
    /// minute has no room.
    pub async fn take_tokens(&mut self, tokens: u64) -> Result<(), Refused> {
        let Some(per_minute) = self.limits.tokens_per_minute else { return Ok(()) };
        let taken = match &self.counted_in {
            CountedIn::Memory(used) => used.take(tokens, per_minute),
            // If counting fails, the request passes; the correction at its end counts it.
            CountedIn::Redis(taken) => match taken.take(tokens, per_minute).await {
                Ok(taken) => taken,
                Err(_) => return Ok(()),
            },
        };
        self.left.tokens = Some(taken.map_err(Refused::Tokens)?);
        self.taken_tokens = self.taken_tokens.saturating_add(tokens);
        Ok(())
    }

    /// Takes its slot out: its other counts outlive it.
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.slot.take()
    }

    /// Returns the rest of its minute at the time of admission.
    pub fn left(&self) -> MinuteLeft {
        self.left
    }

    /// Replaces the counted tokens by the actual usage, prompt and answer. May be called again with
    /// better figures.
    pub fn settle_tokens(&mut self, tokens: u64) {
        let Some(per_minute) = self.limits.tokens_per_minute else { return };
        match &self.counted_in {
            CountedIn::Memory(used) => used.correct(self.taken_tokens, tokens, per_minute),
            CountedIn::Redis(taken) => taken.correct(self.taken_tokens, tokens, per_minute),
        }
        self.taken_tokens = tokens;
    }
}
