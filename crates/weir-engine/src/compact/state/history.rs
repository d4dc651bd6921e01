//! History of compactions, kept so that a report can state when and why each happened. Derived from
//! the compaction state alone; decides nothing.

use std::collections::BTreeMap;

/// Mark that triggers a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The size is above the soft mark.
    Soft,
    /// The size is above the hard mark or the limit, or near them when a round begins.
    Hard,
}

/// Reason for a turn to stay, in the order in which the reasons give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pin {
    Recent,
    ByCaller,
    /// The user message of the newest exchange; it stays without a pin of its own.
    Question,
    FirstUser,
    /// It loads a tool that a call behind it needs.
    Load,
    /// Nothing before it is in the prompt: it has the provider's summary of that.
    Summary,
}

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
    compactions: Vec<CompactionRecord>,
    /// Number of the compaction that assigned each message its fate; 0 if the message is sent as
    /// received.
    changed_in: Vec<u32>,
    /// Reasons for older turns to stay in the last compaction.
    pub(crate) pins: BTreeMap<usize, Pin>,
    /// First of the newest turns at that time.
    pub(crate) newest: usize,
    /// Use of the summary in the current compaction.
    pub(crate) summary: SummaryUse,
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
    /// Adds a compaction, and the messages whose fate it assigned.
    pub(crate) fn record(
        &mut self,
        record: CompactionRecord,
        changed: impl Iterator<Item = usize>,
    ) {
        self.changed_in.resize(record.messages, 0);
        self.compactions.push(record);
        let number = self.count();
        for message in changed {
            self.changed_in[message] = number;
        }
    }

    /// Returns the number of compactions.
    pub(crate) fn count(&self) -> u32 {
        self.compactions.len() as u32
    }

    /// Returns the number of compactions before a message came.
    pub(crate) fn count_before(&self, message: usize) -> u32 {
        self.compactions.partition_point(|compaction| compaction.messages <= message) as u32
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
