//! Keys of compaction: policies, summaries and learned limits.

use super::{DAY_MS, EMPTY, Effect, GIB, Key, Kind::*, MAX_TOKENS, Sample, Section};
use super::{NANO, YEAR_MS, keys};
use crate::config::choices::{Mode, Originals, SummaryMode, words};
use weir_engine::compact::policy::{FileHints, Fill, Importance, Notes, Restart as RestartAt};
use weir_engine::compact::preset::PRESETS;
use weir_store::budget::NanoUsd;

/// Upper bound of counts of messages, turns and characters.
const MAX_COUNT: u64 = 10_000;

/// The keys of a policy that most users need.
const POLICY: &[Key] = keys! {
    /// Size that marks and shares are of, if the request's limit is higher: "window" for that limit, "step"
    /// for the size above which the model's input costs more, "economic" for where a compaction is cheapest
    /// by the model's prices and the conversation's growth, or a number of tokens. What must stay may exceed
    /// it, up to the request's limit.
    limit = "window", TextOrWhole("\"window\", \"step\", \"economic\" or integer"), MovesCompactions;
    /// High mark, above which a compaction happens: a share of the limit minus the system messages
    /// and the first user message.
    hard = 1.0, Share(10, 1000), MovesCompactions;
    /// Low mark that a compaction reduces to, a share of the same size. A lower value makes
    /// compactions rarer and deeper.
    low = 0.75, Share(1, 1000), MovesCompactions;
    /// Content of the summary block: "excerpts" of the removed messages, chosen by their likely use
    /// later; an "extract" (requests and actions, one line each, marked as a summary); "count"
    /// (number of removed messages) or "off". With "excerpts", a compaction removes all old
    /// messages, and `importance`, `fill` and `keep_messages` do not apply.
    notes = "excerpts", Choice(words::<Notes>), MovesCompactions;
    /// Cost of an excerpt token relative to its value. 2 sends less and costs less, 0.5 keeps more;
    /// 0 fills the room.
    excerpt_cost = 1.0, Share(0, 100_000), MovesCompactions;
    /// Room in the last message for removed messages relevant to it, if the request ends with a
    /// user's question; a share of the limit, 0 for none. Dialogues keep it free. Tool loops recall
    /// nothing.
    recall = 0.1, Share(0, 1000), MovesCompactions;
    /// Whether the model gets a tool with which it can ask for earlier messages, by number or by
    /// words. weir answers its calls from the request itself; callers see neither the tool nor its
    /// calls. Each round of calls takes one more request to the upstream, at most five for one answer.
    /// Responses get the tool only with `store: false`.
    recall_tool = false, Switch, MovesCompactions;
    /// Regular expressions: user and assistant messages that match one are pinned.
    anchors = [], List("regular expressions"), MovesCompactions;
};

/// The other keys of a policy.
const ADVANCED: &[Key] = keys! {
    /// For models that bind their thinking to the conversation: share of the way between two
    /// compactions from which the next one happens at a user's message after an answer, if the model's
    /// work on it may pass the high mark; 0 for never. In the middle of that work a compaction costs the
    /// model its thinking about it.
    early = 0.6, Share(0, 1000), MovesCompactions;
    /// Growth that each compaction makes room for if it can, a share of the limit. Notes of up to
    /// 2,300 tokens may take two fifths of it; one of 1,000 tokens, or of seven tenths of the remaining
    /// room, takes precedence. Each compaction costs one rewrite of the provider's prompt cache.
    min_growth = 0.25, Share(0, 1000), MovesCompactions;
    /// Soft mark, above which old tool results are already masked (see `mask`), a share of the same
    /// size as `hard`; 0 for none.
    soft = 0.0, Share(0, 1000), MovesCompactions;
    /// Minimum that a compaction at the soft mark must free, and minimum growth after a compaction
    /// that missed the low mark; a share of the limit.
    min_progress = 0.05, Share(0, 1000), MovesCompactions;
    /// When a conversation restarts from its pinned messages, the summary block and the last turns:
    /// "off", "second_hard" (the first time above the high mark masks, the next restarts) or
    /// "exhausted" (if masking frees less than `min_progress`). With notes "excerpts", every
    /// compaction does nearly that.
    restart_at = "off", Choice(words::<RestartAt>), MovesCompactions;
    /// Turns before the newest one that a restart keeps.
    carryover_turns = 3, Whole(0, MAX_COUNT), MovesCompactions;
    /// Extra line in the summary block of a compaction that masks; empty for none. It changes the
    /// text that the model reads.
    notice_mask = "", Text("text"), MovesCompactions;
    /// The same, for the first time above the high mark with `restart_at` "second_hard".
    notice_wind_down = "", Text("text"), MovesCompactions;
    /// The same, for a restart.
    notice_restart = "", Text("text"), MovesCompactions;
    /// Safety margin kept free below every limit, a share of it.
    margin = 0.0, Share(0, 1000), MovesCompactions;
    /// Tokens reserved for the answer if a request does not set its limit; 0 uses the model's.
    reserve_tokens = 0, Whole(0, MAX_TOKENS), MovesCompactions;
    /// "model" counts tokens with the model's encoding, "estimate" assumes about 4 characters per
    /// token. Estimates need a margin.
    encoding = "model", Choice(|| vec!["model", "estimate"]), MovesCompactions;
    /// Old content that is replaced by a line with tool, size, exit code and reference: "results" of
    /// tools, "repeats" (results that a later result repeats exactly, however new they are), "images",
    /// and "arguments" (long texts in calls, which remain JSON objects; some models cope badly). A
    /// compaction masks before it removes; with notes "excerpts" only the soft mark masks.
    mask = [], List("kinds"), MovesCompactions;
    /// Minimum number of items masked at once.
    mask_batch = 3, Whole(1, MAX_COUNT), MovesCompactions;
    /// Newest turns in which nothing is masked, a share of the size that marks are shares of. It
    /// widens if a masked call is made again.
    mask_window = 0.2, Share(0, 1000), MovesCompactions;
    /// Messages before the newest turn that a compaction keeps, widened to whole turns ...
    recent_messages = 4, Whole(0, MAX_COUNT), MovesCompactions;
    /// ... as long as they and the newest turn take at most this share of the size that marks are
    /// shares of.
    recent = 0.15, Share(0, 1000), MovesCompactions;
    /// Maximum total of messages pinned by the caller or by an anchor, a share of the limit.
    pinned = 0.1, Share(0, 1000), MovesCompactions;
    /// Maximum room for parts that take precedence in a note of excerpts, a share of the limit: rules of
    /// users and of instruction files, open tasks, unresolved errors and the last edit of each file. One
    /// message may claim a fifth of it for its rules. With a small limit rules have room for at least 256
    /// tokens, or for a tenth of the limit if that is less. 0 switches this off.
    survival = 0.05, Share(0, 1000), MovesCompactions;
    /// Measure of a turn's importance: "role" (the speaker, and whether tools are used) or
    /// "reference" (how much of it the assistant used later).
    importance = "role", Choice(words::<Importance>), MovesCompactions;
    /// "low_mark" removes the least important turns until the low mark is reached; "greedy" keeps
    /// the most important, then the newest, within the limit minus `min_growth`, and skips turns
    /// that are too large.
    fill = "low_mark", Choice(words::<Fill>), MovesCompactions;
    /// Number of last messages to keep while a compaction removes all older ones; 0 selects by
    /// importance.
    keep_messages = 0, Whole(0, MAX_COUNT), MovesCompactions;
    /// Maximum total of extracts, a share of the limit.
    extract = 0.1, Share(0, 1000), MovesCompactions;
    /// Maximum length of a user's request in an extract.
    request_characters = 200, Whole(1, MAX_COUNT), MovesCompactions;
    /// "steps" compacts in the steps above; "shares" first compacts the one category that most
    /// exceeds its share. System messages are never compacted.
    order = "steps", Choice(|| vec!["steps", "shares"]), MovesCompactions;
    /// Target share of the limit for system messages and tools.
    system_share = 0.15, Share(0, 1000), MovesCompactions;
    /// Target share for pinned messages.
    anchors_share = 0.1, Share(0, 1000), MovesCompactions;
    /// Target share for all other messages.
    conversation_share = 0.75, Share(0, 1000), MovesCompactions;
    /// Tool results above this size are replaced on arrival by their beginning and a reference; 0
    /// for never.
    oversize_tokens = 0, Whole(0, MAX_TOKENS), MovesCompactions;
    /// Whether, and how fully, a summary block names the files last used in calls.
    file_hints = "off", Choice(words::<FileHints>), MovesCompactions;
    /// Prompt-cache breakpoints are set after messages that stayed unchanged for one to four times
    /// this number of requests; 0 sets none. Only for models with `cache_control`.
    cache_tier_requests = 0, Whole(0, MAX_COUNT), NextRequest;
    /// Minimum distance between two breakpoints.
    cache_target_tokens = 0, Whole(0, MAX_TOKENS), NextRequest;
};

pub(in crate::config) const CONTEXT: Section = Section {
    path: "context",
    heading: "[context]",
    doc: &[
        "Compaction of conversations that outgrow their limit. The keys from `limit` on, with those",
        "of `[context.advanced]`, form the policy \"default\".",
    ],
    keys: &[
        keys! {
            /// "compact" keeps conversations inside the limit; "observe" forwards them unchanged
            /// and reports the compaction that would have happened. Start with "observe" to see the
            /// effect.
            mode = "compact", Choice(words::<Mode>), MovesCompactions;
            /// Whether callers may use `x-weir-bypass: 1` to have a request forwarded unchanged.
            allow_bypass = false, Switch, NextRequest;
            /// Policy for requests that name none, if their model has none either: "default" for
            /// the keys of this section; the presets "scored", "zones", "extract", "shares" and
            /// "tiers", which follow other context managers; or a name under `[policies]`.
            policy = "default", Text("text"), MovesCompactions;
            /// Policies that callers may choose with the header `x-weir-policy`.
            allowed_policies = [], List("policies"), NextRequest;
            /// Text that is put after the system text of each request: rules of the house, such as
            /// a language or a tone. Empty for none. A virtual key can have its own instead (`weir
            /// keys limit ID --profile-file FILE`).
            profile = "", Text("text"), MovesCompactions;
            /// Where the full text of shortened or removed messages is kept: "off" for nowhere,
            /// "memory" for this process only, "store" to outlive it. Callers read theirs at
            /// `GET /weir/v1/originals/REFERENCE` with the credential of the original request.
            originals = "off", Choice(words::<Originals>), Restart;
        },
        POLICY,
    ],
    ..EMPTY
};

pub(in crate::config) const CONTEXT_ADVANCED: Section = Section {
    path: "context.advanced",
    heading: "[context.advanced]",
    doc: &["Keys that the measured defaults serve well, and those that build the presets."],
    keys: &[
        ADVANCED,
        keys! {
            /// How long an original is kept after the last request that left it out; it may be half
            /// that.
            originals_lifetime_ms = 86400000, Whole(1000, YEAR_MS), Restart;
            /// Maximum total size of originals. Above it, the caller with the most loses its
            /// oldest.
            originals_max_bytes = 67108864, Whole(1 << 10, 1024 * GIB), Restart;
        },
    ],
    ..EMPTY
};

pub(in crate::config) const POLICIES: Section = Section {
    path: "policies.*",
    heading: "[policies.NAME]",
    doc: &[
        "Named policies: the keys that differ from a preset, or from `[context]` without one. They",
        "have the keys of `[context]` from `limit` on, and under `[policies.NAME.advanced]` those of",
        "`[context.advanced]`.",
    ],
    keys: &[keys! {
        /// The preset to start from.
        preset = "zones", Choice(|| PRESETS.to_vec()), MovesCompactions;
    }],
    shared: POLICY,
    rows: Effect::MovesCompactions,
    sample: Sample::Text(
        "[policies.careful]\npreset = \"zones\"\n[policies.careful.advanced]\nsoft = 0.65",
    ),
};

pub(in crate::config) const POLICIES_ADVANCED: Section = Section {
    path: "policies.*.advanced",
    heading: "[policies.NAME.advanced]",
    shared: ADVANCED,
    rows: Effect::MovesCompactions,
    sample: Sample::Nothing,
    ..EMPTY
};

pub(in crate::config) const SUMMARIES: Section = Section {
    path: "summaries",
    heading: "[summaries]",
    doc: &[
        "A model can summarise the messages that a compaction removes, in the background before the",
        "compaction, for all callers, even if their keys do not allow that model. If a summary",
        "fails, weir uses its own excerpts: no request fails because of one.",
    ],
    keys: &[keys! {
        /// "auto": in the background if a model is set. "off": never. "extract": never, but
        /// summaries already in use stay. "background": always in the background. "wait": the same,
        /// but a compaction whose summary is not ready waits for it.
        mode = "auto", Choice(words::<SummaryMode>), MovesCompactions;
        /// Model that writes summaries, "same" for each request's own. Empty for none.
        model = "", Text("text"), MovesCompactions;
        /// Base URL of its upstream, if it is not that of `[upstream]`.
        url = "", Text("URL"), NextRequest;
        /// Environment variable with the key for that URL. Callers' keys never go there.
        api_key_env = "", Text("name of a variable"), NextRequest;
        /// File with that key, instead of a variable.
        api_key_file = "", Text("path"), NextRequest;
        /// Maximum length of a summary. Fewer tokens are requested if the summary block has less
        /// room, and none if the room is too small.
        summary_tokens = 800, Whole(64, 16_384), NextRequest;
        /// Room for reasoning in addition to the answer, at most an eighth of the model's window:
        /// models that reason count it as output.
        reasoning_tokens = 4096, Whole(0, 131_072), NextRequest;
        /// `reasoning_effort` of the calls, such as "low". Empty for the model's default.
        reasoning_effort = "", Text("text"), NextRequest;
        /// Share of the growth between two compactions after which the summary for the next is
        /// prefetched.
        prefetch = 0.8, Share(100, 1000), NextRequest;
        /// Time limit of one model call.
        timeout_ms = 60000, Whole(1, DAY_MS), NextRequest;
        /// How long a request waits for the summary of its last compaction, with mode "wait". If
        /// callers have their own credentials and summaries use weir's key, a caller's requests
        /// wait only after the upstream has accepted one from it.
        wait_ms = 10000, Whole(1, DAY_MS), NextRequest;
        /// Pause after three failed calls in a row; for a single caller also after three answers in
        /// a row that were empty, far too long or not text.
        pause_ms = 30000, Whole(1, DAY_MS), NextRequest;
        /// Maximum concurrent calls.
        max_concurrent = 4, Whole(1, 1024), Restart;
        /// How long a summary, and the text inserted by a compaction, are kept after their last
        /// use, or at least half of it. A conversation that rests for longer may be compacted
        /// differently when it continues.
        lifetime_ms = 2592000000, Whole(1000, YEAR_MS), Restart;
        /// Memory for both, in front of the store.
        cache_bytes = 33554432, Whole(0, 1024 * GIB), Restart;
        /// Maximum total size in the store. Above it, the caller with the most loses its oldest.
        max_bytes = 268435456, Whole(1 << 20, 1024 * GIB), Restart;
        /// Maximum cost of summaries per caller (with virtual keys: per team) and day (UTC), in
        /// dollars; "0" for no cap. The maximum cost of a call is held while it runs; other
        /// processes on the same store see it when it ends. It needs the journal and the model's
        /// price: weir does not start without them. With model "same", models without a price are
        /// not called.
        max_usd_per_day = "0", Dollars { end: NanoUsd(1_000_000 * NANO), unit: "" }, NextRequest;
    }],
    ..EMPTY
};

pub(in crate::config) const LEARNING: Section = Section {
    path: "learning",
    heading: "[learning]",
    keys: &[keys! {
        /// Whether a chat that the upstream refuses as too long is planned again, by the limit in
        /// the refusal or in smaller steps, and resent, at most three times. The learned limit also
        /// applies to later requests of the model, even if it is below the configured one. Requests
        /// that bypass weir are left alone, and so are all in the mode "observe".
        overflow_retry = true, Switch, MovesCompactions;
        /// How long a learned limit stays valid. A window under `[models."NAME"]` that is set or
        /// changed later overrides it, and `weir models forget NAME` removes it. An hour after the
        /// last refusal, one request is sent under twice the limit, which is raised if the upstream
        /// accepts it.
        limit_lifetime_ms = 86400000, Whole(1000, YEAR_MS), MovesCompactions;
        /// Whether weir corrects its count for models whose tokenizer it does not have, by the
        /// usage that the upstream reports. The correction is a ratio that changes in steps of at
        /// least a twentieth, each logged. `weir models learned` shows it;
        /// `models."NAME".token_ratio` sets a fixed one.
        calibrate = true, Switch, MovesCompactions;
    }],
    ..EMPTY
};
