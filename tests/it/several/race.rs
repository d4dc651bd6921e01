//! Four weirs, a thousand concurrent requests, and a budget for a tenth of them.
//!
//! `WEIR_RACE_ROUNDS` sets the number of rounds, `WEIR_RACE_SEED` the seed of the first.

use super::setting::{HEADER, Shared};
use crate::budgeted::race::{Outcome, race, rounds};
use crate::budgeted::setting::sum;

const INSTANCES: usize = 4;

async fn round(seed: u64, clamp: bool) -> Outcome {
    let shared = Shared::start().await;
    shared.set("all/usd/total", crate::budgeted::race::LIMIT_USD).await;
    let settings = [("WEIR_BUDGETS__CLAMP", if clamp { "output" } else { "off" })];
    let weirs: Vec<_> = (0..INSTANCES).map(|_| shared.serve(&settings)).collect();
    let addresses: Vec<_> = weirs.iter().map(|weir| weir.address).collect();
    let raced = race(seed, &addresses, HEADER).await;
    shared.until_settled(addresses[0]).await;
    let (_, _, rows) = sum(&shared.store).await;
    assert_eq!(shared.upstream.requests().len(), raced.held.len(), "what was granted was sent");
    raced.outcome(&rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and Redis"]
async fn four_weirs_overspend_nothing_where_output_is_limited() {
    for seed in rounds(1) {
        let outcome = round(seed, true).await;
        outcome.tell("4 instances", seed, true);
        outcome.check(true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and Redis"]
async fn four_weirs_overspend_otherwise_what_was_not_held() {
    for seed in rounds(1) {
        let outcome = round(seed, false).await;
        outcome.tell("4 instances", seed, false);
        outcome.check(false);
    }
}
