//! Whether a summariser is asked at all: after several failures in a row it is left alone for a
//! while, and then asked once before it is asked by all again. What one caller's content brings about
//! leaves that caller alone without it, and nobody else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row before it is left alone.
const MOST_FAILURES: u32 = 3;

/// What has to be closed for a call on behalf of one caller.
#[derive(Debug, Clone)]
pub struct Breakers {
    /// Of what answers.
    pub summariser: Arc<Breaker>,
    /// Of what it makes of this caller's content.
    pub content: Arc<Breaker>,
}

/// Leave by both.
pub struct Leaves<'a> {
    pub summariser: Leave<'a>,
    pub content: Leave<'a>,
}

impl Breakers {
    /// Leave to call at `now`; `None` while there is none by either.
    pub fn leaves(&self, now: Instant) -> Option<Leaves<'_>> {
        let summariser = self.summariser.leave(now)?;
        let Some(content) = self.content.leave(now) else {
            summariser.give_back();
            return None;
        };
        Some(Leaves { summariser, content })
    }

    /// Whether no call is to be made at `now`.
    pub fn is_open(&self, now: Instant) -> bool {
        self.summariser.is_open(now) || self.content.is_open(now)
    }
}

/// One summariser's state.
#[derive(Debug)]
pub struct Breaker {
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// When it was left alone, or last tried since.
    open_since: Option<Instant>,
    is_probing: bool,
}

/// Leave to make one call. Dropped, it says that the call failed.
#[must_use = "a call that is not told of counts as failed"]
pub struct Leave<'a> {
    breaker: &'a Breaker,
    is_told: bool,
}

/// What a call changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    /// The summariser is left alone from now on.
    Opened,
    /// It answers again.
    Closed,
}

impl Breaker {
    pub fn new(pause: Duration) -> Self {
        Self { pause, state: Mutex::default() }
    }

    /// Leave to call at `now`; `None` while the summariser is left alone.
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

    /// Whether no call is to be made at `now`.
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
    /// Tells how the call ended, and gives what that changed.
    pub fn tell(mut self, is_success: bool, now: Instant) -> Change {
        self.is_told = true;
        self.breaker.tell(is_success, now)
    }
}

impl Leave<'_> {
    /// Gives the leave back: what happened says nothing of the summariser.
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
