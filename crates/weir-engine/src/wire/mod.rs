//! Wire formats: bodies read with borrowed spans, edits spliced back. Pure.
//!
//! The engine knows no wire format. Each protocol is one module that reads a body into a
//! [`Request`] and [`Message`]s. Each kind of change the engine requests is an [`Edit`] that
//! [`splice::apply`] writes into the caller's own bytes.

use std::borrow::Cow;
use std::ops::Range;

pub mod applied_edits;
pub mod asking;
pub mod body;
pub mod breakpoint;
pub mod chat;
pub mod clamp;
pub mod compaction;
mod containers;
pub mod json;
pub mod message;
pub mod messages;
pub mod model;
pub mod models;
pub mod overflow;
pub mod responses;
pub mod splice;

pub use message::{Content, Message, Part, Role};
pub use splice::Edit;

pub mod output_item;
pub mod sse;
pub mod unasked;
pub mod usage;
pub mod walk;

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
    /// Reads a request body of this protocol. Copies nothing but the list of messages.
    ///
    /// # Errors
    ///
    /// If the body is not a request of this protocol, or has too many messages.
    pub fn read(self, body: &[u8], max_messages: usize) -> Result<Request<'_>, BodyError> {
        match self {
            Self::Chat => chat::read(body, max_messages),
            Self::Responses => responses::read(body, max_messages),
            Self::Messages => messages::read(body, max_messages),
        }
    }

    /// Like [`Self::read`], for a body that starts with the bytes described by `beginning`: only
    /// the rest is read.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn read_on<'a>(
        self,
        body: &'a [u8],
        beginning: &Beginning,
        max_messages: usize,
    ) -> Result<Request<'a>, BodyError> {
        match self {
            Self::Chat => chat::read_on(body, beginning, max_messages),
            Self::Responses | Self::Messages => self.read(body, max_messages),
        }
    }

    /// Returns the beginning of a request's body, up to the end of its last message; `None` if it
    /// has none.
    pub fn beginning(self, request: &Request<'_>) -> Option<Beginning> {
        match self {
            Self::Chat => chat::beginning(request),
            Self::Responses | Self::Messages => None,
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
            Self::Messages => messages::identity(raw),
        }
    }
}

/// Positions of members in the first bytes of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// Members before the messages, in the protocol's own order.
    leading: Vec<Option<Range<usize>>>,
    messages: Vec<Range<usize>>,
    end: usize,
}

impl Beginning {
    /// Returns its length in bytes.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the number of messages that end in it.
    pub fn messages(&self) -> usize {
        self.messages.len()
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
    pub usage_question: Option<asking::Question>,
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
    /// Members before the messages, in the protocol's own order.
    leading: Vec<Option<&'a str>>,
}

impl<'a> Request<'a> {
    /// Returns the messages in the list of messages.
    pub fn listed(&self) -> &[&'a str] {
        &self.messages[self.outside..]
    }
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
    /// A number is larger than `most`.
    TooLarge { key: String, most: u64 },
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
