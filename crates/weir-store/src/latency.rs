//! Durations of writes, counted in buckets without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds. Longer durations have a bucket of their own.
pub const BOUNDS_MICROS: [u64; 12] =
    [10, 25, 50, 100, 250, 1_000, 2_500, 10_000, 50_000, 250_000, 1_000_000, 5_000_000];
/// Number of buckets.
const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// Running counts.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    counts: [AtomicU64; BUCKETS],
    sum_micros: AtomicU64,
}

/// Counts at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Number of durations in each bucket; the last has those above all bounds.
    pub counts: [u64; BUCKETS],
    pub sum_micros: u64,
}

impl Latency {
    /// Counts a duration.
    pub(crate) fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS_MICROS.iter().position(|bound| micros <= *bound).unwrap_or(BUCKETS - 1);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub(crate) fn read(&self) -> Latencies {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Latencies {
            counts: std::array::from_fn(|place| read(&self.counts[place])),
            sum_micros: read(&self.sum_micros),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let latency = Latency::default();
        for micros in [0, 10, 11, 5_000_000, 5_000_001] {
            latency.note(Duration::from_micros(micros));
        }
        let read = latency.read();
        assert_eq!((read.counts[0], read.counts[1]), (2, 1));
        assert_eq!((read.counts[BUCKETS - 2], read.counts[BUCKETS - 1]), (1, 1));
        assert_eq!(read.sum_micros, 10_000_022);
    }
}
