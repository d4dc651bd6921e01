//! How much each of many may do at once and in a minute: requests, tokens, places. One seam, whether
//! one process counts or several do together; the arithmetic is `budget::rate`'s. Knows nothing of
//! who they are and what is told to them.

mod memory;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use super::redis::Redis;
use crate::budget::rate::{Left, TooMany};
use memory::{Memory, Used};
use redis::InRedis;

/// What one may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub max_concurrent: Option<u64>,
}

/// Why one may not do more now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// So many requests are under way.
    Places { most: u64 },
    /// Too many requests.
    Requests(TooMany),
    /// Too many tokens.
    Tokens(TooMany),
}

/// What all have used.
pub struct Rates {
    memory: Arc<Memory>,
    /// Where several instances count together.
    redis: Option<Arc<InRedis>>,
}

/// A request's place among those of the same name, given back on drop.
#[must_use = "a place that is dropped is free for another request"]
pub struct Place {
    limits: Limits,
    kept: Kept,
    /// What is counted for the request so far.
    taken_tokens: u64,
    left: MinuteLeft,
}

/// What a minute has left of what is limited, as it was when a request was let in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MinuteLeft {
    pub requests: Option<Left>,
    pub tokens: Option<Left>,
}

/// Where a place is counted.
enum Kept {
    Memory(Used),
    Redis(redis::Taken),
}

impl Rates {
    /// Counts in this process alone.
    pub fn in_memory() -> Self {
        Self { memory: Arc::default(), redis: None }
    }

    /// Counts in Redis, together with other instances, and in this process alone while Redis is
    /// away. A place that nobody gives back is free again after `life`. Has to be made inside a
    /// runtime.
    pub fn in_redis(redis: Redis, life: Duration) -> Self {
        Self { memory: Arc::default(), redis: Some(InRedis::new(redis, life)) }
    }

    /// Takes a place and counts a request, or neither.
    pub async fn admit(&self, name: &str, limits: Limits) -> Result<Place, Refused> {
        let place = |kept, requests| {
            let left = MinuteLeft { requests, tokens: None };
            Place { limits, kept, taken_tokens: 0, left }
        };
        if let Some(redis) = &self.redis
            && let Ok(admitted) = redis.admit(name, limits).await
        {
            return admitted.map(|(taken, left)| place(Kept::Redis(taken), left));
        }
        let admitted = self.memory.admit(name, limits);
        admitted.map(|(used, left)| place(Kept::Memory(used), left))
    }
}

impl Place {
    /// Counts what the request will send, by what is known before it is sent: 0 where that is
    /// nothing. Refuses it where the minute has no room.
    pub async fn take_tokens(&mut self, tokens: u64) -> Result<(), Refused> {
        let Some(per_minute) = self.limits.tokens_per_minute else { return Ok(()) };
        let taken = match &self.kept {
            Kept::Memory(used) => used.take(tokens, per_minute),
            // What cannot be counted is let through: it is put right when the request has ended.
            Kept::Redis(taken) => match taken.take(tokens, per_minute).await {
                Ok(taken) => taken,
                Err(_) => return Ok(()),
            },
        };
        self.left.tokens = Some(taken.map_err(Refused::Tokens)?);
        self.taken_tokens = self.taken_tokens.saturating_add(tokens);
        Ok(())
    }

    /// What its minute had left when it was let in.
    pub fn left(&self) -> MinuteLeft {
        self.left
    }

    /// Puts what the request really used, prompt and answer, in the place of what was counted. May
    /// be called again when more is known.
    pub fn settle_tokens(&mut self, tokens: u64) {
        let Some(per_minute) = self.limits.tokens_per_minute else { return };
        match &self.kept {
            Kept::Memory(used) => used.correct(self.taken_tokens, tokens, per_minute),
            Kept::Redis(taken) => taken.correct(self.taken_tokens, tokens, per_minute),
        }
        self.taken_tokens = tokens;
    }
}
