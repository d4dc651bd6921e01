//! The knobs of compaction, as the engine uses them: integers, so that a policy can be part of a
//! cache key and a plan is the same on every machine.

/// How a conversation is brought inside its limit. Shares are in thousandths.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The mark above which a cut is made, as a share of what the limit leaves after the system
    /// run and the first user message.
    pub hard_permille: u32,
    /// The mark a cut goes down to, a share of the same base.
    pub low_permille: u32,
    /// The growth, as a share of the limit, that each cut makes room for where the content
    /// allows it.
    pub min_growth_permille: u32,
    /// How many messages before the newest turn are pinned (widened to whole turns).
    pub recent_messages: u32,
    /// The most that pinned recent turns may take of the base.
    pub recent_permille: u32,
    /// The most that messages pinned by the caller may take of the limit, together.
    pub pinned_permille: u32,
    /// What a cut leaves where turns went.
    pub notes: Notes,
    /// How dear a token of excerpts is, in thousandths of the default: more sends less.
    pub thrift_permille: u32,
    /// Whether a note may be a user message of its own, beside another one.
    pub notes_apart: bool,
    /// Whether the model refuses two user or two assistant messages in a row.
    pub strict_alternation: bool,
}

/// What a cut leaves where turns went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notes {
    Nothing,
    /// How many messages went.
    Count,
    /// Excerpts of what went, and the names in it. All but pins and the newest turns goes.
    Excerpts,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            hard_permille: 1000,
            low_permille: 600,
            min_growth_permille: 250,
            recent_messages: 4,
            recent_permille: 150,
            pinned_permille: 100,
            notes: Notes::Excerpts,
            thrift_permille: 1000,
            notes_apart: true,
            strict_alternation: false,
        }
    }
}
