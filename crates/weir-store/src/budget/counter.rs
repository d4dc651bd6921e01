//! Spent and held amounts of one budget, by bucket of its window. Pure arithmetic: the caller holds
//! the lock and passes the time.

use std::collections::BTreeMap;

use super::window::Span;

/// Time for which a bucket is kept after it has stopped counting: requests that began before the end of a window
/// may be decided after it.
const KEPT_MS: u64 = 60 * 60 * 1000;

/// Spent and held amounts of one bucket, in the budget's measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BucketTally {
    spent: u64,
    held: u64,
}

/// Counter of one budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counter {
    /// Keyed by the bucket's first millisecond.
    buckets: BTreeMap<u64, BucketTally>,
    /// Earliest bucket that has all its amounts.
    from_ms: u64,
    /// Bucket with amounts of later ones, spent under a clock that was ahead.
    rest_ms: Option<u64>,
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
    /// Creates a counter that is complete from the first bucket of `span` on.
    pub fn starting(span: &Span) -> Self {
        Self { from_ms: span.first_ms, ..Self::default() }
    }

    /// Whether it has all amounts of `span`. If the clock was set, it may lack some, and is read again.
    pub fn is_complete(&self, span: &Span) -> bool {
        span.first_ms >= self.from_ms && self.rest_ms.is_none_or(|rest_ms| span.first_ms <= rest_ms)
    }

    /// Returns the amounts that count within `span`, those of later buckets included, and drops buckets that
    /// have long expired.
    pub fn count(&mut self, span: &Span) -> Count {
        while let Some(first) = self.buckets.first_entry()
            && let Some(lifetime_ms) = span.lifetime_ms
            && first.key().saturating_add(lifetime_ms).saturating_add(KEPT_MS) <= span.bucket_ms
        {
            // A hold in a dropped bucket is still settled, but no longer counts.
            let (bucket_ms, _) = first.remove_entry();
            self.from_ms = self.from_ms.max(bucket_ms + 1);
        }
        let mut count = Count::default();
        for (&bucket_ms, tally) in self.buckets.range(span.first_ms..) {
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

    /// Adds an amount spent before counting began; in a bucket behind that of `span` it may be that of later
    /// ones, too.
    pub fn add_spent(&mut self, span: &Span, bucket_ms: u64, spent: u64) {
        if bucket_ms > span.bucket_ms {
            self.rest_ms = self.rest_ms.max(Some(bucket_ms));
        }
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
    fn a_clock_that_is_set_leaves_a_counter_incomplete() {
        let day = 24 * KEPT_MS;
        let of = |first_ms| Span { bucket_ms: first_ms, first_ms, lifetime_ms: Some(day) };
        let mut counter = Counter::starting(&of(day));
        counter.hold(day, 5);
        counter.settle(day, 5, 5);
        assert!(!counter.is_complete(&of(0)) && counter.is_complete(&of(day)));
        // What was spent ahead counts after the clock is right again, in the next window as well.
        counter.hold(2 * day, 7);
        assert_eq!(figures(counter.count(&of(2 * day))), (0, 7, None));
        assert_eq!(figures(counter.count(&of(day))), (5, 7, Some(2 * day)));
        assert!(counter.is_complete(&of(day)));
        assert_eq!(figures(counter.count(&of(3 * day))), (0, 0, None));
        assert!(!counter.is_complete(&of(day)), "its bucket was dropped");
        // It was read while the clock was behind: nobody knows to which later window the rest belongs.
        let mut counter = Counter::starting(&of(0));
        counter.add_spent(&of(0), day, 9);
        assert_eq!(figures(counter.count(&of(0))), (9, 0, Some(2 * day)));
        assert!(counter.is_complete(&of(day)) && !counter.is_complete(&of(2 * day)));
    }

    #[test]
    fn earlier_spending_counts() {
        let mut counter = Counter::default();
        counter.hold(0, 5);
        counter.add_spent(&span(0, 0), 0, 10);
        counter.settle(0, 5, u64::MAX);
        assert_eq!(figures(counter.count(&span(0, 0))), (u64::MAX, 0, Some(100)));
        let unlimited = Span { bucket_ms: 0, first_ms: 0, lifetime_ms: None };
        assert_eq!(counter.count(&unlimited).resets_ms, None);
    }
}
