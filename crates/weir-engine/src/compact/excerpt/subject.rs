//! Input for a note of excerpts: the conversation so far, and the messages that the note replaces.

use std::sync::Arc;

use super::weight::Lexicon;
use crate::compact::message::reading::Reading;
use crate::compact::state::turns::Turns;
use crate::tokens::Encoding;

/// Input for a note.
pub(crate) struct Subject<'a> {
    /// All messages so far, including system messages.
    pub readings: &'a [Arc<Reading>],
    /// The values in them.
    pub lexicon: &'a Lexicon,
    /// Size of each message's text.
    pub text_tokens: &'a [u64],
    /// Turns of the messages.
    pub turns: &'a Turns,
    /// Messages that the note replaces, in order.
    pub gone: &'a [usize],
    /// Number of them, from the front, that a summary before the excerpts covers, if there is one.
    pub summarised: Option<usize>,
    /// Messages that are sent unchanged.
    pub kept: &'a [usize],
    /// Notes that stay, and the summary.
    pub notes: &'a [Arc<Reading>],
    /// First user message: the subject of the conversation.
    pub first_user: Option<usize>,
    pub encoding: Encoding,
    /// Cost of a token relative to its value: 1 by default; more sends less.
    pub excerpt_cost: f64,
    /// Maximum size of the parts that must survive, and of the rules among them, which may be more.
    pub survival_tokens: u64,
    pub rules_tokens: u64,
}
