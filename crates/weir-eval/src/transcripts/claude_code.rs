//! Transcripts of Claude Code: one JSON object a line, with a message of the Messages API in each line
//! of a user or the assistant.
//!
//! The transcript has no system prompt and no tools. Lines are read in the order of the file, so a
//! branch that the user left by going back stays in. A subagent is a conversation of its own, and so is
//! each part after a compaction by Claude Code.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::value::RawValue;

use super::{Exchanges, LineMembers, Recorded, part_name, quoted, usage_in};
use weir_engine::wire::{Protocol, json};

/// Model of lines that Claude Code wrote itself, such as errors. They are never sent.
const SYNTHETIC: &str = "<synthetic>";

/// Answer whose lines may go on.
struct OpenAnswer {
    /// Its message, and its request.
    place: usize,
    exchange: usize,
    request_id: Option<String>,
    prompt_tokens: Option<u64>,
    /// Number of lines of users and tools before its first one.
    rounds: usize,
}

/// Returns what a copy of an answer has, too, in the transcript of a session that goes on from this one.
fn answer_id(line: &LineMembers<'_>, said: &LineMembers<'_>) -> Option<String> {
    let (message, request) = (said.get("id"), line.get("requestId"));
    let known = request.filter(|_| message.is_some()).or_else(|| line.get("timestamp"))?;
    Some(format!("{message:?} {known}"))
}

/// Conversation so far.
#[derive(Default)]
struct Part<'a> {
    name: String,
    model: Option<String>,
    /// Role and blocks of each message.
    messages: Vec<(&'static str, Vec<std::borrow::Cow<'a, str>>)>,
    /// Answers by the name of their message.
    answers: HashMap<String, OpenAnswer>,
    rounds: usize,
    exchanges: Exchanges,
    project: Option<String>,
}

impl<'a> Part<'a> {
    /// Adds the blocks of a line. Messages of one role in a row are one message.
    fn add(&mut self, role: &'static str, line: &LineMembers<'_>, said: &LineMembers<'a>) {
        let Some(raw) = said.get("content") else { return };
        let blocks = match raw.starts_with('[') {
            true => json::elements(raw).unwrap_or_default().into_iter().map(Into::into).collect(),
            false => vec![format!(r#"{{"type":"text","text":{raw}}}"#).into()],
        };
        let last = self.messages.len().checked_sub(1);
        let joined = last.filter(|last| self.messages[*last].0 == role);
        let place = match role {
            "assistant" => self.answer(line, said, joined),
            _ => {
                self.rounds += 1;
                self.exchanges.ask(line.at_ms());
                joined.unwrap_or(self.messages.len())
            }
        };
        match self.messages.get_mut(place) {
            Some(message) => message.1.extend(blocks),
            None => self.messages.push((role, blocks)),
        }
    }

    /// Notes the line of an answer, and returns the place of its message. Lines of one answer belong
    /// together, even if those of another answer or results of its first calls stand between them. Some
    /// gateways give all answers one name: then the prompts differ.
    fn answer(
        &mut self,
        line: &LineMembers<'_>,
        said: &LineMembers<'_>,
        joined: Option<usize>,
    ) -> usize {
        let metered = usage_in(said.get("usage"));
        let prompt_tokens = metered.usage.and_then(|usage| usage.prompt_tokens);
        let name = said.text("id").unwrap_or_else(|| self.rounds.to_string());
        let request_id = line.text("requestId");
        let is_same = |own: &&OpenAnswer| {
            own.request_id == request_id
                && (own.rounds == self.rounds || own.prompt_tokens == prompt_tokens)
        };
        let known = self.answers.get(&name).filter(is_same).map(|own| (own.place, own.exchange));
        let (place, exchange) = known.unwrap_or_else(|| {
            let place = joined.unwrap_or(self.messages.len());
            let exchange = self.exchanges.made.len();
            let rounds = self.rounds;
            let own = OpenAnswer { place, exchange, request_id, prompt_tokens, rounds };
            self.answers.insert(name, own);
            self.exchanges.answer(place, line.at_ms()).id = answer_id(line, said);
            (place, exchange)
        });
        self.model = said.text("model").or(self.model.take());
        let own = &mut self.exchanges.made[exchange];
        own.model = said.text("model").or(own.model.take());
        if metered.usage.is_some() {
            own.reported = metered;
        }
        place
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
        let Some(line) = LineMembers::of(raw.get()) else { continue };
        // A resumed session repeats lines of the one before.
        if line.get("uuid").is_some_and(|uuid| !seen.insert(uuid)) {
            continue;
        }
        let agent = match line.get("isSidechain") {
            Some("true") => line.text("agentId").unwrap_or_else(|| "subagent".to_owned()),
            _ => String::new(),
        };
        let own = parts.entry(agent.clone()).or_default();
        if line.get("subtype") == Some(r#""compact_boundary""#) {
            own.push(Part::default());
        }
        let role = match line.get("type") {
            Some(r#""user""#) => "user",
            Some(r#""assistant""#) => "assistant",
            _ => continue,
        };
        let said = line.get("message").and_then(LineMembers::of);
        let Some(said) = said.filter(|said| said.text("model").as_deref() != Some(SYNTHETIC))
        else {
            continue;
        };
        if own.is_empty() {
            own.push(Part::default());
        }
        let number = own.len();
        let Some(part) = own.last_mut() else { continue };
        if part.name.is_empty() {
            let session = line.text("sessionId").unwrap_or_else(|| "session".to_owned());
            let name = if agent.is_empty() { session } else { agent };
            part.name = part_name(&name, number - 1);
        }
        part.project = part.project.take().or_else(|| line.text("cwd"));
        part.add(role, &line, &said);
    }
    parts.into_values().flatten().filter_map(Part::recorded).collect()
}

#[cfg(test)]
mod tests {
    use crate::recorded::{ReadText, RecordedExchange, TextForm, read};
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
        let ReadText { form, recorded: found, .. } = read(TRANSCRIPT, None).expect("a transcript");
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
        let found = read(&text.join("\n"), None).expect("a transcript").recorded;
        assert_eq!(found[0].project.as_deref(), Some("/w"));
        let own = found[0].exchanges.iter().map(|own| {
            let usage = own.reported.usage.expect("each has one");
            let written = (usage.cache_write_tokens, usage.cache_write_1h_tokens);
            assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(125), Some(100)));
            assert_eq!(written, (Some(20), Some(20)));
            (own.sent, own.at_ms, own.model.as_deref(), usage.completion_tokens)
        });
        let expected = [
            (1, Some(1000), Some("m"), Some(9)),
            (3, Some(7000), Some("m"), Some(4)),
            (3, Some(9000), Some("m"), Some(2)),
        ];
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }

    /// Messages that were sent, size of the prompt and of the output of each request; `lines` are roles, names
    /// of messages, and input and output.
    fn requests(lines: &[(&str, &str, u64, u64)]) -> Vec<(usize, Option<u64>, Option<u64>)> {
        let line = |(kind, id, input, output): &(&str, &str, u64, u64)| match *kind {
            "assistant" => format!(
                r#"{{"type":"assistant","message":{{"id":"{id}","model":"m","content":[{{"type":"text","text":"x"}}],"usage":{{"input_tokens":{input},"output_tokens":{output}}}}}}}"#
            ),
            _ => format!(
                r#"{{"type":"user","message":{{"content":[{{"type":"{kind}","text":"x"}}]}}}}"#
            ),
        };
        let text: Vec<String> = lines.iter().map(line).collect();
        let found = read(&text.join("\n"), None).expect("a transcript").recorded;
        let usage = |own: &RecordedExchange| own.reported.usage.unwrap_or_default();
        let shown = |own: &RecordedExchange| {
            (own.sent, usage(own).prompt_tokens, usage(own).completion_tokens)
        };
        found[0].exchanges.iter().map(shown).collect()
    }

    #[test]
    fn lines_are_of_the_answer_that_they_name() {
        let (user, answer) = ("text", "assistant");
        // Two agents write into one file, and a call comes after the result of the one before it.
        let mixed = [
            (user, "", 0, 0),
            (answer, "m1", 5, 1),
            (answer, "m2", 6, 2),
            (answer, "m1", 5, 9),
            ("tool_result", "", 0, 0),
            (answer, "m1", 5, 10),
            (answer, "m3", 7, 3),
        ];
        let expected = [(1, Some(5), Some(10)), (1, Some(6), Some(2)), (3, Some(7), Some(3))];
        assert_eq!(requests(&mixed), expected);

        // A gateway that names all answers alike.
        let named_alike = [
            (user, "", 0, 0),
            (answer, "m", 5, 1),
            (user, "", 0, 0),
            (answer, "m", 8, 2),
            ("tool_result", "", 0, 0),
            (answer, "m", 11, 3),
        ];
        let expected = [(1, Some(5), Some(1)), (3, Some(8), Some(2)), (5, Some(11), Some(3))];
        assert_eq!(requests(&named_alike), expected);
        let begun = [(answer, "m", 5, 1), (user, "", 0, 0), (answer, "n", 6, 2)];
        assert_eq!(requests(&begun), [(0, Some(5), Some(1)), (2, Some(6), Some(2))]);
    }

    #[test]
    fn all_that_is_billed_beside_tokens_is_read() {
        let usage = r#"{"input_tokens":10,"output_tokens":2,"speed":"fast","server_tool_use":{"web_search_requests":5},"iterations":[{"type":"compaction","input_tokens":900,"output_tokens":30},{"type":"message","input_tokens":10,"output_tokens":2}]}"#;
        let text = format!(
            "{}\n{}",
            r#"{"type":"user","message":{"content":"x"}}"#,
            format_args!(
                r#"{{"type":"assistant","message":{{"id":"m","content":"x","usage":{usage}}}}}"#
            )
        );
        let found = read(&text, None).expect("a transcript").recorded;
        let own = &found[0].exchanges[0].reported;
        assert_eq!(own.usage.and_then(|usage| usage.web_searches), Some(5));
        assert_eq!(own.speed.as_deref(), Some("fast"));
        let apart: Vec<_> = own.apart.iter().map(|inner| inner.usage.prompt_tokens).collect();
        assert_eq!(apart, [Some(900)]);
    }
}
