//! Rollouts of codex: one JSON object a line, with an item of the Responses API as the payload of each
//! `response_item`. Older ones have the items as lines.
//!
//! The rollout has codex' instructions and no tools. Each part after a compaction by codex is a
//! conversation of its own.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::quoted;
use crate::recorded::Recorded;
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
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    replacement_history: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Instructions {
    text: Option<String>,
}

/// Whether a line of this type is an item.
pub(crate) fn is_item(kind: &str) -> bool {
    ITEMS.contains(&kind)
}

/// Returns the conversations of a rollout, in order.
pub(crate) fn conversations(lines: &[&RawValue]) -> Vec<Recorded> {
    let mut parts: Vec<Vec<String>> = vec![Vec::new()];
    let (mut id, mut model, mut instructions) = (None, None, None);
    for raw in lines {
        let Ok(line) = serde_json::from_str::<Line<'_>>(raw.get()) else { continue };
        let kind = line.kind.as_deref().unwrap_or_default();
        let Some(payload) = line.payload else {
            match is_item(kind) {
                true => parts.last_mut().into_iter().for_each(|own| own.push(raw.get().to_owned())),
                false => {
                    id = id.or(line.id);
                    instructions = instructions.or(line.instructions);
                }
            }
            continue;
        };
        let Ok(read) = serde_json::from_str::<Payload<'_>>(payload.get()) else { continue };
        match kind {
            "session_meta" => {
                id = id.or(read.id);
                let base = read.base_instructions.and_then(|own| own.text);
                instructions = instructions.or(base).or(read.instructions);
            }
            "turn_context" => model = read.model.or(model),
            "compacted" => parts.push(replaced(&read)),
            "response_item" if read.kind.as_deref().is_some_and(is_item) => {
                parts.last_mut().into_iter().for_each(|own| own.push(payload.get().to_owned()));
            }
            _ => {}
        }
    }
    let id = id.unwrap_or_else(|| "rollout".to_owned());
    let head = [("model", model), ("instructions", instructions)];
    let head: String = head
        .into_iter()
        .filter_map(|(name, value)| Some(format!(r#""{name}":{},"#, quoted(&value?))))
        .collect();
    let parts = parts.into_iter().enumerate().filter(|(_, items)| !items.is_empty());
    parts
        .map(|(number, items)| Recorded {
            id: match number {
                0 => id.clone(),
                _ => format!("{id}, after compaction {number}"),
            },
            protocol: Protocol::Responses,
            body: format!(r#"{{{head}"input":[{}]}}"#, items.join(",")),
            is_request: false,
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
    use crate::recorded::{Form, read};
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
        assert_eq!(form, Form::Codex);
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
}
