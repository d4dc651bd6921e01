//! What cuts did to a conversation, kept so that a report can say when and why. A function of the
//! fold alone; decides nothing.

use std::collections::BTreeMap;

use super::cut::{Mark, Pin};
use super::fold::{Fate, Fold};

/// One cut, as it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutRecord {
    /// The mark that the size lay above.
    pub mark: Mark,
    /// Whether all but the last turns gave way at once.
    pub is_restart: bool,
    /// How many messages the conversation had.
    pub messages: usize,
    /// How many turns it had.
    pub turns: usize,
    /// What was to be sent before and after it, tools included.
    pub before_tokens: u64,
    pub after_tokens: u64,
    pub summary: SummaryUse,
}

/// What became of the summary of what a cut took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SummaryUse {
    /// There was none, or none was wanted.
    #[default]
    Absent,
    /// The note begins with it.
    Used {
        /// How many of the messages it speaks of.
        messages: usize,
    },
    /// It said nothing, or there was no room for it.
    Unfit,
}

/// All cuts so far.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub(super) cuts: Vec<CutRecord>,
    /// For each message of the last cut's conversation the number of the cut that gave it its fate;
    /// 0 where it stands as received.
    changed_in: Vec<u32>,
    /// Why turns before the newest stayed in the last cut.
    pub(super) pins: BTreeMap<usize, Pin>,
    /// The first of the turns that were the newest then.
    pub(super) newest: usize,
    /// What became of the summary in the cut at hand.
    pub(super) summary: SummaryUse,
}

/// A conversation on the eve of a cut.
pub struct Eve {
    fates: Vec<Fate>,
    clips: BTreeMap<usize, u64>,
    size_tokens: u64,
    restarts: u32,
}

impl Eve {
    /// What a cut of `fold` is compared with.
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
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Used { .. } => "used",
            Self::Unfit => "unfit",
        }
    }
}

impl History {
    /// Notes what the cut at `mark` that `eve` came before has done. The fold has counted it already.
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

    /// The number of the cut that gave a message its fate, counted from 1; 0 where none did.
    pub fn changed_in(&self, message: usize) -> u32 {
        self.changed_in.get(message).copied().unwrap_or(0)
    }

    /// The cut of this number, counted from 1.
    pub fn cut(&self, number: u32) -> Option<CutRecord> {
        self.cuts.get((number as usize).checked_sub(1)?).copied()
    }

    /// The last cut.
    pub fn last(&self) -> Option<CutRecord> {
        self.cuts.last().copied()
    }

    /// About how many bytes it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        self.cuts.capacity() * size_of::<CutRecord>()
            + self.changed_in.capacity() * size_of::<u32>()
            + self.pins.len() * 32
    }
}
