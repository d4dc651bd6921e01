//! Figures that `weir top` shows: answers of the admin API, and the requests seen since it started.
//! Asks nothing and draws nothing. Members that an answer lacks are empty.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::table::signed_dollars;
use crate::proxy::live::{Ended, ShownRequest};
use weir_engine::compact::report::shown::percent;
use weir_store::budget::NanoUsd;

/// Maximum number of ended requests that are remembered.
const MAX_ENDED: usize = 2000;
/// Maximum period over which rates are computed.
const RATE_WINDOW_MS: u64 = 60_000;

/// Answer of `/admin/v1/live`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Live {
    pub now_ms: u64,
    pub started_ms: u64,
    /// Value of `after` for the next answer.
    pub next: u64,
    pub totals: StartTotals,
    pub running: Vec<Running>,
    pub requests: Vec<EndedRequest>,
}

/// Sums since weir started.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct StartTotals {
    pub requests: u64,
    /// Compactions that were only reported, in observe mode.
    pub observed: u64,
    pub compactions: u64,
    pub received_tokens: u64,
    pub sent_tokens: u64,
    pub cost_usd: Option<String>,
    pub saved_usd: Option<String>,
    /// What compactions that were only reported would have saved.
    pub planned_saved_usd: Option<String>,
    /// Requests without a known price.
    pub unpriced: u64,
}

/// Request that is running.
pub(super) type Running = ShownRequest<String>;
/// Request that has ended.
pub(super) type EndedRequest = Ended<String>;

impl EndedRequest {
    /// Whether weir refused it, by a limit, a budget or a rule.
    pub(super) fn is_refused(&self) -> bool {
        self.error.is_some() && self.status.is_some_and(|status| (400..500).contains(&status))
    }

    pub(super) fn is_failed(&self) -> bool {
        self.error.is_some() || self.status.is_none_or(|status| status >= 400)
    }

    /// Whether weir shortened it.
    fn is_compacted(&self) -> bool {
        matches!((self.received_tokens, self.sent_tokens), (Some(got), Some(sent)) if sent < got)
    }
}

/// Row of `/admin/v1/budgets`. Amounts are decimal text or numbers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct BudgetRow {
    pub budget: String,
    pub scope: String,
    pub measure: String,
    pub limit: Value,
    pub warn_at: Option<f64>,
    pub spent: Value,
    pub held: Value,
    pub left: Value,
    pub resets_at: Option<String>,
}

impl BudgetRow {
    /// Returns the share of the limit that is spent or held, in percent; `None` for a budget of each
    /// member by itself.
    pub(super) fn used_percent(&self) -> Option<u64> {
        let (limit, left) = (units(&self.limit)?, units(&self.left)?);
        Some(percent(limit.saturating_sub(left), limit))
    }

    /// Formats an amount of this budget.
    pub(super) fn shown(&self, amount: &Value) -> String {
        match (units(amount), self.measure.as_str()) {
            (None, _) => String::new(),
            (Some(amount), "tokens") => super::cells::tokens(amount),
            (Some(amount), _) => signed_dollars(amount.into()),
        }
    }
}

/// Converts an amount to nano-dollars or tokens.
fn units(amount: &Value) -> Option<u64> {
    match amount {
        Value::String(text) => NanoUsd::parse(text).map(|amount| amount.0),
        other => other.as_u64(),
    }
}

/// Upstream in the answer of `/admin/v1/status`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct UpstreamRow {
    pub name: String,
    pub origin: String,
    /// `ready`, `troubled` or `skipped`.
    pub state: String,
    pub failures_in_a_row: u64,
}

/// One answer of everything.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub live: Live,
    /// Members below are `None` if they were not asked for this time.
    pub budgets: Option<Vec<BudgetRow>>,
    pub status: Option<Value>,
}

/// Figures over the last minute.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct MinuteRates {
    pub requests_per_s: f64,
    pub sent_tokens_per_s: f64,
    /// Cached tokens in percent of the prompt tokens that upstreams reported.
    pub cache_percent: Option<u64>,
    /// Without those that weir refused.
    pub failed: usize,
    pub refused: usize,
    pub requests: usize,
    pub median_ms: Option<u64>,
}

/// Everything known of a running weir.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// The last answer, without its ended requests.
    pub live: Live,
    /// Ended requests, oldest first.
    pub ended: VecDeque<EndedRequest>,
    pub budgets: Vec<BudgetRow>,
    pub status: Value,
}

impl Known {
    /// Takes in an answer. A weir that started later than the known one begins with nothing.
    pub(super) fn take(&mut self, snapshot: Snapshot) {
        let mut live = snapshot.live;
        if live.started_ms != self.live.started_ms {
            self.ended.clear();
        }
        let newest = self.ended.back().map_or(0, |ended| ended.seq);
        let requests = std::mem::take(&mut live.requests);
        self.ended.extend(requests.into_iter().filter(|ended| ended.seq > newest));
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
        self.live = live;
        if let Some(budgets) = snapshot.budgets {
            self.budgets = budgets;
        }
        if let Some(status) = snapshot.status {
            self.status = status;
        }
    }

    /// Computes figures over the last minute, or since weir started if that is less.
    pub(super) fn rates(&self) -> MinuteRates {
        let mut window_ms =
            RATE_WINDOW_MS.min(self.live.now_ms.saturating_sub(self.live.started_ms));
        // The oldest requests of a busy minute are not listed any more.
        let is_cut = self.ended.front().is_some_and(|first| first.seq > 1);
        if let Some(first) = self.ended.front().filter(|_| is_cut) {
            window_ms = window_ms.min(self.live.now_ms.saturating_sub(first.ended_ms));
        }
        let since_ms = self.live.now_ms.saturating_sub(window_ms);
        let recent: Vec<&EndedRequest> =
            self.ended.iter().filter(|ended| ended.ended_ms >= since_ms).collect();
        let sum = |of: fn(&EndedRequest) -> Option<u64>| -> u64 {
            recent.iter().filter_map(|ended| of(ended)).fold(0, u64::saturating_add)
        };
        let seconds = (window_ms.max(1000)) as f64 / 1000.0;
        let prompt = sum(|ended| ended.prompt_tokens);
        let mut durations: Vec<u64> = recent.iter().map(|ended| ended.duration_ms).collect();
        durations.sort_unstable();
        MinuteRates {
            requests_per_s: recent.len() as f64 / seconds,
            sent_tokens_per_s: sum(|ended| ended.sent_tokens) as f64 / seconds,
            cache_percent: (prompt > 0).then(|| percent(sum(|ended| ended.cached_tokens), prompt)),
            failed: recent.iter().filter(|own| own.is_failed() && !own.is_refused()).count(),
            refused: recent.iter().filter(|ended| ended.is_refused()).count(),
            requests: recent.len(),
            median_ms: durations.get(durations.len() / 2).copied(),
        }
    }

    /// Groups the requests by conversation, the last active first.
    pub(super) fn conversations(&self) -> Vec<Conversation> {
        let mut found: BTreeMap<&str, Conversation> = BTreeMap::new();
        for ended in &self.ended {
            let Some(id) = ended.conversation.as_deref() else { continue };
            found.entry(id).or_insert_with(|| Conversation::new(id)).add(ended);
        }
        for running in &self.live.running {
            let Some(id) = running.conversation.as_deref() else { continue };
            let conversation = found.entry(id).or_insert_with(|| Conversation::new(id));
            conversation.running += 1;
            conversation.last_ms = self.live.now_ms;
            conversation.model = running.model.clone().or(conversation.model.take());
            if is_main(running.class.as_deref()) {
                conversation.agent = running.agent.clone().or(conversation.agent.take());
            }
        }
        let mut all: Vec<Conversation> = found.into_values().collect();
        all.sort_by(|one, other| other.last_ms.cmp(&one.last_ms).then(one.id.cmp(&other.id)));
        all
    }

    /// Lists the upstreams that the status names.
    pub(super) fn upstreams(&self) -> Vec<UpstreamRow> {
        let rows = self.status["upstreams"].as_array().into_iter().flatten();
        rows.map(|row| UpstreamRow::deserialize(row).unwrap_or_default()).collect()
    }
}

/// Conversation, as far as its requests are remembered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Conversation {
    pub id: String,
    pub model: Option<String>,
    pub agent: Option<String>,
    pub requests: u64,
    pub running: u64,
    /// Requests that were sent shorter than received.
    pub compacted: u64,
    pub last_ms: u64,
    /// Sizes of the last request that was planned.
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
    pub limit_tokens: Option<u64>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub cost_nano_usd: i128,
}

impl Conversation {
    fn new(id: &str) -> Self {
        Self { id: id.to_owned(), ..Self::default() }
    }

    fn add(&mut self, ended: &EndedRequest) {
        self.requests += 1;
        self.compacted += u64::from(ended.is_compacted());
        self.last_ms = self.last_ms.max(ended.ended_ms);
        self.model = ended.model.clone().or(self.model.take());
        // A subagent or a title has a name and a context of its own.
        let is_main = is_main(ended.class.as_deref());
        if is_main {
            self.agent = ended.agent.clone().or(self.agent.take());
        }
        if ended.limit_tokens.is_some() && is_main {
            self.received_tokens = ended.received_tokens;
            self.sent_tokens = ended.sent_tokens;
            self.limit_tokens = ended.limit_tokens;
        }
        self.prompt_tokens = self.prompt_tokens.saturating_add(ended.prompt_tokens.unwrap_or(0));
        self.cached_tokens = self.cached_tokens.saturating_add(ended.cached_tokens.unwrap_or(0));
        self.cost_nano_usd += nano_usd(ended.cost_usd.as_deref()).unwrap_or(0);
    }
}

/// Whether a request of this class is one of the conversation with the user.
fn is_main(class: Option<&str>) -> bool {
    class.is_none_or(|class| class == "main")
}

/// Parses a decimal amount, which may be negative.
pub(super) fn nano_usd(text: Option<&str>) -> Option<i128> {
    let text = text?;
    let (sign, amount) = text.strip_prefix('-').map_or((1, text), |amount| (-1, amount));
    NanoUsd::parse(amount).map(|amount| sign * i128::from(amount.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn live(value: Value) -> Snapshot {
        let live = serde_json::from_value(value).expect("an answer");
        Snapshot { live, ..Snapshot::default() }
    }

    #[test]
    fn requests_are_remembered_once_and_forgotten_with_their_weir() {
        let mut known = Known::default();
        let row = |seq: u64| json!({"seq": seq, "ended_ms": 1000 + seq, "model": null});
        known.take(live(json!({"started_ms": 1, "requests": [row(1), row(2)]})));
        known.take(live(json!({"started_ms": 1, "requests": [row(2), row(3)]})));
        let seqs = |known: &Known| known.ended.iter().map(|own| own.seq).collect::<Vec<_>>();
        assert_eq!(seqs(&known), [1, 2, 3]);
        known.take(live(json!({"started_ms": 5000, "requests": [row(1)]})));
        assert_eq!(seqs(&known), [1], "another weir began");
        let many: Vec<Value> = (2..=2 * MAX_ENDED as u64).map(row).collect();
        known.take(live(json!({"started_ms": 5000, "requests": many})));
        assert_eq!(known.ended.len(), MAX_ENDED);
    }

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let mut known = Known::default();
        let row = |seq: u64, ended_ms: u64| {
            json!({"seq": seq, "ended_ms": ended_ms, "status": 200, "sent_tokens": 600,
                   "prompt_tokens": 100, "cached_tokens": 75, "duration_ms": seq})
        };
        let rows = json!([row(1, 10_000), row(2, 50_000), row(3, 60_000), row(4, 99_000)]);
        known.take(live(json!({"now_ms": 100_000, "started_ms": 1, "requests": rows})));
        let expected = MinuteRates {
            requests_per_s: 0.05,
            sent_tokens_per_s: 30.0,
            cache_percent: Some(75),
            failed: 0,
            refused: 0,
            requests: 3,
            median_ms: Some(3),
        };
        assert_eq!(known.rates(), expected);
        assert_eq!(Known::default().rates().requests_per_s, 0.0);
    }

    #[test]
    fn refused_requests_are_no_failed_ones() {
        let mut known = Known::default();
        let row = |seq: u64, status: Option<u16>, error: Option<&str>| json!({"seq": seq, "ended_ms": 10_000, "status": status, "error": error});
        let rows = json!([
            row(1, Some(200), None),
            row(2, Some(429), Some("insufficient_quota")),
            row(3, Some(400), Some("context_length_exceeded")),
            // Of the upstream, of weir's own side, and without an answer.
            row(4, Some(429), None),
            row(5, Some(502), Some("upstream_connect")),
            row(6, None, None),
        ]);
        known.take(live(json!({"now_ms": 11_000, "started_ms": 1, "requests": rows})));
        let rates = known.rates();
        assert_eq!((rates.failed, rates.refused, rates.requests), (3, 2, 6));
    }

    #[test]
    fn a_conversation_has_the_size_of_its_last_main_request() {
        let mut known = Known::default();
        let rows = json!([
            {"seq": 1, "ended_ms": 1, "conversation": "a", "limit_tokens": 100, "sent_tokens": 90,
             "received_tokens": 120, "cost_usd": "0.50", "agent": "claude-code"},
            {"seq": 2, "ended_ms": 2, "conversation": "a", "class": "subagent",
             "agent": "a2", "limit_tokens": 100, "sent_tokens": 5, "received_tokens": 5, "cost_usd": "0.25"},
            {"seq": 3, "ended_ms": 3},
        ]);
        let running = json!([{"seq": 4, "conversation": "b", "model": "m"},
            {"seq": 5, "conversation": "a", "class": "subagent", "agent": "a2"}]);
        known.take(live(json!({"now_ms": 9, "requests": rows, "running": running})));
        let all = known.conversations();
        assert_eq!(all.iter().map(|own| own.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((all[0].sent_tokens, all[0].requests, all[0].compacted), (Some(90), 2, 1));
        assert_eq!(all[0].cost_nano_usd, 750_000_000);
        assert_eq!(all[0].agent.as_deref(), Some("claude-code"));
    }

    #[test]
    fn money_may_be_negative() {
        for (text, expected) in [
            ("0.00", "$0.0000"),
            ("1.23456", "$1.24"),
            ("-0.5", "-$0.5000"),
            ("1234.567", "$1,234.57"),
        ] {
            assert_eq!(
                nano_usd(Some(text)).map(signed_dollars).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        assert_eq!(nano_usd(Some("much")), None);
    }
}
