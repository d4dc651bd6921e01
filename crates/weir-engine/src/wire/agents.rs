//! Requests with which coding agents compact their own conversations, recognised by the agents' fixed
//! prompts. A user may write the same words: then the request is treated as one of these.

use super::{Message, Request, Role, json};

/// Beginnings of a text in the last message, which asks for the summary.
///
/// - codex: `codex-rs/core/templates/compact/prompt.md` in `openai/codex`.
/// - Claude Code: the second and third, from the package `@anthropic-ai/claude-code`. One stands before
///   the other if tools must not be called.
/// - opencode: `packages/core/src/session/compaction.ts` and `compaction-suffix.ts` in `sst/opencode`;
///   the sixth in earlier versions.
/// - qwen-code: `packages/core/src/services/chatCompressionService.ts` in `QwenLM/qwen-code`; the last
///   in earlier versions and in Gemini CLI.
const INSTRUCTIONS: [&str; 8] = [
    "You are performing a CONTEXT CHECKPOINT COMPACTION.",
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "Your task is to create a detailed summary of ",
    "Here is the conversation so far:\n\n<conversation>\n",
    "Summarize the older portion of the preceding conversation. This is a summarization task",
    "Provide a detailed prompt for continuing our conversation above.",
    "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.",
    "First, reason in your scratchpad. Then, generate the <state_snapshot>.",
];

/// Beginnings of a system message of requests that do nothing else.
///
/// - Claude Code: the first.
/// - pi: `SUMMARIZATION_SYSTEM_PROMPT` in `packages/coding-agent/src/core/compaction/utils.ts` of
///   `badlogic/pi-mono`.
const ROLES: [&str; 2] = [
    "You are a helpful AI assistant tasked with summarizing conversations",
    "You are a context summarization assistant.",
];

/// Whether an agent asks for a summary of its own conversation, to continue with that alone.
pub fn is_compaction(request: &Request<'_>) -> bool {
    let Some((last, before)) = request.messages.split_last() else { return false };
    let begins = |raw: &str, searched: &str, role: Role, known: &[&str]| {
        may_hold(searched, known)
            && request.protocol.read_message(raw).is_ok_and(|message| {
                message.role == role && texts(&message).any(|text| begins_with(&text, known))
            })
    };
    // A role stands near the beginning, an instruction may stand behind other texts.
    let states_a_role = |raw: &str| {
        let searched = &raw[..raw.floor_char_boundary(MAX_ROLE_BYTES)];
        begins(raw, searched, Role::System, &ROLES)
    };
    begins(last, last, Role::User, &INSTRUCTIONS)
        || before.iter().take(MAX_SYSTEM_MESSAGES).any(|raw| states_a_role(raw))
}

/// Maximum number of messages from the front that may state a role.
const MAX_SYSTEM_MESSAGES: usize = 4;
/// Bytes of such a message in which a role is looked for.
const MAX_ROLE_BYTES: usize = 4096;
/// Bytes of the beginnings that are searched before a message is parsed. They need no escape.
const SEARCHED_BYTES: usize = 24;

/// Whether a message's JSON text may hold one of the beginnings.
fn may_hold(raw: &str, known: &[&str]) -> bool {
    let has =
        |begin: &&str| memchr::memmem::find(raw.as_bytes(), &begin.as_bytes()[..SEARCHED_BYTES]);
    known.iter().any(|begin| has(begin).is_some())
}

/// Returns the texts of a message.
fn texts<'a>(message: &'a Message<'_>) -> impl Iterator<Item = std::borrow::Cow<'a, str>> {
    message.texts().into_iter().filter_map(json::string)
}

fn begins_with(text: &str, known: &[&str]) -> bool {
    let text = text.trim_start();
    known.iter().any(|begin| text.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    fn is_it(protocol: Protocol, body: &serde_json::Value) -> bool {
        let body = body.to_string();
        is_compaction(&protocol.read(body.as_bytes(), 100).expect("a request"))
    }

    #[test]
    fn every_agents_request_is_recognised_in_every_protocol() {
        for instruction in INSTRUCTIONS {
            let said = format!("\n{instruction} Be brief.");
            let chat = serde_json::json!({"messages": [
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": "Go."}, {"role": "assistant", "content": "I went."},
                {"role": "user", "content": said}]});
            let messages = serde_json::json!({"messages": [
                {"role": "user", "content": "Go."}, {"role": "assistant", "content": "I went."},
                {"role": "user", "content": [{"type": "text", "text": "A reminder."}, {"type": "text", "text": said}]}]});
            let responses = serde_json::json!({"instructions": "You are an agent.", "input": [
                {"role": "user", "content": "Go."},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}]});
            assert!(is_it(Protocol::Chat, &chat), "{instruction}");
            assert!(is_it(Protocol::Messages, &messages), "{instruction}");
            assert!(is_it(Protocol::Responses, &responses), "{instruction}");
        }
        for role in ROLES {
            let chat = serde_json::json!({"messages": [
                {"role": "system", "content": format!("{role} Be brief.")},
                {"role": "user", "content": "<conversation>…</conversation>"}]});
            let messages = serde_json::json!({"system": [{"type": "text", "text": role}],
                "messages": [{"role": "user", "content": "Summarise."}]});
            assert!(is_it(Protocol::Chat, &chat) && is_it(Protocol::Messages, &messages), "{role}");
        }
    }

    #[test]
    fn words_about_it_are_not_it() {
        let quoted = format!("The prompt says: {}", INSTRUCTIONS[0]);
        for (role, text) in [
            ("user", quoted.as_str()),
            ("user", "Your task is to create a detailed plan."),
            ("assistant", INSTRUCTIONS[1]),
            ("tool", INSTRUCTIONS[2]),
        ] {
            let chat = serde_json::json!({"messages": [
                {"role": "user", "content": INSTRUCTIONS[0]}, {"role": role, "content": text}]});
            assert!(!is_it(Protocol::Chat, &chat), "{role}: {text}");
        }
        assert!(!is_it(Protocol::Chat, &serde_json::json!({"messages": []})));
    }
}
