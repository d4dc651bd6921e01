//! Rate counters in Redis, for several instances. Taking, correcting and releasing are one script
//! each (`scripts/`), on Redis' clock. A place that its instance stops renewing becomes free.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::Script;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

use super::super::Stored;
use super::super::redis::{Redis, scripts};
use super::{Limits, Refused};
use crate::budget::rate::{Left, TooMany};
use crate::secret::random_name;

/// Above any limit, and exact in script arithmetic.
const MOST: u64 = 100_000_000_000;
/// Places renewed per script call.
const BATCH: usize = 200;

scripts! {
    "scripts/common.lua";
    ADMIT = "scripts/admit.lua";
    TAKE = "scripts/take.lua";
    CORRECT = "scripts/correct.lua";
    LEAVE = "scripts/leave.lua";
    PROLONG = "scripts/prolong.lua";
}

/// Rate counters in Redis.
pub(super) struct RedisRates {
    redis: Redis,
    life_ms: u64,
    /// Places that this instance renews, with their names.
    places: Mutex<HashMap<String, String>>,
}

/// Usage of a request's name.
pub(super) struct Taken {
    rates: Arc<RedisRates>,
    name: String,
}

/// One of the concurrent requests of a name, until it is dropped.
pub(super) struct RedisSlot {
    rates: Arc<RedisRates>,
    name: String,
    id: String,
    /// Whether Redis may have it.
    may_exist: bool,
}

impl RedisRates {
    pub(super) fn new(redis: Redis, life: Duration) -> Arc<Self> {
        let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        let rates = Arc::new(Self { redis, life_ms, places: Mutex::default() });
        tokio::spawn(renew(Arc::downgrade(&rates), life / 3));
        rates
    }

    pub(super) async fn admit(
        self: &Arc<Self>,
        name: &str,
        limits: Limits,
    ) -> Stored<Result<(Taken, RedisSlot, Option<Left>), Refused>> {
        let taken = Taken { rates: Arc::clone(self), name: name.to_owned() };
        let (rates, owned_name) = (Arc::clone(self), name.to_owned());
        let mut slot = RedisSlot { rates, name: owned_name, id: random_name()?, may_exist: true };
        // Renewed from now on, and released if no answer comes.
        self.places.lock().insert(slot.id.clone(), slot.name.clone());
        let arguments = json!({
            "place": slot.id,
            "life_ms": self.life_ms,
            "per_minute": limits.requests_per_minute.map(bounded),
            "most": limits.max_concurrent.map(bounded),
        });
        let reply = self.call(&ADMIT, name, &arguments).await?;
        slot.may_exist = reply.first().is_some_and(|word| word == "in");
        Ok(match (reply.first().map(String::as_str), limits.max_concurrent) {
            (Some("places"), Some(most)) => Err(Refused::Places { most }),
            _ => {
                let most = limits.requests_per_minute.map(bounded);
                let left = most.and_then(|most| left(&reply, most));
                refusal(&reply).map(|()| (taken, slot, left)).map_err(Refused::Requests)
            }
        })
    }

    async fn call(&self, script: &Script, name: &str, arguments: &Value) -> Stored<Vec<String>> {
        self.redis.run(script, &self.redis.key(&format!("rate:{name}")), arguments).await
    }

    /// Sends a call without waiting for the answer. If it is lost, the amount drains or expires.
    fn call_detached(
        self: &Arc<Self>,
        script: &'static LazyLock<Script>,
        name: &str,
        arguments: Value,
    ) {
        if let Ok(runtime) = Handle::try_current() {
            let (rates, name) = (Arc::clone(self), name.to_owned());
            runtime.spawn(async move { rates.call(script, &name, &arguments).await });
        }
    }

    async fn renew(&self) -> Stored<()> {
        let places: Vec<Value> = self
            .places
            .lock()
            .iter()
            .map(
                |(id, name)| json!({ "key": self.redis.key(&format!("rate:{name}")), "place": id }),
            )
            .collect();
        for places in places.chunks(BATCH) {
            let arguments = json!({ "life_ms": self.life_ms, "places": places });
            self.call(&PROLONG, "", &arguments).await?;
        }
        Ok(())
    }
}

impl Taken {
    pub(super) async fn take(&self, tokens: u64, per_minute: u64) -> Stored<Result<Left, TooMany>> {
        let per_minute = bounded(per_minute);
        let arguments = json!({ "amount": bounded(tokens), "per_minute": per_minute });
        let reply = self.rates.call(&TAKE, &self.name, &arguments).await?;
        let left = left(&reply, per_minute).unwrap_or(Left::new(0, per_minute));
        Ok(refusal(&reply).map(|()| left))
    }

    pub(super) fn correct(&self, taken: u64, actual: u64, per_minute: u64) {
        let arguments = json!({
            "taken": bounded(taken),
            "actual": bounded(actual),
            "per_minute": bounded(per_minute),
        });
        self.rates.call_detached(&CORRECT, &self.name, arguments);
    }
}

impl Drop for RedisSlot {
    fn drop(&mut self) {
        self.rates.places.lock().remove(&self.id);
        if self.may_exist {
            self.rates.call_detached(&LEAVE, &self.name, json!({ "place": self.id }));
        }
    }
}

/// Renews the places while the counters are in use.
async fn renew(rates: Weak<RedisRates>, tick: Duration) {
    let mut ticks = interval(tick.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(rates) = rates.upgrade() else { return };
        // Failures are logged by the connection and retried at the next tick.
        let _ = rates.renew().await;
    }
}

fn bounded(number: u64) -> u64 {
    number.min(MOST)
}

fn refusal(reply: &[String]) -> Result<(), TooMany> {
    match reply.first().map(String::as_str) {
        Some("ever") => Err(TooMany::Ever),
        Some("wait") => {
            let wait_ms = reply.get(1).and_then(|ms| ms.parse().ok()).unwrap_or(1);
            Err(TooMany::For { wait_ms })
        }
        _ => Ok(()),
    }
}

/// Parses the bucket state in a script's reply.
fn left(reply: &[String], per_minute: u64) -> Option<Left> {
    let [word, filled] = reply else { return None };
    let filled = Some(filled).filter(|_| word == "in")?;
    Some(Left::new(filled.parse().ok()?, per_minute))
}
