//! Summaries by a model, prefetched before the compaction that needs them: the requests, who pays,
//! and that no request fails or waits for one.

mod faults;
mod forms;
mod status;
mod waiting;

use serde_json::{Value, json};
use weir::config::{Config, SummaryMode};
use weir_store::Store;

use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, Message, Weir, ask, chat};

/// Answer of these tests' summariser.
const SAID: &str =
    "## Task\nCount the lanterns of harbour nineteen.\n## Open points\nLantern {id} is dark.";
/// First line of the summary, unique to it.
const SAID_LINE: &str = "Count the lanterns of harbour nineteen.";
/// Limit of the conversations here.
const LIMIT_TOKENS: u64 = 2000;
/// The caller's credential and limit.
const HEADERS: &str = "authorization: Bearer sk-caller\r\nx-weir-max-input-tokens: 2000\r\n";

/// A model, a summariser with its own key, and a weir between them and the caller.
struct Place {
    model: Server,
    summariser: Server,
    weir: Weir,
}

/// Starts a summariser that answers [`SAID`], after these faults.
async fn summariser(faults: &[&str]) -> Server {
    let faults = faults.iter().map(|&fault| fault.to_owned()).collect();
    let options = Options { say: Some(SAID.to_owned()), faults, ..Options::default() };
    Server::start(options).await.expect("a free port")
}

async fn model() -> Server {
    Server::start(Options::default()).await.expect("a free port")
}

/// Starts a weir that has `summariser` summarise the conversations of `model`.
async fn weir(
    store: &Store,
    model: &Server,
    summariser: &Server,
    change: impl FnOnce(&mut Config),
) -> Weir {
    let url = summariser.base_url();
    harness::start_with(store.clone(), &model.addr.to_string(), |config| {
        config.summaries.mode = SummaryMode::Background;
        config.summaries.model = "gpt-4o-mini".to_owned();
        config.summaries.url = url;
        config.summaries.summary_tokens = 100;
        config.summaries.reasoning_tokens = 0;
        change(config);
    })
    .await
}

async fn place(faults: &[&str], change: impl FnOnce(&mut Config)) -> Place {
    let store = Store::in_memory().expect("there is memory");
    let (model, summariser) = (model().await, summariser(faults).await);
    let weir = weir(&store, &model, &summariser, change).await;
    Place { model, summariser, weir }
}

/// Builds an agent's conversation with this many calls and results of about 130 tokens each, unique
/// to its name.
fn conversation(name: &str, calls: usize) -> Vec<Value> {
    let mut messages = vec![
        json!({"role": "system", "content": "You tend lights."}),
        json!({"role": "user", "content": format!("Tend the lights of {name}.")}),
    ];
    for call in 0..calls {
        let id = format!("call_{call}");
        let arguments = json!({"path": format!("{name}/log_{call}.txt")}).to_string();
        let function = json!({"name": "read", "arguments": arguments});
        let calls = json!([{"id": id, "type": "function", "function": function}]);
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        let lines: Vec<String> = (0..10)
            .map(|line| {
                format!("{name} lamp {} burns at {} candelas", call * 10 + line, 400 + line)
            })
            .collect();
        let content = lines.join("\n");
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    messages
}

fn body(messages: &[Value]) -> Vec<u8> {
    json!({"model": "gpt-4o", "messages": messages}).to_string().into_bytes()
}

/// Returns the same credential with another limit.
fn headers(limit_tokens: u64) -> String {
    HEADERS.replace("2000", &limit_tokens.to_string())
}

/// Sends a conversation's first `calls` calls, and waits for background summaries.
async fn send(weir: &Weir, name: &str, calls: usize) -> Message {
    let answer = ask(weir.address, chat(HEADERS, body(&conversation(name, calls)))).await;
    settle(weir).await;
    answer
}

async fn settle(weir: &Weir) {
    if let Some(summaries) = &weir.summaries {
        summaries.finish().await;
    }
}

/// Sends a conversation request by request, as an agent does; returns the answers.
async fn run(weir: &Weir, name: &str, calls: std::ops::RangeInclusive<usize>) -> Vec<Message> {
    let mut answers = Vec::new();
    for calls in calls {
        let answer = send(weir, name, calls).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        answers.push(answer);
    }
    answers
}

/// Returns the messages of the last request that a server saw.
fn last_messages(server: &Server) -> Vec<Value> {
    let seen = server.requests();
    messages_of(&seen.last().expect("a request").body)
}

fn messages_of(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).expect("JSON");
    body["messages"].as_array().expect("messages").clone()
}

/// Returns one of the figures of `/metrics`.
async fn figure(weir: &Weir, name: &str) -> u64 {
    let page = ask(weir.address, harness::bare("GET", "/metrics", "")).await;
    let page = String::from_utf8(page.body).expect("text");
    let line =
        page.lines().find_map(|line| line.strip_prefix(&format!("weir_summaries_{name}_total ")));
    line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().expect("a number")
}
