//! Circuit breaker: after several failures in a row it is open for a pause, then allows one probe
//! before everything passes again. Does not know whether there is an alternative.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Breaker of one upstream, or of one use of it.
#[derive(Debug)]
pub struct Breaker {
    most_failures: u32,
    pause: Duration,
    /// Whether failures are recorded, so that a sound upstream costs no lock.
    is_troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures in a row.
    failures: u32,
    /// Time until which it is open, if it is; then a probe may pass.
    open_until: Option<Instant>,
    /// Whether a probe with a permit is under way.
    is_probing: bool,
}

/// State change caused by the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    Opened,
    Closed,
}

/// Health of an upstream, by the requests that went there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health {
    /// Failures in a row.
    pub failures: u32,
    /// Whether it is skipped if there is another.
    pub is_open: bool,
}

/// Permit for one call. Dropped without a report, the call counts as failed.
#[must_use = "a call without a report counts as failed"]
pub struct Permit<'a> {
    breaker: &'a Breaker,
    is_reported: bool,
}

impl Breaker {
    /// Creates a closed breaker that opens for `pause` after `most_failures` in a row.
    pub fn new(most_failures: u32, pause: Duration) -> Self {
        Self { most_failures, pause, is_troubled: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Returns how long it stays open before a probe.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Whether a request may pass at `now`. After the pause, one probe passes; the next one passes a
    /// pause later, regardless of its result, since a probe may be abandoned.
    pub fn lets_through(&self, now: Instant) -> bool {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return true;
        }
        let mut state = self.state();
        if state.is_open(now) {
            return false;
        }
        if state.open_until.is_some() {
            state.open_until = Some(now + self.pause);
        }
        true
    }

    /// Returns a permit for a call at `now`; `None` while it is open. The permit of a probe is the
    /// only one until it ends.
    pub fn permit(&self, now: Instant) -> Option<Permit<'_>> {
        let mut state = self.state();
        if state.is_open(now) {
            return None;
        }
        state.is_probing = state.open_until.is_some();
        Some(Permit { breaker: self, is_reported: false })
    }

    /// Returns the health at `now`.
    pub fn health(&self, now: Instant) -> Health {
        let state = self.state();
        Health { failures: state.failures, is_open: state.is_open(now) }
    }

    /// Whether calls at `now` are blocked.
    pub fn is_open(&self, now: Instant) -> bool {
        self.state().is_open(now)
    }

    /// Records the end of a request at `now`.
    pub fn note(&self, is_success: bool, now: Instant) -> Change {
        if is_success && !self.is_troubled.load(Ordering::Relaxed) {
            return Change::None;
        }
        let mut state = self.state();
        let was_open = state.open_until.is_some();
        self.is_troubled.store(!is_success, Ordering::Relaxed);
        if is_success {
            *state = State::default();
            return if was_open { Change::Closed } else { Change::None };
        }
        state.failures = state.failures.saturating_add(1);
        state.is_probing = false;
        if !was_open && state.failures < self.most_failures {
            return Change::None;
        }
        state.open_until = Some(now + self.pause);
        if was_open { Change::None } else { Change::Opened }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_open(&self, now: Instant) -> bool {
        self.open_until.is_some_and(|until| self.is_probing || now < until)
    }
}

impl Permit<'_> {
    /// Reports how the call ended, and returns the state change.
    pub fn report(mut self, is_success: bool, now: Instant) -> Change {
        self.is_reported = true;
        self.breaker.note(is_success, now)
    }

    /// Returns the permit unused: the outcome does not concern the breaker.
    pub fn give_back(mut self) {
        self.is_reported = true;
        self.breaker.state().is_probing = false;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if !self.is_reported {
            self.breaker.note(false, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    fn call(breaker: &Breaker, is_success: bool, now: Instant) -> Option<Change> {
        breaker.permit(now).map(|permit| permit.report(is_success, now))
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_closes_it() {
        let (breaker, begun) = (Breaker::new(5, PAUSE), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        for _ in 0..4 {
            assert_eq!(breaker.note(false, at(0)), Change::None);
        }
        assert_eq!(breaker.note(true, at(0)), Change::None);
        for _ in 0..4 {
            assert_eq!(breaker.note(false, at(5)), Change::None);
            assert!(breaker.lets_through(at(5)));
        }
        assert_eq!(breaker.note(false, at(7)), Change::Opened);
        assert!(!breaker.lets_through(at(7)));
        assert!(!breaker.lets_through(at(36)));
        assert_eq!(breaker.note(false, at(8)), Change::None, "a request that did not ask");
        assert!(!breaker.lets_through(at(37)), "the pause begins again");
        assert!(breaker.lets_through(at(38)), "one probe");
        assert!(!breaker.lets_through(at(38)), "and no other");
        assert!(breaker.lets_through(at(68)), "the probe may have been abandoned");
        assert_eq!(breaker.note(true, at(68)), Change::Closed);
        assert!(breaker.lets_through(at(68)));
        assert_eq!(breaker.note(false, at(69)), Change::None, "it counts from zero");
    }

    #[test]
    fn one_permit_at_a_time_probes() {
        let (breaker, begun) = (Breaker::new(3, PAUSE), Instant::now());
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
        let probe = breaker.permit(later).expect("one probe");
        assert_eq!(call(&breaker, true, later), None, "there is one probe at a time");
        assert!(!breaker.lets_through(later + PAUSE), "nor a request without a permit");
        probe.give_back();
        let probe = breaker.permit(later).expect("a probe instead");
        assert_eq!(probe.report(false, later), Change::None);
        assert_eq!(call(&breaker, true, later + PAUSE / 2), None, "the pause begins again");
        assert_eq!(call(&breaker, true, later + PAUSE), Some(Change::Closed));
        assert!(!breaker.is_open(later + PAUSE));
        assert_eq!(call(&breaker, false, later + PAUSE), Some(Change::None), "it counts from zero");
    }

    #[test]
    fn a_call_without_a_report_has_failed() {
        let (breaker, now) = (Breaker::new(3, PAUSE), Instant::now());
        for _ in 0..3 {
            drop(breaker.permit(now));
        }
        assert!(breaker.is_open(Instant::now()));
        assert!(!breaker.is_open(Instant::now() + PAUSE));
    }
}
