//! Requests whose upstream fails in every known way: the caller's answer and the journal's rows,
//! streamed and not, without configuration, with retries, and with a fallback.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::setting::{Play, Up, completion, events, memory, nowhere, question, rows, status, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::chat;

const SETTINGS: [(&str, &str); 3] = [
    ("nothing configured", ""),
    ("retries.max = 1", "retries.max = 1\nretries.max_wait_ms = 10"),
    ("fallback", ""),
];
const ROUTES: &str = "[upstreams.b]\nurl = \"{b}\"\n[[routes]]\nmodels = [\"gpt-4o\"]\n\
                      fallback = [\"gpt-4.1\"]\n[[routes]]\nmodels = [\"gpt-4.1\"]\nupstream = \"b\"";

/// A fault and its script, by whether the answer is streamed. `None` is an absent upstream.
type Fault = (&'static str, fn(bool) -> Option<Play>);

const FAULTS: [Fault; 15] = [
    ("no connection", |_| None),
    ("reset", |_| Some(Play::Reset)),
    ("closed without an answer", |_| Some(Play::Last(Vec::new()))),
    ("slow first byte", |_| Some(Play::Silent(Vec::new()))),
    ("stalls in the middle", |stream| Some(Play::Silent(half(stream)))),
    ("closes in the middle", |stream| Some(Play::Last(half(stream)))),
    ("truncated chunk", |stream| Some(Play::Last(truncated_chunk(stream)))),
    ("no HTTP", |_| Some(Play::Last(b"SSH-2.0-x\r\n\r\n".to_vec()))),
    ("no JSON", |stream| Some(Play::Last(with_length(stream, "<html>", 6).into_bytes()))),
    ("content-length too long", |stream| {
        Some(Play::Last(with_length(stream, &body(stream), body(stream).len() + 9).into_bytes()))
    }),
    ("content-length too short", |stream| {
        Some(Play::Last(with_length(stream, &body(stream), 40).into_bytes()))
    }),
    ("half a UTF-8 character", |stream| {
        let mut bytes = with_length(stream, "data: \"\u{e9}\"", 8).into_bytes();
        bytes.truncate(bytes.len() - 2);
        Some(Play::Last(bytes))
    }),
    ("429", |_| Some(Play::Answer(status(429, "", LIMITED)))),
    ("429, retry-after: 0", |_| Some(Play::Answer(status(429, "retry-after: 0\r\n", LIMITED)))),
    ("429, retry-after: 60", |_| Some(Play::Answer(status(429, "retry-after: 60\r\n", LIMITED)))),
];

const LIMITED: &str = r#"{"error":{"message":"slowly"}}"#;

fn body(stream: bool) -> String {
    if stream { events("a") } else { completion("a").to_string() }
}

fn head(stream: bool) -> String {
    let kind = if stream { "text/event-stream" } else { "application/json" };
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n")
}

fn with_length(stream: bool, body: &str, length: usize) -> String {
    format!("{}content-length: {length}\r\n\r\n{body}", head(stream))
}

/// Builds an answer in chunks that ends in its middle, between two events if there are events.
fn half(stream: bool) -> Vec<u8> {
    let body = body(stream);
    let half = if stream { body.find("\n\n").expect("an event") + 2 } else { body.len() / 2 };
    let part = &body[..half];
    format!("{}transfer-encoding: chunked\r\n\r\n{:x}\r\n{part}\r\n", head(stream), part.len())
        .into_bytes()
}

/// Builds an answer that ends inside a chunk.
fn truncated_chunk(stream: bool) -> Vec<u8> {
    let mut bytes = half(stream);
    bytes.truncate(bytes.len() - 7);
    bytes
}

/// Returns the caller's result: the status, whose words it has, and whether it is complete.
async fn got(address: std::net::SocketAddr, stream: bool) -> String {
    let mut body = question("gpt-4o");
    body["stream"] = json!(stream);
    body["stream_options"] = json!({"include_usage": true});
    if !stream {
        body.as_object_mut().expect("an object").remove("stream_options");
    }
    let mut socket = TcpStream::connect(address).await.expect("weir listens");
    let request = chat("connection: close\r\n", body.to_string());
    socket.write_all(&request).await.expect("weir reads");
    let mut bytes = Vec::new();
    // A reset is also an end.
    let _ = socket.read_to_end(&mut bytes).await;
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.map(str::to_owned)
    };
    let rest = &bytes[end..];
    let (body, is_whole) = match header("content-length") {
        Some(length) => (rest.to_vec(), length == rest.len().to_string()),
        None => unchunked(rest),
    };
    let text = String::from_utf8_lossy(&body);
    let said = match (header("x-weir-error"), text.contains("from b")) {
        (Some(code), _) => format!("weir's {code}"),
        (None, true) => "b's answer".to_owned(),
        (None, false) if text == LIMITED => "a's 429 as it is".to_owned(),
        (None, false) => format!("a's {} bytes", if body.is_empty() { "no" } else { "own" }),
    };
    let is_a = body == self::body(stream).as_bytes() && !stream;
    let said = if is_a || (stream && text.contains("from a") && text.contains("[DONE]")) {
        "a's answer".to_owned()
    } else {
        said
    };
    let end = if is_whole { "" } else { ", broken off" };
    let attempts = header("x-weir-attempts").map_or(String::new(), |n| format!(" at attempt {n}"));
    format!("{} {said}{end}{attempts}", head.split(' ').nth(1).expect("a status"))
}

/// Decodes a chunked body, and returns whether it is complete.
fn unchunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..at]);
        let size = usize::from_str_radix(&size, 16).expect("a chunk's size");
        rest = &rest[at + 2..];
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    (body, false)
}

#[tokio::test]
async fn every_fault_has_an_answer_and_a_row() {
    let mut table = String::new();
    for (name, fault) in FAULTS {
        for stream in [false, true] {
            let kind = if stream { "streamed" } else { "whole" };
            writeln!(table, "{name}, {kind}").expect("it is memory");
            for (setting, keys) in SETTINGS {
                let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
                let play = fault(stream);
                let url = if play.is_some() { a.url() } else { nowhere().await };
                let routes = if setting == "fallback" { ROUTES } else { "" };
                let toml = format!(
                    "[upstream]\nurl = \"{{a}}\"\napi_key = \"env:A\"\ntimeouts_ms.first_byte = 800\n\
                     timeouts_ms.idle = 800\n{keys}\n{routes}"
                );
                let ups = [("a", url), ("b", b.url())];
                let weir = weir(&store, &toml, &ups).await;
                a.then(play);
                let got = got(weir.address, stream).await;
                // One row per attempt; the last is recorded when its answer has ended.
                let attempts =
                    got.rsplit_once("at attempt ").map_or(1, |(_, n)| n.parse().expect("a number"));
                let read = async || rows(&store, &ups).await;
                let rows = eventually(DEADLINE, read, |rows| rows.len() >= attempts).await;
                writeln!(table, "  {setting:<18} | {got:<45} | {}", rows.join("; "))
                    .expect("it is memory");
            }
        }
    }
    println!("{table}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/faults.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &table).expect("it can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("it is there");
    assert!(golden == table, "tests/golden/faults.txt says otherwise");
}
