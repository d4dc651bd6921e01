//! Policies in common use, to set the engine's figures beside. Each works on whole turns, a call
//! with its results or one message, and keeps the system's messages and the first user message.

use std::rc::Rc;

use super::conversation::Conversation;
use super::sent::{Other, Piece};
use crate::tokens::MESSAGE_FRAMING;
use crate::wire::Role;

/// Tool results that masking leaves alone.
const UNMASKED_RESULTS: usize = 5;
const MASK: &str = "[old tool result left out]";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Everything is sent.
    None,
    /// At each request anew the oldest turns go until the rest fits.
    DropOldest,
    /// Once the size exceeds the budget the oldest turns go for good, down to 0.6 of it.
    StickyDrop,
    /// Once the size exceeds the budget all but the newest tool results give way to a few words.
    MaskResults,
}

impl Baseline {
    pub const NAMES: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("drop_oldest", Self::DropOldest),
        ("sticky_drop", Self::StickyDrop),
        ("mask_obs", Self::MaskResults),
    ];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, baseline)| *baseline)
    }
}

/// A conversation under a baseline, request by request.
pub struct Course<'a> {
    conversation: &'a Conversation,
    budget_tokens: u64,
    baseline: Baseline,
    is_gone: Vec<bool>,
    sent: Vec<Piece>,
    masks: Vec<Option<Rc<Other>>>,
}

impl<'a> Course<'a> {
    pub fn new(conversation: &'a Conversation, budget_tokens: u64, baseline: Baseline) -> Self {
        Self {
            conversation,
            budget_tokens,
            baseline,
            is_gone: vec![false; conversation.messages.len()],
            sent: Vec::new(),
            masks: vec![None; conversation.messages.len()],
        }
    }

    /// What is sent of the first `length` messages.
    pub fn send(&mut self, length: usize) -> &[Piece] {
        match self.baseline {
            Baseline::None => {}
            Baseline::DropOldest => {
                self.is_gone.fill(false);
                self.drop_to(length, self.budget_tokens);
            }
            Baseline::StickyDrop => {
                if self.size_tokens(length) > self.budget_tokens {
                    self.drop_to(length, self.budget_tokens * 6 / 10);
                }
            }
            Baseline::MaskResults => return self.mask(length),
        }
        let kept = (0..length).filter(|index| !self.is_gone[*index]);
        self.sent = kept.map(Piece::Verbatim).collect();
        &self.sent
    }

    fn size_tokens(&self, length: usize) -> u64 {
        let messages = self.conversation.messages[..length].iter().zip(&self.is_gone);
        messages.filter(|(_, gone)| !**gone).map(|(message, _)| message.fact.tokens).sum()
    }

    /// Drops the oldest turns until the size is `most_tokens` or only what must stay is left.
    fn drop_to(&mut self, length: usize, most_tokens: u64) {
        let messages = &self.conversation.messages;
        let first_user = self.conversation.first_user();
        let newest = self.conversation.last_turn(length);
        let mut size = self.size_tokens(length);
        let mut index = 0;
        while index < newest && size > most_tokens {
            let results = messages[index + 1..newest].iter();
            let end = index + 1 + results.take_while(|message| message.role == Role::Tool).count();
            if messages[index].role != Role::System && Some(index) != first_user {
                for own in index..end {
                    if !self.is_gone[own] {
                        self.is_gone[own] = true;
                        size -= messages[own].fact.tokens;
                    }
                }
            }
            index = end;
        }
    }

    fn mask(&mut self, length: usize) -> &[Piece] {
        let messages = &self.conversation.messages;
        let is_above = self.conversation.full_tokens(length) > self.budget_tokens;
        let is_result = |index: &usize| messages[*index].role == Role::Tool;
        let results = (0..length).filter(is_result).count();
        let mut masked = if is_above { results.saturating_sub(UNMASKED_RESULTS) } else { 0 };
        self.sent.clear();
        for index in 0..length {
            let is_old = is_result(&index) && masked > 0;
            masked -= usize::from(is_old);
            let least_tokens = MESSAGE_FRAMING + 8;
            let piece = match is_old && messages[index].fact.tokens > least_tokens {
                true => Piece::Other(self.masked(index)),
                false => Piece::Verbatim(index),
            };
            self.sent.push(piece);
        }
        &self.sent
    }

    fn masked(&mut self, index: usize) -> Rc<Other> {
        let answers = self.conversation.messages[index].answers.as_deref().unwrap_or_default();
        let raw = serde_json::json!({"role": "tool", "tool_call_id": answers, "content": MASK});
        let read = || {
            let other = Other::read(&raw.to_string(), Some(index));
            Rc::new(other.expect("a tool's message is one"))
        };
        Rc::clone(self.masks[index].get_or_insert_with(read))
    }
}
