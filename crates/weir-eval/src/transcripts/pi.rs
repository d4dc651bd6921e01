//! Sessions of pi: one JSON object a line, with a message of pi's own form in each line of the type `message`.
//! They are retold as chat completions.
//!
//! The session has no system prompt and no tools. Lines are read in the order of the file, so a branch that
//! the user left stays in. After a compaction by pi a conversation of its own begins with the summary.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::chat::{self, ChatPart};
use super::{LineMembers, Recorded};
use weir_engine::wire::json;
use weir_engine::wire::usage::{Metered, Usage};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reported {
    input: u64,
    output: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
}

impl Reported {
    /// Returns the usage; `None` if all is zero, as in answers that failed.
    fn usage(&self) -> Option<Usage> {
        let (read, written) = (self.cache_read.unwrap_or(0), self.cache_write.unwrap_or(0));
        let usage = Usage {
            prompt_tokens: Some(self.input.saturating_add(read).saturating_add(written)),
            completion_tokens: self.output,
            cached_tokens: Some(read),
            cache_write_tokens: self.cache_write,
            ..Usage::default()
        };
        let is_billed = usage.prompt_tokens > Some(0) || usage.completion_tokens > Some(0);
        is_billed.then_some(usage)
    }
}

fn add(part: &mut ChatPart, entry: &LineMembers<'_>, id: String, at_ms: Option<u64>) {
    let content = or_empty(entry.get("content"));
    match entry.text("role").as_deref() {
        Some("user" | "custom") => part.user(&parts(content), at_ms),
        Some("bashExecution") if entry.get("excludeFromContext") != Some("true") => {
            part.user(or_empty(entry.get("output")), at_ms);
        }
        Some("toolResult") => {
            let id = entry.text("toolCallId").unwrap_or_default();
            part.result(&id, &parts(content), at_ms);
        }
        Some("assistant") => add_answer(part, entry, content, id, at_ms),
        _ => {}
    }
}

/// Adds an answer to a request of its own. What failed is not sent again, and billed if it has usage.
fn add_answer(
    part: &mut ChatPart,
    entry: &LineMembers<'_>,
    content: &str,
    id: String,
    at_ms: Option<u64>,
) {
    let usage = entry.get("usage").and_then(|raw| serde_json::from_str::<Reported>(raw).ok());
    let usage = usage.and_then(|own| own.usage());
    let has_failed = entry.get("stopReason") == Some("\"error\"");
    if usage.is_some() || !has_failed {
        let own = part.begin(at_ms);
        (own.model, own.id) = (entry.text("model"), Some(id));
        own.reported = Metered { usage, ..Metered::default() };
    }
    if !has_failed {
        let calls = json::elements(content).unwrap_or_default().into_iter().filter_map(call);
        part.answer(&parts(content), &calls.collect::<Vec<_>>());
    }
}

fn or_empty(raw: Option<&str>) -> &str {
    raw.unwrap_or(r#""""#)
}

/// Returns content as chat completions have it, without calls and thinking.
fn parts(content: &str) -> String {
    if content.starts_with('"') {
        return content.to_owned();
    }
    let part = |raw: &str| match json::string(json::member(raw, "type")?)?.as_ref() {
        "text" => Some(chat::text(json::member(raw, "text")?)),
        "image" => {
            let data = json::string(json::member(raw, "data")?)?;
            chat::picture(&json::string(json::member(raw, "mimeType")?)?, &data)
        }
        _ => None,
    };
    let parts = json::elements(content).unwrap_or_default().into_iter().filter_map(part);
    chat::content(&parts.collect::<Vec<_>>())
}

fn call(raw: &str) -> Option<String> {
    let call = LineMembers::of(raw).filter(|call| call.get("type") == Some("\"toolCall\""))?;
    Some(chat::call(&call.text("id")?, &call.text("name")?, call.get("arguments")))
}

/// Returns the conversations of a session, in order.
pub(crate) fn conversations(lines: &[&RawValue]) -> Vec<Recorded> {
    let mut parts_of = vec![ChatPart::default()];
    let (mut id, mut project) = (None, None);
    for raw in lines {
        let Some(line) = LineMembers::of(raw.get()) else { continue };
        let at_ms = line.at_ms();
        let Some(part) = parts_of.last_mut() else { continue };
        match line.text("type").as_deref() {
            Some("session") => {
                (id, project) = (id.or(line.text("id")), project.or(line.text("cwd")));
            }
            Some("compaction") => {
                let mut next = ChatPart::default();
                next.user(or_empty(line.get("summary")), at_ms);
                parts_of.push(next);
            }
            Some("custom_message") => {
                part.user(&parts(or_empty(line.get("content"))), at_ms);
            }
            Some("message") => {
                let Some(entry) = line.get("message").and_then(LineMembers::of) else { continue };
                // Sessions that are forked from one another keep names and times.
                let id = format!("{:?} {:?}", line.get("id"), line.get("timestamp"));
                add(part, &entry, id, at_ms);
            }
            _ => {}
        }
    }
    let id = id.unwrap_or_else(|| "session".to_owned());
    chat::recorded(&id, project.as_deref(), parts_of)
}

#[cfg(test)]
mod tests {
    use crate::recorded::{ReadText, TextForm, read};
    use weir_engine::wire::{Protocol, Role};

    const SESSION: &str = r#"{"type":"session","version":3,"id":"s1","timestamp":"1970-01-01T00:00:00Z","cwd":"/w"}
{"type":"model_change","id":"a","parentId":null,"timestamp":"1970-01-01T00:00:00Z","provider":"anthropic","modelId":"claude-sonnet-4-5"}
{"type":"message","id":"b","timestamp":"1970-01-01T00:00:01Z","message":{"role":"user","content":"Fix it."}}
{"type":"message","id":"c","timestamp":"1970-01-01T00:00:03Z","message":{"role":"assistant","content":[{"type":"thinking","thinking":"h"},{"type":"text","text":"I look."},{"type":"toolCall","id":"t1","name":"read","arguments":{"path":"a.rs"}}],"model":"claude-sonnet-4-5","usage":{"input":5,"output":7,"cacheRead":100,"cacheWrite":20,"totalTokens":132},"stopReason":"toolUse"}}
{"type":"message","id":"d","timestamp":"1970-01-01T00:00:04Z","message":{"role":"toolResult","toolCallId":"t1","toolName":"read","content":[{"type":"text","text":"fn a() {}"}],"isError":false}}
{"type":"compaction","id":"e","timestamp":"1970-01-01T00:00:05Z","summary":"A summary.","firstKeptEntryId":"d"}
{"type":"message","id":"f","timestamp":"1970-01-01T00:00:06Z","message":{"role":"user","content":[{"type":"text","text":"Go on."}]}}
"#;

    #[test]
    fn a_session_is_retold_with_times_and_usage() {
        let ReadText { form, recorded: found, .. } = read(SESSION, None).expect("a session");
        assert_eq!(form, TextForm::Pi);
        let ids: Vec<&str> = found.iter().map(|own| own.id.as_str()).collect();
        assert_eq!(ids, ["s1", "s1, after compaction 1"]);
        let request = Protocol::Chat.read(found[0].body.as_bytes(), 100).expect("readable");
        let read = request.messages.iter().map(|raw| {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            (message.role, message.calls.len())
        });
        let expected = [(Role::User, 0), (Role::Assistant, 1), (Role::Tool, 0)];
        assert_eq!(read.collect::<Vec<_>>(), expected);
        let [own] = &found[0].exchanges[..] else { panic!("one answer") };
        let usage = own.reported.usage.expect("it has one");
        assert_eq!((own.at_ms, own.model.as_deref()), (Some(1000), Some("claude-sonnet-4-5")));
        let reported = (usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens);
        assert_eq!(reported, (Some(125), Some(100), Some(20)));
    }

    #[test]
    fn each_answer_is_billed_even_one_that_failed() {
        let answer = |input: u8, rest: &str| {
            format!(
                r#"{{"type":"message","id":"{input}","message":{{"role":"assistant","content":[{{"type":"text","text":"x"}}],"usage":{{"input":{input},"output":0}}{rest}}}}}"#
            )
        };
        let error = r#","stopReason":"error""#;
        let text = [
            r#"{"type":"session","id":"s"}"#.to_owned(),
            r#"{"type":"message","message":{"role":"user","content":"a"}}"#.to_owned(),
            answer(5, r#","stopReason":"aborted""#),
            answer(6, ""),
            answer(7, error),
            answer(0, error),
            answer(0, ""),
        ];
        let found = read(&text.join("\n"), None).expect("a session").recorded;
        let own = found[0].exchanges.iter().map(|own| (own.sent, own.prompt_tokens()));
        let expected = [(1, Some(5)), (2, Some(6)), (3, Some(7)), (3, None)];
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }
}
