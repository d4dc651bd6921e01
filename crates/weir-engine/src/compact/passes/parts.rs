//! Parts of the newest turns that can leave on their own, as the last resort before a refusal. Late results
//! merge turns, so that the newest may be longer than the limit. An older call goes with its results if
//! nothing that stays names either; a result that came among later calls is a message that goes with its own.
//! Of a provider's call and its result in the assistant's next message, the one that would stay alone is left
//! out of its message.

use std::collections::{BTreeMap, BTreeSet};

use super::Compaction;
use crate::compact::message::links::{self, Link};
use crate::compact::source::Source;
use crate::compact::state::messages::{Fate, Rewrite};
use crate::wire::message::Naming;
use crate::wire::{Edit, Protocol, Role};

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

/// A provider's call and its result in a later message of the assistant.
struct Chain {
    id: u32,
    call: usize,
    result: usize,
    /// Whether other blocks name the call, as those of a program do: it does not go before them.
    is_named: bool,
}

/// What the parts of the newest turns name.
#[derive(Default)]
struct PartLinks {
    /// Group of each part, for [`root`].
    groups: Vec<usize>,
    /// Part of the last block with each ID, and its message.
    ids: BTreeMap<u32, (usize, usize)>,
    /// Those between two messages.
    chains: Vec<Chain>,
    /// Messages that are results of an earlier part's calls alone, with that part. They go with it.
    late: Vec<(usize, usize)>,
    /// Calls that other blocks name.
    mentioned: BTreeSet<u32>,
}

impl Compaction<'_> {
    /// Removes parts of the newest turns, the oldest first, until the size is within the limit with room for
    /// later messages. Parts that name each other go together, and only if all their calls have results. An
    /// assistant's message follows what goes, so roles keep their order.
    pub(crate) fn release_parts(&mut self, source: &dyn Source) {
        // A message that some blocks leave may come back with arguments that had been shortened.
        while self.is_above_limit() && self.release_oldest_parts(source) {}
    }

    /// Returns whether anything went.
    fn release_oldest_parts(&mut self, source: &dyn Source) -> bool {
        let before = self.left_out;
        let mut parts = Vec::new();
        let mut named = self.parts(&mut parts, source);
        let mut all: BTreeMap<usize, Vec<&Part>> = BTreeMap::new();
        for (place, part) in parts.iter().enumerate() {
            all.entry(root(&mut named.groups, place)).or_default().push(part);
        }
        let late =
            named.late.iter().map(|(message, part)| (*message, root(&mut named.groups, *part)));
        let late: Vec<(usize, usize)> = late.collect();
        let last = self.state.messages.facts.len() - 1;
        for (first, group) in all {
            let sum = |of: fn(&Part) -> u32| group.iter().map(|part| of(part)).sum::<u32>();
            let is_complete = sum(|part| part.calls) == sum(|part| part.results);
            let mut others_late = late.iter().filter(|(_, of)| *of != first);
            let answers_others = others_late.any(|(message, _)| {
                !self.is_gone(*message) && group.iter().any(|part| part.messages.contains(message))
            });
            let is_held =
                |part: &&Part| part.is_held || self.answers_program(part, &named.chains, &group);
            // The last message stays, and so does the call that it answers.
            let is_last = late.contains(&(last, first));
            if !is_complete || answers_others || is_last || group.iter().any(is_held) {
                continue;
            }
            if self.state.sizes.request_tokens + self.state.opening_tokens() <= self.most_tokens() {
                break;
            }
            let own_late = late.iter().rev().filter(|(_, of)| *of == first);
            own_late.for_each(|(message, _)| self.evict_one(*message));
            group.into_iter().for_each(|part| self.evict_part(part));
        }
        self.leave_out_blocks(&named.chains, source);
        self.sweep();
        self.left_out > before
    }

    /// Returns whether a part answers a program that stays if `group` goes: the calls that name the program
    /// need it, and it needs its result.
    fn answers_program(&self, part: &Part, chains: &[Chain], group: &[&Part]) -> bool {
        let goes = |message: &usize| {
            self.is_gone(*message) || group.iter().any(|own| own.messages.contains(message))
        };
        let mut programs = chains.iter().filter(|chain| chain.is_named);
        programs.any(|chain| part.messages.contains(&chain.result) && !goes(&chain.call))
    }

    /// Leaves out of messages that stay the calls and results whose other half is gone.
    fn leave_out_blocks(&mut self, chains: &[Chain], source: &dyn Source) {
        let mut halves: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for chain in chains.iter().filter(|own| self.is_gone(own.call) != self.is_gone(own.result))
        {
            let stays = if self.is_gone(chain.call) { chain.result } else { chain.call };
            halves.entry(stays).or_default().push(chain.id);
        }
        for (message, hashes) in halves {
            let Some(own) = source.message(message) else { continue };
            let Some(Edit::DropBlocks(mut ids)) = links::without(&own, &hashes) else { continue };
            if let Some(Rewrite { edit: Edit::DropBlocks(earlier), .. }) =
                self.state.messages.rewrites.get(&message)
            {
                ids.extend_from_slice(earlier);
            }
            if let Some(rewrite) = self.rewrite(message, Edit::DropBlocks(ids), source) {
                self.state.changes.touch(message);
                self.state.set_rewrite(message, rewrite);
            }
        }
    }

    /// Collects the parts of the newest turns, and what they name.
    fn parts(&self, parts: &mut Vec<Part>, source: &dyn Source) -> PartLinks {
        let (turns, facts) = (&self.state.turns, &self.state.messages.facts);
        let mut named = PartLinks::default();
        let is_messages = |message: usize| {
            source.message(message).is_some_and(|own| own.protocol == Protocol::Messages)
        };
        let first = self.turn(self.newest).first;
        for (message, fact) in facts.iter().enumerate().skip(first) {
            let Some(turn) = turns.of_message[message] else { continue };
            let continues = |part: &&mut Part| part.turn == turn && fact.role != Role::Assistant;
            if parts.last_mut().filter(continues).is_none() {
                named.groups.push(parts.len());
                parts.push(Part::new(turn, fact.role));
            }
            let place = parts.len() - 1;
            let links = match fact.links.held() {
                Some(held) => held.collect(),
                None => source.message(message).map(|own| links::all(&own)).unwrap_or_default(),
            };
            let answers = links.iter().filter(|link| link.naming == Naming::Answer).count() as u32;
            let is_split = match fact.role {
                Role::Assistant => answers > 0 && is_messages(message),
                // A result alone in its message goes with its call.
                Role::Tool => answers as usize == links.len() && answers == 1 && !fact.is_pinned,
                _ => false,
            };
            let split = named.join(&links, (place, message, fact.role), is_split);
            for call in split.iter().flatten() {
                parts[*call].results += 1;
            }
            let part = &mut parts[place];
            part.messages.push(message);
            part.calls += fact.links.waits;
            let is_unnamed = fact.role == Role::Tool && split.is_empty();
            part.results += (answers - split.len() as u32).max(u32::from(is_unnamed));
            let is_users = fact.role == Role::User && !fact.is_aside;
            part.is_held |= is_users || fact.role == Role::Other || fact.is_pinned;
        }
        for place in 0..parts.len() {
            let is_followed = parts.get(place + 1).is_some_and(|next| next.begins_with_assistant);
            let own = &mut parts[place];
            own.is_held |= !own.begins_with_assistant || !is_followed;
        }
        named
    }

    fn is_gone(&self, message: usize) -> bool {
        self.state.messages.fates[message] == Fate::Gone
    }

    fn evict_part(&mut self, part: &Part) {
        // The first of a turn goes last, so that each step finds soon that the turn has others.
        part.messages.iter().rev().for_each(|message| self.evict_one(*message));
    }

    fn evict_one(&mut self, message: usize) {
        if !self.is_gone(message) {
            let tokens = self.state.messages.current_tokens(message);
            self.evict_message(message);
            self.state.turns.leave(message, tokens);
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

impl PartLinks {
    /// Joins the groups of a part and of those with the blocks that its message names, but for results whose
    /// calls stand elsewhere if `is_split`. Returns the parts with the calls of those, `None` for a call that is
    /// gone.
    fn join(
        &mut self,
        links: &[Link],
        (place, message, role): (usize, usize, Role),
        is_split: bool,
    ) -> Vec<Option<usize>> {
        let own = (place, message);
        let is_chained = is_split && role == Role::Assistant;
        let mut split = Vec::new();
        for link in links {
            let (named, call) = match link.naming {
                Naming::Call | Naming::Own => {
                    self.ids.insert(link.id, own);
                    continue;
                }
                Naming::Inner => continue,
                Naming::Mention => {
                    self.mentioned.insert(link.id);
                    *self.ids.entry(link.id).or_insert(own)
                }
                Naming::Answer => match self.ids.get(&link.id) {
                    Some(named) => *named,
                    None if is_chained => {
                        split.push(None);
                        continue;
                    }
                    None => own,
                },
            };
            if is_split && link.naming == Naming::Answer && named != place {
                match is_chained {
                    true => {
                        let is_named = self.mentioned.contains(&link.id);
                        self.chains.push(Chain { id: link.id, call, result: message, is_named });
                    }
                    false => self.late.push((message, named)),
                }
                split.push(Some(named));
                continue;
            }
            let (one, other) = (root(&mut self.groups, named), root(&mut self.groups, place));
            self.groups[one.max(other)] = one.min(other);
        }
        split
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
