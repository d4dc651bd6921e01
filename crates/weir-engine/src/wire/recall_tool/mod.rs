//! The tool `recall`, with which a model asks for messages that were left out: its definition, its
//! calls in whole and streamed answers, and requests that go on with its results. The client sees one
//! ordinary answer without the tool. Does not search, and does not decide when the tool is offered.
//!
//! JSON stays text: everything that no edit names keeps its bytes.

mod answer;
mod calls;
mod own;
mod request;
mod stream;
#[cfg(test)]
mod tests;
mod text;
mod usage;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Protocol;
use super::json;
use text::{Object, is_object};

pub use answer::{joined, read};
pub use own::without_recalls;
pub use request::{appended, inserted, without_marked};
pub use stream::{MAX_EVENT_BYTES, MAX_HELD_BYTES, RecallStream};
pub use usage::summed_usage;

/// Names of the tool: the first one that no tool of the caller has.
pub const NAMES: [&str; 2] = ["recall", "weir_recall"];
/// Maximum number of calls of the tool in one answer that are answered.
pub const MAX_CALLS: usize = 16;
/// Maximum size of the arguments of a call that is answered: several times a query of maximum size.
pub const MAX_ARGUMENTS_BYTES: usize = 32 << 10;
/// Maximum size of the assistant's part of a streamed answer that can be continued.
pub const MAX_ASSISTANT_BYTES: usize = 16 << 20;
/// Maximum number of messages that one call names.
pub const MAX_NUMBERS: usize = 64;
/// Maximum size of a call's query.
pub const MAX_QUERY_BYTES: usize = 4096;

/// Signature of thinking that was signed over a call of the tool, which the client's later requests do
/// not have: [`without_marked`] removes it from them. It replaces Anthropic's `signature` and `data`, and
/// `encrypted_content` of OpenAI's Responses.
const MARK: &str = "weir-recall";

/// Returns the definition of the tool called `name`, as an element of a request's `tools`.
pub fn definition(protocol: Protocol, name: &str) -> String {
    const DESCRIPTION: &str = "Returns original messages of this conversation that were shortened or left \
        out to save room, exactly as they were written. Use it when you need a value, file, output or \
        statement from earlier that you no longer see in full: give the numbers printed in notes as \
        `#12` in `messages`, words that occurred there in `query`, or both for a place in a long message.";
    const PARAMETERS: &str = concat!(
        r#"{"type":"object","properties":{"#,
        r#""messages":{"type":"array","items":{"type":"integer"},"description":"Numbers of messages as in notes: 12 for #12"},"#,
        r#""query":{"type":"string","description":"Words, names or numbers to search for in what was left out"},"#,
        r#""from":{"type":"integer","description":"Offset at which to read on, as an earlier result states; 0 if absent"}},"#,
        r#""required":[],"additionalProperties":false}"#
    );
    let (name, description) = (json::quoted(name), json::quoted(DESCRIPTION));
    match protocol {
        Protocol::Chat => format!(
            r#"{{"type":"function","function":{{"name":{name},"description":{description},"parameters":{PARAMETERS}}}}}"#
        ),
        // Responses are strict by default, and then every parameter is required.
        Protocol::Responses => format!(
            r#"{{"type":"function","name":{name},"description":{description},"parameters":{PARAMETERS},"strict":false}}"#
        ),
        Protocol::Messages => {
            format!(r#"{{"name":{name},"description":{description},"input_schema":{PARAMETERS}}}"#)
        }
    }
}

/// Arguments of a call, as far as they can be understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Numbers of messages, in the model's order.
    pub messages: Vec<u64>,
    /// Words to search for; empty for none.
    pub query: String,
    /// Offset to read on from.
    pub from: u64,
    /// Whether the text was a JSON object.
    pub is_readable: bool,
}

impl Arguments {
    /// Reads the arguments of a call. Models write numbers as text (`"12"`, `"#12"`), one number instead
    /// of a list, and nulls; anything else is ignored.
    pub fn read(text: &str) -> Self {
        let Some(object) = Object::read(text.trim_ascii()) else { return Self::default() };
        let mut query = object.text("query").unwrap_or_default().into_owned();
        let mut end = query.len().min(MAX_QUERY_BYTES);
        while !query.is_char_boundary(end) {
            end -= 1;
        }
        query.truncate(end);
        let messages = object.get("messages").map(numbers).unwrap_or_default();
        let from = object.get("from").and_then(number).unwrap_or_default();
        Self { messages, query, from, is_readable: true }
    }
}

/// Returns the numbers in a list, or in a text or number alone.
fn numbers(raw: &str) -> Vec<u64> {
    match json::elements(raw) {
        Some(list) => list.into_iter().filter_map(number).take(MAX_NUMBERS).collect(),
        None => match json::string(raw) {
            Some(text) => {
                let parts = text.split(|letter: char| !letter.is_ascii_digit());
                parts.filter_map(|part| part.parse().ok()).take(MAX_NUMBERS).collect()
            }
            None => number(raw).into_iter().collect(),
        },
    }
}

/// Returns the number `raw`, which may be a text such as `"#12"` or a float without a fraction.
fn number(raw: &str) -> Option<u64> {
    let text = json::string(raw).unwrap_or(raw.into());
    let text = text.trim().trim_start_matches('#');
    text.strip_suffix(".0").unwrap_or(text).parse().ok()
}

/// Call of the tool in an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// ID that its result names.
    pub id: String,
    /// JSON text of the arguments as the model wrote it; it may be no JSON at all.
    pub arguments: String,
    /// JSON text of the call in the protocol's form, for a request.
    pub raw: String,
    /// ID of the client's own call that followed it in the answer; `None` if it was behind all of them.
    pub before: Option<String>,
}

/// Meaning of an answer for the conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Next {
    /// It has no call of the tool, or is an error: it is the client's.
    #[default]
    Final,
    /// It has calls of the tool alone. With their results the request goes on.
    Recall,
    /// It has calls of the tool and of the client's tools. The client answers its own first.
    Mixed,
    /// It has calls of the tool that cannot be answered: the model was stopped, there are too many or
    /// too large ones, or the answer has several choices. The client gets it without them.
    Ended,
    /// It is incomplete: a stream without its last event, or no answer of the protocol.
    Cut,
}

impl Next {
    /// Does not go on with an answer that is no JSON.
    fn sound(self, assistant: &str) -> Self {
        let is_sound = || serde_json::from_str::<IgnoredAny>(&format!("[{assistant}]")).is_ok();
        if self == Self::Recall && !is_sound() { Self::Ended } else { self }
    }
}

/// One answer of the upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    pub next: Next,
    /// Calls of the tool, in order.
    pub calls: Vec<Call>,
    /// IDs of the calls that the client has to answer.
    pub others: Vec<String>,
    /// The answer as part of a request: a message, or items joined by commas. Thinking and signatures are
    /// as the model gave them. Empty if it is not known whole, or a stream's first answer has no call of
    /// the tool.
    pub assistant: String,
    /// JSON text of its usage.
    pub usage: Option<String>,
}

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolResult<'a> {
    /// ID of the call.
    pub id: &'a str,
    /// Text for the model.
    pub text: &'a str,
}

/// Calls of a [`Next::Mixed`] answer, which the client did not see, with their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withheld<'a> {
    pub calls: &'a [Call],
    /// IDs of the client's calls in the same answer.
    pub others: &'a [String],
    pub results: &'a [ToolResult<'a>],
}

/// Returns arguments that every upstream can read: some parse those of earlier calls, and refuse a
/// request if they are not an object.
fn valid_arguments(arguments: &str) -> &str {
    if is_object(arguments) { arguments } else { "{}" }
}
