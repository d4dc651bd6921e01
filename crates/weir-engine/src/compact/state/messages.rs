//! Messages of a conversation and the form in which each is sent.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use crate::compact::message::clip::Clipped;
use crate::compact::message::measure::Fact;
use crate::wire::Edit;

/// Treatment of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Kept,
    /// Sent with a placeholder for its content, or for the bulk of it.
    Masked,
    /// Sent without the middle of its texts.
    Clipped,
    Gone,
}

impl Fate {
    /// Returns the label used in tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Masked => "masked",
            Self::Clipped => "clipped",
            Self::Gone => "gone",
        }
    }
}

/// Message that stays with part of its content removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rewrite {
    pub edit: Edit,
    /// Current size of the message, including framing.
    pub tokens: u64,
}

impl Rewrite {
    /// Estimates its memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let texts = |texts: &[Option<String>]| texts.iter().flatten().map(String::len).sum();
        let own = match &self.edit {
            Edit::Replace(text) => text.len(),
            Edit::Parts(parts) | Edit::Arguments(parts) => texts(parts),
            Edit::DropBlocks(ids) => ids.iter().map(String::len).sum(),
            _ => 0,
        };
        size_of::<Self>() + own
    }
}

/// Messages so far, with the form in which each is sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Messages {
    pub(crate) facts: Vec<Fact>,
    pub(crate) fates: Vec<Fate>,
    /// Messages that are sent without the middle of their texts.
    pub(crate) clips: BTreeMap<usize, Clipped>,
    /// Messages that stay with part of their content removed.
    pub(crate) rewrites: BTreeMap<usize, Rewrite>,
    /// Number of requests that had ended when each message took its current form.
    pub(crate) since: Vec<u32>,
    /// Messages before this one are sent without the model's thinking.
    pub(crate) thinking_from: usize,
    /// The provider leaves the model's thinking of messages before this one out of the prompt.
    pub(crate) unread_thinking: usize,
    /// Messages that the provider leaves out of the prompt.
    pub(crate) unread: Range<usize>,
}

impl Messages {
    /// Makes room for `more` messages.
    pub(crate) fn expect(&mut self, more: usize) {
        self.facts.reserve_exact(more);
        self.fates.reserve_exact(more);
        self.since.reserve_exact(more);
    }

    /// Adds a message that is sent as received, after `requests` have ended.
    pub(crate) fn push(&mut self, fact: Fact, requests: u32) {
        self.facts.push(fact);
        self.fates.push(Fate::Kept);
        self.since.push(requests);
    }

    /// Returns the number of messages.
    pub(crate) fn count(&self) -> usize {
        self.facts.len()
    }

    /// Returns the current size of a message's texts, as far as clipping can reach them.
    pub(crate) fn text_tokens(&self, message: usize) -> u64 {
        if self.rewrites.contains_key(&message) {
            return 0;
        }
        let clip = self.clips.get(&message);
        clip.map_or(self.facts[message].text_tokens, |clip| clip.text_tokens)
    }

    /// Returns the current size of a message that is sent.
    pub(crate) fn current_tokens(&self, message: usize) -> u64 {
        if self.unread.contains(&message) {
            return 0;
        }
        let with_thinking = match self.rewrites.get(&message) {
            Some(rewrite) => rewrite.tokens,
            None => {
                let fact = &self.facts[message];
                fact.tokens - fact.text_tokens + self.text_tokens(message)
            }
        };
        with_thinking - self.uncounted_tokens(message)
    }

    /// Returns the size of the thinking that a message is sent without.
    pub(crate) fn dropped_tokens(&self, message: usize) -> u64 {
        if message < self.thinking_from { self.facts[message].thinking_tokens } else { 0 }
    }

    /// Returns the size of the thinking of a message that is not in the prompt.
    pub(crate) fn uncounted_tokens(&self, message: usize) -> u64 {
        let is_read = message >= self.thinking_from.max(self.unread_thinking);
        if is_read { 0 } else { self.facts[message].thinking_tokens }
    }

    /// Whether any message is sent with thinking of the model.
    pub(crate) fn has_thinking(&self) -> bool {
        (self.thinking_from..self.count()).any(|message| {
            self.facts[message].thinking_tokens > 0 && self.fates[message] != Fate::Gone
        })
    }

    /// Returns the size of a message as sent; 0 if it is removed.
    pub(crate) fn sent_tokens(&self, message: usize) -> u64 {
        match self.fates[message] {
            Fate::Gone => 0,
            _ => self.current_tokens(message),
        }
    }

    /// Marks a message as removed.
    pub(crate) fn remove(&mut self, message: usize) {
        self.fates[message] = Fate::Gone;
        self.clips.remove(&message);
        self.rewrites.remove(&message);
    }

    /// Resets the age of the messages from `message` on: their cached prefix is useless after
    /// `requests`.
    pub(crate) fn reset_since(&mut self, message: usize, requests: u32) {
        self.since[message..].fill(requests);
    }

    /// Estimates the memory of the messages' forms, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let message = size_of::<Fact>() + size_of::<Fate>() + size_of::<Option<usize>>();
        self.facts.capacity() * message
            + self.clips.values().map(Clipped::memory_bytes).sum::<usize>()
            + self.rewrites.values().map(Rewrite::memory_bytes).sum::<usize>()
    }
}
