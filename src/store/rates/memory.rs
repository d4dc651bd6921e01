//! Rates in one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Limits, Refused};
use crate::budget::rate::{Bucket, Left, TooMany};

/// From how many names on those are forgotten that have nothing to remember.
const FORGET_ABOVE: usize = 10_000;
/// After how long a name has nothing to remember: no bucket holds more than ten minutes' worth.
const FORGET_AFTER_MS: u64 = 11 * 60 * 1000;

/// What all have used.
pub struct Memory {
    began: Instant,
    uses: Mutex<HashMap<String, Arc<Mutex<Use>>>>,
}

/// What one has used.
#[derive(Default)]
struct Use {
    requests: Bucket,
    tokens: Bucket,
    under_way: u64,
    last_ms: u64,
}

/// A place, free again on drop.
pub struct Used {
    uses: Arc<Mutex<Use>>,
    began: Instant,
}

impl Default for Memory {
    fn default() -> Self {
        Self { began: Instant::now(), uses: Mutex::default() }
    }
}

impl Memory {
    pub fn admit(&self, name: &str, limits: Limits) -> Result<(Used, Option<Left>), Refused> {
        let now_ms = elapsed_ms(self.began);
        let uses = self.uses_of(name, now_ms);
        let mut used = lock(&uses);
        used.last_ms = now_ms;
        if let Some(most) = limits.max_concurrent
            && used.under_way >= most
        {
            return Err(Refused::Places { most });
        }
        if let Some(per_minute) = limits.requests_per_minute {
            used.requests.take(1, per_minute, now_ms).map_err(Refused::Requests)?;
        }
        used.under_way += 1;
        let left = limits.requests_per_minute.map(|most| used.requests.left(most, now_ms));
        drop(used);
        Ok((Used { uses, began: self.began }, left))
    }

    fn uses_of(&self, name: &str, now_ms: u64) -> Arc<Mutex<Use>> {
        let mut all = lock(&self.uses);
        if let Some(uses) = all.get(name) {
            return Arc::clone(uses);
        }
        if all.len() >= FORGET_ABOVE {
            all.retain(|_, uses| {
                Arc::strong_count(uses) > 1
                    || now_ms.saturating_sub(lock(uses).last_ms) < FORGET_AFTER_MS
            });
        }
        Arc::clone(all.entry(name.to_owned()).or_default())
    }
}

impl Used {
    pub fn take(&self, tokens: u64, per_minute: u64) -> Result<Left, TooMany> {
        let now_ms = elapsed_ms(self.began);
        let mut used = lock(&self.uses);
        used.tokens.take(tokens, per_minute, now_ms)?;
        Ok(used.tokens.left(per_minute, now_ms))
    }

    pub fn correct(&self, taken: u64, actual: u64, per_minute: u64) {
        let now_ms = elapsed_ms(self.began);
        let mut used = lock(&self.uses);
        used.last_ms = now_ms;
        used.tokens.correct(taken, actual, per_minute, now_ms);
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut used = lock(&self.uses);
        used.under_way = used.under_way.saturating_sub(1);
    }
}

fn elapsed_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What a thread that panicked left is still right: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
