//! Summaries of messages that a cut takes: what a model wrote of them ([`Summary`]), how it stands in
//! a note (`block.rs`), and what a summariser needs: the messages as data (`transcript.rs`), what it
//! is asked (`prompt.rs`), and whether its answer will do (`answer.rs`). Pure; asks no model.

mod answer;
mod block;
mod prompt;
mod transcript;

pub use answer::{Unfit, cap, check, clean};
pub(super) use block::block;
pub use prompt::{Prompt, SECTIONS, appended};
pub use transcript::{Round, Size, WindowTooSmall, rounds};

use std::sync::Arc;

/// What a model wrote of messages that a cut takes, checked and within its cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How many of the span's messages it speaks of, counted from the front; those behind it came
    /// later.
    pub covers: usize,
    /// Its sections, without weir's own mark.
    pub text: Arc<str>,
}

/// Where a summary is to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What the note has for it.
    pub note_tokens: u64,
    /// What all that the note speaks of takes.
    pub replaced_tokens: u64,
}

/// What stands for messages that go, by their indexes in order; `None` is the extract. The same for
/// ever for the same messages.
pub type Summaries<'a> = &'a dyn Fn(&[usize], Space) -> Option<Summary>;
