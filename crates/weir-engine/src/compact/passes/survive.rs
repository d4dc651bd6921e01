//! Room for what must survive in a note: if the rules of the messages removed now do not fit behind the notes
//! so far, all notes are written again as one.

use super::Compaction;
use super::condense::Room;
use crate::compact::policy::share;
use crate::compact::source::Source;
use crate::compact::survival;

/// Minimum room for rules with a small limit, as long as it is no more than a tenth of the limit: a share of
/// few tokens has no room for a few rules.
const LEAST_RULES_TOKENS: u64 = 256;
const LEAST_RULES_PERMILLE: u32 = 100;
/// Tokens of a note's first line, and of the speakers of a few messages.
const FRAME_TOKENS: f64 = 24.0;

impl Compaction<'_> {
    /// Returns the maximum size of what a note has first.
    pub(super) fn survival_tokens(&self) -> u64 {
        share(self.state.goal_tokens(), self.state.profile.policy.survival_permille)
    }

    /// Returns the same for rules: more with a small limit, but none if nothing has precedence.
    pub(super) fn rules_tokens(&self) -> u64 {
        let least_tokens = share(self.state.goal_tokens(), LEAST_RULES_PERMILLE);
        match self.survival_tokens() {
            0 => 0,
            tokens => tokens.max(least_tokens.min(LEAST_RULES_TOKENS)),
        }
    }

    /// Drops the notes so far if they leave too little room for the rules of the messages removed since.
    /// The new note then covers all messages, and has the room of all notes.
    pub(super) fn make_room_for_rules(&mut self, room: Room, source: &dyn Source) {
        let most_tokens = self.rules_tokens();
        if self.state.notes.list.is_empty() || most_tokens == 0 || !self.may_work() {
            return;
        }
        let room_tokens = self.note_tokens(room).unwrap_or_default() as f64;
        if room_tokens >= most_tokens as f64 + FRAME_TOKENS {
            return;
        }
        let rules_tokens = self.with_subject(&self.span(), None, source, |subject| {
            survival::rules_tokens(subject, most_tokens as f64)
        });
        if rules_tokens > 0.0 && rules_tokens + FRAME_TOKENS > room_tokens {
            self.drop_notes();
        }
    }
}
