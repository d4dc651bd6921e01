//! Room for what must survive in a note: if the rules of the messages removed now do not fit behind the notes
//! so far, all notes are written again as one.

use super::Compaction;
use super::condense::{MOST_WORK, Room};
use crate::compact::policy::share;
use crate::compact::source::Source;
use crate::compact::survival;

/// Minimum room with a small limit, as long as it is no more than a tenth of the limit: a share of few tokens
/// has no room for a few rules.
const LEAST_SURVIVAL_TOKENS: u64 = 256;
const LEAST_SURVIVAL_PERMILLE: u32 = 100;
/// Tokens of a note's first line, and of the speakers of a few messages.
const FRAME_TOKENS: f64 = 24.0;

impl Compaction<'_> {
    /// Returns the maximum size of what a note has first.
    pub(super) fn survival_tokens(&self) -> u64 {
        let profile = &self.state.profile;
        let permille = profile.policy.survival_permille;
        if permille == 0 {
            return 0;
        }
        let least_tokens = share(profile.limit_tokens, LEAST_SURVIVAL_PERMILLE);
        share(profile.limit_tokens, permille).max(least_tokens.min(LEAST_SURVIVAL_TOKENS))
    }

    /// Drops the notes so far if they leave too little room for the rules of the messages removed since.
    /// The new note then covers all messages, and has the room of all notes.
    pub(super) fn make_room_for_rules(&mut self, room: Room, source: &dyn Source) {
        let survival_tokens = self.survival_tokens();
        let work = self.state.compactions() as usize * self.state.messages.facts.len();
        if self.state.notes.list.is_empty() || survival_tokens == 0 || work > MOST_WORK {
            return;
        }
        let room_tokens = self.note_tokens(room).unwrap_or_default() as f64;
        if room_tokens >= survival_tokens as f64 + FRAME_TOKENS {
            return;
        }
        let rules_tokens = self.with_subject(&self.span(), None, source, |subject| {
            survival::rules_tokens(subject, survival_tokens as f64)
        });
        if rules_tokens > 0.0 && rules_tokens + FRAME_TOKENS > room_tokens {
            self.drop_notes();
        }
    }
}
