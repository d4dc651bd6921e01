//! Clearing of old results and old thinking, by rules of the caller. Removes no message.
//!
//! What is cleared stays so: between two clearings the conversation keeps its bytes, so that the prompt
//! cache stays warm.

use super::calls::AnsweredTools;
use crate::compact::message::placeholder::{self, Reason};
use crate::compact::policy::clearing::{ClearToolUses, Trigger};
use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::compact::state::messages::{Fate, Rewrite};
use crate::wire::message::Call;
use crate::wire::{Edit, Role, json};

/// Growth after which results are looked at again if too little could be cleared, as a share of the
/// size: looking costs time.
const REST_SHARE: u64 = 64;

/// Clears what the rules of the profile ask for.
pub(crate) fn run(state: &mut Compactor, source: &dyn Source) {
    let Some(clearing) = state.profile.policy.clearing.clone() else { return };
    let before = state.changes.count;
    if let Some(rules) = clearing.tool_uses.as_ref().filter(|rules| state.is_triggered(rules)) {
        state.clear_results(rules, source);
    }
    if let Some(from) = state.thinking_boundary() {
        state.clear_thinking(from);
    }
    if state.changes.count > before && state.profile.policy.is_thinking_bound {
        // What was cleared stands before all thinking behind it, which is signed over it.
        state.clear_thinking(state.messages());
    }
}

impl Compactor {
    /// Whether the rules of the caller clear something at this point.
    pub(crate) fn is_clearing_due(&self) -> bool {
        let Some(clearing) = &self.profile.policy.clearing else { return false };
        clearing.tool_uses.as_ref().is_some_and(|rules| self.is_triggered(rules))
            || self.thinking_boundary().is_some()
    }

    fn is_triggered(&self, rules: &ClearToolUses) -> bool {
        let size_tokens = self.sizes.request_tokens;
        size_tokens > self.rests.clear_tokens
            && match rules.trigger {
                Trigger::InputTokens(tokens) => size_tokens > tokens,
                Trigger::ToolUses(uses) => self.uncleared().count() as u64 > uses,
            }
    }

    /// Returns the results that are sent and not cleared, in order.
    fn uncleared(&self) -> impl DoubleEndedIterator<Item = usize> {
        let messages = &self.messages;
        (0..messages.count()).filter(move |message| {
            messages.facts[*message].role == Role::Tool
                && messages.fates[*message] != Fate::Gone
                && !messages.rewrites.contains_key(message)
        })
    }

    /// Replaces all results but the last ones by placeholders, if that frees enough.
    fn clear_results(&mut self, rules: &ClearToolUses, source: &dyn Source) {
        let keep = usize::try_from(rules.keep).unwrap_or(usize::MAX);
        let mut old: Vec<usize> = self.uncleared().rev().skip(keep).collect();
        old.reverse();
        let (state, answered) = (&*self, AnsweredTools::default());
        let cleared = old.into_iter().filter_map(|message| {
            let tool = answered.tool(state, message, source).unwrap_or_default();
            if rules.exclude.contains(&tool) {
                return None;
            }
            let said = placeholder::of_result(&source.message(message)?, &tool, Reason::Old)?;
            let rewrite = state.rewritten(message, Edit::Replace(said), source)?;
            Some((message, rewrite))
        });
        let cleared: Vec<(usize, Rewrite)> = cleared.collect();
        let uses = cleared.len() as u64;
        let freed = |(message, rewrite): &(usize, Rewrite)| {
            self.messages.current_tokens(*message) - rewrite.tokens
        };
        let freed_tokens: u64 = cleared.iter().map(freed).sum();
        if uses == 0 || freed_tokens < rules.at_least_tokens {
            let size_tokens = self.sizes.request_tokens;
            self.rests.clear_tokens = size_tokens + size_tokens / REST_SHARE;
            return;
        }
        let before_tokens = self.sizes.request_tokens;
        let turns: Vec<usize> =
            cleared.iter().filter_map(|(message, _)| self.turns.of_message[*message]).collect();
        for (message, rewrite) in cleared {
            self.changes.touch(message);
            self.set_rewrite(message, rewrite);
        }
        if let Some(tools) = &rules.inputs {
            self.clear_inputs(turns, tools, source);
        }
        self.masking.cleared.tool_uses += uses;
        self.masking.cleared.tool_tokens += before_tokens - self.sizes.request_tokens;
    }

    /// Empties the arguments of calls of these tools, of all if there are none, in these turns if all their results
    /// are cleared.
    fn clear_inputs(&mut self, mut turns: Vec<usize>, tools: &[String], source: &dyn Source) {
        turns.dedup();
        for turn in turns {
            let own = &self.turns.list[turn];
            let (first, mut messages) = (own.first, own.first + 1..=own.last);
            let is_open = messages.any(|message| {
                self.messages.facts[message].role == Role::Tool
                    && !self.messages.rewrites.contains_key(&message)
            });
            if is_open
                || self.messages.facts[first].calls == 0
                || self.messages.rewrites.contains_key(&first)
            {
                continue;
            }
            let Some(message) = source.message(first) else { continue };
            let is_meant = |call: &&Call<'_>| {
                let name = json::string(call.name).unwrap_or_default();
                tools.is_empty() || tools.iter().any(|tool| *tool == name)
            };
            let emptied = |call| is_meant(&call).then(|| "{}".to_owned());
            let edit = Edit::Arguments(message.calls.iter().map(emptied).collect());
            if let Some(rewrite) = self.rewritten(first, edit, source) {
                self.changes.touch(first);
                self.set_rewrite(first, rewrite);
            }
        }
    }

    /// Returns the rewrite of a message by an edit, if that makes it smaller.
    fn rewritten(&self, message: usize, edit: Edit, source: &dyn Source) -> Option<Rewrite> {
        let tokens = source.tokens_after(message, &edit, &self.profile.measure)?;
        let rewrite = Rewrite { edit, tokens };
        (tokens < self.messages.current_tokens(message)).then_some(rewrite)
    }

    /// Returns the first message that keeps its thinking, if an earlier one loses its own.
    fn thinking_boundary(&self) -> Option<usize> {
        let keep = self.profile.policy.clearing.as_ref()?.thinking_turns?;
        let (mut kept, mut last, mut from) = (0, None, self.messages());
        for (message, exchange) in self.thinking().rev() {
            if last != Some(exchange) {
                if kept == keep {
                    return Some(from);
                }
                (kept, last) = (kept + 1, Some(exchange));
            }
            from = message;
        }
        None
    }

    /// Returns the messages that are sent with thinking, in order, each with its exchange.
    fn thinking(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> {
        let from = self.messages.thinking_from;
        (from..self.messages()).filter_map(move |message| {
            let turn = self.turns.of_message[message]?;
            let is_sent = self.messages.fates[message] != Fate::Gone;
            let has_thinking = self.messages.facts[message].thinking_tokens > 0;
            (is_sent && has_thinking).then(|| (message, self.turns.list[turn].exchange))
        })
    }

    /// Leaves out the thinking of all messages before `from`.
    fn clear_thinking(&mut self, from: usize) {
        let before_tokens = self.sizes.request_tokens;
        let mut exchanges: Vec<usize> = self
            .thinking()
            .take_while(|(message, _)| *message < from)
            .map(|(_, exchange)| exchange)
            .collect();
        exchanges.dedup();
        self.drop_thinking_before(from);
        self.masking.cleared.thinking_turns += exchanges.len() as u64;
        self.masking.cleared.thinking_tokens += before_tokens - self.sizes.request_tokens;
    }
}
