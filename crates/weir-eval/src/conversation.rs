//! Recorded conversation, parsed from one line of JSON and counted once. Reads no files.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::retold;
use super::text::Text;
use weir_engine::compact::{Fact, Measure};
use weir_engine::tokens::Encoding;
use weir_engine::tokens::media::ImageRule;
use weir_engine::wire::{Protocol, Role, json};

/// Measure of all conversations: `o200k_base` for every recorded model, so that figures are
/// comparable.
pub const MEASURE: Measure =
    Measure { encoding: Encoding::O200kBase, images: ImageRule::Tiles { base: 85, tile: 170 } };

/// Conversation and its requests.
#[derive(Debug)]
pub struct Conversation {
    pub id: String,
    pub source: String,
    pub messages: Vec<Message>,
    /// Number of messages in each request: all before an assistant message that follows a user or
    /// tool message.
    pub turns: Vec<usize>,
    /// Messages that contain the answer to the final question, if known.
    pub evidence: Vec<usize>,
    /// Prefix sums of tokens: entry `n` covers the first `n` messages.
    sums: Vec<u64>,
}

/// Message in the caller's own bytes, with its parsed contents.
#[derive(Debug)]
pub struct Message {
    pub raw: Box<str>,
    pub role: Role,
    pub fact: Fact,
    /// Its content, unparsed.
    pub content: String,
    /// Its content and the decoded arguments of its calls, as separate texts.
    pub texts: Vec<Text>,
    /// Value of the first argument of each call that has one.
    pub first_arguments: Vec<String>,
    /// Identifiers of the calls it makes.
    pub calls: Vec<String>,
    /// Identifier of the call it answers.
    pub answers: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    id: Option<String>,
    source: Option<String>,
    model: Option<String>,
    #[serde(borrow)]
    messages: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    evidence: Vec<usize>,
}

impl Line<'_> {
    /// Reads its messages, of chat completions.
    fn chat(&self) -> Result<Vec<Message>, String> {
        let messages = self.messages.iter().flatten().enumerate();
        let read = messages.map(|(index, raw)| {
            Message::read(raw.get())
                .ok_or_else(|| format!("message {index} is not a chat completion message"))
        });
        match &self.messages {
            Some(_) => read.collect(),
            None => Err("it has neither messages nor input".to_owned()),
        }
    }
}

impl Conversation {
    /// Parses a line: a conversation `{id, source, messages}` or a request body of any protocol, which
    /// is recognised by its shape if `protocol` does not name it. `number` names one that has no
    /// `id`.
    ///
    /// # Errors
    ///
    /// If the line is no conversation; the text names the message that cannot be read.
    pub fn read(line: &str, number: usize, protocol: Option<Protocol>) -> Result<Self, String> {
        let text = line;
        let line: Line<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let messages = match protocol.unwrap_or_else(|| Protocol::recognise(text)) {
            Protocol::Chat => line.chat()?,
            protocol => retold::messages(protocol, text)?,
        };
        let is_request = |length: &usize| {
            messages[*length].role == Role::Assistant
                && matches!(messages[length - 1].role, Role::User | Role::Tool)
        };
        let turns = (1..messages.len()).filter(is_request).collect();
        let mut sums = vec![0];
        sums.extend(messages.iter().scan(0, |sum, message| {
            *sum += message.fact.tokens;
            Some(*sum)
        }));
        let evidence = line.evidence.into_iter().filter(|index| *index < messages.len()).collect();
        Ok(Self {
            id: line.id.unwrap_or_else(|| format!("line-{number}")),
            source: line.source.or(line.model).unwrap_or_else(|| "unnamed".to_owned()),
            messages,
            turns,
            evidence,
            sums,
        })
    }

    /// Tokens of the request of the first `length` messages, all sent.
    pub fn full_tokens(&self, length: usize) -> u64 {
        self.sums[length]
    }

    /// Tokens of the last request.
    pub fn last_request_tokens(&self) -> u64 {
        self.turns.last().map_or(0, |length| self.full_tokens(*length))
    }

    /// Minimum that any policy can send of the first `length` messages without clipping. It
    /// consists of the system messages and the last turn (a call and its results, or one message).
    pub fn least_tokens(&self, length: usize) -> u64 {
        let start = self.last_turn(length);
        let is_needed =
            |(index, message): &(usize, &Message)| *index >= start || message.role == Role::System;
        let needed = self.messages[..length].iter().enumerate().filter(is_needed);
        needed.map(|(_, message)| message.fact.tokens).sum()
    }

    /// Returns the start of the last turn of the first `length` messages.
    pub fn last_turn(&self, length: usize) -> usize {
        let before_results =
            self.messages[..length].iter().rposition(|message| message.role != Role::Tool);
        match self.messages[length - 1].role {
            Role::Tool => before_results.unwrap_or(0),
            _ => length - 1,
        }
    }

    /// Returns the first user message.
    pub fn first_user(&self) -> Option<usize> {
        self.messages.iter().position(|message| message.role == Role::User)
    }
}

impl Message {
    /// Parses a message's JSON text; `None` if it is not a message.
    pub fn read(raw: &str) -> Option<Self> {
        let message = Protocol::Chat.read_message(raw).ok()?;
        let fact = MEASURE.fact(&message);
        let texts = message.texts();
        let content: Vec<_> = texts.into_iter().filter_map(json::string).collect();
        let content = content.join("\n");
        let mut said = vec![content.clone()];
        said.extend(message.side_texts.iter().filter_map(|raw| json::string(raw)).map(Into::into));
        let mut first_arguments = Vec::new();
        for call in &message.calls {
            let arguments = json::string(call.arguments).unwrap_or_default();
            let own = said.len();
            match serde_json::from_str::<&RawValue>(&arguments) {
                Ok(value) => leaves(value.get(), &mut said),
                Err(_) => said.push(arguments.into_owned()),
            }
            first_arguments.extend(said.get(own).cloned());
        }
        let (calls, answers) = identifiers(raw);
        Some(Self {
            raw: raw.into(),
            role: message.role,
            fact,
            content,
            texts: said.iter().map(|text| Text::new(text)).filter(|t| !t.text.is_empty()).collect(),
            first_arguments,
            calls,
            answers,
        })
    }
}

/// Appends the strings and numbers of a JSON value, validated by serde_json, to `out`.
fn leaves(raw: &str, out: &mut Vec<String>) {
    match raw.as_bytes().first() {
        Some(b'"') => out.extend(json::string(raw).map(Into::into)),
        Some(b'{') => {
            for (_, value) in json::members(raw).unwrap_or_default() {
                leaves(value, out);
            }
        }
        Some(b'[') => {
            for value in json::elements(raw).unwrap_or_default() {
                leaves(value, out);
            }
        }
        Some(b'0'..=b'9' | b'-') => out.push(raw.to_owned()),
        _ => {}
    }
}

/// Returns the identifiers of a message's calls, and of the call it answers.
fn identifiers(raw: &str) -> (Vec<String>, Option<String>) {
    #[derive(Deserialize)]
    struct CallId {
        id: Option<String>,
    }
    #[derive(Deserialize)]
    struct Identifiers {
        tool_calls: Option<Vec<CallId>>,
        tool_call_id: Option<String>,
    }
    let Ok(read) = serde_json::from_str::<Identifiers>(raw) else { return (Vec::new(), None) };
    let calls = read.tool_calls.unwrap_or_default();
    (calls.into_iter().map(|call| call.id.unwrap_or_default()).collect(), read.tool_call_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"id":"x","source":"s","evidence":[1,99],"messages":[
        {"role":"system","content":"rules"},
        {"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
        {"role":"assistant","content":null,"tool_calls":[
            {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\": \"x  y\", \"a\": [7, {\"c\": \"z\"}]}"}},
            {"id":"c2","type":"function","function":{"name":"g","arguments":"no json"}}]},
        {"role":"tool","tool_call_id":"c1","content":"r1"},
        {"role":"tool","tool_call_id":"c2","content":"r2"},
        {"role":"assistant","content":"done"}]}"#;

    fn texts(message: &Message) -> Vec<&str> {
        message.texts.iter().map(|text| text.text.as_str()).collect()
    }

    #[test]
    fn a_conversation_is_read_with_all_that_can_be_read_in_it() {
        let conversation = Conversation::read(LINE, 1, None).expect("it is one");
        assert_eq!((conversation.id.as_str(), conversation.source.as_str()), ("x", "s"));
        assert_eq!(conversation.turns, [2, 5]);
        assert_eq!(conversation.evidence, [1]);
        let messages = &conversation.messages;
        assert_eq!(texts(&messages[1]), ["one two"]);
        assert_eq!(texts(&messages[2]), ["x y", "7", "z", "no json"]);
        assert_eq!(messages[2].first_arguments, ["x  y", "no json"]);
        assert_eq!(messages[2].calls, ["c1", "c2"]);
        assert_eq!(messages[4].answers.as_deref(), Some("c2"));
        let tokens: u64 = messages[..5].iter().map(|message| message.fact.tokens).sum();
        assert_eq!(conversation.last_request_tokens(), tokens);
        // The call with both results, and the system message.
        assert_eq!(conversation.least_tokens(5), tokens - messages[1].fact.tokens);
        assert_eq!(conversation.last_turn(2), 1);
    }

    #[test]
    fn a_request_body_is_a_conversation_too() {
        let body =
            r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
        let conversation = Conversation::read(body, 7, None).expect("it is one");
        assert_eq!((conversation.id.as_str(), conversation.source.as_str()), ("line-7", "gpt-4o"));
        assert_eq!(conversation.last_request_tokens(), 0);
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        for (line, reason) in
            [("{", "EOF"), ("{}", "messages"), (r#"{"messages":[{"content":"x"}]}"#, "message 0")]
        {
            let error = Conversation::read(line, 1, None).expect_err("it is none");
            assert!(error.contains(reason), "{error}");
        }
    }
}
