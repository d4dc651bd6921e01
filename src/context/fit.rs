//! Bringing a conversation within its limit where evicting what may go was not enough: tool results
//! are clipped, then pins give way.

use std::cmp::Reverse;

use super::clip::{Clipped, LADDER_TOKENS};
use super::cut::{Cut, Pin, text_tokens};
use super::fold::Fate;
use super::source::Source;
use super::turn::TurnKind;
use crate::wire::Role;

impl Cut<'_> {
    /// Brings the size within the limit: first by clipping tool results, then by releasing pins.
    pub(super) fn fit(&mut self, source: &dyn Source) {
        let limit = self.fold.profile.limit_tokens;
        self.clip_down_to(limit, source);
        for pin in [Pin::Recent, Pin::ByCaller, Pin::Question, Pin::FirstUser] {
            if self.fold.size_tokens <= limit {
                return;
            }
            self.pins.retain(|_, own| *own > pin);
            match pin {
                Pin::Question => self.release_question(),
                _ => self.release(pin, limit),
            }
            self.sweep();
        }
    }

    /// Clips the tool results that are left, largest first, one step of the ladder after another.
    fn clip_down_to(&mut self, limit_tokens: u64, source: &dyn Source) {
        if self.fold.size_tokens <= limit_tokens {
            return;
        }
        let mut results: Vec<(u64, usize)> = Vec::new();
        for turn in &self.fold.live {
            let own = self.turn(*turn);
            results.extend((own.first..=own.last).filter_map(|message| {
                let is_result = self.fold.facts[message].role == Role::Tool
                    && self.fold.turns.of_message[message] == Some(*turn);
                is_result.then(|| (text_tokens(self.fold, message), message))
            }));
        }
        results.sort_by_key(|(tokens, message)| (Reverse(*tokens), *message));
        for level in LADDER_TOKENS {
            for (_, message) in &results {
                if self.fold.size_tokens <= limit_tokens {
                    return;
                }
                let before = text_tokens(self.fold, *message);
                if before > level {
                    let clipped = source.clip(*message, level);
                    if clipped.text_tokens < before {
                        self.set_clip(*message, before, clipped);
                    }
                }
            }
        }
    }

    fn set_clip(&mut self, message: usize, before: u64, clipped: Clipped) {
        let freed = before - clipped.text_tokens;
        self.fold.size_tokens -= freed;
        if let Some(turn) = self.fold.turns.of_message[message] {
            self.fold.turns.list[turn].tokens -= freed;
        }
        self.fold.fates[message] = Fate::Clipped;
        self.fold.changes += 1;
        self.fold.changed_from = self.fold.changed_from.min(message);
        self.fold.clips.insert(message, clipped);
    }

    /// Takes what is no longer pinned, oldest first, until the size lies within the limit.
    fn release(&mut self, pin: Pin, limit_tokens: u64) {
        for turns in self.exchanges() {
            if self.fold.size_tokens <= limit_tokens {
                return;
            }
            let is_newest = turns.contains(&self.newest);
            let holds_question = is_newest && pin < Pin::FirstUser;
            let older: Vec<usize> = turns.into_iter().filter(|turn| *turn < self.newest).collect();
            self.release_exchange(&older, holds_question, is_newest, limit_tokens);
        }
    }

    /// Takes one exchange whole, or what of it is not held, from its front. What is left of it
    /// keeps the alternation of roles where the model needs that.
    fn release_exchange(
        &mut self,
        turns: &[usize],
        holds_question: bool,
        is_newest: bool,
        limit_tokens: u64,
    ) {
        let strict = self.fold.profile.policy.strict_alternation;
        let is_partial = turns.iter().any(|turn| self.is_pinned(*turn));
        let holds_user = holds_question || (strict && is_partial);
        let is_user = |cut: &Self, turn: usize| cut.turn(turn).kind == TurnKind::User;
        let answer = turns.iter().rev().find(|turn| !is_user(self, **turn)).copied();
        let held_answer = answer.filter(|_| strict && is_partial && !is_newest);
        let goes_whole = !is_partial && !holds_user;
        for turn in turns {
            let is_held = self.is_pinned(*turn)
                || (holds_user && is_user(self, *turn))
                || held_answer == Some(*turn);
            if !is_held && (goes_whole || self.fold.size_tokens > limit_tokens) {
                self.evict(*turn);
            }
        }
    }

    /// Takes the user message of the newest exchange, where the newest turn is not that message.
    /// Where roles must alternate, the answer that kept it apart from the first user message goes
    /// with it.
    fn release_question(&mut self) {
        let older = self.older().to_vec();
        let newest = self.exchanges().into_iter().find(|turns| turns.contains(&self.newest));
        let question: Vec<usize> = newest
            .into_iter()
            .flatten()
            .filter(|turn| *turn < self.newest && !self.is_pinned(*turn))
            .collect();
        if question.is_empty() {
            return;
        }
        question.into_iter().for_each(|turn| self.evict(turn));
        if self.fold.profile.policy.strict_alternation {
            for turn in older {
                if !self.is_pinned(turn) {
                    self.evict(turn);
                }
            }
        }
    }
}
