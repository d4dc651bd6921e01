//! Circuit breaker of the summariser: after several failures in a row it pauses, then allows one
//! probe before all calls resume. Failures caused by one caller's content pause summaries for that
//! caller only.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open the breaker.
const MOST_FAILURES: u32 = 3;

/// Breakers that must be closed for a call on behalf of one caller.
#[derive(Debug, Clone)]
pub struct Breakers {
    /// For failures of the summariser.
    pub summariser: Arc<Breaker>,
    /// For failures caused by this caller's content.
    pub content: Arc<Breaker>,
}

/// Permits from both breakers.
pub struct Leaves<'a> {
    pub summariser: Leave<'a>,
    pub content: Leave<'a>,
}

impl Breakers {
    /// Returns permits for a call at `now`; `None` while either breaker is open.
    pub fn leaves(&self, now: Instant) -> Option<Leaves<'_>> {
        let summariser = self.summariser.leave(now)?;
        let Some(content) = self.content.leave(now) else {
            summariser.give_back();
            return None;
        };
        Some(Leaves { summariser, content })
    }

    /// Whether calls at `now` are blocked.
    pub fn is_open(&self, now: Instant) -> bool {
        self.summariser.is_open(now) || self.content.is_open(now)
    }
}

/// State of one breaker.
#[derive(Debug)]
pub struct Breaker {
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Time at which it opened, or of the last probe since.
    open_since: Option<Instant>,
    is_probing: bool,
}

/// Permit for one call. Dropped without a report, the call counts as failed.
#[must_use = "a call without a report counts as failed"]
pub struct Leave<'a> {
    breaker: &'a Breaker,
    is_told: bool,
}

/// State change caused by a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    /// The breaker has opened.
    Opened,
    /// The breaker has closed.
    Closed,
}

impl Breaker {
    pub fn new(pause: Duration) -> Self {
        Self { pause, state: Mutex::default() }
    }

    /// Returns a permit for a call at `now`; `None` while the breaker is open.
    pub fn leave(&self, now: Instant) -> Option<Leave<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = state.open_since {
            if state.is_probing || now < since + self.pause {
                return None;
            }
            state.is_probing = true;
        }
        Some(Leave { breaker: self, is_told: false })
    }

    /// Whether calls at `now` are blocked.
    pub fn is_open(&self, now: Instant) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.open_since.is_some_and(|since| state.is_probing || now < since + self.pause)
    }

    fn tell(&self, is_success: bool, now: Instant) -> Change {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was_open = state.open_since.is_some();
        if is_success {
            *state = State::default();
            return if was_open { Change::Closed } else { Change::None };
        }
        state.failures = state.failures.saturating_add(1);
        state.is_probing = false;
        if was_open || state.failures >= MOST_FAILURES {
            state.open_since = Some(now);
        }
        if !was_open && state.open_since.is_some() { Change::Opened } else { Change::None }
    }
}

impl Leave<'_> {
    /// Reports how the call ended, and returns the state change.
    pub fn tell(mut self, is_success: bool, now: Instant) -> Change {
        self.is_told = true;
        self.breaker.tell(is_success, now)
    }
}

impl Leave<'_> {
    /// Returns the permit unused: the outcome does not concern the summariser.
    pub fn give_back(mut self) {
        self.is_told = true;
        let mut state = self.breaker.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_probing = false;
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            self.breaker.tell(false, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    fn call(breaker: &Breaker, is_success: bool, now: Instant) -> Option<Change> {
        breaker.leave(now).map(|leave| leave.tell(is_success, now))
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_one_probe_closes_it() {
        let (breaker, begun) = (Breaker::new(PAUSE), Instant::now());
        for (is_success, wanted) in [
            (false, Change::None),
            (false, Change::None),
            (true, Change::None),
            (false, Change::None),
            (false, Change::None),
            (false, Change::Opened),
        ] {
            assert_eq!(call(&breaker, is_success, begun), Some(wanted));
        }
        assert_eq!(call(&breaker, true, begun + PAUSE / 2), None);
        let later = begun + PAUSE;
        let probe = breaker.leave(later).expect("one probe");
        assert_eq!(call(&breaker, true, later), None, "there is one probe at a time");
        assert_eq!(probe.tell(false, later), Change::None);
        assert_eq!(call(&breaker, true, later + PAUSE / 2), None, "the pause begins anew");
        assert_eq!(call(&breaker, true, later + PAUSE), Some(Change::Closed));
        assert!(!breaker.is_open(later + PAUSE));
        assert_eq!(call(&breaker, false, later + PAUSE), Some(Change::None), "and counts anew");
    }

    #[test]
    fn a_call_that_is_not_told_of_has_failed() {
        let (breaker, now) = (Breaker::new(PAUSE), Instant::now());
        for _ in 0..MOST_FAILURES {
            drop(breaker.leave(now));
        }
        assert!(breaker.is_open(Instant::now()));
        assert!(!breaker.is_open(Instant::now() + PAUSE));
    }
}
