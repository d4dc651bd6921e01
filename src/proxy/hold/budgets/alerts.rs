//! Budget alerts outside answers: one for each budget, window and degree, in the log and to a
//! webhook. Nothing waits for them, and their failure affects nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::Semaphore;

use super::report;
use crate::upstream::Webhook;
use weir_store::budget::NanoUsd;
use weir_store::counters::{BudgetStatus, written_moment};

/// Number of budgets past which earlier alerts are forgotten.
const MAX_SENT: usize = 50_000;
/// Maximum number of posts in flight; further alerts go to the log only.
const MAX_POSTS: usize = 16;

/// Degree of spending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Degree {
    PastMark,
    Exhausted,
}

/// Sends each alert once.
pub(super) struct Alerts {
    webhook: Option<Webhook>,
    posts: Arc<Semaphore>,
    /// By budget: the degree of the last alert, and its window.
    sent: Mutex<HashMap<String, (Option<u64>, Degree)>>,
}

/// JSON body of an alert.
#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    budget: &'a str,
    limit: String,
    spent: String,
    held: String,
    left: String,
    measure: &'static str,
    resets_at: Option<String>,
    at: Option<String>,
}

impl Alerts {
    /// Creates alerts posted to `url`; not posted if it is empty.
    pub(super) fn new(url: &str) -> Self {
        let webhook = (!url.is_empty()).then(|| Webhook::new(url)).flatten();
        Self { webhook, posts: Arc::new(Semaphore::new(MAX_POSTS)), sent: Mutex::default() }
    }

    /// Sends alerts for budgets that have passed their warning mark, or are exhausted.
    pub(super) fn look(&self, statuses: &[BudgetStatus], now_ms: u64) {
        for status in statuses {
            let degree = match () {
                () if status.count.spent >= status.budget.limit => Degree::Exhausted,
                () if report::is_past_mark(status) => Degree::PastMark,
                () => continue,
            };
            let name = status.name();
            if self.is_news(&name, status.count.resets_ms, degree) {
                self.alert(&name, status, degree, now_ms);
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

    fn alert(&self, name: &str, status: &BudgetStatus, degree: Degree, now_ms: u64) {
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
        let Some(webhook) = &self.webhook else { return };
        let plain = |amount: u64| match measure {
            weir_store::budget::Measure::NanoUsd => NanoUsd(amount).to_decimal(),
            weir_store::budget::Measure::Tokens => amount.to_string(),
        };
        let event = Event {
            event,
            budget: name,
            limit: plain(status.budget.limit),
            spent: plain(status.count.spent),
            held: plain(status.count.held),
            left: plain(status.left()),
            measure: measure.word(),
            resets_at: status.resets_at(),
            at: written_moment(now_ms),
        };
        let body = serde_json::to_vec(&event).expect("texts under fixed keys are JSON");
        let (Ok(place), Ok(runtime)) =
            (Arc::clone(&self.posts).try_acquire_owned(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let webhook = webhook.clone();
        runtime.spawn(async move {
            if let Err(error) = webhook.post(body).await {
                tracing::warn!(target: "weir::budget", error, "the webhook did not accept a warning");
            }
            drop(place);
        });
    }
}
