//! How much a key may do at once and in a minute: counted here, in this process alone, from the
//! request's start to the end of its answer. The arithmetic is `budget::rate`'s.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Caller, ErrorKind, ProxyError};
use crate::budget::rate::{Bucket, TooMany};
use crate::store::keys::VirtualKey;

/// When to try again where too many requests are under way.
const RETRY_AFTER_MS: u64 = 1000;
/// From how many keys on those are forgotten that have nothing to remember.
const FORGET_ABOVE: usize = 10_000;
/// After how long a key has nothing to remember: no bucket holds more than ten minutes' worth.
const FORGET_AFTER_MS: u64 = 11 * 60 * 1000;

/// What all keys with limits have used.
pub struct Admissions {
    began: Instant,
    uses: Mutex<HashMap<String, Arc<Mutex<Use>>>>,
}

/// What one key has used.
#[derive(Default)]
struct Use {
    requests: Bucket,
    tokens: Bucket,
    under_way: u64,
    last_ms: u64,
}

/// A request's place among those of its key, given back on drop.
#[must_use = "a place that is dropped is free for another request"]
pub struct Admission {
    /// `None` where nothing is limited.
    place: Option<Place>,
}

struct Place {
    key: Arc<VirtualKey>,
    uses: Arc<Mutex<Use>>,
    began: Instant,
    /// What is counted for the request so far.
    taken_tokens: u64,
}

impl Default for Admissions {
    fn default() -> Self {
        Self { began: Instant::now(), uses: Mutex::default() }
    }
}

impl Admissions {
    /// Lets a request in, or says when to come again.
    pub fn admit(&self, caller: &Caller) -> Result<Admission, ProxyError> {
        self.admit_at(caller, elapsed_ms(self.began))
    }

    fn admit_at(&self, caller: &Caller, now_ms: u64) -> Result<Admission, ProxyError> {
        let Some(key) = caller.key.as_ref().filter(|key| is_limited(key)) else {
            return Ok(Admission { place: None });
        };
        let uses = self.uses_of(&key.id, now_ms);
        let mut used = lock(&uses);
        used.last_ms = now_ms;
        let settings = &key.settings;
        if let Some(most) = settings.max_concurrent
            && used.under_way >= most
        {
            let message = format!(
                "This key may have {most} requests under way at once, and has. Try again when one \
                 has ended."
            );
            return Err(too_many(ErrorKind::RequestRate, message, Some(RETRY_AFTER_MS)));
        }
        if let Some(per_minute) = settings.requests_per_minute {
            used.requests
                .take(1, per_minute, now_ms)
                .map_err(|reason| refusal(ErrorKind::RequestRate, reason, per_minute))?;
        }
        used.under_way += 1;
        drop(used);
        let key = Arc::clone(key);
        Ok(Admission { place: Some(Place { key, uses, began: self.began, taken_tokens: 0 }) })
    }

    fn uses_of(&self, id: &str, now_ms: u64) -> Arc<Mutex<Use>> {
        let mut all = lock(&self.uses);
        if let Some(uses) = all.get(id) {
            return Arc::clone(uses);
        }
        if all.len() >= FORGET_ABOVE {
            all.retain(|_, uses| {
                Arc::strong_count(uses) > 1
                    || now_ms.saturating_sub(lock(uses).last_ms) < FORGET_AFTER_MS
            });
        }
        Arc::clone(all.entry(id.to_owned()).or_default())
    }
}

impl Admission {
    /// Counts what the request will send, by what is known before it is sent: 0 where that is
    /// nothing. Refuses it where the minute has no room.
    pub fn take_tokens(&mut self, tokens: u64) -> Result<(), ProxyError> {
        self.take_tokens_at(tokens, self.now_ms())
    }

    fn take_tokens_at(&mut self, tokens: u64, now_ms: u64) -> Result<(), ProxyError> {
        let Some((place, per_minute)) = self.limited() else { return Ok(()) };
        lock(&place.uses)
            .tokens
            .take(tokens, per_minute, now_ms)
            .map_err(|reason| refusal(ErrorKind::TokenRate, reason, per_minute))?;
        place.taken_tokens = place.taken_tokens.saturating_add(tokens);
        Ok(())
    }

    /// Puts what the request really used, prompt and answer, in the place of what was counted. May
    /// be called again when more is known.
    pub fn settle_tokens(&mut self, tokens: u64) {
        self.settle_tokens_at(tokens, self.now_ms());
    }

    fn settle_tokens_at(&mut self, tokens: u64, now_ms: u64) {
        let Some((place, per_minute)) = self.limited() else { return };
        let mut used = lock(&place.uses);
        used.last_ms = now_ms;
        used.tokens.correct(place.taken_tokens, tokens, per_minute, now_ms);
        drop(used);
        place.taken_tokens = tokens;
    }

    fn now_ms(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| elapsed_ms(place.began))
    }

    fn limited(&mut self) -> Option<(&mut Place, u64)> {
        let place = self.place.as_mut()?;
        let per_minute = place.key.settings.tokens_per_minute?;
        Some((place, per_minute))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut used = lock(&self.uses);
        used.under_way = used.under_way.saturating_sub(1);
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

fn elapsed_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What a thread that panicked left is still right: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Tenant;
    use crate::store::keys::KeySettings;

    fn caller(settings: KeySettings) -> Caller {
        let key = VirtualKey {
            id: "key_1".to_owned(),
            name: "a".to_owned(),
            organisation: "o".to_owned(),
            team: "t".to_owned(),
            user: String::new(),
            settings,
            created_ms: 0,
            expires_ms: None,
            revoked_ms: None,
        };
        Caller { tenant: Tenant([1; 16]), key: Some(Arc::new(key)) }
    }

    #[test]
    fn places_come_back_when_requests_end() {
        let admissions = Admissions::default();
        let caller = caller(KeySettings { max_concurrent: Some(2), ..KeySettings::default() });
        let first = admissions.admit_at(&caller, 0).expect("one");
        let _second = admissions.admit_at(&caller, 0).expect("two");
        let refused = admissions.admit_at(&caller, 0).err().expect("three are too many");
        assert_eq!(refused.kind, ErrorKind::RequestRate);
        assert_eq!(refused.retry_after_ms, Some(RETRY_AFTER_MS));
        drop(first);
        let _third = admissions.admit_at(&caller, 0).expect("there is room again");
    }

    #[test]
    fn tokens_are_counted_by_the_plan_and_then_by_usage() {
        let admissions = Admissions::default();
        let limits = KeySettings { tokens_per_minute: Some(1000), ..KeySettings::default() };
        let caller = caller(limits);
        let mut first = admissions.admit_at(&caller, 0).expect("no request is counted");
        first.take_tokens_at(600, 0).expect("there is room");
        let mut second = admissions.admit_at(&caller, 0).expect("no request is counted");
        let refused = second.take_tokens_at(600, 0).expect_err("1200");
        assert_eq!((refused.kind, refused.retry_after_ms), (ErrorKind::TokenRate, Some(12_000)));
        first.settle_tokens_at(300, 0);
        second.take_tokens_at(600, 0).expect("it was less");
        second.settle_tokens_at(1700, 0);
        drop((first, second));
        let mut third = admissions.admit_at(&caller, 0).expect("no request is counted");
        assert_eq!(third.take_tokens_at(0, 0).expect_err("2000").retry_after_ms, Some(60_000));
        third.take_tokens_at(0, 60_000).expect("just so");
        assert_eq!(third.take_tokens_at(1001, 60_000).expect_err("never").retry_after_ms, None);
    }

    #[test]
    fn requests_are_counted_though_they_end() {
        let admissions = Admissions::default();
        let limits = KeySettings { requests_per_minute: Some(2), ..KeySettings::default() };
        let caller = caller(limits);
        for _ in 0..2 {
            drop(admissions.admit_at(&caller, 0).expect("two a minute"));
        }
        let refused = admissions.admit_at(&caller, 0).err().expect("three are too many");
        assert_eq!(refused.retry_after_ms, Some(30_000));
        drop(admissions.admit_at(&caller, 30_000).expect("as told"));
    }
}
