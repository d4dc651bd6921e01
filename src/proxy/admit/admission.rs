//! Admission of requests: a key's limits on simultaneous requests and on use per minute, from the
//! request's start to the end of its answer. `store::rates` counts.

use std::sync::Arc;
use std::time::Duration;

use crate::proxy::admit::caller::Caller;
use crate::proxy::error::{ErrorKind, ProxyError};
use weir_engine::wire::usage::Usage;
use weir_store::budget::rate::TooMany;
use weir_store::keys::VirtualKey;
use weir_store::rates::{Limits, MinuteLeft, Place, Rates, Refused, Slot};
use weir_store::redis::Redis;

/// Retry delay sent if too many requests are in flight.
const RETRY_AFTER_MS: u64 = 1000;

/// How long the slot of a request lasts after its instance was killed.
const PLACE_LIFE: Duration = Duration::from_secs(30);

/// Usage of all keys with limits.
#[derive(Clone)]
pub struct Admissions(Arc<Rates>);

/// A request's slot among those of its key, released on drop.
#[must_use = "a dropped slot is free for another request"]
pub struct Admission {
    /// `None` if nothing is limited.
    place: Option<(Arc<VirtualKey>, Place)>,
}

impl Admission {
    /// Returns the admission of a caller without limits.
    pub fn unlimited() -> Self {
        Self { place: None }
    }
}

impl Admissions {
    /// Counts in Redis if configured, else in this process.
    pub fn new(redis: Option<Redis>) -> Self {
        let in_redis = |redis| Rates::in_redis(redis, PLACE_LIFE);
        Self(Arc::new(redis.map_or_else(Rates::in_memory, in_redis)))
    }

    /// Admits a request, or refuses it with a retry delay.
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
            Err(refused) => Err(limit_error(key, refused)),
        }
    }
}

impl Admission {
    /// Counts the request's tokens, as far as known before it is sent; 0 if unknown. Refuses it if
    /// the minute has no room. Which of them the provider has cached is known later.
    pub async fn take_tokens(&mut self, tokens: u64) -> Result<(), ProxyError> {
        let Some((key, place)) = &mut self.place else { return Ok(()) };
        let tokens = if key.settings.cached_tokens_free { 0 } else { tokens };
        place.take_tokens(tokens).await.map_err(|refused| limit_error(key, refused))
    }

    /// Takes out its slot among the concurrent requests of its key, which the caller's presence keeps.
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.place.as_mut().and_then(|(_, place)| place.take_slot())
    }

    /// Returns the remaining limits of the key's current minute.
    pub fn left(&self) -> MinuteLeft {
        self.place.as_ref().map(|(_, place)| place.left()).unwrap_or_default()
    }

    /// Returns the tokens of this usage that count; `None` if they are not known.
    pub fn counted_tokens(&self, usage: Usage) -> Option<u64> {
        let is_free = self.place.as_ref().is_some_and(|(key, _)| key.settings.cached_tokens_free);
        let free_tokens = usage.cached_tokens.filter(|_| is_free).unwrap_or(0);
        let prompt_tokens = usage.prompt_tokens.map(|tokens| tokens.saturating_sub(free_tokens));
        let both = [prompt_tokens, usage.completion_tokens];
        both.into_iter().flatten().reduce(u64::saturating_add)
    }

    /// Replaces the counted tokens by the actual usage, prompt and answer. May be called again when
    /// more is known.
    pub fn settle_tokens(&mut self, tokens: u64) {
        if let Some((_, place)) = &mut self.place {
            place.settle_tokens(tokens);
        }
    }
}

/// Creates the error for a key that has reached one of its limits.
fn limit_error(key: &VirtualKey, refused: Refused) -> ProxyError {
    let settings = &key.settings;
    match refused {
        Refused::Places { most } => {
            let message = format!(
                "Concurrency limit reached: this key may have {most} requests in flight. Try again when one \
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
                "Rate limit reached: this key may use {per_minute} {what} per minute. Try again in {} s.",
                wait_ms.div_ceil(1000)
            );
            too_many(kind, message, Some(wait_ms))
        }
        TooMany::Ever => {
            let message = format!(
                "Rate limit reached: this key may use {per_minute} {what} per minute, and this request \
                 alone exceeds that. Shorten it, or ask the operator to raise the limit."
            );
            too_many(kind, message, None)
        }
    }
}

fn too_many(kind: ErrorKind, message: String, retry_after_ms: Option<u64>) -> ProxyError {
    ProxyError { retry_after_ms, ..ProxyError::new(kind, message) }
}
