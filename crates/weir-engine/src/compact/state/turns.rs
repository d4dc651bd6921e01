//! Turns and exchanges: messages that stay or are removed together. Built message by message from
//! earlier messages alone, so that a longer transcript regroups only from a turn that waits for results.
//!
//! A message that names an earlier block (the result of a call of any tool; a call made by a
//! program) joins that block's turn, with all that stands between. An ID names the last block that had
//! it. A result with no ID, or one that nothing has, belongs to the assistant's last turn, if that waits.
//! If the block is gone by then, the message goes, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::compact::message::links::Link;
use crate::compact::message::measure::Fact;
use crate::wire::Role;
use crate::wire::message::Naming;

/// Kind of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TurnKind {
    #[default]
    User,
    /// An assistant message with its calls, all their results, and what stands between.
    Assistant,
    /// A message of a role weir does not know.
    Other,
    /// A result without a preceding call: the caller's own, forwarded unchanged.
    Orphan,
}

/// Messages that stay or are removed together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turn {
    pub kind: TurnKind,
    /// First message. Its messages are those from here to `last`, except system messages.
    pub first: usize,
    pub last: usize,
    /// Exchange that it belongs to: a user message and everything up to the next one.
    pub exchange: usize,
    pub calls: u32,
    pub results: u32,
    /// Current size of its messages.
    pub tokens: u64,
    pub is_gone: bool,
    pub is_pinned_by_caller: bool,
    /// Whether it is the note of an earlier compaction.
    pub is_note: bool,
    /// Highest score among its messages, without the position bonus.
    pub importance: u32,
}

impl Turn {
    pub(crate) fn is_open(&self) -> bool {
        self.results < self.calls
    }
}

/// Turns of a transcript so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    pub list: Vec<Turn>,
    /// Turn of each message; system messages belong to none.
    pub of_message: Vec<Option<usize>>,
    /// Turns that are still sent, in order.
    pub live: Vec<usize>,
    /// First turn of a user, or the one before which nothing is in the prompt.
    pub first_user: Option<usize>,
    /// Number of leading system messages.
    pub system_run: usize,
    /// Index of the last assistant turn.
    last_assistant: Option<usize>,
    exchanges: usize,
    /// Message of the last block with each ID, and the key of its call.
    ids: BTreeMap<u32, (usize, u32)>,
    /// Calls by programs.
    inner: BTreeSet<u32>,
    /// Size of later turns up to which a turn waits for results. A call that is never answered must not
    /// keep all behind it for ever.
    wait_tokens: u64,
}

/// Place of a message among the turns.
enum Place {
    New,
    /// It belongs to this turn.
    In(usize),
    /// It names a block that is gone.
    Gone,
}

impl Turns {
    /// Creates the turns of an empty transcript; those that are larger than `wait_tokens` end the wait
    /// for results of those before them.
    pub(crate) fn new(wait_tokens: u64) -> Self {
        Self { wait_tokens, ..Self::default() }
    }

    /// Adds the next message, which has these names. Returns whether it stays: a message that names a
    /// block that is gone does not.
    pub(crate) fn push(&mut self, fact: &Fact, links: &[Link]) -> bool {
        let message = self.of_message.len();
        if fact.role == Role::System {
            if self.system_run == message {
                self.system_run += 1;
            }
            self.of_message.push(None);
            return true;
        }
        let place = self.place(links);
        self.bind(message, links);
        if matches!(place, Place::Gone) {
            self.of_message.push(None);
            return false;
        }
        let turn = match (fact.role, place) {
            (_, Place::In(turn)) => {
                self.take_in_all_after(turn);
                if fact.role == Role::Assistant {
                    self.last_assistant = Some(turn);
                }
                turn
            }
            (Role::Tool, _) => self.turn_for_result(message),
            (Role::User, _) if fact.is_aside && self.is_after_result() => self.list.len() - 1,
            (Role::User, _) => {
                // A note is about the exchange that it stands in.
                self.exchanges += usize::from(!fact.is_note);
                self.open(TurnKind::User, message)
            }
            (Role::Assistant, _) => {
                let turn = self.open(TurnKind::Assistant, message);
                self.last_assistant = Some(turn);
                turn
            }
            (Role::Other | Role::System, _) => self.open(TurnKind::Other, message),
        };
        self.of_message.push(Some(turn));
        let turn = &mut self.list[turn];
        turn.last = message;
        turn.tokens += fact.tokens;
        turn.calls += fact.links.waits;
        let answers = links.iter().filter(|link| link.naming == Naming::Answer).count() as u32;
        turn.results += answers.max(u32::from(fact.role == Role::Tool));
        turn.is_pinned_by_caller |= fact.is_pinned;
        turn.is_note = turn.first == message && fact.is_note && fact.role == Role::User;
        turn.importance = turn.importance.max(score(fact));
        true
    }

    /// Returns whether a result goes to a program alone, which is no part of the prompt.
    ///
    /// Source: Anthropic's and OpenAI's guides to programmatic tool calling.
    pub(crate) fn is_for_program(&self, fact: &Fact, links: &[Link]) -> bool {
        let mut answers = links.iter().filter(|link| link.naming == Naming::Answer).peekable();
        fact.role == Role::Tool
            && answers.peek().is_some()
            && answers.all(|link| self.inner.contains(&link.id))
    }

    /// Returns the place of a message by the blocks that it names: the turn of the first of them.
    fn place(&self, links: &[Link]) -> Place {
        let is_other = |link: &&Link| matches!(link.naming, Naming::Answer | Naming::Mention);
        let named = links.iter().filter(is_other).filter_map(|link| self.ids.get(&link.id));
        let mut place = Place::New;
        for (message, _) in named {
            let turn = self.of_message[*message].filter(|turn| !self.list[*turn].is_gone);
            let Some(turn) = turn else { return Place::Gone };
            place = match place {
                Place::In(other) => Place::In(other.min(turn)),
                _ => Place::In(turn),
            };
        }
        place
    }

    /// Returns the results in an assistant's message whose calls are gone, if it stays without them: it calls tools
    /// itself, or has results of other calls.
    pub(crate) fn stranded(&self, fact: &Fact, links: &[Link]) -> Vec<u32> {
        let is_answer = |link: &Link| link.naming == Naming::Answer;
        if fact.role != Role::Assistant || !links.iter().any(is_answer) {
            return Vec::new();
        }
        let is_left = |(message, _): &(usize, u32)| {
            self.of_message[*message].is_some_and(|turn| !self.list[turn].is_gone)
        };
        let is_gone = |link: &Link| self.ids.get(&link.id).is_some_and(|own| !is_left(own));
        let (answers, others): (Vec<&Link>, Vec<&Link>) =
            links.iter().partition(|link| is_answer(link) && is_gone(link));
        let stays = |link: &&Link| match link.naming {
            Naming::Call | Naming::Answer => true,
            Naming::Mention => self.ids.get(&link.id).is_none_or(is_left),
            Naming::Own | Naming::Inner => false,
        };
        let is_whole = others.iter().all(|link| link.naming != Naming::Mention || stays(link));
        if !is_whole || !others.iter().any(stays) {
            return Vec::new();
        }
        answers.into_iter().map(|link| link.id).collect()
    }

    /// Remembers the message of each block that it has. The first part to name an unknown block stands
    /// for it.
    fn bind(&mut self, message: usize, links: &[Link]) {
        for link in links {
            match link.naming {
                Naming::Call | Naming::Own => {
                    self.ids.insert(link.id, (message, link.key));
                }
                Naming::Mention => {
                    self.ids.entry(link.id).or_insert((message, 0));
                }
                Naming::Inner => _ = self.inner.insert(link.id),
                Naming::Answer => {}
            }
        }
    }

    /// Returns whether the last message is a result in a turn that is still sent.
    fn is_after_result(&self) -> bool {
        let last = self.list.last();
        last.is_some_and(|turn| {
            turn.results > 0 && !turn.is_gone && turn.last + 1 == self.of_message.len()
        })
    }

    fn open(&mut self, kind: TurnKind, message: usize) -> usize {
        self.list.push(Turn {
            kind,
            first: message,
            last: message,
            exchange: self.exchanges,
            ..Turn::default()
        });
        self.list.len() - 1
    }

    /// Returns the turn of a result. That is the last assistant turn if it still waits for results,
    /// even across other messages, or if it is directly before. Otherwise the result is an orphan.
    fn turn_for_result(&mut self, message: usize) -> usize {
        let Some(assistant) = self.last_assistant else {
            return self.open(TurnKind::Orphan, message);
        };
        if self.list[assistant].is_open() {
            self.take_in_all_after(assistant);
            return assistant;
        }
        if assistant + 1 == self.list.len() && !self.list[assistant].is_gone {
            return assistant;
        }
        self.open(TurnKind::Orphan, message)
    }

    /// Merges messages between a call and its result into the call's turn. Those that are gone belong to
    /// no turn then.
    fn take_in_all_after(&mut self, assistant: usize) {
        if assistant + 1 == self.list.len() {
            return;
        }
        let taken: Vec<Turn> = self.list.drain(assistant + 1..).collect();
        let turn = &mut self.list[assistant];
        for other in &taken {
            if other.is_gone {
                continue;
            }
            turn.tokens += other.tokens;
            turn.calls += other.calls;
            turn.results += other.results;
            turn.last = turn.last.max(other.last);
            turn.is_pinned_by_caller |= other.is_pinned_by_caller;
            turn.importance = turn.importance.max(other.importance);
        }
        self.exchanges = turn.exchange;
        for own in &mut self.of_message[turn.first..] {
            let Some(later) = own.filter(|own| *own > assistant) else { continue };
            let is_gone = taken[later - assistant - 1].is_gone;
            *own = (!is_gone).then_some(assistant);
        }
        self.last_assistant = self.last_assistant.map(|last| last.min(assistant));
    }

    /// Updates the live turns and the first user's after `message` was added, which may have merged
    /// turns.
    pub(crate) fn track(&mut self, message: usize) {
        let turns = self.list.len();
        while self.live.last().is_some_and(|turn| *turn >= turns) {
            self.live.pop();
        }
        let Some(turn) = self.of_message[message] else { return };
        if self.live.last() != Some(&turn) {
            self.live.push(turn);
        }
        let own = &self.list[turn];
        if self.first_user.is_none() && own.kind == TurnKind::User && !own.is_note {
            self.first_user = Some(turn);
        }
        if self.first_user.is_some_and(|turn| turn >= turns) {
            self.first_user = None;
        }
    }

    /// Takes a removed message of this size out of its turn, which begins with the next one then, and is
    /// gone with its last one.
    pub(crate) fn leave(&mut self, message: usize, tokens: u64) {
        let Some(turn) = self.of_message[message].take() else { return };
        let own = &mut self.list[turn];
        own.tokens -= tokens;
        let mut left = own.first..=own.last;
        match left.find(|message| self.of_message[*message] == Some(turn)) {
            Some(first) => own.first = first,
            None => own.is_gone = true,
        }
    }

    /// Takes all turns before this one out of what is compacted.
    pub(crate) fn begin_with(&mut self, turn: usize) {
        for own in &mut self.list[..turn] {
            own.is_gone = true;
        }
        self.first_user = Some(turn);
        self.sweep();
    }

    /// Drops removed turns from the live ones.
    pub(crate) fn sweep(&mut self) {
        let turns = &self.list;
        self.live.retain(|turn| !turns[*turn].is_gone);
    }

    /// Returns the first of the newest turns, which a compaction never removes. It is the last turn
    /// or, if turns still wait for results, the first of them. A turn waits while those behind it are
    /// small; the assistant's last one always does.
    pub(crate) fn newest_from(&self) -> usize {
        let last = self.list.len().saturating_sub(1);
        let is_open = |turn: &usize| self.list[*turn].is_open() && !self.list[*turn].is_gone;
        let mut first = self.last_assistant.filter(is_open).unwrap_or(last);
        let mut later_tokens = 0;
        for (turn, own) in self.list.iter().enumerate().rev() {
            if is_open(&turn) {
                first = first.min(turn);
            }
            later_tokens += if own.is_gone { 0 } else { own.tokens };
            if later_tokens > self.wait_tokens {
                break;
            }
        }
        first
    }

    /// Returns the keys of a result and of its call, if both can be compared.
    pub(crate) fn keys_of(&self, fact: &Fact) -> Option<(u32, u32)> {
        let mut links = fact.links.held().filter(|_| fact.role == Role::Tool)?;
        let answer = links.find(|link| link.naming == Naming::Answer)?;
        let (_, call) = *self.ids.get(&answer.id)?;
        (call != 0 && answer.key != 0).then_some((call, answer.key))
    }

    /// Estimates their memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        const ID: usize = 32;
        let ids = self.ids.len() + self.inner.len();
        self.list.capacity() * (size_of::<Turn>() + size_of::<usize>()) + ids * ID
    }

    /// Returns whether the last of the first `count` turns begins a round: a user's message after an
    /// answer of the model that calls nothing.
    pub(crate) fn begins_round(&self, count: usize) -> bool {
        let [.., before, last] = &self.list[..count] else { return false };
        let is_answer = before.kind == TurnKind::Assistant && before.calls == 0;
        is_answer && last.kind == TurnKind::User && !last.is_note
    }

    /// Returns whether a request could have ended after the last message, whichever message
    /// follows. It could after a user message, and after the last result that the calls wait for.
    pub(crate) fn is_certain_point(&self, last: &Fact) -> bool {
        match last.role {
            Role::User | Role::Other => true,
            Role::Tool => self.list.last().is_none_or(|turn| !turn.is_open()),
            Role::System | Role::Assistant => false,
        }
    }
}

/// Scores a message by its role and content.
fn score(fact: &Fact) -> u32 {
    let role = match fact.role {
        Role::System => 100,
        Role::Tool => 80,
        Role::User => 60,
        Role::Assistant => 40,
        Role::Other => 30,
    };
    let carries_tools = fact.calls > 0 || fact.role == Role::Tool;
    role + 20 * u32::from(carries_tools) + 10 * u32::from(fact.is_long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::message::ending::Ending;
    use crate::compact::message::links::Links;

    fn fact(role: Role, calls: u32) -> Fact {
        Fact {
            role,
            tokens: 10,
            text_tokens: 5,
            calls,
            is_long: false,
            is_pinned: false,
            replaces_earlier: false,
            is_note: false,
            is_aside: false,
            is_marked: false,
            thinking_tokens: 0,
            takes_note: true,
            ending: Ending::Other,
            form: u64::from(role == Role::System) * 10,
            form_tokens: 10,
            declares_tools: false,
            may_load_tools: false,
            is_elsewhere: false,
            links: Links::waiting(calls),
        }
    }

    /// Builds turns from letters: `s`ystem, `u`ser, `a`ssistant, `o`ther, `t`ool result, a digit:
    /// an assistant with so many calls.
    fn turns(transcript: &str) -> Turns {
        let mut turns = Turns::new(1000);
        for letter in transcript.chars() {
            turns.push(
                &match letter {
                    's' => fact(Role::System, 0),
                    'u' => fact(Role::User, 0),
                    'a' => fact(Role::Assistant, 0),
                    'o' => fact(Role::Other, 0),
                    't' => fact(Role::Tool, 0),
                    calls => fact(Role::Assistant, calls.to_digit(10).expect("a digit")),
                },
                &[],
            );
        }
        turns
    }

    #[test]
    fn messages_are_grouped_by_position() {
        for (transcript, of_message, newest) in [
            ("suau", "-012", 2),
            ("su1tu", "-0112", 2),
            ("su2tta", "-01112", 2),
            ("u1tutu", "011234", 4), // The second result is an orphan: no call waits for it.
            ("u2tut", "01111", 1),   // A user message between results belongs to the turn.
            ("u2tu", "0112", 1),     // While a result is missing, all after the call stays.
            ("u2sts", "01-1-", 1),
            ("uaa1t", "01233", 3),
            ("1tua", "0012", 2),
            ("tu", "01", 1),
            ("att", "000", 0),
            ("uoa", "012", 2),
        ] {
            let turns = turns(transcript);
            let found: String = turns
                .of_message
                .iter()
                .map(|turn| turn.map_or("-".into(), |turn| turn.to_string()))
                .collect();
            assert_eq!(found, of_message, "{transcript}");
            assert_eq!(turns.newest_from(), newest, "{transcript}");
        }
    }

    /// Builds turns from words: a role as in [`turns`], calls with `+` and an ID, results with `-`, other
    /// names with `~`. `x` and a number remove that turn.
    fn named(transcript: &str) -> String {
        let mut turns = Turns::new(100);
        let mut out = String::new();
        for word in transcript.split(' ') {
            if let Some(gone) = word.strip_prefix('x') {
                turns.list[gone.parse::<usize>().expect("a turn")].is_gone = true;
                continue;
            }
            let role = match &word[..1] {
                "u" => Role::User,
                "a" => Role::Assistant,
                "t" => Role::Tool,
                _ => Role::Other,
            };
            let link = |(place, sign): (usize, &str)| {
                let naming = match sign {
                    "+" => Naming::Call,
                    "-" => Naming::Answer,
                    "~" => Naming::Mention,
                    _ => return None,
                };
                Some(Link { naming, id: u32::from(word.as_bytes()[place + 1]), key: 0 })
            };
            let links: Vec<Link> = word.match_indices(['+', '-', '~']).filter_map(link).collect();
            let waits = links.iter().filter(|link| link.naming == Naming::Call).count();
            turns.push(&fact(role, waits as u32), &links);
            turns.track(turns.of_message.len() - 1);
        }
        for turn in &turns.of_message {
            out.push_str(&turn.map_or("-".into(), |turn| turn.to_string()));
        }
        format!("{out} {}", turns.newest_from())
    }

    #[test]
    fn messages_that_name_a_block_join_its_turn() {
        for (transcript, expected) in [
            ("u a+a a+b t-b t-a u", "011112 2"),
            ("u a+a a+b u t-b t-a a", "0111112 2"),
            ("u a+s+c t-c a-s+d t-d u", "011112 2"),
            ("u a+s a-s u", "0112 2"),
            ("u a+s u a u", "01234 1"), // Still waits.
            ("u a+s u a u u u u u u u u u u", "012345678910111213 13"), // No longer.
            ("u a+s o~s u", "0112 1"),
            ("u o~s o~s u", "0112 2"),
            ("u a+a t-a a+a t-a u", "011223 3"), // An ID names the last block that has it.
            ("u a+a t-a u t-a", "01111 1"),
            ("u a+a t-z u t-z", "01123 3"), // An unknown ID: by position.
            ("u a+s u x1 a-s+c t-c u", "012--3 3"), // Its block is gone.
            ("u a+s u x2 a-s u", "01-12 2"),
        ] {
            assert_eq!(named(transcript), expected, "{transcript}");
        }
    }

    #[test]
    fn a_text_behind_a_result_belongs_to_it() {
        let aside = Fact { is_aside: true, ..fact(Role::User, 0) };
        let mut turns = turns("u1t");
        turns.push(&aside, &[]);
        assert_eq!((turns.list.len(), turns.list[1].last, turns.list[1].exchange), (2, 3, 1));
        turns.push(&fact(Role::Assistant, 0), &[]);
        turns.push(&aside, &[]);
        assert_eq!(turns.list.len(), 4);
    }

    #[test]
    fn a_round_begins_with_the_user_s_message_after_an_answer() {
        for (transcript, begins) in [
            ("su", false),
            ("sua", false),
            ("suau", true),
            ("suasu", true),
            ("suaus", true),
            ("suauu", false),
            ("su1tu", false), // A word of the user while the model works.
            ("su1tau", true),
            ("su1u", false),
            ("su1t", false),
        ] {
            let turns = turns(transcript);
            assert_eq!(turns.begins_round(turns.list.len()), begins, "{transcript}");
        }
    }

    #[test]
    fn exchanges_begin_with_user_messages() {
        let turns = turns("sa1tu1taua2tut");
        let exchanges: Vec<_> = turns.list.iter().map(|turn| turn.exchange).collect();
        assert_eq!(exchanges, [0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(turns.system_run, 1);
    }
}
