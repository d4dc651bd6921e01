//! Counters of summaries since the process started.

use std::sync::atomic::{AtomicU64, Ordering};

use super::records::{LookupCounts, Records};
use super::spans::SummaryOutcome;

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
    looks: [AtomicU64; LOOKS.len()],
}

const LOOKS: [(SummaryOutcome, &str); 6] = [
    (SummaryOutcome::Kept, "cuts_kept"),
    (SummaryOutcome::Ready, "cuts_ready"),
    (SummaryOutcome::KeptExtract, "cuts_kept_extract"),
    (SummaryOutcome::Late, "cuts_late"),
    (SummaryOutcome::StoreFails, "cuts_store_fails"),
    (SummaryOutcome::Unfit, "cuts_unfit"),
];

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
        for ((other, _), counter) in LOOKS.iter().zip(&self.looks) {
            add(counter, u64::from(*other == look));
        }
    }

    pub(super) fn figures(&self, records: &Records) -> Vec<(&'static str, u64)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |found: &LookupCounts| {
            [&found.in_memory, &found.in_store, &found.nowhere, &found.failures].map(read)
        };
        let [memory, store, nowhere, failures] = of(&records.found);
        let [ready_memory, ready_store, ready_nowhere, ready_failures] = of(&records.found_ready);
        let mut figures = vec![
            ("made", read(&self.made)),
            ("calls", read(&self.calls)),
            ("tokens", read(&self.tokens)),
            ("missed", read(&self.missed)),
            ("capped", read(&self.capped)),
            ("paused", read(&self.paused)),
            ("waited", read(&self.waited)),
            ("records_in_memory", memory),
            ("records_in_store", store),
            ("records_nowhere", nowhere),
            ("records_failed", failures),
            ("ready_in_memory", ready_memory),
            ("ready_in_store", ready_store),
            ("ready_nowhere", ready_nowhere),
            ("ready_failed", ready_failures),
        ];
        let looks = LOOKS.iter().zip(&self.looks);
        figures.extend(looks.map(|((_, name), counter)| (*name, read(counter))));
        figures
    }
}
