//! Coding agents, recognised by their fixed prompts: which program speaks, and requests with which it
//! compacts its own conversation. A user may write the same words: then the request is treated so.

use std::sync::LazyLock;

use memchr::memmem::Finder;

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
/// - Copilot CLI: the package `@github/copilot`; Continue: `@continuedev/cli`.
const INSTRUCTIONS: [&str; 10] = [
    "You are performing a CONTEXT CHECKPOINT COMPACTION.",
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "Your task is to create a detailed summary of ",
    "Here is the conversation so far:\n\n<conversation>\n",
    "Summarize the older portion of the preceding conversation. This is a summarization task",
    "Provide a detailed prompt for continuing our conversation above.",
    "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.",
    "First, reason in your scratchpad. Then, generate the <state_snapshot>.",
    "Please create a detailed summary of the conversation so far. The history is being compacted",
    "Please provide a concise summary of our conversation so far, capturing the key context",
];

/// Beginnings of the system text of programs whose headers are those of an SDK, and their names.
/// Seen in requests of the packages `@github/copilot` and `@continuedev/cli`.
const PROGRAMS: [(&str, &str); 2] = [
    ("You are the GitHub Copilot CLI", "copilot"),
    ("You are an agent in the Continue CLI", "continue"),
];

/// Returns the program whose system text a request begins with, if that is a known one.
pub fn program(request: &Request<'_>) -> Option<&'static str> {
    let first = request.messages.first()?;
    // The text stands behind the names and the quotes of its message.
    let head = &first.as_bytes()[..first.len().min(MAX_PROGRAM_BYTES)];
    let begins = |text: &&(&str, &str)| memchr::memmem::find(head, text.0.as_bytes()).is_some();
    PROGRAMS.iter().find(begins).map(|(_, name)| *name)
}

/// Bytes of the first message in which the name of a program is looked for.
const MAX_PROGRAM_BYTES: usize = 160;

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
    let begins = |raw: &str, searched: &str, role: Role, (known, finders): (&[&str], &Finders)| {
        finders.iter().any(|finder| finder.find(searched.as_bytes()).is_some())
            && request.protocol.read_message(raw).is_ok_and(|message| {
                message.role == role && texts(&message).any(|text| begins_with(&text, known))
            })
    };
    // A role stands near the beginning, an instruction may stand behind other texts.
    let states_a_role = |raw: &str| {
        let searched = &raw[..raw.floor_char_boundary(MAX_ROLE_BYTES)];
        begins(raw, searched, Role::System, (&ROLES, &ROLE_FINDERS))
    };
    begins(last, last, Role::User, (&INSTRUCTIONS, &INSTRUCTION_FINDERS))
        || before.iter().take(MAX_SYSTEM_MESSAGES).any(|raw| states_a_role(raw))
}

/// Maximum number of messages from the front that may state a role.
const MAX_SYSTEM_MESSAGES: usize = 4;
/// Bytes of such a message in which a role is looked for.
const MAX_ROLE_BYTES: usize = 4096;
/// Bytes of the beginnings that are searched before a message is parsed. They need no escape.
const SEARCHED_BYTES: usize = 24;

/// Searches for the beginnings, made once: to make them takes longer than to search a small message.
type Finders = LazyLock<Vec<Finder<'static>>>;
static ROLE_FINDERS: Finders = LazyLock::new(|| finders(&ROLES));
static INSTRUCTION_FINDERS: Finders = LazyLock::new(|| finders(&INSTRUCTIONS));

fn finders(known: &[&'static str]) -> Vec<Finder<'static>> {
    known.iter().map(|begin| Finder::new(&begin.as_bytes()[..SEARCHED_BYTES])).collect()
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
    fn programs_are_known_by_the_beginning_of_their_system_text() {
        for (text, expected) in [
            ("You are the GitHub Copilot CLI, a terminal assistant.", Some("copilot")),
            ("You are an agent in the Continue CLI. Given", Some("continue")),
            ("You are an agent.", None),
        ] {
            let system = serde_json::json!({"role": "system", "content": text});
            let user = serde_json::json!({"role": "user", "content": "Go."});
            for (protocol, body) in [
                (Protocol::Chat, serde_json::json!({"messages": [system, user]})),
                (Protocol::Responses, serde_json::json!({"instructions": text, "input": [user]})),
                (
                    Protocol::Messages,
                    serde_json::json!({"messages": [user],
                    "system": [{"type": "text", "text": text}]}),
                ),
            ] {
                let body = body.to_string();
                let request = protocol.read(body.as_bytes(), 100).expect("a request");
                assert_eq!(program(&request), expected, "{body}");
            }
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
