//! Limits of a key: requests and tokens per minute, concurrent requests.

use weir::config::{AuthMode, Config, Secret};

use super::setting::{OWN_KEY, Setting, post, start};
use crate::budgets::server::{Prefix, Server};
use crate::server::harness::{
    FINE, Message, Upstream, Wire, ask, ask_until, bare, body_of, chat, start_with,
};

/// Answer that reports its usage.
const USED: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 67\r\n\r\n\
                    {\"usage\":{\"prompt_tokens\":900,\"completion_tokens\":90000,\"total\":1}}";

/// Asserts that this is OpenAI's refusal of too many requests or tokens per minute.
fn assert_limited(answer: &Message, kind: &str) {
    assert_eq!(answer.status(), 429, "{answer:?}");
    assert_eq!(answer.header("x-weir-error"), Some("rate_limit_exceeded"));
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
    assert_eq!(body["error"]["type"], kind);
}

fn retry_after(answer: &Message) -> Option<u64> {
    answer.header("retry-after").map(|value| value.parse().expect("seconds"))
}

/// Sends requests until the key is let in again: its place is released when the answer's body is
/// dropped, a moment after its last byte.
async fn let_in_again(setting: &Setting, request: &[u8]) {
    ask_until(setting.weir.address, request, 200).await;
}

#[tokio::test]
async fn requests_a_minute_are_counted_over_all_routes() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", r#"{"requests_per_minute":4}"#).await;
    let other = setting.key("a", r#"{"requests_per_minute":4}"#).await;
    let header = key.header();
    for request in [
        chat(&header, body_of(100)),
        bare("GET", "/v1/models", &header).into_bytes(),
        post("/v1/embeddings", &header, r#"{"model":"m"}"#).into_bytes(),
        post("/weir/v1/plan", &header, body_of(100)).into_bytes(),
    ] {
        assert_eq!(setting.ask(request).await.status(), 200);
    }
    for request in [chat(&header, body_of(100)), bare("GET", "/v1/models", &header).into_bytes()] {
        let limited = setting.ask(request).await;
        assert_limited(&limited, "requests");
        assert!(retry_after(&limited).is_some_and(|after| (1..=15).contains(&after)));
    }
    let answer = setting.ask(chat(&other.header(), body_of(100))).await;
    assert_eq!(answer.status(), 200, "each key for itself");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn weirs_that_share_a_redis_count_together() {
    let server = Server::shared();
    let prefix = Prefix::new(&server);
    let upstream = Upstream::always(FINE).await;
    let together = |config: &mut Config| {
        config.redis.url = Secret::new(&server.url);
        config.redis.key_prefix.clone_from(&prefix.name);
    };
    let one = start(&upstream, together).await;
    let other = start_with(one.store.clone(), &upstream, |config| {
        config.auth.mode = AuthMode::Keys;
        config.upstream.provider_key = Some(Secret::new(OWN_KEY));
        together(config);
    })
    .await;
    let key = one.key("a", r#"{"requests_per_minute":2}"#).await;
    let request = chat(&key.header(), body_of(100));
    assert_eq!(one.ask(&request).await.status(), 200);
    assert_eq!(ask(other.address, &request).await.status(), 200);
    assert_limited(&one.ask(&request).await, "requests");
    assert_limited(&ask(other.address, &request).await, "requests");
}

#[tokio::test]
async fn what_is_left_is_told_by_openais_headers() {
    let upstream = Upstream::always(
        "HTTP/1.1 200 OK\r\nx-ratelimit-remaining-tokens: 7\r\nx-ratelimit-limit-images: 3\r\n\
         content-length: 2\r\n\r\n[]",
    )
    .await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", r#"{"requests_per_minute":60,"tokens_per_minute":1000000}"#).await;
    let answer = setting.ask(chat(&key.header(), body_of(100))).await;
    let told = |name: &str| answer.header(&format!("x-ratelimit-{name}")).map(str::to_owned);
    assert_eq!(told("limit-requests").as_deref(), Some("60"));
    assert_eq!(told("remaining-requests").as_deref(), Some("59"));
    assert_eq!(told("reset-requests").as_deref(), Some("1s"));
    assert_eq!(told("limit-tokens").as_deref(), Some("1000000"));
    let remaining: u64 = told("remaining-tokens").expect("it is told").parse().expect("a number");
    assert!((999_000..1_000_000).contains(&remaining), "{remaining}");
    assert_eq!(
        told("limit-images").as_deref(),
        Some("3"),
        "what weir does not count is the upstream's"
    );
    let other = setting.key("a", "{}").await;
    let answer = setting.ask(chat(&other.header(), body_of(100))).await;
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("7"));
}

#[tokio::test]
async fn what_was_used_counts_and_not_what_was_guessed() {
    let upstream = Upstream::always(USED).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", r#"{"tokens_per_minute":1000}"#).await;
    let request = chat(&key.header(), body_of(100));
    let mut wire = Wire::connect(setting.weir.address).await;
    assert_eq!(wire.ask(&request).await.status(), 200);
    // The answer's usage is counted before the connection takes the next request.
    let limited = wire.ask(&request).await;
    assert_limited(&limited, "tokens");
    assert!(retry_after(&limited).is_some_and(|after| (500..=600).contains(&after)), "{limited:?}");
    let limited = wire.ask(post("/v1/embeddings", &key.header(), r#"{"model":"m"}"#)).await;
    assert_limited(&limited, "tokens");
}

#[tokio::test]
async fn what_the_provider_has_cached_is_free_if_the_key_says_so() {
    let usage = r#"{"usage":{"prompt_tokens":90000,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":89900}}}"#;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    let upstream = Upstream::always(format!("{head}{}\r\n\r\n{usage}", usage.len()).leak()).await;
    let setting = start(&upstream, |_| {}).await;
    for (free, asked) in [("true", 9), ("false", 1)] {
        let limits = format!(r#"{{"tokens_per_minute":1000,"cached_tokens_free":{free}}}"#);
        let key = setting.key("a", &limits).await;
        let request = chat(&key.header(), body_of(100));
        let mut wire = Wire::connect(setting.weir.address).await;
        for _ in 0..asked {
            assert_eq!(wire.ask(&request).await.status(), 200, "{free}");
        }
        let mut limited = wire.ask(&request).await;
        while free == "true" && limited.status() == 200 {
            limited = wire.ask(&request).await;
        }
        assert_limited(&limited, "tokens");
    }
}

#[tokio::test]
async fn what_the_upstream_refused_used_nothing() {
    let upstream = Upstream::always("HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}").await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", r#"{"tokens_per_minute":100}"#).await;
    let mut wire = Wire::connect(setting.weir.address).await;
    for _ in 0..20 {
        // Each is counted as some 60 tokens before it is sent.
        let answer = wire.ask(chat(&key.header(), body_of(180))).await;
        assert_eq!(answer.status(), 500, "{answer:?}");
    }
}

#[tokio::test]
async fn a_request_that_never_fits_is_told_so() {
    let setting = start("127.0.0.1:1", |_| {}).await;
    let key = setting.key("a", r#"{"tokens_per_minute":100}"#).await;
    let limited = setting.ask(chat(&key.header(), body_of(1000))).await;
    assert_limited(&limited, "tokens");
    assert_eq!(retry_after(&limited), None);
    assert_eq!(limited.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn a_place_is_held_until_the_answer_has_ended() {
    let mut upstream = Upstream::start().await;
    let setting = start(&upstream.address.clone(), |_| {}).await;
    let key = setting.key("a", r#"{"max_concurrent":1}"#).await;
    let request = chat(&key.header(), body_of(100));
    let mut first = Wire::connect(setting.weir.address).await;
    first.send(&request).await;
    let seen = upstream.next().await;
    let limited = setting.ask(&request).await;
    assert_limited(&limited, "requests");
    assert_eq!(retry_after(&limited), Some(1));
    seen.begin("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n");
    assert!(first.head().await.expect("a head").contains(" 200 "));
    assert_eq!(first.chunk().await.as_deref(), Some(&b"{\"a\":1}"[..]));
    assert_limited(&setting.ask(&request).await, "requests");
    seen.begin("0\r\n\r\n");
    assert_eq!(first.chunk().await, None);
    drop(seen);
    tokio::spawn(async move {
        loop {
            upstream.next().await.answer(FINE);
        }
    });
    let_in_again(&setting, &request).await;
}

#[tokio::test]
async fn a_caller_that_leaves_gives_its_place_back() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (key, begun) in [("", ""), ("", head), (r#","tokens_per_minute":1000000"#, head)] {
        let mut upstream = Upstream::start().await;
        // It is read on for longer than the test lasts.
        let drains = |config: &mut Config| config.ledger.drain_ms = 3_600_000;
        let setting = start(&upstream.address.clone(), drains).await;
        let key = setting.key("a", &format!(r#"{{"max_concurrent":1{key}}}"#)).await;
        let request = chat(&key.header(), body_of(100));
        let mut first = Wire::connect(setting.weir.address).await;
        first.send(&request).await;
        let unanswered = upstream.next().await;
        if !begun.is_empty() {
            unanswered.begin(begun);
            unanswered.begin("7\r\n{\"a\":1}\r\n");
            assert!(first.head().await.expect("a head").contains(" 200 "));
        }
        drop(first);
        tokio::spawn(async move {
            let _kept = unanswered;
            loop {
                upstream.next().await.answer(FINE);
            }
        });
        let_in_again(&setting, &request).await;
    }
}
