//! Circuit breaker of an upstream: skips it for a while after several failures in a row. Pure: time
//! in, decision out. Does not know whether there is an alternative.

/// Failures in a row that open the breaker.
const MOST_FAILURES: u32 = 5;
/// How long the breaker stays open before one probe request.
const PAUSE_MS: u64 = 10_000;

/// State of one upstream's breaker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    /// Time until which the breaker is open, if it is.
    open_until_ms: Option<u64>,
}

/// State change caused by the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    Opened,
    Closed,
}

impl Breaker {
    /// Whether a request may pass at `now_ms`. After the pause, one probe passes; the next one
    /// passes a pause later, regardless of its result, since a probe may be abandoned.
    pub fn lets_through(&mut self, now_ms: u64) -> bool {
        match self.open_until_ms {
            Some(until_ms) if now_ms < until_ms => false,
            Some(_) => {
                self.open_until_ms = Some(now_ms.saturating_add(PAUSE_MS));
                true
            }
            None => true,
        }
    }

    /// Records an answer.
    pub fn answered(&mut self) -> Change {
        let was_open = self.open_until_ms.is_some();
        *self = Self::default();
        if was_open { Change::Closed } else { Change::None }
    }

    /// Records a failure at `now_ms`.
    pub fn failed(&mut self, now_ms: u64) -> Change {
        self.failures = self.failures.saturating_add(1);
        let was_open = self.open_until_ms.is_some();
        if !was_open && self.failures < MOST_FAILURES {
            return Change::None;
        }
        self.open_until_ms = Some(now_ms.saturating_add(PAUSE_MS));
        if was_open { Change::None } else { Change::Opened }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_closes_it() {
        let mut breaker = Breaker::default();
        for _ in 0..MOST_FAILURES - 1 {
            assert_eq!(breaker.failed(0), Change::None);
        }
        assert_eq!(breaker.answered(), Change::None);
        for _ in 0..MOST_FAILURES - 1 {
            assert_eq!(breaker.failed(5), Change::None);
            assert!(breaker.lets_through(5));
        }
        assert_eq!(breaker.failed(7), Change::Opened);
        assert!(!breaker.lets_through(7));
        assert!(!breaker.lets_through(7 + PAUSE_MS - 1));
        assert_eq!(breaker.failed(8), Change::None, "one sent all the same");
        assert!(!breaker.lets_through(7 + PAUSE_MS), "the pause began anew");
        assert!(breaker.lets_through(8 + PAUSE_MS), "one goes to see");
        assert!(!breaker.lets_through(8 + PAUSE_MS), "and no other");
        assert!(breaker.lets_through(8 + 2 * PAUSE_MS), "the one may have been given up");
        assert_eq!(breaker.answered(), Change::Closed);
        assert!(breaker.lets_through(8 + 2 * PAUSE_MS));
        assert_eq!(breaker.failed(9), Change::None, "it counts anew");
    }
}
