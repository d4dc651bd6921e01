//! What a caller sees of an answer: its text and the IDs of its calls. It distinguishes answers
//! to the same conversation, however the caller writes them down.

use weir_engine::wire::message::Message;
use weir_engine::wire::{Protocol, json};

/// Digest of an answer that is read in parts. White space does not count: callers trim and join texts.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    text: blake3::Hasher,
    calls: blake3::Hasher,
    /// Whether there is any text or call.
    is_any: bool,
    /// Whether some part could not be read.
    is_unread: bool,
}

impl Said {
    /// Adds the answer of a round, in the form of a request. `tool` is the name of weir's tool.
    pub(super) fn add_raw(&mut self, protocol: Protocol, tool: &str, raw: &str) {
        match protocol.read_message(raw) {
            Ok(message) => {
                self.add(tool, &message);
            }
            Err(_) => self.is_unread = true,
        }
    }

    /// Adds a part of an answer; returns whether the caller sees anything of it.
    pub(super) fn add(&mut self, tool: &str, message: &Message<'_>) -> bool {
        let mut is_seen = false;
        for text in message.texts() {
            let text = json::string(text).unwrap_or_default();
            for word in text.split_whitespace() {
                self.text.update(word.as_bytes());
                is_seen = true;
            }
        }
        let own = |name: &str| json::string(name).is_some_and(|name| name == tool);
        for call in message.calls.iter().filter(|call| !own(call.name)) {
            let id = json::string(call.id).unwrap_or_default();
            self.calls.update(&(id.len() as u64).to_le_bytes());
            self.calls.update(id.as_bytes());
            is_seen = true;
        }
        self.is_any |= is_seen;
        is_seen
    }

    /// Returns the key of the answer behind a conversation; `None` if the caller sees nothing of it.
    pub(super) fn key(&self, secret: &[u8; 32], before: &[u8; 32]) -> Option<[u8; 32]> {
        if !self.is_any || self.is_unread {
            return None;
        }
        let mut hasher = blake3::Hasher::new_keyed(secret);
        hasher.update(b"answer");
        hasher.update(before);
        hasher.update(self.text.finalize().as_bytes());
        hasher.update(self.calls.finalize().as_bytes());
        Some(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(protocol: Protocol, parts: &[&str]) -> Option<[u8; 32]> {
        let mut said = Said::default();
        for raw in parts {
            said.add_raw(protocol, "recall", raw);
        }
        said.key(&[1; 32], &[2; 32])
    }

    #[test]
    fn an_answer_is_the_same_in_each_form_that_callers_write() {
        for (protocol, forms) in [
            (
                Protocol::Chat,
                [
                    &[
                        r#"{"role":"assistant","content":"One two.","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
                    ][..],
                    &[
                        r#"{"role":"assistant","content":"One","tool_calls":[{"id":"r","type":"function","function":{"name":"recall","arguments":"{}"}}]}"#,
                        r#"{"tool_calls":[{"function":{"arguments":"{}","name":"f"},"id":"c","type":"function"}],"content":[{"type":"text","text":"\ntwo."}],"role":"assistant"}"#,
                    ],
                ],
            ),
            (
                Protocol::Responses,
                [
                    &[
                        r#"{"type":"reasoning","id":"rs","summary":[]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"One two."}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}"#,
                    ][..],
                    &[
                        r#"{"role":"assistant","content":"One two. "}"#,
                        r#"{"type":"function_call","id":"fc","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call","call_id":"r","name":"recall","arguments":"{}"}"#,
                    ],
                ],
            ),
            (
                Protocol::Messages,
                [
                    &[
                        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"s"},{"type":"text","text":"One two."},{"type":"tool_use","id":"c","name":"f","input":{}}]}"#,
                    ][..],
                    &[
                        r#"{"role":"assistant","content":"One"}"#,
                        r#"{"role":"assistant","content":[{"type":"text","text":"two."},{"type":"tool_use","id":"r","name":"recall","input":{}},{"type":"tool_use","id":"c","name":"f","input":{}}]}"#,
                    ],
                ],
            ),
        ] {
            let [one, other] = forms.map(|parts| key(protocol, parts));
            assert!(one.is_some(), "{protocol:?}");
            assert_eq!(one, other, "{protocol:?}");
            let other_id = forms[0][0].replace("\"c\"", "\"d\"");
            assert_ne!(key(protocol, &[&other_id]), one, "{protocol:?}: another call");
            let other_text = forms[0][0].replace("two.", "three.");
            assert_ne!(key(protocol, &[&other_text]), one, "{protocol:?}: another text");
        }
    }

    #[test]
    fn an_answer_that_says_nothing_has_no_key() {
        for raw in [r#"{"role":"assistant","content":" \n"}"#, "7", ""] {
            assert_eq!(key(Protocol::Chat, &[raw]), None, "{raw}");
        }
    }
}
