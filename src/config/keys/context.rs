//! Keys of compaction: policies, summaries and learned limits.

use super::{DAY_MS, EMPTY, Effect, GIB, Key, Kind::*, MAX_TOKENS, Sample, Section, each};
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
    /// by the model's prices and the conversation's growth, "cold" for the same and half the way there after
    /// a pause that the provider's cache does not outlive, or a number of tokens. What must stay may exceed
    /// it, up to the request's limit.
    limit = "window", TextOrWhole("\"window\", \"step\", \"economic\", \"cold\" or integer"), MovesCompactions;
    /// High mark, above which a compaction happens: a share of the limit minus the system messages
    /// and the first user message.
    hard = 1.0, Share(10, 1000), MovesCompactions;
    /// Low mark: at most this share of the same size stays in a compaction. Notes of excerpts usually leave far
    /// less. A lower value makes compactions rarer and deeper.
    low = 0.75, Share(1, 1000), MovesCompactions;
    /// Content of the summary block: "excerpts" of the removed messages, chosen by their likely use
    /// later; an "extract" (requests and actions, one line each, marked as a summary); "count"
    /// (number of removed messages) or "off". With "excerpts", a compaction removes all old
    /// messages, and `evict` does not apply.
    notes = "excerpts", Choice(words::<Notes>), MovesCompactions;
    /// Cost of an excerpt token relative to its value. 2 sends less and costs less, 0.5 keeps more;
    /// 0 fills the room.
    excerpt_cost = 1.0, Share(0, 100_000), MovesCompactions;
    /// How removed messages come back. `share`: room in the last message for those relevant to it, if the
    /// request ends with a user's question; a share of the limit, 0 for none. Dialogues keep it free. Tool
    /// loops recall nothing. `tool`: whether the model gets a tool with which it can ask for earlier
    /// messages, by number or by words. weir answers its calls from the request itself; callers see neither
    /// the tool nor its calls. Each round of calls takes one more request to the upstream, at most five for
    /// one answer. Responses get the tool only with `store: false`.
    recall = { share = 0.1, tool = false }, Members(&[
        ("share", Share(0, 1000)),
        ("tool", Switch),
    ]), MovesCompactions;
    /// Regular expressions: user and assistant messages that match one are pinned.
    anchors = [], List("regular expressions"), MovesCompactions;
};

/// The other keys of a policy.
const ADVANCED: &[Key] = keys! {
    /// When a compaction happens besides at the high mark. `soft`: mark above which old tool results are
    /// already masked (see `mask`), a share of the same size as `hard`; 0 for none. `early`: for models that
    /// bind their thinking to the conversation, share of the way between two compactions from which the next
    /// one happens at a user's message after an answer, if the model's work on it may pass the high mark; 0
    /// for never. In the middle of that work a compaction costs the model its thinking about it.
    /// `min_growth`: growth that each compaction makes room for if it can, a share of the limit. Notes of up
    /// to 2,300 tokens may take two fifths of it; one of 1,000 tokens, or of seven tenths of the remaining
    /// room, takes precedence. Each compaction costs one rewrite of the provider's prompt cache.
    /// `min_progress`: minimum that a compaction at the soft mark must free, and minimum growth after a
    /// compaction that missed the low mark; a share of the limit.
    marks = { soft = 0.0, early = 0.6, min_growth = 0.25, min_progress = 0.05 },
        Members(&each(["soft", "early", "min_growth", "min_progress"], Share(0, 1000))), MovesCompactions;
    /// When a conversation restarts from its pinned messages, the summary block and the last turns:
    /// "off", "second_hard" (the first time above the high mark masks, the next restarts) or "exhausted" (if
    /// masking frees less than `marks.min_progress`); and how many turns before the newest one it keeps.
    /// With notes "excerpts", every compaction does nearly that.
    restart = { at = "off", carryover_turns = 3 }, Members(&[
        ("at", Choice(words::<RestartAt>)),
        ("carryover_turns", Whole(0, MAX_COUNT)),
    ]), MovesCompactions;
    /// Extra lines in the summary block, which change the text that the model reads; empty for none: of a
    /// compaction that masks, of the first time above the high mark with `restart.at` "second_hard", of a
    /// restart, and whether, and how fully, the files last used in calls are named.
    notices = { mask = "", wind_down = "", restart = "", files = "off" }, Members(&[
        ("mask", Text("text")),
        ("wind_down", Text("text")),
        ("restart", Text("text")),
        ("files", Choice(words::<FileHints>)),
    ]), MovesCompactions;
    /// Safety margin kept free below every limit, a share of it. Tokens reserved for the answer if a request
    /// does not set its limit; 0 uses the model's. "model" counts with the model's encoding, "estimate"
    /// assumes about 4 characters per token, and needs a margin.
    counting = { margin = 0.0, reserve_tokens = 0, encoding = "model" }, Members(&[
        ("margin", Share(0, 1000)),
        ("reserve_tokens", Whole(0, MAX_TOKENS)),
        ("encoding", Choice(|| vec!["model", "estimate"])),
    ]), MovesCompactions;
    /// Old content that is replaced by a line with tool, size, exit code and reference: "results" of
    /// tools, "repeats" (results that a later result repeats exactly, however new they are), "images",
    /// and "arguments" (long texts in calls, which remain JSON objects; some models cope badly). A
    /// compaction masks before it removes; with notes "excerpts" only the soft mark masks. At least `batch`
    /// items are masked at once, and nothing in the newest turns: `window` is a share of the size that marks
    /// are shares of, and widens if a masked call is made again. Tool results above `oversize_tokens` are
    /// replaced on arrival by their beginning and a reference; 0 for never.
    mask = { content = [], batch = 3, window = 0.2, oversize_tokens = 0 }, Members(&[
        ("content", List("kinds")),
        ("batch", Whole(1, MAX_COUNT)),
        ("window", Share(0, 1000)),
        ("oversize_tokens", Whole(0, MAX_TOKENS)),
    ]), MovesCompactions;
    /// What a compaction keeps. `recent_messages`: messages before the newest turn, widened to whole turns, as
    /// long as they and the newest turn take at most the share `recent` of the size that marks are shares of.
    /// `pinned`: maximum total of messages pinned by the caller or by an anchor, a share of the limit.
    /// `survival`: maximum room for parts that take precedence in a note of excerpts, a share of the limit:
    /// rules of users and of instruction files, open tasks, unresolved errors and the last edit of each file.
    /// One message may claim a fifth of it for its rules. With a small limit rules have room for at least 256
    /// tokens, or for a tenth of the limit if that is less. 0 switches this off.
    keep = { recent_messages = 4, recent = 0.15, pinned = 0.1, survival = 0.05 }, Members(&[
        ("recent_messages", Whole(0, MAX_COUNT)),
        ("recent", Share(0, 1000)),
        ("pinned", Share(0, 1000)),
        ("survival", Share(0, 1000)),
    ]), MovesCompactions;
    /// Which turns are removed. Importance by "role" (the speaker, and whether tools are used) or "reference"
    /// (how much of it the assistant used later). `fill`: "low_mark" removes the least important turns until
    /// the low mark is reached; "greedy" keeps the most important, then the newest, within the limit minus
    /// `marks.min_growth`, and skips turns that are too large. `last_messages`: number of last messages to
    /// keep while a compaction removes all older ones; 0 selects by importance.
    evict = { importance = "role", fill = "low_mark", last_messages = 0 }, Members(&[
        ("importance", Choice(words::<Importance>)),
        ("fill", Choice(words::<Fill>)),
        ("last_messages", Whole(0, MAX_COUNT)),
    ]), MovesCompactions;
    /// Maximum total of extracts, a share of the limit, and maximum length of a user's request in one.
    extract = { share = 0.1, request_characters = 200 }, Members(&[
        ("share", Share(0, 1000)),
        ("request_characters", Whole(1, MAX_COUNT)),
    ]), MovesCompactions;
    /// Target shares of the limit for system messages with tools, for pinned messages, and for all others.
    /// The order "steps" compacts in the steps above; "shares" first compacts the one category that most
    /// exceeds its share. System messages are never compacted.
    shares = { order = "steps", system = 0.15, anchors = 0.1, conversation = 0.75 }, Members(&[
        ("order", Choice(|| vec!["steps", "shares"])),
        ("system", Share(0, 1000)),
        ("anchors", Share(0, 1000)),
        ("conversation", Share(0, 1000)),
    ]), MovesCompactions;
    /// Prompt-cache breakpoints are set after messages that stayed unchanged for one to four times
    /// `tier_requests`, and at least `target_tokens` apart; 0 requests set none. Only for models with
    /// `cache_control`.
    breakpoints = { tier_requests = 0, target_tokens = 0 }, Members(&[
        ("tier_requests", Whole(0, MAX_COUNT)),
        ("target_tokens", Whole(0, MAX_TOKENS)),
    ]), NextRequest;
};

pub(in crate::config) const CONTEXT: Section = Section {
    path: "context",
    doc: "Compaction of conversations that outgrow their limit. The keys from `limit` on, with those \
          of `[context.advanced]`, form the policy \"default\".",
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
    doc: "Keys that the measured defaults serve well, and those that build the presets.",
    keys: &[
        ADVANCED,
        keys! {
            /// How long an original is kept after the last request that left it out (it may be half
            /// that), and maximum total size of originals. Above it, the caller with the most loses
            /// its oldest.
            originals = { lifetime_ms = 86400000, max_bytes = 67108864 }, Members(&[
                ("lifetime_ms", Whole(1000, YEAR_MS)),
                ("max_bytes", Whole(1 << 10, 1024 * GIB)),
            ]), Restart;
        },
    ],
    ..EMPTY
};

pub(in crate::config) const POLICIES: Section = Section {
    path: "policies.*",
    heading: "[policies.NAME]",
    doc: "Named policies: the keys that differ from a preset, or from `[context]` without one. They \
          have the keys of `[context]` from `limit` on, and under `[policies.NAME.advanced]` those of \
          `[context.advanced]`.",
    keys: &[keys! {
        /// The preset to start from.
        preset = "zones", Choice(|| PRESETS.to_vec()), MovesCompactions;
    }],
    shared: POLICY,
    rows: Effect::MovesCompactions,
    sample: Sample::Text("[policies.careful]\npreset = \"zones\"\nadvanced.marks.soft = 0.65"),
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
    doc: "A model can summarise the messages that a compaction removes, in the background before the \
          compaction, for all callers, even if their keys do not allow that model. If a summary \
          fails, weir uses its own excerpts: no request fails because of one.",
    keys: &[keys! {
        /// "auto": in the background if a model is set. "off": never. "extract": never, but
        /// summaries already in use stay. "background": always in the background. "wait": the same,
        /// but a compaction whose summary is not ready waits for it.
        mode = "auto", Choice(words::<SummaryMode>), MovesCompactions;
        /// Model that writes summaries, "same" for each request's own. Empty for none.
        model = "", Text("text"), MovesCompactions;
        /// Base URL of its upstream, if it is not that of `[upstream]`, and the key for that URL, as
        /// `upstream.api_key`. Callers' keys never go there.
        upstream = { url = "", api_key = "" }, Members(&[
            ("url", Text("URL")),
            ("api_key", Text("place")),
        ]), NextRequest;
        /// Maximum length of a summary. Fewer tokens are requested if the summary block has less
        /// room, and none if the room is too small.
        summary_tokens = 800, Whole(64, 16_384), NextRequest;
        /// Room for reasoning in addition to the answer, at most an eighth of the model's window (models
        /// that reason count it as output), and `reasoning_effort` of the calls, such as "low"; empty for
        /// the model's default.
        reasoning = { tokens = 4096, effort = "" }, Members(&[
            ("tokens", Whole(0, 131_072)),
            ("effort", Text("text")),
        ]), NextRequest;
        /// Share of the growth between two compactions after which the summary for the next is
        /// prefetched.
        prefetch = 0.8, Share(100, 1000), NextRequest;
        /// `call`: time limit of one model call. `wait`: how long a request waits for the summary of its
        /// last compaction, with mode "wait". If callers have their own credentials and summaries use
        /// weir's key, a caller's requests wait only after the upstream has accepted one from it.
        /// `pause`: pause after three failed calls in a row; for a single caller also after three answers
        /// in a row that were empty, far too long or not text.
        timeouts_ms = { call = 60000, wait = 10000, pause = 30000 },
            Members(&each(["call", "wait", "pause"], Whole(1, DAY_MS))), NextRequest;
        /// Maximum concurrent calls.
        max_concurrent = 4, Whole(1, 1024), Restart;
        /// How long a summary, and the text inserted by a compaction, are kept after their last
        /// use, or at least half of it. A conversation that rests for longer may be compacted
        /// differently when it continues. `cache_bytes`: memory for both, in front of the store.
        /// `max_bytes`: maximum total size in the store. Above it, the caller with the most loses its
        /// oldest.
        kept = { lifetime_ms = 2592000000, cache_bytes = 33554432, max_bytes = 268435456 }, Members(&[
            ("lifetime_ms", Whole(1000, YEAR_MS)),
            ("cache_bytes", Whole(0, 1024 * GIB)),
            ("max_bytes", Whole(1 << 20, 1024 * GIB)),
        ]), Restart;
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
    keys: &[keys! {
        /// Whether a chat that the upstream refuses as too long is planned again, by the limit in
        /// the refusal or in smaller steps, and resent, at most three times. The learned limit also
        /// applies to later requests of the model for a day, even if it is below the configured one.
        /// A window under `[models."NAME"]` that is set or changed later overrides it, and `weir models
        /// forget NAME` removes it. An hour after the last refusal, one request is sent under twice the
        /// limit, which is raised if the upstream accepts it. Requests that bypass weir are left alone,
        /// and so are all in the mode "observe".
        overflow_retry = true, Switch, MovesCompactions;
        /// Whether weir corrects its count for models whose tokenizer it does not have, by the
        /// usage that the upstream reports. The correction is a ratio that changes in steps of at
        /// least a twentieth, each logged. `weir models learned` shows it;
        /// `models."NAME".token_ratio` sets a fixed one.
        calibrate = true, Switch, MovesCompactions;
    }],
    ..EMPTY
};
