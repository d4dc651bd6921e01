//! Counters and histograms of all requests of the process. Labels are fixed words, names of the
//! configuration, or a bounded number of model names that an upstream accepted. Contains no part of a
//! conversation and no caller's name.

mod gauges;
pub mod page;
mod process;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::config::words::worded;
use crate::proxy::error::ErrorKind;
use crate::upstream::retry::Tried;
pub use page::CONTENT_TYPE;
use weir_engine::wire::usage::Usage;
use weir_store::ledger::{Flags, Settlement};
use weir_store::now_ms;

/// Maximum number of models with their own series; later ones are counted together.
const MAX_MODELS: usize = 64;
/// Maximum length of a model name used as a label.
const MAX_MODEL_BYTES: usize = 100;
/// Label of all models without their own series.
const OTHER: &str = "other";

/// Buckets for whole requests and their first bytes, in seconds.
const ANSWER_SECONDS: [f64; 14] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];
/// Buckets for weir's own work and waits, in seconds.
const OWN_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Labels of a series, by their names.
type Labels<V, const N: usize = 1> = [(&'static str, V); N];
/// Counters by a fixed word.
type ByWord = Family<Labels<&'static str>, Counter>;
/// Durations by a label.
type Seconds<V> = Family<Labels<V>, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    route: &'static str,
    model: Arc<str>,
    outcome: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTokens {
    model: Arc<str>,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAttempt {
    upstream: Arc<str>,
    result: &'static str,
}

worded! {
    /// Queue inside weir in which a request may wait.
    Queue {
        /// For a core to plan a large conversation on.
        Planner = "planner",
        /// For budgets, including amounts held by other requests.
        Budget = "budget",
    }
    /// Reason why a request was sent again.
    Resend {
        /// The upstream refused it as too long.
        Overflow = "overflow",
        /// The upstream failed in a way that may be transient.
        Failure = "failure",
        /// The model asked for earlier messages.
        Recall = "recall",
    }
}

/// Request at its end.
pub struct Finished<'a> {
    pub route: &'static str,
    /// Empty if it is not known.
    pub model: &'a str,
    pub outcome: &'static str,
    pub status: Option<u16>,
    /// Kind of weir's own error, if it ended in one.
    pub error: Option<ErrorKind>,
    /// `x-weir-action`; empty if weir has not read the conversation.
    pub action: &'a str,
    /// Tokens of the conversation as received, as sent, and as sent without observe mode, by weir's count.
    pub conversation_tokens: Option<[u64; 3]>,
    pub duration: Duration,
    /// Time from the head of an answer in events to its end.
    pub stream: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub plan: Option<Duration>,
    /// Usage that no settlement has counted.
    pub unsettled: Option<Usage>,
}

/// Sums over all conversations since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests of conversations that were sent.
    pub requests: u64,
    /// All other requests.
    pub others: u64,
    /// Requests that weir answered with an error, and the kind of the last.
    pub failed: u64,
    pub last_error: Option<ErrorKind>,
    /// Compactions that observe mode left out.
    pub observed: u64,
    pub compactions: u64,
    /// Tokens by weir's count.
    pub received_tokens: u64,
    pub sent_tokens: u64,
    /// Tokens as they would be sent without observe mode.
    pub planned_tokens: u64,
    /// Requests that were settled without a price.
    pub unpriced: u64,
    /// Requests with results that their agent asked for again.
    pub rereads: u64,
    pub cost_nano_usd: u64,
    pub saved_nano_usd: i64,
    /// What compactions that observe mode left out would have saved.
    pub planned_saved_nano_usd: i64,
}

/// All metrics since the process started.
#[derive(Debug)]
pub struct Metrics {
    totals: Mutex<Totals>,
    models: RwLock<HashSet<Arc<str>>>,
    other: Arc<str>,
    requests: Family<OfRequest, Counter>,
    in_flight: Gauge,
    errors: ByWord,
    actions: ByWord,
    compactions: Family<Labels<String>, Counter>,
    resends: ByWord,
    tokens: Family<OfTokens, Counter>,
    conversation_tokens: ByWord,
    cost_usd: Family<Labels<Arc<str>>, Counter<f64, AtomicU64>>,
    saved_usd: Gauge<f64, AtomicU64>,
    durations: Seconds<&'static str>,
    first_bytes: Seconds<&'static str>,
    streams: Seconds<&'static str>,
    plans: Seconds<&'static str>,
    queues: Seconds<&'static str>,
    refusals: ByWord,
    holds: ByWord,
    prompt_cache: ByWord,
    attempts: Family<OfAttempt, Counter>,
    attempt_times: Seconds<Arc<str>>,
    reloads: ByWord,
    last_reload_ms: AtomicU64,
    is_last_reload_refused: AtomicBool,
    /// Callers' connections.
    pub connections: Connections,
    /// Bytes of request bodies held at once, by listener.
    bodies: Mutex<Vec<Arc<AtomicUsize>>>,
}

/// Figures of callers' connections.
#[derive(Debug, Default)]
pub struct Connections {
    pub open: Gauge,
    pub accepted: Counter,
    /// Connections that got 503 since there were too many.
    pub turned_away: Counter,
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
}

fn answer_histogram() -> Histogram {
    Histogram::new(ANSWER_SECONDS)
}

fn own_histogram() -> Histogram {
    Histogram::new(OWN_SECONDS)
}

/// Reasons of refusals.
const REFUSALS: [&str; 15] = [
    "request_rate",
    "token_rate",
    "budget_exhausted",
    "budget_held",
    "model_not_priced",
    "credential",
    "model_not_allowed",
    "route_not_allowed",
    "bypass_not_allowed",
    "host",
    "origin",
    "overloaded",
    "store",
    "context_length",
    "too_large",
];

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            totals: Mutex::default(),
            models: RwLock::default(),
            other: Arc::from(OTHER),
            requests: Family::default(),
            in_flight: Gauge::default(),
            errors: Family::default(),
            actions: Family::default(),
            compactions: Family::default(),
            resends: Family::default(),
            tokens: Family::default(),
            conversation_tokens: Family::default(),
            cost_usd: Family::default(),
            saved_usd: Gauge::default(),
            durations: Family::new_with_constructor(answer_histogram),
            first_bytes: Family::new_with_constructor(answer_histogram),
            streams: Family::new_with_constructor(answer_histogram),
            plans: Family::new_with_constructor(own_histogram),
            queues: Family::new_with_constructor(own_histogram),
            refusals: Family::default(),
            holds: Family::default(),
            prompt_cache: Family::default(),
            attempts: Family::default(),
            attempt_times: Family::new_with_constructor(answer_histogram),
            reloads: Family::default(),
            last_reload_ms: AtomicU64::new(now_ms()),
            is_last_reload_refused: AtomicBool::new(false),
            connections: Connections::default(),
            bodies: Mutex::default(),
        };
        // Series with fixed words begin at zero, so that their first increase is seen.
        let fixed: [(&ByWord, &'static str, &[&'static str]); 5] = [
            (&metrics.refusals, "reason", &REFUSALS),
            (&metrics.resends, "reason", &["overflow", "failure", "recall"]),
            (&metrics.holds, "result", &["granted", "exhausted", "no_room", "failed"]),
            (&metrics.prompt_cache, "result", &["hit", "miss", "unreported"]),
            (&metrics.reloads, "result", &["applied", "refused"]),
        ];
        for (family, name, words) in fixed {
            for word in words {
                family.get_or_create(&[(name, *word)]).inc_by(0);
            }
        }
        metrics
    }
}

impl Metrics {
    /// Counts a request that has started.
    pub fn begun(&self) {
        self.in_flight.inc();
    }

    /// Counts a request that has ended.
    pub fn finished(&self, request: &Finished<'_>) {
        self.in_flight.dec();
        let is_accepted = request.status.is_some_and(|status| (200..300).contains(&status));
        let model = self.model(request.model, is_accepted);
        if let Some(usage) = request.unsettled {
            self.add_tokens(&model, &usage);
        }
        let (route, outcome) = (request.route, request.outcome);
        let status = class(request.status);
        self.requests.get_or_create(&OfRequest { route, model, outcome, status }).inc();
        let mut totals = self.totals.lock();
        if let Some(kind) = request.error {
            self.failed(kind);
            totals.failed += 1;
            totals.last_error = Some(kind);
        }
        match request.conversation_tokens {
            Some([received, sent, planned]) => {
                totals.requests += 1;
                totals.received_tokens += received;
                totals.sent_tokens += sent;
                totals.planned_tokens += planned;
            }
            None => totals.others += 1,
        }
        drop(totals);
        for action in request.action.split('+').filter_map(known_action) {
            self.actions.get_or_create(&[("action", action)]).inc();
        }
        if let Some([received, sent, _]) = request.conversation_tokens {
            self.conversation_tokens.get_or_create(&[("kind", "received")]).inc_by(received);
            self.conversation_tokens.get_or_create(&[("kind", "sent")]).inc_by(sent);
        }
        let observe = |histogram: &Histogram, took: Duration| histogram.observe(took.as_secs_f64());
        observe(&self.durations.get_or_create(&[("route", route)]), request.duration);
        if let Some(first_byte) = request.first_byte {
            observe(&self.first_bytes.get_or_create(&[("route", route)]), first_byte);
        }
        if let Some(stream) = request.stream {
            observe(&self.streams.get_or_create(&[("route", route)]), stream);
        }
        if let Some(plan) = request.plan {
            observe(&self.plans.get_or_create(&[("route", route)]), plan);
        }
    }

    fn failed(&self, kind: ErrorKind) {
        self.errors.get_or_create(&[("kind", kind.word())]).inc();
        if let Some(reason) = refusal(kind) {
            self.refusals.get_or_create(&[("reason", reason)]).inc();
        }
    }

    /// Counts an attempt at an upstream, which took until its answer began or failed.
    pub fn tried(&self, upstream: &Arc<str>, tried: Tried, took: Duration) {
        let result = match tried {
            Tried::Status(429) => "rate_limited",
            tried if tried.is_trouble() => "failed",
            _ => "answered",
        };
        let upstream = Arc::clone(upstream);
        let of_upstream = [("upstream", Arc::clone(&upstream))];
        self.attempts.get_or_create(&OfAttempt { upstream, result }).inc();
        self.attempt_times.get_or_create(&of_upstream).observe(took.as_secs_f64());
    }

    /// Counts an attempt to hold the cost of a request to which budgets apply.
    pub fn held(&self, refused: Option<ErrorKind>) {
        let result = match refused {
            None => "granted",
            Some(ErrorKind::BudgetExhausted) => "exhausted",
            Some(ErrorKind::BudgetHeld) => "no_room",
            Some(_) => "failed",
        };
        self.holds.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a reload of the configuration.
    pub fn reloaded(&self, is_applied: bool) {
        let result = if is_applied { "applied" } else { "refused" };
        self.reloads.get_or_create(&[("result", result)]).inc();
        self.is_last_reload_refused.store(!is_applied, Ordering::Relaxed);
        if is_applied {
            self.last_reload_ms.store(now_ms(), Ordering::Relaxed);
        }
    }

    /// Shows the bytes of request bodies that a listener holds.
    pub fn watch_bodies(&self, held_bytes: Arc<AtomicUsize>) {
        self.bodies.lock().push(held_bytes);
    }

    /// Returns the bytes of request bodies that are held.
    fn bodies_bytes(&self) -> usize {
        let bodies = self.bodies.lock();
        bodies.iter().map(|held| held.load(Ordering::Relaxed)).sum()
    }

    /// Counts a request that was refused before it was routed.
    pub fn refused(&self, route: &'static str, kind: ErrorKind) {
        let (model, outcome) = (Arc::clone(&self.other), kind.word());
        let status = class(Some(kind.status().as_u16()));
        self.requests.get_or_create(&OfRequest { route, model, outcome, status }).inc();
        self.failed(kind);
    }

    /// Counts a compaction that was sent, by its steps in the words of `x-weir-action`.
    pub fn compacted(&self, steps: &str) {
        self.totals.lock().compactions += 1;
        self.compactions.get_or_create(&[("steps", steps.to_owned())]).inc();
    }

    /// Counts a compaction that observe mode left out.
    pub fn observed(&self) {
        self.totals.lock().observed += 1;
    }

    /// Counts a resent request.
    pub fn resent(&self, reason: Resend) {
        self.resends.get_or_create(&[("reason", reason.word())]).inc();
    }

    /// Records how long a request waited.
    pub fn waited(&self, queue: Queue, took: Duration) {
        let waits = self.queues.get_or_create(&[("queue", queue.word())]);
        waits.observe(took.as_secs_f64());
    }

    /// Counts the settlement of a request of `model`.
    pub fn settled(&self, model: &str, settlement: &Settlement) {
        let status = settlement.status;
        let is_accepted = status.is_some_and(|status| (200..300).contains(&status));
        let model = self.model(model, is_accepted);
        let usage = Usage {
            prompt_tokens: settlement.prompt_tokens,
            completion_tokens: settlement.completion_tokens,
            cached_tokens: settlement.cached_tokens,
            cache_write_tokens: settlement.cache_write_tokens,
            reasoning_tokens: settlement.reasoning_tokens,
            ..Usage::default()
        };
        self.add_tokens(&model, &usage);
        let mut totals = self.totals.lock();
        totals.rereads += u64::from(settlement.flags.any(Flags::REREAD));
        totals.unpriced += u64::from(is_accepted && settlement.cost_nano_usd.is_none());
        totals.cost_nano_usd += settlement.cost_nano_usd.unwrap_or(0);
        totals.saved_nano_usd += settlement.saved_nano_usd.unwrap_or(0);
        totals.planned_saved_nano_usd += settlement.planned_saved_nano_usd.unwrap_or(0);
        drop(totals);
        let usd = |nano_usd: f64| nano_usd / 1e9;
        if let Some(cost) = settlement.cost_nano_usd.filter(|cost| *cost > 0) {
            self.cost_usd.get_or_create(&[("model", model)]).inc_by(usd(cost as f64));
        }
        if let Some(saved) = settlement.saved_nano_usd.filter(|saved| *saved != 0) {
            self.saved_usd.inc_by(usd(saved as f64));
        }
    }

    fn add_tokens(&self, model: &Arc<str>, usage: &Usage) {
        if usage.prompt_tokens.is_some_and(|tokens| tokens > 0) {
            let result = match usage.cached_tokens {
                Some(0) => "miss",
                Some(_) => "hit",
                None => "unreported",
            };
            self.prompt_cache.get_or_create(&[("result", result)]).inc();
        }
        let kinds = [
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
        ];
        for (kind, tokens) in kinds {
            if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
                let labels = OfTokens { model: Arc::clone(model), kind };
                self.tokens.get_or_create(&labels).inc_by(tokens);
            }
        }
    }

    /// Returns the sums over all conversations so far.
    pub fn totals(&self) -> Totals {
        *self.totals.lock()
    }

    /// Returns the label of a model. Callers invent names: only one that an upstream accepted gets
    /// its own series, as long as there is room.
    fn model(&self, name: &str, is_accepted: bool) -> Arc<str> {
        let models = self.models.read();
        if let Some(known) = models.get(name) {
            return Arc::clone(known);
        }
        if !is_accepted || !is_plain(name) || models.len() >= MAX_MODELS {
            return Arc::clone(&self.other);
        }
        drop(models);
        let mut models = self.models.write();
        if models.len() >= MAX_MODELS {
            return Arc::clone(&self.other);
        }
        let name: Arc<str> = Arc::from(name);
        models.insert(Arc::clone(&name));
        name
    }
}

/// Whether a name can be a label.
fn is_plain(name: &str) -> bool {
    let is_graphic = name.bytes().all(|byte| byte.is_ascii_graphic());
    !name.is_empty() && is_graphic && name.len() <= MAX_MODEL_BYTES
}

/// Returns the reason for which a request was refused; `None` if weir did not refuse it by a rule of
/// its operator or for lack of room.
fn refusal(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::RequestRate => "request_rate",
        ErrorKind::TokenRate => "token_rate",
        ErrorKind::RepeatedCall => "repeated_call",
        ErrorKind::BudgetExhausted => "budget_exhausted",
        ErrorKind::BudgetHeld => "budget_held",
        ErrorKind::ModelNotPriced => "model_not_priced",
        ErrorKind::InvalidApiKey | ErrorKind::CredentialRequired => "credential",
        ErrorKind::ModelNotAllowed => "model_not_allowed",
        ErrorKind::PassthroughRequired => "route_not_allowed",
        ErrorKind::BypassNotAllowed => "bypass_not_allowed",
        ErrorKind::HostNotAllowed => "host",
        ErrorKind::OriginNotAllowed => "origin",
        ErrorKind::Overloaded => "overloaded",
        ErrorKind::StoreUnavailable => "store",
        ErrorKind::ContextLengthExceeded => "context_length",
        ErrorKind::BodyTooLarge | ErrorKind::TooManyMessages => "too_large",
        _ => return None,
    })
}

/// Returns a word of `x-weir-action` as a fixed label.
fn known_action(word: &str) -> Option<&'static str> {
    const ACTIONS: [&str; 12] = [
        "pass", "mask", "evict", "restart", "fit", "notice", "bypass", "observe", "fault",
        "unread", "stream", "tight",
    ];
    ACTIONS.into_iter().find(|known| *known == word)
}

/// Returns the class of a status.
fn class(status: Option<u16>) -> &'static str {
    match status {
        Some(200..300) => "2xx",
        Some(300..400) => "3xx",
        Some(400..500) => "4xx",
        Some(500..600) => "5xx",
        Some(_) => "other",
        None => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accepted_models_have_series_and_no_more_than_there_is_room_for() {
        let metrics = Metrics::default();
        assert_eq!(&*metrics.model("made-up", false), OTHER);
        assert_eq!(&*metrics.model("gpt-4o", true), "gpt-4o");
        assert_eq!(&*metrics.model("gpt-4o", false), "gpt-4o", "known by now");
        for hostile in ["", "two words", "esc\u{1b}[31m", "line\nbreak", "é"] {
            assert_eq!(&*metrics.model(hostile, true), OTHER, "{hostile:?}");
        }
        assert_eq!(&*metrics.model(&"m".repeat(MAX_MODEL_BYTES + 1), true), OTHER);
        for number in 1..MAX_MODELS {
            let name = format!("model-{number}");
            assert_eq!(&*metrics.model(&name, true), name);
        }
        assert_eq!(&*metrics.model("one-more", true), OTHER);
        assert_eq!(&*metrics.model("gpt-4o", true), "gpt-4o");
    }
}
