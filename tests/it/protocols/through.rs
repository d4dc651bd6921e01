//! Agents that speak Responses and Messages, through weir over real sockets: limits, stable prefixes,
//! errors, usage and requests that continue a conversation kept by the provider.

use serde_json::{Value, json};
use weir::config::Limit;
use weir_store::Store;
use weir_store::ledger::RequestQuery;

use super::validity;
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{self, Message, Upstream, Wire, ask, bare};

/// Limit of the agents' conversations.
const LIMIT_TOKENS: u64 = 4000;
/// Turns of an agent, each with a call and its result.
const TURNS: usize = 60;

pub fn post(path: &str, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub fn whole(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Text of a tool's result, different for each turn.
pub fn output(turn: usize) -> String {
    let lines =
        (0..40).map(|line| format!("src/part_{turn}.rs:{line}: level {} held", turn * line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Items or messages that an agent adds in one turn.
type Turn = fn(usize) -> Vec<Value>;

fn items(turn: usize) -> Vec<Value> {
    let arguments = json!({"path": format!("src/part_{turn}.rs")}).to_string();
    let call = format!("call_{turn}");
    vec![
        json!({"type": "reasoning", "id": format!("rs_{turn}"), "summary": [], "encrypted_content": "c2VhbGVk".repeat(8)}),
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": format!("I read part {turn}.")}]}),
        json!({"type": "function_call", "call_id": call, "name": "read", "arguments": arguments}),
        json!({"type": "function_call_output", "call_id": call, "output": output(turn)}),
    ]
}

fn messages(turn: usize) -> Vec<Value> {
    let id = format!("toolu_{turn}");
    vec![
        json!({"role": "assistant", "content": [
            {"type": "text", "text": format!("I read part {turn}.")},
            {"type": "tool_use", "id": id, "name": "read", "input": {"path": format!("src/part_{turn}.rs")}}
        ]}),
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": output(turn)}]}
        ]}),
    ]
}

/// Marks the last block of the last message, as a client does that moves its mark with each request.
fn marked(mut list: Vec<Value>) -> Vec<Value> {
    if let Some(last) = list.last_mut()
        && let Some(block) = last["content"].as_array_mut().and_then(|blocks| blocks.last_mut())
    {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
    list
}

/// Removes marks of the cache, at any depth.
pub fn unmarked(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(unmarked).collect(),
        Value::Object(members) => members
            .iter()
            .filter(|(name, _)| *name != "cache_control")
            .map(|(name, value)| (name.clone(), unmarked(value)))
            .collect(),
        other => other.clone(),
    }
}

/// Runs an agent past its limit. Each request must be valid, within the limit, and begin with the one
/// before except after a compaction; returns the number of those that did not.
async fn run(
    path: &str,
    list: &str,
    first: Value,
    (turn, answer): (Turn, Value),
    check: fn(&Value) -> Result<(), String>,
) -> usize {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut history = first[list].as_array().expect("a list").clone();
    let (mut before, mut compacted): (Vec<Value>, usize) = (Vec::new(), 0);
    for nth in 0..TURNS {
        let mut body = first.clone();
        body[list] =
            if list == "messages" { marked(history.clone()) } else { history.clone() }.into();
        check(&body).expect("the agent is valid");
        let headers = format!("x-weir-max-input-tokens: {LIMIT_TOKENS}\r\n");
        wire.send(post(path, &headers, &body)).await;
        let seen = upstream.next().await;
        let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
        check(&sent).unwrap_or_else(|fault| panic!("turn {nth}: {fault}: {sent:.2000}"));
        for (name, value) in body.as_object().expect("an object") {
            assert!(name == list || sent[name] == *value, "{name} changed");
        }
        let now = unmarked(&sent[list]).as_array().expect("a list").clone();
        if !now.starts_with(&before) {
            compacted += 1;
        }
        before = now;
        seen.answer(whole(&answer));
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let number = |name: &str| answer.header(name).and_then(|own| own.parse::<u64>().ok());
        assert!(number("x-weir-sent-tokens") <= Some(LIMIT_TOKENS), "turn {nth}");
        history.extend(turn(nth));
    }
    assert!(before.len() < history.len(), "the last request was shortened");
    compacted
}

#[tokio::test]
async fn an_agent_of_responses_stays_within_its_limit() {
    let first = json!({
        "model": "gpt-4o", "instructions": "You are a careful engineer.", "store": false,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Check every part."}]}],
    });
    let answer = json!({"id": "resp_1", "object": "response", "status": "completed",
                        "usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}});
    let compacted =
        run("/v1/responses", "input", first, (items, answer), validity::responses).await;
    assert!((3..=TURNS / 3).contains(&compacted), "{compacted} of {TURNS}");
}

#[tokio::test]
async fn an_agent_of_messages_stays_within_its_limit() {
    let first = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 512, "system": [{"type": "text", "text": "You are a careful engineer."}],
        "messages": [{"role": "user", "content": "Check every part."}],
    });
    let answer = json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [],
                        "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 1}});
    let compacted =
        run("/v1/messages?beta=true", "messages", first, (messages, answer), validity::messages)
            .await;
    assert!((3..=TURNS / 3).contains(&compacted), "{compacted} of {TURNS}");
}

#[tokio::test]
async fn a_conversation_kept_by_the_provider_is_sent_as_received() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    for state in [
        json!({"previous_response_id": "resp_1", "input": "Go on."}),
        json!({"conversation": {"id": "conv_1"}, "input": "Go on."}),
        json!({"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ] {
        let mut body = state.clone();
        body["model"] = "gpt-4o".into();
        let mut wire = Wire::connect(weir.address).await;
        wire.send(post("/v1/responses", "", &body)).await;
        let seen = upstream.next().await;
        assert_eq!(seen.body, body.to_string().into_bytes());
        seen.answer(whole(&json!({"object": "response"})));
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.header("x-weir-action"), Some("provider_state"));
    }
}

#[tokio::test]
async fn a_conversation_kept_by_the_provider_is_refused_above_a_configured_limit() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |config| {
        config.limits.push(Limit { model: "*".to_owned(), max_input_tokens: 50 });
    })
    .await;
    let long = "word ".repeat(500);
    let body = json!({"model": "gpt-4o", "input": [
        {"type": "item_reference", "id": "rs_1"},
        {"role": "user", "content": long}
    ]});
    let answer = ask(weir.address, post("/v1/responses", "", &body)).await;
    let said = answer.assert_error(400, "context_length_exceeded");
    assert!(said.contains("item_reference") && said.contains("store: false"), "{said}");
    assert!(!said.contains("bypass"), "{said}");
}

/// Checks an error in Anthropic's shape, and returns its message.
fn assert_anthropic(answer: &Message, status: u16, kind: &str) -> String {
    assert_eq!(answer.status(), status, "{answer:?}");
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
    body["error"]["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn errors_have_the_shape_of_their_protocol() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let long = "word ".repeat(500);
    let limit = "x-weir-max-input-tokens: 50\r\n";
    let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": long}]});
    let answer = ask(weir.address, post("/v1/messages", limit, &body)).await;
    let said = assert_anthropic(&answer, 400, "invalid_request_error");
    let words: Vec<&str> = said.split(' ').take(9).collect();
    assert_eq!(
        (words[..5].join(" "), words[7]),
        ("prompt is too long:".to_owned() + " " + words[4], "50")
    );
    assert_eq!(answer.header("x-weir-error"), Some("context_length_exceeded"));

    let broken = json!({"messages": 3});
    let answer = ask(weir.address, post("/v1/messages", "", &broken)).await;
    assert!(assert_anthropic(&answer, 400, "invalid_request_error").contains("'messages'"));
    let headers = "anthropic-version: 2023-06-01\r\n";
    let answer = ask(weir.address, bare("GET", "/weir/nothing", headers)).await;
    assert_anthropic(&answer, 404, "not_found_error");

    let body = json!({"model": "gpt-4o", "input": long});
    let answer = ask(weir.address, post("/v1/responses", limit, &body)).await;
    answer.assert_error(400, "context_length_exceeded");
    let answer = ask(weir.address, post("/v1/responses", "", &json!({"input": 3}))).await;
    answer.assert_error(400, "invalid_request");
}

#[tokio::test]
async fn usage_of_both_protocols_is_recorded() {
    let mut upstream = Upstream::start().await;
    let store = Store::in_memory().expect("there is memory");
    let weir = harness::start_with(store.clone(), &upstream.address, |config| {
        config.ledger.enabled = true;
    })
    .await;
    let stream = |events: &[Value]| {
        let event = |event: &Value| {
            format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("a type"))
        };
        let body: String = events.iter().map(event).collect();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let responses = stream(&[
        json!({"type": "response.created", "response": {"id": "r"}}),
        json!({"type": "response.output_text.delta", "delta": "ok"}),
        json!({"type": "response.completed", "response": {"model": "gpt-4o", "usage": {
            "input_tokens": 70, "input_tokens_details": {"cached_tokens": 20}, "output_tokens": 7, "total_tokens": 77}}}),
    ]);
    let messages = stream(&[
        json!({"type": "message_start", "message": {"model": "claude-sonnet-4-5", "usage": {
            "input_tokens": 10, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 5, "output_tokens": 1}}}),
        json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ok"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ]);
    for (path, body, answer) in [
        ("/v1/responses", json!({"model": "gpt-4o", "stream": true, "input": "hi"}), responses),
        (
            "/v1/messages",
            json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "stream": true,
                   "messages": [{"role": "user", "content": "hi"}]}),
            messages,
        ),
    ] {
        let mut wire = Wire::connect(weir.address).await;
        wire.send(post(path, "", &body)).await;
        let seen = upstream.next().await;
        seen.answer(&answer);
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
    }
    let rows = async || {
        let query = RequestQuery::default();
        let rows = store.requests(query).await.expect("the store works");
        let mut rows: Vec<Value> = rows.iter().map(|row| row.json()).collect();
        rows.retain(|row| row["outcome"] != Value::Null);
        rows
    };
    let rows = eventually(DEADLINE, rows, |rows| rows.len() == 2).await;
    let mut shown: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!([
                row["route"],
                row["action"],
                row["prompt_tokens"],
                row["completion_tokens"],
                row["cached_tokens"],
                row["cache_write_tokens"]
            ])
        })
        .collect();
    shown.sort_by_key(Value::to_string);
    assert_eq!(
        shown,
        [json!(["messages", "pass", 55, 9, 40, 5]), json!(["responses", "pass", 70, 7, 20, null])]
    );
    assert!(rows.iter().all(|row| row["cost_usd"].is_string()), "{rows:?}");
}

#[tokio::test]
async fn a_websocket_is_answered_so_that_its_client_falls_back() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let websocket = "connection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    let answer = ask(weir.address, bare("GET", "/v1/responses", websocket)).await;
    answer.assert_error(426, "upgrade_not_supported");
    assert_eq!(answer.header("connection"), Some("close"));
}
