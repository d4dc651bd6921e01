//! Calls of an answer, counted in order, and the marks of thinking that leads to calls of the tool alone.

use super::super::json;
use super::text::{self, Object};
use super::{Call, MARK, MAX_ARGUMENTS_BYTES, MAX_CALLS, Next};

/// Maximum number of the client's calls in one answer whose IDs are kept.
const MAX_OTHERS: usize = 1024;

/// Calls of one answer, as far as they have been read.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) calls: Vec<Call>,
    pub(super) others: Vec<String>,
    /// Number of calls of the tool.
    pub(super) own: usize,
    /// Whether there are calls for the client to answer.
    pub(super) has_others: bool,
    /// Whether a call of the tool has arguments that are too large to send on.
    is_too_large: bool,
}

impl Tally {
    /// Adds a call of the tool.
    pub(super) fn call(&mut self, id: String, arguments: String, raw: String) {
        self.own += 1;
        self.is_too_large |= arguments.len() > MAX_ARGUMENTS_BYTES;
        if self.calls.len() < MAX_CALLS {
            self.calls.push(Call { id, arguments, raw, before: None });
        }
    }

    /// Adds a call of the client's.
    pub(super) fn other(&mut self, id: String) {
        self.has_others = true;
        for call in self.calls.iter_mut().rev().take_while(|call| call.before.is_none()) {
            call.before = Some(id.clone());
        }
        if self.others.len() < MAX_OTHERS {
            self.others.push(id);
        }
    }

    /// Returns the meaning of the answer; `is_whole` if nothing of it is missing.
    pub(super) fn next(&self, is_whole: bool) -> Next {
        let may_answer = is_whole && self.own <= MAX_CALLS && !self.is_too_large;
        match (self.own, may_answer, self.has_others) {
            (0, _, _) => Next::Final,
            (_, false, _) => Next::Ended,
            (_, true, false) => Next::Recall,
            (_, true, true) => Next::Mixed,
        }
    }
}

/// Whether a chat's answer ended where its calls can be answered. Some providers end them with `stop`.
pub(super) fn is_chat_whole(reason: Option<&str>) -> bool {
    matches!(reason, None | Some("tool_calls" | "function_call" | "stop"))
}

/// Returns the finish reason of a chat's answer, as a JSON text, without any call.
pub(super) fn chat_reason(reason: &str) -> &str {
    if matches!(reason, "\"tool_calls\"" | "\"function_call\"") { "\"stop\"" } else { reason }
}

/// Whether an answer of Messages ended where its calls can be answered.
pub(super) fn is_messages_whole(reason: Option<&str>) -> bool {
    matches!(reason, None | Some("tool_use" | "end_turn"))
}

/// Returns the stop reason of an answer of Messages, as a JSON text, without any call.
pub(super) fn messages_reason(reason: &str) -> &str {
    if reason == "\"tool_use\"" { "\"end_turn\"" } else { reason }
}

/// Returns the call ID of an item of Responses that the client answers; `None` for other items.
pub(super) fn client_call(item: &Object<'_>) -> Option<String> {
    const KINDS: [&str; 7] = [
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    ];
    let kind = item.text("type")?;
    let id = || item.text("call_id").or_else(|| item.text("id")).unwrap_or_default();
    KINDS.contains(&&*kind).then(|| id().into_owned())
}

/// Whether an item of Responses is a call of the tool.
pub(super) fn is_call_item(item: &Object<'_>, name: &str) -> bool {
    item.text("type").as_deref() == Some("function_call")
        && item.text("name").as_deref() == Some(name)
}

/// Whether a block of Messages is a call of the tool.
pub(super) fn is_call_block(block: &Object<'_>, name: &str) -> bool {
    block.text("type").as_deref() == Some("tool_use") && block.text("name").as_deref() == Some(name)
}

/// Whether a block of Messages is thinking.
pub(super) fn is_thinking(block: &Object<'_>) -> bool {
    matches!(block.text("type").as_deref(), Some("thinking" | "redacted_thinking"))
}

/// Returns a block with weir's mark instead of its signature.
pub(super) fn marked_block(block: &str) -> String {
    let Some(object) = Object::read(block) else { return block.to_owned() };
    let mark = json::quoted(MARK);
    let has = |name| object.get(name).is_some_and(|raw| !text::is_empty(raw));
    match object.text("type").as_deref() {
        Some("thinking") if has("signature") => text::with(block, "signature", &mark),
        Some("redacted_thinking") => text::with(block, "data", &mark),
        _ => block.to_owned(),
    }
}

/// Returns a reasoning item of Responses with weir's mark as its encrypted content.
pub(super) fn marked_item(item: &str) -> String {
    text::with(item, "encrypted_content", &json::quoted(MARK))
}
