//! Behaviour of counters in every place: see [`super::places::Place`].

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use weir_store::budget::Ask;
use weir_store::counters::{Counters, NoRoom, Reservation, Spending};
use weir_store::ledger::DAY_MS;
use weir_store::now_ms;

use super::places::{
    LONG, Place, after_answers, budget, figures, firm, id_at, in_every_place, intent, owner,
    owner_of, take, tokens, until, wait_for, wanted, write_down,
};

async fn a_request_holds_in_all_its_budgets_or_in_none(place: impl Place) {
    let (one, other) = (place.instance(), place.instance());
    let wide = budget("all/tokens/total", 1000);
    let narrow = budget("team:*/usd/day", 100);
    let both = [wide.clone(), narrow.clone()];
    let first = take(&one, &both, 60).await.expect("there is room");
    let stood: Vec<_> = first.statuses.iter().map(|it| (it.count.spent, it.count.held)).collect();
    assert_eq!(stood, [(0, 60), (0, 60)]);
    assert_eq!(take(&other, &both, 60).await.expect_err("120 of 100"), NoRoom::Held);
    assert_eq!(figures(&other, &wide).await, (0, 60), "nothing is held for who got nothing");
    first.held.settle(Spending { nano_usd: 40, tokens: 7 }).await;
    assert_eq!(figures(&one, &wide).await, (7, 0));
    assert_eq!(figures(&other, &narrow).await, (40, 0));
}

async fn what_is_left_is_given_to_the_token(place: impl Place) {
    let counters = place.instance();
    let budget = budget("all/tokens/total", 100);
    let at_limit = take(&counters, std::slice::from_ref(&budget), 100).await.expect("all of it");
    at_limit.held.settle(tokens(80)).await;
    let refused = take(&counters, std::slice::from_ref(&budget), 21).await.expect_err("101");
    let NoRoom::Exhausted(status) = refused else { panic!("{refused:?}") };
    assert_eq!((status.count.spent, status.count.held, status.left()), (80, 0, 20));
    assert_eq!((status.count.resets_ms, &status.scope), (None, &budget.scope));
    let last = take(&counters, std::slice::from_ref(&budget), 20).await.expect("100");
    last.held.settle(tokens(500)).await;
    assert_eq!(figures(&counters, &budget).await, (580, 0), "what was spent is told");
}

async fn less_output_is_given_where_it_may_be(place: impl Place) {
    let counters = place.instance();
    let budgets = [budget("all/tokens/total", 100)];
    let flexible = Ask {
        wanted_tokens: 500,
        enough_tokens: 500,
        least_tokens: 16,
        is_flexible: true,
        ..firm(30)
    };
    let wants = |ask| wanted(&budgets, ask, Duration::ZERO);
    let granted = counters.reserve(wants(flexible), owner()).await.expect("some is left");
    assert_eq!(granted.output_tokens, 70);
    assert_eq!(granted.statuses[0].count.held, 100);
    granted.held.settle(tokens(55)).await;
    let refused = counters.reserve(wants(flexible), owner()).await.expect_err("15 are left");
    assert!(matches!(refused, NoRoom::Exhausted(_)), "{refused:?}");
}

async fn what_is_dropped_is_given_back(place: impl Place) {
    let (one, other) = (place.instance(), place.instance());
    let budget = budget("all/tokens/total", 100);
    let budgets = std::slice::from_ref(&budget);
    drop(take(&one, budgets, 100).await.expect("there is room"));
    let again = wait_for(&other, budgets, 100).await;
    drop(again);
    until(&one, &budget, (0, 0)).await;
}

async fn who_waits_is_let_in_in_order(place: impl Place) {
    let counters = place.instance();
    let budget = budget("all/tokens/total", 100);
    let all = take(&counters, std::slice::from_ref(&budget), 100).await.expect("there is room");
    let mut waiting = Vec::new();
    for amount in [60, 61, 40] {
        let (own, budgets) = (counters.clone(), [budget.clone()]);
        waiting.push(tokio::spawn(async move { wait_for(&own, &budgets, amount).await }));
        after_answers(&counters, &budget).await;
    }
    all.held.settle(tokens(0)).await;
    let (third, second) = (waiting.pop().expect("three"), waiting.pop().expect("three"));
    let first = waiting.pop().expect("three").await.expect("it is let in");
    after_answers(&counters, &budget).await;
    assert!(!second.is_finished(), "61 do not fit beside 60");
    assert!(!third.is_finished(), "40 would, and stand behind");
    first.held.settle(tokens(0)).await;
    let second = second.await.expect("it is let in");
    after_answers(&counters, &budget).await;
    assert!(!third.is_finished(), "40 do not fit beside 61");
    second.held.settle(tokens(30)).await;
    let third = third.await.expect("it is let in");
    third.held.settle(tokens(40)).await;
    assert_eq!(figures(&counters, &budget).await, (70, 0));
}

async fn who_waits_in_vain_is_told_so(place: impl Place) {
    let counters = place.instance();
    let budgets = [budget("all/tokens/total", 100)];
    let most = take(&counters, &budgets, 90).await.expect("there is room");
    let patience = Duration::from_millis(20);
    let refused = counters.reserve(wanted(&budgets, firm(20), patience), owner()).await;
    assert_eq!(refused.expect_err("90 are held"), NoRoom::Held);
    let flexible = Ask { wanted_tokens: 50, enough_tokens: 50, is_flexible: true, ..firm(5) };
    let granted = counters.reserve(wanted(&budgets, flexible, patience), owner()).await;
    assert_eq!(granted.expect("who has waited takes what there is").output_tokens, 5);
    drop(most);
}

async fn a_waiter_that_leaves_holds_nobody_up(place: impl Place) {
    let counters = place.instance();
    let budget = budget("all/tokens/total", 100);
    let all = take(&counters, std::slice::from_ref(&budget), 100).await.expect("there is room");
    let spawn = |amount| {
        let (counters, budgets) = (counters.clone(), [budget.clone()]);
        tokio::spawn(async move { wait_for(&counters, &budgets, amount).await })
    };
    let leaves = spawn(100);
    after_answers(&counters, &budget).await;
    let stays = spawn(70);
    after_answers(&counters, &budget).await;
    leaves.abort();
    assert!(leaves.await.is_err_and(|error| error.is_cancelled()));
    all.held.settle(tokens(30)).await;
    let granted = stays.await.expect("it is let in");
    assert_eq!((granted.statuses[0].count.spent, granted.statuses[0].count.held), (30, 70));
    drop(granted);
    until(&counters, &budget, (30, 0)).await;
}

async fn what_was_spent_before_counts(place: impl Place) {
    let (counters, store) = (place.instance(), place.store());
    let now = now_ms();
    for amount in [100, 11] {
        write_down(&store, intent(id_at(now), now), amount).await;
    }
    for (id, expected) in [
        ("all/tokens/total", 111),
        ("team:*/usd/day", 111),
        ("model:m/tokens/24h", 111),
        ("model:other/tokens/day", 0),
        ("team:*/tokens/30d", 111),
    ] {
        assert_eq!(figures(&counters, &budget(id, 1)).await, (expected, 0), "{id}");
    }
    let refused = take(&counters, &[budget("all/usd/total", 111)], 1).await.expect_err("111");
    assert!(matches!(refused, NoRoom::Exhausted(status) if status.count.spent == 111));
}

/// A request in flight while a count starts counts once, whether or not the journal has its end.
async fn what_is_under_way_counts_once(place: impl Place) {
    let (one, other, store) = (place.instance(), place.instance(), place.store());
    let first = budget("all/tokens/total", 1000);
    let before = now_ms();
    write_down(&store, intent(id_at(before), before), 5).await;
    let mut granted = Vec::new();
    for _ in 0..4 {
        let wanted = wanted(std::slice::from_ref(&first), firm(100), LONG);
        let intent = intent(wanted.id, wanted.begun_ms);
        store.open_request(&intent).await.expect("it is written down");
        granted.push((one.reserve(wanted, owner()).await.expect("there is room").held, intent));
    }
    // Two have ended in the journal; one of them settles its count before the new count starts.
    let (held, ended) = granted.pop().expect("four");
    write_down(&store, ended, 10).await;
    held.settle(tokens(10)).await;
    let (late, ended) = granted.pop().expect("four");
    write_down(&store, ended, 20).await;
    let second = budget("team:*/tokens/day", 1000);
    assert_eq!(figures(&other, &second).await, (15, 0), "the late one settles itself");
    late.settle(tokens(20)).await;
    for (held, intent) in granted {
        write_down(&store, intent, 40).await;
        held.settle(tokens(40)).await;
    }
    assert_eq!(figures(&one, &second).await, (115, 0));
    assert_eq!(figures(&other, &first).await, (115, 0));
    assert_eq!(figures(&one, &budget("model:m/tokens/total", 1)).await, (115, 0), "as the journal");
}

async fn a_budget_counts_who_was_under_way_when_it_was_set(place: impl Place) {
    let (one, other, store) = (place.instance(), place.instance(), place.store());
    let now = now_ms();
    let notes: Vec<_> = (0..3).map(|_| id_at(now)).collect();
    let mut held = Vec::new();
    for id in &notes {
        store.open_request(&intent(*id, now)).await.expect("it is written down");
        held.push(one.note(*id, now, owner()));
    }
    let budget = budget("team:t/tokens/hour", 1000);
    assert_eq!(figures(&other, &budget).await, (0, 0));
    for (held, id) in held.into_iter().zip(notes) {
        write_down(&store, intent(id, now), 30).await;
        held.settle(tokens(30)).await;
    }
    assert_eq!(figures(&other, &budget).await, (90, 0));
}

/// Spends one at this time in a budget of ten, if it has room.
async fn spends(place: &impl Place, counters: &Counters, id: &str, at_ms: u64) -> bool {
    let reservation = Reservation {
        id: id_at(at_ms),
        begun_ms: at_ms,
        applied: vec![budget(id, 10)],
        ask: firm(1),
        patience: Duration::ZERO,
    };
    match counters.reserve(reservation, owner()).await {
        Ok(granted) => {
            write_down(&place.store(), intent(granted.held.id(), at_ms), 1).await;
            granted.held.settle(tokens(1)).await;
            true
        }
        Err(NoRoom::Exhausted(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

async fn a_clock_that_is_set_gives_no_window_twice(place: impl Place) {
    let counters = place.instance();
    let now = now_ms() / DAY_MS * DAY_MS + DAY_MS / 2;
    for (at, id) in [(now, "all/tokens/day"), (now + 40 * DAY_MS, "all/tokens/24h")] {
        for nth in 0..12 {
            assert_eq!(spends(&place, &counters, id, at).await, nth < 10, "{id}: {nth}");
        }
        // It jumps ahead and back, and once more only to look.
        let ahead = at + 2 * DAY_MS;
        for _ in 0..3 {
            assert!(spends(&place, &counters, id, ahead).await, "{id}: a later window");
        }
        assert!(!spends(&place, &counters, id, at).await, "{id}: back again");
        let looked = counters.statuses(vec![budget(id, 10)], ahead).await.expect("it is counted");
        assert_eq!(looked[0].count.spent, 3, "{id}");
        assert!(!spends(&place, &counters, id, at).await, "{id}: after a look");
        // A count that begins under a clock that is behind, or ahead.
        let behind = id.replace("all", "team:t");
        assert!(!spends(&place, &counters, &behind, at - DAY_MS).await, "{behind}: behind");
        assert!(!spends(&place, &counters, &behind, at).await, "{behind}: corrected");
        let before = id.replace("all", "model:m");
        assert!(spends(&place, &counters, &before, ahead).await, "{before}: ahead");
        assert!(!spends(&place, &counters, &before, at).await, "{before}: corrected");
        // Three clocks that stay different: each has its own window, and no other's.
        for (nth, at) in [at - DAY_MS, at, ahead].into_iter().cycle().take(9).enumerate() {
            let can = spends(&place, &counters, &before, at).await;
            assert_eq!(can, nth % 3 == 2, "{before}: {nth}");
        }
    }
}

async fn windows_roll_over(place: impl Place) {
    const HOUR_MS: u64 = 60 * 60 * 1000;
    let counters = place.instance();
    let now = now_ms();
    for (id, full_after_ms, free_after_ms) in [
        ("all/tokens/hour", 0, HOUR_MS),
        ("all/tokens/day", 0, 24 * HOUR_MS),
        ("all/tokens/24h", 23 * HOUR_MS, 26 * HOUR_MS),
        ("all/tokens/2d", 24 * HOUR_MS, 72 * HOUR_MS),
    ] {
        let applied = [budget(id, 100)];
        let at = |begun_ms| {
            let mut wanted = wanted(&applied, firm(100), Duration::ZERO);
            wanted.begun_ms = begun_ms;
            counters.reserve(wanted, owner())
        };
        at(now).await.expect("there is room").held.settle(tokens(100)).await;
        let refused = at(now + full_after_ms).await.expect_err("it is spent");
        let NoRoom::Exhausted(status) = refused else { panic!("{id}: {refused:?}") };
        let resets_ms = status.count.resets_ms.expect("it ends");
        assert!(resets_ms > now && resets_ms <= now + free_after_ms, "{id}: {resets_ms}");
        drop(at(now + free_after_ms).await.unwrap_or_else(|error| panic!("{id}: {error:?}")));
    }
}

/// Runs one of many spenders: each step is the amount requested and the amount spent.
async fn spend(counters: Counters, ids: Vec<&'static str>, steps: Vec<(u64, u64)>) -> (u64, u64) {
    let mut spent = (0, 0);
    let owner = owner_of(if ids.len() > 1 { &["all", "team:t"] } else { &["all"] });
    for (step, (amount, percent)) in steps.into_iter().enumerate() {
        let applied: Vec<_> = ids.iter().map(|id| budget(id, 1000)).collect();
        let wanted = wanted(&applied, firm(amount), LONG);
        let Ok(granted) = counters.reserve(wanted, owner.clone()).await else { continue };
        for status in &granted.statuses {
            let count = status.count;
            assert!(count.spent + count.held <= 1000, "{count:?}");
        }
        tokio::task::yield_now().await;
        if step % 5 == 4 {
            drop(granted);
            continue;
        }
        let came_to = amount * percent / 100;
        granted.held.settle(tokens(came_to)).await;
        spent.0 += came_to;
        if ids.len() > 1 {
            spent.1 += came_to;
        }
    }
    spent
}

async fn many_never_pass_a_limit(place: impl Place) {
    let strategy = prop::collection::vec(prop::collection::vec((1u64..120, 0u64..=100), 8), 24);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let tasks = strategy.new_tree(&mut runner).expect("numbers").current();
    let instances = Arc::new([place.instance(), place.instance(), place.instance()]);
    let (wide, narrow) = ("all/tokens/total", "team:*/usd/day");
    let mut running = tokio::task::JoinSet::new();
    for (number, steps) in tasks.into_iter().enumerate() {
        let ids = if number % 2 == 0 { vec![wide, narrow] } else { vec![wide] };
        running.spawn(spend(instances[number % 3].clone(), ids, steps));
    }
    let done = running.join_all().await;
    let sums = done.iter().fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
    until(&instances[0], &budget(wide, 1000), (sums.0, 0)).await;
    until(&instances[1], &budget(narrow, 1000), (sums.1, 0)).await;
    assert!(sums.0 > 800, "it was nearly spent: {sums:?}");
}

in_every_place!(
    a_request_holds_in_all_its_budgets_or_in_none
    what_is_left_is_given_to_the_token
    less_output_is_given_where_it_may_be
    what_is_dropped_is_given_back
    who_waits_is_let_in_in_order
    who_waits_in_vain_is_told_so
    a_waiter_that_leaves_holds_nobody_up
    what_was_spent_before_counts
    what_is_under_way_counts_once
    a_budget_counts_who_was_under_way_when_it_was_set
    windows_roll_over
    a_clock_that_is_set_gives_no_window_twice
    many_never_pass_a_limit
);
