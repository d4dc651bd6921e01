//! Compaction state: a fold over the messages of a transcript. At each point where a request could
//! have ended, a size above the mark triggers a compaction. A fate once assigned never changes
//! back.
//!
//! The state after a transcript depends only on the profile and the messages, never on earlier
//! requests or caches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::clip::Clipped;
use super::compaction::{self, Mark};
use super::history::{Before, History, SummaryUse};
use super::limit::Profile;
use super::mask::Rewrite;
use super::measure::Fact;
use super::note::Note;
use super::recall;
use super::source::Source;
use super::turn::{TurnKind, Turns};
use crate::wire::Role;

/// Treatment of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Kept,
    /// Sent with a placeholder for its content, or for the bulk of it.
    Masked,
    /// Sent without the middle of its texts.
    Clipped,
    Gone,
}

/// Compaction state of a conversation: its messages so far, and the form in which they are sent.
#[derive(Debug, Clone)]
pub struct Compactor {
    pub(super) profile: Arc<Profile>,
    pub(super) facts: Vec<Fact>,
    pub(super) fates: Vec<Fate>,
    pub(super) turns: Turns,
    /// Turns that are still sent, in order.
    pub(super) live: Vec<usize>,
    pub(super) first_user: Option<usize>,
    pub(super) clips: BTreeMap<usize, Clipped>,
    /// Messages that stay with part of their content removed.
    pub(super) rewrites: BTreeMap<usize, Rewrite>,
    /// Calls whose results were masked and that were not repeated since.
    pub(super) masked_calls: BTreeSet<u64>,
    /// Number of times the protected window grew.
    pub(super) widenings: u32,
    /// Number of times the size exceeded the hard mark since the last restart.
    pub(super) hard_crossings: u32,
    pub(super) restarts: u32,
    /// Number of requests that have ended so far.
    pub(super) requests: u32,
    /// Value of `requests` when each message took its current form.
    pub(super) since: Vec<u32>,
    /// First message that the current compaction changes.
    pub(super) changed_from: usize,
    /// Whether a result was reduced because of its own size alone.
    pub(super) has_oversized: bool,
    /// Number of changes to the sent form, so that only a compaction that changed something counts.
    pub(super) changes: u64,
    pub(super) notes: Vec<Note>,
    /// Number of removed messages that no note mentions.
    pub(super) unmentioned: usize,
    /// Removed messages that no note of excerpts covers.
    pub(super) unexcerpted: Vec<usize>,
    /// Messages that only the last note covers, if the next compaction must rewrite it.
    pub(super) provisional: Vec<usize>,
    pub(super) history: History,
    /// Size of the request as sent, including overhead.
    pub(super) size_tokens: u64,
    received_tokens: u64,
    system_run_tokens: u64,
    compactions: u32,
    /// Sizes at or below these trigger nothing: a compaction that could not reach its mark waits
    /// for growth.
    soft_rest_tokens: u64,
    hard_rest_tokens: u64,
    /// Whether the last message ends a possible request that has not been examined.
    is_pending: bool,
    /// Whether the last message ends a possible request that has been examined.
    pub(super) is_settled: bool,
}

impl Compactor {
    /// Creates the state of an empty transcript.
    pub(crate) fn new(profile: Arc<Profile>) -> Self {
        Self {
            size_tokens: profile.overhead_tokens,
            profile,
            facts: Vec::new(),
            fates: Vec::new(),
            turns: Turns::default(),
            live: Vec::new(),
            first_user: None,
            clips: BTreeMap::new(),
            rewrites: BTreeMap::new(),
            masked_calls: BTreeSet::new(),
            widenings: 0,
            hard_crossings: 0,
            restarts: 0,
            requests: 0,
            since: Vec::new(),
            changed_from: usize::MAX,
            has_oversized: false,
            changes: 0,
            notes: Vec::new(),
            unmentioned: 0,
            unexcerpted: Vec::new(),
            provisional: Vec::new(),
            history: History::default(),
            received_tokens: 0,
            system_run_tokens: 0,
            compactions: 0,
            soft_rest_tokens: 0,
            hard_rest_tokens: 0,
            is_pending: false,
            is_settled: false,
        }
    }

    /// Adds the next message, after examining the point before it if a request could have ended
    /// there.
    pub(crate) fn push(&mut self, mut fact: Fact, source: &dyn Source) {
        if self.is_pending && fact.role != Role::Tool {
            self.settle(source);
        }
        let message = self.facts.len();
        fact.is_pinned |= self.is_anchor(message, &fact, source);
        self.turns.push(&fact);
        self.facts.push(fact);
        self.fates.push(Fate::Kept);
        self.since.push(self.requests);
        self.size_tokens += fact.tokens;
        self.received_tokens += fact.tokens;
        self.is_pending = matches!(fact.role, Role::User | Role::Other | Role::Tool);
        if self.turns.system_run == message + 1 {
            self.system_run_tokens += fact.tokens;
        }
        self.is_settled = false;
        self.track_turn(message);
        self.watch_for_rereading(message, source);
        self.refer_to_oversized(message, source);
        if self.is_pending && self.turns.is_certain_point(&fact) {
            self.settle(source);
        }
    }

    /// Returns whether one of the policy's patterns matches the text of a message.
    fn is_anchor(&self, message: usize, fact: &Fact, source: &dyn Source) -> bool {
        let anchors = &self.profile.policy.anchors;
        !anchors.is_empty()
            && matches!(fact.role, Role::User | Role::Assistant)
            && source.message(message).is_some_and(|own| anchors.matches(&own))
    }

    /// Updates the lists of live turns after the turns changed, possibly by a merge.
    fn track_turn(&mut self, message: usize) {
        let turns = self.turns.list.len();
        while self.live.last().is_some_and(|turn| *turn >= turns) {
            self.live.pop();
        }
        let Some(turn) = self.turns.of_message[message] else { return };
        if self.live.last() != Some(&turn) {
            self.live.push(turn);
        }
        if self.first_user.is_none() && self.turns.list[turn].kind == TurnKind::User {
            self.first_user = Some(turn);
        }
        if self.first_user.is_some_and(|turn| turn >= turns) {
            self.first_user = None;
        }
    }

    /// Returns the state for sending a request that ends here. Copies only if longer transcripts do
    /// not examine this point too and a compaction is due.
    pub(crate) fn ended(&self, source: &dyn Source) -> std::borrow::Cow<'_, Self> {
        if self.is_settled || self.due(self.size_tokens).is_none() {
            return std::borrow::Cow::Borrowed(self);
        }
        let mut end = self.clone();
        end.settle(source);
        std::borrow::Cow::Owned(end)
    }

    /// Examines the size, and compacts if it is above a mark.
    fn settle(&mut self, source: &dyn Source) {
        self.is_pending = false;
        self.is_settled = true;
        if let Some(mark) = self.due(self.size_tokens) {
            self.compact(mark, source);
        }
        self.requests += 1;
    }

    fn compact(&mut self, mark: Mark, source: &dyn Source) {
        let changes = self.changes;
        let (before, notes) = (Before::of(self), self.notes.clone());
        self.changed_from = usize::MAX;
        self.history.summary = SummaryUse::Absent;
        compaction::run(self, mark, source);
        let stay = notes.len() == self.notes.len()
            && notes.iter().zip(&self.notes).all(|(before, now)| now.is_sent_as(before));
        if !stay {
            let places = notes.iter().chain(&self.notes).map(|note| note.message);
            self.changed_from = places.fold(self.changed_from, usize::min);
        }
        self.reset_since(self.changed_from.min(self.since.len()));
        if self.changes != changes || !stay {
            self.compactions += 1;
            History::record(self, mark, &before);
        }
        let is_at_low = self.size_tokens <= self.low_tokens();
        let rest_tokens = if is_at_low { 0 } else { self.size_tokens + self.progress_tokens() };
        self.soft_rest_tokens = rest_tokens;
        if mark == Mark::Hard {
            self.hard_rest_tokens = rest_tokens;
        }
    }

    /// Returns whether the size is above a mark.
    pub fn is_above_mark(&self) -> bool {
        self.due(self.size_tokens).is_some()
    }

    /// Returns whether a compaction may be due at one of the next messages, whose facts are `more`,
    /// or later with `uncounted_tokens` behind them. Each of them can lower the marks, so their total
    /// is compared with the lowest.
    pub(crate) fn may_compact(&self, more: &[Fact], uncounted_tokens: u64) -> bool {
        let more_tokens = more.iter().map(|fact| fact.tokens).sum::<u64>() + uncounted_tokens;
        // A result that is still missing makes a first user message behind its call part of that
        // turn, and the marks lose their base.
        let is_loose = self.first_user.is_some_and(|turn| turn > self.turns.newest_from());
        let loose_tokens = if is_loose { self.base_tokens().1 } else { 0 };
        let reserved = if self.compactions > 0 { recall::most_reserved_tokens(self, more) } else { 0 };
        self.due_with(self.size_tokens + more_tokens + loose_tokens, reserved).is_some()
    }

    /// Returns the mark that a size exceeds, if a compaction is due.
    fn due(&self, size_tokens: u64) -> Option<Mark> {
        self.due_with(size_tokens, self.reserved_tokens())
    }

    /// Returns the same, with `reserved_tokens` for recall.
    fn due_with(&self, size_tokens: u64, reserved_tokens: u64) -> Option<Mark> {
        let (soft_tokens, hard_tokens) = self.due_above_with(reserved_tokens);
        if size_tokens > hard_tokens {
            return Some(Mark::Hard);
        }
        soft_tokens.is_some_and(|soft| size_tokens > soft).then_some(Mark::Soft)
    }

    /// Returns the sizes above which a soft compaction, if the policy has one, and a hard one are
    /// due.
    pub(super) fn due_above(&self) -> (Option<u64>, u64) {
        self.due_above_with(self.reserved_tokens())
    }

    fn due_above_with(&self, reserved_tokens: u64) -> (Option<u64>, u64) {
        let limit = self.profile.limit_tokens;
        let hard = self.hard_tokens().min(limit - reserved_tokens);
        let hard = hard.max(self.hard_rest_tokens).min(limit);
        let soft = self.profile.policy.zones.soft_permille;
        let (base, fixed) = self.base_tokens();
        let soft_tokens = (fixed + share(base, soft)).max(self.soft_rest_tokens);
        ((soft > 0).then_some(soft_tokens), hard)
    }

    /// Returns the tokens that a compaction must free to be worthwhile, and the growth required
    /// after one that fell short.
    pub(super) fn progress_tokens(&self) -> u64 {
        share(self.profile.limit_tokens, self.profile.policy.zones.min_progress_permille)
    }

    /// Returns the size that marks use as the limit.
    fn marked_tokens(&self) -> u64 {
        match self.profile.policy.zones.trigger_tokens {
            0 => self.profile.limit_tokens,
            trigger => trigger.min(self.profile.limit_tokens),
        }
    }

    /// Returns the base of the marks, and the tokens below it. The base is the limit less overhead,
    /// system run and first user message.
    pub(super) fn base_tokens(&self) -> (u64, u64) {
        let first_user = self.first_user.map(|turn| &self.turns.list[turn]);
        let first_user =
            first_user.filter(|turn| !turn.is_gone).map_or(0, |turn| self.facts[turn.first].tokens);
        let limit = self.marked_tokens();
        let fixed = (self.profile.overhead_tokens + self.system_run_tokens + first_user).min(limit);
        (limit - fixed, fixed)
    }

    /// Returns the size above which a hard compaction is due.
    fn hard_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        fixed + share(base, self.profile.policy.hard_permille)
    }

    /// Returns whether the messages as received stay at or under the first mark for the exact limit
    /// and overhead, without the profile's rounding.
    pub fn needs_nothing(&self, limit_tokens: u64, overhead_tokens: u64) -> bool {
        let policy = &self.profile.policy;
        let messages_tokens = self.base_tokens().1.saturating_sub(self.profile.overhead_tokens);
        let marked_tokens = match policy.zones.trigger_tokens {
            0 => limit_tokens,
            trigger => trigger.min(limit_tokens),
        };
        let fixed = (overhead_tokens + messages_tokens).min(marked_tokens);
        let first_permille = match policy.zones.soft_permille {
            0 => policy.hard_permille,
            soft => soft.min(policy.hard_permille),
        };
        let mark = fixed + share(marked_tokens - fixed, first_permille);
        !self.has_oversized && self.received_tokens + overhead_tokens <= mark
    }

    /// Returns the size that a compaction reduces to.
    pub(super) fn low_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        let policy = &self.profile.policy;
        let limit = self.profile.limit_tokens;
        let low = fixed + share(base, policy.low_permille);
        let free =
            share(limit, policy.min_growth_permille.min(1000)) + recall::reserved_tokens(self);
        low.min(limit.saturating_sub(free))
    }

    /// Returns the tokens that a request ending here reserves for recall, once something is
    /// removed.
    fn reserved_tokens(&self) -> u64 {
        if self.compactions > 0 { recall::reserved_tokens(self) } else { 0 }
    }

    /// Returns the size of the messages as received, without overhead.
    pub fn received_tokens(&self) -> u64 {
        self.received_tokens
    }

    /// Returns the size of the messages as sent, without overhead.
    pub fn sent_tokens(&self) -> u64 {
        self.size_tokens - self.profile.overhead_tokens
    }

    /// Returns the number of compactions so far.
    pub fn compactions(&self) -> u32 {
        self.compactions
    }

    /// Returns the number of restarts among the compactions.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns the number of sent notes that begin with a model's summary.
    pub fn summaries(&self) -> usize {
        self.notes.iter().filter(|note| note.summary.is_some()).count()
    }

    /// Returns whether the last compaction happened at the last message.
    pub fn is_compacted_here(&self) -> bool {
        self.history.last().is_some_and(|compaction| compaction.messages == self.messages())
    }

    /// Returns the history of compactions.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> usize {
        self.facts.len()
    }

    /// Returns the fate of each message.
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// Returns the facts of each message.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Returns whether every message is sent as received.
    pub fn is_untouched(&self) -> bool {
        self.notes.is_empty() && self.fates.iter().all(|fate| *fate == Fate::Kept)
    }

    /// Estimates the memory of the state, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let message = size_of::<Fact>() + size_of::<Fate>() + size_of::<Option<usize>>();
        let turn = size_of::<super::turn::Turn>() + size_of::<usize>();
        let clip = 128;
        size_of::<Self>()
            + self.facts.capacity() * message
            + self.turns.list.capacity() * turn
            + self.clips.len() * clip
            + self.masked_calls.len() * 16
            + self.rewrites.values().map(Rewrite::memory_bytes).sum::<usize>()
            + self.notes.iter().map(Note::memory_bytes).sum::<usize>()
            + self.history.memory_bytes()
    }
}

/// Returns `permille` thousandths of `whole`.
pub(super) fn share(whole: u64, permille: u32) -> u64 {
    (u128::from(whole) * u128::from(permille) / 1000) as u64
}
