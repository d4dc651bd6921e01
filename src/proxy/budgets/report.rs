//! How budgets stand, in words: for headers and for errors.

use crate::budget::{Measure, NanoUsd};
use crate::store::counters::Standing;

/// What a caller is told of the budgets that its request is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What is held for the request until it has ended, where a budget is in money, in dollars.
    pub held_usd: Option<String>,
    /// The least that any budget in money has left, in dollars.
    pub left_usd: Option<String>,
    /// The least that any budget in tokens has left.
    pub left_tokens: Option<u64>,
    /// Budgets that have passed their mark.
    pub warning: Option<String>,
}

impl Report {
    /// Of a request for which this much is held; `None` where there is no budget.
    pub fn new(standings: &[Standing], held_nano_usd: u64) -> Option<Self> {
        if standings.is_empty() {
            return None;
        }
        let least = |measure: Measure| {
            let of_measure = standings.iter().filter(|one| one.budget.id.measure == measure);
            of_measure.map(Standing::left).min()
        };
        let warned: Vec<String> =
            standings.iter().filter(|one| is_past_mark(one)).map(warning).collect();
        let left_usd = least(Measure::NanoUsd).map(|left| NanoUsd(left).to_decimal());
        Some(Self {
            held_usd: left_usd.is_some().then(|| NanoUsd(held_nano_usd).to_decimal()),
            left_usd,
            left_tokens: least(Measure::Tokens),
            warning: (!warned.is_empty()).then(|| warned.join("; ")),
        })
    }
}

/// Whether so much is spent that somebody is to know.
pub fn is_past_mark(standing: &Standing) -> bool {
    standing.budget.warn_at().is_some_and(|mark| standing.count.spent >= mark)
}

/// `key:key_1/usd/day: 8.1 USD of 10 USD are spent, until 2026-11-23T00:00:00Z`.
fn warning(standing: &Standing) -> String {
    let measure = standing.budget.id.measure;
    let (spent, limit) =
        (measure.shown(standing.count.spent), measure.shown(standing.budget.limit));
    let until = standing.resets_at().map(|moment| format!(", until {moment}"));
    format!("{}: {spent} of {limit} are spent{}", standing.name(), until.unwrap_or_default())
}

/// What a caller is told whose request does not fit in.
pub fn exhausted(standing: &Standing) -> String {
    let measure = standing.budget.id.measure;
    let left = standing.budget.limit.saturating_sub(standing.count.spent);
    let reset = match standing.resets_at() {
        Some(moment) => format!("It frees up at {moment}."),
        None => "It does not free up by itself.".to_owned(),
    };
    let advice = "Send less, lower max_tokens, or have the budget raised.";
    format!(
        "You exceeded your current quota: the budget {} has {} of {} left, which is not enough for this \
         request. {reset} {advice}",
        standing.name(),
        measure.shown(left),
        measure.shown(standing.budget.limit),
    )
}
