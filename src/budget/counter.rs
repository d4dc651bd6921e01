//! What is spent and held of one budget: tallies by bucket of its window. Arithmetic alone; one who
//! counts keeps it under a lock, and the moment is an argument.

use std::collections::BTreeMap;

use super::window::Span;

/// What is spent and held in one bucket, in the budget's measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    spent: u64,
    held: u64,
}

/// One budget's count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counter {
    /// By the bucket's first moment.
    buckets: BTreeMap<u64, Tally>,
}

/// What counts at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub spent: u64,
    pub held: u64,
    /// When some of it no longer counts; `None` where nothing is spent, or it counts for good.
    pub resets_ms: Option<u64>,
}

impl Counter {
    /// What counts by `span`. Forgets what no longer does.
    pub fn count(&mut self, span: &Span) -> Count {
        if let Some((&first_ms, _)) = self.buckets.first_key_value()
            && first_ms < span.first_ms
        {
            // What is held in a bucket that has passed is settled into it, and counts no more.
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

    /// Holds `amount` in a bucket.
    pub fn hold(&mut self, bucket_ms: u64, amount: u64) {
        let tally = self.buckets.entry(bucket_ms).or_default();
        tally.held = tally.held.saturating_add(amount);
    }

    /// Puts what was spent in the place of what was held. A bucket that was forgotten stays so.
    pub fn settle(&mut self, bucket_ms: u64, held: u64, spent: u64) {
        if let Some(tally) = self.buckets.get_mut(&bucket_ms) {
            tally.held = tally.held.saturating_sub(held);
            tally.spent = tally.spent.saturating_add(spent);
        }
    }

    /// Adds what was spent before anybody counted.
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
    fn what_was_held_is_spent_in_the_bucket_that_it_was_held_in() {
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
    fn what_was_spent_before_counts() {
        let mut counter = Counter::default();
        counter.hold(0, 5);
        counter.add_spent(0, 10);
        counter.settle(0, 5, u64::MAX);
        assert_eq!(figures(counter.count(&span(0, 0))), (u64::MAX, 0, Some(100)));
        let for_good = Span { bucket_ms: 0, first_ms: 0, lifetime_ms: None };
        assert_eq!(counter.count(&for_good).resets_ms, None);
    }
}
