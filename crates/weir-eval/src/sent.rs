//! Messages that a policy sends for a conversation, and searches in them as a reader would.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::conversation::{Conversation, MEASURE, Message};
use super::grams;
use super::text;
use weir_engine::wire::Role;

/// Message of a compacted request.
#[derive(Debug, Clone)]
pub enum SentPiece {
    /// Message of the conversation, byte for byte.
    Verbatim(usize),
    /// Changed message, or one that is not from the conversation.
    Other(Rc<Other>),
}

/// Message that differs from all those of the conversation.
#[derive(Debug)]
pub struct Other {
    /// The message it was made from, if any.
    pub of: Option<usize>,
    pub message: Message,
    grams: HashSet<u64>,
    /// Earlier search results, by the question's number.
    found: RefCell<HashMap<u32, bool>>,
}

impl Other {
    /// Parses a message; `None` if `raw` is not a message.
    pub fn read(raw: &str, of: Option<usize>) -> Option<Self> {
        let message = Message::read(raw)?;
        let grams = message.texts.iter().flat_map(|text| grams::of(&text.text)).collect();
        Some(Self { of, message, grams, found: RefCell::default() })
    }

    /// Whether the five-token sequence `gram` occurs here.
    pub fn has_gram(&self, gram: u64) -> bool {
        self.grams.contains(&gram)
    }

    /// Whether `needle`, with this `number` in the conversation, can be read here.
    pub fn shows(&self, number: u32, needle: &str) -> bool {
        let look = || {
            let mut texts = self.message.texts.iter();
            texts.any(|text| text::find_all(&text.text, needle).next().is_some())
        };
        *self.found.borrow_mut().entry(number).or_insert_with(look)
    }

    /// Whether all of `text` occurs here.
    pub fn says(&self, text: &str) -> bool {
        self.message.texts.iter().any(|own| own.text.contains(text))
    }

    /// Whether `needle` occurs here between `before` and `after`.
    pub fn shows_between(&self, before: &str, needle: &str, after: &str) -> bool {
        self.message.texts.iter().any(|text| {
            text::find_all(&text.text, needle).any(|at| {
                text.text[..at].ends_with(before)
                    && text.text[at + needle.len()..].starts_with(after)
            })
        })
    }
}

/// Opening of recalled text at the end of a request's question.
const TAIL: &str = "[weir: earlier messages that may bear on this";

impl SentPiece {
    /// Returns the message that this one equals, apart from recall at its end.
    pub fn under_tail(&self, conversation: &Conversation) -> Option<usize> {
        match self {
            Self::Verbatim(index) => Some(*index),
            Self::Other(other) => other.of.filter(|index| {
                let own = &conversation.messages[*index];
                let rest = other.message.content.strip_prefix(own.content.as_str());
                own.role == Role::User
                    && other.message.role == Role::User
                    && rest.is_some_and(|rest| rest.trim_start_matches('\n').starts_with(TAIL))
            }),
        }
    }

    /// Returns the message as it is sent.
    pub fn message<'a>(&'a self, conversation: &'a Conversation) -> &'a Message {
        match self {
            Self::Verbatim(index) => &conversation.messages[*index],
            Self::Other(other) => &other.message,
        }
    }

    /// Tokens that it takes of a budget.
    pub fn tokens(&self, conversation: &Conversation) -> u64 {
        self.message(conversation).fact.tokens
    }
}

/// Tokens of the longest common prefix of two requests.
pub(crate) fn common_tokens(
    conversation: &Conversation,
    left: &[SentPiece],
    right: &[SentPiece],
) -> u64 {
    let mut tokens = 0;
    for (left, right) in left.iter().zip(right) {
        let is_same = match (left, right) {
            (SentPiece::Verbatim(left), SentPiece::Verbatim(right)) => left == right,
            (SentPiece::Other(left), SentPiece::Other(right)) => Rc::ptr_eq(left, right),
            _ => false,
        };
        let (left, right) = (left.message(conversation), right.message(conversation));
        if !is_same && left.raw != right.raw {
            return tokens + common_text_tokens(left, right);
        }
        tokens += left.fact.tokens;
    }
    tokens
}

/// Tokens of the common beginning of two different messages.
fn common_text_tokens(left: &Message, right: &Message) -> u64 {
    if left.role != right.role {
        return 0;
    }
    let alike = left.content.chars().zip(right.content.chars()).take_while(|(l, r)| l == r);
    let bytes: usize = alike.map(|(left, _)| left.len_utf8()).sum();
    match bytes {
        0 => 0,
        _ => weir_engine::tokens::MESSAGE_FRAMING + MEASURE.encoding.count(&left.content[..bytes]),
    }
}
