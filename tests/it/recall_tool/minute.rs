//! Tokens of a key's minute, and the counters of what is sent again, if a later round does not succeed.

use serde_json::{Value, json};

use super::answers::{Made, Protocol, call};
use super::{NUMBER, conversation, offers};
use crate::keys::setting::{self, Key, Setting};
use crate::ledger::rows;
use crate::server::harness::{Upstream, Wire, ask, ask_until, bare};

/// Tokens that the first round uses, of those that the key has in a minute.
const USED: u64 = 9_000_000;
const MINUTE: u64 = 10_000_000;
const REFUSAL: &str =
    "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

async fn start(upstream: &Upstream) -> (Setting, Key) {
    let keyed = setting::start(&upstream.address, |config| {
        offers(config);
        config.server.max_connections = 1;
        config.upstream.max_retries = 0;
        config.ledger.drain_ms = 0;
    })
    .await;
    let key = keyed.key("research", &format!(r#"{{"tokens_per_minute":{MINUTE}}}"#)).await;
    (keyed, key)
}

fn request(key: &Key, body: &Value) -> String {
    let headers = format!("{}x-weir-max-input-tokens: 8000\r\n", key.header());
    setting::post(Protocol::Chat.path(), &headers, body.to_string())
}

fn asks(streams: bool) -> String {
    let own = call("r1", "recall", json!({"messages": [NUMBER]}));
    Protocol::Chat.answer(&Made::calls(&[own], [USED, 9]), streams)
}

/// Asserts that the tokens of the first round were taken from the minute, once.
async fn assert_used(keyed: &Setting, upstream: &mut Upstream, key: &Key) {
    let mut wire = Wire::connect(keyed.weir.address).await;
    let request = request(key, &json!({"model": "gpt-4o", "messages": []}));
    let asking = tokio::spawn(async move { wire.ask(request).await });
    upstream.next().await.answer(REFUSAL);
    let answer = asking.await.expect("it is answered");
    let left = answer.header("x-ratelimit-remaining-tokens").expect("a limit");
    let left: u64 = left.parse().expect("a number");
    assert!((1..MINUTE / 2).contains(&left), "{left}");
}

#[tokio::test]
async fn a_round_that_is_refused_gives_no_tokens_of_the_rounds_before_back() {
    for streams in [false, true] {
        let mut upstream = Upstream::start().await;
        let (keyed, key) = start(&upstream).await;
        let mut body = conversation(Protocol::Chat, &[]);
        Protocol::Chat.stream(&mut body, streams);
        let mut wire = Wire::connect(keyed.weir.address).await;
        let first = request(&key, &body);
        let asking = tokio::spawn(async move { wire.ask(first).await });
        upstream.next().await.answer(asks(streams));
        upstream.next().await.answer(REFUSAL);
        let answer = asking.await.expect("it is answered");
        assert_eq!(answer.status(), if streams { 200 } else { 403 });
        assert_used(&keyed, &mut upstream, &key).await;
        let rows = rows(&keyed.store, 3).await;
        let ended =
            |nth: usize| (rows[nth].settlement.outcome.as_str(), rows[nth].settlement.status);
        assert_eq!([ended(0), ended(1)], [("recalled", Some(200)), ("complete", Some(403))]);
    }
}

#[tokio::test]
async fn a_caller_that_leaves_gets_no_tokens_of_the_rounds_before_back() {
    for streams in [false, true] {
        let mut upstream = Upstream::start().await;
        let (keyed, key) = start(&upstream).await;
        let mut body = conversation(Protocol::Chat, &[]);
        Protocol::Chat.stream(&mut body, streams);
        let mut wire = Wire::connect(keyed.weir.address).await;
        wire.send(request(&key, &body)).await;
        upstream.next().await.answer(asks(streams));
        let second = upstream.next().await;
        drop(wire);
        let health = bare("GET", "/healthz", "connection: close\r\n");
        ask_until(keyed.weir.address, health, 200).await;
        assert_used(&keyed, &mut upstream, &key).await;
        drop(second);
    }
}

#[tokio::test]
async fn a_round_that_is_refused_is_not_counted_as_sent_again() {
    for streams in [false, true] {
        let mut setting = super::Setting::start(|config| {
            offers(config);
            config.upstream.max_retries = 0;
        })
        .await;
        let mut body = conversation(Protocol::Chat, &[]);
        Protocol::Chat.stream(&mut body, streams);
        let answers = vec![asks(streams), REFUSAL.to_owned()];
        setting.exchange(Protocol::Chat, &body, answers).await;
        rows(&setting.store, 2).await;
        let page = ask(setting.weir.address, bare("GET", "/metrics", "")).await;
        let page = String::from_utf8(page.body).expect("text");
        let count = |reason: &str| {
            let is_own =
                |line: &&str| line.starts_with("weir_resends_total") && line.contains(reason);
            let line = page.lines().find(is_own);
            line.map_or(0, |line| line.ends_with(" 1").into())
        };
        assert_eq!((count("recall"), count("failure")), (1, 0), "{page}");
    }
}
