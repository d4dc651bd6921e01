//! What a policy sends of a conversation, message by message, and how a reader finds things in it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::conversation::{Conversation, MEASURE, Message};
use super::grams;
use super::text;
use crate::wire::Role;

/// One message of a compacted request.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A message of the conversation, byte for byte.
    Verbatim(usize),
    /// A message that was changed or is not of the conversation.
    Other(Rc<Other>),
}

/// A message that is not in the conversation as it stands here.
#[derive(Debug)]
pub struct Other {
    /// Which message it was made of, if one.
    pub of: Option<usize>,
    pub message: Message,
    grams: HashSet<u64>,
    /// What was looked for before, by the question's number.
    found: RefCell<HashMap<u32, bool>>,
}

impl Other {
    /// Reads a message; `None` where `raw` is none.
    pub fn read(raw: &str, of: Option<usize>) -> Option<Self> {
        let message = Message::read(raw)?;
        let grams = message.texts.iter().flat_map(|text| grams::of(&text.text)).collect();
        Some(Self { of, message, grams, found: RefCell::default() })
    }

    /// Whether the run of five tokens `gram` stands here.
    pub fn has_gram(&self, gram: u64) -> bool {
        self.grams.contains(&gram)
    }

    /// Whether `needle`, whose number in the conversation is `number`, can be read here.
    pub fn shows(&self, number: u32, needle: &str) -> bool {
        let look = || {
            let mut texts = self.message.texts.iter();
            texts.any(|text| text::find_all(&text.text, needle).next().is_some())
        };
        *self.found.borrow_mut().entry(number).or_insert_with(look)
    }

    /// Whether all of `text` stands here.
    pub fn says(&self, text: &str) -> bool {
        self.message.texts.iter().any(|own| own.text.contains(text))
    }

    /// Whether `needle` stands here between `before` and `after`.
    pub fn shows_between(&self, before: &str, needle: &str, after: &str) -> bool {
        self.message.texts.iter().any(|text| {
            text::find_all(&text.text, needle).any(|at| {
                text.text[..at].ends_with(before)
                    && text.text[at + needle.len()..].starts_with(after)
            })
        })
    }
}

/// What text opens with that bears on a request's question, where it stands behind it.
const TAIL: &str = "[weir: earlier messages that may bear on this";

impl Piece {
    /// The message that this one is, or is with a tail behind all that it says.
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

    /// The message as it is sent.
    pub fn message<'a>(&'a self, conversation: &'a Conversation) -> &'a Message {
        match self {
            Self::Verbatim(index) => &conversation.messages[*index],
            Self::Other(other) => &other.message,
        }
    }

    /// What it takes of a budget.
    pub fn tokens(&self, conversation: &Conversation) -> u64 {
        self.message(conversation).fact.tokens
    }
}

/// Tokens of the longest common prefix of two requests.
pub fn common_tokens(conversation: &Conversation, left: &[Piece], right: &[Piece]) -> u64 {
    let mut tokens = 0;
    for (left, right) in left.iter().zip(right) {
        let is_same = match (left, right) {
            (Piece::Verbatim(left), Piece::Verbatim(right)) => left == right,
            (Piece::Other(left), Piece::Other(right)) => Rc::ptr_eq(left, right),
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

/// Tokens of what two messages that differ begin with alike.
fn common_text_tokens(left: &Message, right: &Message) -> u64 {
    if left.role != right.role {
        return 0;
    }
    let alike = left.content.chars().zip(right.content.chars()).take_while(|(l, r)| l == r);
    let bytes: usize = alike.map(|(left, _)| left.len_utf8()).sum();
    match bytes {
        0 => 0,
        _ => crate::tokens::MESSAGE_FRAMING + MEASURE.encoding.count(&left.content[..bytes]),
    }
}
