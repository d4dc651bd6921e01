//! Answers and requests that are read by their bytes: under a wrong or missing type, compressed
//! although that was not allowed, behind a byte order mark, with figures and values of other types.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::harness::{FINE, Message, Upstream, Wire, bare, start};
use crate::upstream::{capture_log, log_line};

/// Route, request and answers, plain and streamed, of one protocol. Each reports 7 and 3 tokens.
struct Row {
    path: &'static str,
    body: &'static str,
    plain: &'static str,
    stream: &'static str,
}

const ROWS: [Row; 3] = [
    Row {
        path: "/v1/chat/completions",
        body: r#""messages":[{"role":"user","content":"a"}]"#,
        plain: r#"{"choices":[{"message":{"content":"b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        stream: "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
    },
    Row {
        path: "/v1/responses",
        body: r#""input":"a""#,
        plain: r#"{"output":[],"usage":{"input_tokens":7,"output_tokens":3}}"#,
        stream: "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":3}}}\n\n",
    },
    Row {
        path: "/v1/messages",
        body: r#""max_tokens":9,"messages":[{"role":"user","content":"a"}]"#,
        plain: r#"{"content":[],"usage":{"input_tokens":7,"output_tokens":3}}"#,
        stream: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":3}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    },
];

fn post(path: &str, body: &str) -> String {
    let headers = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    bare("POST", path, &headers) + body
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).expect("a Vec takes all");
    encoder.finish().expect("a Vec takes all")
}

/// Sends a request whose answer has these headers and bytes.
async fn answered(row: &Row, is_stream: bool, headers: &str, bytes: &[u8]) -> Message {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let body = format!(r#"{{"model":"gpt-4o","stream":{is_stream},{}}}"#, row.body);
    wire.send(post(row.path, &body)).await;
    let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n", bytes.len());
    upstream.next().await.answer([head.as_bytes(), bytes].concat());
    wire.message().await.expect("an answer")
}

#[tokio::test]
async fn answers_are_what_their_bytes_are() {
    capture_log();
    for row in &ROWS {
        for (is_stream, text) in [(false, row.plain), (true, row.stream)] {
            let right = if is_stream { "text/event-stream" } else { "application/json" };
            let marked = format!("\u{feff}{text}");
            let figures = text.replace(":7", ":7.0").replace(":3", ":\"3\"");
            let packed = format!("content-type: {right}\r\ncontent-encoding: gzip\r\n");
            let typed = |name: &str| format!("content-type: {name}\r\n");
            for (headers, bytes, expected) in [
                (String::new(), text.as_bytes().to_vec(), text),
                (typed("text/plain; charset=utf-8"), text.as_bytes().to_vec(), text),
                (typed("text/html"), text.as_bytes().to_vec(), text),
                (typed("application/octet-stream"), text.as_bytes().to_vec(), text),
                (
                    typed(if is_stream { "application/json" } else { "text/event-stream" }),
                    text.as_bytes().to_vec(),
                    text,
                ),
                (packed, gzip(text.as_bytes()), text),
                (typed(right), marked.clone().into_bytes(), &marked),
                (String::new(), marked.clone().into_bytes(), &marked),
                (typed(right), figures.clone().into_bytes(), &figures),
            ] {
                let answer = answered(row, is_stream, &headers, &bytes).await;
                let place = format!("{} {is_stream} {headers}", row.path);
                assert_eq!(String::from_utf8_lossy(&answer.body), expected, "{place}");
                assert_eq!(answer.header("content-type"), Some(right), "{place}");
                assert_eq!(answer.header("content-encoding"), None, "{place}");
                let line = log_line();
                let figures = [&line["prompt_tokens"], &line["completion_tokens"]];
                assert_eq!(figures, [7, 3], "{place} {line}");
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_no_gzip_is_cut() {
    let headers = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let row = &ROWS[0];
    wire.send(post(row.path, &format!(r#"{{"model":"gpt-4o",{}}}"#, row.body))).await;
    let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n", row.plain.len());
    upstream.next().await.answer(head + row.plain);
    // Whether its head still goes out before the body fails is a matter of who is faster.
    let head = wire.head().await;
    assert!(head.is_none_or(|head| head.starts_with("HTTP/1.1 200")));
    // No last chunk: the answer is cut.
    wire.assert_ends().await;
}

#[tokio::test]
async fn values_that_weir_need_not_understand_are_forwarded() {
    for (path, body) in [
        (
            "/v1/chat/completions",
            r#"{"model":"gpt-4o","messages":[{"role":"user","content":"a"}],"max_tokens":VALUE}"#,
        ),
        (
            "/v1/chat/completions",
            r#"{"model":"gpt-4o","max_completion_tokens":VALUE,"messages":[{"role":"user","content":"a"}]}"#,
        ),
        (
            "/v1/chat/completions",
            r#"{"model":"gpt-4o","messages":[{"role":"user","content":VALUE}]}"#,
        ),
        ("/v1/responses", r#"{"model":"gpt-4o","input":"a","max_output_tokens":VALUE}"#),
        ("/v1/responses", r#"{"model":"gpt-4o","input":[{"role":"user","content":VALUE}]}"#),
        (
            "/v1/messages",
            r#"{"model":"claude-sonnet-4-5","max_tokens":VALUE,"messages":[{"role":"user","content":"a"}]}"#,
        ),
        (
            "/v1/messages",
            r#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":VALUE}]}"#,
        ),
    ] {
        for value in ["-1", "4096.0", "\"1024\"", r#"{"type":"text","text":"b"}"#, "true", "1e400"]
        {
            for mark in ["", "\u{feff}"] {
                let body = format!("{mark}{}", body.replace("VALUE", value));
                let mut upstream = Upstream::start().await;
                let weir = start(&upstream.address, |_| {}).await;
                let mut wire = Wire::connect(weir.address).await;
                wire.send(post(path, &body)).await;
                let seen = upstream.next().await;
                assert_eq!(String::from_utf8_lossy(&seen.body), body, "{path}");
                seen.answer(FINE);
                assert_eq!(wire.message().await.expect("an answer").status(), 200, "{body}");
            }
        }
    }
}

#[tokio::test]
async fn the_usage_of_large_answers_and_events_is_read_in_passing() {
    capture_log();
    let usage = r#""usage":{"input_tokens":7,"output_tokens":3}"#;
    let picture = "A".repeat(9 << 20);
    let images = format!(r#"{{"created":1,"data":[{{"b64_json":"{picture}"}}],{usage}}}"#);
    let numbers = "0.125,".repeat((9 << 20) / 6);
    let embeddings = format!(
        r#"{{"object":"list","data":[{{"embedding":[{numbers}0]}}],"usage":{{"prompt_tokens":7,"completion_tokens":3}}}}"#
    );
    let item = r#"{"type":"image_generation_call","result":""#;
    let event = format!(
        "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{item}{picture}\"}}],{usage}}}}}\n\n"
    );
    for (path, body, is_stream, text) in [
        ("/v1/images/generations", r#""prompt":"a""#, false, &images),
        ("/v1/embeddings", r#""input":"a""#, false, &embeddings),
        ("/v1/responses", r#""input":"a""#, true, &event),
    ] {
        let row = Row { path, body, plain: "", stream: "" };
        let right = if is_stream { "text/event-stream" } else { "application/json" };
        let headers = format!("content-type: {right}\r\n");
        let answer = answered(&row, is_stream, &headers, text.as_bytes()).await;
        assert!(answer.body == text.as_bytes(), "{path}");
        let line = log_line();
        assert_eq!([&line["prompt_tokens"], &line["completion_tokens"]], [7, 3], "{path} {line}");
    }
}
