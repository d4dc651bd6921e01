//! Callers that leave before the end of a stream: weir reads it on for its usage, for a limited
//! time.

use std::sync::Arc;

use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use serde_json::Value;
use weir::config::Config;
use weir::proxy::{Admission, Caller, ChatRequest, Proxy, RequestOptions, RequestedModel, Tenant};
use weir::server::Ending;
use weir::upstream::{Client, Target};
use weir_engine::wire::Protocol;
use weir_store::Store;

use super::harness::{Seen, Upstream, Weir, Wire, chat, start};
use crate::upstream::{capture_log, log_line};

const BEGUN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    transfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\n";

const BODY: &str = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"a"}]}"#;

/// Starts a weir whose caller leaves in the middle of a stream.
async fn left(drain_ms: u64, drain_deadline_ms: u64) -> (Weir, Seen) {
    capture_log();
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.ledger.drain_ms = drain_ms;
        config.server.drain_deadline_ms = drain_deadline_ms;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", BODY)).await;
    let seen = upstream.next().await;
    seen.begin(BEGUN);
    assert!(wire.head().await.expect("a head").starts_with("HTTP/1.1 200"));
    assert!(wire.chunk().await.is_some());
    (weir, seen)
}

/// Stops a weir, which waits for streams without a caller; returns its one log line.
async fn ended(weir: Weir) -> Value {
    weir.shutdown.drain();
    assert_eq!(weir.running.await.expect("no panic"), Ending::Finished);
    log_line()
}

#[tokio::test]
async fn the_usage_is_read_though_nobody_listens() {
    capture_log();
    let mut upstream = Upstream::start().await;
    let mut config = Config::default();
    config.upstream.url = format!("http://{}/v1", upstream.address);
    config.ledger.drain_ms = u64::MAX >> 20;
    let client = Client::new(&config.upstream).expect("a client");
    let store = Store::in_memory().expect("there is memory");
    let proxy = Proxy::new(Arc::new(config), client, store).expect("there is memory");
    let call = ChatRequest {
        protocol: Protocol::Chat,
        target: Target::map(proxy.base(), "/v1/chat/completions").expect("a known path"),
        method: Method::POST,
        headers: HeaderMap::new(),
        received: BODY.into(),
        decoded: BODY.into(),
        caller: Caller::new(Tenant([0; 16]), None),
        admission: Admission::unlimited(),
        permit: Box::new(()),
        options: RequestOptions::default(),
        model: RequestedModel::default(),
        asked: Default::default(),
        recall: None,
    };
    let begun = async {
        let seen = upstream.next().await;
        seen.begin(BEGUN);
        seen
    };
    let (response, seen) = tokio::join!(proxy.handle(call), begun);
    let mut body = response.expect("an answer").into_body();
    body.frame().await.expect("a frame").expect("a chunk");
    drop(body);
    seen.begin(format!("{:x}\r\n{USAGE}\r\n", USAGE.len()));
    seen.begin("e\r\ndata: [DONE]\n\n\r\n");
    proxy.drains().settled().await;
    let line = log_line();
    assert_eq!(line["outcome"], "caller_left");
    assert_eq!(line["prompt_tokens"], 7);
    assert_eq!(line["completion_tokens"], 5);
    assert_eq!(line["bytes_out"], 9);
}

#[tokio::test]
async fn the_server_s_end_waits_for_it() {
    let (weir, seen) = left(u64::MAX >> 20, 60_000).await;
    weir.shutdown.drain();
    weir.stops_listening().await;
    assert!(!weir.running.is_finished());
    seen.begin(format!("{:x}\r\n{USAGE}\r\n", USAGE.len()));
    seen.begin("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    assert_eq!(ended(weir).await["prompt_tokens"], 7);
}

#[tokio::test]
async fn after_a_while_it_is_cancelled() {
    for drain_ms in [0, 1, 30] {
        let (weir, mut seen) = left(drain_ms, 60_000).await;
        seen.left().await;
        let line = ended(weir).await;
        assert_eq!(line["outcome"], "caller_left", "{drain_ms}");
        assert_eq!(line["prompt_tokens"], Value::Null);
    }
}

#[tokio::test]
async fn the_end_of_the_server_is_the_end_of_it() {
    let (weir, mut seen) = left(u64::MAX >> 20, 200).await;
    let line = ended(weir).await;
    assert_eq!(line["outcome"], "caller_left");
    seen.left().await;
}
