//! Summaries of messages that a compaction removes: a model's text ([`Summary`]) and its form in a
//! note (`block.rs`). A summariser call has three parts: the messages as data (`transcript.rs`),
//! the prompt (`prompt.rs`), and the check of the answer (`answer.rs`). Pure; calls no model.

mod answer;
mod block;
mod prompt;
mod transcript;

pub use answer::{Unfit, cap, check, clean};
pub(crate) use block::block;
pub use prompt::{Prompt, SECTIONS, appended};
pub use transcript::{Round, Size, rounds};

use std::sync::Arc;

/// Model's summary of messages that a compaction removes, checked and within its cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Number of messages of the span that it covers, counted from the front; those behind came
    /// later.
    pub covers: usize,
    /// Its sections, without weir's own mark.
    pub text: Arc<str>,
}

/// Room for a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Tokens available in the note.
    pub note_tokens: u64,
    /// Size of all messages that the note covers.
    pub replaced_tokens: u64,
}

/// Lookup of the summary for removed messages, by their indexes in order; `None` for the extract.
/// The result never changes for the same messages.
pub type Summaries<'a> = &'a dyn Fn(&[usize], Space) -> Option<Summary>;

/// Returns the maximum size of a summary in a note with `room_tokens`.
pub(crate) fn most_tokens(room_tokens: u64) -> u64 {
    room_tokens / 2
}
