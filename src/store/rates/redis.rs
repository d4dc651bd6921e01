//! Rates in Redis, for several instances. Taking, correcting and giving back are one script each
//! (`scripts/`), by Redis' own clock. A place that its instance no longer prolongs is free again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Script;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

use super::super::StoreError;
use super::super::redis::Redis;
use super::{Limits, Refused};
use crate::budget::rate::{Left, TooMany};

/// More than any limit is, and exact in a script's arithmetic.
const MOST: u64 = 100_000_000_000;
/// How many places one script prolongs.
const BATCH: usize = 200;

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(
            static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new(concat!(include_str!("scripts/common.lua"), include_str!($file)))
            });
        )*
    };
}

scripts! {
    ADMIT = "scripts/admit.lua";
    TAKE = "scripts/take.lua";
    CORRECT = "scripts/correct.lua";
    LEAVE = "scripts/leave.lua";
    PROLONG = "scripts/prolong.lua";
}

/// Rates in Redis.
pub struct InRedis {
    redis: Redis,
    life_ms: u64,
    /// The places that this instance prolongs, with whose they are.
    places: Mutex<HashMap<String, String>>,
}

/// A place, given back on drop.
pub struct Taken {
    rates: Arc<InRedis>,
    name: String,
    id: String,
    /// Whether Redis may have it.
    may_be: bool,
}

impl InRedis {
    pub fn new(redis: Redis, life: Duration) -> Arc<Self> {
        let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        let rates = Arc::new(Self { redis, life_ms, places: Mutex::default() });
        tokio::spawn(prolong(Arc::downgrade(&rates), life / 3));
        rates
    }

    pub async fn admit(
        self: &Arc<Self>,
        name: &str,
        limits: Limits,
    ) -> Result<Result<(Taken, Option<Left>), Refused>, StoreError> {
        let (rates, name_of_it) = (Arc::clone(self), name.to_owned());
        let mut taken = Taken { rates, name: name_of_it, id: random()?, may_be: true };
        // Prolonged from now on, and given back where no answer comes.
        self.places().insert(taken.id.clone(), taken.name.clone());
        let asked = json!({
            "place": taken.id,
            "life_ms": self.life_ms,
            "per_minute": limits.requests_per_minute.map(bounded),
            "most": limits.max_concurrent.map(bounded),
        });
        let reply = self.ask(&ADMIT, name, &asked).await?;
        taken.may_be = reply.first().is_some_and(|word| word == "in");
        Ok(match (reply.first().map(String::as_str), limits.max_concurrent) {
            (Some("places"), Some(most)) => Err(Refused::Places { most }),
            _ => {
                let most = limits.requests_per_minute.map(bounded);
                let left = most.and_then(|most| left(&reply, most));
                too_many(&reply).map(|()| (taken, left)).map_err(Refused::Requests)
            }
        })
    }

    async fn ask(
        &self,
        script: &Script,
        name: &str,
        asked: &Value,
    ) -> Result<Vec<String>, StoreError> {
        self.redis.run(script, &self.redis.key(&format!("rate:{name}")), asked).await
    }

    /// Asks without waiting for the answer. What does not reach Redis drains or ends by itself.
    fn tell(self: &Arc<Self>, script: &'static LazyLock<Script>, name: &str, asked: Value) {
        if let Ok(runtime) = Handle::try_current() {
            let (rates, name) = (Arc::clone(self), name.to_owned());
            runtime.spawn(async move { rates.ask(script, &name, &asked).await });
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn prolong(&self) -> Result<(), StoreError> {
        let places: Vec<Value> = self
            .places()
            .iter()
            .map(
                |(id, name)| json!({ "key": self.redis.key(&format!("rate:{name}")), "place": id }),
            )
            .collect();
        for places in places.chunks(BATCH) {
            let asked = json!({ "life_ms": self.life_ms, "places": places });
            self.ask(&PROLONG, "", &asked).await?;
        }
        Ok(())
    }
}

impl Taken {
    pub async fn take(
        &self,
        tokens: u64,
        per_minute: u64,
    ) -> Result<Result<Left, TooMany>, StoreError> {
        let per_minute = bounded(per_minute);
        let asked = json!({ "amount": bounded(tokens), "per_minute": per_minute });
        let reply = self.rates.ask(&TAKE, &self.name, &asked).await?;
        let left = left(&reply, per_minute).unwrap_or(Left::new(0, per_minute));
        Ok(too_many(&reply).map(|()| left))
    }

    pub fn correct(&self, taken: u64, actual: u64, per_minute: u64) {
        let asked = json!({
            "taken": bounded(taken),
            "actual": bounded(actual),
            "per_minute": bounded(per_minute),
        });
        self.rates.tell(&CORRECT, &self.name, asked);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.rates.places().remove(&self.id);
        if self.may_be {
            self.rates.tell(&LEAVE, &self.name, json!({ "place": self.id }));
        }
    }
}

/// Prolongs the places for as long as somebody counts.
async fn prolong(rates: Weak<InRedis>, tick: Duration) {
    let mut ticks = interval(tick.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(rates) = rates.upgrade() else { return };
        // What fails is tried again with the next tick; the way there has told of it.
        let _ = rates.prolong().await;
    }
}

fn bounded(number: u64) -> u64 {
    number.min(MOST)
}

fn too_many(reply: &[String]) -> Result<(), TooMany> {
    match reply.first().map(String::as_str) {
        Some("ever") => Err(TooMany::Ever),
        Some("wait") => {
            let wait_ms = reply.get(1).and_then(|ms| ms.parse().ok()).unwrap_or(1);
            Err(TooMany::For { wait_ms })
        }
        _ => Ok(()),
    }
}

/// What a script told of its bucket.
fn left(reply: &[String], per_minute: u64) -> Option<Left> {
    let [word, filled] = reply else { return None };
    let filled = Some(filled).filter(|_| word == "in")?;
    Some(Left::new(filled.parse().ok()?, per_minute))
}

/// A name for a place that no other has.
fn random() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Failed(format!("no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
