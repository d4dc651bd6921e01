//! Counts that are learned from what the upstream reports, for models whose tokenizer weir does not
//! have.

use std::time::Duration;

use serde_json::{Value, json};
use weir::proxy::learned::ratio_rows;
use weir::store::Store;
use weir::tokens::Encoding;

use super::{before, conversation, known, memory, send, upstream};
use crate::scripted_upstream::Server;
use crate::server::harness::{Message, Weir};

/// A model that the upstream counts in a way of its own.
const MODEL: &str = "foreign-model";

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
    let weir = before(&upstream, &store, known(MODEL, Encoding::Estimate, 100_000)).await;
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
            known(MODEL, Encoding::Estimate, 100_000)(config);
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
