//! Health of a part of the store: its successes, failures and durations. Logs changes of it alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::StoreError;
use crate::latency::Latency;

/// Health of a part.
pub(crate) struct Health {
    /// What the log says of the first failure, and of the first success after it.
    unable: &'static str,
    able_again: &'static str,
    is_failing: AtomicBool,
    successes: AtomicU64,
    failures: AtomicU64,
    pub latency: Latency,
}

impl Health {
    /// Creates the health of a part that works.
    pub(crate) fn new(unable: &'static str, able_again: &'static str) -> Self {
        Self {
            unable,
            able_again,
            is_failing: AtomicBool::new(false),
            successes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            latency: Latency::default(),
        }
    }

    /// Returns whether the last operation failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Returns the numbers of successful and failed operations.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.successes.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Counts an outcome, and logs the first failure after a success and the first success after a
    /// failure.
    pub(crate) fn report(&self, outcome: Result<(), &StoreError>) {
        let count = if outcome.is_ok() { &self.successes } else { &self.failures };
        count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            // Usually nothing changes, and reading is cheaper.
            Ok(()) => {
                if self.is_failing() && self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(target: "weir::store", "{}", self.able_again);
                }
            }
            // These say nothing about the store.
            Err(StoreError::TooLarge { .. } | StoreError::Closed) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Logs a failure, once.
    pub(crate) fn fail(&self, error: &StoreError) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "weir::store", %error, "{}", self.unable);
        }
    }
}
