//! Transcripts of Claude Code: one JSON object a line, with a message of the Messages API in each line
//! of a user or the assistant.
//!
//! The transcript has no system prompt and no tools. Lines are read in the order of the file, so a
//! branch that the user left by going back stays in. A subagent is a conversation of its own, and so is
//! each part after a compaction by Claude Code.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Exchanges, Recorded, quoted, time_ms};
use weir_engine::wire::usage::Usage;
use weir_engine::wire::{Protocol, json};

/// Model of lines that Claude Code wrote itself, such as errors. They are never sent.
const SYNTHETIC: &str = "<synthetic>";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    subtype: Option<String>,
    uuid: Option<String>,
    session_id: Option<String>,
    agent_id: Option<String>,
    cwd: Option<String>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(default)]
    is_sidechain: bool,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Said<'a> {
    id: Option<String>,
    model: Option<String>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

impl Said<'_> {
    fn usage(&self) -> Option<Usage> {
        let usage = Usage::of(format!(r#"{{"usage":{}}}"#, self.usage?.get()).as_bytes())?;
        Some(Usage { cached_tokens: usage.cached_tokens.or(Some(0)), ..usage })
    }
}

/// Conversation so far.
#[derive(Default)]
struct Part<'a> {
    name: String,
    model: Option<String>,
    /// Role and blocks of each message.
    messages: Vec<(&'static str, Vec<std::borrow::Cow<'a, str>>)>,
    /// Last message of the assistant, and its identifier.
    answer: Option<(usize, String)>,
    exchanges: Exchanges,
    project: Option<String>,
}

impl<'a> Part<'a> {
    /// Adds the blocks of a line. Lines of one message are one message again, even if results of its
    /// first calls stand between them.
    fn add(&mut self, role: &'static str, said: &Said<'a>, at_ms: Option<u64>) {
        let Some(content) = said.content else { return };
        let raw = content.get();
        let blocks: Vec<_> = match raw.starts_with('[') {
            true => json::elements(raw).unwrap_or_default().into_iter().map(Into::into).collect(),
            false => vec![format!(r#"{{"type":"text","text":{raw}}}"#).into()],
        };
        let place = match (role, &self.answer, &said.id) {
            ("assistant", Some((place, last)), Some(own)) if last == own => Some(*place),
            _ => self.messages.len().checked_sub(1).filter(|last| self.messages[*last].0 == role),
        };
        let is_new = place.is_none();
        let place = place.unwrap_or_else(|| {
            self.messages.push((role, Vec::new()));
            self.messages.len() - 1
        });
        self.messages[place].1.extend(blocks);
        if role == "assistant" {
            let before = self.answer.as_ref().map(|(_, id)| id);
            if !is_new && before.is_some() && said.id.is_some() && before != said.id.as_ref() {
                self.exchanges.next();
            }
            self.answer = said.id.clone().map(|id| (place, id));
            self.model = said.model.clone().or(self.model.take());
            let model = said.model.as_deref();
            self.exchanges.answer(is_new && place > 0, at_ms, model, said.usage());
        } else {
            self.exchanges.ask(at_ms);
        }
    }

    fn recorded(self) -> Option<Recorded> {
        if self.messages.is_empty() {
            return None;
        }
        let messages: Vec<String> = self
            .messages
            .iter()
            .map(|(role, blocks)| {
                format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks.join(","))
            })
            .collect();
        let model = self.model.map(|model| format!(r#""model":{},"#, quoted(&model)));
        let body =
            format!(r#"{{{}"messages":[{}]}}"#, model.unwrap_or_default(), messages.join(","));
        Some(Recorded {
            id: self.name,
            protocol: Protocol::Messages,
            body,
            is_request: false,
            project: self.project,
            exchanges: self.exchanges.made,
        })
    }
}

/// Returns the conversations of a transcript: that of the user first, then those of subagents.
pub(crate) fn conversations(lines: &[&RawValue]) -> Vec<Recorded> {
    let mut parts: BTreeMap<String, Vec<Part<'_>>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for raw in lines {
        let Ok(line) = serde_json::from_str::<Line<'_>>(raw.get()) else { continue };
        // A resumed session repeats lines of the one before.
        if line.uuid.as_ref().is_some_and(|uuid| !seen.insert(uuid.clone())) {
            continue;
        }
        let agent = match line.is_sidechain {
            true => line.agent_id.unwrap_or_else(|| "subagent".to_owned()),
            false => String::new(),
        };
        let own = parts.entry(agent.clone()).or_default();
        if line.subtype.as_deref() == Some("compact_boundary") {
            own.push(Part::default());
        }
        let role = match line.kind.as_deref() {
            Some("user") => "user",
            Some("assistant") => "assistant",
            _ => continue,
        };
        let said = line.message.and_then(|raw| serde_json::from_str::<Said<'_>>(raw.get()).ok());
        let Some(said) = said.filter(|said| said.model.as_deref() != Some(SYNTHETIC)) else {
            continue;
        };
        if own.is_empty() {
            own.push(Part::default());
        }
        let number = own.len();
        let Some(part) = own.last_mut() else { continue };
        if part.name.is_empty() {
            let session = line.session_id.as_deref().unwrap_or("session");
            let name = if agent.is_empty() { session } else { &agent };
            part.name = match number {
                1 => name.to_owned(),
                _ => format!("{name}, after compaction {}", number - 1),
            };
        }
        part.project = part.project.take().or(line.cwd);
        part.add(role, &said, line.timestamp.and_then(|raw| time_ms(raw.get())));
    }
    parts.into_values().flatten().filter_map(Part::recorded).collect()
}

#[cfg(test)]
mod tests {
    use crate::recorded::{TextForm, read};
    use weir_engine::wire::{Protocol, Role};

    const TRANSCRIPT: &str = r#"{"type":"summary","summary":"A title","leafUuid":"z"}
{"type":"user","uuid":"1","sessionId":"s","message":{"role":"user","content":"Fix it."}}
{"type":"assistant","uuid":"2","sessionId":"s","message":{"id":"m1","model":"claude-opus-4-6","role":"assistant","content":[{"type":"text","text":"I look."}]}}
{"type":"assistant","uuid":"3","sessionId":"s","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"a","name":"Read","input":{"path":"x"}}]}}
{"type":"user","uuid":"4","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]},"toolUseResult":{}}
{"type":"assistant","uuid":"5","sessionId":"s","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"b","name":"Read","input":{"path":"y"}}]}}
{"type":"user","uuid":"6","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"y"}]}}
{"type":"user","uuid":"6","sessionId":"s","message":{"role":"user","content":"a repeated line"}}
{"type":"assistant","uuid":"7","isSidechain":true,"agentId":"k1","message":{"id":"m2","role":"assistant","content":[{"type":"text","text":"aside"}]}}
{"type":"assistant","uuid":"8","sessionId":"s","message":{"model":"<synthetic>","role":"assistant","content":[{"type":"text","text":"an error"}]}}
{"type":"system","uuid":"9","subtype":"compact_boundary","content":"compacted"}
{"type":"user","uuid":"10","sessionId":"s","message":{"role":"user","content":"This session goes on."}}
"#;

    #[test]
    fn lines_of_one_message_are_one_message_again() {
        let (form, found) = read(TRANSCRIPT, None).expect("a transcript");
        assert_eq!(form, TextForm::ClaudeCode);
        let ids: Vec<&str> = found.iter().map(|own| own.id.as_str()).collect();
        assert_eq!(ids, ["s", "s, after compaction 1", "k1"]);
        let request = Protocol::Messages.read(found[0].body.as_bytes(), 100).expect("readable");
        assert_eq!(request.model.as_deref(), Some("claude-opus-4-6"));
        let messages = request.messages.iter().map(|raw| {
            let message = Protocol::Messages.read_message(raw).expect("readable");
            (message.role, message.calls.len())
        });
        let expected = [(Role::User, 0), (Role::Assistant, 2), (Role::Tool, 0), (Role::Tool, 0)];
        assert_eq!(messages.collect::<Vec<_>>(), expected);
        assert!(!found.iter().any(|own| own.body.contains("an error")));
    }

    #[test]
    fn each_answer_has_its_request_with_time_and_usage() {
        let line = |kind: &str, at: u8, message: &str| {
            format!(
                r#"{{"type":"{kind}","sessionId":"s","cwd":"/w","timestamp":"1970-01-01T00:00:{at:02}Z","message":{message}}}"#
            )
        };
        let answer = |id: &str, output: u8| {
            format!(
                r#"{{"id":"{id}","model":"m","content":[{{"type":"text","text":"x"}}],"usage":{{"input_tokens":5,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,"cache_creation":{{"ephemeral_1h_input_tokens":20}},"output_tokens":{output}}}}}"#
            )
        };
        let text = [
            line("user", 1, r#"{"content":"a"}"#),
            line("assistant", 3, &answer("m1", 1)),
            line("assistant", 4, &answer("m1", 9)),
            line("user", 7, r#"{"content":"b"}"#),
            line("assistant", 8, &answer("m2", 4)),
            line("assistant", 9, &answer("m3", 2)),
        ];
        let (_, found) = read(&text.join("\n"), None).expect("a transcript");
        assert_eq!(found[0].project.as_deref(), Some("/w"));
        let own = found[0].exchanges.iter().map(|own| {
            let usage = own.usage.expect("each has one");
            let written = (usage.cache_write_tokens, usage.cache_write_1h_tokens);
            assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(125), Some(100)));
            assert_eq!(written, (Some(20), Some(20)));
            (own.at_ms, own.model.as_deref(), usage.completion_tokens, own.earlier.len())
        });
        let expected = [(Some(1000), Some("m"), Some(9), 0), (Some(7000), Some("m"), Some(2), 1)];
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }
}
