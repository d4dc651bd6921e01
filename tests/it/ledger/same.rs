//! Every kind of answer of the scripted upstream: the caller gets the same as without the journal,
//! and the journal agrees with the upstream's own log.

use serde_json::{Value, json};
use weir_store::Store;
use weir_store::ledger::{Flags, RequestRow};

use super::{Answer, post, rows, tokens, whole, with_journal, without_journal};
use crate::scripted_upstream::{Options, Seen, Server};
use crate::server::harness::{ask, bare};

const CHAT: &str = "/v1/chat/completions";

/// Expected contents of a request's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    /// The usage in the upstream's log.
    Logged,
    /// The usage in the answer, on routes that the upstream's log does not count.
    Told,
    /// Nothing used, nothing to pay.
    Free,
    /// Nothing to pay for an answer that is none.
    Failed,
    /// An estimate by rule; the name is the outcome's.
    Estimated(&'static str),
    /// No usage in the answer, and no estimate by weir.
    Unknown,
    /// No row.
    Missing,
}

struct Case {
    path: &'static str,
    headers: String,
    body: String,
    row: Row,
}

fn case(path: &'static str, headers: impl Into<String>, body: &Value, row: Row) -> Case {
    Case { path, headers: headers.into(), body: body.to_string(), row }
}

/// Builds a conversation with these additional members.
fn hello(more: &Value) -> Value {
    let mut body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "grüße"}]});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more.clone());
    }
    body
}

fn fault(name: &str) -> String {
    format!("x-upstream-fault: {name}\r\n")
}

/// Conversations that are answered completely.
fn answered() -> Vec<Case> {
    let mut cases = Vec::new();
    let question = |options: Value| json!({"stream": true, "stream_options": options});
    for more in [
        json!({}),
        json!({"n": 3}),
        json!({"stream": false}),
        json!({"max_tokens": 1}),
        json!({"stream": true}),
        json!({"stream": true, "n": 3}),
        json!({"stream": true, "max_tokens": 1}),
        json!({"stream": true, "stream_options": null}),
        question(json!({})),
        question(json!({"include_usage": true})),
        question(json!({"include_usage": false})),
        question(json!({"include_obfuscation": false})),
    ] {
        cases.push(case(CHAT, "", &hello(&more), Row::Logged));
    }
    let calls = json!({"tool_calls": [{"name": "f", "arguments": {"usage": "\"usage\":null"}}]});
    for headers in [
        fault("half_utf8"),
        format!("x-upstream-script: {calls}\r\n"),
        "x-upstream-script: {\"words\":400}\r\n".to_owned(),
        "x-upstream-script: {\"text\":\"{\\\"usage\\\":{}} \\\\u0075\"}\r\n".to_owned(),
        "x-upstream-script: {\"text\":\"\"}\r\n".to_owned(),
        "accept-encoding: gzip\r\nx-upstream-compress: 1\r\n".to_owned(),
    ] {
        for more in [json!({}), json!({"stream": true})] {
            cases.push(case(CHAT, headers.clone(), &hello(&more), Row::Logged));
        }
    }
    cases.push(case(CHAT, fault("garbage"), &hello(&json!({"stream": true})), Row::Logged));
    cases
}

/// Conversations that end otherwise.
fn broken() -> Vec<Case> {
    let mut cases = Vec::new();
    for more in [json!({}), json!({"stream": true})] {
        for (name, row) in [
            ("status:400", Row::Free),
            ("status:401", Row::Free),
            ("status:429:retry-after=3", Row::Free),
            ("status:500", Row::Free),
            ("overflow:openai", Row::Free),
            ("overflow:llamacpp", Row::Free),
            ("overflow:empty", Row::Estimated("complete")),
            ("empty_200", Row::Estimated("complete")),
            ("truncate_after:1", Row::Estimated("upstream_cut")),
            ("close", Row::Estimated("upstream_closed")),
            ("reset", Row::Estimated("upstream_closed")),
        ] {
            cases.push(case(CHAT, fault(name), &hello(&more), row));
        }
    }
    cases.push(case(CHAT, fault("garbage"), &hello(&json!({})), Row::Failed));
    cases.push(case(CHAT, "", &hello(&json!({"model": "missing-model"})), Row::Free));
    cases
}

/// Other routes.
fn others() -> Vec<Case> {
    let mut cases = Vec::new();
    let numbers: Vec<u32> = (0..77).collect();
    let packed = "accept-encoding: gzip\r\nx-upstream-compress: 1\r\n";
    for headers in ["", packed] {
        for body in [
            json!({"model": "text-embedding-3-small", "input": "the river runs"}),
            json!({"model": "text-embedding-3-small", "input": numbers}),
            json!({"model": "text-embedding-3-small", "input": ["a", "b"], "encoding_format": "base64"}),
        ] {
            cases.push(case("/v1/embeddings", headers, &body, Row::Told));
        }
        for stream in [false, true] {
            let body = json!({"model": "gpt-4o", "input": "the river runs", "stream": stream});
            cases.push(case("/v1/responses", headers, &body, Row::Told));
        }
    }
    let body = json!({"model": "gpt-4o", "input": "a", "stream": true});
    cases.push(case(
        "/v1/responses",
        fault("truncate_after:2"),
        &body,
        Row::Estimated("upstream_cut"),
    ));
    cases.push(case("/v1/embeddings", fault("status:500"), &body, Row::Free));
    cases.push(case("/v1/embeddings", "", &json!({"model": "missing"}), Row::Free));
    cases.push(case("/v1/audio/speech", "", &json!({"model": "tts", "input": "a"}), Row::Unknown));
    cases.push(case("/v1/echo", "", &json!({"any": "thing"}), Row::Missing));
    cases
}

#[tokio::test]
async fn answers_are_as_without_a_journal_which_has_what_the_upstream_logged() {
    check(answered()).await;
}

#[tokio::test]
async fn so_are_those_that_go_wrong() {
    check(broken()).await;
}

#[tokio::test]
async fn so_are_those_of_other_routes() {
    check(others()).await;
}

async fn check(cases: Vec<Case>) {
    for Case { path, headers, body, row } in cases {
        let said = format!("{headers}{body}");
        let request = post(path, &headers, &body);
        let upstreams = [scripted().await, scripted().await];
        let store = Store::in_memory().expect("there is memory");
        let metered = with_journal(&store, &upstreams[0].addr.to_string()).await;
        let plain = without_journal(&upstreams[1].addr.to_string()).await;
        let with = whole(metered.address, &request).await;
        let without = whole(plain.address, &request).await;
        assert_eq!(comparable(with.clone()), comparable(without), "{said}");
        let seen = upstreams[0].requests();
        assert_eq!(seen.len(), 1, "{said}");
        let rows = rows(&store, usize::from(row != Row::Missing)).await;
        if let Some(found) = rows.first() {
            check_row(found, row, &seen[0], &with, &said);
        }
    }
}

async fn scripted() -> Server {
    let options = Options { allow_unknown: true, ..Options::default() };
    Server::start(options).await.expect("a free port")
}

/// Replaces ids, which derive from the request's bytes: these differ if weir requests usage.
fn comparable(mut answer: Answer) -> Answer {
    let name = answer.head.iter().find_map(|line| line.strip_prefix("x-request-id: req_"));
    if let Some(name) = name.map(str::to_owned) {
        for line in &mut answer.head {
            *line = line.replace(&name, "NAME");
        }
        answer.body = answer.body.replace(&name, "NAME");
    }
    // The upstream breaks off in half of a frame, and frames are longer with usage.
    let is_stream = answer.head.iter().any(|line| line == "content-type: text/event-stream");
    if is_stream && !answer.is_whole {
        answer.body.truncate(answer.body.rfind("\n\n").map_or(0, |at| at + 2));
    }
    // The echo contains weir's request id, which is unique.
    if let Some(at) = answer.body.find("weir-") {
        answer.body.replace_range(at.., "");
        answer.head.retain(|line| !line.starts_with("content-length"));
    }
    answer
}

fn check_row(row: &RequestRow, expected: Row, seen: &Seen, with: &Answer, said: &str) {
    let settled = &row.settlement;
    let has = |flag| settled.flags.any(flag);
    let logged = [seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens];
    assert!(!has(Flags::NOT_SENT | Flags::CALLER_LEFT), "{said}: {settled:?}");
    match expected {
        Row::Logged => {
            assert_eq!(tokens(row), logged, "{said}");
            assert_eq!(settled.outcome, "complete", "{said}");
            assert!(!has(Flags::ESTIMATED | Flags::USAGE_MISSING), "{said}: {settled:?}");
            assert!(settled.cost_nano_usd > Some(0), "{said}: {settled:?}");
            assert_eq!(row.model, "gpt-4o");
        }
        Row::Told => {
            let told = |names: &[&str]| names.iter().find_map(|name| last_of(&with.body, name));
            let prompt = told(&["prompt_tokens", "input_tokens"]);
            assert!(prompt.is_some(), "{said}");
            let expected = [prompt, told(&["cached_tokens"]), told(&["output_tokens"])];
            assert_eq!(tokens(row), expected, "{said}");
            assert!(!has(Flags::ESTIMATED | Flags::USAGE_MISSING), "{said}: {settled:?}");
            assert!(said.contains(&row.model) && !row.model.is_empty(), "{said}: {row:?}");
        }
        Row::Free => {
            assert_eq!(tokens(row), [None; 3], "{said}");
            assert_eq!(settled.cost_nano_usd, Some(0), "{said}");
            assert!(settled.flags.is_empty(), "{said}: {settled:?}");
        }
        Row::Estimated(outcome) => {
            assert!(has(Flags::ESTIMATED), "{said}: {settled:?}");
            // The prompt as far as the answer reports it, else by weir's own count, if there is one.
            let is_reported = settled.prompt_tokens == last_of(&with.body, "input_tokens");
            assert!(
                is_reported
                    || row.sent_tokens.is_none()
                    || settled.prompt_tokens == row.sent_tokens,
                "{said}: {row:?}"
            );
            assert_eq!(settled.outcome, outcome, "{said}");
        }
        Row::Failed => {
            assert_eq!((tokens(row), settled.cost_nano_usd), ([None; 3], Some(0)), "{said}");
            assert_eq!((&*settled.outcome, settled.status), ("upstream_failed", None), "{said}");
            return;
        }
        Row::Unknown => {
            // By the size of its body.
            assert!(settled.prompt_tokens > Some(0), "{said}");
            assert!(has(Flags::USAGE_MISSING) && has(Flags::ESTIMATED), "{said}: {settled:?}");
            assert_eq!(settled.cost_nano_usd, None, "{said}");
        }
        Row::Missing => unreachable!("there is one"),
    }
    let answered = (seen.status > 0).then_some(seen.status);
    assert_eq!(settled.status, answered, "{said}");
}

/// Returns the last number with this name in a JSON text.
fn last_of(body: &str, name: &str) -> Option<u64> {
    let name = format!("\"{name}\":");
    let rest = &body[body.rfind(&name)? + name.len()..];
    let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[tokio::test]
async fn cached_tokens_are_those_that_the_upstream_found() {
    let upstream = scripted().await;
    let store = Store::in_memory().expect("there is memory");
    let weir = with_journal(&store, &upstream.addr.to_string()).await;
    let mut messages = vec![json!({"role": "user", "content": "word ".repeat(2000)})];
    for number in 0..6_usize {
        let body = json!({"model": "gpt-4o", "messages": messages, "stream": number % 2 == 0});
        let answer = whole(weir.address, &post(CHAT, "", &body.to_string())).await;
        assert!(answer.is_whole, "{answer:?}");
        messages.push(json!({"role": "assistant", "content": format!("so {number}")}));
        messages.push(json!({"role": "user", "content": format!("and {number}")}));
    }
    let mut rows = rows(&store, 6).await;
    // Rows of one millisecond have no order; each prompt is longer than the one before.
    rows.sort_by_key(|row| row.settlement.prompt_tokens);
    let seen = upstream.requests();
    assert_eq!(seen.len(), 6);
    for (row, seen) in rows.iter().zip(&seen) {
        let logged = [seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens];
        assert_eq!(tokens(row), logged);
    }
    assert!(rows[5].settlement.cached_tokens > Some(1024), "{:?}", rows[5]);
}

#[tokio::test]
async fn a_question_that_is_refused_leaves_one_row() {
    let options = || Options { refuse_stream_options: true, ..Options::default() };
    let upstreams = [Server::start(options()).await, Server::start(options()).await];
    let upstreams = upstreams.map(|upstream| upstream.expect("a free port"));
    let store = Store::in_memory().expect("there is memory");
    let metered = with_journal(&store, &upstreams[0].addr.to_string()).await;
    let plain = without_journal(&upstreams[1].addr.to_string()).await;
    let request = post(CHAT, "", &hello(&json!({"stream": true})).to_string());
    let with = whole(metered.address, &request).await;
    assert_eq!(with, whole(plain.address, &request).await);
    let logged = upstreams[0].requests();
    assert_eq!(logged.iter().map(|seen| seen.status).collect::<Vec<_>>(), [400, 200]);
    let row = &rows(&store, 1).await[0];
    // The answer contains no usage: both are by weir's own count.
    assert!(
        row.settlement.flags.any(Flags::ESTIMATED)
            && row.settlement.flags.any(Flags::USAGE_MISSING)
    );
    assert_eq!(row.settlement.prompt_tokens, row.sent_tokens);
}

#[tokio::test]
async fn what_uses_nothing_has_no_row() {
    let upstream = scripted().await;
    let store = Store::in_memory().expect("there is memory");
    let weir = with_journal(&store, &upstream.addr.to_string()).await;
    for path in ["/v1/models", "/v1/models/gpt-4o", "/v1/large?bytes=300000", "/healthz"] {
        assert_eq!(ask(weir.address, bare("GET", path, "")).await.status(), 200, "{path}");
    }
    let refused = post(CHAT, "x-weir-max-input-tokens: 1\r\n", &hello(&json!({})).to_string());
    let refused = whole(weir.address, &refused).await;
    assert!(refused.body.contains("context_length_exceeded"), "{refused:?}");
    assert_eq!(rows(&store, 0).await, []);
    assert_eq!(store.orphans(9).await, Ok(Vec::new()));
}
