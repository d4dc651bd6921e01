//! The marked text that stands where turns went.

use std::sync::Arc;

use super::summary::Summary;

/// How many counting notes one message carries before the next cut merges the two oldest.
pub const NOTES_PER_MESSAGE: usize = 4;

/// What ends a note of excerpts that stands before a user's own words.
const END: &str = "[weir: end of earlier messages]";

/// A note that a cut left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The message it stands beside.
    pub message: usize,
    pub place: Place,
    /// The number of the cut that wrote it, counted from 1; the last one's where notes were merged.
    pub cut: u32,
    /// How many messages it speaks of.
    pub left_out: usize,
    /// Tokens it takes, framing or a few for the seam with the message's own text included.
    pub tokens: u64,
    /// All that it says of what went; `None` where it only says how many messages did.
    pub excerpts: Option<Arc<str>>,
    /// What a model wrote of them, where the excerpts begin with that.
    pub summary: Option<Summary>,
}

/// Where a note stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before what the message says: nothing kept stands before the gap.
    Before,
    /// After what the message says.
    After,
    /// In a user message of its own, after the message.
    Own,
    /// In a user message of its own, before the message.
    OwnBefore,
}

impl Note {
    /// Whether it comes to the same bytes in the same place as `other`.
    pub fn is_sent_as(&self, other: &Self) -> bool {
        let sent = |note: &Self| (note.message, note.place, note.left_out);
        sent(self) == sent(other) && self.excerpts == other.excerpts
    }

    /// About how many bytes it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        let text = self.excerpts.as_ref().map_or(0, |text| text.len());
        let summary = self.summary.as_ref().map_or(0, |summary| summary.text.len());
        size_of::<Self>() + text + summary
    }

    /// What the note says.
    pub fn text(&self) -> String {
        let noun = if self.left_out == 1 { "message was" } else { "messages were" };
        let said = match &self.excerpts {
            Some(excerpts) => excerpts.to_string(),
            None => format!(
                "[weir: {} earlier {noun} left out here to fit the context window]",
                self.left_out
            ),
        };
        match self.place {
            // So that nobody takes what the user says for a part of the note.
            Place::Before if self.excerpts.is_some() => format!("{said}\n{END}\n\n"),
            Place::Before => format!("{said}\n\n"),
            Place::After => format!("\n\n{said}"),
            Place::Own | Place::OwnBefore => said,
        }
    }
}
