//! How much a key may do at once and in a minute, from the request's start to the end of its answer,
//! and how its caller is told. What counts is `store::rates`.

use std::sync::Arc;
use std::time::Duration;

use super::{Caller, ErrorKind, ProxyError};
use crate::budget::rate::TooMany;
use crate::store::keys::VirtualKey;
use crate::store::rates::{Limits, MinuteLeft, Place, Rates, Refused};
use crate::store::redis::Redis;

/// When to try again where too many requests are under way.
const RETRY_AFTER_MS: u64 = 1000;

/// How long the place of a request lasts whose instance was killed.
const PLACE_LIFE: Duration = Duration::from_secs(30);

/// What all keys with limits have used.
#[derive(Clone)]
pub struct Admissions(Arc<Rates>);

/// A request's place among those of its key, given back on drop.
#[must_use = "a place that is dropped is free for another request"]
pub struct Admission {
    /// `None` where nothing is limited.
    place: Option<(Arc<VirtualKey>, Place)>,
}

impl Admission {
    /// That of a caller whom nothing limits.
    pub fn unlimited() -> Self {
        Self { place: None }
    }
}

impl Admissions {
    /// Counts in Redis where there is one, else in this process.
    pub fn new(redis: Option<Redis>) -> Self {
        let in_redis = |redis| Rates::in_redis(redis, PLACE_LIFE);
        Self(Arc::new(redis.map_or_else(Rates::in_memory, in_redis)))
    }

    /// Lets a request in, or says when to come again.
    pub async fn admit(&self, caller: &Caller) -> Result<Admission, ProxyError> {
        let Some(key) = caller.key.as_ref().filter(|key| is_limited(key)) else {
            return Ok(Admission::unlimited());
        };
        let settings = &key.settings;
        let limits = Limits {
            requests_per_minute: settings.requests_per_minute,
            tokens_per_minute: settings.tokens_per_minute,
            max_concurrent: settings.max_concurrent,
        };
        match self.0.admit(&key.id, limits).await {
            Ok(place) => Ok(Admission { place: Some((Arc::clone(key), place)) }),
            Err(refused) => Err(told(key, refused)),
        }
    }
}

impl Admission {
    /// Counts what the request will send, by what is known before it is sent: 0 where that is
    /// nothing. Refuses it where the minute has no room.
    pub async fn take_tokens(&mut self, tokens: u64) -> Result<(), ProxyError> {
        let Some((key, place)) = &mut self.place else { return Ok(()) };
        place.take_tokens(tokens).await.map_err(|refused| told(key, refused))
    }

    /// What the minute of the request's key has left.
    pub fn left(&self) -> MinuteLeft {
        self.place.as_ref().map(|(_, place)| place.left()).unwrap_or_default()
    }

    /// Puts what the request really used, prompt and answer, in the place of what was counted. May
    /// be called again when more is known.
    pub fn settle_tokens(&mut self, tokens: u64) {
        if let Some((_, place)) = &mut self.place {
            place.settle_tokens(tokens);
        }
    }
}

fn told(key: &VirtualKey, refused: Refused) -> ProxyError {
    let settings = &key.settings;
    match refused {
        Refused::Places { most } => {
            let message = format!(
                "This key may have {most} requests under way at once, and has. Try again when one \
                 has ended."
            );
            too_many(ErrorKind::RequestRate, message, Some(RETRY_AFTER_MS))
        }
        Refused::Requests(reason) => {
            refusal(ErrorKind::RequestRate, reason, settings.requests_per_minute.unwrap_or(0))
        }
        Refused::Tokens(reason) => {
            refusal(ErrorKind::TokenRate, reason, settings.tokens_per_minute.unwrap_or(0))
        }
    }
}

fn is_limited(key: &VirtualKey) -> bool {
    let settings = &key.settings;
    settings.requests_per_minute.is_some()
        || settings.tokens_per_minute.is_some()
        || settings.max_concurrent.is_some()
}

fn refusal(kind: ErrorKind, reason: TooMany, per_minute: u64) -> ProxyError {
    let what = if kind == ErrorKind::TokenRate { "tokens" } else { "requests" };
    match reason {
        TooMany::For { wait_ms } => {
            let message = format!(
                "Rate limit reached: this key may use {per_minute} {what} a minute. Try again in {} s.",
                wait_ms.div_ceil(1000)
            );
            too_many(kind, message, Some(wait_ms))
        }
        TooMany::Ever => {
            let message = format!(
                "Rate limit reached: this key may use {per_minute} {what} a minute, and this request \
                 alone is more. Make it shorter, or have the limit raised."
            );
            too_many(kind, message, None)
        }
    }
}

fn too_many(kind: ErrorKind, message: String, retry_after_ms: Option<u64>) -> ProxyError {
    ProxyError { retry_after_ms, ..ProxyError::new(kind, message) }
}
