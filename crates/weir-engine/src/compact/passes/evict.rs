//! Eviction: removes whole exchanges and turns, least important first. The caller decides when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Compaction;
use crate::compact::policy::{Fill, Importance, Notes, share};
use crate::compact::source::Source;
use crate::compact::state::history::Pin;
use crate::compact::state::turns::{Turn, TurnKind};

/// Room left for the note of a compaction.
const NOTE_TOKENS: u64 = 40;
/// Score added to a turn in the last quarter of the transcript.
const RECENT_SCORE: u32 = 15;
/// Tokens added to a turn's size when its value is divided by it, so that tiny turns do not outrank
/// all others.
const SMALL_TURN_TOKENS: u64 = 50;

impl Compaction<'_> {
    /// Evicts by the policy's method, with `low_tokens` as the low mark.
    pub(crate) fn evict_to(&mut self, low_tokens: u64, source: &dyn Source) {
        let eviction = self.state.profile.policy.eviction;
        if eviction.keep_messages > 0 {
            self.pin_last(eviction.keep_messages as usize);
            self.evict_down_to(0);
            return;
        }
        self.pin_recent(u64::MAX);
        if eviction.importance == Importance::Reference {
            self.importances = Some(self.importances_by_reference(source));
        }
        match eviction.fill {
            Fill::LowMark => self.evict_down_to(low_tokens),
            Fill::Greedy => self.fill_greedily(),
        }
    }

    /// Pins the turns that hold the last `messages` messages.
    fn pin_last(&mut self, messages: usize) {
        let first = self.state.messages.facts.len().saturating_sub(messages);
        let last: Vec<usize> =
            self.older().iter().copied().filter(|turn| self.turn(*turn).last >= first).collect();
        for turn in last {
            self.pins.entry(turn).or_insert(Pin::Recent);
        }
    }

    /// Returns the importance of each turn: how much of its content the assistant used later,
    /// relative to its size.
    fn importances_by_reference(&self, source: &dyn Source) -> Vec<u32> {
        let lexicon = source.lexicon(self.state.messages.facts.len());
        let importance = |turn: &Turn| {
            let messages = turn.first..=turn.last;
            let mut ids: Vec<u32> =
                messages.flat_map(|message| lexicon.ids_of(message)).copied().collect();
            ids.sort_unstable();
            ids.dedup();
            let weight: f64 = ids.iter().map(|id| lexicon.weight(*id)).sum();
            (weight * 1e6 / (turn.tokens + SMALL_TURN_TOKENS) as f64) as u32
        };
        self.state.turns.list.iter().map(importance).collect()
    }

    /// Keeps the most important turns that fit in the limit, then the newest, skipping those that
    /// do not fit. Removes all others.
    fn fill_greedily(&mut self) {
        let policy = &self.state.profile.policy;
        let limit = self.state.profile.limit_tokens;
        let most_tokens = limit - share(limit, policy.min_growth_permille.min(1000));
        let is_strict = policy.strict_alternation;
        let groups = self.groups();
        let tokens_of =
            |turns: &[usize]| turns.iter().map(|turn| self.turn(*turn).tokens).sum::<u64>();
        // Turns that are chosen together, and parts of exchanges that can only be removed from the
        // front.
        let mut units: Vec<(u32, Vec<usize>)> = Vec::new();
        let mut fronts: Vec<Vec<usize>> = Vec::new();
        for group in groups {
            if is_strict && group.is_whole {
                units.push((group.importance, group.all));
            } else if is_strict {
                fronts.push(group.front.into());
            } else {
                let single = |turn| (self.turn_importance(turn), vec![turn]);
                let turns: Vec<usize> = if group.is_whole { group.all } else { group.front.into() };
                units.extend(turns.into_iter().map(single));
            }
        }
        units.sort_by_key(|(importance, turns)| Reverse((*importance, turns[0])));
        let loose = units.iter().map(|(_, turns)| tokens_of(turns)).sum::<u64>()
            + fronts.iter().map(|turns| tokens_of(turns)).sum::<u64>();
        let mut size_tokens = self.state.sizes.request_tokens - loose + NOTE_TOKENS;
        let mut gone = Vec::new();
        let mut stays = |turns: &[usize]| {
            let tokens = tokens_of(turns);
            let fits = size_tokens + tokens <= most_tokens;
            size_tokens += if fits { tokens } else { 0 };
            fits
        };
        for (_, turns) in units {
            if !stays(&turns) {
                gone.extend(turns);
            }
        }
        for mut turns in fronts {
            while let Some(turn) = turns.pop() {
                if !stays(&[turn]) {
                    gone.push(turn);
                    gone.append(&mut turns);
                }
            }
        }
        gone.sort_unstable();
        gone.into_iter().for_each(|turn| self.evict(turn));
        self.sweep();
    }

    pub(crate) fn is_above(&self, mark_tokens: u64) -> bool {
        self.state.sizes.request_tokens + NOTE_TOKENS > mark_tokens
    }

    /// Removes the least important exchanges, or turns from the front of exchanges that hold a pin,
    /// until the size is at the mark.
    pub(crate) fn evict_down_to(&mut self, mark_tokens: u64) {
        let mut groups = self.groups();
        let mut queue: BinaryHeap<_> = groups
            .iter()
            .enumerate()
            .map(|(index, group)| Reverse((self.importance(group), index)))
            .collect();
        while self.is_above(mark_tokens) {
            let Some(Reverse((_, index))) = queue.pop() else { break };
            let over = self.state.sizes.request_tokens + NOTE_TOKENS - mark_tokens;
            let group = &mut groups[index];
            if group.is_whole && (group.tokens <= over || group.front.is_empty()) {
                let all = std::mem::take(&mut group.all);
                all.into_iter().for_each(|turn| self.evict(turn));
            } else if let Some(turn) = group.front.pop_front() {
                group.tokens -= self.state.turns.list[turn].tokens;
                self.evict(turn);
                queue.push(Reverse((self.importance(&groups[index]), index)));
            }
        }
        self.sweep();
    }

    /// Groups the live turns by exchange, with the turns of each that may be removed.
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for turn in &self.state.turns.live {
            let own = self.turn(*turn);
            if self.begins_exchange(*turn, groups.last().and_then(|group| group.all.last())) {
                groups.push(Group::default());
            }
            let stays = self.is_pinned(*turn);
            let importance = self.turn_importance(*turn);
            let Some(group) = groups.last_mut() else { continue };
            group.is_whole &= !stays;
            group.all.push(*turn);
            group.tokens += own.tokens;
            group.importance = group.importance.max(importance);
            if own.kind != TurnKind::User {
                group.last_answer_stays = stays;
                if !stays {
                    group.front.push_back(*turn);
                }
            }
        }
        for group in &mut groups {
            let holds_answer = group.is_whole || self.state.profile.policy.strict_alternation;
            if holds_answer && !group.last_answer_stays {
                // The remaining part of the exchange ends with an answer.
                group.front.pop_back();
            }
        }
        groups
    }

    /// Returns the size of all turns that may be removed, however low the mark is.
    pub(crate) fn loose_tokens(&self) -> u64 {
        let loose = |group: Group| match group.is_whole {
            true => group.all,
            false => group.front.into(),
        };
        let loose = self.groups().into_iter().flat_map(loose);
        loose.map(|turn| self.turn(turn).tokens).sum()
    }

    /// Returns whether `turn` begins an exchange; `before` is the live turn in front of it. If
    /// roles must alternate, the remains of an exchange without its user message join the one
    /// before: their answers separate its user message from the next.
    fn begins_exchange(&self, turn: usize, before: Option<&usize>) -> bool {
        let Some(before) = before else { return true };
        let strict = self.state.profile.policy.strict_alternation;
        self.turn(turn).exchange != self.turn(*before).exchange
            && (!strict || self.turn(turn).kind == TurnKind::User)
    }

    /// Returns the live turns by exchange; the newest is the last.
    pub(crate) fn exchanges(&self) -> Vec<Vec<usize>> {
        let mut exchanges: Vec<Vec<usize>> = Vec::new();
        for turn in &self.state.turns.live {
            match exchanges.last_mut() {
                Some(last) if !self.begins_exchange(*turn, last.last()) => last.push(*turn),
                _ => exchanges.push(vec![*turn]),
            }
        }
        exchanges
    }

    /// Returns the importance of the next part that a group would give up.
    fn importance(&self, group: &Group) -> u32 {
        if group.is_whole {
            group.importance
        } else {
            group.front.front().map_or(u32::MAX, |turn| self.turn_importance(*turn))
        }
    }

    fn turn_importance(&self, turn: usize) -> u32 {
        if let Some(importances) = &self.importances {
            return importances[turn];
        }
        let own = self.turn(turn);
        let is_recent = own.last >= self.state.messages.facts.len() * 3 / 4;
        own.importance + if is_recent { RECENT_SCORE } else { 0 }
    }

    /// Marks a turn as removed; `sweep` then drops it from the list of live turns.
    pub(crate) fn evict(&mut self, turn: usize) {
        if self.turn(turn).is_gone {
            return;
        }
        let (first, last) = (self.turn(turn).first, self.turn(turn).last);
        for message in first..=last {
            if self.state.turns.of_message[message] != Some(turn) {
                continue;
            }
            self.evict_message(message);
        }
        self.state.turns.list[turn].is_gone = true;
    }

    /// Marks one message as removed.
    pub(crate) fn evict_message(&mut self, message: usize) {
        let tokens = self.state.messages.current_tokens(message);
        self.state.sizes.request_tokens -= tokens;
        if message < self.state.turns.system_run {
            self.state.sizes.system_run_tokens -= tokens;
        }
        self.state.messages.remove(message);
        self.state.changes.count += 1;
        self.left_out += 1;
        self.state.notes.unexcerpted.push(message);
        self.touch(message);
        self.drop_notes_of(message);
    }

    pub(crate) fn sweep(&mut self) {
        self.state.turns.sweep();
    }

    fn drop_notes_of(&mut self, message: usize) {
        // Notes of excerpts move to another place.
        let moves = self.state.profile.policy.notes == Notes::Excerpts;
        let (mut tokens, mut left_out) = (0, 0);
        self.state.notes.list.retain(|note| {
            let goes = note.message == message && (!moves || note.excerpts.is_none());
            tokens += if goes { note.tokens } else { 0 };
            left_out += if goes { note.left_out } else { 0 };
            !goes
        });
        self.state.sizes.request_tokens -= tokens;
        self.left_out += left_out;
    }

    /// Removes results at the start whose call is gone: a conversation must not open with one.
    pub(crate) fn drop_leading_orphans(&mut self) {
        while let Some(turn) = self.older().first().copied() {
            if self.gap.is_none() || self.turn(turn).kind != TurnKind::Orphan {
                return;
            }
            self.evict(turn);
            self.sweep();
        }
    }
}

/// Live turns of one exchange.
struct Group {
    all: Vec<usize>,
    /// Turns that may be removed from the front while the rest of the exchange stays.
    front: VecDeque<usize>,
    tokens: u64,
    /// Highest importance among its turns.
    importance: u32,
    /// Whether nothing in it is pinned.
    is_whole: bool,
    last_answer_stays: bool,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            front: VecDeque::new(),
            tokens: 0,
            importance: 0,
            is_whole: true,
            last_answer_stays: true,
        }
    }
}
