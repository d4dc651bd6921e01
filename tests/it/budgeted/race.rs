//! Many concurrent requests of unknown length against a budget for a tenth of them.
//!
//! `WEIR_RACE_ROUNDS` sets the number of rounds, `WEIR_RACE_SEED` the seed of the first.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir::config::Clamp;
use weir_store::budget::NanoUsd;
use weir_store::ledger::RequestRow;

use super::setting::{Budgeted, chat, nano_usd, sum};
use crate::server::harness::ask;

const REQUESTS: u64 = 1000;
/// Budget for about a hundred requests of a hundred words each.
pub const LIMIT_USD: &str = "0.0066";

/// Answers that the callers received.
pub struct Raced {
    /// Amount held for each sent request, by its id.
    pub held: HashMap<String, u64>,
    refused: usize,
    /// Largest remainder of the budget when a request was refused.
    left_at_refusal: u64,
}

/// Outcome of a round.
pub struct Outcome {
    pub spent: u64,
    pub limit: u64,
    sent: usize,
    refused: usize,
    /// Cost of requests above the amounts held for them.
    beyond: u64,
    left_at_refusal: u64,
}

/// Sends all requests at once, to these addresses in turn.
pub async fn race(seed: u64, addresses: &[SocketAddr], headers: &str) -> Raced {
    let mut all = JoinSet::new();
    for number in 0..REQUESTS {
        let words = 20 + (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % 160;
        let request = chat(headers, words, json!({"stream": number % 3 == 0}));
        let address = addresses[number as usize % addresses.len()];
        all.spawn(async move { ask(address, request).await });
    }
    let mut raced = Raced { held: HashMap::new(), refused: 0, left_at_refusal: 0 };
    while let Some(answer) = all.join_next().await {
        let answer = answer.expect("nobody panics");
        if answer.status() == 200 {
            let told = answer.header("x-weir-budget-held-usd").expect("it is told");
            let NanoUsd(amount) = NanoUsd::parse(told).expect("dollars");
            let id = answer.header("x-weir-request-id").expect("it is told");
            raced.held.insert(id.to_owned(), amount);
            continue;
        }
        assert_eq!(answer.status(), 429, "{answer:?}");
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["error"]["code"], "insufficient_quota", "nobody waits for nothing");
        let message = body["error"]["message"].as_str().expect("a text");
        let left = message.split(" has ").nth(1).and_then(|rest| rest.split(" USD").next());
        let NanoUsd(left) = left.and_then(NanoUsd::parse).expect("what is left");
        raced.left_at_refusal = raced.left_at_refusal.max(left);
        raced.refused += 1;
    }
    raced
}

impl Raced {
    /// Computes the outcome from the rows of all requests.
    pub fn outcome(&self, rows: &[RequestRow]) -> Outcome {
        assert_eq!(rows.len(), self.held.len(), "one row for each request that was sent");
        let costs: Vec<(u64, u64)> = rows
            .iter()
            .map(|row| {
                let cost = row.settlement.cost_nano_usd.expect("the model has a price");
                (cost, self.held[&row.id.to_string()])
            })
            .collect();
        Outcome {
            spent: costs.iter().map(|(cost, _)| cost).sum(),
            limit: NanoUsd::parse(LIMIT_USD).expect("dollars").0,
            sent: self.held.len(),
            refused: self.refused,
            beyond: costs.iter().map(|(cost, held)| cost.saturating_sub(*held)).sum(),
            left_at_refusal: self.left_at_refusal,
        }
    }
}

impl Outcome {
    pub fn tell(&self, who: &str, seed: u64, clamp: bool) {
        let Self { spent, limit, sent, refused, beyond, left_at_refusal } = self;
        println!(
            "{who}, seed {seed}, clamp {clamp}: {sent} sent, {refused} refused, spent {spent} of {limit} \
             nano-dollars ({:.1} %), {} beyond it, {beyond} beyond what was held; at most \
             {left_at_refusal} left at a refusal",
            100.0 * *spent as f64 / *limit as f64,
            spent.saturating_sub(*limit),
        );
    }

    pub fn check(&self, clamp: bool) {
        let most = if clamp { self.limit } else { self.limit + self.beyond };
        assert!(self.spent <= most, "{} of {most}", self.spent);
        assert!(self.left_at_refusal * 10 <= self.limit, "nine tenths were spent before");
        assert!(self.sent >= 60 && self.refused > 0, "{} sent", self.sent);
    }
}

/// Returns the seeds of the rounds; `usual` is the default number of rounds.
pub fn rounds(usual: u64) -> Range<u64> {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let seed = number("WEIR_RACE_SEED", 7);
    seed..seed + number("WEIR_RACE_ROUNDS", usual)
}

async fn round(seed: u64, clamp: bool) -> Outcome {
    let budgeted = Budgeted::start(|config| {
        config.budgets.clamp = if clamp { Clamp::Output } else { Clamp::Off };
        config.server.max_connections = 2000;
    })
    .await;
    budgeted.set("team:research/usd/day", LIMIT_USD).await;
    let raced = race(seed, &[budgeted.weir.weir.address], &budgeted.key.header()).await;
    let (spent, _, rows) = sum(&budgeted.weir.store).await;
    assert_eq!(budgeted.upstream.requests().len(), rows.len());
    let status = &budgeted.statuses().await[0];
    assert_eq!(status["held"], "0.00", "everything held has ended");
    assert_eq!(nano_usd(&status["spent"]), spent);
    raced.outcome(&rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_overspent_where_output_is_limited() {
    for seed in rounds(2) {
        let outcome = round(seed, true).await;
        outcome.tell("1 instance", seed, true);
        outcome.check(true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overspent_otherwise_is_what_was_not_held() {
    for seed in rounds(2) {
        let outcome = round(seed, false).await;
        outcome.tell("1 instance", seed, false);
        outcome.check(false);
    }
}
