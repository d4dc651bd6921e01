//! Learned limits of a model: scope, lifetime, and precedence of the configuration.

use std::path::PathBuf;

use serde_json::{Value, json};
use weir::config::{Config, Secret};
use weir::proxy::learned::{LIMITS, forget_limits, limits_rows};
use weir_store::{Entry, Store, now_ms};

use super::{WINDOW, before, conversation, memory, send, statuses, upstream};
use crate::eventually::{DEADLINE, eventually};
use crate::scripted_upstream::Server;
use crate::server::harness::{self, Message, Upstream, Weir, ask, chat};

/// Database file; drop deletes it.
pub struct File(PathBuf);

impl File {
    pub fn new(name: &str) -> Self {
        let name = format!("weir-heal-{name}-{}.db", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub fn open(&self) -> Store {
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
async fn a_size_to_which_the_upstream_truncates_in_silence_becomes_the_window() {
    const KEPT: usize = 3000;
    let mut upstream = Upstream::start().await;
    let weir = harness::start_with(memory(), &upstream.address, |_| {}).await;
    let mut limits = Vec::new();
    for exchanges in 1..120 {
        let body = conversation(exchanges, &json!({"model": "local-model"}));
        let serve = async {
            let seen = upstream.next().await;
            let (bytes, prompt_tokens) = (seen.body.len(), (seen.body.len() / 4).min(KEPT));
            let answer = json!({
                "choices": [{"message": {"role": "assistant", "content": "ok"}}],
                "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1},
            });
            let answer = answer.to_string();
            let length = answer.len();
            seen.answer(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{answer}"
            ));
            bytes
        };
        let (answer, sent_bytes) = tokio::join!(send(&weir, "a", &body), serve);
        let limit = answer.header("x-weir-limit-tokens").expect("it is told");
        limits.push((limit.parse::<usize>().expect("a number"), sent_bytes));
    }
    let (unlearned, _) = limits[0];
    let (learned, sent_bytes) = limits[limits.len() - 1];
    assert!(unlearned > 10 * KEPT && learned <= KEPT, "{limits:?}");
    assert!(sent_bytes / 4 < KEPT, "{limits:?}");
}

#[tokio::test]
async fn a_limit_survives_a_restart_and_reaches_a_second_process() {
    let upstream = upstream("openai", WINDOW).await;
    let file = File::new("restart");
    let first = before(&upstream, &file.open(), |_| {}).await;
    let second = before(&upstream, &file.open(), |_| {}).await;
    // The second weir loaded its limits before there was one.
    assert_eq!(limit_tokens(&second, "a", 1).await, 112_000);
    let learned = limit_tokens(&first, "a", 20).await;
    assert!(learned < WINDOW);
    let look = async || limit_tokens(&second, "a", 1).await;
    eventually(DEADLINE, look, |limit| *limit == learned).await;
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
    assert_eq!((row.model.as_str(), row.value.limits.window_tokens), ("gpt-4o", Some(WINDOW)));
    assert!(row.value.limits.is_reported && row.upstream.contains(&upstream.addr.to_string()));
    let lifetime_ms = row.expires_ms - row.value.learned_ms;
    assert!(lifetime_ms.abs_diff(24 * 60 * 60 * 1000) < 60_000, "{lifetime_ms}");
    // An expired value has no effect.
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
            config.upstream.provider_key =
                has_own_key.then(|| Secret::new("sk-of-weir".to_owned()));
        })
        .await;
        assert!(limit_tokens(&weir, "a", 20).await < WINDOW);
        // With weir's own key all callers are one account, but what one provokes is confirmed by another first.
        assert!(limit_tokens(&weir, "b", 1).await >= WINDOW);
        assert!(limit_tokens(&weir, "b", 20).await < WINDOW);
        assert!(limit_tokens(&weir, "a", 1).await < WINDOW);
        assert_eq!(limit_tokens(&weir, "c", 1).await < WINDOW, has_own_key);
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

fn windows(tokens: u64) -> impl Fn(&mut Config) {
    move |config| {
        let mut entry = config.models.find("gpt-4o").entry;
        entry.window_tokens = tokens;
        config.models.insert("gpt-4o", entry);
    }
}

#[tokio::test]
async fn a_window_that_is_configured_after_the_lesson_goes_before_it() {
    let upstream = upstream("openai", WINDOW).await;
    let file = File::new("configured");
    let first = before(&upstream, &file.open(), windows(100_000)).await;
    assert!(limit_tokens(&first, "a", 20).await < WINDOW);
    for (window, is_learned) in [(100_000, true), (64_000, false), (200_000, false)] {
        let other = before(&upstream, &file.open(), windows(window)).await;
        let limit = limit_tokens(&other, "a", 1).await;
        assert_eq!(limit < WINDOW, is_learned, "{limit} under {window}");
    }
}

#[tokio::test]
async fn a_limit_that_is_forgotten_is_lifted_where_weir_serves() {
    let upstream = upstream("openai", WINDOW).await;
    let file = File::new("forgotten");
    let store = file.open();
    let weir = before(&upstream, &store, |_| {}).await;
    assert!(limit_tokens(&weir, "a", 20).await < WINDOW);
    assert!(limit_tokens(&weir, "a", 1).await < WINDOW);
    let other = file.open();
    let none = forget_limits(&other, |model| model == "gpt-4o-mini", 10).await;
    assert_eq!(none.expect("writable"), Vec::<String>::new());
    let one = forget_limits(&other, |model| model == "gpt-4o", 10).await;
    assert_eq!(one.expect("writable"), ["gpt-4o"]);
    let look = async || limit_tokens(&weir, "a", 1).await;
    eventually(DEADLINE, look, |limit| *limit >= WINDOW).await;
}

/// Sends a body to a weir whose upstream now has this window.
async fn ask_with(weir: &Weir, window_tokens: u64, body: &Value) -> Message {
    let headers =
        format!("authorization: Bearer a\r\nx-upstream-context-tokens: {window_tokens}\r\n");
    ask(weir.address, chat(&headers, body.to_string())).await
}

/// Builds a conversation whose last message is a third of all earlier ones, so that the compaction
/// happens right there.
fn ending_long(exchanges: usize) -> Value {
    ending(exchanges, 6)
}

/// Returns a conversation whose last message repeats its sentence so many times for each exchange.
fn ending(exchanges: usize, times: usize) -> Value {
    let mut body = conversation(exchanges, &json!({}));
    let words = "and what of the river, and what of the wall? ".repeat(exchanges * times);
    *body["messages"].as_array_mut().expect("messages").last_mut().expect("the last one") =
        json!({"role": "user", "content": words});
    body
}

/// Ages the learned values by this time.
async fn age(store: &Store, by_ms: u64) {
    for (tenant, entry) in store.list(LIMITS, now_ms(), 10).await.expect("readable") {
        let mut row: Value = serde_json::from_slice(&entry.value).expect("JSON");
        row["learned_ms"] = (now_ms() - by_ms).into();
        let entry = Entry { value: row.to_string().into(), ..entry };
        store.put(tenant, LIMITS, vec![entry], now_ms()).await.expect("stored");
    }
}

/// Starts an upstream of a vendor, and a store with a limit learned this long ago.
async fn learned_before(vendor: &str, name: &str, by_ms: u64) -> (Server, File) {
    let upstream = upstream(vendor, WINDOW).await;
    let file = File::new(name);
    let store = file.open();
    let weir = before(&upstream, &store, |_| {}).await;
    let learned_tokens = limit_tokens(&weir, "a", 20).await;
    assert!(learned_tokens < 112_000, "{learned_tokens}");
    age(&store, by_ms).await;
    (upstream, file)
}

const HOUR_MS: u64 = 60 * 60 * 1000;

#[tokio::test]
async fn within_an_hour_of_a_refusal_nothing_more_is_tried() {
    let (upstream, file) = learned_before("openai", "within", HOUR_MS - 60_000).await;
    let weir = before(&upstream, &file.open(), |_| {}).await;
    let sends = upstream.requests().len();
    for exchanges in [20, 22, 24] {
        let answer = ask_with(&weir, 100_000, &ending_long(exchanges)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
    let seen = &upstream.requests()[sends..];
    assert!(seen.iter().all(|seen| seen.prompt_tokens < Some(WINDOW)), "{:?}", statuses(seen));
}

#[tokio::test]
async fn a_larger_upstream_is_found_out_step_by_step_without_a_refusal() {
    for vendor in ["openai", "unnumbered"] {
        let name = format!("larger-{vendor}");
        let (upstream, file) = learned_before(vendor, &name, 2 * HOUR_MS).await;
        let weir = before(&upstream, &file.open(), |_| {}).await;
        let sends = upstream.requests().len();
        let mut limits = Vec::new();
        for exchanges in [20, 24, 40, 44, 80, 84] {
            let answer = ask_with(&weir, 100_000, &ending(exchanges, 9)).await;
            assert_eq!(answer.status(), 200, "{answer:?}");
            let told = answer.header("x-weir-limit-tokens").expect("it is told");
            limits.push(told.parse::<u64>().expect("a number"));
        }
        let seen = &upstream.requests()[sends..];
        assert_eq!(statuses(seen), [200; 6], "{vendor}: no request was refused");
        assert!(limits.is_sorted() && limits[5] > 3 * limits[0], "{vendor}: {limits:?}");
        assert!(limits[5] < 100_000, "it rises step by step: {limits:?}");
        // Other instances know it.
        let other = before(&upstream, &file.open(), |_| {}).await;
        assert_eq!(limit_tokens(&other, "a", 1).await, limits[5]);
    }
}

/// Returns the learned limit of the model.
async fn learned_tokens(store: &Store) -> u64 {
    let rows = limits_rows(store, 10).await.expect("readable");
    let [row] = rows.as_slice() else { panic!("one model: {rows:?}") };
    let told = [row.value.limits.window_tokens, row.value.limits.max_input_tokens];
    told.into_iter().flatten().min().expect("a limit")
}

/// Maximum number of refusals within a learned limit by an upstream that reports no numbers: the
/// limit may be too high at first, and each refusal lowers it by at least an eighth.
fn steps(learned_tokens: u64, window_tokens: u64) -> usize {
    let limits = std::iter::successors(Some(learned_tokens), |limit| Some(limit * 7 / 8));
    limits.take_while(|limit| *limit > window_tokens).count()
}

#[tokio::test]
async fn an_upstream_that_is_as_it_was_refuses_one_probe_an_hour_and_nobody_notices() {
    for (vendor, says_numbers) in [("openai", true), ("unnumbered", false)] {
        let (upstream, file) = learned_before(vendor, &format!("same-{vendor}"), 2 * HOUR_MS).await;
        let learned = learned_tokens(&file.open()).await;
        let (one, two) = (
            before(&upstream, &file.open(), |_| {}).await,
            before(&upstream, &file.open(), |_| {}).await,
        );
        let sends = upstream.requests().len();
        for exchanges in [20, 21, 24, 25, 28, 29] {
            let body = ending_long(exchanges);
            let (first, second) =
                tokio::join!(ask_with(&one, WINDOW, &body), ask_with(&two, WINDOW, &body));
            assert_eq!((first.status(), second.status()), (200, 200), "{vendor}");
        }
        let seen = &upstream.requests()[sends..];
        let refused = seen.iter().filter(|seen| seen.status == 400);
        let refused: Vec<u64> = refused.map(|seen| seen.prompt_tokens.expect("counted")).collect();
        let (probes, others): (Vec<u64>, Vec<u64>) =
            refused.iter().partition(|tokens| **tokens * 8 >= learned * 9);
        // Others are within the learned limit. A vendor that reports numbers causes no further
        // refusals.
        let most = if says_numbers { 0 } else { steps(learned, WINDOW) };
        println!("{vendor}: learned {learned} of {WINDOW}, refused {refused:?}, most {most}");
        assert_eq!(probes.len(), 1, "{vendor}: {refused:?} under {learned}");
        assert!(others.len() <= most, "{vendor}: {refused:?} under {learned}, {most} at most");
        assert_eq!(seen.len(), 12 + refused.len(), "{vendor}: {:?}", statuses(seen));
        let rows = limits_rows(&file.open(), 10).await.expect("readable");
        let [row] = rows.as_slice() else { panic!("one model: {rows:?}") };
        assert!(row.value.learned_ms + HOUR_MS > now_ms(), "{vendor}: it stands for another hour");
    }
}

#[tokio::test]
async fn a_conversation_goes_on_as_it_was_sent_until_it_is_cut_again() {
    let (upstream, file) = learned_before("openai", "live", 0).await;
    let first = before(&upstream, &file.open(), |_| {}).await;
    let messages = |seen: &crate::scripted_upstream::Seen| -> Vec<Value> {
        let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
        body["messages"].as_array().expect("messages").clone()
    };
    assert_eq!(ask_with(&first, 100_000, &conversation(20, &json!({}))).await.status(), 200);
    age(&file.open(), 2 * HOUR_MS).await;
    let second = before(&upstream, &file.open(), |_| {}).await;
    let mut body = conversation(20, &json!({}));
    let more = [
        json!({"role": "assistant", "content": "It still does."}),
        json!({"role": "user", "content": "Sure?"}),
    ];
    body["messages"].as_array_mut().expect("messages").extend(more);
    assert_eq!(ask_with(&second, 100_000, &body).await.status(), 200);
    let seen = upstream.requests();
    let [.., before, after] = seen.as_slice() else { panic!("two at least") };
    let (before, after) = (messages(before), messages(after));
    // Recalled text after the last question applies to that request alone.
    let stays = before.len() - 1;
    assert!(before.iter().any(|own| own.to_string().contains("[weir: ")), "it was cut");
    assert_eq!(after[..stays], before[..stays], "nothing is written anew");
}
