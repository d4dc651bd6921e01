//! Fitting a conversation within its limit if eviction was not enough: clips tool results and
//! calls' arguments, and releases pins.

use std::cmp::Reverse;

use super::Compaction;
use crate::compact::message::clip::{Clipped, LAST_TOKENS, LONG_TOKENS, SHORT_TOKENS, even_share};
use crate::compact::message::measure::Fact;
use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::compact::state::history::Pin;
use crate::compact::state::messages::{Fate, Rewrite};
use crate::compact::state::turns::{Turn, TurnKind};
use crate::wire::Role;

/// Divisors of the limit: room that clips leave for later messages, and that they leave for a note before
/// it is written; room of calls that wait for results, and of a result that stands with one of them.
const SPARE: u64 = 64;
const NOTE_SHARE: u64 = 8;
const WAITING_SHARE: u64 = 16;
const SIBLING_SHARE: u64 = 64;
/// Part of the limit up to which a user's messages stay rather than more of results.
const USERS_SHARE: u64 = 64;

impl Compaction<'_> {
    /// Brings the size within the limit. These give way, in this order: the bulk of tool results,
    /// recent turns and loads of tools that no call needs, the bulk of calls' arguments, images of results, more of
    /// results if the newest turn has several, turns that the caller pinned, nearly all of results if the user's
    /// messages are small, the newest question, the first user message and all loads of tools, then more of results
    /// and arguments, at last nearly all of them and of placeholders, older parts of the newest turns, and the bulk
    /// of the assistant's texts. A user's text is never clipped.
    pub(crate) fn fit(&mut self, source: &dyn Source) {
        self.clip_results(LONG_TOKENS, source);
        self.give_way(Pin::Recent);
        self.release_loads(source);
        self.clip_arguments(LONG_TOKENS, source);
        self.drop_images(source);
        if self.turn(self.newest).results > 1 {
            self.clip_both(SHORT_TOKENS, source);
        }
        self.release_notices();
        self.give_way(Pin::ByCaller);
        if self.has_small_users() {
            LAST_TOKENS.into_iter().for_each(|level| self.clip_results(level, source));
        }
        for pin in [Pin::Question, Pin::FirstUser] {
            self.give_way(pin);
        }
        self.release_loads(source);
        self.give_way(Pin::Load);
        for level in [SHORT_TOKENS].into_iter().chain(LAST_TOKENS) {
            self.clip_both(level, source);
        }
        for level in [SHORT_TOKENS].into_iter().chain(LAST_TOKENS) {
            self.clip_replaced(level, source);
            self.clip_results(level, source);
        }
        self.release_parts(source);
        for level in [LONG_TOKENS, SHORT_TOKENS] {
            self.clip_texts(Role::Assistant, level, source);
        }
    }

    /// Whether the newest question and the first user message are so small that results rather than they give
    /// way.
    fn has_small_users(&self) -> bool {
        let exchange = self.turn(self.newest).exchange;
        let tokens =
            self.older().iter().map(|turn| (turn, self.turn(*turn))).filter(|(turn, own)| {
                let is_first = self.pins.get(turn) == Some(&Pin::FirstUser);
                own.kind == TurnKind::User && (is_first || own.exchange == exchange)
            });
        let tokens: u64 = tokens.map(|(_, own)| own.tokens).sum();
        tokens <= self.state.profile.limit_tokens / USERS_SHARE
    }

    /// Pins older turns whose calls still wait for results, the newest first, within their share: a result
    /// without its call would go, even at the end of a request. Results that stand with such calls are clipped to
    /// theirs if the turn is larger.
    pub(super) fn pin_waiting(&mut self, source: &dyn Source) {
        let limit = self.state.profile.limit_tokens;
        let (most_tokens, level) = (limit / WAITING_SHARE, limit / SIBLING_SHARE);
        let waits = |turn: &usize| self.turn(*turn).is_open();
        let waiting: Vec<usize> = self.older().iter().copied().filter(waits).collect();
        let mut tokens = 0;
        for turn in waiting.into_iter().rev() {
            let own = self.turn(turn);
            let of_message = &self.state.turns.of_message;
            let long = (own.first..=own.last).filter(|message| {
                let is_result = self.state.messages.facts[*message].role == Role::Tool;
                let text_tokens = || self.state.messages.text_tokens(*message);
                of_message[*message] == Some(turn) && is_result && text_tokens() > level
            });
            let long: Vec<usize> =
                if tokens + own.tokens > most_tokens { long.collect() } else { Vec::new() };
            let over = long.iter().map(|message| self.state.messages.text_tokens(*message) - level);
            tokens += own.tokens - over.sum::<u64>();
            if tokens > most_tokens {
                return;
            }
            self.pins.insert(turn, Pin::ByCaller);
            for message in long {
                let clip = source.clip(message, level, &self.askers(message));
                if clip.text_tokens < self.state.messages.text_tokens(message) {
                    self.set_clip(message, clip);
                }
            }
        }
    }

    fn clip_both(&mut self, least_tokens: u64, source: &dyn Source) {
        self.clip_results(least_tokens, source);
        self.clip_arguments(least_tokens, source);
    }

    /// Gives results that this compaction clipped the room that is left behind everything else, for
    /// example because pins gave way or the note is small.
    pub(crate) fn refill(&mut self, source: &dyn Source) {
        let clipped = std::mem::take(&mut self.clipped);
        let size_tokens = self.state.sizes.request_tokens + self.state.opening_tokens();
        let Some(spare) = self.most_tokens().checked_sub(size_tokens) else { return };
        let messages = &self.state.messages;
        let is_clipped = |(message, _): &(usize, u64)| messages.clips.contains_key(message);
        let mut growing: Vec<(usize, u64)> = clipped.into_iter().filter(is_clipped).collect();
        // Those above the level keep what they have, which is less room for the others.
        let level = loop {
            let now = growing.iter().map(|(message, _)| messages.text_tokens(*message));
            let room = now.sum::<u64>() + spare;
            let sizes: Vec<u64> = growing.iter().map(|(_, before)| *before).collect();
            let (level, count) = (even_share(&sizes, room), growing.len());
            growing.retain(|(message, _)| messages.text_tokens(*message) < level);
            if growing.len() == count {
                break level;
            }
        };
        for (message, before) in growing {
            let clip = source.clip(message, level.min(before), &self.askers(message));
            if clip.text_tokens > self.state.messages.text_tokens(message) {
                self.set_clip(message, clip);
            }
        }
    }

    /// Returns the size that a clip reduces to. The rest of the limit is for the messages that follow: a
    /// clip that fills the limit would be followed by a compaction with the next request.
    pub(crate) fn most_tokens(&self) -> u64 {
        let limit = self.state.profile.limit_tokens;
        limit - limit / SPARE
    }

    pub(crate) fn is_above_limit(&self) -> bool {
        let size_tokens = self.state.sizes.request_tokens + self.state.opening_tokens();
        size_tokens > self.state.profile.limit_tokens
    }

    /// Drops pins of this kind, and the turns held by them alone, if the size is above the limit.
    fn give_way(&mut self, pin: Pin) {
        if !self.is_above_limit() {
            return;
        }
        let limit = self.state.profile.limit_tokens;
        self.pins.retain(|_, own| *own > pin);
        match pin {
            Pin::Question => self.release_question(),
            _ => self.release(pin, limit),
        }
        self.sweep();
    }

    /// Returns the messages of live turns with a `size`, the largest by received size first.
    fn largest(&self, size: impl Fn(&Turn, usize) -> Option<u64>) -> Vec<usize> {
        let mut found: Vec<(u64, usize)> = Vec::new();
        for turn in &self.state.turns.live {
            let own = self.turn(*turn);
            let is_own = |message: &usize| self.state.turns.of_message[*message] == Some(*turn);
            let sized = |message: usize| Some((size(own, message)?, message));
            found.extend((own.first..=own.last).filter(is_own).filter_map(sized));
        }
        found.sort_by_key(|(tokens, message)| (Reverse(*tokens), *message));
        found.into_iter().map(|(_, message)| message).collect()
    }

    /// Clips the remaining tool results evenly, so that the size is within the limit with room for a note,
    /// but none to less than `least_tokens`.
    fn clip_results(&mut self, least_tokens: u64, source: &dyn Source) {
        self.clip_texts(Role::Tool, least_tokens, source);
    }

    /// Does so with the texts of messages of a role. What is signed stays.
    fn clip_texts(&mut self, role: Role, least_tokens: u64, source: &dyn Source) {
        if !self.is_above_limit() {
            return;
        }
        let size =
            |compaction: &Self, message: usize| compaction.state.messages.text_tokens(message);
        let results = self.largest(|_, message| {
            let own = &self.state.messages.facts[message];
            let is_own = own.role == role && (role == Role::Tool || own.thinking_tokens == 0);
            (is_own && size(self, message) > least_tokens).then(|| size(self, message))
        });
        let sizes: Vec<u64> = results.iter().map(|message| size(self, *message)).collect();
        let level = self.level(&sizes, least_tokens);
        for (message, before) in results.into_iter().zip(sizes) {
            if before <= level {
                return;
            }
            let clip = source.clip(message, level, &self.askers(message));
            if clip.text_tokens < before {
                self.clipped.entry(message).or_insert(before);
                self.set_clip(message, clip);
            }
        }
    }

    /// Returns the messages that ask for a result: the user's before it, and the call.
    fn askers(&self, result: usize) -> Vec<usize> {
        let facts = &self.state.messages.facts;
        let last = |is_asker: fn(&Fact) -> bool| facts[..result].iter().rposition(is_asker);
        let user = last(|fact| fact.role == Role::User && !fact.is_note);
        let call = last(|fact| fact.calls > 0);
        user.into_iter().chain(call).collect()
    }

    /// Clips results whose placeholders are above a size, largest first, until the limit is reached:
    /// less of the result itself replaces the placeholder.
    fn clip_replaced(&mut self, level_tokens: u64, source: &dyn Source) {
        if !self.is_above_limit() {
            return;
        }
        let results = self.largest(|_, message| {
            let fact = &self.state.messages.facts[message];
            let rewrite = self.state.messages.rewrites.get(&message)?;
            let is_above = fact.role == Role::Tool && rewrite.tokens > level_tokens;
            is_above.then_some(fact.text_tokens)
        });
        for message in results {
            if !self.is_above_limit() {
                return;
            }
            let fact = &self.state.messages.facts[message];
            let fixed_tokens = fact.tokens - fact.text_tokens;
            let current_tokens = self.state.messages.current_tokens(message);
            let before = current_tokens.saturating_sub(fixed_tokens);
            let clipped = source.clip(message, level_tokens, &self.askers(message));
            if clipped.text_tokens < before {
                self.state.messages.rewrites.remove(&message);
                self.state.free(message, before - clipped.text_tokens);
                self.remember_clip(message, clipped);
            }
        }
    }

    /// Clips the arguments of answered calls, and outputs of calls inside a message, evenly, so that the size is
    /// within the limit with room for a note, but none to less than `least_tokens`.
    fn clip_arguments(&mut self, least_tokens: u64, source: &dyn Source) {
        if !self.is_above_limit() {
            return;
        }
        let calls = self.largest(|turn, message| {
            let fact = &self.state.messages.facts[message];
            let is_answered = fact.calls > 0 && turn.results > 0;
            let may_hold_outputs = fact.calls == 0 && turn.kind == TurnKind::Assistant;
            let now_tokens = self.state.messages.current_tokens(message);
            let is_above = now_tokens > least_tokens;
            ((is_answered || may_hold_outputs) && is_above).then_some(now_tokens)
        });
        let size = |message: &usize| self.state.messages.current_tokens(*message);
        let sizes: Vec<u64> = calls.iter().map(size).collect();
        let level = self.level(&sizes, least_tokens);
        for (message, before) in calls.into_iter().zip(sizes) {
            if before <= level {
                return;
            }
            if let Some(rewrite) = self.shortened(message, (level, least_tokens), source)
                && rewrite.tokens < before
            {
                self.state.changes.touch(message);
                self.state.set_rewrite(message, rewrite);
                self.state.messages.fates[message] = Fate::Clipped;
            }
        }
    }

    /// Returns the size that the largest of `sizes` shrink to, so that the request is within the limit with room
    /// for a note; no less than `least_tokens`.
    fn level(&self, sizes: &[u64], least_tokens: u64) -> u64 {
        let limit = self.state.profile.limit_tokens;
        let most_tokens = self.most_tokens().saturating_sub(limit / NOTE_SHARE);
        let now_tokens = self.state.sizes.request_tokens + self.state.opening_tokens();
        let excess = now_tokens.saturating_sub(most_tokens);
        even_share(sizes, sizes.iter().sum::<u64>().saturating_sub(excess)).max(least_tokens)
    }

    /// Returns a message with its arguments and outputs clipped so that it has at most `level` tokens, if they
    /// need not be less than `least` tokens each for that; `None` if none becomes shorter.
    fn shortened(
        &self,
        message: usize,
        (level, least): (u64, u64),
        source: &dyn Source,
    ) -> Option<Rewrite> {
        let mut each = level;
        loop {
            let edit = source.clip_arguments(message, each);
            let rewrite = edit.and_then(|edit| self.rewrite(message, edit, source));
            let excess = rewrite.as_ref().map_or(each, |own| own.tokens.saturating_sub(level));
            if excess == 0 || each == least {
                return rewrite;
            }
            // Each takes its part of the excess; where none is longer than `each`, half of that is next.
            let share = u128::from(each) * u128::from(level) / u128::from(level + excess);
            each = (share as u64).min(each - 1).max(least);
        }
    }

    /// Leaves images out of results, the oldest first, until the limit is reached.
    fn drop_images(&mut self, source: &dyn Source) {
        let facts = &self.state.messages.facts;
        let turns = &self.state.turns;
        let has_images = |message: &usize| {
            let is_live = turns.of_message[*message].is_some_and(|turn| !turns.list[turn].is_gone);
            is_live && facts[*message].role == Role::Tool
        };
        let results: Vec<usize> = (0..facts.len()).filter(has_images).collect();
        for message in results {
            if !self.is_above_limit() {
                return;
            }
            let before = self.state.messages.current_tokens(message);
            let others = self.state.sizes.request_tokens + self.state.opening_tokens() - before;
            let fits = |own: &Rewrite| others + own.tokens <= self.state.profile.limit_tokens;
            let mut masked: Option<Rewrite> = None;
            // Twice as many each time, until all are.
            for most_images in (0..usize::BITS).map(|power| 1 << power) {
                let next = self.masked_images(message, most_images, source);
                let is_more =
                    next.as_ref().map(|own| own.tokens) < masked.as_ref().map(|own| own.tokens);
                if masked.is_some() && !is_more {
                    break;
                }
                masked = next;
                if masked.as_ref().is_none_or(fits) {
                    break;
                }
            }
            if let Some(rewrite) = masked.filter(|rewrite| rewrite.tokens < before) {
                self.state.changes.touch(message);
                self.state.set_rewrite(message, rewrite);
                self.state.messages.fates[message] = Fate::Clipped;
            }
        }
    }

    /// Sends a result with this clip instead of the whole or of an earlier clip.
    fn set_clip(&mut self, message: usize, clip: Clipped) {
        self.state.resize(message, self.state.messages.text_tokens(message), clip.text_tokens);
        self.remember_clip(message, clip);
    }

    fn remember_clip(&mut self, message: usize, clip: Clipped) {
        self.state.changes.add(message);
        let messages = &mut self.state.messages;
        if clip.text_tokens == messages.facts[message].text_tokens {
            messages.fates[message] = Fate::Kept;
            messages.clips.remove(&message);
            return;
        }
        messages.fates[message] = Fate::Clipped;
        messages.clips.insert(message, clip);
    }

    /// Removes turns that are no longer pinned, oldest first, until the size is within the limit.
    pub(super) fn release(&mut self, pin: Pin, limit_tokens: u64) {
        for turns in self.exchanges() {
            if self.state.sizes.request_tokens <= limit_tokens {
                return;
            }
            let is_newest = turns.contains(&self.newest);
            let holds_question = is_newest && pin < Pin::FirstUser;
            let older: Vec<usize> = turns.into_iter().filter(|turn| *turn < self.newest).collect();
            self.release_exchange(&older, holds_question, is_newest, limit_tokens);
        }
    }

    /// Removes one exchange whole, or its unpinned turns from the front. The remains keep the
    /// alternation of roles if the model needs it.
    fn release_exchange(
        &mut self,
        turns: &[usize],
        holds_question: bool,
        is_newest: bool,
        limit_tokens: u64,
    ) {
        let strict = self.state.profile.policy.strict_alternation;
        let is_partial = turns.iter().any(|turn| self.is_pinned(*turn));
        let holds_user = holds_question || (strict && is_partial);
        let is_user = |compaction: &Self, turn: usize| compaction.turn(turn).kind == TurnKind::User;
        let answer = turns.iter().rev().find(|turn| !is_user(self, **turn)).copied();
        let held_answer = answer.filter(|_| strict && is_partial && !is_newest);
        let goes_whole = !is_partial && !holds_user;
        for turn in turns {
            let is_held = self.is_pinned(*turn)
                || (holds_user && is_user(self, *turn))
                || held_answer == Some(*turn);
            if !is_held && (goes_whole || self.state.sizes.request_tokens > limit_tokens) {
                self.evict(*turn);
            }
        }
    }

    /// Removes the user message of the newest exchange, unless it is the newest turn. If roles must
    /// alternate, the answer that separated it from the first user message is removed with it.
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
        if self.state.profile.policy.strict_alternation {
            for turn in older {
                if !self.is_pinned(turn) {
                    self.evict(turn);
                }
            }
        }
    }
}

/// Sizes of the messages that no compaction removes, as they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    pub system_tokens: u64,
    pub newest_tokens: u64,
    /// Whether the newest turn is a user message, which is never clipped.
    pub is_newest_user: bool,
}

impl Compactor {
    /// Returns the size of the messages that always stay.
    pub fn floor(&self) -> Floor {
        let all = self.messages.facts.iter().zip(&self.messages.fates);
        let system = all.filter(|(fact, fate)| fact.role == Role::System && **fate != Fate::Gone);
        let newest = &self.turns.list[self.turns.newest_from().min(self.turns.list.len())..];
        Floor {
            system_tokens: system.map(|(fact, _)| fact.tokens).sum(),
            newest_tokens: newest.iter().map(|turn| turn.tokens).sum(),
            is_newest_user: newest.last().is_some_and(|turn| turn.kind == TurnKind::User),
        }
    }
}
