//! Requests that are sent again to the same upstream: the triggers, the number of attempts, and
//! requests that are never repeated.

use serde_json::json;

use super::setting::{
    Play, Up, failing, memory, nowhere, question, rows, said, send, status, weir,
};
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{Wire, ask, bare, chat};

const PATIENT: &str = "[upstream]\nurl = \"{a}\"\nretries.max = 2\nretries.max_wait_ms = 20";

#[tokio::test]
async fn what_may_pass_is_sent_again_byte_for_byte() {
    let limited = |headers: &str| Play::Answer(status(429, headers, "{}"));
    for (plays, attempts) in [
        (vec![Play::Reset], 2),
        (vec![Play::Last(Vec::new())], 2),
        (vec![failing(408), failing(409)], 3),
        (vec![failing(500), failing(503)], 3),
        (vec![limited("")], 2),
        (vec![limited("retry-after: 0\r\n")], 2),
        (vec![limited("retry-after: 9\r\nretry-after-ms: 3\r\n")], 2),
        (vec![failing(529), failing(520)], 3),
    ] {
        for stream in [false, true] {
            let (a, store) = (Up::start("a").await, memory());
            let ups = [("a", a.url())];
            let weir = weir(&store, PATIENT, &ups).await;
            a.then(plays.clone());
            let mut body = question("gpt-4o");
            body["stream"] = json!(stream);
            let answer = send(&weir, &body).await;
            assert_eq!((answer.status(), said(&answer).as_str()), (200, "from a"));
            let told = attempts.to_string();
            assert_eq!(answer.header("x-weir-attempts"), Some(told.as_str()));
            let seen = a.seen();
            assert_eq!(seen.len(), attempts);
            for again in &seen[1..] {
                assert_eq!((&again.head, &again.body), (&seen[0].head, &seen[0].body));
            }
            let rows = rows(&store, &ups).await;
            assert_eq!(rows.len(), attempts, "{rows:?}");
            let complete = rows.iter().filter(|row| row.starts_with("a gpt-4o complete 200 "));
            assert_eq!(complete.count(), 1);
        }
    }
}

#[tokio::test]
async fn what_will_not_pass_is_not_sent_again() {
    for (play, code) in [
        (failing(400), 400),
        (failing(401), 401),
        (failing(404), 404),
        (failing(501), 501),
        (failing(505), 505),
        (Play::Answer(status(429, "retry-after: 1\r\nx-kept: 1\r\n", "{\"kept\": 1.0}")), 429),
        (Play::Answer(status(503, "retry-after: Sun, 06 Nov 2094 08:49:37 GMT\r\n", "{}")), 503),
        (Play::Answer(status(503, "x-should-retry: false\r\n", "{}")), 503),
    ] {
        let (a, store) = (Up::start("a").await, memory());
        let weir = weir(&store, PATIENT, &[("a", a.url())]).await;
        a.then([play.clone()]);
        let answer = send(&weir, &question("gpt-4o")).await;
        assert_eq!(answer.status(), code);
        assert_eq!(answer.header("x-weir-attempts"), None);
        assert_eq!(answer.header("x-weir-error"), None);
        let Play::Answer(bytes) = play else { continue };
        let (head, body) = bytes.split_once("\r\n\r\n").expect("a head");
        assert_eq!(String::from_utf8_lossy(&answer.body), body, "verbatim");
        for line in head.lines().skip(1) {
            let (name, value) = line.split_once(": ").expect("a header");
            assert_eq!(answer.header(name), Some(value));
        }
        assert_eq!(a.seen().len(), 1);
    }
}

#[tokio::test]
async fn retries_end_with_the_last_answer_as_it_is() {
    let (a, store) = (Up::start("a").await, memory());
    let ups = [("a", a.url())];
    let weir = weir(&store, PATIENT, &ups).await;
    a.then([failing(500), failing(429), failing(503), failing(500)]);
    let answer = send(&weir, &question("gpt-4o")).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("x-weir-attempts"), Some("3"));
    assert_eq!(String::from_utf8_lossy(&answer.body), r#"{"error":{"message":"no 503"}}"#);
    assert_eq!(a.seen().len(), 3);
    let expected = ["a gpt-4o complete 503 -", "a gpt-4o retried 429 -", "a gpt-4o retried 500 -"];
    assert_eq!(costless(rows(&store, &ups).await), expected);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_tried_as_often() {
    let store = memory();
    let ups = [("a", nowhere().await)];
    let weir = weir(&store, PATIENT, &ups).await;
    let answer = send(&weir, &question("gpt-4o")).await;
    answer.assert_error(502, "upstream_connect");
    assert_eq!(costless(rows(&store, &ups).await), ["a gpt-4o upstream_connect - -"; 3]);
}

#[tokio::test]
async fn without_being_told_nothing_is_sent_again() {
    let (a, store) = (Up::start("a").await, memory());
    let weir = weir(&store, "[upstream]\nurl = \"{a}\"", &[("a", a.url())]).await;
    a.then([failing(503)]);
    assert_eq!(send(&weir, &question("gpt-4o")).await.status(), 503);
    assert_eq!(a.seen().len(), 1);
}

#[tokio::test]
async fn a_body_that_is_streamed_through_is_sent_once() {
    let (a, store) = (Up::start("a").await, memory());
    let weir = weir(&store, PATIENT, &[("a", a.url())]).await;
    for (request, code, sends) in [
        (
            "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\nab".to_owned(),
            503,
            1,
        ),
        (bare("GET", "/v1/files", ""), 200, 2),
    ] {
        a.then([failing(503)]);
        assert_eq!(ask(weir.address, request).await.status(), code);
        assert_eq!(a.seen().len(), sends);
        a.then([]);
    }
}

#[tokio::test]
async fn a_caller_that_leaves_ends_the_waiting() {
    let (a, store) = (Up::start("a").await, memory());
    let toml = "[upstream]\nurl = \"{a}\"\nretries.max = 9\nretries.max_wait_ms = 86400000";
    let ups = [("a", a.url())];
    let weir = weir(&store, toml, &ups).await;
    a.then([Play::Answer(status(429, "retry-after: 86400\r\n", "{}"))]);
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", question("gpt-4o").to_string())).await;
    // The refusal is recorded before the wait begins.
    eventually(DEADLINE, async || rows(&store, &ups).await, |rows| !rows.is_empty()).await;
    drop(wire);
    weir.shutdown.drain();
    let running = tokio::time::timeout(std::time::Duration::from_secs(60), weir.running);
    running.await.expect("nobody waits").expect("it ends");
    assert_eq!(a.seen().len(), 1);
}

/// Returns rows without their costs, which only answered ones have.
fn costless(rows: Vec<String>) -> Vec<String> {
    rows.into_iter()
        .map(|row| match row.rsplit_once(' ') {
            Some((rest, "0" | "-")) => format!("{rest} -"),
            _ => row,
        })
        .collect()
}
