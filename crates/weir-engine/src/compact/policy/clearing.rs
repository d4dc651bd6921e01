//! Clearing that a caller asks for: old results of tools, and old thinking. Decides nothing.
//!
//! Anthropic's guide to context editing describes the rules: `clear_tool_uses_20250919` and
//! `clear_thinking_20251015`.

use serde::{Deserialize, Serialize};

/// Rules of a caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Clearing {
    /// Clearing of results; `None` for none.
    pub tool_uses: Option<ClearToolUses>,
    /// Number of the last turns with thinking that keep it; `None` for all.
    pub thinking_turns: Option<u64>,
}

/// Clearing of old results.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClearToolUses {
    pub trigger: Trigger,
    /// Number of the last tool uses that keep their results.
    pub keep: u64,
    /// Minimum tokens to clear at once.
    pub at_least_tokens: u64,
    /// Tools whose results are never cleared.
    pub exclude: Vec<String>,
    /// Tools whose calls lose their arguments, too; empty for all, `None` for none.
    pub inputs: Option<Vec<String>>,
}

/// Size above which results are cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Trigger {
    /// Tokens of the prompt.
    InputTokens(u64),
    /// Tool uses whose results are not cleared.
    ToolUses(u64),
}

/// Amounts that were cleared so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleared {
    pub tool_uses: u64,
    pub tool_tokens: u64,
    pub thinking_turns: u64,
    pub thinking_tokens: u64,
}
