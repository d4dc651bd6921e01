//! Turns that load tools whose definitions are deferred: they stay as long as a call that needs them.
//! Providers refuse a call of a tool that is not loaded.

use std::collections::{BTreeSet, HashMap};

use super::Compaction;
use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::compact::state::history::Pin;
use crate::compact::state::messages::Fate;
use crate::compact::state::turns::TurnKind;
use crate::wire::{Protocol, Role};

/// Parts of the limit. An answer of one of them at most separates a user's message from results.
const ANSWER_PARTS: u64 = 4;

/// What the messages that are sent load and call.
struct Loads {
    /// Turns that load what later calls need.
    needed: BTreeSet<usize>,
    /// Turns with the newest load of each tool.
    newest: BTreeSet<usize>,
    /// Names of tools that a message calls and none before it loads.
    missing: BTreeSet<String>,
}

impl Compactor {
    /// Returns what the messages that are sent load and call, from the first that may load tools, whether
    /// it is sent or not.
    fn loads(&self, source: &dyn Source) -> Loads {
        let messages = &self.messages;
        let is_sent = |message: &usize| messages.fates[*message] != Fate::Gone;
        let loads = |message: &usize| messages.facts[*message].may_load_tools;
        let all = 0..messages.count();
        let first = all.clone().find(loads);
        let (mut loaded, mut needed) = (HashMap::new(), BTreeSet::new());
        let mut missing = BTreeSet::new();
        for message in (first.unwrap_or(all.end)..all.end).filter(is_sent) {
            let Some(own) = source.message(message) else { continue };
            if loads(&message) {
                loaded.extend(own.loaded_tools().into_iter().map(|name| (name, message)));
            }
            for name in own.called_tools() {
                match loaded.get(&name) {
                    Some(load) if *load == message => {}
                    Some(load) => _ = needed.insert(*load),
                    None => _ = missing.insert(name),
                }
            }
        }
        let turns = |loads: BTreeSet<usize>| -> BTreeSet<usize> {
            loads.into_iter().filter_map(|load| self.turns.of_message[load]).collect()
        };
        let newest = turns(loaded.into_values().collect());
        Loads { needed: turns(needed), newest, missing }
    }

    /// Returns the names of the tools that messages call whose loads are not sent.
    pub(crate) fn called_unloaded(&self, source: &dyn Source) -> BTreeSet<String> {
        self.loads(source).missing
    }
}

impl Compaction<'_> {
    /// Pins the turns that load tools which calls behind them need, and the newest load of other tools as recent
    /// turns are, since the model may call them next. Those have half of the limit, the newest first. In
    /// Messages the needed ones are within it, too: a load may stand between calls that need earlier ones, so
    /// that nothing else bounds them, and tools whose load goes are deferred no more. In Responses the load may
    /// have the only definition.
    pub(super) fn pin_loads(&mut self, source: &dyn Source) {
        let Loads { needed, newest, .. } = self.state.loads(source);
        let most_tokens = self.state.profile.limit_tokens / 2;
        let first = needed.first().and_then(|turn| source.message(self.turn(*turn).first));
        let is_bound = first.is_some_and(|own| own.protocol == Protocol::Messages);
        let mut tokens = 0;
        let mut within = |turns: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            let is_within = |turn: &usize| {
                tokens += self.turn(*turn).tokens;
                tokens <= most_tokens
            };
            turns.take_while(is_within).collect()
        };
        let mut needed_turns = needed.iter().rev().copied();
        let loads = if is_bound { within(&mut needed_turns) } else { needed_turns.collect() };
        let others = newest.iter().rev().filter(|turn| !needed.contains(turn));
        let others = within(&mut others.copied());
        for turn in others {
            self.pins.entry(turn).or_insert(Pin::Recent);
        }
        self.pins.extend(loads.into_iter().map(|turn| (turn, Pin::Load)));
        self.pin_answer();
    }

    /// Pins the answer before the newest message of a user, which would else join an older turn's results: a provider
    /// wants that turn's thinking then, which may have been left out.
    fn pin_answer(&mut self) {
        let Some(before) = self.newest.checked_sub(1) else { return };
        let answer = self.turn(before);
        let is_answer = self.state.messages.facts[answer.last].role == Role::Assistant;
        let separates =
            is_answer && !answer.is_gone && self.turn(self.newest).kind == TurnKind::User;
        let has_results = |turn: &usize| *turn < before && self.turn(*turn).results > 0;
        let thinks = self.state.messages.facts.iter().any(|fact| fact.thinking_tokens > 0);
        let most_tokens = self.state.profile.limit_tokens / ANSWER_PARTS;
        let fits = answer.tokens <= most_tokens;
        if separates && thinks && fits && self.pins.keys().any(has_results) {
            self.pins.entry(before).or_insert(Pin::Recent);
        }
    }

    /// Releases the turns whose tools no call needs that is left.
    pub(super) fn release_loads(&mut self, source: &dyn Source) {
        let is_load = |pin: &Pin| *pin == Pin::Load;
        while self.is_above_limit() && self.pins.values().any(is_load) {
            let (pins, Loads { needed, .. }) = (self.pins.len(), self.state.loads(source));
            self.pins.retain(|turn, pin| !is_load(pin) || needed.contains(turn));
            if self.pins.len() == pins {
                return;
            }
            self.release(Pin::Recent, self.state.profile.limit_tokens);
            self.sweep();
        }
    }
}
