//! Counters of summaries since the process started.

use std::sync::atomic::{AtomicU64, Ordering};

use super::records::{LookupCounts, Records};
use super::spans::SummaryOutcome;
use crate::config::words::Worded;

/// Counters of summaries.
#[derive(Debug, Default)]
pub(super) struct Counts {
    made: AtomicU64,
    calls: AtomicU64,
    tokens: AtomicU64,
    missed: AtomicU64,
    capped: AtomicU64,
    paused: AtomicU64,
    waited: AtomicU64,
    /// Compactions, by the source of their record.
    looks: [AtomicU64; SummaryOutcome::WORDS.len()],
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn made(&self, calls: u64, tokens: u64) {
        add(&self.made, 1);
        add(&self.calls, calls);
        add(&self.tokens, tokens);
    }

    pub(super) fn missed(&self, is_capped: bool) {
        add(&self.missed, 1);
        add(&self.capped, u64::from(is_capped));
    }

    pub(super) fn paused(&self) {
        add(&self.paused, 1);
    }

    pub(super) fn waited(&self) {
        add(&self.waited, 1);
    }

    pub(super) fn looked(&self, look: SummaryOutcome) {
        add(&self.looks[look as usize], 1);
    }

    pub(super) fn figures(&self, records: &Records) -> Vec<(String, u64)> {
        let own = [
            ("made", &self.made),
            ("calls", &self.calls),
            ("tokens", &self.tokens),
            ("missed", &self.missed),
            ("capped", &self.capped),
            ("paused", &self.paused),
            ("waited", &self.waited),
        ];
        let own = own.map(|(name, counter)| (name.to_owned(), counter));
        let looks = SummaryOutcome::WORDS.iter().zip(&self.looks);
        let looks = looks.map(|((word, _), counter)| (format!("cuts_{word}"), counter));
        let all = own.into_iter().chain(found("records", &records.found));
        let all = all.chain(found("ready", &records.found_ready)).chain(looks);
        all.map(|(name, counter)| (name, counter.load(Ordering::Relaxed))).collect()
    }
}

/// Returns the counters of the lookups of a kind of records, by name.
fn found<'c>(kind: &str, counts: &'c LookupCounts) -> [(String, &'c AtomicU64); 4] {
    [
        ("in_memory", &counts.in_memory),
        ("in_store", &counts.in_store),
        ("nowhere", &counts.nowhere),
        ("failed", &counts.failures),
    ]
    .map(|(place, counter)| (format!("{kind}_{place}"), counter))
}
