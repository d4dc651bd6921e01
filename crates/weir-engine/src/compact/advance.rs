//! Progress of the state: adds messages one by one. At each point where a request could have ended,
//! a size above a mark triggers a compaction.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::limits::Profile;
use super::source::Source;
use crate::compact::message::links::{self, Link};
use crate::compact::message::measure::Fact;
use crate::compact::passes;
use crate::compact::state::Compactor;
use crate::compact::state::history::{CompactionRecord, Mark, SummaryUse};
use crate::compact::state::messages::{Fate, Rewrite};
use crate::wire::message::Naming;
use crate::wire::{Edit, Protocol, Role};

/// Parts of the limit. A result for a program that is larger than one of them is not cut, and does not count;
/// smaller ones count, since not every provider is known to leave them out.
const PROGRAM_PARTS: u64 = 4;

impl Compactor {
    /// Adds the next message, after examining the point before it if a request could have ended
    /// there.
    pub(crate) fn push(&mut self, mut fact: Fact, source: &dyn Source) {
        if self.requests.is_pending && fact.role != Role::Tool
            || self.ended_with_answer(&fact, source)
        {
            self.settle(source);
        }
        let message = self.messages();
        if self.profile.policy.strips_thinking && self.begins_round(&fact) {
            self.leave_thinking_unread(message);
        }
        fact.is_pinned |= self.is_anchor(message, &fact, source);
        let added = self.add_to_turns(&mut fact, source);
        let stays = added.is_some();
        self.messages.push(fact, self.requests.ended);
        let is_head = self.turns.system_run == message + 1;
        // A clock or a counter in the head moves no mark.
        let tokens = if is_head { fact.form_tokens } else { fact.tokens };
        self.sizes.received_tokens += tokens;
        // A notice behind the last message belongs to the same request.
        let is_end = self.requests.is_pending || self.requests.is_settled;
        self.requests.is_continued = fact.role == Role::System && is_end;
        self.requests.is_pending = self.requests.is_continued
            || matches!(fact.role, Role::User | Role::Other | Role::Tool);
        if stays {
            self.sizes.request_tokens += tokens;
        } else {
            self.messages.remove(message);
            self.notes.unmentioned += 1;
            self.notes.unexcerpted.push(message);
        }
        self.sizes.system_run_tokens += if is_head { tokens } else { 0 };
        self.requests.is_settled = false;
        self.turns.track(message);
        if stays && fact.replaces_earlier {
            self.leave_unread(message);
        }
        if let Some(edit) = added.flatten() {
            self.leave_out(message, edit, source);
        }
        if stays {
            self.watch_for_rereading(message);
            self.refer_to_oversized(message, source);
        }
        if self.requests.is_pending && self.turns.is_certain_point(&fact) {
            self.settle(source);
        }
    }

    /// Whether a request has ended with the last message although it is the assistant's, and a compaction is due
    /// there: another one of the assistant's follows. Agents write their observations so, and a provider's pause
    /// ends so. Items of one answer of Responses follow one another, too.
    fn ended_with_answer(&self, next: &Fact, source: &dyn Source) -> bool {
        let last = self.messages.facts.last();
        next.role == Role::Assistant
            && last.is_some_and(|own| own.role == Role::Assistant)
            && !self.requests.is_settled
            && (self.is_above_mark() || self.is_clearing_due())
            && self.turns.list.last().is_some_and(|turn| !turn.is_open())
            && source
                .message(self.messages() - 1)
                .is_some_and(|own| own.protocol != Protocol::Responses)
    }

    /// Whether the next message is a user's own behind an answer, so that a provider leaves thinking before it
    /// out.
    fn begins_round(&self, fact: &Fact) -> bool {
        let before = self.messages.facts.iter().rev().find(|own| own.role != Role::System);
        let is_own = fact.role == Role::User && !fact.is_aside;
        is_own && before.is_some_and(|own| own.role == Role::Assistant)
    }

    /// Adds the next message to the turns, without the text of a large result that only a program reads. Returns
    /// `None` if it does not stay, else how it is sent without results whose calls are gone.
    fn add_to_turns(&mut self, fact: &mut Fact, source: &dyn Source) -> Option<Option<Edit>> {
        let mut inline = [Link { naming: Naming::Own, id: 0, key: 0 }; links::INLINE];
        let all = fact.links;
        if let Some(held) = all.held() {
            let count = inline.iter_mut().zip(held).map(|(own, link)| *own = link).count();
            return self.add_named(fact, &inline[..count], source);
        }
        let message = source.message(self.messages());
        let links = message.map(|own| links::all(&own)).unwrap_or_default();
        self.add_named(fact, &links, source)
    }

    fn add_named(
        &mut self,
        fact: &mut Fact,
        links: &[Link],
        source: &dyn Source,
    ) -> Option<Option<Edit>> {
        let most_tokens = self.profile.limit_tokens / PROGRAM_PARTS;
        if fact.text_tokens > most_tokens && self.turns.is_for_program(fact, links) {
            fact.leave_text_unread();
        }
        let stranded = self.turns.stranded(fact, links);
        let edit = (!stranded.is_empty()).then(|| source.message(self.messages())).flatten();
        let edit = edit.and_then(|message| links::without(&message, &stranded));
        if edit.is_none() {
            return self.turns.push(fact, links).then_some(None);
        }
        let rest = links.iter().copied().filter(|link| !stranded.contains(&link.id));
        let rest: Vec<Link> = rest.collect();
        self.turns.push(fact, &rest).then_some(edit)
    }

    /// Sends a message that was just added without some of its blocks.
    fn leave_out(&mut self, message: usize, edit: Edit, source: &dyn Source) {
        if let Some(tokens) = source.tokens_after(message, &edit, &self.profile.measure) {
            self.set_rewrite(message, Rewrite { edit, tokens });
        }
    }

    /// Returns whether one of the policy's patterns matches the text of a message.
    fn is_anchor(&self, message: usize, fact: &Fact, source: &dyn Source) -> bool {
        let anchors = &self.profile.policy.anchors;
        !anchors.is_empty()
            && matches!(fact.role, Role::User | Role::Assistant)
            && source.message(message).is_some_and(|own| anchors.matches(&own))
    }

    /// Returns the state for sending a request that ends here. Copies only if longer transcripts do
    /// not examine this point too and a compaction is due.
    pub(crate) fn ended(&self, source: &dyn Source) -> Cow<'_, Self> {
        let is_due = self.is_above_mark() || self.is_clearing_due();
        if self.requests.is_settled || !is_due {
            return Cow::Borrowed(self);
        }
        let mut end = self.clone();
        end.rests.failures = 0;
        end.settle(source);
        Cow::Owned(end)
    }

    /// Returns the state after a compaction at its end, for a caller that asks for a shorter
    /// conversation. The marks are those of a limit no larger than the conversation itself with a short note, so that
    /// one far below its model's limit becomes shorter, too.
    pub(crate) fn shortened(&self, source: &dyn Source) -> Self {
        let own_tokens = self.sizes.request_tokens + passes::condense::NOTE_ROOM_TOKENS;
        self.within(self.profile.limit_tokens.min(own_tokens), source)
    }

    /// Returns the state after a compaction at its end although none is due, to the marks of a limit no larger than
    /// the conversation itself. Later ones follow the limit that holds.
    pub(crate) fn compacted(&self, source: &dyn Source) -> Self {
        Self { profile: Arc::clone(&self.profile), ..self.shortened(source) }
    }

    /// Returns the state for sending a request that ends here with other tools, which take `more_tokens`.
    pub(crate) fn with_tools(&self, more_tokens: u64, source: &dyn Source) -> Self {
        let limit_tokens = self.profile.limit_tokens.saturating_sub(more_tokens);
        if self.sizes.request_tokens > limit_tokens {
            return self.within(limit_tokens, source);
        }
        let mut own = self.clone();
        if own.profile.policy.is_thinking_bound {
            // Tools stand before all thinking, which is signed over them.
            own.drop_thinking_before(own.messages());
        }
        own
    }

    /// Returns the state after a compaction at its end to a limit.
    fn within(&self, limit_tokens: u64, source: &dyn Source) -> Self {
        let mut own = self.clone();
        own.profile = Arc::new(Profile { limit_tokens, ..Profile::clone(&own.profile) });
        own.requests.is_pending = false;
        own.requests.is_settled = true;
        own.compact(Mark::Hard, source);
        own.requests.ended += 1;
        own
    }

    /// Examines the size, and compacts if it is above a mark.
    fn settle(&mut self, source: &dyn Source) {
        if self.rests.waits(self.turns.list.len(), self.messages()) {
            return;
        }
        self.requests.is_pending = false;
        self.requests.is_settled = true;
        if self.is_clearing_due() {
            self.clear(source);
        }
        let early = || self.is_early_due().then_some(Mark::Hard);
        if let Some(mark) = self.due(self.sizes.request_tokens).or_else(early) {
            self.compact(mark, source);
        }
        self.requests.ended += u32::from(!self.requests.is_continued);
    }

    /// Clears what the caller's rules ask for, and records it as a compaction if it changed something.
    fn clear(&mut self, source: &dyn Source) {
        let (changes, before) = (self.changes.count, ConversationBefore::of(self));
        self.changes.from = usize::MAX;
        self.history.summary = SummaryUse::Absent;
        passes::clear::run(self, source);
        if self.changes.count != changes {
            let from = self.changes.from.min(self.messages());
            self.messages.reset_since(from, self.requests.ended);
            self.record(Mark::Soft, &before);
        }
    }

    /// Runs one compaction, and records it if it changed something.
    fn compact(&mut self, mark: Mark, source: &dyn Source) {
        let changes = self.changes.count;
        let (before, notes) = (ConversationBefore::of(self), self.notes.list.clone());
        self.changes.from = usize::MAX;
        self.history.summary = SummaryUse::Absent;
        passes::run(self, mark, source);
        let stay = notes.len() == self.notes.list.len()
            && notes.iter().zip(&self.notes.list).all(|(before, now)| now.is_sent_as(before));
        if !stay {
            let places = notes.iter().chain(&self.notes.list).map(|note| note.message);
            self.changes.from = places.fold(self.changes.from, usize::min);
        }
        let from = self.changes.from.min(self.messages());
        self.messages.reset_since(from, self.requests.ended);
        if self.changes.count != changes || !stay {
            self.record(mark, &before);
        }
        let is_at_low = self.sizes.request_tokens <= self.low_tokens();
        let rest_tokens =
            if is_at_low { 0 } else { self.sizes.request_tokens + self.progress_tokens() };
        self.rests.soft_tokens = rest_tokens;
        if mark == Mark::Hard {
            self.rests.hard_tokens = rest_tokens;
        }
        let is_above_limit = self.sizes.request_tokens > self.profile.limit_tokens;
        self.rests.ended(is_above_limit, self.turns.list.len(), self.messages());
    }

    /// Records the effects of the compaction at `mark` since `before`.
    fn record(&mut self, mark: Mark, before: &ConversationBefore) {
        let record = CompactionRecord {
            mark,
            is_restart: self.restarts.count > before.restarts,
            messages: self.messages(),
            turns: self.turns.list.len(),
            before_tokens: before.request_tokens,
            after_tokens: self.sizes.request_tokens,
            summary: self.history.summary,
        };
        let messages = &self.messages;
        let has_changed = |message: &usize| {
            let clip = messages.clips.get(message).map(|clip| clip.text_tokens);
            messages.fates[*message] != before.fates[*message]
                || clip != before.clips.get(message).copied()
        };
        let changed: Vec<usize> = (0..messages.count()).filter(has_changed).collect();
        self.rereads.leave_out(&changed, &self.messages, &self.turns);
        self.history.record(record, changed.into_iter());
    }
}

/// Conversation just before a compaction, for comparison after it.
struct ConversationBefore {
    fates: Vec<Fate>,
    clips: BTreeMap<usize, u64>,
    request_tokens: u64,
    restarts: u32,
}

impl ConversationBefore {
    fn of(state: &Compactor) -> Self {
        let clips = state.messages.clips.iter();
        Self {
            fates: state.messages.fates.clone(),
            clips: clips.map(|(message, clip)| (*message, clip.text_tokens)).collect(),
            request_tokens: state.sizes.request_tokens,
            restarts: state.restarts.count,
        }
    }
}
