//! FitBench: measures of a compacting proxy by the requests that it sends on. Judges bodies; sends
//! nothing, reads no file and calls no model.
//!
//! A [`Case`] is a conversation with its tools, and with rules or facts planted in it. [`CaseItems`] holds
//! the items that its answers use. A [`Course`] judges the bodies of one proxy at one limit, turn by
//! turn, into [`Scores`]. [`bounds`] makes the bodies of the best and the worst proxy.

pub mod bounds;
pub mod compressor;
mod course;
mod edits;
pub mod generated;
pub mod page;
mod random;
pub mod scores;
mod valid;

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use edits::Edit;
use weir_engine::tokens::tools;
use weir_eval::Budget;
use weir_eval::conversation::{Conversation, MEASURE, Message};
use weir_eval::questions::Questions;
use weir_eval::text::Text;

pub use course::{Course, Missing};
pub use scores::Scores;

/// Model that all requests name.
pub const MODEL: &str = "gpt-4o";
/// Names of the tool with which a proxy offers what it left out.
pub const RECALL_TOOLS: [&str; 2] = ["recall", "weir_recall"];

/// Conversation to play, with its tools.
#[derive(Debug)]
pub struct Case {
    pub conversation: Conversation,
    /// JSON text of its tools.
    pub tools: Option<Box<str>>,
    /// Their tokens, as the provider renders them.
    pub tools_tokens: u64,
    pub planted: Planted,
}

/// Texts planted in a conversation, which no later message repeats.
#[derive(Debug)]
pub enum Planted {
    Nothing,
    /// A rule at each tenth of the conversation.
    Rules {
        plants: Vec<Plant>,
        is_crowded: bool,
    },
    /// Facts and rules in its first part.
    Facts {
        facts: Vec<Plant>,
        rules: Vec<Plant>,
    },
}

/// Planted sentence.
#[derive(Debug, Clone)]
pub struct Plant {
    /// Message that holds it.
    pub message: usize,
    /// The sentence, with white space as a reader sees it.
    pub text: String,
    /// Value in it that occurs nowhere else.
    pub value: String,
    /// Number of the plant, from the oldest.
    pub depth: usize,
}

impl Plant {
    fn new(message: usize, text: &str, value: &str, depth: usize) -> Self {
        Self { message, text: Text::new(text).text, value: value.to_owned(), depth }
    }
}

impl Case {
    /// Reads a line `{"id", "source", "messages", "tools"?}` or a request body. `number` names one
    /// without an `id`.
    ///
    /// # Errors
    ///
    /// If the line is no conversation, or has no answer of an assistant.
    pub fn read(line: &str, number: usize) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct CaseTools<'a> {
            #[serde(borrow)]
            tools: Option<&'a RawValue>,
        }
        let conversation = Conversation::read(line, number, None)?;
        if conversation.turns.is_empty() {
            return Err("no assistant answers a user or a tool in it".to_owned());
        }
        let read: CaseTools<'_> = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let tools = read.tools.map(RawValue::get).filter(|raw| !matches!(*raw, "null" | "[]"));
        Ok(Self {
            conversation,
            tools: tools.map(Into::into),
            tools_tokens: tools.map_or(0, tools_tokens),
            planted: Planted::Nothing,
        })
    }

    /// Returns the limit of the whole request, messages and tools, at a budget for messages. `None` if
    /// the conversation is too short for it.
    pub fn limit_tokens(&self, budget: Budget) -> Option<u64> {
        match budget {
            Budget::Percent(_) => {
                budget.tokens(&self.conversation).map(|tokens| tokens + self.tools_tokens)
            }
            Budget::Tokens(tokens) => {
                let messages = tokens.checked_sub(self.tools_tokens).filter(|own| *own > 0)?;
                Budget::Tokens(messages).tokens(&self.conversation).map(|_| tokens)
            }
        }
    }

    /// Returns the body of the request with the first `length` messages.
    pub fn body(&self, length: usize) -> Vec<u8> {
        let raws = self.conversation.messages[..length].iter().map(|message| &*message.raw);
        self.body_of(raws)
    }

    fn body_of<'a>(&self, raws: impl Iterator<Item = &'a str>) -> Vec<u8> {
        let messages: Vec<&str> = raws.collect();
        let tools = self.tools.as_ref().map_or(String::new(), |raw| format!(r#","tools":{raw}"#));
        let text = format!(r#"{{"model":"{MODEL}","messages":[{}]{tools}}}"#, messages.join(","));
        text.into_bytes()
    }

    /// Returns the last message of a request, and the recorded answer to it.
    pub fn exchange(&self, length: usize) -> (&Message, &Message) {
        (&self.conversation.messages[length - 1], &self.conversation.messages[length])
    }
}

/// Items that the answers of a case use, computed once for all proxies.
pub struct CaseItems {
    pub case: Arc<Case>,
    questions: Questions,
    edits: Vec<Edit>,
}

impl CaseItems {
    /// Finds the items of a case.
    pub fn new(case: Arc<Case>) -> Self {
        let questions = Questions::new(&case.conversation);
        let edits = edits::of(&case.conversation);
        Self { case, questions, edits }
    }
}

/// Request that reached the upstream, as far as it is judged.
#[derive(Deserialize)]
struct Forwarded<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
}

/// Tokens of a message, or `None` if it cannot be read.
pub fn message_tokens(raw: &str) -> Option<u64> {
    Message::read(raw).map(|message| message.fact.tokens)
}

/// Tokens of a text.
fn text_tokens(text: &str) -> u64 {
    MEASURE.encoding.count(text)
}

/// Tokens of a list of tools, as the provider renders them.
pub fn tools_tokens(raw: &str) -> u64 {
    tools::count_list(MEASURE.encoding, raw)
}

/// Token counts of the messages of requests, each counted once.
#[derive(Debug, Default)]
pub struct Counts(HashMap<u64, u64>);

impl Counts {
    /// Tokens of a request's messages and tools. Messages that cannot be read count as text.
    pub fn request_tokens(&mut self, body: &[u8]) -> u64 {
        let Some(read) = forwarded(body) else { return 0 };
        let mut tokens = 0;
        for raw in &read.messages {
            let raw = raw.get();
            let count = || message_tokens(raw).unwrap_or_else(|| text_tokens(raw));
            tokens += *self.0.entry(xxh3_64(raw.as_bytes())).or_insert_with(count);
        }
        tokens + read.tools.map_or(0, |raw| tools_tokens(raw.get()))
    }
}

fn forwarded(body: &[u8]) -> Option<Forwarded<'_>> {
    serde_json::from_slice(body).ok()
}

/// Whether a body is the request of the client that ends in `last`, and not a call of the proxy's own: its
/// last message has the role, and the text begins or ends alike.
pub fn is_of_client(body: &[u8], last: &Message) -> bool {
    /// Characters that have to be equal.
    const ALIKE: usize = 48;
    let Some(read) = forwarded(body) else { return false };
    let Some(own) = read.messages.last().and_then(|raw| Message::read(raw.get())) else {
        return false;
    };
    let (own_text, text) = (Text::new(&own.content).text, Text::new(&last.content).text);
    let start = |text: &str| text.chars().take(ALIKE).collect::<String>();
    let end = |text: &str| text.chars().rev().take(ALIKE).collect::<String>();
    own.role == last.role
        && (text.is_empty() || own_text.starts_with(&start(&text)) || end(&own_text) == end(&text))
}

/// Returns the recall tool that a forwarded request offers and the client did not.
pub fn recall_tool(body: &[u8], case: &Case) -> Option<&'static str> {
    let tools = forwarded(body)?.tools?;
    let named = |raw: &str, name: &str| {
        let list: Vec<serde_json::Value> = serde_json::from_str(raw).unwrap_or_default();
        list.iter().any(|tool| tool["function"]["name"] == name)
    };
    let own = case.tools.as_deref().unwrap_or("[]");
    RECALL_TOOLS.into_iter().find(|name| named(tools.get(), name) && !named(own, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        let line = r#"{"id":"a","source":"s","tools":[{"type":"function","function":{"name":"f"}}],"messages":[
            {"role":"system","content":"s"},{"role":"user","content":"one"},
            {"role":"assistant","content":"two"},{"role":"user","content":"three and more"},
            {"role":"assistant","content":"four"}]}"#;
        Case::read(line, 1).expect("it is one")
    }

    #[test]
    fn a_limit_covers_the_tools() {
        let case = case();
        let last = case.conversation.last_request_tokens();
        assert!(case.tools_tokens > 5);
        let half = case.limit_tokens(Budget::Percent(50));
        assert_eq!(half, Some(last / 2 + case.tools_tokens));
        assert_eq!(case.limit_tokens(Budget::Tokens(case.tools_tokens)), None);
        assert_eq!(case.limit_tokens(Budget::Tokens(case.tools_tokens + last)), None);
        let body = case.body(4);
        let mut counts = Counts::default();
        for _ in 0..2 {
            assert_eq!(counts.request_tokens(&body), last + case.tools_tokens);
        }
    }

    #[test]
    fn the_clients_request_is_known_by_its_end() {
        let case = case();
        let (last, answer) = case.exchange(4);
        assert_eq!(answer.content, "four");
        let body = |role: &str, content: &str| {
            let message = serde_json::json!({"role": role, "content": content});
            serde_json::json!({"model": "m", "messages": [message]}).to_string()
        };
        for (role, content, expected) in [
            ("user", "three and more", true),
            ("user", "three  and more\n\n[recalled] text", true),
            ("user", "Summarise this: three and", false),
            ("assistant", "three and more", false),
        ] {
            assert_eq!(is_of_client(body(role, content).as_bytes(), last), expected, "{content}");
        }
        assert!(!is_of_client(b"{", last));
    }

    #[test]
    fn an_offered_tool_is_found() {
        let case = case();
        assert_eq!(recall_tool(&case.body(4), &case), None);
        let body = br#"{"messages":[],"tools":[{"function":{"name":"f"}},{"function":{"name":"recall"}}]}"#;
        assert_eq!(recall_tool(body, &case), Some("recall"));
    }
}
