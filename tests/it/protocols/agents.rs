//! Requests with which agents compact their own conversations, and their small side requests, through
//! weir over real sockets.

use serde_json::{Value, json};
use weir::config::Config;

use super::through::{post, whole};
use crate::server::harness::{self, Message, Upstream, Weir, Wire};

const LIMIT_TOKENS: u64 = 4000;
const CODEX: &str = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.";
const CLAUDE_CODE: &str = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nSummarise.";
const QWEN_CODE: &str =
    "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.";

/// A policy that compacts long before the limit.
fn early(config: &mut Config) {
    config.context.policy.hard_permille = 400;
    config.context.policy.low_permille = 200;
}

/// Conversation of so many exchanges, of some 90 tokens each, in the form of a protocol.
fn conversation(path: &str, exchanges: usize) -> Vec<Value> {
    let item = |role: &str, text: String| match path {
        "/v1/responses" => {
            let kind = if role == "user" { "input_text" } else { "output_text" };
            json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
        }
        _ => json!({"role": role, "content": text}),
    };
    let exchange = |nth: usize| {
        let said = format!("The level behind gate_{nth} rose again, as before. ").repeat(3);
        [
            item("user", format!("Open gate {nth}. {said}")),
            item("assistant", format!("I opened it. {said}")),
        ]
    };
    (0..exchanges).flat_map(exchange).collect()
}

fn body(path: &str, mut messages: Vec<Value>, last: &str) -> Value {
    messages.push(json!({"role": "user", "content": last}));
    match path {
        "/v1/responses" => json!({"model": "gpt-4o", "store": false, "input": messages}),
        "/v1/messages" => {
            json!({"model": "claude-sonnet-4-5", "max_tokens": 512, "messages": messages})
        }
        _ => json!({"model": "gpt-4o", "messages": messages}),
    }
}

/// Sends a request, and returns the answer with the body that the upstream saw.
async fn sent(
    (weir, upstream): (&Weir, &mut Upstream),
    path: &str,
    headers: &str,
    body: &Value,
) -> (Message, Value) {
    let headers = format!("x-weir-max-input-tokens: {LIMIT_TOKENS}\r\n{headers}");
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post(path, &headers, body)).await;
    let seen = upstream.next().await;
    let sent = serde_json::from_slice(&seen.body).expect("JSON");
    seen.answer(whole(&json!({"id": "r"})));
    (wire.message().await.expect("an answer"), sent)
}

#[tokio::test]
async fn an_agents_own_compaction_request_passes_whole() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, early).await;
    let claude = "x-claude-code-request-class: compaction\r\n";
    let codex = "x-codex-turn-metadata: {\"request_kind\":\"compaction\"}\r\n";
    for (path, headers, last) in [
        ("/v1/chat/completions", "", QWEN_CODE),
        ("/v1/responses", "", CODEX),
        ("/v1/responses", codex, "Write a summary."),
        ("/v1/messages", "", CLAUDE_CODE),
        ("/v1/messages", claude, "Write a summary."),
    ] {
        let list = if path == "/v1/responses" { "input" } else { "messages" };
        let at = |exchanges, last: &str| body(path, conversation(path, exchanges), last);
        let ordinary = at(28, "Go on.");
        let (answer, first) = sent((&weir, &mut upstream), path, "", &ordinary).await;
        assert_ne!(answer.header("x-weir-action"), Some("pass"), "{path}: it is above the mark");
        assert_ne!(first, ordinary);
        let asked = at(28, last);
        let (answer, whole) = sent((&weir, &mut upstream), path, headers, &asked).await;
        assert_eq!(answer.header("x-weir-action"), Some("pass"), "{path}: {last}");
        assert_eq!(whole, asked, "{path}: {last}");
        // The conversation is as it was before.
        let (_, again) = sent((&weir, &mut upstream), path, "", &ordinary).await;
        assert_eq!(again, first, "{path}");
        // A short history after it has nothing of the old one.
        let next = body(path, Vec::new(), "This session continues: gates 0 to 27 are open.");
        let (answer, seen) = sent((&weir, &mut upstream), path, "", &next).await;
        assert_eq!((answer.header("x-weir-action"), seen), (Some("pass"), next), "{path}");
        // Above the window itself it is made to fit.
        let long = at(70, last);
        let (answer, seen) = sent((&weir, &mut upstream), path, headers, &long).await;
        let number = |name: &str| answer.header(name).and_then(|own| own.parse::<u64>().ok());
        assert!(number("x-weir-received-tokens") > Some(LIMIT_TOKENS), "{answer:?}");
        assert!(number("x-weir-sent-tokens") <= Some(LIMIT_TOKENS), "{answer:?}");
        assert_ne!(answer.header("x-weir-action"), Some("pass"), "{path}");
        let asks = seen[list].as_array().and_then(|all| all.last()).expect("messages").to_string();
        assert!(asks.contains(&last[..12]), "{path}: {asks}");
    }
}

#[tokio::test]
async fn side_requests_leave_a_conversation_as_it_is() {
    let path = "/v1/chat/completions";
    let mut upstream = Upstream::start().await;
    let (weir, alone) = (
        harness::start(&upstream.address, |_| {}).await,
        harness::start(&upstream.address, |_| {}).await,
    );
    let mut compacted = 0;
    for exchanges in (10..120).step_by(2) {
        let ask = body(path, conversation(path, exchanges), "Go on.");
        let (answer, mixed) = sent((&weir, &mut upstream), path, "", &ask).await;
        let (_, own) = sent((&alone, &mut upstream), path, "", &ask).await;
        assert_eq!(mixed, own, "{exchanges} exchanges");
        compacted += usize::from(answer.header("x-weir-action") != Some("pass"));
        let auxiliary = "x-claude-code-request-class: auxiliary\r\n";
        for (headers, side) in [
            ("", body(path, conversation(path, exchanges), "Name this conversation.")),
            (auxiliary, body(path, conversation(path, exchanges - 1), "Is it a new topic?")),
            ("", body(path, Vec::new(), "quota")),
        ] {
            sent((&weir, &mut upstream), path, headers, &side).await;
        }
    }
    assert!(compacted > 20, "{compacted}");
}
