//! One cut: whole exchanges and turns go, least important first, down to the low mark; where that
//! does not bring the size within the limit, contents are clipped and pins released.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::clip::LADDER_TOKENS;
use super::fold::{Fate, Fold, share};
use super::note::{NOTES_PER_MESSAGE, Note, Place};
use super::policy::Notes;
use super::source::Source;
use super::turn::TurnKind;
use crate::wire::Role;

/// Room left for the note that a cut writes.
const NOTE_TOKENS: u64 = 40;
/// What the seam between a note and the text beside it may take.
const SEAM_TOKENS: u64 = 4;
/// What a turn in the last quarter of the transcript scores on top.
const RECENT_SCORE: u32 = 15;

/// Cuts `fold` down to its low mark, as far as that can be reached, and within its limit, as far
/// as that can be.
pub fn cut(fold: &mut Fold, source: &dyn Source) {
    if fold.turns.list.is_empty() {
        // System messages alone: nothing may go.
        return;
    }
    let mut cut = Cut::new(fold);
    if cut.fold.profile.policy.notes == Notes::Excerpts {
        let room = cut.condense();
        cut.fit(source);
        cut.drop_leading_orphans();
        cut.leave_excerpts(room, source);
        cut.remember_pins();
        return;
    }
    let low = cut.fold.low_tokens();
    cut.pin_recent(u64::MAX);
    cut.evict_down_to(low);
    cut.fit(source);
    cut.drop_leading_orphans();
    cut.leave_note();
    cut.remember_pins();
}

pub(super) struct Cut<'f> {
    pub(super) fold: &'f mut Fold,
    /// Turns from here on are the newest, which never go.
    pub(super) newest: usize,
    /// Why live turns before the newest stay; the others may go.
    pub(super) pins: BTreeMap<usize, Pin>,
    /// The first message that this cut takes.
    gap: Option<usize>,
    /// Messages gone in this cut, and those whose note went with its message.
    left_out: usize,
}

/// Why a turn stays, in the order in which the reasons give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pin {
    Recent,
    ByCaller,
    /// The user message of the newest exchange; it stays without a pin of its own.
    Question,
    FirstUser,
}

impl<'f> Cut<'f> {
    fn new(fold: &'f mut Fold) -> Self {
        let newest = fold.turns.newest_from();
        let mut cut = Self { fold, newest, pins: BTreeMap::new(), gap: None, left_out: 0 };
        cut.pin_by_caller();
        if let Some(turn) = cut.fold.first_user.filter(|turn| !cut.turn(*turn).is_gone) {
            cut.pins.insert(turn, Pin::FirstUser);
        }
        cut
    }

    /// Notes why turns stayed, for whoever asks later.
    fn remember_pins(self) {
        let (newest, pins) = (self.newest, self.pins);
        self.fold.history.newest = newest;
        self.fold.history.pins = pins;
    }

    pub(super) fn turn(&self, turn: usize) -> &super::turn::Turn {
        &self.fold.turns.list[turn]
    }

    /// The live turns before the newest, in order.
    pub(super) fn older(&self) -> &[usize] {
        let end = self.fold.live.partition_point(|turn| *turn < self.newest);
        &self.fold.live[..end]
    }

    /// The last messages before the newest turn, widened to whole turns, while they and the newest
    /// turn take no more than their share: so the low mark stays within reach.
    pub(super) fn pin_recent(&mut self, most_tokens: u64) {
        let policy = &self.fold.profile.policy;
        let most_tokens = share(self.fold.base_tokens().0, policy.recent_permille).min(most_tokens);
        let wanted = policy.recent_messages as usize;
        let mut messages = 0;
        let mut tokens: u64 =
            self.fold.turns.list[self.newest..].iter().map(|turn| turn.tokens).sum();
        let mut pins = BTreeMap::new();
        for turn in self.older().iter().rev() {
            let own = self.turn(*turn);
            tokens += own.tokens;
            if messages >= wanted || tokens > most_tokens {
                break;
            }
            messages += own.last - own.first + 1;
            pins.insert(*turn, Pin::Recent);
        }
        for (turn, pin) in pins {
            self.pins.entry(turn).or_insert(pin);
        }
    }

    /// Turns the caller marked, the oldest first, while they take no more than their share.
    fn pin_by_caller(&mut self) {
        let policy = &self.fold.profile.policy;
        let most_tokens = share(self.fold.profile.limit_tokens, policy.pinned_permille);
        let mut tokens = 0;
        let mut pins = BTreeMap::new();
        for turn in self.older().iter().filter(|turn| self.turn(**turn).is_pinned_by_caller) {
            tokens += self.turn(*turn).tokens;
            if tokens > most_tokens {
                break;
            }
            pins.insert(*turn, Pin::ByCaller);
        }
        self.pins.extend(pins);
    }

    fn is_pinned(&self, turn: usize) -> bool {
        turn >= self.newest || self.pins.contains_key(&turn)
    }

    fn is_above(&self, mark_tokens: u64) -> bool {
        self.fold.size_tokens + NOTE_TOKENS > mark_tokens
    }

    /// Takes the least important exchanges, or turns from the front of those that hold something
    /// pinned, until the size lies at the mark.
    pub(super) fn evict_down_to(&mut self, mark_tokens: u64) {
        let mut groups = self.groups();
        let mut queue: BinaryHeap<_> = groups
            .iter()
            .enumerate()
            .map(|(index, group)| Reverse((self.importance(group), index)))
            .collect();
        while self.is_above(mark_tokens) {
            let Some(Reverse((_, index))) = queue.pop() else { break };
            let over = self.fold.size_tokens + NOTE_TOKENS - mark_tokens;
            let group = &mut groups[index];
            if group.is_whole && (group.tokens <= over || group.front.is_empty()) {
                let all = std::mem::take(&mut group.all);
                all.into_iter().for_each(|turn| self.evict(turn));
            } else if let Some(turn) = group.front.pop_front() {
                group.tokens -= self.fold.turns.list[turn].tokens;
                self.evict(turn);
                queue.push(Reverse((self.importance(&groups[index]), index)));
            }
        }
        self.sweep();
    }

    /// The live turns by exchange, with what of each may go.
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for turn in &self.fold.live {
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
            let holds_answer = group.is_whole || self.fold.profile.policy.strict_alternation;
            if holds_answer && !group.last_answer_stays {
                // Whatever is left of the exchange ends with an answer.
                group.front.pop_back();
            }
        }
        groups
    }

    /// Whether `turn` begins an exchange, `before` being the live turn in front of it. Where roles
    /// must alternate, what is left of an exchange that lost its user message goes on the one
    /// before it: its answers are what keeps that one's user message apart from the next.
    fn begins_exchange(&self, turn: usize, before: Option<&usize>) -> bool {
        let Some(before) = before else { return true };
        let strict = self.fold.profile.policy.strict_alternation;
        self.turn(turn).exchange != self.turn(*before).exchange
            && (!strict || self.turn(turn).kind == TurnKind::User)
    }

    /// The live turns by exchange; the newest is the last.
    fn exchanges(&self) -> Vec<Vec<usize>> {
        let mut exchanges: Vec<Vec<usize>> = Vec::new();
        for turn in &self.fold.live {
            match exchanges.last_mut() {
                Some(last) if !self.begins_exchange(*turn, last.last()) => last.push(*turn),
                _ => exchanges.push(vec![*turn]),
            }
        }
        exchanges
    }

    /// How important what a group would give next is.
    fn importance(&self, group: &Group) -> u32 {
        if group.is_whole {
            group.importance
        } else {
            group.front.front().map_or(u32::MAX, |turn| self.turn_importance(*turn))
        }
    }

    fn turn_importance(&self, turn: usize) -> u32 {
        let own = self.turn(turn);
        let is_recent = own.last >= self.fold.facts.len() * 3 / 4;
        own.importance + if is_recent { RECENT_SCORE } else { 0 }
    }

    /// Takes a turn; `sweep` then takes it off the list of live ones.
    pub(super) fn evict(&mut self, turn: usize) {
        if self.turn(turn).is_gone {
            return;
        }
        let (first, last) = (self.turn(turn).first, self.turn(turn).last);
        for message in first..=last {
            if self.fold.turns.of_message[message] != Some(turn) {
                continue;
            }
            self.fold.size_tokens -= current_tokens(self.fold, message);
            self.fold.fates[message] = Fate::Gone;
            self.fold.clips.remove(&message);
            self.left_out += 1;
            self.fold.unspoken.push(message);
            self.gap = Some(self.gap.map_or(message, |gap| gap.min(message)));
            self.drop_notes_of(message);
        }
        self.fold.turns.list[turn].is_gone = true;
    }

    pub(super) fn sweep(&mut self) {
        let turns = &self.fold.turns.list;
        self.fold.live.retain(|turn| !turns[*turn].is_gone);
    }

    fn drop_notes_of(&mut self, message: usize) {
        let (mut tokens, mut left_out) = (0, 0);
        self.fold.notes.retain(|note| {
            let goes = note.message == message && note.excerpts.is_none();
            tokens += if goes { note.tokens } else { 0 };
            left_out += if goes { note.left_out } else { 0 };
            !goes
        });
        self.fold.size_tokens -= tokens;
        self.left_out += left_out;
    }

    /// Brings the size within the limit: first by clipping tool results, then by releasing pins.
    fn fit(&mut self, source: &dyn Source) {
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

    fn set_clip(&mut self, message: usize, before: u64, clipped: super::clip::Clipped) {
        let freed = before - clipped.text_tokens;
        self.fold.size_tokens -= freed;
        if let Some(turn) = self.fold.turns.of_message[message] {
            self.fold.turns.list[turn].tokens -= freed;
        }
        self.fold.fates[message] = Fate::Clipped;
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

    /// A conversation must not open with a result whose call is gone.
    fn drop_leading_orphans(&mut self) {
        while let Some(turn) = self.older().first().copied() {
            if self.gap.is_none() || self.turn(turn).kind != TurnKind::Orphan {
                return;
            }
            self.evict(turn);
            self.sweep();
        }
    }

    /// Leaves a note where turns went: after what the last kept user message before the gap says,
    /// else before what the next one says.
    fn leave_note(&mut self) {
        let left_out = self.left_out + self.fold.untold;
        let Some(gap) = self.gap.filter(|_| self.fold.profile.policy.notes == Notes::Count) else {
            self.fold.untold = left_out;
            return;
        };
        self.fold.untold = left_out;
        let Some((message, place)) = self.note_place(gap) else { return };
        self.merge_notes_of(message);
        let note = self.note(message, place, left_out);
        if self.fold.size_tokens + note.tokens <= self.fold.profile.limit_tokens {
            self.fold.size_tokens += note.tokens;
            self.fold.notes.push(note);
            self.fold.untold = 0;
        }
    }

    fn note(&self, message: usize, place: Place, left_out: usize) -> Note {
        let cut = self.fold.cuts() + 1;
        let mut note = Note { message, place, cut, left_out, tokens: 0, excerpts: None };
        note.tokens = self.fold.profile.measure.encoding.count(&note.text()) + SEAM_TOKENS;
        note
    }

    fn note_place(&self, gap: usize) -> Option<(usize, Place)> {
        let places = |turn: &&usize| {
            let own = self.turn(**turn);
            own.kind == TurnKind::User && self.fold.facts[own.first].takes_note
        };
        let after_gap = self.fold.live.partition_point(|turn| self.turn(*turn).first < gap);
        let (before, after) = self.fold.live.split_at(after_gap);
        let first_of = |turn: &usize| self.turn(*turn).first;
        let before = before.iter().rev().find(places).map(|turn| (first_of(turn), Place::After));
        // What the caller asks now is sent as it was asked.
        let is_last = |turn: &usize| self.turn(*turn).last + 1 == self.fold.facts.len();
        let after = || after.iter().find(|turn| places(turn) && !is_last(turn));
        before.or_else(|| after().map(|turn| (first_of(turn), Place::Before)))
    }

    /// Keeps a message from gathering notes without end: the two oldest become one.
    fn merge_notes_of(&mut self, message: usize) {
        let own: Vec<usize> = (0..self.fold.notes.len())
            .filter(|index| self.fold.notes[*index].message == message)
            .collect();
        if own.len() < NOTES_PER_MESSAGE {
            return;
        }
        let second = self.fold.notes.remove(own[1]);
        let first = &self.fold.notes[own[0]];
        let merged = self.note(message, first.place, first.left_out + second.left_out);
        self.fold.size_tokens -= first.tokens + second.tokens;
        self.fold.size_tokens += merged.tokens;
        self.fold.notes[own[0]] = merged;
    }
}

/// The live turns of one exchange.
struct Group {
    all: Vec<usize>,
    /// What may go while the rest of the exchange stays, from the front.
    front: VecDeque<usize>,
    tokens: u64,
    /// The highest among its turns.
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

fn text_tokens(fold: &Fold, message: usize) -> u64 {
    fold.clips.get(&message).map_or(fold.facts[message].text_tokens, |clip| clip.text_tokens)
}

pub(super) fn current_tokens(fold: &Fold, message: usize) -> u64 {
    let fact = &fold.facts[message];
    fact.tokens - fact.text_tokens + text_tokens(fold, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::clip::Clipped;
    use super::super::limit::Profile;
    use super::super::measure::{Fact, Measure};
    use super::super::note::Place;
    use super::super::policy::{Notes, Policy};
    use super::super::reading::Reading;
    use super::super::source::Source;
    use super::super::{Fate, Fold};
    use crate::tokens::Encoding;
    use crate::tokens::media::ImageRule;
    use crate::wire::Role;

    /// Clips by arithmetic: what is asked for is what comes.
    struct Halves;

    impl Source for Halves {
        fn clip(&self, _: usize, level_tokens: u64) -> Clipped {
            Clipped { cuts: Vec::new(), text_tokens: level_tokens }
        }

        fn reading(&self, _: usize) -> std::rc::Rc<Reading> {
            std::rc::Rc::new(Reading::of_text(Role::User, ""))
        }
    }

    /// A message a word: `s`ystem, `u`ser, `a`ssistant, `c`all (an assistant with one), `t`ool
    /// result, `o`ther; then its tokens; `!` marks it to stay.
    fn fold(limit_tokens: u64, policy: Policy, transcript: &str) -> Fold {
        let measure =
            Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
        let profile = Profile { limit_tokens, overhead_tokens: 0, policy, measure };
        let mut fold = Fold::new(Arc::new(profile));
        for word in transcript.split_whitespace() {
            let (kind, rest) = word.split_at(1);
            let tokens = rest.trim_end_matches('!').parse().expect("tokens after the role");
            let role = match kind {
                "s" => Role::System,
                "u" => Role::User,
                "a" | "c" => Role::Assistant,
                "t" => Role::Tool,
                "o" => Role::Other,
                _ => panic!("no role {kind}"),
            };
            let fact = Fact {
                role,
                tokens,
                text_tokens: tokens,
                calls: u32::from(kind == "c"),
                is_long: false,
                is_pinned: rest.ends_with('!'),
                is_marked: false,
                takes_note: true,
            };
            fold.push(fact, &Halves);
        }
        fold.ended(&Halves).into_owned()
    }

    fn kept(fold: &Fold) -> String {
        let words = fold.fates().iter().enumerate().filter_map(|(index, fate)| match fate {
            Fate::Kept => Some(index.to_string()),
            Fate::Clipped => Some(format!("{index}c")),
            Fate::Gone => None,
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Without notes, so that the sums in the rows are plain.
    fn plain() -> Policy {
        Policy { notes: Notes::Nothing, ..Policy::default() }
    }

    fn check(limit_tokens: u64, transcript: &str, expected: &str) {
        let fold = fold(limit_tokens, plain(), transcript);
        assert_eq!(kept(&fold), expected, "{transcript} within {limit_tokens}");
        assert!(fold.sent_tokens() <= limit_tokens);
    }

    #[test]
    fn nothing_happens_up_to_the_mark() {
        check(1000, "s100 u100 c100 t300 c100 t300", "0 1 2 3 4 5");
        check(10, "", "");
    }

    #[test]
    fn an_agents_oldest_turns_go_first_down_to_the_low_mark() {
        // Base 800, low 200 + 480 = 680; less the room for a note.
        check(1000, "s100 u100 c50 t150 c50 t150 c50 t150 c50 t151", "0 1 6 7 8 9");
    }

    #[test]
    fn whole_exchanges_go_in_a_chat() {
        // The first exchange is pinned by its user message, so that its answer goes alone.
        check(1000, "s100 u50 a150 u50 a150 u50 a150 u50 a150 u50 a150", "0 1 7 8 9 10");
    }

    #[test]
    fn a_turn_goes_or_stays_with_all_its_results() {
        check(1000, "u100 c10 t200 t200 c10 t200 t10 u100 a100 u150", "0 7 8 9");
    }

    #[test]
    fn marked_messages_stay_within_their_share() {
        check(1000, "u100 c50! t30 c100 t200 c100 t200 c100 t121", "0 1 2 7 8");
        // Two marked turns are more than a tenth of the limit: the second is an ordinary one.
        check(1000, "u100 c50! t30 c100! t200 c100 t200 c100 t121", "0 1 2 7 8");
    }

    #[test]
    fn least_important_exchanges_go_first() {
        // The plain exchange in the middle scores less than those around it, which use tools, and
        // goes whole; the second is larger than what is still to go, and keeps its ends.
        check(
            1000,
            "u50 c10 t90 a10 u50 c10 t200 a40 u50 a250 u50 c10 t90 a10 u90",
            "0 4 7 10 11 12 13 14",
        );
    }

    #[test]
    fn the_newest_turn_is_clipped_rather_than_lost() {
        check(10_000, "s100 u100 c100 t20000", "0 1 2 3c");
        check(1500, "s100 u100 c100 t20000", "0 1 2 3c");
        // The largest first, one step after another.
        check(7000, "u100 c100 t5000 c10 t3000", "0 3 4");
    }

    #[test]
    fn pins_give_way_in_their_order_before_the_limit_does() {
        // Nothing can be clipped: the turns before the newest go, then the first user message.
        check(1000, "s100 u300 a100 u300 a100 u350", "0 1 5");
        check(1000, "s100 u600 a100 u800", "0 3");
        check(1000, "s100 u600! a100 u10! a10 u800", "0 5");
    }

    #[test]
    fn what_cannot_fit_says_so() {
        let fold = fold(1000, plain(), "s100 u100 a100 u2000");
        assert_eq!(kept(&fold), "0 3");
        assert!(fold.sent_tokens() > 1000);
    }

    #[test]
    fn roles_alternate_where_they_must() {
        let strict = Policy { strict_alternation: true, ..plain() };
        for (limit, transcript, expected) in [
            (1000, "s100 u50 a150 u50 a150 u50 a150 u50 a150 u50 a150 u10", "0 1 2 7 8 9 10 11"),
            (1000, "s100 u300 a100 u300 a100 u350", "0 1 2 5"),
            (1000, "s100 u600 a100 u800", "0 3"),
            (1000, "u100 a100 u100 c50 t300 c50 t301", "0 1 2 5 6"),
            (1000, "u100 a100 u300 c50 t300 c250 t301", "0 5 6"),
        ] {
            let fold = fold(limit, strict.clone(), transcript);
            assert_eq!(kept(&fold), expected, "{transcript} within {limit}");
        }
    }

    #[test]
    fn a_note_stands_where_turns_went() {
        let fold = fold(1000, Policy::default(), "s100 u100 c50 t150 c50 t150 c50 t150 c50 t151");
        assert_eq!(fold.notes.len(), 1);
        assert_eq!((fold.notes[0].message, fold.notes[0].left_out), (1, 4));
        assert!(fold.notes[0].place == Place::After);
    }

    #[test]
    fn ten_thousand_tiny_messages_do_not_take_quadratic_time() {
        // Counted in steps of the engine, not in time: each cut frees room for many messages.
        let chat = "u3 a3 ".repeat(10_000);
        let fold = fold(2000, plain(), &chat);
        assert!(fold.sent_tokens() <= 2000);
        assert!(fold.cuts() <= 60_000 / 600, "{} cuts", fold.cuts());
    }
}
