//! What is learned of a model's limits: for whom, for how long, and against what is configured.

use std::path::PathBuf;

use serde_json::json;
use weir::config::Secret;
use weir::proxy::learned::{LIMITS, limits_rows};
use weir::store::{Entry, Store, now_ms};

use super::{WINDOW, before, conversation, memory, send, upstream};
use crate::server::harness::Weir;

/// A file that is gone in the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("weir-heal-{name}-{}.db", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn open(&self) -> Store {
        Store::open(&self.0).expect("it can be opened")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

async fn limit_tokens(weir: &Weir, credential: &str, exchanges: usize) -> u64 {
    let answer = send(weir, credential, &conversation(exchanges, &json!({}))).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.header("x-weir-limit-tokens").expect("it is told").parse().expect("a number")
}

#[tokio::test]
async fn a_limit_survives_a_restart_and_reaches_a_second_process() {
    let upstream = upstream("openai", WINDOW).await;
    let file = File::new("restart");
    let first = before(&upstream, &file.open(), |_| {}).await;
    let second = before(&upstream, &file.open(), |_| {}).await;
    // The second has looked before there was anything to find.
    assert_eq!(limit_tokens(&second, "a", 1).await, 112_000);
    let learned = limit_tokens(&first, "a", 20).await;
    assert!(learned < WINDOW);
    let reached = async {
        while limit_tokens(&second, "a", 1).await != learned {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), reached).await.expect("it is told");
    drop((first, second));
    let third = before(&upstream, &file.open(), |_| {}).await;
    let sends = upstream.requests().len();
    assert_eq!(limit_tokens(&third, "a", 20).await, learned);
    assert_eq!(upstream.requests().len(), sends + 1);
}

#[tokio::test]
async fn what_was_learned_ends() {
    let upstream = upstream("openai", WINDOW).await;
    let file = File::new("ends");
    let store = file.open();
    limit_tokens(&before(&upstream, &store, |_| {}).await, "a", 20).await;
    let rows = limits_rows(&store, 10).await.expect("readable");
    let [row] = rows.as_slice() else { panic!("one model: {rows:?}") };
    assert_eq!((row.model.as_str(), row.value.window_tokens), ("gpt-4o", Some(WINDOW)));
    assert!(row.value.is_told && row.upstream.contains(&upstream.addr.to_string()));
    let lifetime_ms = row.expires_ms - row.value.learned_ms;
    assert!(lifetime_ms.abs_diff(24 * 60 * 60 * 1000) < 60_000, "{lifetime_ms}");
    // The same value with its end in the past is as if it had never been.
    let stored = store.list(LIMITS, now_ms(), 10).await.expect("readable");
    let [(tenant, entry)] = stored.as_slice() else { panic!("one: {stored:?}") };
    for (expires_ms, expected) in [(now_ms() + 60_000, true), (now_ms() - 1, false)] {
        let entry = Entry { expires_ms, ..entry.clone() };
        store.put(*tenant, LIMITS, vec![entry], now_ms()).await.expect("stored");
        let fresh = before(&upstream, &file.open(), |_| {}).await;
        let is_learned = limit_tokens(&fresh, "a", 1).await < WINDOW;
        assert_eq!(is_learned, expected);
    }
}

#[tokio::test]
async fn one_credentials_refusals_are_no_others() {
    let upstream = upstream("openai", WINDOW).await;
    for has_own_key in [false, true] {
        let weir = before(&upstream, &memory(), |config| {
            config.upstream.own_key = has_own_key.then(|| Secret::new("sk-of-weir".to_owned()));
        })
        .await;
        assert!(limit_tokens(&weir, "a", 20).await < WINDOW);
        let of_another = limit_tokens(&weir, "b", 1).await;
        // With weir's own key all are one to the upstream.
        assert_eq!(of_another < WINDOW, has_own_key);
    }
}

#[tokio::test]
async fn the_lower_of_what_is_learned_and_configured_holds() {
    for (configured, learned, expected) in [(100_000, WINDOW, WINDOW), (2000, WINDOW, 2000)] {
        let upstream = upstream("openai", learned).await;
        let weir = before(&upstream, &memory(), |config| {
            let mut entry = config.models.find("gpt-4o").entry;
            entry.window_tokens = configured;
            config.models.insert("gpt-4o", entry);
        })
        .await;
        let limit_tokens = limit_tokens(&weir, "a", 20).await;
        assert!(limit_tokens < expected && limit_tokens > expected / 2, "{limit_tokens}");
        let sends = if configured < learned { 1 } else { 2 };
        assert_eq!(upstream.requests().len(), sends);
    }
}
