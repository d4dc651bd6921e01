//! Rollouts of codex: one JSON object a line, with an item of the Responses API as the payload of each
//! `response_item`. Older ones have the items as lines.
//!
//! The rollout has codex' instructions and no tools. Each part after a compaction by codex is a
//! conversation of its own.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Exchanges, Recorded, quoted, time_ms};
use weir_engine::wire::usage::Usage;
use weir_engine::wire::{Protocol, json};

/// Types of items that codex sends; a rollout also has events and snapshots.
const ITEMS: [&str; 9] = [
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "web_search_call",
];

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    id: Option<String>,
    instructions: Option<String>,
}

/// Members of payloads; each kind has some of them.
#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    id: Option<String>,
    instructions: Option<String>,
    base_instructions: Option<Instructions>,
    model: Option<String>,
    cwd: Option<String>,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    replacement_history: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Instructions {
    text: Option<String>,
}

/// Report about tokens, after each answer.
#[derive(Deserialize)]
struct Info {
    last_token_usage: Option<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    input_tokens: u64,
    cached_input_tokens: Option<u64>,
    cache_write_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl Reported {
    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: Some(self.input_tokens),
            completion_tokens: self.output_tokens,
            cached_tokens: self.cached_input_tokens.or(Some(0)),
            cache_write_tokens: self.cache_write_input_tokens,
            ..Usage::default()
        }
    }
}

/// Conversation up to a compaction by codex, or its end.
#[derive(Default)]
struct Part {
    items: Vec<String>,
    exchanges: Exchanges,
}

impl Part {
    /// Adds an item. The first of the assistant's after others begins the answer to a request.
    fn add(&mut self, raw: &str, at_ms: Option<u64>, model: Option<&str>) {
        let kind = json::member(raw, "type").and_then(json::string).unwrap_or_default();
        let role = json::member(raw, "role").and_then(json::string).unwrap_or_default();
        let is_answer = match &*kind {
            "message" | "" => role == "assistant",
            kind => !kind.ends_with("_output"),
        };
        match is_answer {
            true => self.exchanges.answer(self.exchanges.is_asked, at_ms, model, None),
            false => self.exchanges.ask(at_ms),
        }
        self.items.push(raw.to_owned());
    }

    /// Notes the usage of the last request. The same report may come again, for new rates.
    fn report(&mut self, usage: Usage) {
        if let Some(exchange) = self.exchanges.made.last_mut() {
            exchange.usage = exchange.usage.or(Some(usage));
        }
    }
}

/// Whether a line of this type is an item.
pub(crate) fn is_item(kind: &str) -> bool {
    ITEMS.contains(&kind)
}

/// Facts about a whole session.
#[derive(Default)]
struct SessionFacts {
    id: Option<String>,
    model: Option<String>,
    instructions: Option<String>,
    project: Option<String>,
}

impl SessionFacts {
    /// Takes the facts from a line's payload.
    fn note(&mut self, kind: &str, read: Payload<'_>) {
        match kind {
            "session_meta" => {
                self.id = self.id.take().or(read.id);
                let base = read.base_instructions.and_then(|own| own.text);
                self.instructions = self.instructions.take().or(base).or(read.instructions);
            }
            "turn_context" => self.model = read.model.or(self.model.take()),
            _ => return,
        }
        self.project = self.project.take().or(read.cwd);
    }
}

/// Returns the conversations of a rollout, in order.
pub(crate) fn conversations(lines: &[&RawValue]) -> Vec<Recorded> {
    let mut parts = vec![Part::default()];
    let mut session = SessionFacts::default();
    for raw in lines {
        let Ok(line) = serde_json::from_str::<Line<'_>>(raw.get()) else { continue };
        let kind = line.kind.as_deref().unwrap_or_default();
        let at_ms = line.timestamp.and_then(|raw| time_ms(raw.get()));
        let Some(part) = parts.last_mut() else { continue };
        let Some(payload) = line.payload else {
            if is_item(kind) {
                part.add(raw.get(), at_ms, session.model.as_deref());
            } else {
                session.id = session.id.or(line.id);
                session.instructions = session.instructions.or(line.instructions);
            }
            continue;
        };
        let Ok(read) = serde_json::from_str::<Payload<'_>>(payload.get()) else { continue };
        match (kind, read.kind.as_deref()) {
            ("compacted", _) => {
                let mut next = Part::default();
                replaced(&read).iter().for_each(|item| next.add(item, at_ms, None));
                parts.push(next);
            }
            ("response_item", Some(item)) if is_item(item) => {
                part.add(payload.get(), at_ms, session.model.as_deref());
            }
            ("event_msg", Some("token_count")) => {
                let info = read.info.and_then(|raw| serde_json::from_str::<Info>(raw.get()).ok());
                let last = info.and_then(|info| info.last_token_usage);
                last.into_iter().for_each(|own| part.report(own.usage()));
            }
            _ => session.note(kind, read),
        }
    }
    recorded(session, parts)
}

fn recorded(session: SessionFacts, parts: Vec<Part>) -> Vec<Recorded> {
    let id = session.id.unwrap_or_else(|| "rollout".to_owned());
    let head = [("model", session.model), ("instructions", session.instructions)];
    let head: String = head
        .into_iter()
        .filter_map(|(name, value)| Some(format!(r#""{name}":{},"#, quoted(&value?))))
        .collect();
    let parts = parts.into_iter().enumerate().filter(|(_, part)| !part.items.is_empty());
    parts
        .map(|(number, part)| Recorded {
            id: match number {
                0 => id.clone(),
                _ => format!("{id}, after compaction {number}"),
            },
            protocol: Protocol::Responses,
            body: format!(r#"{{{head}"input":[{}]}}"#, part.items.join(",")),
            is_request: false,
            project: session.project.clone(),
            exchanges: part.exchanges.made,
        })
        .collect()
}

/// Returns the items that stand for the conversation before a compaction by codex.
fn replaced(payload: &Payload<'_>) -> Vec<String> {
    let history = payload.replacement_history.and_then(|raw| json::elements(raw.get()));
    if let Some(history) = history {
        return history.into_iter().map(str::to_owned).collect();
    }
    let text = payload.message.map(RawValue::get).filter(|raw| raw.starts_with('"'));
    let item = |text: &str| {
        format!(
            r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{text}}}]}}"#
        )
    };
    text.map(item).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::recorded::{TextForm, read};
    use weir_engine::wire::{Protocol, Role};

    const ROLLOUT: &str = r#"{"timestamp":"t","type":"session_meta","payload":{"id":"r1","cwd":"/x","base_instructions":{"text":"Be \"brief\"."}}}
{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"Fix it."}]}}
{"timestamp":"t","type":"event_msg","payload":{"type":"user_message","message":"Fix it."}}
{"timestamp":"t","type":"turn_context","payload":{"cwd":"/x","model":"gpt-5-codex"}}
{"timestamp":"t","type":"response_item","payload":{"type":"reasoning","summary":[],"content":null,"encrypted_content":"abcd"}}
{"timestamp":"t","type":"response_item","payload":{"type":"function_call","name":"shell","arguments":"{}","call_id":"c1"}}
{"timestamp":"t","type":"response_item","payload":{"type":"ghost_snapshot","ghost_commit":{}}}
{"timestamp":"t","type":"response_item","payload":{"type":"function_call_output","call_id":"c1","output":"ok"}}
{"timestamp":"t","type":"compacted","payload":{"message":"A summary."}}
{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"Go on."}]}}
"#;

    #[test]
    fn a_rollout_is_read_with_its_instructions_and_parts() {
        let (form, found) = read(ROLLOUT, None).expect("a rollout");
        assert_eq!(form, TextForm::Codex);
        let ids: Vec<&str> = found.iter().map(|own| own.id.as_str()).collect();
        assert_eq!(ids, ["r1", "r1, after compaction 1"]);
        let request = Protocol::Responses.read(found[0].body.as_bytes(), 100).expect("readable");
        assert_eq!(request.model.as_deref(), Some("gpt-5-codex"));
        let roles = |body: &str| -> Vec<Role> {
            let request = Protocol::Responses.read(body.as_bytes(), 100).expect("readable");
            let read = request
                .messages
                .iter()
                .map(|raw| Protocol::Responses.read_message(raw).expect("readable").role);
            read.collect()
        };
        assert_eq!(roles(&found[0].body), [Role::System, Role::User, Role::Assistant, Role::Tool]);
        assert_eq!(roles(&found[1].body), [Role::System, Role::User, Role::User]);
    }

    #[test]
    fn each_answer_has_its_request_with_time_and_usage() {
        let count = |input: u32, output: u8| {
            format!(
                r#"{{"type":"event_msg","payload":{{"type":"token_count","info":{{"last_token_usage":{{"input_tokens":{input},"cached_input_tokens":9600,"output_tokens":{output},"reasoning_output_tokens":1}}}}}}}}"#
            )
        };
        let item = |at: u8, rest: &str| {
            format!(
                r#"{{"timestamp":"1970-01-01T00:00:{at:02}Z","type":"response_item","payload":{{{rest}}}}}"#
            )
        };
        let text = [
            r#"{"type":"session_meta","payload":{"id":"r","cwd":"/w"}}"#.to_owned(),
            r#"{"type":"turn_context","payload":{"model":"gpt-5.5"}}"#.to_owned(),
            r#"{"type":"event_msg","payload":{"type":"token_count","info":null}}"#.to_owned(),
            item(1, r#""type":"message","role":"user","content":[]"#),
            item(3, r#""type":"reasoning","summary":[]"#),
            item(4, r#""type":"function_call","call_id":"c","name":"f","arguments":"{}""#),
            count(12_880, 30),
            count(99_999, 99),
            item(6, r#""type":"function_call_output","call_id":"c","output":"x""#),
            item(8, r#""type":"message","role":"assistant","content":[]"#),
            count(13_120, 40),
        ];
        let (_, found) = read(&text.join("\n"), None).expect("a rollout");
        assert_eq!((found.len(), found[0].project.as_deref()), (1, Some("/w")));
        let own = found[0].exchanges.iter().map(|own| {
            let usage = own.usage.expect("each has one");
            assert_eq!((own.model.as_deref(), usage.cached_tokens), (Some("gpt-5.5"), Some(9600)));
            (own.at_ms, usage.prompt_tokens, usage.completion_tokens)
        });
        let expected = [(Some(1000), Some(12_880), Some(30)), (Some(6000), Some(13_120), Some(40))];
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }
}
