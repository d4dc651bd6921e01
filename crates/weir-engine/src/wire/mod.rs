//! Wire formats: bodies read with borrowed spans, edits spliced back. Pure.
//!
//! The engine knows no wire format. Each protocol is one module that reads a body into a
//! [`Request`] and [`Message`]s. Each kind of change the engine requests is an [`Edit`] that
//! [`splice::apply`] writes into the caller's own bytes.

use std::borrow::Cow;

pub mod agents;
pub mod allowance;
pub mod applied_edits;
mod beginning;
pub mod body;
pub mod breakpoint;
mod builtin;
pub mod chat;
pub mod clamp;
pub mod compaction;
mod containers;
pub mod event_filter;
pub mod form;
mod identity;
pub mod insert;
pub mod json;
pub mod loads;
pub mod message;
pub mod messages;
pub mod model;
pub mod models;
pub mod offer;
pub mod output_item;
pub mod overflow;
pub mod recall_tool;
pub mod responses;
pub mod returned;
pub mod splice;

pub use beginning::{Beginning, Prefix};
pub use message::{Content, Message, Part, Role};
pub use splice::Edit;

pub mod sse;
pub mod usage;
pub mod usage_option;
pub mod walk;

use beginning::Begun;
use body::from_utf8;

/// Protocols whose request bodies weir reads. Each has one module next to this file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI's chat completions.
    #[default]
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

impl Protocol {
    /// Names of the protocols on the command line.
    pub const NAMES: [(&'static str, Self); 3] =
        [("chat", Self::Chat), ("responses", Self::Responses), ("messages", Self::Messages)];

    /// Returns the protocol called `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, protocol)| *protocol)
    }

    /// Returns the name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    /// Recognises the protocol of a request body, or of a bare list of messages or items, by its
    /// shape. A body that could be of several is one of chat completions.
    pub fn recognise(text: &str) -> Self {
        let text = text.trim_ascii_start();
        if text.starts_with('[') {
            return match json::elements(text).unwrap_or_default() {
                items if items.iter().any(|item| responses::is_item(item)) => Self::Responses,
                list if list.iter().any(|message| messages::has_own_blocks(message)) => {
                    Self::Messages
                }
                _ => Self::Chat,
            };
        }
        let members = json::members(text).unwrap_or_default();
        let member = |name: &str| members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
        match (member("messages"), member("input")) {
            (None, Some(_)) => Self::Responses,
            (None, None) => Self::Chat,
            _ if member("system").is_some() => Self::Messages,
            (Some(list), _) => {
                let list = json::elements(list).unwrap_or_default();
                let tools = member("tools").and_then(json::elements).unwrap_or_default();
                let is_own = list.iter().any(|message| messages::has_own_blocks(message))
                    || tools.iter().any(|tool| json::member(tool, "input_schema").is_some());
                if is_own { Self::Messages } else { Self::Chat }
            }
        }
    }

    /// Reads a request body of this protocol. Copies nothing but the list of messages.
    ///
    /// # Errors
    ///
    /// If the body is not a request of this protocol, or has too many messages.
    pub fn read(self, body: &[u8], max_messages: usize) -> Result<Request<'_>, BodyError> {
        self.continued(from_utf8(body)?, Begun::default(), max_messages)
    }

    /// Like [`Self::read`], for a body that starts with the bytes of `prefix`: only the rest is read.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn read_on<'a>(
        self,
        body: &'a [u8],
        prefix: Prefix<'_>,
        max_messages: usize,
    ) -> Result<Request<'a>, BodyError> {
        let text = from_utf8(body)?;
        let begun = if prefix.messages() > max_messages { None } else { prefix.begun(text) };
        self.continued(text, begun.unwrap_or_default(), max_messages)
    }

    fn continued<'a>(
        self,
        text: &'a str,
        begun: Begun<'a>,
        max_messages: usize,
    ) -> Result<Request<'a>, BodyError> {
        match self {
            Self::Chat => chat::read(text, begun, max_messages),
            Self::Responses => responses::read(text, begun, max_messages),
            Self::Messages => messages::read(text, begun, max_messages),
        }
    }

    /// Reads one message of a request of this protocol; `raw` is its JSON text.
    ///
    /// # Errors
    ///
    /// If it is not a message of this protocol.
    pub fn read_message(self, raw: &str) -> Result<Message<'_>, FieldError> {
        match self {
            Self::Chat => chat::read_message(raw),
            Self::Responses => responses::read_message(raw),
            Self::Messages => messages::read_message(raw),
        }
    }

    /// Returns the JSON text of a user message with the content `text`.
    pub fn user_message(self, text: &str) -> String {
        match self {
            Self::Chat => chat::user_message(text),
            Self::Responses => responses::user_message(text),
            Self::Messages => messages::user_message(text),
        }
    }

    /// Returns the form of a message that identifies it in later requests. Marks of the
    /// provider's cache, which clients move from message to message, do not belong to it.
    pub fn identity(self, raw: &str) -> Cow<'_, str> {
        match self {
            Self::Chat | Self::Responses => Cow::Borrowed(raw),
            Self::Messages => identity::identity(raw),
        }
    }
}

/// Parsed request body: its members, and its messages as JSON texts.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Protocol that it was read by.
    pub protocol: Protocol,
    /// The body as text.
    pub text: &'a str,
    /// Requested model; `None` if the body names none.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Edit that makes the answer report its usage, unless the request already asks for it.
    pub missing_usage_option: Option<usage_option::UsageOption>,
    /// Maximum output tokens for each choice, as set by the caller.
    pub max_output_tokens: Option<u64>,
    /// Numbers that set this limit, as they appear in `text`.
    pub output_limits: Vec<&'a str>,
    /// Members that would set it and are absent.
    pub absent_limits: Vec<&'static str>,
    /// Number of requested answers.
    pub choices: u64,
    /// Requested service tier, if given.
    pub service_tier: Option<Cow<'a, str>>,
    /// JSON texts outside the messages that become part of the prompt.
    pub extras: Vec<Extra<'a>>,
    /// JSON text of each message, borrowed from `text`. In Responses, one message of the assistant is a
    /// run of items; in Messages, a message with results of tools is one message for each result and
    /// one for the rest.
    pub messages: Vec<&'a str>,
    /// Number of first messages that stand outside the list of messages, such as `instructions`.
    pub outside: usize,
    /// Objects of the list of messages, if one may hold several.
    containers: Vec<messages::Container<'a>>,
    /// Member that refers to a conversation kept by the provider, which weir cannot compact.
    pub provider_state: Option<&'static str>,
    /// Whether a later item of the list could belong to the last message.
    is_open: bool,
    /// Members before the list of messages, in the protocol's own order, from name to end.
    leading: Vec<Option<&'a str>>,
    /// Members in which clients label their requests, in the order of [`LABELS`].
    labels: [Option<&'a str>; LABELS.len()],
}

/// Members in which clients label their requests. weir reads them for its records only: one that is
/// given twice is left for the upstream to refuse.
const LABELS: [&str; 4] = ["metadata", "client_metadata", "prompt_cache_key", "conversation"];
/// Maximum number of messages in [`Request::head`].
const MAX_HEAD: usize = 16;
/// Members with which a provider adds to the prompt: OpenAI's and OpenRouter's search, OpenRouter's plugins,
/// Anthropic's connector and containers, Cohere's and vLLM's documents.
const ADDING: [&str; 6] =
    ["web_search_options", "plugins", "mcp_servers", "container", "documents", "prompt"];

impl<'a> Request<'a> {
    /// Returns the JSON text of `metadata`: an object of the caller's own.
    pub fn metadata(&self) -> Option<&'a str> {
        self.labels[0]
    }

    /// Returns the JSON text of `client_metadata`, in which codex describes a request.
    pub fn client_metadata(&self) -> Option<&'a str> {
        self.labels[1]
    }

    /// Returns the JSON text of `prompt_cache_key`, which requests of one conversation share.
    pub fn prompt_cache_key(&self) -> Option<&'a str> {
        self.labels[2]
    }

    /// Returns the JSON text of `conversation`, which names a conversation kept by the provider.
    pub fn conversation(&self) -> Option<&'a str> {
        self.labels[3]
    }

    /// Returns the number of first messages that are the system's. They may have a clock or a counter in them,
    /// so a conversation is known by those behind them.
    pub fn head(&self) -> usize {
        head(&self.messages)
    }

    /// Whether the whole prompt is text that stands in the body: no media, no sealed or unknown parts, no tools
    /// of the provider's, which bring their own prompts and results, and no state that it keeps.
    pub fn is_text(&self) -> bool {
        let is_defined = |raw: &&str| {
            let members = json::members(raw).unwrap_or_default();
            let has = |wanted: &str| members.iter().any(|(name, _)| name == wanted);
            (has("function") || has("parameters") || has("input_schema")) && !has("defer_loading")
        };
        let are_defined = |extra: &Extra<'_>| {
            let tools = json::elements(extra.raw).unwrap_or_default();
            extra.kind != ExtraKind::Tools || tools.iter().all(&is_defined)
        };
        let members = json::members(self.text).unwrap_or_default();
        self.provider_state.is_none()
            && !members.iter().any(|(name, _)| ADDING.contains(&name.as_ref()))
            && self.extras.iter().all(are_defined)
            && self
                .messages
                .iter()
                .all(|raw| self.protocol.read_message(raw).is_ok_and(|message| message.is_text()))
    }

    /// Returns the messages in the list of messages.
    pub fn listed(&self) -> &[&'a str] {
        &self.messages[self.outside..]
    }

    /// Returns the place of a message in the caller's body, such as `messages[3]` or `input[7]`. A run
    /// of items has the place of its first item that cannot be read, or else of its first.
    pub fn place(&self, index: usize) -> String {
        let raw = self.messages.get(index).copied().unwrap_or_default();
        // `system`, `instructions`, or `input` with a text instead of a list.
        let is_member = self.protocol == Protocol::Responses && raw.starts_with('"');
        if index < self.outside || is_member {
            return raw.split('"').nth(1).unwrap_or_default().to_owned();
        }
        match self.protocol {
            Protocol::Chat => format!("messages[{index}]"),
            Protocol::Responses => {
                let (before, own) = responses::items_before(&self.messages, self.outside, index);
                format!("input[{}]", before + own)
            }
            Protocol::Messages => {
                let holds = |own: &messages::Container<'_>| own.messages.contains(&index);
                let place = self.containers.iter().position(holds).unwrap_or(index);
                format!("messages[{place}]")
            }
        }
    }
}

/// Returns the number of first messages that are the system's: members such as `instructions`, and those of the
/// list.
pub fn head(messages: &[&str]) -> usize {
    let is_member =
        |raw: &str| raw.starts_with("\"system\"") || raw.starts_with("\"instructions\"");
    let first = messages.iter().take(MAX_HEAD);
    first.take_while(|raw| is_member(raw) || is_of_system(raw)).count()
}

/// Whether a message of the list is the system's. Reads up to its role only.
fn is_of_system(raw: &str) -> bool {
    let mut role = None;
    // A name that is not the role's is skipped; the walk ends with the role.
    let _ = walk::Walk::new(raw).members(|name, walk| {
        let value = walk.value()?;
        if name == "\"role\"" {
            role = Some(value);
        }
        role.is_none().then_some(())
    });
    matches!(role, Some("\"system\"" | "\"developer\""))
}

/// Member outside the messages that takes prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra<'a> {
    pub kind: ExtraKind,
    /// JSON text of the member.
    pub raw: &'a str,
}

/// Kind of an [`Extra`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtraKind {
    /// `tools`: an array of tool definitions.
    Tools,
    /// `functions`: the legacy form of tools.
    Functions,
    /// `response_format`, or `text` in Responses, if it carries a schema.
    ResponseFormat,
    /// `prediction`: content that the model is expected to repeat.
    Prediction,
}

/// Reason why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyError {
    /// Not UTF-8 from this byte on.
    NotUtf8 { valid_up_to_bytes: usize },
    /// Not JSON, or not a JSON object; `detail` gives the position.
    NotJson { detail: String },
    /// A member that weir acts on is given twice.
    DuplicateKey { key: String },
    /// A member's name differs only in letter case from one that weir acts on.
    OtherCase { key: String, known: &'static str },
    /// A member has an invalid type.
    WrongType { key: String, expected: &'static str },
    /// More messages than the limit.
    TooManyMessages { limit: usize },
}

/// Reason why one message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldError {
    /// A member that weir acts on is given twice.
    DuplicateKey { key: &'static str },
    /// A member has an invalid type; the key is empty for the message itself.
    WrongType { key: &'static str, expected: &'static str },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_recognised_by_shape() {
        use Protocol::{Chat, Messages, Responses};
        for (body, protocol) in [
            (r#"{"messages":[{"role":"user","content":"x"}]}"#, Chat),
            (r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}"#, Chat),
            (r#"{"input":"x"}"#, Responses),
            (r#" {"model":"gpt-5","input":[{"role":"user","content":"x"}]}"#, Responses),
            (r#"{"messages":[{"role":"user","content":"x"}],"system":"y"}"#, Messages),
            (
                r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{}}]}"#,
                Messages,
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"}]}]}"#,
                Messages,
            ),
            (r#"[{"role":"user","content":"x"}]"#, Chat),
            (r#"[{"type":"function_call","call_id":"c"}]"#, Responses),
            (r#"[{"role":"assistant","content":[{"type":"tool_use","id":"c"}]}]"#, Messages),
            (r#"{"messages":7}"#, Chat),
            ("[1,\"x\",[]]", Chat),
            ("{", Chat),
            ("", Chat),
        ] {
            assert_eq!(Protocol::recognise(body), protocol, "{body}");
        }
        for (name, protocol) in Protocol::NAMES {
            assert_eq!(Protocol::from_name(name), Some(protocol));
            assert_eq!(protocol.name(), name);
        }
    }
}
