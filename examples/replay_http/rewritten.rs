//! Check on rewritten notes: the earlier notes that a compaction may replace, derived from sizes
//! alone.
//!
//! A compaction appends one note and leaves earlier notes unchanged, with two exceptions: the last
//! note is rewritten if it was written next to an outsized turn, and all notes are merged if they
//! leave no room for another, or too little for rules. Shares no code with the engine that it judges.

/// A turn is outsized if it takes more than this share of the room below the low mark.
const OUTSIZED_SHARE: f64 = 0.6;
/// Notes leave no room if the free part is below a tenth of their room. That tenth is capped at
/// this many tokens, but is at least this share of the room.
const FREE_TOKENS: f64 = 100.0;
const FREE_SHARE: f64 = 0.02;
/// Minimum room for notes: this many tokens, or this share of the room next to the messages that
/// must stay if that is less.
const LEAST_NOTES_TOKENS: f64 = 1000.0;
const LEAST_NOTES_SHARE: f64 = 0.7;
/// Notes of up to this many tokens may take two fifths of the growth that compactions make room
/// for, a quarter of the limit.
const SMALL_NOTES_TOKENS: f64 = 2300.0;
const SMALL_NOTES_SHARE: f64 = 0.4 * 0.25;

/// Room for the rules of removed messages, as a share of the limit. Rules that do not fit behind the
/// earlier notes make all notes be written again.
const RULES_SHARE: f64 = 0.05;

/// Sizes at a compaction.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub limit_tokens: u64,
    /// Target size of the compaction.
    pub low_tokens: u64,
    /// The first system messages, and the first user message if it is sent; tools included.
    pub fixed_tokens: u64,
    pub newest_turn_tokens: u64,
    /// All messages that must stay: the above, other system messages, and the messages that the
    /// newest turn answers.
    pub staying_tokens: u64,
    /// Maximum difference between the two counts. Within this distance of a border, either side is
    /// right.
    pub slack_tokens: u64,
}

impl Sizes {
    /// Whether the newest turn is outsized; `None` if it is too close to decide.
    pub fn is_outsized(&self) -> Option<bool> {
        let below_low = self.low_tokens.saturating_sub(self.fixed_tokens) as f64;
        self.is_more(self.newest_turn_tokens as f64, OUTSIZED_SHARE * below_low)
    }

    /// Whether notes of this size leave no room for another; `None` if it is too close to decide.
    pub fn is_full(&self, notes_tokens: u64) -> Option<bool> {
        let room = self.notes_room();
        let free = (0.1 * room).min(FREE_TOKENS).max(FREE_SHARE * room);
        self.is_more(notes_tokens as f64, room - free)
    }

    /// Whether notes of this size leave less than the room for rules. The difference in counts leaves
    /// them the benefit of the doubt.
    fn may_lack_room_for_rules(&self, notes_tokens: u64) -> bool {
        let free = RULES_SHARE * self.limit_tokens as f64;
        self.is_more(notes_tokens as f64, self.notes_room() - free) != Some(false)
    }

    /// Returns the room for all notes together.
    fn notes_room(&self) -> f64 {
        let beside = self.limit_tokens.saturating_sub(self.staying_tokens) as f64;
        let least = (LEAST_NOTES_SHARE * beside).min(LEAST_NOTES_TOKENS);
        let below_low = self.low_tokens as f64 - self.staying_tokens as f64;
        let small = below_low + SMALL_NOTES_SHARE * self.limit_tokens as f64;
        below_low.max(least).max(small.min(SMALL_NOTES_TOKENS))
    }

    fn is_more(&self, tokens: f64, border: f64) -> Option<bool> {
        let is_close = (tokens - border).abs() <= self.slack_tokens as f64;
        (!is_close).then_some(tokens > border)
    }
}

/// The notes before and after one compaction.
pub struct Notes<'a, N> {
    pub old: &'a [N],
    pub new: &'a [N],
    /// Whether the last of the old ones was written next to an outsized turn.
    pub is_last_thin: Option<bool>,
    /// Whether this compaction moves the first user message into the notes, which changes their
    /// contents.
    pub takes_first_user: bool,
}

impl<N> Notes<'_, N> {
    /// Checks that notes are rewritten only for one of the reasons, and always for the first two.
    pub fn check(
        &self,
        sizes: &Sizes,
        is_same: impl Fn(&N, &N) -> bool,
        tokens: impl Fn(&N) -> u64,
    ) -> Result<(), String> {
        let Self { old, new, is_last_thin, .. } = *self;
        let alike = old.iter().zip(new).take_while(|(old, new)| is_same(old, new)).count();
        let is_full = |notes: &[N]| sizes.is_full(notes.iter().map(&tokens).sum());
        if new[alike..].iter().any(|new| old.iter().any(|old| is_same(old, new))) {
            return Err("some notes of earlier compactions changed, others did not".to_owned());
        }
        if new.len() > alike + 1 {
            return Err(format!("{} notes are new at once", new.len() - alike));
        }
        let settled = old.len().saturating_sub(usize::from(is_last_thin == Some(true)));
        if alike == old.len() {
            let is_added_to = alike > 0 && new.len() > alike;
            return match is_added_to {
                true if is_last_thin == Some(true) => {
                    Err("a note written beside an outsized turn is not written again".to_owned())
                }
                true if is_full(old) == Some(true) => {
                    Err(format!("notes stand that leave no room for another, {sizes:?}"))
                }
                _ => Ok(()),
            };
        }
        if alike + 1 == old.len() && is_last_thin != Some(false) {
            return Ok(());
        }
        if alike > 0 {
            return Err("a note changed that had its room".to_owned());
        }
        let settled_tokens = old[..settled].iter().map(&tokens).sum();
        let may_change = self.takes_first_user
            || is_full(&old[..settled]) != Some(false)
            || sizes.may_lack_room_for_rules(settled_tokens);
        match may_change {
            true => Ok(()),
            false => Err(format!("notes became one, though they left room for another, {sizes:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        limit_tokens: 10_000,
        low_tokens: 7000,
        fixed_tokens: 1000,
        newest_turn_tokens: 500,
        staying_tokens: 2000,
        slack_tokens: 10,
    };

    #[test]
    fn a_turn_is_outsized_above_three_fifths_of_the_room_below_the_low_mark() {
        for (newest_turn_tokens, expected) in
            [(3589, Some(false)), (3590, None), (3610, None), (3611, Some(true))]
        {
            let sizes = Sizes { newest_turn_tokens, ..SIZES };
            assert_eq!(sizes.is_outsized(), expected, "{newest_turn_tokens}");
        }
    }

    #[test]
    fn notes_are_full_when_next_to_nothing_of_their_room_is_left() {
        let small = Sizes { staying_tokens: 5500, ..SIZES };
        let tight = Sizes { staying_tokens: 9000, ..SIZES };
        for (sizes, notes_tokens, expected) in [
            (SIZES, 4880, Some(false)),
            (SIZES, 4900, None),
            (SIZES, 4920, Some(true)),
            (small, 2180, Some(false)),
            (small, 2215, Some(true)),
            (tight, 610, Some(false)),
            (tight, 650, Some(true)),
        ] {
            assert_eq!(sizes.is_full(notes_tokens), expected, "{notes_tokens}");
        }
    }

    /// Notes by number, of 1,000 tokens each.
    fn check(old: &[u32], new: &[u32], is_last_thin: bool, takes_first_user: bool) -> bool {
        let notes = Notes { old, new, is_last_thin: Some(is_last_thin), takes_first_user };
        notes.check(&SIZES, |old, new| old == new, |_| 1000).is_ok()
    }

    #[test]
    fn notes_are_written_again_for_a_reason_alone() {
        const SETTLED: bool = false;
        const THIN: bool = true;
        for (old, new, is_thin, is_right) in [
            (&[][..], &[1][..], SETTLED, true),
            (&[1], &[1], SETTLED, true),
            (&[1], &[1, 2], SETTLED, true),
            (&[1], &[1, 2, 3], SETTLED, false),
            // The last note is rewritten if it was thin.
            (&[1, 2], &[1, 3], THIN, true),
            (&[1, 2], &[1], THIN, true),
            (&[1, 2], &[1, 3], SETTLED, false),
            (&[1, 2], &[1, 2, 3], THIN, false),
            (&[1, 2], &[3], THIN, false),
            // All notes are merged if they are full.
            (&[1, 2], &[3], SETTLED, false),
            (&[1, 2, 3, 4, 5], &[6], SETTLED, true),
            (&[1, 2, 3, 4, 5], &[6, 7], SETTLED, false),
            (&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5, 6], SETTLED, false),
            // Some, and not others.
            (&[1, 2, 3], &[1, 4], THIN, false),
            (&[1, 2], &[2, 3], THIN, false),
        ] {
            assert_eq!(check(old, new, is_thin, false), is_right, "{old:?} {new:?} {is_thin}");
        }
        assert!(check(&[1, 2], &[3], SETTLED, true), "the first user message goes into the note");
    }
}
