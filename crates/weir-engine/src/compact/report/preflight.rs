//! Preflight check: whether further content would fit, and how to handle it. Computed by the
//! compaction state itself, on a copy with the content as its next message.

use serde::Serialize;

use super::shown;
use super::verbosity::Verbosity;
use crate::compact::source::RequestSource;
use crate::compact::state::Compactor;
use crate::compact::state::messages::Fate;
use crate::tokens::MESSAGE_FRAMING;
use crate::wire::{Protocol, Role, json};

/// Kind of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Words of a person.
    Message,
    /// Output of a tool.
    ToolResult,
    /// File, as a tool returns it.
    File,
    /// Text of an error, as a tool returns it.
    Error,
    /// Instructions.
    System,
}

impl Category {
    /// Every category by its name.
    pub const NAMES: [(&str, Self); 5] = [
        ("message", Self::Message),
        ("tool_result", Self::ToolResult),
        ("file", Self::File),
        ("error", Self::Error),
        ("system", Self::System),
    ];

    /// Returns the category of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, category)| *category)
    }

    /// Returns the label used in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::ToolResult => "tool result",
            Self::File => "file",
            Self::Error => "error",
            Self::System => "system message",
        }
    }

    /// Returns the message with `content`.
    fn message(self, content: &str) -> String {
        let members = match self {
            Self::Message => r#""role":"user""#,
            Self::ToolResult | Self::File | Self::Error => r#""role":"tool","tool_call_id":"""#,
            Self::System => r#""role":"system""#,
        };
        format!(r#"{{{members},"content":{}}}"#, json::quoted(content))
    }
}

/// Advice for handling content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Send it: no other content is reduced.
    Send,
    /// Send it; older content is reduced.
    SendAndCut,
    /// Shorten it, or its middle is left out.
    Shorten,
    /// Keep it elsewhere: a reference would be sent instead.
    Refer,
    /// It cannot be sent: the request would be refused.
    Refuse,
}

/// Assessment of possible further content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Preflight {
    pub category: Category,
    /// Its size as one message.
    pub content_tokens: u64,
    /// Whether it would be sent whole.
    pub fits: bool,
    pub advice: Advice,
    /// Maximum size of such content that can be sent without reducing other content.
    pub room_tokens: u64,
    /// Tokens of it that would be sent; 0 if the request would be refused.
    pub content_sent_tokens: u64,
    /// Size of the whole request, including tools.
    pub request_tokens: u64,
    pub remaining_tokens: u64,
    /// Output level for tools from then on.
    pub verbosity: Verbosity,
    /// The same as a sentence.
    pub text: String,
}

/// Conversation before the content is added.
pub struct Base<'a> {
    /// State before its last point is examined.
    pub state: &'a Compactor,
    pub protocol: Protocol,
    pub messages: &'a [&'a str],
    pub limit_tokens: u64,
    /// Exact size of tools, schemas and reply priming.
    pub overhead_tokens: u64,
}

/// Assesses `content` as the next message.
pub fn preflight(base: &Base<'_>, category: Category, content: &str) -> Preflight {
    let raw = category.message(content);
    let mut messages = base.messages.to_vec();
    messages.push(&raw);
    let measure = base.state.profile.measure;
    let source = RequestSource::new(base.protocol, &messages, measure.encoding);
    let message = base.protocol.read_message(&raw).expect("it was written as one");
    let fact = measure.fact(&message);
    let mut state = base.state.clone();
    state.push(fact, &source);
    let end = state.ended(&source);
    let own = end.messages() - 1;
    let is_whole = end.needs_nothing(base.limit_tokens, base.overhead_tokens);
    let messages_tokens = if is_whole { end.received_tokens() } else { end.sent_tokens() };
    let request_tokens = messages_tokens + base.overhead_tokens;
    let is_refused = request_tokens > base.limit_tokens;
    let fate = if is_whole { Fate::Kept } else { end.fates()[own] };
    let advice = match fate {
        _ if is_refused => Advice::Refuse,
        Fate::Masked => Advice::Refer,
        Fate::Clipped | Fate::Gone => Advice::Shorten,
        Fate::Kept if is_whole || end.compactions() == base.state.compactions() => Advice::Send,
        Fate::Kept => Advice::SendAndCut,
    };
    let content_sent_tokens = match advice {
        Advice::Refuse => 0,
        Advice::Shorten | Advice::Refer => end.messages.sent_tokens(own),
        Advice::Send | Advice::SendAndCut => fact.tokens,
    };
    let mut preflight = Preflight {
        category,
        content_tokens: fact.tokens,
        fits: matches!(advice, Advice::Send | Advice::SendAndCut),
        advice,
        room_tokens: room_tokens(base),
        content_sent_tokens,
        request_tokens,
        remaining_tokens: base.limit_tokens.saturating_sub(request_tokens),
        verbosity: Verbosity::of(request_tokens, base.limit_tokens),
        text: String::new(),
    };
    preflight.text = preflight.sentence(message.role);
    preflight
}

/// Returns the room for content, without its message's framing, before the next compaction is due.
fn room_tokens(base: &Base<'_>) -> u64 {
    let room = base.state.marks().trigger_tokens.saturating_sub(base.state.sizes.request_tokens);
    room.saturating_sub(MESSAGE_FRAMING)
}

impl Preflight {
    fn sentence(&self, role: Role) -> String {
        let content = shown::tokens(self.content_tokens);
        let room = shown::tokens(self.room_tokens);
        match self.advice {
            Advice::Send => format!("send it: {content} tokens fit as they are"),
            Advice::SendAndCut => format!(
                "send it: {content} tokens fit, and older content gives way; up to {room} would be \
                 sent without that"
            ),
            Advice::Shorten => {
                let sent = shown::tokens(self.content_sent_tokens);
                let most =
                    self.room_tokens.max(self.content_sent_tokens.saturating_sub(MESSAGE_FRAMING));
                format!(
                    "shorten it to {}: of {content} tokens {sent} would be sent, the middle left out",
                    shown::tokens(most)
                )
            }
            Advice::Refer => format!(
                "keep it elsewhere: a reference would be sent in the place of {content} tokens"
            ),
            Advice::Refuse if role == Role::Tool => {
                "do not send it: the request would be refused even \
                 with it shortened as far as weir does"
                    .to_owned()
            }
            Advice::Refuse => format!(
                "do not send it: {content} tokens cannot fit, and what people and operators say is \
                 never shortened; up to {room} fit without anything giving way"
            ),
        }
    }
}
