//! Notes: marked text that stands where turns were removed.

use std::sync::Arc;

use crate::compact::summary::Summary;

/// Maximum number of counting notes at one message before the next compaction merges the two
/// oldest.
pub(crate) const NOTES_PER_MESSAGE: usize = 4;

/// Closing line of a note of excerpts before a user's own words.
const END: &str = "[weir: end of earlier messages]";

/// Note left by a compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// Message that it is attached to.
    pub message: usize,
    pub place: Place,
    /// Number of the compaction that wrote it, counted from 1; the last one's for merged notes.
    pub compaction: u32,
    /// Number of messages that it covers.
    pub left_out: usize,
    /// Size, including framing or a few tokens for the separator from the message's own text.
    pub tokens: u64,
    /// Its text about the removed messages; `None` if it only counts them.
    pub excerpts: Option<Arc<str>>,
    /// Model's summary at the start of the excerpts, if any.
    pub summary: Option<Summary>,
}

/// Notes that are sent, and the removed messages that they leave out.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentNotes {
    pub(crate) list: Vec<Note>,
    /// Number of removed messages that no note mentions.
    pub(crate) unmentioned: usize,
    /// Removed messages that no note of excerpts covers.
    pub(crate) unexcerpted: Vec<usize>,
    /// Messages that only the last note covers, if the next compaction must rewrite it.
    pub(crate) provisional: Vec<usize>,
    /// Work on all notes so far, in tokens that were looked at.
    pub(crate) work_tokens: u64,
}

impl SentNotes {
    /// Returns the size of all notes.
    pub(crate) fn tokens(&self) -> u64 {
        self.list.iter().map(|note| note.tokens).sum()
    }
}

/// Position of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before the message's text: nothing kept is before the gap.
    Before,
    /// After the message's text.
    After,
    /// In a user message of its own, after the message.
    Own,
    /// In a user message of its own, before the message.
    OwnBefore,
}

impl Note {
    /// Returns whether it has the same bytes in the same place as `other`.
    pub(crate) fn is_sent_as(&self, other: &Self) -> bool {
        let sent = |note: &Self| (note.message, note.place, note.left_out);
        sent(self) == sent(other) && self.excerpts == other.excerpts
    }

    /// Estimates its memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let text = self.excerpts.as_ref().map_or(0, |text| text.len());
        let summary = self.summary.as_ref().map_or(0, |summary| summary.text.len());
        size_of::<Self>() + text + summary
    }

    /// Returns the text of the note.
    pub(crate) fn text(&self) -> String {
        let noun = if self.left_out == 1 { "message was" } else { "messages were" };
        let said = match &self.excerpts {
            Some(excerpts) => excerpts.to_string(),
            None => format!(
                "[weir: {} earlier {noun} left out here to fit the context window]",
                self.left_out
            ),
        };
        match self.place {
            // Separates the user's words from the note.
            Place::Before if self.excerpts.is_some() => format!("{said}\n{END}\n\n"),
            Place::Before => format!("{said}\n\n"),
            Place::After => format!("\n\n{said}"),
            Place::Own | Place::OwnBefore => said,
        }
    }
}
