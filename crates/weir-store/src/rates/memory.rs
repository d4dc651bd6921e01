//! Rate counters of one process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Limits, Refused};
use crate::budget::rate::{Bucket, Left, TooMany};

/// Number of names above which idle ones are removed.
const FORGET_ABOVE: usize = 10_000;
/// Time after which a name is idle: no bucket holds more than ten minutes' worth.
const FORGET_AFTER_MS: u64 = 11 * 60 * 1000;

/// Usage of all names.
pub(super) struct Memory {
    began: Instant,
    usage: Mutex<HashMap<String, Arc<Mutex<NameUsage>>>>,
}

/// Usage of one name.
#[derive(Default)]
struct NameUsage {
    requests: Bucket,
    tokens: Bucket,
    under_way: u64,
    last_ms: u64,
}

/// Usage of a request's name.
pub(super) struct Used {
    usage: Arc<Mutex<NameUsage>>,
    began: Instant,
}

/// One of the concurrent requests of a name, until it is dropped.
pub(super) struct MemorySlot(Arc<Mutex<NameUsage>>);

impl Default for Memory {
    fn default() -> Self {
        Self { began: Instant::now(), usage: Mutex::default() }
    }
}

impl Memory {
    pub(super) fn admit(
        &self,
        name: &str,
        limits: Limits,
    ) -> Result<(Used, MemorySlot, Option<Left>), Refused> {
        let now_ms = elapsed_ms(self.began);
        let usage = self.usage_of(name, now_ms);
        let mut used = usage.lock();
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
        let slot = MemorySlot(Arc::clone(&usage));
        Ok((Used { usage, began: self.began }, slot, left))
    }

    fn usage_of(&self, name: &str, now_ms: u64) -> Arc<Mutex<NameUsage>> {
        let mut all = self.usage.lock();
        if let Some(usage) = all.get(name) {
            return Arc::clone(usage);
        }
        if all.len() >= FORGET_ABOVE {
            all.retain(|_, usage| {
                Arc::strong_count(usage) > 1
                    || now_ms.saturating_sub(usage.lock().last_ms) < FORGET_AFTER_MS
            });
        }
        Arc::clone(all.entry(name.to_owned()).or_default())
    }
}

impl Used {
    pub(super) fn take(&self, tokens: u64, per_minute: u64) -> Result<Left, TooMany> {
        let now_ms = elapsed_ms(self.began);
        let mut used = self.usage.lock();
        used.tokens.take(tokens, per_minute, now_ms)?;
        Ok(used.tokens.left(per_minute, now_ms))
    }

    pub(super) fn correct(&self, taken: u64, actual: u64, per_minute: u64) {
        let now_ms = elapsed_ms(self.began);
        let mut used = self.usage.lock();
        used.last_ms = now_ms;
        used.tokens.correct(taken, actual, per_minute, now_ms);
    }
}

impl Drop for MemorySlot {
    fn drop(&mut self) {
        let mut used = self.0.lock();
        used.under_way = used.under_way.saturating_sub(1);
    }
}

fn elapsed_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
