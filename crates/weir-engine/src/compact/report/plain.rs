//! Plain-text form of a conversation, as a written dialogue. Reads messages; changes nothing.

use super::shown::{first_words, safe_lines};
use crate::wire::{Content, Message, Protocol, json, message::Part};

/// Maximum length of a name.
const NAME_CHARACTERS: usize = 64;

/// Formats the messages as "User: …", "Assistant: …", with an empty line between.
pub fn dialogue(protocol: Protocol, messages: &[&str]) -> String {
    let read = messages.iter().filter_map(|raw| protocol.read_message(raw).ok());
    read.map(|message| utterance(&message)).collect::<Vec<_>>().join("\n\n")
}

fn utterance(message: &Message<'_>) -> String {
    let (first, rest) = message.role.word().split_at(1);
    let speaker = format!("{}{rest}", first.to_uppercase());
    let mut lines = Vec::new();
    let said = said(message);
    if !said.is_empty() || message.calls.is_empty() {
        lines.push(format!("{speaker}: {}", safe_lines(&said)));
    }
    for call in message.all_calls() {
        let name = json::string(call.name).unwrap_or_default();
        let arguments = call.text();
        lines.push(format!(
            "{speaker} calls {}: {}",
            first_words(&name, NAME_CHARACTERS),
            safe_lines(&arguments)
        ));
    }
    lines.join("\n")
}

/// Returns the texts of a message, and in brackets the parts that are no text.
pub fn said(message: &Message<'_>) -> String {
    let text = |raw: &str| json::string(raw).unwrap_or_default().into_owned();
    let mut said = match &message.content {
        Content::None => String::new(),
        Content::Text(raw) => text(raw),
        Content::Parts(parts) => {
            let parts = parts.iter().map(|part| match part {
                Part::Text(raw) => text(raw),
                Part::Image { .. } => "[image]".to_owned(),
                Part::Audio { .. } => "[audio]".to_owned(),
                _ => "[part]".to_owned(),
            });
            parts.collect::<Vec<_>>().join("\n")
        }
    };
    for output in message.inner_outputs.iter().map(|raw| text(raw)) {
        said.push_str(if said.is_empty() { "" } else { "\n" });
        said.push_str(&output);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_message_is_said() {
        let messages = [
            r#"{"role":"system","content":"Be brief."}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a\nb"},{"type":"image_url","image_url":{"url":"u"}}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"read","arguments":"{\"path\":\"a\"}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"1","content":"\u001b[2Jx"}"#,
            r#"{"role":"assistant","content":"done"}"#,
            r#"{"role":"narrator","content":null}"#,
        ];
        let expected = "System: Be brief.\n\nUser: a\nb\n[image]\n\nAssistant calls read: \
                        {\"path\":\"a\"}\n\nTool: [2Jx\n\nAssistant: done\n\nOther: ";
        assert_eq!(dialogue(Protocol::Chat, &messages), expected);
    }
}
