//! Counting passes from one process to another on the same store: spent amounts stay spent, and each
//! request counts once.

use std::sync::Arc;

use jiff::tz::TimeZone;
use weir_store::counters::{Counters, NoRoom};
use weir_store::ledger::Intent;
use weir_store::{Store, now_ms};

use super::places::{
    LONG, budget, figures, id_at, intent, owner, take, tokens, until, wait_for, write_down,
};
use crate::eventually::eventually;
use crate::store::places::Place;

/// Returns the counters of a process with this handle on the store.
fn counters(store: &Store) -> Counters {
    Counters::in_memory(store.clone(), TimeZone::UTC)
}

/// Opens a request that holds an amount, and leaves it open.
async fn leave_open(store: &Store, held: u64) -> Arc<Intent> {
    let now = now_ms();
    let mut intent = intent(id_at(now), now);
    let held = Some(held);
    let own = Arc::make_mut(&mut intent);
    (own.held_nano_usd, own.held_tokens) = (held, held);
    store.open_request(&intent).await.expect("it is written");
    intent
}

async fn requests_of_other_processes_stay_held_until_they_end(place: impl Place) {
    let (other, store) = (place.handle(), place.handle());
    let open = leave_open(&other, 60).await;
    let counters = counters(&store);
    let budget = budget("all/tokens/total", 100);
    let budgets = std::slice::from_ref(&budget);
    assert_eq!(take(&counters, budgets, 50).await.expect_err("60 of 100 are held"), NoRoom::Held);
    assert_eq!(figures(&counters, &budget).await, (0, 60));
    write_down(&other, open, 30).await;
    let granted = wait_for(&counters, budgets, 70).await;
    assert_eq!(figures(&counters, &budget).await, (30, 70));
    drop(granted);
    until(&counters, &budget, (30, 0)).await;
    let released = leave_open(&other, 50).await;
    let narrow = [self::budget("team:t/tokens/day", 100)];
    assert_eq!(take(&counters, &narrow, 70).await.expect_err("30 and 50"), NoRoom::Held);
    other.release_request(released.id).await.expect("it is written");
    drop(wait_for(&counters, &narrow, 70).await);
}

async fn an_orphan_counts_once(place: impl Place) {
    let (other, store) = (place.handle(), place.handle());
    let (first, second) = (leave_open(&other, 60).await, leave_open(&other, 5).await);
    let counters = counters(&store);
    let budget = budget("all/tokens/total", 1000);
    drop(take(&counters, std::slice::from_ref(&budget), 1).await.expect("there is room"));
    assert_eq!(figures(&counters, &budget).await, (0, 65));
    let adopted = counters.adopt(first.id, first.begun_ms, owner());
    assert_eq!(figures(&counters, &budget).await, (0, 65), "it stays held");
    write_down(&store, first, 40).await;
    adopted.settle(tokens(40)).await;
    assert_eq!(figures(&counters, &budget).await, (40, 5));
    // Its own process settles the second one first.
    let adopted = counters.adopt(second.id, second.begun_ms, owner());
    write_down(&other, second, 7).await;
    adopted.forget();
    counters.follow().await.expect("the journal can be read");
    assert_eq!(figures(&counters, &budget).await, (47, 0));
    assert_eq!(figures(&counters, &self::budget("team:t/tokens/day", 1000)).await, (47, 0));
}

async fn a_follower_refuses_spent_budgets_and_takes_over_the_whole_count(place: impl Place) {
    let (first, second) = (place.handle(), place.handle());
    let (leader, follower) = (counters(&first), counters(&second));
    let budget = budget("all/tokens/total", 100);
    let budgets = std::slice::from_ref(&budget);
    let spend = async |amount| {
        let granted = take(&leader, budgets, amount).await.expect("there is room");
        let now = now_ms();
        write_down(&first, intent(granted.held.id(), now), amount).await;
        granted.held.settle(tokens(amount)).await;
    };
    spend(80).await;
    let refused = take(&follower, budgets, 21).await.expect_err("80 of 100 are spent");
    let NoRoom::Exhausted(status) = refused else { panic!("{refused:?}") };
    assert_eq!(status.count.spent, 80);
    let refused = take(&follower, budgets, 20).await.expect_err("another one counts");
    assert!(matches!(refused, NoRoom::Store(_)), "{refused:?}");
    // The leader counts on after the follower has read the journal.
    assert_eq!(figures(&follower, &budget).await, (80, 0));
    spend(15).await;
    drop((leader, first));
    let ask = async || take(&follower, budgets, 6).await.map(drop);
    let is_leader = |answer: &Result<(), NoRoom>| !matches!(answer, Err(NoRoom::Store(_)));
    let refused = eventually(LONG, ask, is_leader).await.expect_err("95 of 100 are spent");
    let NoRoom::Exhausted(status) = refused else { panic!("{refused:?}") };
    assert_eq!(status.count.spent, 95);
    let last = take(&follower, budgets, 5).await.expect("100 of 100");
    last.held.settle(tokens(5)).await;
}

macro_rules! in_both_stores {
    ($($case:ident)*) => {
        cases_in!(mod file, crate::store::places, SqliteFile as Place: $($case)*);
        cases_in!(
            #[ignore = "needs PostgreSQL"]
            mod postgres, crate::store::places, Postgres as Place: $($case)*
        );
    };
}

in_both_stores!(
    requests_of_other_processes_stay_held_until_they_end
    an_orphan_counts_once
    a_follower_refuses_spent_budgets_and_takes_over_the_whole_count
);
