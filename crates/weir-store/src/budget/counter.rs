//! Spent and held amounts of one budget, by bucket of its window. Pure arithmetic: the caller holds
//! the lock and passes the time.

use std::collections::BTreeMap;

use super::window::Span;

/// Spent and held amounts of one bucket, in the budget's measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    spent: u64,
    held: u64,
}

/// Counter of one budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counter {
    /// Keyed by the bucket's first millisecond.
    buckets: BTreeMap<u64, Tally>,
}

/// Amounts that count at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub spent: u64,
    pub held: u64,
    /// When part of it stops counting; `None` if it never does, or nothing in a rolling window is
    /// spent.
    pub resets_ms: Option<u64>,
}

impl Counter {
    /// Returns the amounts that count within `span` and drops expired buckets.
    pub fn count(&mut self, span: &Span) -> Count {
        if let Some((&first_ms, _)) = self.buckets.first_key_value()
            && first_ms < span.first_ms
        {
            // A hold in a dropped bucket is still settled, but no longer counts.
            self.buckets = self.buckets.split_off(&span.first_ms);
        }
        let mut count = Count::default();
        for (&bucket_ms, tally) in &self.buckets {
            count.spent = count.spent.saturating_add(tally.spent);
            count.held = count.held.saturating_add(tally.held);
            if tally.spent > 0 && count.resets_ms.is_none() {
                count.resets_ms =
                    span.lifetime_ms.map(|lifetime| bucket_ms.saturating_add(lifetime));
            }
        }
        count
    }

    /// Adds `amount` to the holds of a bucket.
    pub fn hold(&mut self, bucket_ms: u64, amount: u64) {
        let tally = self.buckets.entry(bucket_ms).or_default();
        tally.held = tally.held.saturating_add(amount);
    }

    /// Replaces a hold by the amount spent. Does nothing if the bucket was dropped.
    pub fn settle(&mut self, bucket_ms: u64, held: u64, spent: u64) {
        if let Some(tally) = self.buckets.get_mut(&bucket_ms) {
            tally.held = tally.held.saturating_sub(held);
            tally.spent = tally.spent.saturating_add(spent);
        }
    }

    /// Adds an amount spent before counting began.
    pub fn add_spent(&mut self, bucket_ms: u64, spent: u64) {
        let tally = self.buckets.entry(bucket_ms).or_default();
        tally.spent = tally.spent.saturating_add(spent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(bucket_ms: u64, first_ms: u64) -> Span {
        Span { bucket_ms, first_ms, lifetime_ms: Some(100) }
    }

    fn figures(count: Count) -> (u64, u64, Option<u64>) {
        (count.spent, count.held, count.resets_ms)
    }

    #[test]
    fn a_hold_is_settled_in_its_own_bucket() {
        let mut counter = Counter::default();
        counter.hold(100, 50);
        counter.hold(200, 7);
        assert_eq!(figures(counter.count(&span(200, 100))), (0, 57, None));
        counter.settle(100, 50, 30);
        assert_eq!(figures(counter.count(&span(200, 100))), (30, 7, Some(200)));
        assert_eq!(figures(counter.count(&span(200, 200))), (0, 7, None));
        counter.settle(100, 0, 1000);
        counter.settle(200, 7, 9);
        assert_eq!(figures(counter.count(&span(200, 200))), (9, 0, Some(300)));
    }

    #[test]
    fn earlier_spending_counts() {
        let mut counter = Counter::default();
        counter.hold(0, 5);
        counter.add_spent(0, 10);
        counter.settle(0, 5, u64::MAX);
        assert_eq!(figures(counter.count(&span(0, 0))), (u64::MAX, 0, Some(100)));
        let unlimited = Span { bucket_ms: 0, first_ms: 0, lifetime_ms: None };
        assert_eq!(counter.count(&unlimited).resets_ms, None);
    }
}
