//! The knobs of compaction, as the engine uses them: integers and fixed texts, so that a policy can
//! be part of a cache key and a plan is the same on every machine. Decides nothing.

use std::sync::Arc;

use super::anchors::Anchors;

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
    /// The most that messages pinned by the caller or by an anchor may take of the limit, together.
    pub pinned_permille: u32,
    /// What a cut leaves where turns went.
    pub notes: Notes,
    /// How dear a token of excerpts is, in thousandths of the default: more sends less.
    pub thrift_permille: u32,
    /// What may come back of what went to bear on the question a request ends with, a share of the
    /// limit; 0 is nothing.
    pub tail_permille: u32,
    /// Whether a note may be a user message of its own, beside another one.
    pub notes_apart: bool,
    /// Whether the model refuses two user or two assistant messages in a row.
    pub strict_alternation: bool,
    pub zones: Zones,
    pub mask: Mask,
    pub eviction: Eviction,
    pub extract: Extract,
    pub counting: Counting,
    pub shares: Shares,
    pub breakpoints: Breakpoints,
    /// Patterns whose messages are pinned.
    pub anchors: Anchors,
}

/// What a cut leaves where turns went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notes {
    Nothing,
    /// How many messages went.
    Count,
    /// What was asked and what was done, a line each, marked as a summary.
    Extract,
    /// Excerpts of what went, and the names in it. All but pins and the newest turns goes.
    Excerpts,
}

/// Marks beside the hard one, and what happens at them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Zones {
    /// The mark above which old tool results are masked, a share of the base; 0 is none.
    pub soft_permille: u32,
    /// The size that marks are shares of, in place of a higher limit; 0 is none.
    pub trigger_tokens: u64,
    /// What a soft cut must free, and what the size must grow by after a cut that could not reach
    /// its mark; a share of the limit.
    pub min_progress_permille: u32,
    pub restart: Restart,
    /// How many turns before the newest a restart carries over.
    pub carryover_turns: u32,
    pub notices: Notices,
}

/// When a conversation starts again from what is pinned, the note and the last turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Restart {
    Never,
    /// At the second time that the size lies above the hard mark; the first one masks.
    SecondHard,
    /// When masking frees too little.
    Exhausted,
}

/// What a cut's note says to the model besides, by kind of cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Notices {
    pub mask: Option<Arc<str>>,
    pub wind_down: Option<Arc<str>>,
    pub restart: Option<Arc<str>>,
}

/// What of a message gives way to a placeholder while the message stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mask {
    /// Old tool results.
    pub results: bool,
    /// Results that a later one repeats word for word, however new they are.
    pub repeats: bool,
    /// Old images.
    pub images: bool,
    /// Long texts in old calls' arguments.
    pub arguments: bool,
    /// How many are masked at once, at least.
    pub batch: u32,
    /// The newest turns in which nothing is masked, a share of the base.
    pub window_permille: u32,
}

/// Which turns go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eviction {
    pub importance: Importance,
    pub fill: Fill,
    /// How many of the last messages stay while all that is older goes; 0 goes by importance.
    pub keep_messages: u32,
}

/// What makes a turn important.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Importance {
    /// Who speaks, and whether tools are used.
    Role,
    /// What the assistant went on to use of it.
    Reference,
}

/// How much an eviction takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fill {
    /// The least important, until the low mark is reached.
    LowMark,
    /// All but what the limit has room for: the most important first, then the newest, skipping
    /// what does not fit.
    Greedy,
}

/// The extract that [`Notes::Extract`] leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extract {
    /// What extracts may take of the limit, together.
    pub permille: u32,
    /// The most characters of a user's request that are kept.
    pub request_characters: u32,
}

/// How sizes are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counting {
    /// What is kept free of every limit, a share of it.
    pub margin_permille: u32,
    /// What is kept free for the answer where the request does not say; 0 goes by the model.
    pub reserve_tokens: u64,
    /// Whether tokens are estimated by characters even where the model's encoding is known.
    pub is_estimated: bool,
}

/// The parts of the limit that kinds of messages may take, and what follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shares {
    /// Whether a cut compacts the one category that is furthest above its share.
    pub is_attacked: bool,
    pub system_permille: u32,
    pub anchors_permille: u32,
    pub conversation_permille: u32,
    /// Tool results above this give way to a reference as they come; 0 is never.
    pub oversize_tokens: u64,
    pub file_hints: FileHints,
}

/// How a cut's note speaks of the files that calls touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileHints {
    Off,
    /// The last few paths.
    Minimal,
    /// More of them, and what they are.
    Normal,
    /// All that are remembered, and what to do with them.
    Full,
}

/// Breakpoints of the provider's prompt cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Breakpoints {
    /// A tier is reached after each so many requests in which a message stayed as it is; 0 places
    /// none.
    pub tier_requests: u32,
    /// What a tier must hold to have a breakpoint of its own.
    pub target_tokens: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            hard_permille: 1000,
            low_permille: 750,
            min_growth_permille: 250,
            recent_messages: 4,
            recent_permille: 150,
            pinned_permille: 100,
            notes: Notes::Excerpts,
            thrift_permille: 1000,
            tail_permille: 100,
            notes_apart: true,
            strict_alternation: false,
            zones: Zones {
                soft_permille: 0,
                trigger_tokens: 0,
                min_progress_permille: 50,
                restart: Restart::Never,
                carryover_turns: 3,
                notices: Notices::default(),
            },
            mask: Mask {
                results: false,
                repeats: false,
                images: false,
                arguments: false,
                batch: 3,
                window_permille: 200,
            },
            eviction: Eviction {
                importance: Importance::Role,
                fill: Fill::LowMark,
                keep_messages: 0,
            },
            extract: Extract { permille: 100, request_characters: 200 },
            counting: Counting { margin_permille: 0, reserve_tokens: 0, is_estimated: false },
            shares: Shares {
                is_attacked: false,
                system_permille: 150,
                anchors_permille: 100,
                conversation_permille: 750,
                oversize_tokens: 0,
                file_hints: FileHints::Off,
            },
            breakpoints: Breakpoints { tier_requests: 0, target_tokens: 0 },
            anchors: Anchors::default(),
        }
    }
}
