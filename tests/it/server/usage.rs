//! Streams with requested usage: otherwise the bytes stay unchanged in both directions.

use serde_json::{Value, json};
use weir::config::{AskUsage, Mode};

use super::harness::{FINE, Upstream, Weir, Wire, ask, chat, start};
use crate::scripted_upstream::{Options, Server};
use crate::upstream::{capture_log, log_line};

const QUESTION: &str = r#","stream_options":{"include_usage":true}"#;

/// Builds a streamed request, spaced as no library would, and the same with weir's usage option.
fn streamed(more: &str) -> (String, String) {
    let body = |question: &str| {
        format!(
            r#" {{"model":"gpt-4o", "stream" : true{question} ,"messages":[{{"role":"user","content":"grüße"}}]{more}}} "#
        )
    };
    (body(""), body(QUESTION))
}

/// Builds a stream's head and these events in one chunk.
fn events(events: &str) -> String {
    let length = events.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
         transfer-encoding: chunked\r\n\r\n{length:x}\r\n{events}\r\n"
    )
}

async fn scripted(options: Options, ask_usage: AskUsage) -> (Server, Weir) {
    let upstream = Server::start(options).await.expect("a free port");
    let weir = start(&upstream.addr.to_string(), |config| {
        config.upstream.ask_usage = ask_usage;
    })
    .await;
    (upstream, weir)
}

fn bodies(upstream: &Server) -> Vec<String> {
    let text = |body: &[u8]| String::from_utf8(body.to_vec()).expect("text");
    upstream.requests().iter().map(|seen| text(&seen.body)).collect()
}

#[tokio::test]
async fn the_caller_gets_the_stream_as_it_would_have_been() {
    let (upstream, weir) = scripted(Options::default(), AskUsage::Auto).await;
    let calls = json!({"tool_calls": [{"name": "f", "arguments": {"usage": "\"usage\":null"}}]});
    for (more, headers) in [
        ("", String::new()),
        (r#","n":3"#, String::new()),
        (r#","max_tokens":1"#, String::new()),
        ("", format!("x-upstream-script: {calls}\r\n")),
        ("", "x-upstream-fault: half_utf8\r\n".to_owned()),
        ("", r#"x-upstream-script: {"text":"{\"usage\":{}} \\u0075"}"#.to_owned() + "\r\n"),
    ] {
        let (body, asked) = streamed(more);
        let through = ask(weir.address, chat(&headers, &body)).await;
        let without = ask(upstream.addr, chat(&headers, &body)).await;
        assert_eq!(through.status(), 200);
        assert_eq!(through.header("x-weir-edits"), Some("usage"));
        assert_eq!(through.header("x-weir-action"), Some("pass"));
        // Ids derive from the request's bytes, which are not the same.
        let plain = |answer: &[u8]| {
            let text = String::from_utf8(answer.to_vec()).expect("text");
            let id = text.split('"').find(|part| part.starts_with("chatcmpl-")).map(|id| &id[9..]);
            text.replace(id.expect("an id"), "ID")
        };
        assert_eq!(plain(&through.body), plain(&without.body), "{more} {headers}");
        let seen = bodies(&upstream);
        assert_eq!(seen[seen.len() - 2..], [asked, body]);
    }
}

#[tokio::test]
async fn whoever_asks_or_must_not_be_asked_for_is_left_alone() {
    for (ask_usage, allow_bypass, headers, body) in [
        (AskUsage::Auto, false, "", streamed("").1),
        (AskUsage::Never, false, "", streamed("").0),
        (AskUsage::Always, true, "x-weir-bypass: 1\r\n", streamed("").0),
        (
            AskUsage::Always,
            false,
            "",
            r#"{"model":"gpt-4o","messages":[{"role":"user","content":"a"}]}"#.to_owned(),
        ),
    ] {
        let upstream = Server::start(Options::default()).await.expect("a free port");
        let weir = start(&upstream.addr.to_string(), |config| {
            config.upstream.ask_usage = ask_usage;
            config.context.allow_bypass = allow_bypass;
        })
        .await;
        let through = ask(weir.address, chat(headers, &body)).await;
        let without = ask(upstream.addr, chat("", &body)).await;
        assert_eq!(through.status(), 200, "{through:?}");
        assert_eq!(through.body, without.body);
        assert_eq!(through.header("x-weir-edits"), None);
        assert_eq!(bodies(&upstream), [body.as_str(), &body]);
    }
}

#[tokio::test]
async fn the_question_stands_beside_other_edits() {
    let turn = |number: u32| {
        format!(
            r#"{{"role":"user","content":"{number} {}"}},{{"role":"assistant","content":"so"}},"#,
            "word ".repeat(100)
        )
    };
    let turns: String = (0..20).map(turn).collect();
    let body = format!(
        r#"{{"model":"gpt-4o","messages":[{turns}{{"role":"user","content":"last","weir":{{"pin":true}}}}],"stream":true,"stream_options":{{"include_usage":false}}}}"#
    );
    for (mode, action, edits) in
        [(Mode::Compact, "evict", "usage"), (Mode::Observe, "observe+evict", "pin")]
    {
        let mut upstream = Upstream::start().await;
        let weir = start(&upstream.address, |config| config.context.mode = mode).await;
        let mut wire = Wire::connect(weir.address).await;
        wire.send(chat("x-weir-max-input-tokens: 1000\r\n", &body)).await;
        let seen = upstream.next().await;
        let sent = String::from_utf8(seen.body.clone()).expect("text");
        let end = format!(
            r#"{{"role":"user","content":"last"}}],"stream":true,"stream_options":{{"include_usage":{}}}}}"#,
            mode == Mode::Compact
        );
        assert!(sent.ends_with(&end), "{sent}");
        seen.answer(FINE);
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.header("x-weir-action"), Some(action));
        let named = answer.header("x-weir-edits").expect("edits");
        assert!(named.ends_with(edits), "{named}");
    }
}

#[tokio::test]
async fn a_refusal_is_the_upstream_s_and_weir_s_alone() {
    for (ask_usage, times) in [(AskUsage::Auto, [2, 1, 2]), (AskUsage::Always, [2, 2, 2])] {
        let options = Options { refuse_stream_options: true, ..Options::default() };
        let (upstream, weir) = scripted(options, ask_usage).await;
        let (body, asked) = streamed("");
        let other = body.replace("gpt-4o", "gpt-4o-mini");
        for (body, times) in [&body, &body, &other].into_iter().zip(times) {
            let before = bodies(&upstream).len();
            let through = ask(weir.address, chat("", body)).await;
            let sent = bodies(&upstream).split_off(before);
            let without = ask(upstream.addr, chat("", body)).await;
            assert_eq!(through.status(), 200);
            assert_eq!(through.body, without.body);
            assert_eq!(through.header("x-weir-edits"), None);
            assert_eq!(sent.len(), times);
            assert_eq!(sent.last(), Some(body));
        }
        assert_eq!(bodies(&upstream)[0], asked);
        // A caller that requests usage gets the upstream's own bytes.
        let through = ask(weir.address, chat("", &asked)).await;
        let without = ask(upstream.addr, chat("", &asked)).await;
        assert_eq!((through.status(), without.status()), (400, 400));
        assert_eq!(through.body, without.body);
    }
}

/// Builds an answer of this status and body, as a vendor's error.
fn error(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn other_refusals_come_as_they_are() {
    let large = format!(r#"{{"pad":"{}","stream_options":1}}"#, "x".repeat(100_000));
    for (status, body) in [
        (400, r#"{"error":{"message":"max_tokens is too large"}}"#),
        (500, r#"{"error":{"message":"stream_options"}}"#),
        (400, ""),
        (400, large.as_str()),
    ] {
        let mut upstream = Upstream::start().await;
        let weir = start(&upstream.address, |_| {}).await;
        let mut wire = Wire::connect(weir.address).await;
        for _ in 0..2 {
            wire.send(chat("", streamed("").0)).await;
            let seen = upstream.next().await;
            assert_eq!(seen.body, streamed("").1.as_bytes(), "nothing was remembered");
            seen.answer(error(status, body));
            let answer = wire.message().await.expect("an answer");
            assert_eq!(answer.status(), status);
            assert!(answer.body == body.as_bytes());
            assert_eq!(answer.header("x-weir-edits"), Some("usage"));
        }
    }
}

#[tokio::test]
async fn what_is_refused_either_way_is_not_remembered() {
    capture_log();
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let (body, asked) = streamed("");
    for _ in 0..2 {
        wire.send(chat("", &body)).await;
        let seen = upstream.next().await;
        assert_eq!(seen.body, asked.as_bytes());
        seen.answer(error(422, r#"{"detail":"include_usage"}"#));
        let seen = upstream.next().await;
        assert_eq!(seen.body, body.as_bytes());
        seen.answer(error(422, r#"{"detail":"no such model; stream_options"}"#));
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.body, br#"{"detail":"no such model; stream_options"}"#);
        assert_eq!(log_line()["edits"], "", "what was sent in the end has no edit");
    }
}

#[tokio::test]
async fn events_come_when_they_are_whole_and_heartbeats_at_once() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", streamed("").0)).await;
    let seen = upstream.next().await;
    seen.begin(events("data: {\"choices\":[1],\"usage\":null}\r\n\r\n"));
    assert!(wire.head().await.expect("a head").contains("text/event-stream"));
    assert_eq!(wire.chunk().await.as_deref(), Some(&b"data: {\"choices\":[1]}\r\n\r\n"[..]));
    for (sent, received) in [
        (": ping\n", ": ping\n"),
        ("\ndata: {\"usa", "\n"),
        // Usage next to a choice comes unasked.
        ("ge\":{},\"choices\":[2]}\n\n", "data: {\"usage\":{},\"choices\":[2]}\n\n"),
        // A frame with only usage is removed; the next frame shows this.
        ("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7}}\n\n: ping\n", ": ping\n"),
        ("data: [DONE]\n\n", "data: [DONE]\n\n"),
    ] {
        seen.begin(format!("{:x}\r\n{sent}\r\n", sent.len()));
        let chunk = wire.chunk().await.expect("a chunk");
        assert_eq!(String::from_utf8_lossy(&chunk), received);
    }
    // An event that the end of the stream terminates.
    seen.begin("10\r\ndata: {\"usage\":1\r\n1\r\n}\r\n0\r\n\r\n");
    assert_eq!(wire.chunk().await, None);
}

#[tokio::test]
async fn a_length_that_no_longer_holds_is_not_told() {
    let body = "data: {\"choices\":[1],\"usage\":null}\n\n";
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", streamed("").0)).await;
    upstream.next().await.answer(&answer);
    let answer = wire.message().await.expect("an answer");
    assert_eq!(answer.header("content-length"), None);
    assert_eq!(answer.body, b"data: {\"choices\":[1]}\n\n");
}

#[tokio::test]
async fn what_is_no_plain_stream_stays_as_it_is() {
    let body = r#"{"choices":[],"usage":{"prompt_tokens":7}}"#;
    for headers in
        ["content-type: application/json", "content-type: text/event-stream\r\ncontent-encoding: x"]
    {
        let mut upstream = Upstream::start().await;
        let weir = start(&upstream.address, |_| {}).await;
        let mut wire = Wire::connect(weir.address).await;
        wire.send(chat("", streamed("").0)).await;
        let length = body.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\n{headers}\r\ncontent-length: {length}\r\n\r\n{body}");
        upstream.next().await.answer(&answer);
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.body, body.as_bytes());
        let told: Value = length.to_string().into();
        assert_eq!(answer.header("content-length"), told.as_str());
    }
}
