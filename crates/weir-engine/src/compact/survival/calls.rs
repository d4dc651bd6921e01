//! Calls of a conversation with their results, in order. A command in the text of an agent without tools is
//! a call without a name, and the user's message behind it is its result. Pure.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::outputs;
use super::parts::units_within;
use crate::compact::actions::outcome;
use crate::compact::actions::tools::Tool;
use crate::compact::message::reading::{BlockKind, Reading};
use crate::wire::Role;

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
