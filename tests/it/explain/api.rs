//! `POST /weir/v1/plan` over sockets: the same plan as for a forwarded request, and the same
//! refusals.

use serde_json::{Value, json};
use weir::config::Mode;

use crate::server::harness::{FINE, Message, Upstream, ask, bare, chat, start};

/// Builds a request for an explanation, with these additional header lines.
fn plan(headers: &str, body: &str) -> String {
    let head = format!("POST /weir/v1/plan HTTP/1.1\r\nhost: localhost\r\n{headers}");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

/// Builds the body of a dialogue with this many exchanges, one call and one marked message.
fn dialogue(exchanges: usize) -> String {
    let mut messages = vec![
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Mend the mill.", "weir": {"pin": true}}),
    ];
    for number in 0..exchanges {
        let arguments = json!({"path": format!("src/{number}.rs")}).to_string();
        let call = json!({"name": "read_file", "arguments": arguments});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls":
            [{"id": format!("c{number}"), "type": "function", "function": call}]}));
        let content = format!("line {number} of the mill\n").repeat(30);
        messages.push(
            json!({"role": "tool", "tool_call_id": format!("c{number}"), "content": content}),
        );
    }
    messages.push(json!({"role": "user", "content": "And now?"}));
    json!({"model": "gpt-4o", "messages": messages, "n": 1}).to_string()
}

fn answer(message: &Message) -> Value {
    assert_eq!(message.status(), 200, "{message:?}");
    assert_eq!(message.header("content-type"), Some("application/json"));
    assert_eq!(message.header("cache-control"), Some("no-store"));
    serde_json::from_slice(&message.body).expect("JSON")
}

/// Adds the member that requests the body to be sent.
fn asking(body: &str) -> String {
    format!(r#"{}, "weir": {{"body": true, "text": true}}}}"#, &body[..body.len() - 1])
}

#[tokio::test]
async fn what_is_told_is_what_is_forwarded() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    for (exchanges, limit, action) in
        [(2, 100_000, "pass"), (20, 2000, "evict"), (1, 300, "pass"), (40, 3000, "evict")]
    {
        let body = dialogue(exchanges);
        let headers = format!("x-weir-max-input-tokens: {limit}\r\nauthorization: Bearer k\r\n");
        let told = answer(&ask(weir.address, plan(&headers, &asking(&body))).await);

        let sending = chat(&headers, &body);
        let address = weir.address;
        let forwarded = tokio::spawn(async move { ask(address, sending).await });
        // The upstream sees this request first: the plan request did not reach it.
        let seen = upstream.next().await;
        assert!(seen.head.starts_with("POST /v1/chat/completions"), "{}", seen.head);
        let sent = seen.body.clone();
        seen.answer(FINE);
        let forwarded = forwarded.await.expect("it is answered");

        assert_eq!(told["action"], action, "{exchanges} within {limit}");
        let body: Value = serde_json::from_slice(&sent).expect("JSON");
        assert_eq!(told["body"], body, "{exchanges} within {limit}");
        let header = |name: &str| forwarded.header(name).expect(name).to_owned();
        let number = |value: &Value| value.as_u64().expect("a number").to_string();
        assert_eq!(header("x-weir-action"), action);
        assert_eq!(header("x-weir-sent-tokens"), number(&told["window"]["sent_tokens"]));
        assert_eq!(header("x-weir-limit-tokens"), number(&told["window"]["limit_tokens"]));
        let remaining = number(&told["budget"]["remaining_tokens"]);
        assert_eq!(header("x-weir-remaining-tokens"), remaining);
        assert_eq!(header("x-weir-verbosity"), told["verbosity"].as_str().expect("a word"));
        let text = told["text"].as_str().expect("text");
        assert!(text.starts_with("System: Be brief.\n\nUser: Mend the mill."), "{text}");
        assert!(text.ends_with("User: And now?"), "{text}");
    }
}

#[tokio::test]
async fn the_bytes_told_are_the_bytes_forwarded() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    // Spaces, escapes, numbers and member order that no serialiser would produce.
    let long = "many words ".repeat(200);
    let body = format!(
        r#"{{ "seed" : 1.50e0, "messages":[{{"content":"caf\u00e9","role":"user"}},
        {{"role":"assistant","content":"{long}"}},{{"role":"user","content":"x"}},
        {{"role":"assistant","content":"{long}"}}, {{"role":"user","content":"last"}} ],"model":"gpt-4o"}}"#
    );
    let headers = "x-weir-max-input-tokens: 500\r\n";
    let told = ask(weir.address, plan(headers, &asking(&body))).await;
    let address = weir.address;
    let sending = chat(headers, &body);
    let forwarded = tokio::spawn(async move { ask(address, sending).await });
    let seen = upstream.next().await;
    let sent = String::from_utf8(seen.body.clone()).expect("text");
    seen.answer(FINE);
    forwarded.await.expect("it is answered");
    assert_ne!(sent, body);
    let told = String::from_utf8(told.body).expect("text");
    assert!(told.contains(&format!(r#""body":{sent}"#)), "{told}\nholds no\n{sent}");
}

#[tokio::test]
async fn verbosity_follows_what_is_used() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hello world"}]}"#;
    // Nine tokens: six of the message and three that prime the reply.
    for (limit, verbosity, remaining) in
        [(13, "full", "4"), (12, "normal", "3"), (10, "minimal", "1"), (9, "minimal", "0")]
    {
        let headers = format!("x-weir-max-input-tokens: {limit}\r\n");
        let address = weir.address;
        let sending = chat(&headers, body);
        let forwarded = tokio::spawn(async move { ask(address, sending).await });
        upstream.next().await.answer(FINE);
        let forwarded = forwarded.await.expect("it is answered");
        assert_eq!(forwarded.header("x-weir-verbosity"), Some(verbosity), "{limit}");
        assert_eq!(forwarded.header("x-weir-remaining-tokens"), Some(remaining), "{limit}");
        let told = answer(&ask(weir.address, plan(&headers, body)).await);
        assert_eq!(told["verbosity"], verbosity);
        assert_eq!(told["is_minimal"], verbosity == "minimal");
    }
}

#[tokio::test]
async fn what_would_be_refused_is_told_with_its_reason() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    let body = json!({"model": "gpt-4o", "messages":
        [{"role": "user", "content": "word ".repeat(500)}]})
    .to_string();
    let headers = "x-weir-max-input-tokens: 100\r\n";
    let message =
        ask(weir.address, chat(headers, &body)).await.assert_error(400, "context_length_exceeded");
    let told = answer(&ask(weir.address, plan(headers, &asking(&body))).await);
    assert_eq!(told["action"], "refuse");
    assert_eq!(told["refusal"], message);
    assert_eq!(told["body"], Value::Null);
    assert_eq!(told["messages"][0]["why"]["reason"], "newest_turn");
    assert_eq!(told["warnings"][0]["code"], "over_limit");
}

#[tokio::test]
async fn messages_alone_are_a_request() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    let request: Value = serde_json::from_str(&dialogue(2)).expect("JSON");
    let told = answer(&ask(weir.address, plan("", &format!(" {}", request["messages"]))).await);
    assert_eq!(told["messages"].as_array().map(Vec::len), Some(7));
    assert_eq!(told["warnings"][0]["code"], "unknown_model", "{told}");
}

#[tokio::test]
async fn a_body_without_messages_is_warned_of() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    for body in [r#"{"model":"gpt-4o","input":"hello"}"#, r#"{"model":"gpt-4o","messages":[]}"#] {
        let told = answer(&ask(weir.address, plan("", body)).await);
        assert_eq!(told["warnings"][0]["code"], "no_messages", "{told}");
    }
}

#[tokio::test]
async fn observing_and_bypassing_are_told() {
    let observing = start("127.0.0.1:1", |config| config.context.mode = Mode::Observe).await;
    let bypassing = start("127.0.0.1:1", |config| config.context.allow_bypass = true).await;
    let body = dialogue(20);
    let limited = "x-weir-max-input-tokens: 2000\r\n";
    let told = answer(&ask(observing.address, plan(limited, &body)).await);
    assert_eq!((&told["mode"], &told["action"]), (&json!("observe"), &json!("observe+evict")));
    assert_eq!(told["compaction"]["enabled"], false);
    assert_eq!(told["window"]["sent_tokens"], told["window"]["received_tokens"]);
    assert!(told["compaction"]["gone_messages"].as_u64() > Some(0));
    let told = answer(&ask(bypassing.address, plan("x-weir-bypass: 1\r\n", &body)).await);
    assert_eq!((&told["mode"], &told["action"]), (&json!("bypass"), &json!("bypass")));
    assert_eq!(told["messages"][2]["why"]["reason"], "bypassed");
}

#[tokio::test]
async fn it_is_refused_as_what_is_forwarded_is() {
    let weir = start("127.0.0.1:1", |config| config.server.max_body_bytes = 5000).await;
    let fine = dialogue(1);
    let wrong = |member: &str| format!(r#"{{"messages":[],"weir":{member}}}"#);
    for (headers, body, status, code) in [
        ("origin: https://evil.example\r\n", &*fine, 403, "origin_not_allowed"),
        ("x-weir-bypass: 1\r\n", &fine, 403, "bypass_not_allowed"),
        ("x-weir-max-input-tokens: none\r\n", &fine, 400, "invalid_request"),
        ("content-encoding: br, br, br, br\r\n", &fine, 415, "unsupported_encoding"),
        ("", "", 400, "invalid_request"),
        ("", "[7]", 400, "invalid_request"),
        ("", "{\"messages\":[", 400, "invalid_request"),
        ("", "\u{0}", 400, "invalid_request"),
        ("", r#"{"messages":[{"role":"user","role":"user"}]}"#, 400, "invalid_request"),
        ("", r#"{"messages":[7]}"#, 400, "invalid_request"),
        ("", &"[".repeat(4000), 400, "invalid_request"),
        ("", &format!("{}1{}", "{\"weir\":".repeat(200), "}".repeat(200)), 400, "invalid_request"),
        ("", &dialogue(50), 413, "body_too_large"),
        ("", &wrong("1"), 400, "invalid_request"),
        ("", &wrong(r#"{"content":"x"}"#), 400, "invalid_request"),
        ("", &wrong(r#"{"content":"x","category":"other"}"#), 400, "invalid_request"),
        ("", &wrong(r#"{},"weir":{}"#), 400, "invalid_request"),
    ] {
        let request = plan(headers, body);
        ask(weir.address, request).await.assert_error(status, code);
    }
    let foreign = plan("", &fine).replace("localhost", "evil.example");
    ask(weir.address, foreign).await.assert_error(403, "host_not_allowed");
    for method in ["GET", "PUT", "OPTIONS"] {
        let answered = ask(weir.address, bare(method, "/weir/v1/plan", "")).await;
        assert!(answered.assert_error(405, "method_not_allowed").contains("POST"), "{method}");
        assert_eq!(answered.header("allow"), Some("POST"), "{method}");
    }
    for (method, path) in [("POST", "/weir/v1/plan/"), ("POST", "/weir/plan")] {
        ask(weir.address, bare(method, path, "")).await.assert_error(404, "not_found");
    }
}

#[tokio::test]
async fn one_may_send_it_from_an_allowed_page_and_compressed() {
    use std::io::Write;
    let weir = start("127.0.0.1:1", |config| {
        config.cors.allow_origins = vec!["https://app.example".to_owned()];
    })
    .await;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(dialogue(2).as_bytes()).expect("memory takes it");
    let body = encoder.finish().expect("memory takes it");
    let head = format!(
        "POST /weir/v1/plan HTTP/1.1\r\nhost: localhost\r\norigin: https://app.example\r\n\
         content-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let told = ask(weir.address, [head.as_bytes(), &body].concat()).await;
    assert_eq!(told.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer(&told)["action"], "pass");
}

/// Collects the members of `value` and their types, one per line, in order.
fn members(value: &Value, path: &str, found: &mut std::collections::BTreeMap<String, Vec<&str>>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(items) => {
            items.iter().for_each(|item| members(item, &format!("{path}[]"), found));
            "list"
        }
        Value::Object(own) => {
            own.iter().for_each(|(key, item)| members(item, &format!("{path}.{key}"), found));
            "object"
        }
    };
    let kinds = found.entry(path.to_owned()).or_default();
    if !kinds.contains(&kind) {
        kinds.push(kind);
        kinds.sort_unstable();
    }
}

#[tokio::test]
async fn the_answer_has_the_members_written_down() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    let mut found = std::collections::BTreeMap::new();
    let content = r#""weir":{"body":true,"text":true,"content":"x","category":"file"}"#;
    for (exchanges, limit) in [(2, 100_000), (20, 2000), (1, 10)] {
        let body = dialogue(exchanges).replacen('{', &format!("{{{content},"), 1);
        let headers = format!("x-weir-max-input-tokens: {limit}\r\n");
        let mut told = answer(&ask(weir.address, plan(&headers, &body)).await);
        // The request's own content is not part of weir's format.
        told.as_object_mut().expect("an object").remove("body");
        members(&told, "", &mut found);
    }
    let lines: Vec<String> =
        found.iter().map(|(path, kinds)| format!("{path}: {}\n", kinds.join(", "))).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/plan_members.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(file, lines.concat()).expect("the file can be written");
    }
    let expected = std::fs::read_to_string(file).expect("the file is there");
    assert_eq!(lines.concat(), expected, "UPDATE_GOLDEN=1 accepts; callers rely on these");
}
