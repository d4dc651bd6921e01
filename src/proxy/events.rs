//! Events for operators: posted to a webhook in their order, each once, and never waited for. They
//! hold names and figures, no content and no secret. The log has its own lines about them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::config::{Config, EventKind, events};
use crate::proxy::outbox::{Outbox, Parcel};
use crate::upstream::Webhook;
use weir_store::budget::{Measure, NanoUsd};
use weir_store::counters::{BudgetStatus, written_moment};
use weir_store::{State, Store, now_ms};

/// Maximum number of events that wait to be posted; further ones are dropped and counted.
const MAX_WAITING: usize = 256;
/// Number of subjects past which their last events are forgotten.
const MAX_SUBJECTS: usize = 1000;
/// Maximum number of events about learned limits in a minute: callers choose the models, so each could
/// make any number of them.
const MAX_LEARNED_PER_MINUTE: u32 = 20;
const MINUTE_MS: u64 = 60_000;
/// Maximum number of keys that an event about a refused configuration lists.
const MAX_KEYS: usize = 20;
/// Interval at which the state of the store is compared with the one before.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that shutdown waits for events to be posted.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Something that operators want to know.
pub enum Event<'a> {
    /// A budget has passed its warning mark, or is spent. Its caller sends each once.
    Budget { name: &'a str, status: &'a BudgetStatus, is_exhausted: bool },
    /// An upstream is skipped, or no longer.
    Breaker { upstream: &'a str, is_open: bool },
    /// An upstream refused a request as too long.
    LimitLearned { upstream: &'a str, model: &'a str, limit_tokens: u64 },
    /// The store cannot be written, or can again; or the Redis that counts cannot be used.
    Store { part: &'static str, is_failing: bool },
    /// A changed configuration was refused, for problems with these keys.
    ReloadRefused { keys: &'a [String] },
}

impl Event<'_> {
    fn kind(&self) -> EventKind {
        match self {
            Self::Budget { is_exhausted: false, .. } => EventKind::BudgetWarning,
            Self::Budget { is_exhausted: true, .. } => EventKind::BudgetExhausted,
            Self::Breaker { is_open: true, .. } => EventKind::BreakerOpened,
            Self::Breaker { is_open: false, .. } => EventKind::BreakerClosed,
            Self::LimitLearned { .. } => EventKind::LimitLearned,
            Self::Store { is_failing: true, .. } => EventKind::StoreFailing,
            Self::Store { is_failing: false, .. } => EventKind::StoreRecovered,
            Self::ReloadRefused { .. } => EventKind::ReloadRefused,
        }
    }

    /// Returns the thing that it is about and its new state; `None` if its caller keeps track of
    /// that.
    fn state(&self) -> Option<(String, String)> {
        match self {
            Self::Budget { .. } => None,
            Self::Breaker { upstream, is_open } => {
                Some((format!("breaker {upstream}"), is_open.to_string()))
            }
            Self::LimitLearned { upstream, model, limit_tokens } => {
                Some((format!("limit {upstream} {model}"), limit_tokens.to_string()))
            }
            Self::Store { part, is_failing } => Some(((*part).to_owned(), is_failing.to_string())),
            Self::ReloadRefused { keys } => Some((RELOAD.to_owned(), keys.join(","))),
        }
    }

    /// Returns its own members.
    fn members(&self) -> Value {
        match self {
            Self::Budget { name, status, .. } => {
                let measure = status.budget.id.measure;
                let plain = |amount: u64| match measure {
                    Measure::NanoUsd => NanoUsd(amount).to_decimal(),
                    Measure::Tokens => amount.to_string(),
                };
                json!({
                    "budget": name,
                    "limit": plain(status.budget.limit),
                    "spent": plain(status.count.spent),
                    "held": plain(status.count.held),
                    "left": plain(status.left()),
                    "measure": measure.word(),
                    "resets_at": status.resets_at(),
                })
            }
            Self::Breaker { upstream, .. } => json!({"upstream": upstream}),
            Self::LimitLearned { upstream, model, limit_tokens } => {
                json!({"upstream": upstream, "model": model, "limit_tokens": limit_tokens})
            }
            Self::Store { part, .. } => json!({"part": part}),
            Self::ReloadRefused { keys } => {
                let shown = &keys[..keys.len().min(MAX_KEYS)];
                json!({"keys": shown, "problems": keys.len()})
            }
        }
    }
}

/// Parts that events about the store are about.
const PARTS: [&str; 2] = ["store", "redis"];
/// Subject of events about the configuration.
const RELOAD: &str = "reload";

/// Numbers of events since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCounts {
    pub posted: u64,
    /// Given up after all retries.
    pub failed: u64,
    /// Without room in the queue, or above the limit on events of their kind.
    pub dropped: u64,
}

/// Event on its way.
struct PostedEvent {
    id: String,
    kind: EventKind,
    body: Vec<u8>,
}

#[derive(Default)]
struct Posts {
    posted: AtomicU64,
    failed: AtomicU64,
    /// Events above the limit on their kind.
    limited: AtomicU64,
}

struct SenderState {
    webhook: Webhook,
    kinds: Vec<EventKind>,
    outbox: Outbox<PostedEvent>,
    posts: Arc<Posts>,
    news: Mutex<News>,
}

/// Record of past events, which determines the ones to post.
#[derive(Default)]
struct News {
    /// Last state that was posted, by subject.
    states: HashMap<String, String>,
    /// Start of the current minute, and the events about learned limits in it.
    minute_ms: u64,
    learned: u32,
}

/// Treatment of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    New,
    /// The last one about the same thing was the same.
    Known,
    /// There were too many of its kind. It stays new.
    TooMany,
}

/// Sender of events; of none without a webhook. Clones share it.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<SenderState>>);

impl Events {
    /// Creates the sender that `config` asks for.
    pub fn new(config: &Config) -> Self {
        let Some((url, kinds)) = config.webhook() else { return Self::default() };
        let secret = config.events.secret.as_ref();
        let key = secret.and_then(|secret| events::signing_key(secret.expose()));
        let inner = Webhook::new(url, key.as_deref()).map(|webhook| SenderState {
            webhook,
            kinds,
            outbox: Outbox::new(MAX_WAITING),
            posts: Arc::default(),
            news: Mutex::default(),
        });
        Self(inner.map(Arc::new))
    }

    /// Whether anything is posted.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Posts an event in the background, unless the last one about the same thing was the same.
    pub fn send(&self, event: &Event<'_>) {
        let Some(inner) = &self.0 else { return };
        let kind = event.kind();
        let now_ms = now_ms();
        // The state is recorded in any case: a kind that is not posted ends one that is.
        let verdict = inner.news.lock().judge(event, now_ms);
        if verdict == Delivery::Known || !inner.kinds.contains(&kind) {
            return;
        }
        if verdict == Delivery::TooMany {
            inner.posts.limited.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut body = event.members();
        if let Value::Object(members) = &mut body {
            members.insert("event".to_owned(), kind.word().into());
            members.insert("at".to_owned(), written_moment(now_ms).into());
        }
        let message = PostedEvent { id: id(now_ms), kind, body: body.to_string().into_bytes() };
        let (webhook, posts) = (inner.webhook.clone(), Arc::clone(&inner.posts));
        inner.outbox.put(message, |waiting| post_all(webhook, posts, waiting));
    }

    /// Records that a configuration was applied: the next refused one is news.
    pub fn reload_applied(&self) {
        if let Some(inner) = &self.0 {
            inner.news.lock().states.remove(RELOAD);
        }
    }

    /// Returns the numbers of events so far.
    pub fn counts(&self) -> EventCounts {
        let Some(inner) = &self.0 else { return EventCounts::default() };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EventCounts {
            posted: read(&inner.posts.posted),
            failed: read(&inner.posts.failed),
            dropped: inner.outbox.dropped() + read(&inner.posts.limited),
        }
    }

    /// Waits, within bounds, until waiting events are posted.
    pub async fn finish(&self) {
        if let Some(inner) = &self.0 {
            inner.outbox.flush(FLUSH_TIMEOUT).await;
        }
    }
}

impl News {
    /// Determines the treatment of an event, and records it if it is new.
    fn judge(&mut self, event: &Event<'_>, now_ms: u64) -> Delivery {
        let Some((subject, state)) = event.state() else { return Delivery::New };
        if self.states.get(&subject) == Some(&state) {
            return Delivery::Known;
        }
        if matches!(event, Event::LimitLearned { .. }) {
            // A clock that went back begins a minute, too.
            if now_ms.checked_sub(self.minute_ms).is_none_or(|passed| passed >= MINUTE_MS) {
                (self.minute_ms, self.learned) = (now_ms, 0);
            }
            if self.learned == MAX_LEARNED_PER_MINUTE {
                return Delivery::TooMany;
            }
            self.learned += 1;
        }
        if self.states.len() >= MAX_SUBJECTS {
            self.states.clear();
        }
        self.states.insert(subject, state);
        Delivery::New
    }
}

/// Creates the ID of an event, which its retries share.
fn id(now_ms: u64) -> String {
    let mut random = [0; 8];
    // Without random bytes the time alone distinguishes events.
    let _ = getrandom::fill(&mut random);
    format!("evt_{now_ms:012x}{:016x}", u64::from_be_bytes(random))
}

/// Posts events one after the other, so that they arrive in their order.
async fn post_all(
    webhook: Webhook,
    posts: Arc<Posts>,
    mut waiting: mpsc::Receiver<Parcel<PostedEvent>>,
) {
    while let Some(parcel) = waiting.recv().await {
        let PostedEvent { id, kind, body } = match parcel {
            Parcel::Item(message) => message,
            Parcel::Flush(done) => {
                // Nobody may wait any more.
                let _ = done.send(());
                continue;
            }
        };
        let posted = webhook.post(&id, body).await;
        let counter = if posted.is_ok() { &posts.posted } else { &posts.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = posted {
            let kind = kind.word();
            tracing::warn!(target: "weir::events", error, kind, "the webhook did not accept an event");
        }
    }
}

/// Sends an event whenever the store, or the Redis that counts, begins to fail or recovers, until the
/// runtime ends.
pub async fn watch_store(store: Store, is_redis_failing: impl Fn() -> bool, events: Events) {
    if !events.are_on() {
        return;
    }
    let mut were_failing = [false; PARTS.len()];
    let mut interval = tokio::time::interval(STORE_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let are_failing = [store.state() == State::Failing, is_redis_failing()];
        for ((part, was_failing), is_failing) in
            PARTS.iter().zip(&mut were_failing).zip(are_failing)
        {
            if is_failing != std::mem::replace(was_failing, is_failing) {
                events.send(&Event::Store { part, is_failing });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_limits_are_reported_a_bounded_number_of_times() {
        let mut news = News::default();
        let mut judge = |model: &str, limit_tokens: u64, now_ms: u64| {
            news.judge(&Event::LimitLearned { upstream: "default", model, limit_tokens }, now_ms)
        };
        let now_ms = 1_800_000_000_000;
        let most = u64::from(MAX_LEARNED_PER_MINUTE);
        for number in 0..most {
            // Different models, or different limits of one.
            let model = if number % 2 == 0 { format!("m{number}") } else { "m".to_owned() };
            assert_eq!(judge(&model, number, now_ms + number), Delivery::New);
        }
        assert_eq!(judge("m0", 0, now_ms), Delivery::Known);
        assert_eq!(judge("other", 1, now_ms + MINUTE_MS - 1), Delivery::TooMany);
        // It is reported once there is room.
        assert_eq!(judge("other", 1, now_ms + MINUTE_MS), Delivery::New);
        assert_eq!(judge("other", 1, now_ms + MINUTE_MS), Delivery::Known);
        assert_eq!(judge("other", 2, now_ms - 1), Delivery::New, "the clock went back");
    }

    #[test]
    fn other_events_are_not_limited() {
        let mut news = News::default();
        for number in 0..1000 {
            let event = Event::Breaker { upstream: "default", is_open: number % 2 == 0 };
            assert_eq!(news.judge(&event, 1), Delivery::New);
        }
    }
}
