//! State of budgets as text, for headers and errors.

use crate::proxy::plan::BudgetReport;
use weir_store::budget::{Measure, NanoUsd};
use weir_store::counters::BudgetStatus;

impl BudgetReport {
    /// Creates the report for a request with this hold; `None` if no budget applies.
    pub fn new(statuses: &[BudgetStatus], held_nano_usd: u64) -> Option<Self> {
        if statuses.is_empty() {
            return None;
        }
        let least = |measure: Measure| {
            let of_measure = statuses.iter().filter(|one| one.budget.id.measure == measure);
            of_measure.map(BudgetStatus::left).min()
        };
        let warned: Vec<String> =
            statuses.iter().filter(|one| is_past_mark(one)).map(warning).collect();
        let left_usd = least(Measure::NanoUsd).map(|left| NanoUsd(left).to_decimal());
        Some(Self {
            held_usd: left_usd.is_some().then(|| NanoUsd(held_nano_usd).to_decimal()),
            left_usd,
            left_tokens: least(Measure::Tokens),
            warning: (!warned.is_empty()).then(|| warned.join("; ")),
        })
    }
}

/// Whether spending has passed the warning mark.
pub(super) fn is_past_mark(status: &BudgetStatus) -> bool {
    status.budget.warn_at().is_some_and(|mark| status.count.spent >= mark)
}

/// Formats a warning, such as `key:key_1/usd/day: 8.1 USD of 10 USD are spent, until
/// 2026-11-23T00:00:00Z`.
fn warning(status: &BudgetStatus) -> String {
    let measure = status.budget.id.measure;
    let (spent, limit) = (measure.shown(status.count.spent), measure.shown(status.budget.limit));
    let until = status.resets_at().map(|moment| format!(", until {moment}"));
    format!("{}: {spent} of {limit} are spent{}", status.name(), until.unwrap_or_default())
}

/// Formats the error for a request that may cost `needed` at least, which does not fit into a budget.
pub(super) fn exhausted(status: &BudgetStatus, needed: u64, advice: &str) -> String {
    let measure = status.budget.id.measure;
    let left = status.budget.limit.saturating_sub(status.count.spent);
    let reset = match status.resets_at().filter(|_| status.count.spent > 0) {
        Some(moment) => format!("It frees up at {moment}."),
        None => "It does not free up by itself.".to_owned(),
    };
    format!(
        "You exceeded your current quota: the budget {} has {} of {} left, which is not enough for this \
         request: it may cost {}. {reset} {advice}, or ask the operator to raise the budget.",
        status.name(),
        measure.shown(left),
        measure.shown(status.budget.limit),
        measure.shown(needed),
    )
}
