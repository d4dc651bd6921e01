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
mod error;
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
mod protocol;
pub mod recall_tool;
pub mod repeats;
mod request;
pub mod responses;
pub mod returned;
pub mod splice;

pub use beginning::{Beginning, Prefix};
pub use error::{BodyError, FieldError};
pub use message::{Content, Message, Part, Role};
pub use protocol::Protocol;
pub use request::{Extra, ExtraKind, Request, head};
pub use splice::Edit;

pub mod sse;
pub mod usage;
pub mod usage_option;
pub mod walk;

use beginning::Begun;
use body::from_utf8;

impl Protocol {
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

impl Request<'_> {
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
                let holds = |own: &request::Container<'_>| own.messages.contains(&index);
                let place = self.containers.iter().position(holds).unwrap_or(index);
                format!("messages[{place}]")
            }
        }
    }
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
