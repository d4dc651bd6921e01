//! Survival: the parts of removed messages that a note has first, before parts of more worth. Rules
//! of users and of instruction files, open tasks, errors not yet resolved, the last edit of each
//! file, and users' own sentences. Pure, linear in the conversation, and within a stated room.
//!
//! `rules`, `tasks`, `errors`, `edits` and `prose` recognise one kind each. `room` shares the room among kinds
//! and messages, so that no message crowds out another. `calls` pairs calls with their results, `outputs`
//! recognises those of agents without tools, `shell` reads the files that commands write.

mod calls;
mod edits;
pub(super) mod errors;
mod instructions;
mod outputs;
mod parts;
mod prose;
mod room;
mod rules;
mod shell;
mod tasks;
mod words;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::excerpt::subject::Subject;
use super::message::reading::Reading;
use crate::wire::Role;
pub(crate) use parts::Claim;

use calls::Calls;
use room::Room;
use rules::{Conversation, RulesOf};
use tasks::Tasks;

/// Shares of the room, in hundredths. Each kind may take its own; rules then take the rest.
const RULES_PERCENT: f64 = 60.0;
const TASKS_PERCENT: f64 = 20.0;
const ERRORS_PERCENT: f64 = 20.0;
const EDITS_PERCENT: f64 = 25.0;
// The rest is for what errors compared, and for surplus rules.
const PROSE_PERCENT: f64 = 80.0;

/// Searches a message for rules, unless it looks like the output of an action, which has none.
pub(super) fn search(reading: &Reading) {
    if reading.role == Role::User && !outputs::opens_as_output(reading) {
        rules::found(reading, false);
    }
}

/// Calls and tasks of a conversation.
#[derive(Debug)]
pub(crate) struct Work {
    calls: Calls,
    tasks: Tasks,
}

impl Work {
    pub(crate) fn of(readings: &[Arc<Reading>]) -> Self {
        let calls = Calls::of(readings);
        let tasks = tasks::tasks(readings, &calls);
        Self { calls, tasks }
    }

    /// Whether the call in a block of a message failed or was refused.
    pub(crate) fn has_failed(
        &self,
        readings: &[Arc<Reading>],
        message: usize,
        block: usize,
    ) -> bool {
        self.calls.has_failed(readings, message, block)
    }

    /// Returns the units in which the newest results of repeated calls differ from those before.
    pub(crate) fn changed(&self, readings: &[Arc<Reading>]) -> BTreeSet<(usize, usize)> {
        self.calls.changed(readings)
    }

    /// Whether a message is what a user said to a tool that asks.
    pub(crate) fn is_answer_of_user(&self, message: usize) -> bool {
        self.calls.answered_by(message).is_some_and(|call| call.tool.asks_user)
    }

    /// Returns the units that show a task in an outdated state, each with its message. No claim holds one.
    pub(crate) fn outdated_tasks(&self, subject: &Subject<'_>) -> BTreeSet<(usize, usize)> {
        tasks::outdated(subject, &self.tasks)
    }

    /// Returns the claims of the messages that a note replaces, in order of precedence, together of at most
    /// `room_tokens` by estimate. What exceeds the subject's `survival_tokens` is for rules alone.
    pub(crate) fn claims(&self, subject: &Subject<'_>, room_tokens: f64) -> Vec<Claim> {
        let Self { calls, tasks } = self;
        let mut room = Room::new(subject, room_tokens);
        let others_tokens = room_tokens.min(subject.survival_tokens as f64);
        let share = |percent: f64| others_tokens * percent / 100.0;
        let mut rules = rules::of(&conversation(subject), calls);
        room.share_fairly(&mut rules, room_tokens * RULES_PERCENT / 100.0, room::RULES_PERCENT);
        room.take(tasks::of(subject, tasks), share(TASKS_PERCENT));
        room.take(errors::of(subject, calls), share(ERRORS_PERCENT));
        room.take(edits::of(subject, calls), share(EDITS_PERCENT));
        room.share_fairly(&mut rules, room_tokens, room::RULES_PERCENT);
        let mut prose = prose::of(subject);
        room.share_fairly(&mut prose, share(PROSE_PERCENT), room::PROSE_PERCENT);
        room.share_surplus(&mut rules);
        room.into_claims()
    }
}

/// Returns the size of the rules that the messages claim of a note with this room, by estimate, without
/// the surplus: for that, no note is written again.
pub(crate) fn rules_tokens(subject: &Subject<'_>, room_tokens: f64) -> f64 {
    let mut room = Room::new(subject, room_tokens);
    let mut rules = rules::of(&conversation(subject), &Calls::of(subject.readings));
    room.share_fairly(&mut rules, room_tokens * RULES_PERCENT / 100.0, room::RULES_PERCENT);
    room.taken_tokens()
}

/// Rule of a message that is not sent whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) message: usize,
    /// Index of its unit.
    pub(crate) unit: usize,
}

/// Returns the rules of the messages `gone` that no message of `kept` repeats, in order. A repeated rule is
/// listed once.
pub(crate) fn rules(readings: &[Arc<Reading>], gone: &[usize], kept: &[usize]) -> Vec<Rule> {
    let conversation = Conversation { readings, gone, kept, notes: &[] };
    let found = rules::of(&conversation, &Calls::of(readings));
    let of = |own: RulesOf| {
        let message = own.message;
        own.units.into_iter().map(move |unit| Rule { message, unit })
    };
    found.into_iter().flat_map(of).collect()
}

/// Returns a key that equal rules share, however they are indented or quoted.
pub(crate) fn key(rule: &str) -> u64 {
    rules::key(rule)
}

fn conversation<'a>(subject: &Subject<'a>) -> Conversation<'a> {
    let Subject { readings, gone, kept, notes, .. } = *subject;
    Conversation { readings, gone, kept, notes }
}
