//! Parts of the newest turns that can leave on their own, as the last resort before a refusal. Late results
//! merge turns, so that the newest may be longer than the limit. An older call goes with its results if
//! nothing that stays names either.

use std::collections::BTreeMap;

use super::Compaction;
use crate::compact::message::links::{self, Link};
use crate::compact::source::Source;
use crate::wire::Role;
use crate::wire::message::Naming;

/// An assistant's message in the newest turns, with what follows it in its turn up to the next one.
struct Part {
    turn: usize,
    messages: Vec<usize>,
    begins_with_assistant: bool,
    /// Whether it must stay, even if others name it.
    is_held: bool,
    /// Numbers of calls and results.
    calls: u32,
    results: u32,
}

impl Compaction<'_> {
    /// Removes parts of the newest turns, the oldest first, until the size is within the limit with room for
    /// later messages. Parts that name each other go together, and only if all their calls have results. An
    /// assistant's message follows what goes, so roles keep their order.
    pub(crate) fn release_parts(&mut self, source: &dyn Source) {
        if !self.is_above_limit() {
            return;
        }
        let mut parts = Vec::new();
        let mut groups = self.parts(&mut parts, source);
        let mut all: BTreeMap<usize, Vec<&Part>> = BTreeMap::new();
        for (place, part) in parts.iter().enumerate() {
            all.entry(root(&mut groups, place)).or_default().push(part);
        }
        for group in all.into_values() {
            let sum = |of: fn(&Part) -> u32| group.iter().map(|part| of(part)).sum::<u32>();
            let is_complete = sum(|part| part.calls) == sum(|part| part.results);
            if !is_complete || group.iter().any(|part| part.is_held) {
                continue;
            }
            if self.state.sizes.request_tokens + self.state.opening_tokens() <= self.most_tokens() {
                break;
            }
            group.into_iter().for_each(|part| self.evict_part(part));
        }
        self.sweep();
    }

    /// Collects the parts of the newest turns. Returns the group of each, for `root`.
    fn parts(&self, parts: &mut Vec<Part>, source: &dyn Source) -> Vec<usize> {
        let (turns, facts) = (&self.state.turns, &self.state.messages.facts);
        let (mut groups, mut ids) = (Vec::new(), BTreeMap::new());
        let first = self.turn(self.newest).first;
        for (message, fact) in facts.iter().enumerate().skip(first) {
            let Some(turn) = turns.of_message[message] else { continue };
            let continues = |part: &&mut Part| part.turn == turn && fact.role != Role::Assistant;
            if parts.last_mut().filter(continues).is_none() {
                groups.push(parts.len());
                parts.push(Part::new(turn, fact.role));
            }
            let place = parts.len() - 1;
            let links = match fact.links.held() {
                Some(held) => held.collect(),
                None => source.message(message).map(|own| links::all(&own)).unwrap_or_default(),
            };
            join(&links, place, &mut groups, &mut ids);
            let answers = links.iter().filter(|link| link.naming == Naming::Answer).count() as u32;
            let part = &mut parts[place];
            part.messages.push(message);
            part.calls += fact.links.waits;
            part.results += answers.max(u32::from(fact.role == Role::Tool));
            let is_users = fact.role == Role::User && !fact.is_aside;
            part.is_held |= is_users || fact.role == Role::Other || fact.is_pinned;
        }
        for place in 0..parts.len() {
            let is_followed = parts.get(place + 1).is_some_and(|next| next.begins_with_assistant);
            // The rest of a turn stays where the turn begins.
            let is_beginning =
                parts[place].messages.first() == Some(&self.turn(parts[place].turn).first);
            let is_shared = parts.get(place + 1).is_some_and(|next| next.turn == parts[place].turn);
            let own = &mut parts[place];
            own.is_held |=
                !own.begins_with_assistant || !is_followed || (is_beginning && is_shared);
        }
        groups
    }

    fn evict_part(&mut self, part: &Part) {
        // The first of a turn goes last, so that each step finds soon that the turn has others.
        for message in part.messages.iter().rev() {
            let tokens = self.state.messages.current_tokens(*message);
            self.evict_message(*message);
            self.state.turns.leave(*message, tokens);
        }
    }
}

impl Part {
    fn new(turn: usize, first: Role) -> Self {
        Self {
            turn,
            messages: Vec::new(),
            begins_with_assistant: first == Role::Assistant,
            is_held: false,
            calls: 0,
            results: 0,
        }
    }
}

/// Joins the groups of the part at `place` and of those with the blocks that it names.
fn join(links: &[Link], place: usize, groups: &mut [usize], ids: &mut BTreeMap<u32, usize>) {
    for link in links {
        let named = match link.naming {
            Naming::Call | Naming::Own => {
                ids.insert(link.id, place);
                continue;
            }
            Naming::Mention => *ids.entry(link.id).or_insert(place),
            Naming::Answer => ids.get(&link.id).copied().unwrap_or(place),
        };
        let (one, other) = (root(groups, named), root(groups, place));
        groups[one.max(other)] = one.min(other);
    }
}

/// Returns the first part of the group of the part at `place`.
fn root(groups: &mut [usize], mut place: usize) -> usize {
    while groups[place] != place {
        groups[place] = groups[groups[place]];
        place = groups[place];
    }
    place
}
