//! Instances that end abruptly, or stall for longer than the lifetime of their requests' leases.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use weir_store::counters::{Counters, Granted};

use super::places::{
    InRedis, LONG, Place, budget, figures, firm, intent, owner, tokens, until, wanted, write_down,
};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns a Redis place with a short request lifetime.
fn place() -> InRedis {
    let mut place = InRedis::new();
    place.options.lease = Duration::from_millis(150);
    place
}

/// Holds 100 for a new request.
async fn hold(
    counters: &Counters,
    applied: &weir_store::budgets::Applied,
) -> (Granted, std::sync::Arc<weir_store::ledger::Intent>) {
    let wanted = wanted(std::slice::from_ref(applied), firm(100), LONG);
    let intent = intent(wanted.id, wanted.begun_ms);
    let granted = counters.reserve(wanted, owner()).await.expect("there is room");
    (granted, intent)
}

#[test]
#[ignore = "needs Redis"]
fn what_a_killed_instance_held_ends_by_the_journal() {
    let place = place();
    let budget = budget("all/tokens/total", 1000);
    let (store, other) = (place.store(), runtime());
    let killed = runtime();
    let open = killed.block_on(async {
        let counters = place.instance();
        // Nobody settles these, as in a killed process.
        let (never_sent, _) = hold(&counters, &budget).await;
        std::mem::forget(never_sent);
        let (ended, row) = hold(&counters, &budget).await;
        std::mem::forget(ended);
        store.open_request(&row).await.expect("it is written down");
        write_down(&store, row, 30).await;
        let (open, row) = hold(&counters, &budget).await;
        std::mem::forget(open);
        store.open_request(&row).await.expect("it is written down");
        assert_eq!(figures(&counters, &budget).await, (0, 300));
        row
    });
    // Dropping the runtime ends the tasks that renew the requests' leases.
    drop(killed);
    other.block_on(async {
        let counters = place.instance();
        until(&counters, &budget, (30, 100)).await;
        write_down(&store, open, 44).await;
        until(&counters, &budget, (74, 0)).await;
    });
}

#[test]
#[ignore = "needs Redis"]
fn an_instance_that_stood_still_settles_nothing_twice() {
    let place = place();
    let budget = budget("all/tokens/total", 1000);
    let (store, other, stands_still) = (place.store(), runtime(), runtime());
    let (counters, ended, open, never_opened) = stands_still.block_on(async {
        let counters = place.instance();
        let ended = hold(&counters, &budget).await;
        store.open_request(&ended.1).await.expect("it is written down");
        write_down(&store, ended.1, 30).await;
        let open = hold(&counters, &budget).await;
        store.open_request(&open.1).await.expect("it is written down");
        let never_opened = hold(&counters, &budget).await;
        (counters, ended.0, open, never_opened)
    });
    other.block_on(async {
        let counters = place.instance();
        // Requests that are open in the journal stay held; unknown ones are released.
        until(&counters, &budget, (30, 100)).await;
    });
    stands_still.block_on(async {
        let (late, row) = never_opened;
        until(&counters, &budget, (30, 200)).await;
        ended.held.settle(tokens(30)).await;
        store.open_request(&row).await.expect("it is written down");
        write_down(&store, row, 5).await;
        late.held.settle(tokens(5)).await;
        let (open, row) = open;
        write_down(&store, row, 60).await;
        open.held.settle(tokens(60)).await;
        assert_eq!(figures(&counters, &budget).await, (95, 0));
    });
}
