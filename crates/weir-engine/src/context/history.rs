//! History of compactions, kept so that a report can state when and why each happened. Derived from
//! the compaction state alone; decides nothing.

use std::collections::BTreeMap;

use super::cut::{Mark, Pin};
use super::fold::{Fate, Fold};

/// Record of one compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutRecord {
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
    pub(super) cuts: Vec<CutRecord>,
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
pub struct Eve {
    fates: Vec<Fate>,
    clips: BTreeMap<usize, u64>,
    size_tokens: u64,
    restarts: u32,
}

impl Eve {
    /// Captures the state before a compaction for later comparison.
    pub fn of(fold: &Fold) -> Self {
        Self {
            fates: fold.fates.clone(),
            clips: fold.clips.iter().map(|(message, clip)| (*message, clip.text_tokens)).collect(),
            size_tokens: fold.size_tokens,
            restarts: fold.restarts,
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
    /// Records the effects of the compaction at `mark` since `eve`. The state has counted it
    /// already.
    pub fn record(fold: &mut Fold, mark: Mark, eve: &Eve) {
        let number = fold.cuts();
        let mut changed_in = std::mem::take(&mut fold.history.changed_in);
        changed_in.resize(fold.fates.len(), 0);
        for (message, (fate, before)) in fold.fates.iter().zip(&eve.fates).enumerate() {
            let clip = fold.clips.get(&message).map(|clip| clip.text_tokens);
            if fate != before || clip != eve.clips.get(&message).copied() {
                changed_in[message] = number;
            }
        }
        fold.history.changed_in = changed_in;
        fold.history.cuts.push(CutRecord {
            mark,
            is_restart: fold.restarts > eve.restarts,
            messages: fold.facts.len(),
            turns: fold.turns.list.len(),
            before_tokens: eve.size_tokens,
            after_tokens: fold.size_tokens,
            summary: fold.history.summary,
        });
    }

    /// Returns the number of the compaction that assigned a message its fate, counted from 1; 0 if
    /// none did.
    pub fn changed_in(&self, message: usize) -> u32 {
        self.changed_in.get(message).copied().unwrap_or(0)
    }

    /// Returns a compaction by its number, counted from 1.
    pub fn cut(&self, number: u32) -> Option<CutRecord> {
        self.cuts.get((number as usize).checked_sub(1)?).copied()
    }

    /// Returns the last compaction.
    pub fn last(&self) -> Option<CutRecord> {
        self.cuts.last().copied()
    }

    /// Estimates the memory of the history, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.cuts.capacity() * size_of::<CutRecord>()
            + self.changed_in.capacity() * size_of::<u32>()
            + self.pins.len() * 32
    }
}
