//! Many requests of unknown length at once against a budget for a tenth of them.
//!
//! `WEIR_RACE_ROUNDS` makes more rounds of it, `WEIR_RACE_SEED` the same choices again.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir::budget::NanoUsd;

use super::setting::{Budgeted, chat, sum};
use crate::server::harness::ask;

const REQUESTS: u64 = 1000;
/// About a hundred requests of a hundred words each.
const LIMIT_USD: &str = "0.0066";
const ROUNDS: u64 = 2;

/// What a round came to.
struct Outcome {
    spent: u64,
    limit: u64,
    sent: usize,
    refused: usize,
    /// What requests came to beyond what was held for them.
    beyond: u64,
    /// The most that was left when one was refused.
    left_at_refusal: u64,
}

async fn round(seed: u64, clamp: bool) -> Outcome {
    let budgeted = Budgeted::start(|config| {
        config.budgets.clamp = clamp;
        config.server.max_connections = 2000;
    })
    .await;
    budgeted.set("team:research/usd/day", LIMIT_USD).await;
    let address = budgeted.weir.weir.address;
    let mut all = JoinSet::new();
    for number in 0..REQUESTS {
        let words = 20 + (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % 160;
        let request = chat(&budgeted.key.header(), words, json!({"stream": number % 3 == 0}));
        all.spawn(async move { ask(address, request).await });
    }
    let NanoUsd(limit) = NanoUsd::parse(LIMIT_USD).expect("dollars");
    let (mut sent, mut refused, mut left_at_refusal) = (0, 0, 0);
    let mut held = HashMap::new();
    while let Some(answer) = all.join_next().await {
        let answer = answer.expect("nobody panics");
        if answer.status() == 200 {
            sent += 1;
            let told = answer.header("x-weir-budget-held-usd").expect("it is told");
            let NanoUsd(amount) = NanoUsd::parse(told).expect("dollars");
            let id = answer.header("x-weir-request-id").expect("it is told");
            held.insert(id.to_owned(), amount);
            continue;
        }
        assert_eq!(answer.status(), 429, "{answer:?}");
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["error"]["code"], "insufficient_quota", "nobody waits for nothing");
        let message = body["error"]["message"].as_str().expect("a text");
        let left = message.split(" has ").nth(1).and_then(|rest| rest.split(" USD").next());
        let NanoUsd(left) = left.and_then(NanoUsd::parse).expect("what is left");
        left_at_refusal = left_at_refusal.max(left);
        refused += 1;
    }
    let (spent, _, rows) = sum(&budgeted.weir.store).await;
    assert_eq!(rows.len(), sent, "one row for each request that was sent");
    assert_eq!(budgeted.upstream.requests().len(), sent);
    let standing = &budgeted.standings().await[0];
    assert_eq!(standing["held"], "0.00", "everything held has ended");
    assert_eq!(super::setting::nano_usd(&standing["spent"]), spent);
    let beyond = rows.iter().map(|row| {
        let cost = row.settlement.cost_nano_usd.expect("the model has a price");
        cost.saturating_sub(held[&row.id.to_string()])
    });
    let beyond = beyond.sum();
    Outcome { spent, limit, sent, refused, beyond, left_at_refusal }
}

async fn rounds(clamp: bool) -> Vec<Outcome> {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let seed = number("WEIR_RACE_SEED", 7);
    let mut outcomes = Vec::new();
    for round_number in 0..number("WEIR_RACE_ROUNDS", ROUNDS) {
        let outcome = round(seed + round_number, clamp).await;
        let Outcome { spent, limit, sent, refused, beyond, left_at_refusal } = &outcome;
        println!(
            "seed {}, clamp {clamp}: {sent} sent, {refused} refused, spent {spent} of {limit} nano-dollars \
             ({:.1} %), {} beyond it, {beyond} beyond what was held; at most {left_at_refusal} left at a \
             refusal",
            seed + round_number,
            100.0 * *spent as f64 / *limit as f64,
            spent.saturating_sub(*limit),
        );
        outcomes.push(outcome);
    }
    outcomes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_overspent_where_output_is_limited() {
    for outcome in rounds(true).await {
        assert!(outcome.spent <= outcome.limit);
        assert!(outcome.left_at_refusal * 10 <= outcome.limit, "nine tenths were spent before");
        assert!(outcome.sent >= 60 && outcome.refused > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overspent_otherwise_is_what_was_not_held() {
    for outcome in rounds(false).await {
        assert!(outcome.spent <= outcome.limit + outcome.beyond);
        assert!(outcome.left_at_refusal * 10 <= outcome.limit, "nine tenths were spent before");
        assert!(outcome.sent >= 60 && outcome.refused > 0);
    }
}
