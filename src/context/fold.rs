//! The fold: a transcript taken message by message, with a cut wherever a request could have ended
//! and the size lay above the mark. A fate once given is never taken back.
//!
//! The state after a transcript depends on the profile and the messages alone. Nothing else, no
//! earlier request and no cache, has any part in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::clip::Clipped;
use super::cut;
use super::history::{Eve, History};
use super::limit::Profile;
use super::measure::Fact;
use super::note::Note;
use super::source::Source;
use super::turn::{TurnKind, Turns};
use crate::wire::Role;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Kept,
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
    pub(super) notes: Vec<Note>,
    /// Messages gone that no note speaks of.
    pub(super) untold: usize,
    /// Messages gone that no note of excerpts stands for.
    pub(super) unspoken: Vec<usize>,
    pub(super) history: History,
    /// Tokens of what is sent, overhead included.
    pub(super) size_tokens: u64,
    received_tokens: u64,
    system_run_tokens: u64,
    cuts: u32,
    /// Whether the last message is a point that has not been looked at.
    is_pending: bool,
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
            notes: Vec::new(),
            untold: 0,
            unspoken: Vec::new(),
            history: History::default(),
            received_tokens: 0,
            system_run_tokens: 0,
            cuts: 0,
            is_pending: false,
        }
    }

    /// Takes the next message, after looking at the point before it where a request could have
    /// ended there.
    pub fn push(&mut self, fact: Fact, source: &dyn Source) {
        if self.is_pending && fact.role != Role::Tool {
            self.settle(source);
        }
        let message = self.facts.len();
        self.turns.push(&fact);
        self.facts.push(fact);
        self.fates.push(Fate::Kept);
        self.size_tokens += fact.tokens;
        self.received_tokens += fact.tokens;
        self.is_pending = matches!(fact.role, Role::User | Role::Other | Role::Tool);
        if self.turns.system_run == message + 1 {
            self.system_run_tokens += fact.tokens;
        }
        self.track_turn(message);
        if self.is_pending && self.turns.is_certain_point(&fact) {
            self.settle(source);
        }
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
        if self.size_tokens <= self.mark_tokens() {
            return std::borrow::Cow::Borrowed(self);
        }
        let mut end = self.clone();
        end.settle(source);
        std::borrow::Cow::Owned(end)
    }

    /// Looks at the size, and cuts where it lies above the mark.
    fn settle(&mut self, source: &dyn Source) {
        self.is_pending = false;
        if self.size_tokens > self.mark_tokens() {
            let before = self.size_tokens;
            let eve = Eve::of(self);
            cut::cut(self, source);
            if self.size_tokens < before {
                self.cuts += 1;
                History::record(self, &eve);
            }
        }
    }

    /// Whether taking the facts so far has left the size above the mark at its end.
    pub fn is_above_mark(&self, more_tokens: u64) -> bool {
        self.size_tokens + more_tokens > self.mark_tokens()
    }

    /// What marks are shares of: what the limit leaves after overhead, system run and first user
    /// message. Gives that, and what lies below it.
    pub(super) fn base_tokens(&self) -> (u64, u64) {
        let first_user = self.first_user.map(|turn| &self.turns.list[turn]);
        let first_user =
            first_user.filter(|turn| !turn.is_gone).map_or(0, |turn| self.facts[turn.first].tokens);
        let limit = self.profile.limit_tokens;
        let fixed = (self.profile.overhead_tokens + self.system_run_tokens + first_user).min(limit);
        (limit - fixed, fixed)
    }

    /// The size above which a cut is due.
    pub(super) fn mark_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        let k = super::knobs::knobs();
        let hard = if self.cuts > 0 { k.hard2 } else { k.hard };
        fixed + (base as f64 * hard) as u64
    }

    /// Whether the messages as received lie at or under the first mark as it would be without the
    /// profile's rounding, for a limit and an overhead as they really are.
    pub fn needs_nothing(&self, limit_tokens: u64, overhead_tokens: u64) -> bool {
        let messages_tokens = self.base_tokens().1.saturating_sub(self.profile.overhead_tokens);
        let fixed = (overhead_tokens + messages_tokens).min(limit_tokens);
        let mark = fixed + share(limit_tokens - fixed, self.profile.policy.hard_permille);
        self.received_tokens + overhead_tokens <= mark
    }

    /// The size a cut goes down to.
    pub(super) fn low_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        let policy = &self.profile.policy;
        let limit = self.profile.limit_tokens;
        let low = fixed + share(base, policy.low_permille);
        low.min(limit - share(limit, policy.min_growth_permille.min(1000)))
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
            + self.notes.len() * size_of::<Note>()
            + self.history.memory_bytes()
    }
}

/// `permille` thousandths of `whole`.
pub(super) fn share(whole: u64, permille: u32) -> u64 {
    (u128::from(whole) * u128::from(permille) / 1000) as u64
}
