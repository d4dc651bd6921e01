//! Upstream connections, driven without a listener: `Proxy` against upstreams that speak raw TCP,
//! so that tests see the actual bytes on the wire.

mod setting;

use bytes::Bytes;
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use weir::proxy::{ChatRequest, ErrorKind, Room};

use crate::eventually::{DEADLINE, eventually};
use setting::*;
pub use setting::{capture_log, log_line, log_lines};

#[tokio::test]
async fn an_untouched_call_goes_out_byte_for_byte() {
    let upstream = Scripted::start(vec![Reply::Keep(OK.into())]).await;
    let proxy = proxy_to(upstream.port);
    let call = chat(
        &proxy,
        b"not even json, as compressed bytes are not",
        &[
            ("authorization", "Bearer secret"),
            ("accept-encoding", "gzip, br"),
            ("content-encoding", "gzip"),
            ("content-type", "application/json"),
            ("connection", "x-private"),
            ("x-private", "1"),
            ("x-weir-max-input-tokens", "100"),
            ("content-length", "7"),
            ("host", "127.0.0.1:8400"),
            ("x-two", "a"),
            ("x-two", "b"),
        ],
    );
    let call = ChatRequest { decoded: Bytes::from_static(b"{}"), ..call };
    let response = proxy.handle(call).await.expect("an answer");
    let rows = response.headers();
    assert_eq!(rows["x-weir-action"], "unread");
    assert_eq!(rows.get("x-weir-edits"), None);
    for name in ["received", "sent", "limit"] {
        assert!(rows.contains_key(format!("x-weir-{name}-tokens")), "{name}");
    }
    assert_eq!(text(response).await, "ok");

    let seen = &upstream.seen()[0];
    assert_eq!(seen.line(), "POST /v1/chat/completions?q=1 HTTP/1.1");
    assert_eq!(seen.body, b"not even json, as compressed bytes are not");
    assert_eq!(seen.values("content-length"), ["42"]);
    assert_eq!(seen.values("content-encoding"), ["gzip"]);
    assert_eq!(seen.values("accept-encoding"), ["identity"]);
    assert_eq!(seen.values("authorization"), ["Bearer secret"]);
    assert_eq!(seen.values("x-two"), ["a", "b"]);
    assert_eq!(seen.values("host"), [format!("127.0.0.1:{}", upstream.port)]);
    assert!(seen.values("via")[0].starts_with("1.1 weir-"));
    for name in ["x-private", "x-weir-max-input-tokens", "connection"] {
        assert!(seen.values(name).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn an_error_of_the_upstream_comes_back_as_it_is() {
    let answer = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nx-request-id: r1\r\n\
                  x-ratelimit-remaining-tokens: 0\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
                  connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
                  x-weir-edits: stale\r\ncontent-length: 16\r\n\r\n{\"error\":\"slow\"}";
    let upstream = Scripted::start(vec![Reply::Keep(answer.into())]).await;
    let proxy = proxy_to(upstream.port);
    let response = proxy.handle(chat(&proxy, b"{}", &[])).await.expect("an answer");
    assert_eq!(response.status(), 429);
    let rows = response.headers();
    assert_eq!(rows["retry-after"], "7");
    assert_eq!(rows["x-request-id"], "r1");
    assert_eq!(rows["x-ratelimit-remaining-tokens"], "0");
    assert_eq!(rows["content-length"], "16");
    assert_eq!(rows.get_all("set-cookie").iter().count(), 2);
    for name in ["connection", "x-hop", "keep-alive", "x-weir-edits"] {
        assert_eq!(rows.get(name), None, "{name}");
    }
    assert_eq!(text(response).await, r#"{"error":"slow"}"#);
}

#[tokio::test]
async fn other_routes_stream_through_with_their_own_framing() {
    let moved = "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n";
    let size = "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\ncontent-encoding: br\r\n\r\n";
    let script = vec![
        Reply::Keep(OK.into()),
        Reply::Keep(OK.into()),
        Reply::Keep(moved.into()),
        Reply::Keep(size.into()),
        Reply::Keep(OK.into()),
    ];
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);

    let mut known = pass(&proxy, Method::POST, "/v1/files", full(b"--part--"));
    known.headers = headers(&[("accept-encoding", "zstd"), ("content-length", "8")]);
    text(proxy.pass(known).await.expect("an answer")).await;
    let chunks = streamed([Ok("ab"), Ok("cde")]);
    let unknown = pass(&proxy, Method::PUT, "/v1/files/x", chunks);
    text(proxy.pass(unknown).await.expect("an answer")).await;
    let get = pass(&proxy, Method::GET, "/v1/files/x/content", empty());
    let response = proxy.pass(get).await.expect("an answer");
    assert_eq!(response.status(), 302);
    assert_eq!(response.headers()["location"], "/elsewhere");
    text(response).await;
    let head = pass(&proxy, Method::HEAD, "/v1/files/x", empty());
    let response = proxy.pass(head).await.expect("an answer");
    assert_eq!(response.headers()["content-length"], "1234");
    assert_eq!(response.headers()["content-encoding"], "br");
    assert_eq!(text(response).await, "");
    let mut bare = pass(&proxy, Method::POST, "/v1/batches/b/cancel", empty());
    bare.headers = headers(&[("content-length", "0")]);
    text(proxy.pass(bare).await.expect("an answer")).await;

    let seen = upstream.seen();
    assert_eq!(seen[0].body, b"--part--");
    assert_eq!(seen[0].values("content-length"), ["8"]);
    assert_eq!(seen[0].values("accept-encoding"), ["zstd"]);
    assert!(seen[0].values("transfer-encoding").is_empty());
    assert_eq!(seen[1].body, b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n");
    assert_eq!(seen[1].values("transfer-encoding"), ["chunked"]);
    assert!(seen[2].values("content-length").is_empty());
    assert!(seen[2].values("transfer-encoding").is_empty());
    assert_eq!(seen[3].line(), "HEAD /v1/files/x HTTP/1.1");
    assert_eq!(seen[4].values("content-length"), ["0"]);
    assert!(seen.iter().all(|seen| seen.connection == 0), "one connection serves them all");
}

#[tokio::test]
async fn a_pooled_connection_that_closes_unanswered_is_made_up_for() {
    let script = vec![Reply::Keep(OK.into()), Reply::Close(String::new()), Reply::Keep(OK.into())];
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);
    for body in [&b"{\"first\":1}"[..], b"{\"second\":2}"] {
        let response = proxy.handle(chat(&proxy, body, &[])).await;
        assert_eq!(text(response.expect("an answer")).await, "ok");
    }
    let seen = upstream.seen();
    let connections: Vec<usize> = seen.iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 1]);
    assert_eq!(seen[1].head, seen[2].head);
    assert_eq!(seen[2].body, b"{\"second\":2}");
}

#[tokio::test]
async fn a_streamed_body_that_is_not_too_long_is_made_up_for_too() {
    let script = vec![
        Reply::Keep(OK.into()),
        Reply::Close(String::new()),
        Reply::Keep(OK.into()),
        Reply::Keep(OK.into()),
    ];
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);
    for chunks in [["a", "b"], ["c", "d"]] {
        let body = streamed(chunks.map(Ok));
        let response = proxy.pass(pass(&proxy, Method::POST, "/v1/responses", body)).await;
        assert_eq!(text(response.expect("an answer")).await, "ok");
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].body, b"1\r\nc\r\n1\r\nd\r\n0\r\n\r\n");
    assert_eq!(seen[1].body, seen[2].body);
}

#[tokio::test]
async fn a_streamed_body_that_is_too_long_to_keep_is_not_sent_again() {
    let script = vec![Reply::Keep(OK.into()), Reply::Close(String::new())];
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);
    let get = pass(&proxy, Method::GET, "/v1/models", empty());
    text(proxy.pass(get).await.expect("an answer")).await;
    static LONG: [u8; 600 * 1024] = [b'x'; 600 * 1024];
    let post = pass(&proxy, Method::POST, "/v1/files", full(&LONG));
    assert_eq!(kind(proxy.pass(post).await), ErrorKind::UpstreamClosed);
    assert_eq!(upstream.seen().len(), 2);
}

#[tokio::test]
async fn a_connection_closed_right_after_its_answer_costs_nothing() {
    let script = (0..20).map(|_| Reply::Close(OK.into())).collect();
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);
    for _ in 0..20 {
        let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
        assert_eq!(text(response.expect("an answer")).await, "ok");
    }
    assert_eq!(upstream.seen().len(), 20);
}

#[tokio::test]
async fn a_new_connection_that_closes_unanswered_is_not_tried_again() {
    let script = vec![Reply::Close(String::new()), Reply::Keep(OK.into())];
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);
    let result = proxy.handle(chat(&proxy, b"{}", &[])).await;
    assert_eq!(kind(result), ErrorKind::UpstreamClosed);
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn one_more_try_is_the_last() {
    let script = vec![
        Reply::Keep(OK.into()),
        Reply::Close(String::new()),
        Reply::Close(String::new()),
        Reply::Keep(OK.into()),
    ];
    let upstream = Scripted::start(script).await;
    let proxy = proxy_to(upstream.port);
    let first = proxy.handle(chat(&proxy, b"{}", &[])).await;
    text(first.expect("an answer")).await;
    let second = proxy.handle(chat(&proxy, b"{}", &[])).await;
    assert_eq!(kind(second), ErrorKind::UpstreamClosed);
    assert_eq!(upstream.seen().len(), 3);
}

#[tokio::test]
async fn a_cut_answer_ends_in_an_error() {
    capture_log();
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                  transfer-encoding: chunked\r\n\r\n7\r\ndata: 1\r\n";
    let upstream = Scripted::start(vec![Reply::Close(answer.into())]).await;
    let proxy = proxy_to(upstream.port);
    let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
    let mut body = response.expect("an answer").into_body();
    let first = body.frame().await.expect("a frame").expect("a chunk");
    assert_eq!(first.into_data().expect("data"), "data: 1");
    body.frame().await.expect("a frame").expect_err("cut");
    drop(body);
    let line = log_line();
    assert_eq!(line["outcome"], "upstream_cut");
    assert_eq!(line["bytes_out"], 7);
}

#[tokio::test]
async fn silence_in_an_answer_ends_it_in_an_error() {
    capture_log();
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n";
    let mut upstream = Scripted::start(vec![Reply::Hold(answer.into())]).await;
    let mut config = config(format!("http://127.0.0.1:{}/v1", upstream.port));
    config.upstream.idle_timeout_ms = 30;
    let proxy = proxy_of(config);
    let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
    let mut body = response.expect("an answer").into_body();
    body.frame().await.expect("a frame").expect("a chunk");
    let error = body.frame().await.expect("a frame").expect_err("silence");
    assert!(error.to_string().contains("upstream.timeouts_ms.idle"));
    upstream.left.recv().await.expect("the connection is given up");
    drop(body);
    assert_eq!(log_line()["outcome"], "idle_timeout");
}

#[tokio::test]
async fn an_upstream_that_does_not_begin_to_answer_is_given_up() {
    capture_log();
    let mut upstream = Scripted::start(vec![Reply::Hold(String::new())]).await;
    let mut config = config(format!("http://127.0.0.1:{}/v1", upstream.port));
    config.upstream.first_byte_timeout_ms = 30;
    let proxy = proxy_of(config);
    let result = proxy.handle(chat(&proxy, b"{}", &[])).await;
    assert_eq!(kind(result), ErrorKind::UpstreamTimeout);
    upstream.left.recv().await.expect("the connection is given up");
    let line = log_line();
    assert_eq!(line["outcome"], "upstream_timeout");
    assert_eq!(line["status"], 504);
    assert!(line.get("bytes_out").is_none(), "{line}");
}

#[tokio::test]
async fn a_caller_that_leaves_takes_the_upstream_request_along() {
    capture_log();
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n";
    let mut upstream = Scripted::start(vec![Reply::Hold(answer.into())]).await;
    let proxy = proxy_to(upstream.port);
    let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
    let mut body = response.expect("an answer").into_body();
    body.frame().await.expect("a frame").expect("a chunk");
    drop(body);
    upstream.left.recv().await.expect("the request is cancelled");
    assert_eq!(log_line()["outcome"], "caller_left");
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_answer_takes_the_request_along() {
    capture_log();
    let mut upstream = Scripted::start(vec![Reply::Hold(String::new())]).await;
    let proxy = proxy_to(upstream.port);
    let seen = async || upstream.seen.lock().expect("no test panics with it").len();
    tokio::select! {
        _ = proxy.handle(chat(&proxy, b"{}", &[])) => panic!("there is no answer"),
        _ = eventually(DEADLINE, seen, |seen| *seen > 0) => {}
    }
    upstream.left.recv().await.expect("the request is cancelled");
    assert_eq!(log_line()["outcome"], "caller_left");
}

#[tokio::test]
async fn a_line_tells_of_a_request_what_is_not_content() {
    capture_log();
    let upstream = Scripted::start(vec![Reply::Keep(OK.into())]).await;
    let proxy = proxy_to(upstream.port);
    let call = chat(&proxy, b"{\"secret\":1}", &[("authorization", "Bearer secret")]);
    text(proxy.handle(call).await.expect("an answer")).await;
    let line = log_line();
    assert_eq!(line["method"], "POST");
    assert_eq!(line["path"], "/v1/chat/completions");
    assert_eq!(line["status"], 200);
    assert_eq!(line["action"], "unread");
    assert_eq!(line["outcome"], "complete");
    assert_eq!(line["bytes_out"], 2);
    assert!(line["total_ms"].is_u64() && line["upstream_first_byte_ms"].is_u64());
    assert!(!line.to_string().contains("secret"));
}

#[tokio::test]
async fn usage_is_read_in_passing_and_the_bytes_stay_the_same() {
    capture_log();
    let json = r#"{"choices":[{"finish_reason":"stop"}],
        "usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    let events = "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\n\
                  data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\
                  \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
    for (content_type, body) in [("application/json", json), ("text/event-stream", events)] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let upstream = Scripted::start(vec![Reply::Keep(answer)]).await;
        let proxy = proxy_to(upstream.port);
        let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
        assert_eq!(text(response.expect("an answer")).await, body);
        let line = log_line();
        assert_eq!(line["prompt_tokens"], 9, "{content_type}");
        assert_eq!(line["completion_tokens"], 2, "{content_type}");
        assert_eq!(line["cached_tokens"], 4, "{content_type}");
    }
}

#[tokio::test]
async fn a_body_read_to_its_last_byte_is_complete_though_its_end_is_not_asked_for() {
    capture_log();
    let upstream = Scripted::start(vec![Reply::Keep(OK.into())]).await;
    let proxy = proxy_to(upstream.port);
    let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
    let mut body = response.expect("an answer").into_body();
    body.frame().await.expect("a frame").expect("a chunk");
    drop(body);
    assert_eq!(log_line()["outcome"], "complete");
}

/// Permit that reports when it is released.
struct Permit(mpsc::UnboundedSender<()>);

impl Drop for Permit {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Room for Permit {
    fn grow(&mut self, _: usize) -> bool {
        true
    }

    fn shrink(&mut self, _: usize) {}

    fn another(&self) -> Box<dyn Room> {
        Box::new(())
    }
}

#[tokio::test]
async fn the_bodys_place_in_memory_is_given_back_with_the_head() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let upstream = Scripted::start(vec![Reply::Hold(answer.into())]).await;
    let proxy = proxy_to(upstream.port);
    let (given, mut back) = mpsc::unbounded_channel();
    let call = ChatRequest { permit: Box::new(Permit(given)), ..chat(&proxy, b"{}", &[]) };
    let response = proxy.handle(call).await.expect("a head");
    back.try_recv().expect("the permit is back");
    drop(response);
}

#[tokio::test]
async fn a_request_that_comes_round_is_refused() {
    let upstream = Scripted::start(vec![Reply::Keep(OK.into())]).await;
    let proxy = proxy_to(upstream.port);
    let response = proxy.handle(chat(&proxy, b"{}", &[])).await;
    text(response.expect("an answer")).await;
    let seen = upstream.seen();
    let via = HeaderValue::from_str(seen[0].values("via")[0]).expect("a header's value");
    let mut again = chat(&proxy, b"{}", &[]);
    again.headers.insert("via", via.clone());
    assert_eq!(kind(proxy.handle(again).await), ErrorKind::LoopDetected);
    let mut again = pass(&proxy, Method::GET, "/v1/models", empty());
    again.headers.insert("via", via);
    assert_eq!(kind(proxy.pass(again).await), ErrorKind::LoopDetected);
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn what_the_caller_asks_is_checked_before_anything_is_sent() {
    let upstream = Scripted::start(Vec::new()).await;
    let proxy = proxy_to(upstream.port);
    let rows = [
        ("x-weir-max-input-tokens", "lots", ErrorKind::InvalidRequest),
        ("x-weir-bypass", "1", ErrorKind::BypassNotAllowed),
    ];
    for (name, value, expected) in rows {
        let call = chat(&proxy, b"{}", &[(name, value)]);
        assert_eq!(kind(proxy.handle(call).await), expected, "{name}");
    }
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn a_body_that_the_caller_does_not_finish_is_the_callers_fault() {
    let upstream = Scripted::start(Vec::new()).await;
    let proxy = proxy_to(upstream.port);
    let body = streamed([Ok("ab"), Err("gone".into())]);
    let post = pass(&proxy, Method::POST, "/v1/files", body);
    assert_eq!(kind(proxy.pass(post).await), ErrorKind::InvalidRequest);
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let proxy = proxy_to(port);
    let result = proxy.handle(chat(&proxy, b"{}", &[])).await;
    let error = result.map(|_| ()).expect_err("nobody listens");
    assert_eq!(error.kind, ErrorKind::UpstreamConnect);
    assert!(error.message.contains(&format!("http://127.0.0.1:{port}")), "{}", error.message);
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_said_to_be_none() {
    let upstream = Scripted::start(vec![Reply::Close("SSH-2.0-x\r\n\r\n".into())]).await;
    let proxy = proxy_to(upstream.port);
    let result = proxy.handle(chat(&proxy, b"{}", &[])).await;
    assert_eq!(kind(result), ErrorKind::UpstreamClosed);
    assert_eq!(upstream.seen().len(), 1);
}
