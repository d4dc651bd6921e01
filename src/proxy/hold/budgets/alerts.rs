//! Budget alerts outside answers: one for each budget, window and degree, in the log and as an
//! event. Nothing waits for them, and their failure affects nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::report;
use crate::proxy::events::{Event, Events};
use weir_store::counters::BudgetStatus;

/// Number of budgets past which earlier alerts are forgotten.
const MAX_SENT: usize = 50_000;

/// Degree of spending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Degree {
    PastMark,
    Exhausted,
}

/// Sends each alert once.
pub(super) struct Alerts {
    events: Events,
    /// By budget: the degree of the last alert, and its window.
    sent: Mutex<HashMap<String, (Option<u64>, Degree)>>,
}

impl Alerts {
    /// Creates alerts that are sent as `events`.
    pub(super) fn new(events: Events) -> Self {
        Self { events, sent: Mutex::default() }
    }

    /// Sends alerts for budgets that have passed their warning mark, or are exhausted.
    pub(super) fn look(&self, statuses: &[BudgetStatus]) {
        for status in statuses {
            let degree = match () {
                () if status.count.spent >= status.budget.limit => Degree::Exhausted,
                () if report::is_past_mark(status) => Degree::PastMark,
                () => continue,
            };
            let name = status.name();
            if self.is_news(&name, status.count.resets_ms, degree) {
                self.alert(&name, status, degree);
            }
        }
    }

    fn is_news(&self, name: &str, resets_ms: Option<u64>, degree: Degree) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= MAX_SENT {
            sent.clear();
        }
        let before = sent.get(name).filter(|(window, _)| *window == resets_ms);
        if before.is_some_and(|(_, before)| *before >= degree) {
            return false;
        }
        sent.insert(name.to_owned(), (resets_ms, degree));
        true
    }

    fn alert(&self, name: &str, status: &BudgetStatus, degree: Degree) {
        let event = match degree {
            Degree::PastMark => "budget_warning",
            Degree::Exhausted => "budget_exhausted",
        };
        let measure = status.budget.id.measure;
        let shown = |amount| measure.shown(amount);
        tracing::warn!(
            target: "weir::budget",
            event,
            budget = name,
            spent = shown(status.count.spent),
            limit = shown(status.budget.limit),
            "a budget has passed its mark"
        );
        let is_exhausted = degree == Degree::Exhausted;
        self.events.send(&Event::Budget { name, status, is_exhausted });
    }
}
