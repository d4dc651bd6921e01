//! Requests without an ordinary end: callers that leave, absent upstreams, and a store that cannot
//! be written.

use std::net::SocketAddr;

use rusqlite::Connection;
use serde_json::Value;
use tokio::net::TcpListener;
use weir::config::OnFailure;
use weir_store::Store;
use weir_store::ledger::Flags;

use super::{post, rows, tokens, whole, with_journal};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Seen, Server};
use crate::server::harness::{Upstream, Wire, ask, ask_until, bare, chat, start_with};

const BODY: &str = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"a"}]}"#;

/// Sends a request whose caller leaves in the middle of a stream; returns its row.
async fn left(drain_ms: u64) -> (Seen, weir_store::ledger::RequestRow) {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let store = Store::in_memory().expect("there is memory");
    let weir = start_with(store.clone(), &upstream.addr.to_string(), |config| {
        config.ledger.drain_ms = drain_ms;
        config.server.max_connections = 1;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("x-upstream-fault: hold_after:3\r\n", BODY)).await;
    assert!(wire.head().await.expect("a head").starts_with("HTTP/1.1 200"));
    assert!(wire.chunk().await.is_some());
    drop(wire);
    // There is one place: an admitted request shows that the caller's place is free.
    ask_until(weir.address, bare("GET", "/healthz", "connection: close\r\n"), 200).await;
    upstream.release();
    let row = rows(&store, 1).await.remove(0);
    upstream.wait_for(|log| log.iter().all(Seen::ended)).await;
    (upstream.requests().remove(0), row)
}

#[tokio::test]
async fn a_caller_that_leaves_has_its_usage_counted() {
    let (seen, row) = left(60_000).await;
    assert!(seen.completed, "it was read to its end");
    assert_eq!(tokens(&row), [seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens]);
    assert_eq!(row.settlement.outcome, "caller_left");
    assert!(row.settlement.flags.any(Flags::CALLER_LEFT));
    assert!(!row.settlement.flags.any(Flags::ESTIMATED | Flags::USAGE_MISSING), "{row:?}");
}

#[tokio::test]
async fn a_caller_that_takes_nothing_of_its_answer_has_left() {
    let mut upstream = Upstream::start().await;
    let store = Store::in_memory().expect("there is memory");
    let weir = start_with(store.clone(), &upstream.address.clone(), |config| {
        config.ledger.drain_ms = 0;
        config.server.body_idle_timeout_ms = 100;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", BODY)).await;
    let mut seen = upstream.next().await;
    // More than the buffers of two connections take.
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n".repeat(1 << 20);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: ";
    seen.begin(format!("{head}{}\r\n\r\n{events}", events.len()));
    seen.left().await;
    let row = rows(&store, 1).await.remove(0);
    assert_eq!(row.settlement.outcome, "caller_left");
    assert!(row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");
    drop(wire);
}

#[tokio::test]
async fn one_whose_answer_is_not_read_on_is_estimated() {
    let (_, row) = left(0).await;
    assert_eq!(row.settlement.outcome, "caller_left");
    assert!(row.settlement.flags.any(Flags::CALLER_LEFT));
    assert!(row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");
    assert_eq!(row.settlement.prompt_tokens, row.sent_tokens);
}

#[tokio::test]
async fn a_stream_that_reports_a_failure_has_failed() {
    let messages = r#"{"model":"claude-sonnet-4","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"a"}]}"#;
    let responses = r#"{"model":"gpt-4o","stream":true,"input":"a"}"#;
    let text = r#"{"type":"response.output_text.delta","delta":"some text here"}"#;
    for (path, body, events) in [
        (
            "/v1/chat/completions",
            BODY,
            [
                r#"{"choices":[{"delta":{"content":"some text here"}}]}"#,
                r#"{"error":{"code":502,"message":"x"}}"#,
            ],
        ),
        (
            "/v1/responses",
            responses,
            [
                text,
                r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}"#,
            ],
        ),
        (
            "/v1/responses",
            responses,
            [text, r#"{"type":"error","code":"server_error","message":"x"}"#],
        ),
        (
            "/v1/messages",
            messages,
            [
                r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"some text here"}}"#,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            ],
        ),
    ] {
        let mut upstream = Upstream::start().await;
        let store = Store::in_memory().expect("there is memory");
        let weir = with_journal(&store, &upstream.address).await;
        let request = post(path, "", body);
        let (answer, ()) = tokio::join!(whole(weir.address, &request), async {
            let stream = events.map(|event| format!("data: {event}\n\n")).concat();
            upstream.next().await.answer(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{stream}",
                stream.len()
            ));
        });
        assert!(answer.body.ends_with(&format!("data: {}\n\n", events[1])), "{answer:?}");
        let row = rows(&store, 1).await.remove(0);
        assert_eq!(row.settlement.outcome, "upstream_failed", "{path}");
        // What was said is estimated, and no more.
        assert_eq!(row.settlement.completion_tokens, Some(4), "{path}");
    }
}

#[tokio::test]
async fn what_was_not_sent_costs_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let nobody = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let store = Store::in_memory().expect("there is memory");
    let weir = with_journal(&store, &nobody).await;
    for path in ["/v1/chat/completions", "/v1/embeddings"] {
        let answer = whole(weir.address, &post(path, "", BODY)).await;
        assert!(answer.head.iter().any(|line| line.starts_with("HTTP/1.1 502")), "{answer:?}");
    }
    for row in rows(&store, 2).await {
        assert!(row.settlement.flags.any(Flags::NOT_SENT), "{row:?}");
        assert_eq!(row.settlement.cost_nano_usd, Some(0));
        assert_eq!((tokens(&row), row.settlement.status), ([None; 3], None));
    }
}

/// Returns the answer of `/readyz`.
async fn ready(address: SocketAddr) -> String {
    let answer = ask(address, bare("GET", "/readyz", "")).await;
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    body.to_string()
}

#[tokio::test]
async fn a_log_that_cannot_be_written_does_as_it_is_told() {
    for on_failure in [OnFailure::Closed, OnFailure::Open] {
        let folder = Folder::new();
        let store = Store::open(&folder.file("weir.db")).expect("a new file");
        let upstream = Server::start(Options::default()).await.expect("a free port");
        let weir = start_with(store.clone(), &upstream.addr.to_string(), |config| {
            config.ledger.on_failure = on_failure;
        })
        .await;
        let request = chat("connection: close\r\n", BODY);
        let healthy = ready(weir.address).await;
        // A file at the path of the logs' folder.
        let in_the_way = folder.file("weir.db.instances");
        std::fs::write(&in_the_way, "").expect("it can be written");
        let answer = ask(weir.address, &request).await;
        let expected = if on_failure == OnFailure::Closed {
            let said = answer.assert_error(503, "store_unavailable");
            assert!(said.contains("ledger.on_failure"), "{said}");
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
            0
        } else {
            assert_eq!(answer.status(), 200, "{answer:?}");
            1
        };
        assert_eq!(upstream.requests().len(), expected);
        let failing = ready(weir.address).await;
        assert!(failing.contains("failing") && !healthy.contains("failing"), "{failing}");
        std::fs::remove_file(in_the_way).expect("it is there");
        assert_eq!(ask(weir.address, &request).await.status(), 200);
        assert_eq!(ready(weir.address).await, healthy);
        // Requests without an intent are still settled, and unsent ones have no row.
        for row in rows(&store, expected + 1).await {
            assert!(!row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");
        }
        assert_eq!(store.orphans(9).await, Ok(Vec::new()));
    }
}

#[tokio::test]
async fn a_store_that_another_holds_stops_no_request_and_is_told() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("a new file");
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let weir = start_with(store.clone(), &upstream.addr.to_string(), |config| {
        config.ledger.on_failure = OnFailure::Closed;
    })
    .await;
    let request = chat("connection: close\r\n", BODY);
    let healthy = ready(weir.address).await;
    let other = Connection::open(&path).expect("it was just made");
    other.busy_timeout(std::time::Duration::from_secs(10)).expect("a time");
    other.execute_batch("BEGIN EXCLUSIVE").expect("it is free at some moment");
    assert_eq!(ask(weir.address, &request).await.status(), 200);
    let look = async || ready(weir.address).await;
    eventually(DEADLINE, look, |ready| ready.contains("failing")).await;
    assert_eq!(ask(weir.address, &request).await.status(), 200);
    other.execute_batch("ROLLBACK").expect("it was begun");
    eventually(DEADLINE, look, |ready| *ready == healthy).await;
    for row in rows(&store, 2).await {
        assert!(!row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");
    }
    assert_eq!(store.orphans(9).await, Ok(Vec::new()));
}
