//! How many a minute: a bucket that fills as things are taken and drains evenly. Arithmetic alone;
//! the moment is an argument, and nothing is remembered but the bucket.

/// Milliseconds of a minute, and the parts that one of anything is counted in: so each millisecond
/// drains as many parts as the limit says.
const MINUTE_MS: u64 = 60_000;
/// How many minutes' worth may stand in a bucket after a correction. What is above is forgiven, so
/// that an absurd figure does not shut anybody out for good.
const MAX_MINUTES: u128 = 10;

/// What was taken and has not drained yet. A new one is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// In [`MINUTE_MS`]ths of one.
    filled: u128,
    /// When `filled` was true, in milliseconds of any clock that does not run backwards.
    at_ms: u64,
}

/// Why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMany {
    /// There will be room after so many milliseconds, if nobody else takes it.
    For { wait_ms: u64 },
    /// It is more than a whole minute's worth: there never is room.
    Ever,
}

/// What may still be taken of a minute's worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub per_minute: u64,
    pub remaining: u64,
    /// After how many milliseconds all of it may be taken, if nobody takes any.
    pub reset_ms: u64,
}

impl Left {
    /// Where so many sixty-thousandths of one are in the bucket.
    pub fn new(filled: u128, per_minute: u64) -> Self {
        let free = parts(per_minute).saturating_sub(filled) / u128::from(MINUTE_MS);
        let reset_ms = filled.div_ceil(u128::from(per_minute.max(1)));
        let bounded = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Self { per_minute, remaining: bounded(free), reset_ms: bounded(reset_ms) }
    }
}

impl Bucket {
    /// What may still be taken of it.
    pub fn left(&mut self, per_minute: u64, now_ms: u64) -> Left {
        self.drain(per_minute, now_ms);
        Left::new(self.filled, per_minute)
    }

    /// Takes `amount`, or nothing where the bucket would hold more than `per_minute`. After a pause
    /// a whole minute's worth may be taken at once; from then on as much as drains.
    pub fn take(&mut self, amount: u64, per_minute: u64, now_ms: u64) -> Result<(), TooMany> {
        if amount > per_minute {
            return Err(TooMany::Ever);
        }
        self.drain(per_minute, now_ms);
        let wanted = self.filled.saturating_add(parts(amount));
        let over = wanted.saturating_sub(parts(per_minute));
        if over > 0 {
            // More than nothing per minute, since `amount` is at most that and takes no room if 0.
            let wait_ms = over.div_ceil(u128::from(per_minute.max(1)));
            return Err(TooMany::For { wait_ms: u64::try_from(wait_ms).unwrap_or(u64::MAX) });
        }
        self.filled = wanted;
        Ok(())
    }

    /// Puts `actual` in the place of `taken`, which was a guess.
    pub fn correct(&mut self, taken: u64, actual: u64, per_minute: u64, now_ms: u64) {
        self.drain(per_minute, now_ms);
        let filled = self.filled.saturating_add(parts(actual)).saturating_sub(parts(taken));
        self.filled = filled.min(parts(per_minute).saturating_mul(MAX_MINUTES));
    }

    /// Whether it is as good as new.
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
    fn what_is_left_is_told_in_whole_ones() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.left(6, 0), Left { per_minute: 6, remaining: 6, reset_ms: 0 });
        assert_eq!(bucket.take(4, 6, 0), Ok(()));
        assert_eq!(bucket.left(6, 0), Left { per_minute: 6, remaining: 2, reset_ms: 40_000 });
        assert_eq!(bucket.left(6, 9_999), Left { per_minute: 6, remaining: 2, reset_ms: 30_001 });
        assert_eq!(bucket.left(6, 10_000), Left { per_minute: 6, remaining: 3, reset_ms: 30_000 });
        assert_eq!(bucket.left(0, 0).remaining, 0);
    }

    #[test]
    fn a_guess_gives_way_to_the_truth() {
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
    fn what_never_fits_is_told_so() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(7, 6, 0), Err(TooMany::Ever));
        assert_eq!(bucket.take(1, 0, 0), Err(TooMany::Ever));
        assert_eq!(bucket.take(0, 0, 0), Ok(()));
        assert_eq!(bucket.take(6, 6, 0), Ok(()), "and takes nothing");
    }

    proptest! {
        #[test]
        fn after_the_wait_there_is_room_and_not_before(
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
