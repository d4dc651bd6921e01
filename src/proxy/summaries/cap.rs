//! Daily cap on the cost of one caller's summaries: finished ones, plus the maximum cost of those
//! in flight. Knows no price and calls no model.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;

use weir_store::Tenant;
use weir_store::budget::NanoUsd;

type Holds = Arc<Mutex<HashMap<Tenant, u64>>>;

/// Money held under the cap, which is the same for each caller.
#[derive(Default)]
pub(super) struct Cap {
    holds: Holds,
    /// One check at a time, so that no two calls use the same money.
    turn: tokio::sync::Mutex<()>,
}

/// Money held for a call until its actual cost is recorded.
#[must_use = "the hold is released when this is dropped"]
pub(super) struct HeldCost {
    holds: Holds,
    tenant: Tenant,
    nano_usd: u64,
}

impl Cap {
    /// Holds `most` for a call if the sum with existing holds and `spent` is within `max_day`. An
    /// unknown `spent` refuses.
    pub(super) async fn hold(
        &self,
        tenant: Tenant,
        max_day: NanoUsd,
        most: NanoUsd,
        spent: impl Future<Output = Option<u64>>,
    ) -> Option<HeldCost> {
        let _turn = self.turn.lock().await;
        // Read before the journal: a call that ends in between counts twice, but is never missed.
        let held = self.holds.lock().get(&tenant).copied().unwrap_or(0);
        let taken = spent.await?.saturating_add(held).saturating_add(most.0);
        if taken > max_day.0 {
            return None;
        }
        *self.holds.lock().entry(tenant).or_insert(0) += most.0;
        Some(HeldCost { holds: Arc::clone(&self.holds), tenant, nano_usd: most.0 })
    }
}

impl Drop for HeldCost {
    fn drop(&mut self) {
        let mut holds = self.holds.lock();
        let left = holds.get(&self.tenant).copied().unwrap_or(0).saturating_sub(self.nano_usd);
        if left == 0 {
            holds.remove(&self.tenant);
        } else {
            holds.insert(self.tenant, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Tenant = Tenant([1; 16]);
    const OTHER: Tenant = Tenant([2; 16]);

    #[tokio::test]
    async fn what_is_spent_and_held_stays_within_the_cap() {
        let (cap, max_day) = (Cap::default(), NanoUsd(100));
        let hold = |tenant, most, spent| {
            cap.hold(tenant, max_day, NanoUsd(most), std::future::ready(spent))
        };
        let first = hold(ONE, 60, Some(0)).await.expect("there is room");
        assert!(hold(ONE, 41, Some(0)).await.is_none(), "one above the cap");
        let second = hold(ONE, 40, Some(0)).await.expect("all of it");
        assert!(hold(OTHER, 100, Some(0)).await.is_some(), "each has a cap of its own");
        drop(first);
        assert!(hold(ONE, 60, Some(1)).await.is_none(), "what was spent counts");
        drop(second);
        assert!(hold(ONE, 1, None).await.is_none(), "nobody knows what was spent");
        assert!(cap.holds.lock().is_empty(), "nothing stays held");
    }
}
