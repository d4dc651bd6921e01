//! Rollouts of codex: one JSON object a line, with an item of the Responses API as the payload of each
//! `response_item`. Older ones have the items as lines.
//!
//! The rollout has codex' instructions and no tools. Each part after a compaction by codex is a
//! conversation of its own.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Exchanges, LineMembers, Recorded, part_name, quoted};
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

/// Report about tokens, after each answer.
#[derive(Deserialize)]
struct Info {
    total_token_usage: Option<Reported>,
    last_token_usage: Option<Reported>,
}

#[derive(Deserialize, PartialEq, Eq)]
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
    /// Place of the first item after the last report.
    unreported: usize,
    /// Number of last requests that may be one: results of tools alone stand between their answers.
    open: usize,
    has_user_spoken: bool,
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
        if !is_answer {
            self.has_user_spoken |= !kind.ends_with("_output");
            self.exchanges.ask(at_ms);
        } else if self.exchanges.is_asked {
            self.exchanges.answer(self.items.len(), at_ms).model = model.map(str::to_owned);
            self.open = if std::mem::take(&mut self.has_user_spoken) { 1 } else { self.open + 1 };
        }
        self.items.push(raw.to_owned());
    }

    /// Notes the usage of the last request. Results of its first calls may stand before its last call.
    fn report(&mut self, usage: Usage, at_ms: Option<u64>, model: Option<&str>) {
        let made = &mut self.exchanges.made;
        match std::mem::take(&mut self.open).checked_sub(1) {
            Some(joined) => made.truncate(made.len() - joined),
            None => {
                let is_asked = self.exchanges.is_asked;
                let sent = if is_asked { self.items.len() } else { self.unreported };
                let next = self.exchanges.answer(sent, at_ms);
                next.model = model.map(str::to_owned);
            }
        }
        if let Some(own) = self.exchanges.made.last_mut() {
            own.reported.usage = Some(usage);
        }
        self.unreported = self.items.len();
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
    /// All usage at the last report.
    total: Option<Reported>,
}

impl SessionFacts {
    /// Takes the facts from a line's payload.
    fn note(&mut self, kind: &str, read: &LineMembers<'_>) {
        match kind {
            "session_meta" => {
                self.id = self.id.take().or(read.text("id"));
                let base = read.get("base_instructions").and_then(LineMembers::of);
                let base = base.and_then(|own| own.text("text"));
                let own = self.instructions.take().or(base);
                self.instructions = own.or(read.text("instructions"));
            }
            "turn_context" => self.model = read.text("model").or(self.model.take()),
            _ => return,
        }
        self.project = self.project.take().or(read.text("cwd"));
    }
}

/// Returns the conversations of a rollout, in order.
pub(crate) fn conversations(lines: &[&RawValue]) -> Vec<Recorded> {
    let mut parts = vec![Part::default()];
    let mut session = SessionFacts::default();
    for raw in lines {
        let Some(line) = LineMembers::of(raw.get()) else { continue };
        let (kind, at_ms) = (line.text("type").unwrap_or_default(), line.at_ms());
        let Some(part) = parts.last_mut() else { continue };
        let Some(payload) = line.get("payload") else {
            if is_item(&kind) {
                part.add(raw.get(), at_ms, session.model.as_deref());
            } else {
                session.id = session.id.or(line.text("id"));
                session.instructions = session.instructions.or(line.text("instructions"));
            }
            continue;
        };
        let Some(read) = LineMembers::of(payload) else { continue };
        match (kind.as_str(), read.text("type").as_deref()) {
            ("compacted", _) => {
                let mut next = Part { items: replaced(&read), ..Part::default() };
                next.exchanges.ask(at_ms);
                parts.push(next);
            }
            ("response_item", Some(item)) if is_item(item) => {
                part.add(payload, at_ms, session.model.as_deref());
            }
            ("event_msg", Some("token_count")) => {
                let info = read.get("info").and_then(|raw| serde_json::from_str::<Info>(raw).ok());
                let Some((Some(last), total)) =
                    info.map(|info| (info.last_token_usage, info.total_token_usage))
                else {
                    continue;
                };
                // The same report comes again, for new rates. The first one may be of another session.
                let usage = last.usage();
                let total = total.or(Some(last));
                let is_first = session.total.is_none();
                let is_new = session.total != total;
                session.total = total;
                if is_new && !(is_first && part.open == 0) {
                    part.report(usage, at_ms, session.model.as_deref());
                }
            }
            _ => session.note(&kind, &read),
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
            id: part_name(&id, number),
            protocol: Protocol::Responses,
            body: format!(r#"{{{head}"input":[{}]}}"#, part.items.join(",")),
            is_request: false,
            project: session.project.clone(),
            exchanges: part.exchanges.made,
        })
        .collect()
}

/// Returns the items that stand for the conversation before a compaction by codex.
fn replaced(payload: &LineMembers<'_>) -> Vec<String> {
    let history = payload.get("replacement_history").and_then(json::elements);
    if let Some(history) = history {
        return history.into_iter().map(str::to_owned).collect();
    }
    let text = payload.get("message").filter(|raw| raw.starts_with('"'));
    let item = |text: &str| {
        format!(
            r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{text}}}]}}"#
        )
    };
    text.map(item).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::recorded::{ReadText, TextForm, read};
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
        let ReadText { form, recorded: found, .. } = read(ROLLOUT, None).expect("a rollout");
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
            count(12_880, 30),
            item(6, r#""type":"function_call_output","call_id":"c","output":"x""#),
            item(8, r#""type":"message","role":"assistant","content":[]"#),
            count(13_120, 40),
        ];
        let found = read(&text.join("\n"), None).expect("a rollout").recorded;
        assert_eq!((found.len(), found[0].project.as_deref()), (1, Some("/w")));
        let own = found[0].exchanges.iter().map(|own| {
            let usage = own.reported.usage.expect("each has one");
            assert_eq!((own.model.as_deref(), usage.cached_tokens), (Some("gpt-5.5"), Some(9600)));
            (own.at_ms, usage.prompt_tokens, usage.completion_tokens)
        });
        let expected = [(Some(1000), Some(12_880), Some(30)), (Some(6000), Some(13_120), Some(40))];
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }

    /// Items that were sent, and the prompt of each request of all parts. `said` are items by their kind, or
    /// reports as input and all input so far.
    fn requests(said: &[(&str, u32, u32)]) -> Vec<Vec<(usize, Option<u64>)>> {
        let line = |(kind, input, total): &(&str, u32, u32)| {
            let item = |rest: &str| format!(r#"{{"type":"response_item","payload":{{{rest}}}}}"#);
            match *kind {
                "report" => format!(
                    r#"{{"type":"event_msg","payload":{{"type":"token_count","info":{{"total_token_usage":{{"input_tokens":{total}}},"last_token_usage":{{"input_tokens":{input}}}}}}}}}"#
                ),
                "compacted" => r#"{"type":"compacted","payload":{"message":"","replacement_history":[{"type":"message","role":"user","content":[]},{"type":"compaction","encrypted_content":"abcd"}]}}"#.to_owned(),
                "user" | "developer" | "assistant" => {
                    item(&format!(r#""type":"message","role":"{kind}","content":[]"#))
                }
                "call" => item(r#""type":"function_call","call_id":"c","name":"f","arguments":"{}""#),
                _ => item(r#""type":"function_call_output","call_id":"c","output":"x""#),
            }
        };
        let text: Vec<String> = said.iter().map(line).collect();
        let found = read(&text.join("\n"), None).expect("a rollout").recorded;
        let parts = found
            .iter()
            .map(|part| part.exchanges.iter().map(|own| (own.sent, own.prompt_tokens())).collect());
        parts.collect()
    }

    #[test]
    fn a_report_is_a_request() {
        let report = |input, total| ("report", input, total);
        let item = |kind: &'static str| (kind, 0, 0);
        let [user, developer, answer, call, output] =
            ["user", "developer", "assistant", "call", "output"].map(item);
        for (said, expected) in [
            // A reminder stands before the answer.
            (
                vec![user, developer, call, report(5, 5), output, developer, answer, report(7, 12)],
                vec![vec![(2, Some(5)), (5, Some(7))]],
            ),
            // An answer that went on, and the same report again.
            (
                vec![user, answer, report(5, 5), report(5, 5), answer, report(6, 11)],
                vec![vec![(1, Some(5)), (2, Some(6))]],
            ),
            // The first call had its result before the second was written.
            (
                vec![user, call, output, call, report(5, 5), output, answer, report(7, 12)],
                vec![vec![(1, Some(5)), (5, Some(7))]],
            ),
            // One that was broken off has no report.
            (
                vec![user, call, output, user, answer, report(7, 7)],
                vec![vec![(1, None), (4, Some(7))]],
            ),
            // A compaction is a request without an answer. What stands for the conversation is none.
            (
                vec![
                    user,
                    call,
                    report(5, 5),
                    output,
                    report(6, 11),
                    item("compacted"),
                    report(2, 11),
                    answer,
                    report(3, 14),
                ],
                vec![vec![(1, Some(5)), (3, Some(6))], vec![(2, Some(3))]],
            ),
            // A rollout without reports, and one that begins with the report of another session.
            (vec![user, call, output, answer], vec![vec![(1, None), (3, None)]]),
            (vec![report(9, 99), user, answer, report(5, 104)], vec![vec![(1, Some(5))]]),
        ] {
            assert_eq!(requests(&said), expected, "{said:?}");
        }
    }
}
