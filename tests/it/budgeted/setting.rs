//! Fixture: a weir with budgets in front of the scripted upstream.

use serde_json::{Value, json};
use weir::config::Config;
use weir_store::budget::{Budget, BudgetId, NanoUsd};
use weir_store::ledger::{RequestQuery, RequestRow};
use weir_store::{Store, now_ms};

use crate::keys::setting::{Key, Setting, post, start};
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::Message;

/// Model with a price that weir ships: $0.15 per million prompt tokens, $0.60 per million output
/// tokens.
pub const MODEL: &str = "gpt-4o-mini";

/// A weir in keys mode, its upstream and a key.
pub struct Budgeted {
    pub weir: Setting,
    pub upstream: Server,
    pub key: Key,
}

impl Budgeted {
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let upstream = Server::start(Options::default()).await.expect("a free port");
        let address = upstream.base_url();
        let address = address.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
        let weir = start(&address, change).await;
        let key = weir.key("research", r#"{"user":"ada"}"#).await;
        Self { weir, upstream, key }
    }

    /// Sets a budget by its id, in dollars or tokens.
    pub async fn set(&self, id: &str, limit: &str) {
        set(&self.weir.store, id, limit).await;
    }

    /// Requests a chat with an answer of this many words, with these additional members.
    pub async fn chat(&self, words: u64, members: Value) -> Message {
        self.weir.ask(chat(&self.key.header(), words, members)).await
    }

    /// Returns the status of the key's budgets.
    pub async fn statuses(&self) -> Vec<Value> {
        let request = crate::server::harness::bare("GET", "/weir/v1/budgets", &self.key.header());
        let answer = self.weir.ask(request).await;
        let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
        told["data"].as_array().expect("a list").clone()
    }
}

/// Sets a budget by its id, in dollars or tokens.
pub async fn set(store: &Store, id: &str, limit: &str) {
    let id = BudgetId::parse(id).expect("a budget");
    let limit = match NanoUsd::parse(limit) {
        Some(NanoUsd(amount)) if id.measure == weir_store::budget::Measure::NanoUsd => amount,
        _ => limit.parse().expect("tokens"),
    };
    let budget = Budget { id, limit, warn_permille: Some(800) };
    store.set_budget(budget, now_ms()).await.expect("it can be set");
}

/// Builds a chat request with an answer of this many words.
pub fn chat(headers: &str, words: u64, members: Value) -> String {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "What flows in?"}],
    });
    for (name, value) in members.as_object().expect("members") {
        body[name] = value.clone();
    }
    let headers = format!("{headers}x-upstream-script: {{\"words\":{words}}}\r\n");
    post("/v1/chat/completions", &headers, body.to_string())
}

/// Sums the cost and tokens of all requests from their rows.
pub async fn sum(store: &Store) -> (u64, u64, Vec<RequestRow>) {
    let rows = store.requests(RequestQuery::default()).await.expect("it can be read");
    let cost = rows.iter().filter_map(|row| row.settlement.cost_nano_usd).sum();
    let tokens = rows.iter().map(|row| {
        let settled = &row.settlement;
        settled.prompt_tokens.unwrap_or(0) + settled.completion_tokens.unwrap_or(0)
    });
    (cost, tokens.sum(), rows)
}

/// Parses an amount of dollars in JSON.
pub fn nano_usd(value: &Value) -> u64 {
    let text = value.as_str().expect("a text");
    NanoUsd::parse(text).expect("dollars").0
}
