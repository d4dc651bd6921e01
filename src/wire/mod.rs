//! Bytes on the wire: bodies read with borrowed spans, edits spliced back. Pure.
//!
//! The engine knows no wire format. Each protocol is one module that reads a body into a
//! [`Request`] and [`Message`]s, and each kind of change the engine asks for is an [`Edit`] that
//! [`splice::apply`] writes into the caller's own bytes.

use std::ops::Range;

pub mod asking;
pub mod breakpoint;
pub mod chat;
pub mod clamp;
pub mod json;
pub mod message;
pub mod model;
pub mod models;
pub mod overflow;
pub mod preamble;
pub mod splice;

pub use message::{Content, Message, Part, Role};
pub use splice::Edit;

pub mod sse;
pub mod unasked;
pub mod usage;
pub mod walk;

/// The protocols whose request bodies weir reads. Each is one module beside this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI's chat completions.
    Chat,
}

impl Protocol {
    /// Reads a request body of this protocol. Nothing is copied but the list of messages.
    pub fn read(self, body: &[u8], max_messages: usize) -> Result<Request<'_>, BodyError> {
        match self {
            Self::Chat => chat::read(body, max_messages),
        }
    }

    /// [`Self::read`] for a body whose first bytes are those that `beginning` was taken of: only what
    /// comes behind them is read.
    pub fn read_on<'a>(
        self,
        body: &'a [u8],
        beginning: &Beginning,
        max_messages: usize,
    ) -> Result<Request<'a>, BodyError> {
        match self {
            Self::Chat => chat::read_on(body, beginning, max_messages),
        }
    }

    /// The beginning of a request's body, up to the end of its last message; `None` where it has none.
    pub fn beginning(self, request: &Request<'_>) -> Option<Beginning> {
        match self {
            Self::Chat => chat::beginning(request),
        }
    }

    /// Reads one message of a request of this protocol; `raw` is its JSON text.
    pub fn read_message(self, raw: &str) -> Result<Message<'_>, FieldError> {
        match self {
            Self::Chat => chat::read_message(raw),
        }
    }

    /// The JSON text of a user message that says `text`.
    pub fn user_message(self, text: &str) -> String {
        match self {
            Self::Chat => chat::user_message(text),
        }
    }
}

/// Where things stand in the first bytes of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// The members before the messages, in the protocol's own order.
    leading: Vec<Option<Range<usize>>>,
    messages: Vec<Range<usize>>,
    end: usize,
}

impl Beginning {
    /// How many bytes it has.
    pub fn end(&self) -> usize {
        self.end
    }

    /// How many messages end in it.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }
}

/// A request body, read as far as its members.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The body as text.
    pub text: &'a str,
    /// The model asked for; `None` where the body names none.
    pub model: Option<std::borrow::Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// What makes the answer tell its usage, where the request does not ask for it already.
    pub usage_question: Option<asking::Question>,
    /// The most tokens the caller lets the model write for each choice.
    pub max_output_tokens: Option<u64>,
    /// The numbers that say so, as they stand in `text`.
    pub output_limits: Vec<&'a str>,
    /// The members that would say so and are not there.
    pub absent_limits: Vec<&'static str>,
    /// How many answers are wanted.
    pub choices: u64,
    /// How the request is to be served, where it says so.
    pub service_tier: Option<std::borrow::Cow<'a, str>>,
    /// JSON texts beside the messages that become part of the prompt.
    pub extras: Vec<Extra<'a>>,
    /// The JSON text of each message, borrowed from `text`.
    pub messages: Vec<&'a str>,
    /// The members that stand before the messages, in the protocol's own order.
    leading: Vec<Option<&'a str>>,
}

/// Something beside the messages that takes prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra<'a> {
    pub kind: ExtraKind,
    /// Its JSON text.
    pub raw: &'a str,
}

/// What an [`Extra`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtraKind {
    /// `tools`: an array of tool definitions.
    Tools,
    /// `functions`: the legacy form of tools.
    Functions,
    /// `response_format`, where it carries a schema.
    ResponseFormat,
    /// `prediction`: content the model is expected to repeat.
    Prediction,
}

/// Why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyError {
    /// Not UTF-8 from this byte on.
    NotUtf8 { valid_up_to_bytes: usize },
    /// Not JSON, or not a JSON object; the text says where.
    NotJson { detail: String },
    /// A member weir acts on is given twice.
    DuplicateKey { key: String },
    /// A member is named as one weir acts on, but for the case of its letters.
    OtherCase { key: String, known: &'static str },
    /// A member has a type it cannot have.
    WrongType { key: String, expected: &'static str },
    /// More messages than the limit.
    TooManyMessages { limit: usize },
}

/// Why one message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldError {
    /// A member weir acts on is given twice.
    DuplicateKey { key: &'static str },
    /// A member has a type it cannot have; empty for the message itself.
    WrongType { key: &'static str, expected: &'static str },
}
