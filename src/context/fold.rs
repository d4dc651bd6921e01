//! The fold: a transcript taken message by message, with a cut wherever a request could have ended
//! and the size lay above the mark. A fate once given is never taken back.
//!
//! The state after a transcript depends on the profile and the messages alone. Nothing else, no
//! earlier request and no cache, has any part in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::clip::Clipped;
use super::cut::{self, Mark};
use super::history::{Eve, History, SummaryUse};
use super::limit::Profile;
use super::mask::Rewrite;
use super::measure::Fact;
use super::note::Note;
use super::source::Source;
use super::tail;
use super::turn::{TurnKind, Turns};
use crate::wire::Role;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Kept,
    /// Kept with a placeholder for what it said, or for the bulk of it.
    Masked,
    /// Kept with the middle of its texts left out.
    Clipped,
    Gone,
}

/// A conversation so far, and what of it is sent.
#[derive(Debug, Clone)]
pub struct Fold {
    pub(super) profile: Arc<Profile>,
    pub(super) facts: Vec<Fact>,
    pub(super) fates: Vec<Fate>,
    pub(super) turns: Turns,
    /// Turns that are still sent, in order.
    pub(super) live: Vec<usize>,
    pub(super) first_user: Option<usize>,
    pub(super) clips: BTreeMap<usize, Clipped>,
    /// Messages that stay with something of them gone.
    pub(super) rewrites: BTreeMap<usize, Rewrite>,
    /// The calls whose results were masked and that were not made again since.
    pub(super) masked_calls: BTreeSet<u64>,
    /// How often the protected window grew.
    pub(super) widenings: u32,
    /// How often the size lay above the hard mark since the last restart.
    pub(super) hard_crossings: u32,
    pub(super) restarts: u32,
    /// How many requests have ended so far.
    pub(super) requests: u32,
    /// For each message how many had ended when it took the form it is sent in.
    pub(super) since: Vec<u32>,
    /// The first message that the cut at hand changes.
    pub(super) changed_from: usize,
    /// Whether a result gave way because of its own size alone.
    pub(super) has_oversized: bool,
    /// Changes to what is sent, so that a cut that made one is counted.
    pub(super) changes: u64,
    pub(super) notes: Vec<Note>,
    /// Messages gone that no note speaks of.
    pub(super) untold: usize,
    /// Messages gone that no note of excerpts stands for.
    pub(super) unspoken: Vec<usize>,
    /// Messages that only the last note speaks of, where that is to be written again at the next cut.
    pub(super) provisional: Vec<usize>,
    pub(super) history: History,
    /// Tokens of what is sent, overhead included.
    pub(super) size_tokens: u64,
    received_tokens: u64,
    system_run_tokens: u64,
    cuts: u32,
    /// Sizes at or below these are not looked at again: a cut that could not reach its mark waits
    /// for growth.
    soft_rest_tokens: u64,
    hard_rest_tokens: u64,
    /// Whether the last message is a point that has not been looked at.
    is_pending: bool,
    /// Whether the last message is a point that has been looked at.
    pub(super) is_settled: bool,
}

impl Fold {
    /// The fold of no messages.
    pub fn new(profile: Arc<Profile>) -> Self {
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
            untold: 0,
            unspoken: Vec::new(),
            provisional: Vec::new(),
            history: History::default(),
            received_tokens: 0,
            system_run_tokens: 0,
            cuts: 0,
            soft_rest_tokens: 0,
            hard_rest_tokens: 0,
            is_pending: false,
            is_settled: false,
        }
    }

    /// Takes the next message, after looking at the point before it where a request could have
    /// ended there.
    pub fn push(&mut self, mut fact: Fact, source: &dyn Source) {
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

    /// Whether one of the policy's patterns matches what a message says.
    fn is_anchor(&self, message: usize, fact: &Fact, source: &dyn Source) -> bool {
        let anchors = &self.profile.policy.anchors;
        !anchors.is_empty()
            && matches!(fact.role, Role::User | Role::Assistant)
            && source.message(message).is_some_and(|own| anchors.matches(&own))
    }

    /// Keeps the lists of live turns in step with the turns, which may just have been joined.
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

    /// The state that a request ending here is sent by. Costs a copy only where the end is no
    /// point for longer transcripts too and a cut is due.
    pub fn ended(&self, source: &dyn Source) -> std::borrow::Cow<'_, Self> {
        if self.is_settled || self.due(self.size_tokens).is_none() {
            return std::borrow::Cow::Borrowed(self);
        }
        let mut end = self.clone();
        end.settle(source);
        std::borrow::Cow::Owned(end)
    }

    /// Looks at the size, and cuts where it lies above a mark.
    fn settle(&mut self, source: &dyn Source) {
        self.is_pending = false;
        self.is_settled = true;
        if let Some(mark) = self.due(self.size_tokens) {
            self.cut(mark, source);
        }
        self.requests += 1;
    }

    fn cut(&mut self, mark: Mark, source: &dyn Source) {
        let changes = self.changes;
        let (eve, notes) = (Eve::of(self), self.notes.clone());
        self.changed_from = usize::MAX;
        self.history.summary = SummaryUse::Absent;
        cut::cut(self, mark, source);
        let stay = notes.len() == self.notes.len()
            && notes.iter().zip(&self.notes).all(|(before, now)| now.is_sent_as(before));
        if !stay {
            let places = notes.iter().chain(&self.notes).map(|note| note.message);
            self.changed_from = places.fold(self.changed_from, usize::min);
        }
        self.register_anew(self.changed_from.min(self.since.len()));
        if self.changes != changes || !stay {
            self.cuts += 1;
            History::record(self, mark, &eve);
        }
        let is_at_low = self.size_tokens <= self.low_tokens();
        let rest_tokens = if is_at_low { 0 } else { self.size_tokens + self.progress_tokens() };
        self.soft_rest_tokens = rest_tokens;
        if mark == Mark::Hard {
            self.hard_rest_tokens = rest_tokens;
        }
    }

    /// Whether taking the facts so far has left the size above a mark at its end.
    pub fn is_above_mark(&self, more_tokens: u64) -> bool {
        self.due(self.size_tokens + more_tokens).is_some()
    }

    /// The cut that is due at a size.
    fn due(&self, size_tokens: u64) -> Option<Mark> {
        let (soft_tokens, hard_tokens) = self.due_above();
        if size_tokens > hard_tokens {
            return Some(Mark::Hard);
        }
        soft_tokens.is_some_and(|soft| size_tokens > soft).then_some(Mark::Soft)
    }

    /// The sizes above which a soft cut, where the policy has such, and a hard one are due.
    pub(super) fn due_above(&self) -> (Option<u64>, u64) {
        let limit = self.profile.limit_tokens;
        let hard = self.hard_tokens().min(limit - self.reserved_tokens());
        let hard = hard.max(self.hard_rest_tokens).min(limit);
        let soft = self.profile.policy.zones.soft_permille;
        let (base, fixed) = self.base_tokens();
        let soft_tokens = (fixed + share(base, soft)).max(self.soft_rest_tokens);
        ((soft > 0).then_some(soft_tokens), hard)
    }

    /// What a cut must free to be worth it, and the size must grow by after one that fell short.
    pub(super) fn progress_tokens(&self) -> u64 {
        share(self.profile.limit_tokens, self.profile.policy.zones.min_progress_permille)
    }

    /// The limit, or what is to be taken for it by the marks.
    fn marked_tokens(&self) -> u64 {
        match self.profile.policy.zones.trigger_tokens {
            0 => self.profile.limit_tokens,
            trigger => trigger.min(self.profile.limit_tokens),
        }
    }

    /// What marks are shares of: what the limit leaves after overhead, system run and first user
    /// message. Gives that, and what lies below it.
    pub(super) fn base_tokens(&self) -> (u64, u64) {
        let first_user = self.first_user.map(|turn| &self.turns.list[turn]);
        let first_user =
            first_user.filter(|turn| !turn.is_gone).map_or(0, |turn| self.facts[turn.first].tokens);
        let limit = self.marked_tokens();
        let fixed = (self.profile.overhead_tokens + self.system_run_tokens + first_user).min(limit);
        (limit - fixed, fixed)
    }

    /// The size above which a cut is due.
    fn hard_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        fixed + share(base, self.profile.policy.hard_permille)
    }

    /// Whether the messages as received lie at or under the first mark as it would be without the
    /// profile's rounding, for a limit and an overhead as they really are.
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

    /// The size a cut goes down to.
    pub(super) fn low_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        let policy = &self.profile.policy;
        let limit = self.profile.limit_tokens;
        let low = fixed + share(base, policy.low_permille);
        let free = share(limit, policy.min_growth_permille.min(1000)) + tail::reserved_tokens(self);
        low.min(limit.saturating_sub(free))
    }

    /// What a request that ends here keeps free for a tail, once something is gone.
    fn reserved_tokens(&self) -> u64 {
        if self.cuts > 0 { tail::reserved_tokens(self) } else { 0 }
    }

    /// Tokens of the messages as received, overhead left aside.
    pub fn received_tokens(&self) -> u64 {
        self.received_tokens
    }

    /// Tokens of the messages as sent, overhead left aside.
    pub fn sent_tokens(&self) -> u64 {
        self.size_tokens - self.profile.overhead_tokens
    }

    /// How many cuts the transcript has seen.
    pub fn cuts(&self) -> u32 {
        self.cuts
    }

    /// How many of the cuts were a fresh start.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// How many of the notes that are sent begin with what a model wrote.
    pub fn summaries(&self) -> usize {
        self.notes.iter().filter(|note| note.summary.is_some()).count()
    }

    /// Whether the last cut was made at the last message.
    pub fn is_cut_here(&self) -> bool {
        self.history.last().is_some_and(|cut| cut.messages == self.messages())
    }

    /// What the cuts did.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// How many messages it holds.
    pub fn messages(&self) -> usize {
        self.facts.len()
    }

    /// What becomes of each message.
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// What is known of each message.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Whether every message is sent as received.
    pub fn is_untouched(&self) -> bool {
        self.notes.is_empty() && self.fates.iter().all(|fate| *fate == Fate::Kept)
    }

    /// About how many bytes the fold takes in memory.
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

/// `permille` thousandths of `whole`.
pub(super) fn share(whole: u64, permille: u32) -> u64 {
    (u128::from(whole) * u128::from(permille) / 1000) as u64
}
