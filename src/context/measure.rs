//! A message as the engine sees it: who speaks, how many tokens, what may be done with it.

use super::ending::Ending;
use crate::tokens::media::{self, ImageRule};
use crate::tokens::{self, Encoding};
use crate::wire::message::Part;
use crate::wire::{Content, Message, Role, json};

/// How the tokens of a model's messages are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Measure {
    pub encoding: Encoding,
    pub images: ImageRule,
}

/// What the engine knows of a message. Small, and free of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    pub role: Role,
    /// Tokens of the whole message, framing included.
    pub tokens: u64,
    /// Tokens of its texts alone: what clipping can reach.
    pub text_tokens: u64,
    /// Calls the message makes.
    pub calls: u32,
    /// Whether it says more than 200 characters.
    pub is_long: bool,
    /// Whether the caller marked it to stay.
    pub is_pinned: bool,
    /// Whether it carries weir's own member, which is never forwarded.
    pub is_marked: bool,
    /// Whether a note can be put beside what it says.
    pub takes_note: bool,
    /// How its text ends.
    pub ending: Ending,
}

/// Above this many characters a message counts as long.
const LONG_CHARACTERS: usize = 200;

impl Measure {
    /// Reads off what the engine needs of `message`.
    pub fn fact(&self, message: &Message<'_>) -> Fact {
        let mut text_tokens = 0;
        let mut other_tokens = 0;
        let mut characters = 0;
        let mut takes_note = false;
        match &message.content {
            Content::None => {}
            Content::Text(raw) => {
                takes_note = true;
                text_tokens += self.text(raw, &mut characters);
            }
            Content::Parts(parts) => {
                takes_note = !parts.is_empty();
                for part in parts {
                    match part {
                        Part::Text(raw) => text_tokens += self.text(raw, &mut characters),
                        other => other_tokens += self.part(other),
                    }
                }
            }
        }
        for raw in &message.side_texts {
            other_tokens += match json::string(raw) {
                Some(text) => self.encoding.count(&text),
                None => tokens::count_unknown(self.encoding, raw),
            };
        }
        for call in &message.calls {
            other_tokens += tokens::CALL_FRAMING + self.text(call.name, &mut 0);
            other_tokens += self.text(call.arguments, &mut characters);
        }
        if let Some(name) = &message.name {
            other_tokens += tokens::NAME_FRAMING + self.encoding.count(name);
        }
        other_tokens += u64::from(message.opaque_members) * tokens::UNCOUNTABLE;
        Fact {
            role: message.role,
            tokens: tokens::MESSAGE_FRAMING + text_tokens + other_tokens,
            text_tokens,
            calls: message.calls.len() as u32,
            is_long: characters > LONG_CHARACTERS,
            is_pinned: message.is_pinned(),
            is_marked: message.weir.is_some(),
            takes_note,
            ending: ending(message, text_tokens),
        }
    }

    /// Tokens of the string `raw` holds; of its JSON text where it holds none.
    fn text(&self, raw: &str, characters: &mut usize) -> u64 {
        let text = json::string(raw);
        let text = text.as_deref().unwrap_or(raw);
        // Counting further than the mark would only cost time.
        if *characters <= LONG_CHARACTERS {
            *characters += text.chars().take(LONG_CHARACTERS + 1).count();
        }
        self.encoding.count(text)
    }

    fn part(&self, part: &Part<'_>) -> u64 {
        match part {
            Part::Text(raw) => self.text(raw, &mut 0),
            Part::Ambiguous(raw) => self.encoding.count(raw),
            Part::Image { url, detail } => self.images.count(url, detail.as_deref()),
            Part::Audio { data, format } => media::count_audio(data, format),
            Part::Other(raw) => tokens::count_unknown(self.encoding, raw),
        }
    }
}

fn ending(message: &Message<'_>, text_tokens: u64) -> Ending {
    let parts = match &message.content {
        Content::None => return Ending::Other,
        Content::Text(raw) => {
            return Ending::of(message.role, text_tokens, json::string(raw).into_iter());
        }
        Content::Parts(parts) => parts,
    };
    let texts = parts.iter().filter_map(|part| match *part {
        Part::Text(raw) => Some(raw),
        _ => None,
    });
    Ending::of(message.role, text_tokens, texts.filter_map(json::string))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    fn fact(raw: &str) -> Fact {
        let measure =
            Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
        measure.fact(&Protocol::Chat.read_message(raw).expect("readable"))
    }

    #[test]
    fn counts_every_part_the_model_reads() {
        for (raw, tokens) in [
            (r#"{"role":"user"}"#, 4),
            (r#"{"role":"user","content":""}"#, 4),
            (r#"{"role":"user","content":"hello world"}"#, 6),
            (r#"{"role":"user","content":"hello\u0020world"}"#, 6),
            (r#"{"role":"user","content":"hello world","name":"bob"}"#, 8),
            (r#"{"role":"user","content":[{"type":"text","text":"hello world"}]}"#, 6),
            (
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"u","detail":"low"}}]}"#,
                89,
            ),
            (r#"{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}"#, 154),
            (
                r#"{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"hello","arguments":"world"}}]}"#,
                14,
            ),
            (r#"{"role":"assistant","function_call":{"name":"hello","arguments":"world"}}"#, 14),
            (r#"{"role":"assistant","content":null,"reasoning_content":"hello world"}"#, 6),
        ] {
            assert_eq!(fact(raw).tokens, tokens, "{raw}");
        }
    }

    #[test]
    fn a_member_given_twice_hides_nothing() {
        let long = "word ".repeat(500);
        let raw = format!(
            r#"{{"role":"user","content":[{{"type":"text","text":"a","text":"{long}"}}]}}"#
        );
        assert!(fact(&raw).tokens >= 150);
        let raw = format!(
            r#"{{"role":"assistant","tool_calls":[{{"function":{{"name":"a","arguments":"","arguments":"{long}"}}}}]}}"#
        );
        assert!(fact(&raw).tokens > 500);
    }

    #[test]
    fn marks_are_read() {
        let marked = fact(r#"{"role":"user","content":"x","weir":{"pin":true}}"#);
        assert!(marked.is_pinned && marked.is_marked && marked.takes_note);
        let marked = fact(r#"{"role":"user","content":null,"weir":{"pin":false}}"#);
        assert!(!marked.is_pinned && marked.is_marked && !marked.takes_note);
        assert!(fact(&format!(r#"{{"role":"user","content":"{}"}}"#, "x".repeat(201))).is_long);
        assert!(!fact(&format!(r#"{{"role":"user","content":"{}"}}"#, "x".repeat(200))).is_long);
    }
}
