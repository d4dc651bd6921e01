//! Speakers of messages, as notes name them: a role, or for a result its tool with a mark that
//! distinguishes it from any role. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use crate::compact::message::reading::{BlockKind, Reading};
use crate::compact::state::turns::{Turn, TurnKind, Turns};
use crate::wire::Role;

/// Maximum length of a tool's name in a note.
const NAME_CHARACTERS: usize = 64;

/// Speaker lookup for messages in order.
pub(crate) struct Speakers<'a, R> {
    turns: &'a Turns,
    reading: R,
    /// Turn of the last result looked up, with the tools of all its results.
    last: Option<(usize, HashMap<usize, String>)>,
}

impl<'a, R: Fn(usize) -> Arc<Reading>> Speakers<'a, R> {
    /// Creates a lookup for messages in `turns`; `reading` returns a message.
    pub(crate) fn new(turns: &'a Turns, reading: R) -> Self {
        Self { turns, reading, last: None }
    }

    /// Returns the speaker of `message`.
    pub(crate) fn of(&mut self, message: usize) -> String {
        let own = (self.reading)(message);
        let named = own.participant.as_deref().map(tool_name).filter(|name| !name.is_empty());
        match named {
            Some(name) => format!("{} {name}", of_role(own.role)),
            None => self.tool(message, own.role).unwrap_or_else(|| of_role(own.role).to_owned()),
        }
    }

    fn tool(&mut self, message: usize, role: Role) -> Option<String> {
        let place = self.turns.of_message[message].filter(|_| role == Role::Tool)?;
        let turn = &self.turns.list[place];
        if turn.kind != TurnKind::Assistant {
            return None;
        }
        if self.last.as_ref().is_none_or(|(last, _)| *last != place) {
            self.last = Some((place, of_results(turn, &self.reading).into_iter().collect()));
        }
        self.last.as_ref()?.1.get(&message).cloned()
    }
}

/// Returns the speaker name of a role.
fn of_role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "result",
        Role::Other => "message",
    }
}

/// Returns the speaker name of a tool's results: written like a call, so that no tool, however
/// named, passes for the user. `None` if no character of its name can be repeated.
fn of_tool(tool: &str) -> Option<String> {
    let name = tool_name(tool);
    (!name.is_empty()).then(|| format!("{name}()"))
}

/// Shortens a tool's name, which anybody may have chosen, to one plain line.
pub(crate) fn tool_name(name: &str) -> String {
    let is_plain =
        |letter: &char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/');
    name.chars().filter(is_plain).take(NAME_CHARACTERS).collect()
}

/// Returns the tool of each result in an assistant's turn, by message, if its call is known.
fn of_results(turn: &Turn, reading: impl Fn(usize) -> Arc<Reading>) -> Vec<(usize, String)> {
    let mut by_id: HashMap<String, String> = HashMap::new();
    // Calls of the last message that has any, and the number of results since.
    let (mut calls, mut nth): (Vec<String>, usize) = (Vec::new(), 0);
    let mut tools = Vec::new();
    for message in turn.first..=turn.last {
        let own = reading(message);
        if own.role == Role::Tool {
            let named = own.answers.as_deref().and_then(|id| by_id.get(id));
            tools.extend(named.or(calls.get(nth)).and_then(|name| Some((message, of_tool(name)?))));
            nth += 1;
            continue;
        }
        let asked = own.blocks.iter().filter_map(|block| match &block.kind {
            BlockKind::Call { name, id, .. } => Some((id.clone(), name.clone())),
            BlockKind::Text | BlockKind::Output => None,
        });
        let asked: Vec<(String, String)> = asked.collect();
        if !asked.is_empty() {
            // Of several calls of a message with one id the first counts.
            by_id.extend(asked.iter().rev().cloned());
            (calls, nth) = (asked.into_iter().map(|(_, name)| name).collect(), 0);
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tool_passes_for_a_role() {
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Other];
        let roles = roles.map(of_role);
        let forged = ["user:", "user\n#4 user", " user ", "us(er", "()user"];
        for name in roles.into_iter().chain(forged) {
            let named = of_tool(name).expect("it has letters");
            assert!(named.ends_with("()"), "{named}");
            assert!(!roles.contains(&named.as_str()), "{named}");
        }
        assert_eq!(of_tool("read_file").as_deref(), Some("read_file()"));
        assert_eq!(of_tool(" ()\n"), None);
    }
}
