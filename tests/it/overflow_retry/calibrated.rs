//! Token counts calibrated from the upstream's reported usage, for models with unknown tokenizers.

use serde_json::{Value, json};
use weir::proxy::learned::{RATIOS, ratio_rows};
use weir_engine::tokens::Encoding;
use weir_store::{Entry, Store, now_ms};

use super::learned::File;
use super::{before, conversation, known, memory, send, upstream};
use crate::eventually::{DEADLINE, eventually};
use crate::scripted_upstream::Server;
use crate::server::harness::{Message, Weir};

/// Model whose tokens the upstream counts with an unknown tokenizer.
const MODEL: &str = "foreign-model";

fn asked(exchanges: usize) -> Value {
    conversation(exchanges, &json!({"model": MODEL}))
}

fn sent_tokens(answer: &Message) -> u64 {
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.header("x-weir-sent-tokens").expect("it is told").parse().expect("a number")
}

/// Returns the difference of weir's count from the upstream's, in thousandths of the latter.
async fn off_permille(weir: &Weir, upstream: &Server, exchanges: usize) -> i64 {
    let counted = sent_tokens(&send(weir, "a", &asked(exchanges)).await) as i64;
    let seen = upstream.requests();
    let truth = seen.last().and_then(|seen| seen.prompt_tokens).expect("counted") as i64;
    (counted - truth) * 1000 / truth
}

/// Sends requests until the store holds a ratio.
async fn calibrated(weir: &Weir, store: &Store) -> u32 {
    let learn = async || {
        send(weir, "a", &asked(6)).await;
        ratio_rows(store, 10).await.expect("readable")
    };
    let rows = eventually(DEADLINE, learn, |rows| !rows.is_empty()).await;
    let [row] = rows.as_slice() else { panic!("one model: {rows:?}") };
    assert_eq!((row.model.as_str(), row.value.version), (MODEL, 1));
    row.value.permille
}

#[tokio::test]
async fn a_ratio_is_learned_and_reaches_other_processes() {
    let upstream = upstream("vllm", 100_000).await;
    let store = memory();
    let weir = before(&upstream, &store, known(MODEL, Encoding::Estimate, 100_000)).await;
    assert!(off_permille(&weir, &upstream, 6).await.abs() > 50, "there is something to learn");
    let permille = calibrated(&weir, &store).await;
    assert!((500..2000).contains(&permille), "{permille}");
    // Two hundredths: a margin, and the cost of framing.
    for exchanges in [6, 30] {
        let off = off_permille(&weir, &upstream, exchanges).await;
        assert!((0..=25).contains(&off), "{off}");
    }
}

#[tokio::test]
async fn a_stored_ratio_that_no_tokenizer_explains_is_not_applied() {
    let upstream = upstream("vllm", 100_000).await;
    let file = File::new("ratios");
    let store = file.open();
    let start = async || {
        let setting = known(MODEL, Encoding::Estimate, 100_000);
        before(&upstream, &file.open(), setting).await
    };
    let weir = start().await;
    let unlearned = sent_tokens(&send(&weir, "a", &asked(6)).await);
    calibrated(&weir, &store).await;
    drop(weir);
    for (permille, is_applied) in [(3011, false), (499, false), (1900, true)] {
        for (tenant, entry) in store.list(RATIOS, now_ms(), 10).await.expect("readable") {
            let mut row: Value = serde_json::from_slice(&entry.value).expect("a row");
            row["permille"] = json!(permille);
            let entry = Entry { value: row.to_string().into(), ..entry };
            store.put(tenant, RATIOS, vec![entry], now_ms()).await.expect("stored");
        }
        let counted = sent_tokens(&send(&start().await, "a", &asked(6)).await);
        assert_eq!(counted != unlearned, is_applied, "{permille}: {counted}");
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

#[tokio::test]
async fn prompts_that_are_not_all_text_teach_nothing() {
    let upstream = upstream("vllm", 100_000).await;
    let store = memory();
    let weir = before(&upstream, &store, known(MODEL, Encoding::Estimate, 100_000)).await;
    let image = json!({"type": "image_url", "image_url": {"url": "https://images.example/a.png"}});
    let mut with_media = asked(6);
    let mut with_search = asked(6);
    with_media["messages"][1]["content"] =
        json!([{"type": "text", "text": "What runs over the wall?"}, image]);
    with_search["web_search_options"] = json!({});
    for _ in 0..20 {
        for body in [&with_media, &with_search] {
            assert_eq!(send(&weir, "a", body).await.status(), 200);
        }
    }
    assert_eq!(ratio_rows(&store, 10).await.expect("readable"), []);
    // Text between them teaches what it does without them.
    let permille = calibrated(&weir, &store).await;
    assert!((500..2000).contains(&permille), "{permille}");
    let off = off_permille(&weir, &upstream, 30).await;
    assert!((-30..=30).contains(&off), "{off}");
}
