//! `context_management` of Messages for upstreams without it, through real sockets: old results and old
//! thinking are cleared by the caller's rules, and the answer reports it.

use serde_json::{Value, json};
use weir::config::CompactsBy;

use super::through::{output, post, whole};
use super::validity;
use crate::server::harness::{self, Message, Seen, Upstream, Weir, Wire, ask};

const PATH: &str = "/v1/messages";
const BETAS: &str = "anthropic-beta: fine-1, context-management-2025-06-27\r\n";

/// Messages of one turn of an agent that reads a file and looks something up.
fn turn(nth: usize) -> Vec<Value> {
    let use_of = |name: &str| json!({"type": "tool_use", "id": format!("{name}_{nth}"), "name": name, "input": {"path": format!("src/part_{nth}.rs")}});
    let result = |name: &str| json!({"type": "tool_result", "tool_use_id": format!("{name}_{nth}"), "content": format!("{name}: {}", output(nth))});
    vec![
        json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": format!("Part {nth} may leak, as the one before it did."), "signature": "c2ln"},
            {"type": "text", "text": format!("I read part {nth}.")}, use_of("read"), use_of("look")
        ]}),
        json!({"role": "user", "content": [result("read"), result("look")]}),
    ]
}

/// A word of the user, and its answer.
fn word(nth: usize) -> Vec<Value> {
    vec![
        json!({"role": "assistant", "content": format!("Part {nth} is done.")}),
        json!({"role": "user", "content": "Go on."}),
    ]
}

fn body(messages: &[Value], edits: Value) -> Value {
    json!({"model": "claude-sonnet-4-5", "max_tokens": 512, "messages": messages,
           "context_management": {"edits": edits}})
}

fn first() -> Vec<Value> {
    vec![json!({"role": "user", "content": "Check every part."})]
}

fn answer() -> String {
    whole(&json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [],
                  "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 1}}))
}

/// Sends a request, and returns what the upstream saw, with weir's answer.
async fn exchanged(
    weir: &Weir,
    upstream: &mut Upstream,
    body: &Value,
    bytes: &str,
) -> (Value, Seen, Message) {
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post(PATH, BETAS, body)).await;
    let seen = upstream.next().await;
    let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
    validity::messages(&sent).unwrap_or_else(|fault| panic!("{fault}: {sent:.3000}"));
    seen.begin(bytes);
    let answer = wire.message().await.expect("an answer");
    (sent, seen, answer)
}

/// Contents of the results of a tool, in order.
fn results<'a>(sent: &'a Value, tool: &str) -> Vec<&'a str> {
    let blocks = sent["messages"].as_array().expect("a list").iter();
    let blocks = blocks.filter_map(|message| message["content"].as_array()).flatten();
    let own = blocks.filter(|block| block["type"] == "tool_result");
    let own =
        own.filter(|block| block["tool_use_id"].as_str().is_some_and(|id| id.starts_with(tool)));
    own.map(|block| block["content"].as_str().expect("a text")).collect()
}

fn applied(answer: &Message) -> Value {
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    answer["context_management"]["applied_edits"].clone()
}

#[tokio::test]
async fn old_results_are_cleared_and_reported() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let edits = json!([{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 9000},
        "keep": {"type": "tool_uses", "value": 4}, "clear_at_least": {"type": "input_tokens", "value": 2000},
        "exclude_tools": ["look"], "clear_tool_inputs": true}]);
    let mut messages = first();
    let (mut before, mut moved, mut cleared): (Vec<Value>, usize, usize) = (Vec::new(), 0, 0);
    for nth in 0..20 {
        messages.extend(turn(nth));
        let (sent, seen, own) =
            exchanged(&weir, &mut upstream, &body(&messages, edits.clone()), &answer()).await;
        assert_eq!(sent["context_management"], Value::Null);
        assert!(seen.head.contains("anthropic-beta: fine-1\r\n"), "{}", seen.head);
        assert_eq!(own.header("x-weir-edits"), Some("context_management"));
        let list = sent["messages"].as_array().expect("a list").clone();
        moved += usize::from(!list.starts_with(&before));
        before = list;
        let reads = results(&sent, "read");
        let gone = reads.iter().take_while(|text| text.starts_with("[weir: ")).count();
        assert!(reads[gone..].iter().all(|text| text.starts_with("read: ")), "the oldest go first");
        assert!(gone >= cleared, "what is cleared stays so");
        cleared = gone;
        assert!(results(&sent, "look").iter().all(|text| text.starts_with("look: ")));
        let report = applied(&own);
        match gone {
            0 => assert_eq!(report, json!([])),
            _ => {
                assert_eq!(report[0]["type"], "clear_tool_uses_20250919");
                assert_eq!(report[0]["cleared_tool_uses"], gone);
                assert!(report[0]["cleared_input_tokens"].as_u64().is_some_and(|own| own >= 2000));
                assert_eq!(own.header("x-weir-action"), Some("mask"));
            }
        }
    }
    assert!(cleared > 4 && (1..8).contains(&moved), "{cleared} cleared, {moved} times");
}

#[tokio::test]
async fn calls_lose_their_arguments_with_their_results() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let messages: Vec<Value> = first().into_iter().chain((0..6).flat_map(turn)).collect();
    for (inputs, other_is_emptied) in [(json!(true), true), (json!(["look"]), false)] {
        let edits = json!([{"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 6},
            "keep": {"type": "tool_uses", "value": 2}, "clear_tool_inputs": inputs}]);
        let (sent, ..) = exchanged(&weir, &mut upstream, &body(&messages, edits), &answer()).await;
        let calls = sent["messages"].as_array().expect("a list").iter();
        let calls = calls.flat_map(|message| message["content"].as_array().into_iter().flatten());
        let calls: Vec<&Value> = calls.filter(|block| block["type"] == "tool_use").collect();
        let emptied = |is_look: bool| -> Vec<bool> {
            let own = calls.iter().filter(|call| (call["name"] == "look") == is_look);
            own.map(|call| call["input"] == json!({})).collect()
        };
        // Eight uses pass the trigger, and two are kept; six more do not pass it again.
        assert_eq!(emptied(true), [true, true, true, false, false, false]);
        assert_eq!(emptied(false)[..3], [other_is_emptied; 3]);
        assert!(results(&sent, "look")[3].starts_with("look: "));
    }
}

#[tokio::test]
async fn old_thinking_is_cleared_and_reported() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut messages = first();
    for nth in 0..4 {
        messages.extend(turn(2 * nth));
        messages.extend(turn(2 * nth + 1));
        messages.extend(word(nth));
    }
    messages.extend(turn(9));
    let thinking = |sent: &Value| {
        let list = sent["messages"].as_array().expect("a list").clone();
        let own = list.into_iter().filter(|message| message["role"] == "assistant");
        own.map(|message| message["content"][0]["type"] == "thinking").collect::<Vec<bool>>()
    };
    for (keep, cleared) in
        [(json!({"type": "thinking_turns", "value": 2}), Some(3)), (json!("all"), None)]
    {
        let edits = json!([{"type": "clear_thinking_20251015", "keep": keep}]);
        let (sent, _, own) =
            exchanged(&weir, &mut upstream, &body(&messages, edits), &answer()).await;
        let all = [true, true, false].repeat(4).into_iter().chain([true]);
        let wanted: Vec<bool> = match cleared {
            Some(_) => [false, false, false]
                .repeat(3)
                .into_iter()
                .chain([true, true, false, true])
                .collect(),
            None => all.collect(),
        };
        assert_eq!(thinking(&sent), wanted, "{keep}");
        let report = applied(&own);
        assert_eq!(report[0]["cleared_thinking_turns"].as_u64(), cleared, "{report}");
    }
}

#[tokio::test]
async fn a_streamed_answer_reports_in_its_last_delta() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let events = [
        json!({"type": "message_start", "message": {"type": "message", "usage": {"input_tokens": 9, "output_tokens": 1}}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ]
    .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("a type")))
    .concat();
    let stream = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{events}",
        events.len()
    );
    let mut body = body(&first(), json!([{"type": "clear_tool_uses_20250919"}]));
    body["stream"] = true.into();
    let (_, _, own) = exchanged(&weir, &mut upstream, &body, &stream).await;
    let text = String::from_utf8(own.body).expect("text");
    let wanted = events.replace(
        r#""usage":{"output_tokens":9}}"#,
        r#""usage":{"output_tokens":9},"context_management":{"applied_edits":[]}}"#,
    );
    assert_eq!(text, wanted);
}

#[tokio::test]
async fn the_member_reaches_an_upstream_that_has_it() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |config| {
        config.upstream.compaction = CompactsBy::Upstream;
    })
    .await;
    let body = body(&first(), json!([{"type": "compact_20260112"}]));
    let (_, seen, own) = exchanged(&weir, &mut upstream, &body, &answer()).await;
    assert_eq!(seen.body, body.to_string().into_bytes());
    assert!(seen.head.contains("context-management-2025-06-27"));
    assert!(answer().ends_with(&String::from_utf8_lossy(&own.body).into_owned()));
}

#[tokio::test]
async fn edits_that_weir_does_not_know_are_refused() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let body = body(&first(), json!([{"type": "compact_20260112"}]));
    let answer = ask(weir.address, post(PATH, BETAS, &body)).await;
    assert_eq!(answer.status(), 400);
    let said: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(said["error"]["type"], "invalid_request_error");
    let said = said["error"]["message"].as_str().expect("a message");
    assert!(said.contains("clear_tool_uses_20250919"), "{said}");
    assert!(said.contains("compact_20260112, for which a model writes a summary"), "{said}");
}
