//! weir in front of the scripted upstream: chats plain and streamed, unchanged bytes, errors, and
//! broken connections.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, Message, Weir, ask, bare, chat};

/// Starts both with the default configuration.
async fn pair() -> (Server, Weir) {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let weir = harness::start(&upstream.addr.to_string(), |_| {}).await;
    (upstream, weir)
}

fn hello(more: &Value) -> Vec<u8> {
    let mut body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more.clone());
    }
    body.to_string().into_bytes()
}

/// Returns an answer's headers except `date` and weir's own report.
fn heads(message: &Message) -> Vec<&str> {
    let own = ["date:", "x-weir-", "connection:", "transfer-encoding:", "content-length:"];
    let mut lines: Vec<_> = message
        .head
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !own.iter().any(|name| line.starts_with(name)))
        .collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn a_chat_comes_and_goes_byte_for_byte() {
    let (upstream, weir) = pair().await;
    for more in [json!({}), json!({"stream": true, "stream_options": {"include_usage": true}})] {
        let body = hello(&more);
        let through = ask(weir.address, chat("", &body)).await;
        let without = ask(upstream.addr, chat("", &body)).await;
        assert_eq!(through.status(), 200);
        assert_eq!(through.body, without.body);
        assert_eq!(heads(&through), heads(&without));
        assert_eq!(through.header("x-weir-action"), Some("pass"));
        let seen = upstream.requests();
        assert_eq!(seen[seen.len() - 2].body, seen[seen.len() - 1].body);
        assert_eq!(seen[seen.len() - 2].body, body);
    }
}

#[tokio::test]
async fn other_routes_pass_through() {
    let (upstream, weir) = pair().await;
    for (method, path) in [
        ("GET", "/v1/models/never-heard-of"),
        ("GET", "/v1/large?bytes=300000"),
        ("GET", "/v1/large?bytes=300000&chunked=1"),
        ("OPTIONS", "/v1/files"),
        ("GET", "/v1/models/missing"),
    ] {
        let through = ask(weir.address, bare(method, path, "")).await;
        let without = ask(upstream.addr, bare(method, path, "")).await;
        assert_eq!(through.status(), without.status(), "{path}");
        assert_eq!(heads(&through), heads(&without), "{path}");
        assert!(through.body == without.body, "{path}");
        assert_eq!(through.header("x-weir-action"), None, "{path}");
    }
}

#[tokio::test]
async fn the_upstreams_errors_are_verbatim() {
    let (upstream, weir) = pair().await;
    for fault in ["status:401", "status:429:retry-after=3", "status:500", "overflow:llamacpp"] {
        let request = chat(&format!("x-upstream-fault: {fault}\r\n"), hello(&json!({})));
        let through = ask(weir.address, &request).await;
        let without = ask(upstream.addr, &request).await;
        assert_eq!(through.status(), without.status(), "{fault}");
        assert_eq!(heads(&through), heads(&without), "{fault}");
        assert_eq!(through.body, without.body, "{fault}");
        assert_eq!(through.header("x-weir-error"), None, "{fault}");
    }
}

#[tokio::test]
async fn what_cannot_fit_never_leaves() {
    let (upstream, weir) = pair().await;
    let request = chat("x-weir-max-input-tokens: 1\r\n", hello(&json!({})));
    let answer = ask(weir.address, request).await;
    answer.assert_error(400, "context_length_exceeded");
    assert!(upstream.requests().is_empty());
}

/// Three events and a partial fourth, all in one piece with the end of the connection.
const CUT: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    transfer-encoding: chunked\r\nconnection: close\r\n\r\n\
    a\r\ndata: one\n\r\na\r\ndata: two\n\r\nc\r\ndata: three\n\r\n40\r\ndata: fo";

#[tokio::test]
async fn what_came_before_a_cut_arrives() {
    const TIMES: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        for _ in 0..TIMES {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                stream.read_buf(&mut request).await.expect("the request comes");
            }
            stream.write_all(CUT.as_bytes()).await.expect("the caller listens");
        }
    });
    let weir = harness::start(&address, |_| {}).await;
    let request = chat("", hello(&json!({"stream": true})));
    for _ in 0..TIMES {
        let mut stream = TcpStream::connect(weir.address).await.expect("weir listens");
        stream.write_all(&request).await.expect("weir listens");
        let mut received = Vec::new();
        // A reset is also an end; the bytes before it count.
        let _ = stream.read_to_end(&mut received).await;
        let received = String::from_utf8(received).expect("text");
        for event in ["HTTP/1.1 200", "data: one", "data: two", "data: three"] {
            assert!(received.contains(event), "{event} is missing: {received}");
        }
        assert!(!received.ends_with("\r\n0\r\n\r\n"), "nothing says that this was all");
    }
}
