//! Signed thinking over compactions: the upstream signs each block over everything before it, as
//! Anthropic documents, and refuses a block that comes back behind anything else.

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::through::{output, post, unmarked, whole};
use super::validity;
use crate::server::harness::{self, Upstream, Wire};

const LIMIT_TOKENS: u64 = 4000;
const TURNS: usize = 50;

/// Signs the thinking that answers a request with these messages.
fn signature(body: &Value, messages: &[Value]) -> String {
    let signed = json!([body["system"], body["tools"], unmarked(&messages.into())]);
    format!("{:016x}", xxh3_64(signed.to_string().as_bytes()))
}

fn is_thinking(block: &Value) -> bool {
    block["type"] == "thinking"
}

/// Returns the position of the first message whose thinking was signed over something else.
fn first_foreign(body: &Value) -> Option<usize> {
    let messages = body["messages"].as_array().expect("a list");
    messages.iter().enumerate().position(|(place, message)| {
        let blocks = message["content"].as_array().into_iter().flatten();
        let expected = signature(body, &messages[..place]);
        blocks.filter(|block| is_thinking(block)).any(|block| block["signature"] != *expected)
    })
}

/// Answers a request as a model that thinks, and calls a tool.
fn answer(body: &Value, turn: usize) -> Value {
    let messages = body["messages"].as_array().expect("a list");
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "usage": {"input_tokens": 9, "output_tokens": 1},
        "content": [
            {"type": "thinking", "thinking": format!("Part {turn} is next. It may leak."), "signature": signature(body, messages)},
            {"type": "text", "text": format!("I read part {turn}.")},
            {"type": "tool_use", "id": format!("toolu_{turn}"), "name": "read", "input": {"path": format!("src/part_{turn}.rs")}},
        ],
    })
}

/// What came of an agent's run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    /// Requests that the upstream refused for their thinking.
    refused: usize,
    /// Answers that reached the agent with the edit `thinking`.
    edited: usize,
    /// Thinking blocks that the upstream accepted.
    accepted: usize,
    compactions: usize,
}

/// Runs an agent that sends all thinking back, and a word of its user every ten turns.
async fn run(model: &str) -> Run {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut history = vec![json!({"role": "user", "content": "Check every part."})];
    let (mut run, mut before) = (Run::default(), Vec::new());
    for turn in 0..TURNS {
        let body = json!({"model": model, "max_tokens": 512, "system": "Be careful.",
                          "thinking": {"type": "enabled", "budget_tokens": 256}, "messages": history});
        let headers = format!("x-weir-max-input-tokens: {LIMIT_TOKENS}\r\n");
        wire.send(post("/v1/messages", &headers, &body)).await;
        let said = loop {
            let seen = upstream.next().await;
            let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
            validity::messages(&sent).unwrap_or_else(|fault| panic!("turn {turn}: {fault}"));
            if let Some(place) = first_foreign(&sent) {
                run.refused += 1;
                let message = format!(
                    "messages.{place}.content.0: thinking block is bound to a different conversation"
                );
                let error = json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
                let error = error.to_string();
                let length = error.len();
                seen.answer(&format!(
                    "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{error}"
                ));
                continue;
            }
            let blocks = sent["messages"].as_array().expect("a list").iter();
            let blocks = blocks.filter_map(|message| message["content"].as_array()).flatten();
            run.accepted += blocks.filter(|block| is_thinking(block)).count();
            let now = sent["messages"].as_array().expect("a list").clone();
            run.compactions += usize::from(!now.starts_with(&before));
            before = now;
            let said = answer(&sent, turn);
            seen.answer(&whole(&said));
            break said;
        };
        let reply = wire.message().await.expect("an answer");
        assert_eq!(reply.status(), 200, "turn {turn} of {model}: {reply:?}");
        let edits = reply.header("x-weir-edits").unwrap_or_default();
        run.edited += usize::from(edits.split(',').any(|edit| edit == "thinking"));
        history.push(json!({"role": "assistant", "content": said["content"]}));
        let result = json!({"type": "tool_result", "tool_use_id": format!("toolu_{turn}"), "content": output(turn)});
        let mut blocks = vec![result];
        if turn % 10 == 9 {
            blocks.push(json!({"type": "text", "text": format!("Mind part {turn} as well.")}));
        }
        history.push(json!({"role": "user", "content": blocks}));
    }
    run
}

#[tokio::test]
async fn thinking_stays_valid_over_compactions() {
    let run = run("claude-opus-5-5").await;
    assert_eq!(run.refused, 0, "{run:?}");
    assert!(run.compactions >= 3 && run.accepted > TURNS && run.edited > 0, "{run:?}");
}

#[tokio::test]
async fn a_model_that_binds_its_thinking_is_found_out_by_one_refusal() {
    let run = run("claude-next").await;
    assert_eq!(run.refused, 1, "{run:?}");
    assert!(run.compactions >= 3 && run.accepted > TURNS, "{run:?}");
}
