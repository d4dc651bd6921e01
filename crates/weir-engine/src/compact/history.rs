//! History of compactions, kept so that a report can state when and why each happened. Derived from
//! the compaction state alone; decides nothing.

use std::collections::BTreeMap;

use super::compaction::{Mark, Pin};
use super::state::{Compactor, Fate};

/// Record of one compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionRecord {
    /// Mark that the size exceeded.
    pub mark: Mark,
    /// Whether all but the last turns were removed at once.
    pub is_restart: bool,
    /// Number of messages in the conversation.
    pub messages: usize,
    /// Number of turns in the conversation.
    pub turns: usize,
    /// Size to send before and after it, including tools.
    pub before_tokens: u64,
    pub after_tokens: u64,
    pub summary: SummaryUse,
}

/// Use of a model's summary in a compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SummaryUse {
    /// None existed, or none was wanted.
    #[default]
    Absent,
    /// The note begins with it.
    Used {
        /// Number of messages that it covers.
        messages: usize,
    },
    /// It was empty, or did not fit.
    Unfit,
}

/// All compactions so far.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub(super) compactions: Vec<CompactionRecord>,
    /// Number of the compaction that assigned each message its fate; 0 if the message is sent as
    /// received.
    changed_in: Vec<u32>,
    /// Reasons for older turns to stay in the last compaction.
    pub(super) pins: BTreeMap<usize, Pin>,
    /// First of the newest turns at that time.
    pub(super) newest: usize,
    /// Use of the summary in the current compaction.
    pub(super) summary: SummaryUse,
}

/// Conversation just before a compaction.
pub struct Before {
    fates: Vec<Fate>,
    clips: BTreeMap<usize, u64>,
    size_tokens: u64,
    restarts: u32,
}

impl Before {
    /// Captures the state before a compaction for later comparison.
    pub fn of(state: &Compactor) -> Self {
        Self {
            fates: state.fates.clone(),
            clips: state.clips.iter().map(|(message, clip)| (*message, clip.text_tokens)).collect(),
            size_tokens: state.size_tokens,
            restarts: state.restarts,
        }
    }
}

impl SummaryUse {
    /// Returns the name used in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Used { .. } => "used",
            Self::Unfit => "unfit",
        }
    }
}

impl History {
    /// Records the effects of the compaction at `mark` since `earlier`. The state has counted it
    /// already.
    pub fn record(state: &mut Compactor, mark: Mark, earlier: &Before) {
        let number = state.compactions();
        let mut changed_in = std::mem::take(&mut state.history.changed_in);
        changed_in.resize(state.fates.len(), 0);
        for (message, (fate, before)) in state.fates.iter().zip(&earlier.fates).enumerate() {
            let clip = state.clips.get(&message).map(|clip| clip.text_tokens);
            if fate != before || clip != earlier.clips.get(&message).copied() {
                changed_in[message] = number;
            }
        }
        state.history.changed_in = changed_in;
        state.history.compactions.push(CompactionRecord {
            mark,
            is_restart: state.restarts > earlier.restarts,
            messages: state.facts.len(),
            turns: state.turns.list.len(),
            before_tokens: earlier.size_tokens,
            after_tokens: state.size_tokens,
            summary: state.history.summary,
        });
    }

    /// Returns the number of the compaction that assigned a message its fate, counted from 1; 0 if
    /// none did.
    pub fn changed_in(&self, message: usize) -> u32 {
        self.changed_in.get(message).copied().unwrap_or(0)
    }

    /// Returns a compaction by its number, counted from 1.
    pub fn compaction(&self, number: u32) -> Option<CompactionRecord> {
        self.compactions.get((number as usize).checked_sub(1)?).copied()
    }

    /// Returns the last compaction.
    pub fn last(&self) -> Option<CompactionRecord> {
        self.compactions.last().copied()
    }

    /// Estimates the memory of the history, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.compactions.capacity() * size_of::<CompactionRecord>()
            + self.changed_in.capacity() * size_of::<u32>()
            + self.pins.len() * 32
    }
}
