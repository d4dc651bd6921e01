//! Requests that the upstream refuses as too long, and the limits that weir learns from refusals.

mod answers;
mod calibrated;
mod foreign;
mod learned;
mod refused;
mod vocabularies;

use serde_json::{Value, json};
use weir::config::{Config, ModelEntry};
use weir_engine::tokens::Encoding;
use weir_store::Store;

use crate::scripted_upstream::{Options, Seen, Server};
use crate::server::harness::{self, Message, Weir, ask, chat};

/// Window of the upstream's model, a small part of the window that weir assumes.
pub const WINDOW: u64 = 3000;

/// Starts an upstream with a small window that words refusals as `vendor` does.
pub async fn upstream(vendor: &str, context_tokens: u64) -> Server {
    let options =
        Options { context_tokens, overflow_style: vendor.to_owned(), ..Options::default() };
    Server::start(options).await.expect("a free port")
}

/// Starts a weir in front of it.
pub async fn before(upstream: &Server, store: &Store, change: impl FnOnce(&mut Config)) -> Weir {
    harness::start_with(store.clone(), &upstream.addr.to_string(), change).await
}

/// Configures a model with its window and its encoding.
pub fn known(model: &str, encoding: Encoding, window_tokens: u64) -> impl Fn(&mut Config) {
    move |config| {
        let entry = ModelEntry {
            window_tokens,
            max_input_tokens: None,
            max_output_tokens: None,
            encoding,
            strict_alternation: false,
        };
        config.models.insert(model, entry);
    }
}

pub fn memory() -> Store {
    Store::in_memory().expect("there is memory")
}

/// Builds a conversation of this many exchanges of about 200 tokens each, with additional members.
pub fn conversation(exchanges: usize, more: &Value) -> Value {
    let mut messages = vec![json!({"role": "system", "content": "You help."})];
    for number in 0..exchanges {
        let question = format!("Question {number}: {}", "what runs over the wall? ".repeat(15));
        let answer = format!("Answer {number}: {}", "the river does, as ever. ".repeat(15));
        messages.push(json!({"role": "user", "content": question}));
        messages.push(json!({"role": "assistant", "content": answer}));
    }
    messages.push(json!({"role": "user", "content": "And now?"}));
    let mut body = json!({"model": "gpt-4o", "messages": messages});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more.clone());
    }
    body
}

/// Sends a body to weir with a credential.
pub async fn send(weir: &Weir, credential: &str, body: &Value) -> Message {
    let headers = format!("authorization: Bearer {credential}\r\n");
    ask(weir.address, chat(&headers, body.to_string())).await
}

/// Returns the upstream's statuses.
pub fn statuses(seen: &[Seen]) -> Vec<u16> {
    seen.iter().map(|seen| seen.status).collect()
}

/// Returns the text of an answer, streamed or not.
pub fn said(answer: &Message) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    if let Ok(whole) = serde_json::from_str::<Value>(&text) {
        return whole["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    }
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    chunks
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect()
}
