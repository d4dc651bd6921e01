//! The short marked text that stands where turns went.

/// How many notes one message carries before the next cut merges the two oldest.
pub const NOTES_PER_MESSAGE: usize = 4;

/// A note that a cut left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The user message it stands beside.
    pub message: usize,
    /// Whether it stands before what the message says: nothing kept stands before the gap.
    pub is_before: bool,
    /// How many messages it speaks of.
    pub left_out: usize,
    /// Tokens it takes, a few for the seam with the message's own text included.
    pub tokens: u64,
}

impl Note {
    /// What the note says.
    pub fn text(&self) -> String {
        let noun = if self.left_out == 1 { "message was" } else { "messages were" };
        let said = format!(
            "[weir: {} earlier {noun} left out here to fit the context window]",
            self.left_out
        );
        if self.is_before { format!("{said}\n\n") } else { format!("\n\n{said}") }
    }
}
