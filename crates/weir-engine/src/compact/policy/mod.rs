//! Settings of compaction, as the engine uses them. They are integers and fixed texts, so that a
//! policy can be part of a cache key and a plan is the same on every machine. Decides nothing.
//!
//! `preset` has the named policies, `anchors` the patterns that pin messages.

pub mod anchors;
pub mod clearing;
pub mod preset;

use std::sync::Arc;

use anchors::Anchors;
use clearing::Clearing;
use serde::{Deserialize, Serialize};

/// Text of the user's message before an assistant's that a compaction left first.
pub const OPENING: &str = "[weir: shortened]";

/// Price of cached input that the cost of excerpts was measured at, in thousandths of uncached input.
pub const USUAL_CACHED_PERMILLE: u32 = 100;
/// Number of requests that read a note from the cache before another compaction, as measured.
const READS: f64 = 15.0;

/// Method for fitting a conversation in its limit. Shares are in thousandths.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// Mark that triggers a compaction, as a share of the base: the limit less the system run and
    /// the first user message.
    pub hard_permille: u32,
    /// Mark that a compaction reduces to, as a share of the same base.
    pub low_permille: u32,
    /// Share of the way between two compactions from which one is due when a round begins that may
    /// pass the hard mark, if the model binds its thinking to the conversation; 0 for none. Inside a
    /// round, the thinking that a compaction leaves out is still of use.
    #[serde(default)]
    pub early_permille: u32,
    /// Growth that each compaction makes room for if the content allows it, as a share of the
    /// limit.
    pub min_growth_permille: u32,
    /// Number of messages before the newest turn that are pinned (widened to whole turns).
    pub recent_messages: u32,
    /// Maximum share of the base for pinned recent turns.
    pub recent_permille: u32,
    /// Maximum share of the limit for all messages pinned by the caller or by an anchor.
    pub pinned_permille: u32,
    /// Kind of note that replaces removed turns.
    pub notes: Notes,
    /// Cost of an excerpt token relative to its value, in thousandths of the default: more sends
    /// less.
    pub excerpt_cost_permille: u32,
    /// Maximum size of the parts of removed messages that a note has first, as a share of the limit:
    /// rules, open tasks, unresolved errors and last edits. 0 gives none of them precedence.
    #[serde(default)]
    pub survival_permille: u32,
    /// Price of a cached input token relative to an uncached one, in thousandths. Set by the proxy from
    /// the model's price. Below [`USUAL_CACHED_PERMILLE`] excerpts cost less.
    #[serde(default = "usual_cached_permille")]
    pub cached_permille: u32,
    /// Maximum size of recall, as a share of the limit: removed messages relevant to the question
    /// that ends a request. 0 disables it.
    pub recall_permille: u32,
    /// Whether the model gets a tool to ask for earlier messages. The tool itself is an edit of the
    /// request, before the plan.
    #[serde(default)]
    pub offers_recall: bool,
    /// Whether a note may be a user message of its own, next to another one.
    pub notes_apart: bool,
    /// Whether the model refuses thinking of its own that follows other messages than it was written
    /// after. Then a compaction leaves out all earlier thinking, and nothing is recalled, which would
    /// stand before the answer in one request alone.
    pub is_thinking_bound: bool,
    /// Whether the provider leaves thinking before the newest message of a user out of the prompt, so that it
    /// does not count.
    #[serde(default)]
    pub strips_thinking: bool,
    /// Whether a compaction leaves the model's thinking in all turns that stay, unless the model binds
    /// it. Set by the protocol: in chat completions nothing says which of it a provider wants back.
    pub keeps_thinking: bool,
    /// Whether a conversation must begin with a user's message. Set by the protocol. If none is left at
    /// the beginning, the plan adds one ([`OPENING`]).
    #[serde(default)]
    pub begins_with_user: bool,
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
    /// Clearing that the caller asks for.
    pub clearing: Option<Box<Clearing>>,
}

/// Kind of note that a compaction leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Notes {
    Nothing,
    /// Number of removed messages.
    Count,
    /// Requests and actions, a line each, marked as a summary.
    Extract,
    /// Excerpts of the removed messages, and names from them. Everything but pins and the newest
    /// turns is removed.
    Excerpts,
}

/// Marks besides the hard one, and their effects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Zones {
    /// Mark above which old tool results are masked, as a share of the base; 0 for none.
    pub soft_permille: u32,
    /// Size that marks and shares are of, if the limit is higher.
    #[serde(default)]
    pub goal: Goal,
    /// Tokens that a soft compaction must free, and growth required after a compaction that missed
    /// its mark; a share of the limit.
    pub min_progress_permille: u32,
    pub restart: Restart,
    /// Number of turns before the newest that a restart carries over.
    pub carryover_turns: u32,
    pub notices: Notices,
}

/// Size that a conversation is compacted above, though its limit may be higher: what must stay may exceed it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Goal {
    /// The limit itself.
    #[default]
    Limit,
    Tokens(u64),
    /// The model's next price step, in tokens; the limit if there is none, or if what must stay leaves less than a
    /// quarter of it.
    Step(u64),
    /// Where a compaction is cheapest by these prices and the conversation's own growth.
    Economic(CachePrices),
    /// The same, and a compaction half the way there after a pause that the provider's cache does not outlive: its
    /// next request is written whole in any case.
    Cold(CachePrices),
}

/// Prices of input in thousandths of what is neither read from the cache nor written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CachePrices {
    pub read_permille: u32,
    pub write_permille: u32,
    /// Size above which the whole prompt costs more.
    pub step_tokens: Option<u64>,
}

impl CachePrices {
    const USUAL: Self =
        Self { read_permille: USUAL_CACHED_PERMILLE, write_permille: 1000, step_tokens: None };

    /// Returns the size of a history above which a compaction is cheapest. A request reads all history once,
    /// and a compaction writes what it keeps once more than it would have been read. If it keeps K tokens,
    /// and the conversation grows by g tokens a request, both together cost least at K + √(2 (w − r) K g / r),
    /// with w and r for the prices of writing and reading.
    pub fn cheapest_tokens(self, kept_tokens: u64, growth_tokens: u64) -> u64 {
        let kept_tokens = kept_tokens.max(LEAST_KEPT_TOKENS);
        let read = self.read_permille.max(1);
        let dearer = u128::from(self.write_permille.saturating_sub(read)) * 2;
        let square = u128::from(kept_tokens) * u128::from(growth_tokens);
        let square = (square * dearer / u128::from(read)).isqrt();
        kept_tokens.saturating_add(u64::try_from(square).unwrap_or(u64::MAX))
    }
}

/// Least history that is taken to stay after a compaction, for the cheapest size.
const LEAST_KEPT_TOKENS: u64 = 16_000;

/// Share of a price step that stays free, since the provider may count more than weir.
const STEP_MARGIN_PERMILLE: u32 = 30;

impl Goal {
    /// Goals with a name.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("window", Self::Limit),
        ("step", Self::Step(u64::MAX)),
        ("economic", Self::Economic(CachePrices::USUAL)),
        ("cold", Self::Cold(CachePrices::USUAL)),
    ];

    /// Whether it follows from prices alone, and is the limit without them.
    pub fn is_by_price(self) -> bool {
        matches!(self, Self::Economic(_) | Self::Cold(_))
    }

    /// Returns the name; `None` for a number of tokens.
    pub fn word(self) -> Option<&'static str> {
        let is_own = |(_, goal): &&(&str, Self)| {
            std::mem::discriminant(goal) == std::mem::discriminant(&self)
        };
        Self::WORDS.iter().find(is_own).map(|(word, _)| *word)
    }

    /// Returns the goal for a model with these prices: of reading from the cache and of writing to it, in
    /// thousandths of other input, and the size above which input costs more.
    #[must_use]
    pub fn priced(self, [read, write]: [Option<u32>; 2], step_tokens: Option<u64>) -> Self {
        let step_tokens = step_tokens.map(|step| step - share(step, STEP_MARGIN_PERMILLE));
        let [read_permille, write_permille] = [read, write].map(|own| own.unwrap_or(1000));
        let prices = CachePrices { read_permille, write_permille, step_tokens };
        match self {
            Self::Step(_) => Self::Step(step_tokens.unwrap_or(u64::MAX)),
            // Nothing is saved if input costs nothing.
            Self::Economic(_) | Self::Cold(_) if write_permille == 0 => Self::Limit,
            Self::Economic(_) => Self::Economic(prices),
            Self::Cold(_) => Self::Cold(prices),
            Self::Limit | Self::Tokens(_) => self,
        }
    }
}

/// Condition for restarting a conversation from its pins, the note and the last turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Restart {
    Never,
    /// The second time that the size exceeds the hard mark; the first time masks.
    SecondHard,
    /// When masking frees too little.
    Exhausted,
}

/// Additional text for the model in a compaction's note, by kind of compaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Notices {
    #[serde(with = "shared_text")]
    pub mask: Option<Arc<str>>,
    #[serde(with = "shared_text")]
    pub wind_down: Option<Arc<str>>,
    #[serde(with = "shared_text")]
    pub restart: Option<Arc<str>>,
}

/// Text that clones share, written as a string.
mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        text: &Option<Arc<str>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        text.as_deref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<str>>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Into::into))
    }
}

/// Content that placeholders replace while the message stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mask {
    /// Old tool results.
    pub results: bool,
    /// Results that a later one repeats word for word, however new they are.
    pub repeats: bool,
    /// Old images.
    pub images: bool,
    /// Long texts in the arguments of old calls.
    pub arguments: bool,
    /// Minimum number to mask at once.
    pub batch: u32,
    /// Newest turns in which nothing is masked, as a share of the base.
    pub window_permille: u32,
}

/// Selection of turns to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Eviction {
    pub importance: Importance,
    pub fill: Fill,
    /// Number of last messages that stay while all older ones are removed; 0 selects by importance.
    pub keep_messages: u32,
}

/// Criterion for a turn's importance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Importance {
    /// Speaker, and use of tools.
    Role,
    /// Later use of its content by the assistant.
    Reference,
}

/// Extent of an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fill {
    /// Removes the least important turns, until the low mark is reached.
    LowMark,
    /// Keeps only turns that fit in the limit: the most important first, then the newest, skipping
    /// those that do not fit.
    Greedy,
}

/// Settings of the extract for [`Notes::Extract`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extract {
    /// Maximum share of the limit for all extracts.
    pub permille: u32,
    /// Maximum characters kept of a user's request.
    pub request_characters: u32,
}

/// Settings for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Counting {
    /// Safety margin below every limit, as a share of it.
    pub margin_permille: u32,
    /// Reserve for the answer if the request sets no output limit; 0 uses the model's default.
    pub reserve_tokens: u64,
    /// Whether tokens are estimated by characters even if the model's encoding is known.
    pub is_estimated: bool,
}

/// Shares of the limit for kinds of messages, and their effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shares {
    /// Whether a compaction reduces only the category that is furthest above its share.
    pub is_attacked: bool,
    pub system_permille: u32,
    pub anchors_permille: u32,
    pub conversation_permille: u32,
    /// Size above which tool results are replaced by a reference on arrival; 0 for never.
    pub oversize_tokens: u64,
    pub file_hints: FileHints,
}

/// Detail about the files that calls touched in a compaction's note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileHints {
    Off,
    /// The last few paths.
    Minimal,
    /// More of them, with a description.
    Normal,
    /// All that are remembered, with advice.
    Full,
}

/// Breakpoints of the provider's prompt cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Breakpoints {
    /// Number of requests with a message unchanged per stability tier; 0 places no breakpoint.
    pub tier_requests: u32,
    /// Minimum size of a tier with its own breakpoint.
    pub target_tokens: u64,
}

impl Policy {
    /// Returns the cost of an excerpt token relative to its value. It is written once and read many
    /// times from the cache, so where reading is cheaper than usual, more is worth its price. Dearer
    /// reading changes nothing: what is not sent has to be asked for again.
    pub(crate) fn excerpt_cost(&self) -> f64 {
        let cost = |permille: u32| 1.0 + READS * f64::from(permille) / 1000.0;
        let cached_permille = self.cached_permille.min(USUAL_CACHED_PERMILLE);
        f64::from(self.excerpt_cost_permille) / 1000.0 * cost(cached_permille)
            / cost(USUAL_CACHED_PERMILLE)
    }

    /// Returns the share of the limit that recall may take.
    pub(crate) fn recalled_permille(&self) -> u32 {
        if self.is_thinking_bound { 0 } else { self.recall_permille }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            hard_permille: 1000,
            low_permille: 750,
            early_permille: 600,
            min_growth_permille: 250,
            recent_messages: 4,
            recent_permille: 150,
            pinned_permille: 100,
            notes: Notes::Excerpts,
            excerpt_cost_permille: 1000,
            survival_permille: 50,
            cached_permille: USUAL_CACHED_PERMILLE,
            recall_permille: 100,
            offers_recall: false,
            notes_apart: true,
            is_thinking_bound: false,
            strips_thinking: false,
            keeps_thinking: false,
            begins_with_user: false,
            strict_alternation: false,
            zones: Zones {
                soft_permille: 0,
                goal: Goal::Limit,
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
            clearing: None,
        }
    }
}

fn usual_cached_permille() -> u32 {
    USUAL_CACHED_PERMILLE
}

/// Returns `permille` thousandths of `whole`.
pub(crate) fn share(whole: u64, permille: u32) -> u64 {
    (u128::from(whole) * u128::from(permille) / 1000) as u64
}
