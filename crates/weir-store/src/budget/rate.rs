//! Rate limits per minute: a leaky bucket that drains evenly. Pure arithmetic: the time is an
//! argument, and the bucket is the only state.

/// Milliseconds per minute, and the number of fractions per unit: each millisecond drains as many
/// fractions as the limit per minute.
const MINUTE_MS: u64 = 60_000;
/// Maximum content of a bucket after a correction, in minutes' worth. The excess is dropped, so
/// that an absurd figure does not block a caller forever.
const MAX_MINUTES: u128 = 10;

/// Amount taken and not drained yet. A new bucket is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// In units of 1/[`MINUTE_MS`].
    filled: u128,
    /// The time of `filled`, in milliseconds of any monotonic clock.
    at_ms: u64,
}

/// Reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMany {
    /// There is room after `wait_ms`, unless others take it.
    For { wait_ms: u64 },
    /// The amount exceeds a whole minute's worth, so it never fits.
    Ever,
}

/// Amount still available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub per_minute: u64,
    pub remaining: u64,
    /// Milliseconds until the whole limit is available, if nothing else is taken.
    pub reset_ms: u64,
}

impl Left {
    /// Creates the result for a content of `filled` parts, `MINUTE_MS` to one unit.
    pub fn new(filled: u128, per_minute: u64) -> Self {
        let free = parts(per_minute).saturating_sub(filled) / u128::from(MINUTE_MS);
        let reset_ms = filled.div_ceil(u128::from(per_minute.max(1)));
        let bounded = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Self { per_minute, remaining: bounded(free), reset_ms: bounded(reset_ms) }
    }
}

impl Bucket {
    /// Returns the amount still available.
    pub fn left(&mut self, per_minute: u64, now_ms: u64) -> Left {
        self.drain(per_minute, now_ms);
        Left::new(self.filled, per_minute)
    }

    /// Takes `amount`, or nothing if the bucket would exceed `per_minute`. After a pause, a whole
    /// minute's worth is available at once; then only the drained amount.
    pub fn take(&mut self, amount: u64, per_minute: u64, now_ms: u64) -> Result<(), TooMany> {
        if amount > per_minute {
            return Err(TooMany::Ever);
        }
        self.drain(per_minute, now_ms);
        let wanted = self.filled.saturating_add(parts(amount));
        let over = wanted.saturating_sub(parts(per_minute));
        if over > 0 {
            // `per_minute` is above 0 here: `amount` is at most that, and an amount of 0 takes no
            // room.
            let wait_ms = over.div_ceil(u128::from(per_minute.max(1)));
            return Err(TooMany::For { wait_ms: u64::try_from(wait_ms).unwrap_or(u64::MAX) });
        }
        self.filled = wanted;
        Ok(())
    }

    /// Replaces an estimate `taken` by the `actual` amount.
    pub fn correct(&mut self, taken: u64, actual: u64, per_minute: u64, now_ms: u64) {
        self.drain(per_minute, now_ms);
        let filled = self.filled.saturating_add(parts(actual)).saturating_sub(parts(taken));
        self.filled = filled.min(parts(per_minute).saturating_mul(MAX_MINUTES));
    }

    /// Returns whether the bucket is empty.
    pub fn is_empty(&mut self, per_minute: u64, now_ms: u64) -> bool {
        self.drain(per_minute, now_ms);
        self.filled == 0
    }

    fn drain(&mut self, per_minute: u64, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let drained = u128::from(elapsed_ms) * u128::from(per_minute);
        self.filled = self.filled.saturating_sub(drained);
        self.at_ms = self.at_ms.max(now_ms);
    }
}

fn parts(amount: u64) -> u128 {
    u128::from(amount) * u128::from(MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_minutes_worth_may_be_taken_at_once_and_comes_back_evenly() {
        let mut bucket = Bucket::default();
        for _ in 0..6 {
            assert_eq!(bucket.take(1, 6, 1000), Ok(()));
        }
        assert_eq!(bucket.take(1, 6, 1000), Err(TooMany::For { wait_ms: 10_000 }));
        assert_eq!(bucket.take(1, 6, 10_999), Err(TooMany::For { wait_ms: 1 }));
        assert_eq!(bucket.take(1, 6, 11_000), Ok(()));
        assert_eq!(bucket.take(3, 6, 11_000), Err(TooMany::For { wait_ms: 30_000 }));
        assert!(!bucket.is_empty(6, 70_999));
        assert!(bucket.is_empty(6, 71_000));
    }

    #[test]
    fn the_rest_is_rounded_down_to_whole_units() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.left(6, 0), Left { per_minute: 6, remaining: 6, reset_ms: 0 });
        assert_eq!(bucket.take(4, 6, 0), Ok(()));
        assert_eq!(bucket.left(6, 0), Left { per_minute: 6, remaining: 2, reset_ms: 40_000 });
        assert_eq!(bucket.left(6, 9_999), Left { per_minute: 6, remaining: 2, reset_ms: 30_001 });
        assert_eq!(bucket.left(6, 10_000), Left { per_minute: 6, remaining: 3, reset_ms: 30_000 });
        assert_eq!(bucket.left(0, 0).remaining, 0);
    }

    #[test]
    fn an_estimate_is_replaced_by_the_actual_usage() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(900, 1000, 0), Ok(()));
        bucket.correct(900, 100, 1000, 0);
        assert_eq!(bucket.take(900, 1000, 0), Ok(()));
        bucket.correct(900, 2900, 1000, 0);
        assert_eq!(bucket.take(1, 1000, 0), Err(TooMany::For { wait_ms: 120_060 }));
        bucket.correct(0, u64::MAX, 1000, 0);
        assert_eq!(bucket.take(1000, 1000, 0), Err(TooMany::For { wait_ms: 600_000 }));
    }

    #[test]
    fn a_request_that_never_fits_is_refused_for_ever() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(7, 6, 0), Err(TooMany::Ever));
        assert_eq!(bucket.take(1, 0, 0), Err(TooMany::Ever));
        assert_eq!(bucket.take(0, 0, 0), Ok(()));
        assert_eq!(bucket.take(6, 6, 0), Ok(()), "and takes nothing");
    }

    proptest! {
        #[test]
        fn room_returns_exactly_after_the_wait(
            steps in proptest::collection::vec((0u64..50, 0u64..90_000), 1..40),
            per_minute in 1u64..40,
        ) {
            let (mut bucket, mut now_ms) = (Bucket::default(), 0);
            for (amount, pause_ms) in steps {
                now_ms += pause_ms;
                match bucket.take(amount, per_minute, now_ms) {
                    Ok(()) => prop_assert!(amount <= per_minute),
                    Err(TooMany::Ever) => prop_assert!(amount > per_minute),
                    Err(TooMany::For { wait_ms }) => {
                        let mut early = bucket;
                        prop_assert!(early.take(amount, per_minute, now_ms + wait_ms - 1).is_err());
                        now_ms += wait_ms;
                        prop_assert_eq!(bucket.take(amount, per_minute, now_ms), Ok(()));
                    }
                }
            }
        }

        #[test]
        fn no_minute_takes_more_than_twice_its_worth(
            steps in proptest::collection::vec((1u64..5, 0u64..3000), 1..200),
            per_minute in 5u64..40,
        ) {
            let (mut bucket, mut now_ms) = (Bucket::default(), 0);
            let mut taken = Vec::new();
            for (amount, pause_ms) in steps {
                now_ms += pause_ms;
                if bucket.take(amount, per_minute, now_ms).is_ok() {
                    taken.push((now_ms, amount));
                }
            }
            for &(start_ms, _) in &taken {
                let within = taken.iter().filter(|(at, _)| (start_ms..start_ms + MINUTE_MS).contains(at));
                prop_assert!(within.map(|(_, amount)| amount).sum::<u64>() <= 2 * per_minute);
            }
        }
    }
}
