//! Members of a report: its lines, rows and their names. The names are part of weir's API.

use serde::Serialize;

use super::files::FileUse;
use super::reasons::Why;
use super::treatment::Treatment;
use super::verbosity::Verbosity;
use crate::compact::limits::Limits;
use crate::compact::recall::Recall;
use crate::compact::state::Compactor;
use crate::compact::state::marks::Zone;
use crate::compact::state::messages::Fate;
use crate::wire::{Protocol, Role};

/// Report on one plan. The names of its members are part of weir's API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub model: String,
    /// `compact`, `observe` or `bypass`.
    pub mode: &'static str,
    /// Name of the plan's policy.
    pub policy: String,
    /// Value of `x-weir-action`; `refuse` if the request would be refused.
    pub action: String,
    /// Value of `x-weir-edits`.
    pub edits: String,
    /// Reason for refusing the request.
    pub refusal: Option<String>,
    pub zone: Zone,
    pub verbosity: Verbosity,
    /// Whether tools should reduce their output to the minimum.
    pub is_minimal: bool,
    pub window: Window,
    pub budget: Budget,
    pub compaction: Compaction,
    pub roles: Vec<RoleRow>,
    pub sections: Vec<SectionRow>,
    /// Usage by share, the largest excess first.
    pub shares: Vec<ShareRow>,
    pub files: Vec<FileUse>,
    /// Hint about files that are no longer sent whole; empty if there are none.
    pub restoration_hint: String,
    pub warnings: Vec<Warning>,
    pub messages: Vec<MessageRow>,
    pub notes: Vec<NoteRow>,
}

/// Bounds of the request, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Input and output of the model together.
    pub window_tokens: u64,
    /// Maximum number of prompt tokens to send.
    pub limit_tokens: u64,
    /// Tools, schemas and reply priming.
    pub overhead_tokens: u64,
    /// Prompt as received and as sent, including overhead.
    pub received_tokens: u64,
    pub sent_tokens: u64,
    /// Sent tokens in percent of the limit.
    pub used_percent: u64,
    pub messages: usize,
    /// Number of turns: a user message, or an assistant message with its calls and their results.
    pub turns: usize,
}

/// Used and remaining tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Budget {
    pub used_tokens: u64,
    pub limit_tokens: u64,
    pub remaining_tokens: u64,
    /// Whether the next compaction is near enough to start a summary.
    pub needs_summary: bool,
    /// A sixteenth of the window.
    pub history_budget_tokens: u64,
}

/// Status and history of compaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compaction {
    pub enabled: bool,
    /// Size that is compared with the trigger, with the engine's rounding.
    pub tokens: u64,
    /// Size above which the next compaction happens.
    pub trigger_tokens: u64,
    /// Size that a compaction reduces to.
    pub low_tokens: u64,
    /// Size in percent of the trigger.
    pub percent: u64,
    #[serde(rename = "cuts")]
    pub compactions: u32,
    /// Number of restarts among the compactions.
    pub restarts: u32,
    /// Notes with excerpts of removed messages, or with a model's summary.
    pub summaries: usize,
    /// Those of them that begin with a model's summary.
    pub model_summaries: usize,
    #[serde(rename = "last_cut")]
    pub last_compaction: Option<LastCompaction>,
    pub kept_messages: usize,
    pub masked_messages: usize,
    pub clipped_messages: usize,
    pub gone_messages: usize,
}

/// Last compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LastCompaction {
    /// Number of turns and messages in the conversation.
    pub turn: usize,
    pub messages: usize,
    pub before_tokens: u64,
    pub after_tokens: u64,
    /// Use of a model's summary: `absent`, `used`, or `unfit` if it was empty or did not fit.
    pub summary: &'static str,
}

/// Messages of one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RoleRow {
    pub role: Role,
    pub received_messages: usize,
    pub sent_messages: usize,
    pub received_tokens: u64,
    pub sent_tokens: u64,
}

/// Part of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Tool definitions, schemas and reply priming.
    Tools,
    System,
    /// Pinned messages.
    Anchors,
    Conversation,
    ToolResults,
    /// Notes of compactions.
    Notes,
}

/// Size of a part of the prompt. All rows together are the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SectionRow {
    pub section: Section,
    pub received_tokens: u64,
    pub sent_tokens: u64,
}

/// Usage of a kind of messages against its share. Tools belong to the system's share, tool results
/// and notes to the conversation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShareRow {
    pub section: Section,
    pub share_tokens: u64,
    pub used_tokens: u64,
    pub over_tokens: u64,
}

/// Warning about a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// `no_messages`, `near_limit`, `over_limit`, `over_share` or `unknown_model`.
    pub code: &'static str,
    pub text: String,
}

/// Treatment of one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessageRow {
    pub index: usize,
    pub role: Role,
    /// Tool of a result; tools that an assistant calls.
    pub tool: Option<String>,
    pub received_tokens: u64,
    /// Size without its notes.
    pub sent_tokens: u64,
    pub fate: Fate,
    pub why: Why,
    /// `why` as a sentence.
    pub why_text: String,
    pub first_words: String,
}

/// Note that replaces removed messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoteRow {
    /// Number, counted from 1.
    pub number: usize,
    /// Message that it is attached to, and the position.
    pub message: usize,
    pub place: &'static str,
    /// Compaction that wrote it, or the last one before recall.
    #[serde(rename = "cut")]
    pub compaction: u32,
    /// Number of messages that it covers.
    pub left_out_messages: usize,
    /// Number of them that the model's summary at the note's start covers.
    pub summarised_messages: usize,
    pub sent_tokens: u64,
    pub first_words: String,
}

/// Input for a report.
pub struct Subject<'a> {
    /// Finished compaction state of the conversation.
    pub state: &'a Compactor,
    /// Recalled text after the last message, for this request alone.
    pub recall: Option<&'a Recall>,
    pub protocol: Protocol,
    /// JSON text of each message.
    pub messages: &'a [&'a str],
    pub model: &'a str,
    /// Name of the plan's policy.
    pub policy: &'a str,
    pub is_model_known: bool,
    pub limits: &'a Limits,
    /// Exact size of tools, schemas and reply priming.
    pub overhead_tokens: u64,
    pub treatment: Treatment,
    /// Value of `x-weir-action`.
    pub action: &'a str,
    /// Value of `x-weir-edits`.
    pub edits: &'a str,
    /// Reason for refusing the request.
    pub refusal: Option<&'a str>,
    /// Size of the sent request, including tools.
    pub sent_tokens: u64,
}
