//! Counts that are learned from what the upstream reports, for models whose tokenizer weir does not
//! have.

use std::time::Duration;

use serde_json::{Value, json};
use weir::config::{Config, ModelEntry};
use weir::proxy::learned::ratio_rows;
use weir::store::Store;
use weir::tokens::Encoding;

use super::{before, conversation, memory, send, upstream};
use crate::scripted_upstream::Server;
use crate::server::harness::{Message, Weir};
use crate::traces;

/// A model that the upstream counts in a way of its own.
const MODEL: &str = "foreign-model";

fn known(window_tokens: u64) -> impl Fn(&mut Config) {
    move |config| {
        let entry = ModelEntry {
            window_tokens,
            max_input_tokens: None,
            max_output_tokens: None,
            encoding: Encoding::Estimate,
            strict_alternation: false,
        };
        config.models.insert(MODEL, entry);
    }
}

fn asked(exchanges: usize) -> Value {
    conversation(exchanges, &json!({"model": MODEL}))
}

fn sent_tokens(answer: &Message) -> u64 {
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.header("x-weir-sent-tokens").expect("it is told").parse().expect("a number")
}

/// How far weir's count of a request is from the upstream's, in thousandths of it.
async fn off_permille(weir: &Weir, upstream: &Server, exchanges: usize) -> i64 {
    let counted = sent_tokens(&send(weir, "a", &asked(exchanges)).await) as i64;
    let seen = upstream.requests();
    let truth = seen.last().and_then(|seen| seen.prompt_tokens).expect("counted") as i64;
    (counted - truth) * 1000 / truth
}

/// Asks until there is a ratio in the store.
async fn calibrated(weir: &Weir, store: &Store) -> u32 {
    let learned = async {
        loop {
            send(weir, "a", &asked(6)).await;
            let rows = ratio_rows(store, 10).await.expect("readable");
            if let [row] = rows.as_slice() {
                assert_eq!((row.model.as_str(), row.value.version), (MODEL, 1));
                return row.value.permille;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), learned).await.expect("it is learned")
}

#[tokio::test]
async fn a_ratio_is_learned_and_reaches_other_processes() {
    let upstream = upstream("vllm", 100_000).await;
    let store = memory();
    let weir = before(&upstream, &store, known(100_000)).await;
    assert!(off_permille(&weir, &upstream, 6).await.abs() > 50, "there is something to learn");
    let permille = calibrated(&weir, &store).await;
    assert!((500..2000).contains(&permille), "{permille}");
    // Two hundredths: a margin, and what framing adds.
    for exchanges in [6, 30] {
        let off = off_permille(&weir, &upstream, exchanges).await;
        assert!((0..=25).contains(&off), "{off}");
    }
}

#[tokio::test]
async fn a_ratio_that_is_set_is_not_learned() {
    for (set, calibrate) in [(Some(2000), true), (None, false)] {
        let upstream = upstream("vllm", 100_000).await;
        let store = memory();
        let weir = before(&upstream, &store, |config| {
            known(100_000)(config);
            config.learning.calibrate = calibrate;
            let settings = config.model_settings.entry(MODEL.to_owned()).or_default();
            settings.token_permille = set;
        })
        .await;
        let mut counted = Vec::new();
        for _ in 0..20 {
            counted.push(sent_tokens(&send(&weir, "a", &asked(6)).await));
        }
        assert!(counted.iter().all(|tokens| *tokens == counted[0]), "{counted:?}");
        assert_eq!(ratio_rows(&store, 10).await.expect("readable"), []);
        let off = off_permille(&weir, &upstream, 6).await;
        assert_eq!(off > 500, set.is_some(), "{off}");
    }
}

/// Each request that these conversations could have been made of, one after the other.
fn requests() -> Vec<Value> {
    let mut requests = Vec::new();
    for conversation in traces::all() {
        let roles: Vec<_> = conversation.messages.iter().map(|own| own["role"].clone()).collect();
        for end in 1..=roles.len() {
            let is_asked = roles[end - 1] == "user"
                || roles[end - 1] == "tool" && roles.get(end).is_none_or(|next| next != "tool");
            if is_asked {
                requests.push(json!({"model": MODEL, "messages": conversation.messages[..end]}));
            }
        }
    }
    requests
}

#[tokio::test]
async fn recorded_conversations_stay_inside_a_window_counted_by_another_tokenizer() {
    const FIRST: usize = 10;
    let options = crate::scripted_upstream::Options {
        context_tokens: 6000,
        allow_unknown: true,
        overflow_style: "vllm".to_owned(),
        ..Default::default()
    };
    let upstream = Server::start(options).await.expect("a free port");
    let weir = before(&upstream, &memory(), known(6000)).await;
    // As `weir serve` does: else the tables are loaded while the conversations go by.
    Encoding::O200kBase.warm();
    let (mut refused, mut over, mut counted) = (0, 0.0, 0);
    for (number, request) in requests().into_iter().enumerate() {
        let logged = upstream.requests().len();
        let answer = send(&weir, "a", &request).await;
        let seen = upstream.requests().split_off(logged);
        // What cannot be made to fit is not sent.
        let (Some(last), 200) = (seen.last(), answer.status()) else { continue };
        if number >= FIRST {
            refused += seen.len() - 1;
            let truth = last.prompt_tokens.expect("counted") as f64;
            over += (sent_tokens(&answer) as f64 / truth - 1.0).max(0.0);
            counted += 1;
        }
    }
    let mean = over / f64::from(counted);
    println!("{counted} requests, {refused} sent twice, {:.2} % over on average", mean * 100.0);
    assert!(counted > 100);
    assert_eq!(refused, 0);
    assert!(mean < 0.03, "{mean}");
}
