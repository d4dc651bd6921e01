//! Properties of a message that the engine uses: role, tokens, allowed changes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::ending::{Ending, EndingSoFar};
use super::form::Form;
use super::links::Links;
use super::reading::{Reader, Reading};
use crate::tokens::media::{self, ImageRule};
use crate::tokens::{self, Encoding};
use crate::wire::message::{Call, Part};
use crate::wire::{Content, Message, Protocol, Role, json};

/// Rules for counting the tokens of a model's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Measure {
    pub encoding: Encoding,
    pub images: ImageRule,
}

/// Facts about a message. Small, and free of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    pub role: Role,
    /// Tokens of the whole message, including framing.
    pub tokens: u64,
    /// Tokens of its texts alone, which clipping can reduce.
    pub text_tokens: u64,
    /// Tokens of the model's signed thinking, which can be left out.
    pub thinking_tokens: u64,
    /// Number of calls in the message.
    pub calls: u32,
    /// Whether its text has more than 200 characters.
    pub is_long: bool,
    /// Whether the caller marked it to stay.
    pub is_pinned: bool,
    /// Whether nothing before it is in the prompt.
    pub replaces_earlier: bool,
    /// Whether it is the note of an earlier compaction, which the caller has sent back.
    pub is_note: bool,
    /// Whether it is a text that belongs to the result before it.
    pub is_aside: bool,
    /// Whether it contains weir's own member, which is never forwarded.
    pub is_marked: bool,
    /// Whether a note can be added to its text.
    pub takes_note: bool,
    /// Ending of its text.
    pub ending: Ending,
    /// Key of a system message's text but for numbers and ids, which the copies of a repeated one share. 0
    /// for other messages, and for a compaction, which stands for all before it.
    pub form: u64,
    /// Tokens of a system message if all its numbers and ids are long: the same for all texts of its form, and
    /// at least `tokens` in nearly all cases.
    pub form_tokens: u64,
    /// Whether it declares tools, as codex does for newer models.
    pub declares_tools: bool,
    /// Whether it may load tools whose definitions are deferred.
    pub may_load_tools: bool,
    /// Whether a document, sound or video of it stands elsewhere, so that its tokens are unknown.
    pub is_elsewhere: bool,
    /// Blocks that it names.
    pub links: Links,
}

impl Fact {
    /// Takes out its text, which is no part of the prompt, so that nothing cuts it.
    pub(crate) fn leave_text_unread(&mut self) {
        self.tokens -= self.text_tokens;
        self.text_tokens = 0;
        self.is_long = false;
    }
}

/// Above this many characters a message counts as long.
const LONG_CHARACTERS: usize = 200;

impl Measure {
    /// Derives the facts of `message`.
    pub fn fact(&self, message: &Message<'_>) -> Fact {
        self.fact_with(message, |_, _| {})
    }

    /// Derives the facts and the reading of `message`; both share one decoding.
    pub fn read(&self, message: &Message<'_>) -> (Fact, Reading) {
        let mut reader = Reader::new(message.role);
        let fact = self.fact_with(message, |text, call| reader.push(text, call));
        (fact, reader.done(message))
    }

    /// Counts `message`, and passes each decoded text, and the arguments of each call, to `said`.
    fn fact_with<'m>(
        &self,
        message: &'m Message<'_>,
        mut said: impl FnMut(Cow<'m, str>, Option<&Call<'_>>),
    ) -> Fact {
        let mut text_tokens = 0;
        let mut other_tokens = 0;
        let mut characters = 0;
        let mut ending = EndingSoFar::new(message.role);
        let mut text = |raw: &'m str| {
            let text = json::string(raw);
            text_tokens += self.text(text.as_deref().unwrap_or(raw), &mut characters);
            let text = text.unwrap_or_default();
            ending.push(&text, text_tokens);
            said(text, None);
        };
        let takes_note = match &message.content {
            Content::None => false,
            Content::Text(raw) => {
                text(raw);
                true
            }
            Content::Parts(parts) => {
                for part in parts {
                    match part {
                        Part::Text(raw) => text(raw),
                        other => other_tokens += self.part(other),
                    }
                }
                !parts.is_empty()
            }
        };
        let thinking_tokens = self.others(message, &mut other_tokens);
        // A message of thinking alone would be empty without it.
        let is_thinking_alone = text_tokens == 0 && !says_more(message);
        for call in &message.calls {
            other_tokens += tokens::CALL_FRAMING + self.raw_text(call.name);
            let arguments = call.text();
            other_tokens += self.text(&arguments, &mut characters);
            said(arguments, Some(call));
        }
        if let Some(name) = &message.name {
            other_tokens += tokens::NAME_FRAMING + self.encoding.count(name);
        }
        other_tokens += u64::from(message.opaque_members) * tokens::UNCOUNTABLE;
        let tokens = tokens::MESSAGE_FRAMING + text_tokens + other_tokens;
        let form = Form::of(message, self.encoding);
        Fact {
            role: message.role,
            tokens,
            text_tokens,
            thinking_tokens: if is_thinking_alone { 0 } else { thinking_tokens },
            calls: message.calls.len() as u32,
            is_long: characters > LONG_CHARACTERS,
            is_pinned: message.is_pinned(),
            replaces_earlier: message.replaces_earlier(),
            is_note: message.is_note(),
            is_aside: message.is_aside,
            is_marked: message.weir.is_some(),
            takes_note,
            form: form.key,
            form_tokens: tokens.max(tokens - text_tokens + form.text_tokens),
            declares_tools: form.declares_tools,
            may_load_tools: message.may_load_tools(),
            is_elsewhere: message.is_elsewhere(),
            ending: if message.is_aside { Ending::Other } else { ending.done(text_tokens) },
            links: Links::of(message),
        }
    }

    /// Counts the parts outside the content into `other_tokens`. Returns the tokens of the signed
    /// thinking among them.
    fn others(&self, message: &Message<'_>, other_tokens: &mut u64) -> u64 {
        let mut thinking_tokens = 0;
        for (place, raw) in message.side_texts.iter().enumerate() {
            let tokens = match json::string(raw) {
                Some(text) => self.encoding.count(&text),
                None => tokens::count_unknown(self.encoding, self.images, raw),
            };
            *other_tokens += tokens;
            thinking_tokens += if place < message.thinking_texts { tokens } else { 0 };
        }
        for part in &message.others {
            let tokens = self.part(part);
            *other_tokens += tokens;
            // Responses have no signatures over what stands before.
            if is_thinking(part) && message.protocol == Protocol::Messages {
                thinking_tokens += tokens;
            }
        }
        thinking_tokens
    }

    /// Counts the tokens of a text, and its characters too.
    fn text(&self, text: &str, characters: &mut usize) -> u64 {
        // Counting beyond the threshold would only cost time.
        if *characters <= LONG_CHARACTERS {
            *characters += text.chars().take(LONG_CHARACTERS + 1).count();
        }
        self.encoding.count(text)
    }

    /// Counts the tokens of the string in `raw`, or of its JSON text if it is no string.
    fn raw_text(&self, raw: &str) -> u64 {
        self.encoding.count(json::string(raw).as_deref().unwrap_or(raw))
    }

    /// Returns the tokens of a message's parts whose size only their provider knows: images by URL, and documents
    /// of pages.
    pub(crate) fn unsure_tokens(&self, message: &Message<'_>) -> u64 {
        let is_unsure = |part: &&Part<'_>| match part {
            Part::Image { url, .. } => !url.starts_with("data:image"),
            Part::Other(raw) => media::holds_pages(raw),
            _ => false,
        };
        let Content::Parts(parts) = &message.content else { return 0 };
        parts.iter().chain(&message.others).filter(is_unsure).map(|part| self.part(part)).sum()
    }

    fn part(&self, part: &Part<'_>) -> u64 {
        match part {
            Part::Text(raw) | Part::Thinking(raw) => self.raw_text(raw),
            Part::Sealed(raw) => tokens::sealed_tokens(raw),
            Part::Ambiguous(raw) => self.encoding.count(raw),
            Part::Image { url, detail } => self.images.count(url, detail.as_deref()),
            Part::Audio { data, format } => media::count_audio(data, format),
            Part::Tools(raw) => tokens::tools::count_list(self.encoding, raw),
            Part::Other(raw) => tokens::count_unknown(self.encoding, self.images, raw),
        }
    }
}

/// Whether a message says more than texts and thinking.
fn says_more(message: &Message<'_>) -> bool {
    message.all_calls().next().is_some() || message.others.iter().any(|part| !is_thinking(part))
}

/// Whether it is thinking, or sealed with it.
fn is_thinking(part: &Part<'_>) -> bool {
    matches!(part, Part::Thinking(_) | Part::Sealed(_))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_read_with_the_facts_is_what_is_read_alone() {
        for raw in [
            r#"{"role":"user","content":null}"#,
            r#"{"role":"user","content":"Is it\n \"gate_1\"? "}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"see a/b.c"},{"type":"text","text":""},"```x"]}"#,
            r#"{"role":"assistant","content":"I look.","tool_calls":[
                {"id":"a","function":{"name":"read","arguments":"{\"path\":\"a/b.c\",\"n\":1}"}},
                {"id":"b","function":{"name":"run","arguments":{"no":"string"}}},
                {"id":"c","function":{"name":"run","arguments":"\"text\""}}]}"#,
            r#"{"role":"tool","tool_call_id":"a","content":"{\"id\": \"XEHM4B\"}"}"#,
        ] {
            let measure =
                Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
            let message = Protocol::Chat.read_message(raw).expect("readable");
            let (fact, reading) = measure.read(&message);
            assert_eq!(fact, measure.fact(&message));
            assert_eq!(reading, Reading::of(&message), "{raw}");
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
    fn signed_thinking_in_chat_completions_can_be_left_out() {
        for (members, is_signed) in [
            (r#""reasoning_content":"hello world""#, false),
            (
                r#""reasoning":"hello","reasoning_details":[{"type":"reasoning.text","text":"hello"}]"#,
                false,
            ),
            (
                r#""reasoning":"hello","reasoning_details":[{"type":"reasoning.text","text":"hello","signature":"c2ln"}]"#,
                true,
            ),
            (r#""reasoning_details":[{"type":"reasoning.encrypted","data":"c2ln"}]"#, true),
            (
                r#""reasoning_content":"hello","thinking_blocks":[{"type":"thinking","thinking":"hello","signature":"c2ln"}]"#,
                true,
            ),
        ] {
            let whole = fact(&format!(r#"{{"role":"assistant","content":"I look.",{members}}}"#));
            let bare = fact(r#"{"role":"assistant","content":"I look."}"#);
            assert!(whole.tokens > bare.tokens, "{members}");
            let left_out = if is_signed { whole.tokens - bare.tokens } else { 0 };
            assert_eq!(whole.thinking_tokens, left_out, "{members}");
            let alone = fact(&format!(r#"{{"role":"assistant",{members}}}"#));
            assert_eq!(alone.thinking_tokens, 0, "{members}");
        }
    }

    #[test]
    fn thinking_can_be_left_out_where_anything_else_is_said() {
        let thinking = r#"{"type":"thinking","thinking":"hello","signature":"c2ln"}"#;
        for (block, is_left_out) in [
            (r#"{"type":"text","text":"I look."}"#, true),
            (r#"{"type":"tool_use","id":"a","name":"read","input":{}}"#, true),
            (
                r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"a"}}"#,
                true,
            ),
            (
                r#"{"type":"mcp_tool_use","id":"m","name":"find","server_name":"s","input":{}}"#,
                true,
            ),
            (
                r#"{"type":"advisor_tool_result","tool_use_id":"s","content":{"type":"advisor_result","text":"a"}}"#,
                true,
            ),
            (r#"{"type":"container_upload","file_id":"f"}"#, true),
            (r#"{"type":"redacted_thinking","data":"c2ln"}"#, false),
        ] {
            let raw = format!(r#"{{"role":"assistant","content":[{thinking},{block}]}}"#);
            let message = Protocol::Messages.read_message(&raw).expect("readable");
            let measure =
                Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
            assert_eq!(measure.fact(&message).thinking_tokens > 0, is_left_out, "{block}");
        }
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
