//! Answers that fail before their first content, although they came with a success: they cost nothing,
//! are sent again or elsewhere, and count against their upstream as a 529 does.

use serde_json::{Value, json};

use super::setting::{
    Play, Up, completion, failing, memory, question, rows, said, send, status, weir,
};
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{Message, Weir, Wire, ask, chat};

const CHAIN: &str = r#"
    [upstream]
    url = "{a}"
    api_key = "env:A"
    timeouts_ms.first_byte = 800
    [upstreams.b]
    url = "{b}"
    [[routes]]
    models = ["gpt-4o"]
    fallback = ["gpt-4.1"]
    [[routes]]
    models = ["gpt-4.1"]
    upstream = "b"
"#;
const ALONE: &str = "[upstream]\nurl = \"{a}\"\nretries.max = 1\nretries.max_wait_ms = 10";
const NOTHING: &str = "[upstream]\nurl = \"{a}\"";

/// Builds a stream of these bytes.
fn stream(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// An answer that failed, whether it was asked for as a stream, and whether it has an error for its
/// caller.
fn failures() -> Vec<(&'static str, String, bool, bool)> {
    let overloaded =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    vec![
        ("an error", status(200, "", r#"{"error":{"message":"x","code":502}}"#), false, true),
        ("an error without a code", status(200, "", r#"{"error":{"message":"x"}}"#), false, true),
        (
            "no choices and an error",
            status(200, "", r#"{"id":"c","choices":null,"error":{"message":"x","code":503}}"#),
            false,
            true,
        ),
        ("no choices", status(200, "", r#"{"id":"c","choices":null}"#), false, false),
        ("an error event", stream(&format!("event: error\ndata: {overloaded}\n\n")), true, true),
        (
            "an error chunk",
            stream("data: {\"error\":{\"message\":\"x\",\"code\":502}}\n\n"),
            true,
            true,
        ),
        (
            "an error behind a ping",
            stream(&format!(
                ": ping\n\nevent: ping\ndata: {{\"type\":\"ping\"}}\n\nevent: error\ndata: {overloaded}\n\n"
            )),
            true,
            true,
        ),
        (
            "an error behind a role",
            stream(
                "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"error\":{\"message\":\"x\",\"code\":502}}\n\n",
            ),
            true,
            true,
        ),
        ("no event", stream(""), true, false),
        ("comments", stream(": ping\n\n: ping\n\n"), true, false),
        ("an end alone", stream("data: [DONE]\n\n"), true, false),
    ]
}

fn asked(is_stream: bool) -> Value {
    let mut body = question("gpt-4o");
    body["stream"] = json!(is_stream);
    body
}

/// Returns the body of an answer as sent.
fn raw(play: &str) -> &str {
    play.split_once("\r\n\r\n").expect("a head").1
}

async fn answered(weir: &Weir, is_stream: bool) -> Message {
    send(weir, &asked(is_stream)).await
}

#[tokio::test]
async fn what_failed_before_its_content_is_replaced_and_costs_nothing() {
    for (name, play, is_stream, _) in failures() {
        let (a, b) = (Up::start("a").await, Up::start("b").await);
        let (ups, store) = ([("a", a.url()), ("b", b.url())], memory());
        let weir = weir(&store, CHAIN, &ups).await;
        a.then([Play::Answer(play)]);
        let answer = answered(&weir, is_stream).await;
        assert_eq!((answer.status(), said(&answer).as_str()), (200, "from b"), "{name}");
        assert_eq!(answer.header("x-weir-attempts"), Some("2"), "{name}");
        let rows = rows(&store, &ups).await;
        assert_eq!(
            rows,
            ["a gpt-4o upstream_failed - 0", "b gpt-4.1 complete 200 2080000"],
            "{name}"
        );
    }
}

#[tokio::test]
async fn what_failed_before_its_content_is_sent_again() {
    for (name, play, is_stream, _) in failures() {
        let (a, store) = (Up::start("a").await, memory());
        let ups = [("a", a.url())];
        let weir = weir(&store, ALONE, &ups).await;
        a.then([Play::Answer(play)]);
        assert_eq!(said(&answered(&weir, is_stream).await), "from a", "{name}");
        let rows = rows(&store, &ups).await;
        assert_eq!(
            rows,
            ["a gpt-4o complete 200 2600000", "a gpt-4o upstream_failed - 0"],
            "{name}"
        );
    }
}

#[tokio::test]
async fn without_another_try_its_caller_gets_the_error_that_came_or_one() {
    for (name, play, is_stream, is_told) in failures() {
        let (a, store) = (Up::start("a").await, memory());
        let ups = [("a", a.url())];
        let weir = weir(&store, NOTHING, &ups).await;
        a.then([Play::Answer(play.clone())]);
        let answer = answered(&weir, is_stream).await;
        if is_told {
            assert_eq!(answer.status(), 200, "{name}");
            assert_eq!(String::from_utf8_lossy(&answer.body), raw(&play), "{name}");
        } else {
            answer.assert_error(502, "upstream_failed");
        }
        let read = async || rows(&store, &ups).await;
        let rows = eventually(DEADLINE, read, |rows| !rows.is_empty()).await;
        let status = if is_told { "200" } else { "-" };
        assert_eq!(rows, [format!("a gpt-4o upstream_failed {status} 0")], "{name}");
    }
}

#[tokio::test]
async fn other_protocols_and_routes_are_read_alike() {
    let overloaded =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let failed = r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}"#;
    let error = r#"{"error":{"message":"x","code":502}}"#;
    let hi = r#""messages":[{"role":"user","content":"hi"}]"#;
    for (path, body, play) in [
        (
            "messages",
            format!(r#"{{"model":"gpt-4o","max_tokens":9,{hi}}}"#),
            status(200, "", overloaded),
        ),
        (
            "messages",
            format!(r#"{{"model":"gpt-4o","max_tokens":9,"stream":true,{hi}}}"#),
            stream(&format!("event: error\ndata: {overloaded}\n\n")),
        ),
        (
            "responses",
            r#"{"model":"gpt-4o","stream":true,"input":"hi"}"#.to_owned(),
            stream(&format!("event: response.failed\ndata: {failed}\n\n")),
        ),
        ("embeddings", r#"{"model":"gpt-4o","input":"hi"}"#.to_owned(), status(200, "", error)),
        ("completions", r#"{"model":"gpt-4o","prompt":"hi"}"#.to_owned(), status(200, "", error)),
        (
            "images/generations",
            r#"{"model":"gpt-4o","prompt":"hi"}"#.to_owned(),
            status(200, "", error),
        ),
    ] {
        let (a, b) = (Up::start("a").await, Up::start("b").await);
        let ups = [("a", a.url()), ("b", b.url())];
        let weir = weir(&memory(), CHAIN, &ups).await;
        a.then([Play::Answer(play)]);
        let length = body.len();
        let request = format!(
            "POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let answer = ask(weir.address, request).await;
        assert_eq!((answer.status(), b.seen().len()), (200, 1), "{path}");
        assert_eq!(answer.header("x-weir-attempts"), Some("2"), "{path}");
    }
    let a = Up::start("a").await;
    let weir = weir(&memory(), NOTHING, &[("a", a.url())]).await;
    a.then([Play::Answer(stream(": ping\n\n"))]);
    let body = format!(r#"{{"model":"gpt-4o","max_tokens":9,"stream":true,{hi}}}"#);
    let length = body.len();
    let request = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let answer = ask(weir.address, request).await;
    let said: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(
        (answer.status(), &said["type"], &said["error"]["type"]),
        (502, &json!("error"), &json!("api_error"))
    );
}

#[tokio::test]
async fn failures_in_a_row_count_against_the_upstream() {
    for (name, play, is_stream, _) in failures() {
        let (a, b) = (Up::start("a").await, Up::start("b").await);
        let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url())]).await;
        a.then(std::iter::repeat_n(Play::Answer(play), 5));
        for _ in 0..6 {
            assert_eq!(said(&answered(&weir, is_stream).await), "from b", "{name}");
        }
        assert_eq!(a.seen().len(), 5, "{name}: it is passed over");
    }
}

#[tokio::test]
async fn a_caller_s_own_fault_goes_nowhere_else_and_counts_against_nobody() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url())]).await;
    let fault = r#"{"error":{"message":"x","type":"invalid_request_error","code":null}}"#;
    a.then(std::iter::repeat_n(Play::Answer(status(200, "", fault)), 6));
    for _ in 0..6 {
        let answer = answered(&weir, false).await;
        assert_eq!((answer.status(), answer.body.as_slice()), (200, fault.as_bytes()));
    }
    assert_eq!((a.seen().len(), b.seen().len()), (6, 0));
}

#[tokio::test]
async fn comments_and_announcements_are_no_beginning() {
    let announcing = [
        ": ping\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n: ping\n\n",
    ];
    for event in announcing {
        let (a, b) = (Up::start("a").await, Up::start("b").await);
        let (ups, store) = ([("a", a.url()), ("b", b.url())], memory());
        let weir = weir(&store, CHAIN, &ups).await;
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked";
        let silent = format!("{head}\r\n\r\n{:x}\r\n{event}\r\n", event.len());
        a.then([Play::Silent(silent.into_bytes())]);
        assert_eq!(said(&answered(&weir, true).await), "from b");
        let rows = rows(&store, &ups).await;
        assert!(rows[0].starts_with("a gpt-4o upstream_timeout - "), "{rows:?}");
    }
}

#[tokio::test]
async fn an_ordinary_stream_waits_for_its_first_content_and_no_longer() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url())]).await;
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"}}]}\n\n";
    let begun = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
        event.len()
    );
    a.then([Play::Silent(begun.into_bytes())]);
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", asked(true).to_string())).await;
    assert!(wire.head().await.expect("a head").starts_with("HTTP/1.1 200"));
    assert_eq!(wire.chunk().await.expect("its event"), event.as_bytes());
}

#[tokio::test]
async fn a_plain_answer_is_passed_on_once_it_has_content() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url())]).await;
    let body = completion("a").to_string();
    let half = &body[..body.len() / 2];
    let begun = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{half}",
        body.len()
    );
    a.then([Play::Silent(begun.into_bytes()), failing(503)]);
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", asked(false).to_string())).await;
    assert!(wire.head().await.expect("a head").starts_with("HTTP/1.1 200"));
    assert_eq!(b.seen().len(), 0);
}
