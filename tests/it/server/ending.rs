//! Shutdown of a server: requests in flight finish, within a deadline.

use weir::server::Ending;

use super::harness::{FINE, Upstream, Wire, bare, body_of, chat, start};

#[tokio::test]
async fn what_is_in_flight_is_finished() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut idle = Wire::connect(weir.address).await;
    assert_eq!(idle.ask(bare("GET", "/readyz", "")).await.status(), 200);
    let mut waiting = Wire::connect(weir.address).await;
    waiting.send(chat("", body_of(100))).await;
    let seen = upstream.next().await;

    weir.shutdown.drain();
    idle.assert_ends().await;
    weir.stops_listening().await;
    assert!(!weir.running.is_finished());

    seen.answer(FINE);
    let answer = waiting.message().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.body, b"[]");
    waiting.assert_ends().await;
    assert_eq!(weir.running.await.expect("no panic"), Ending::Finished);
}

#[tokio::test]
async fn a_body_that_is_still_coming_is_waited_for() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
         content-length: 100\r\n\r\n",
    )
    .await;
    assert!(wire.head().await.expect("interim").contains("100"));
    weir.shutdown.drain();
    weir.stops_listening().await;
    wire.send(body_of(100)).await;
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
    assert_eq!(weir.running.await.expect("no panic"), Ending::Finished);
}

#[tokio::test]
async fn a_stream_in_flight_is_finished() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(bare("GET", "/v1/responses/r?stream=true", "")).await;
    let seen = upstream.next().await;
    seen.begin(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
         9\r\ndata: 1\n\n\r\n",
    );
    let head = wire.head().await.expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(wire.chunk().await.as_deref(), Some(&b"data: 1\n\n"[..]));
    weir.shutdown.drain();
    weir.stops_listening().await;
    seen.answer("9\r\ndata: 2\n\n\r\n0\r\n\r\n");
    assert_eq!(wire.chunk().await.as_deref(), Some(&b"data: 2\n\n"[..]));
    assert_eq!(wire.chunk().await, None);
    assert_eq!(weir.running.await.expect("no panic"), Ending::Finished);
}

#[tokio::test]
async fn the_deadline_is_kept() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.server.drain_deadline_ms = 1;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", body_of(100))).await;
    let _unanswered = upstream.next().await;
    weir.shutdown.drain();
    assert_eq!(weir.running.await.expect("no panic"), Ending::Overdue(1));
    wire.assert_ends().await;
}

#[tokio::test]
async fn a_second_wish_ends_at_once() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.server.drain_deadline_ms = u64::MAX >> 20;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", body_of(100))).await;
    let _unanswered = upstream.next().await;
    weir.shutdown.drain();
    weir.shutdown.end();
    assert_eq!(weir.running.await.expect("no panic"), Ending::Forced);
    wire.assert_ends().await;
}
