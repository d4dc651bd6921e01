//! Budget alerts outside answers: one for each budget, window and degree, in the log and to a
//! webhook. Nothing waits for them, and their failure affects nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::Semaphore;

use super::report;
use crate::upstream::Webhook;
use weir_store::budget::NanoUsd;
use weir_store::counters::{Standing, written_moment};

/// Number of budgets past which earlier alerts are forgotten.
const MAX_TOLD: usize = 50_000;
/// Maximum number of posts in flight; further alerts go to the log only.
const MAX_POSTS: usize = 16;

/// Degree of spending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Degree {
    PastMark,
    Exhausted,
}

/// Sends each alert once.
pub struct Alerts {
    webhook: Option<Webhook>,
    posts: Arc<Semaphore>,
    /// By budget: the degree of the last alert, and its window.
    told: Mutex<HashMap<String, (Option<u64>, Degree)>>,
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
    pub fn new(url: &str) -> Self {
        let webhook = (!url.is_empty()).then(|| Webhook::new(url)).flatten();
        Self { webhook, posts: Arc::new(Semaphore::new(MAX_POSTS)), told: Mutex::default() }
    }

    /// Sends alerts for budgets that have passed their warning mark, or are exhausted.
    pub fn look(&self, standings: &[Standing], now_ms: u64) {
        for standing in standings {
            let degree = match () {
                () if standing.count.spent >= standing.budget.limit => Degree::Exhausted,
                () if report::is_past_mark(standing) => Degree::PastMark,
                () => continue,
            };
            let name = standing.name();
            if self.is_news(&name, standing.count.resets_ms, degree) {
                self.tell(&name, standing, degree, now_ms);
            }
        }
    }

    fn is_news(&self, name: &str, resets_ms: Option<u64>, degree: Degree) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MAX_TOLD {
            told.clear();
        }
        let before = told.get(name).filter(|(window, _)| *window == resets_ms);
        if before.is_some_and(|(_, before)| *before >= degree) {
            return false;
        }
        told.insert(name.to_owned(), (resets_ms, degree));
        true
    }

    fn tell(&self, name: &str, standing: &Standing, degree: Degree, now_ms: u64) {
        let event = match degree {
            Degree::PastMark => "budget_warning",
            Degree::Exhausted => "budget_exhausted",
        };
        let measure = standing.budget.id.measure;
        let shown = |amount| measure.shown(amount);
        tracing::warn!(
            target: "weir::budget",
            event,
            budget = name,
            spent = shown(standing.count.spent),
            limit = shown(standing.budget.limit),
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
            limit: plain(standing.budget.limit),
            spent: plain(standing.count.spent),
            held: plain(standing.count.held),
            left: plain(standing.left()),
            measure: measure.word(),
            resets_at: standing.resets_at(),
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
