//! Results that an agent asked for again because they were no longer sent whole: the same call with the same
//! result. One whose result differs would have been made anyway.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Compactor;
use super::messages::{Fate, Messages};
use super::turns::Turns;
use crate::wire::Role;

/// Results left out, and those that came again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rereads {
    /// Of each call whose result is not sent whole: that result, both as keys.
    left_out: Arc<BTreeMap<u32, u32>>,
    /// Messages with results that came again.
    found: Vec<usize>,
}

/// Results of a conversation that came again after they were left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Their size, in tokens.
    pub tokens: u64,
    /// Size of those that this request brings, in tokens.
    pub new_tokens: u64,
    /// Whether this request brings nothing else, so that the whole conversation would not need it.
    pub is_all: bool,
}

impl Rereads {
    /// Remembers those of the `changed` messages that are results.
    pub(crate) fn leave_out(&mut self, changed: &[usize], messages: &Messages, turns: &Turns) {
        let is_left_out = |message: &&usize| messages.fates[**message] != Fate::Kept;
        let keys = changed
            .iter()
            .filter(is_left_out)
            .filter_map(|message| turns.keys_of(&messages.facts[*message]));
        let keys: Vec<(u32, u32)> = keys.collect();
        if !keys.is_empty() {
            Arc::make_mut(&mut self.left_out).extend(keys);
        }
    }

    /// Returns whether a new result with these keys was left out before, and counts it.
    pub(crate) fn take(&mut self, message: usize, (call, result): (u32, u32)) -> bool {
        if self.left_out.get(&call) != Some(&result) {
            return false;
        }
        Arc::make_mut(&mut self.left_out).remove(&call);
        self.found.push(message);
        true
    }

    /// Estimates its memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        const ENTRY: usize = 16;
        self.left_out.len() * ENTRY + self.found.len() * size_of::<usize>()
    }
}

impl Compactor {
    /// Returns the results that the agent asked for again because they were left out.
    pub fn repeated(&self) -> Repeated {
        let found = &self.rereads.found;
        let Some(last) = found.last() else { return Repeated::default() };
        let facts = self.facts();
        let tokens = |messages: &[usize]| messages.iter().map(|own| facts[*own].tokens).sum();
        let is_new = |message: &usize| matches!(facts[*message].role, Role::Tool | Role::System);
        let new: Vec<usize> = (0..facts.len()).rev().take_while(is_new).collect();
        let first = new.last().copied().unwrap_or(facts.len());
        let here = &found[found.partition_point(|message| *message < first)..];
        let results = new.iter().filter(|message| facts[**message].role == Role::Tool).count();
        Repeated {
            tokens: tokens(found),
            new_tokens: tokens(here),
            is_all: *last >= first && here.len() == results,
        }
    }
}
