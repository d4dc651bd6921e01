//! Calls of a conversation with their results, in order. A command in the text of an agent without tools is
//! a call without a name, and the user's message behind it is its result. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::outputs;
use super::parts::{said, units_within};
use crate::compact::actions::outcome;
use crate::compact::actions::tools::Tool;
use crate::compact::message::reading::{BlockKind, Reading, Unit};
use crate::wire::Role;

/// Maximum number of units of a result that count as changed.
const MOST_CHANGED: usize = 8;

/// Call with its place.
#[derive(Debug, Clone)]
pub(super) struct Called {
    /// Message that makes it, and the block of its arguments there.
    pub(super) message: usize,
    pub(super) block: usize,
    pub(super) tool: Tool,
    /// Its readable arguments, or the command, in the message's text.
    pub(super) span: Range<usize>,
    /// Message with its result, if there is one yet.
    pub(super) result: Option<usize>,
}

/// All calls, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) list: Vec<Called>,
    /// Call that each result answers, by message.
    of_result: HashMap<usize, usize>,
    /// Kinds of the tools: calls are many, names of tools are few.
    tools: HashMap<String, Tool>,
}

impl Calls {
    /// Pairs calls and results: by ID, or by order if a result has none. A result whose ID no call has
    /// answers none.
    pub(super) fn of(readings: &[Arc<Reading>]) -> Self {
        let mut calls = Self::default();
        let mut by_id: HashMap<&str, usize> = HashMap::new();
        // First of the newest calls that still wait for results without an ID.
        let mut next = 0;
        for (message, reading) in readings.iter().enumerate() {
            if reading.role == Role::Tool {
                let nth = match reading.answers.as_deref().filter(|id| !id.is_empty()) {
                    Some(id) => by_id.get(id).copied(),
                    None => Some(next),
                };
                let Some(nth) = nth else { continue };
                next = nth + 1;
                if let Some(call) = calls.list.get_mut(nth) {
                    call.result.get_or_insert(message);
                    calls.of_result.insert(message, nth);
                }
                continue;
            }
            let first = calls.list.len();
            for (block, own) in reading.blocks.iter().enumerate() {
                if let BlockKind::Call { id, name, .. } = &own.kind {
                    next = first;
                    by_id.insert(id, calls.list.len());
                    let tool = calls.tool(name);
                    if !calls.tools.contains_key(name) {
                        calls.tools.insert(name.clone(), tool);
                    }
                    let span = own.span.clone();
                    calls.list.push(Called { message, block, tool, span, result: None });
                }
            }
            if outputs::is_output(readings, message)
                && let Some((block, span)) = outputs::command(&readings[message - 1])
            {
                let (tool, result) = (Tool::of_name(""), Some(message));
                calls.list.push(Called { message: message - 1, block, tool, span, result });
            }
            if reading.role == Role::User {
                next = calls.list.len();
            }
        }
        calls
    }

    /// Returns the kinds of the tool with this name.
    pub(super) fn tool(&self, name: &str) -> Tool {
        self.tools.get(name).copied().unwrap_or_else(|| Tool::of_name(name))
    }

    /// Whether the call in a block of a message failed or was refused, by its result or by itself.
    pub(super) fn has_failed(
        &self,
        readings: &[Arc<Reading>],
        message: usize,
        block: usize,
    ) -> bool {
        if let BlockKind::Call { has_failed: true, .. } = readings[message].blocks[block].kind {
            return true;
        }
        let place =
            self.list.binary_search_by_key(&(message, block), |own| (own.message, own.block));
        let call = place.ok().map(|place| &self.list[place]);
        let failed =
            |call: &Called| Some(outcome::shows_failure(&readings[call.result?], call.tool));
        call.and_then(failed).unwrap_or(false)
    }

    /// Returns the units in which the newest result of a repeated call differs from the one before, each with its
    /// message: what was read earlier no longer holds.
    pub(super) fn changed(&self, readings: &[Arc<Reading>]) -> BTreeSet<(usize, usize)> {
        let mut newest: HashMap<u64, (usize, usize)> = HashMap::new();
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for call in &self.list {
            let Some(result) = call.result else { continue };
            let (name, arguments) = call.parts(readings);
            let key = xxh3_64(arguments.as_bytes()) ^ xxh3_64(name.as_bytes()).rotate_left(1);
            if let Some(before) = seen.insert(key, result) {
                newest.insert(key, (before, result));
            }
        }
        let mut changed = BTreeSet::new();
        for (before, result) in newest.into_values() {
            let (before, own) = (&readings[before], &readings[result]);
            if before.text == own.text {
                continue;
            }
            let key =
                |reading: &Reading, unit: &Unit| xxh3_64(said(reading, unit).trim().as_bytes());
            let known: HashSet<u64> = before.units.iter().map(|unit| key(before, unit)).collect();
            let units = own.units.iter().enumerate();
            let new = units.filter(|(_, unit)| !known.contains(&key(own, unit)));
            changed.extend(new.take(MOST_CHANGED).map(|(place, _)| (result, place)));
        }
        changed
    }

    /// Returns the call that the result `message` answers.
    pub(super) fn answered_by(&self, message: usize) -> Option<&Called> {
        self.list.get(*self.of_result.get(&message)?)
    }
}

impl Called {
    /// Returns the tool's name, empty for a command in a text, and the readable arguments.
    pub(super) fn parts<'a>(&self, readings: &'a [Arc<Reading>]) -> (&'a str, &'a str) {
        let reading = &readings[self.message];
        let name = match &reading.blocks[self.block].kind {
            BlockKind::Call { name, .. } => name,
            BlockKind::Text | BlockKind::Output => "",
        };
        (name, &reading.text[self.span.clone()])
    }

    /// Returns the units of the arguments, by index.
    pub(super) fn units(&self, reading: &Reading) -> Range<usize> {
        units_within(reading, &self.span)
    }
}
