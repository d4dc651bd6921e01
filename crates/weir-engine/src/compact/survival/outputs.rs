//! Actions and outputs of agents without tools: an assistant's text ends in a command, and the next user
//! message is its output. Pure.

use std::ops::Range;
use std::sync::Arc;

use super::parts::INSTRUCTION_TAGS;
use crate::compact::message::ending::{Ending, EndingSoFar};
use crate::compact::message::reading::{Block, BlockKind, Reading};
use crate::wire::Role;

/// Messages that are searched for calls of tools.
const MOST_SEARCHED: usize = 64;
/// Beginnings of outputs, in lower case.
const OPENINGS: [&str; 8] = ["<", "{", "[", "```", "observation", "output", "$ ", "exit"];

/// Returns whether a message begins as the output of an action may.
pub(super) fn opens_as_output(reading: &Reading) -> bool {
    let text = reading.text.trim_start();
    let lower: String = text.chars().take(12).collect::<String>().to_lowercase();
    OPENINGS.iter().any(|opening| lower.starts_with(opening))
}

/// Whether a message begins with a tag around instructions.
fn is_tagged(reading: &Reading) -> bool {
    let text = reading.text.trim_start().strip_prefix('<');
    text.is_some_and(|rest| INSTRUCTION_TAGS.iter().any(|tag| rest.starts_with(tag)))
}

/// Whether an agent has tools, by the newest messages before one.
fn has_tools(readings: &[Arc<Reading>], message: usize) -> bool {
    let newest = readings[..message].iter().rev().take(MOST_SEARCHED);
    let is_call = |own: &Block| matches!(own.kind, BlockKind::Call { .. });
    newest.flat_map(|reading| &reading.blocks).any(is_call)
}

/// Returns whether a user's message is the output of an action.
pub(super) fn is_output(readings: &[Arc<Reading>], message: usize) -> bool {
    let own = &readings[message];
    if own.role != Role::User || !opens_as_output(own) {
        return false;
    }
    // Without tools a command may have printed the tag; with them, an agent puts it before the user's words.
    if is_tagged(own) && has_tools(readings, message) {
        return false;
    }
    let before = message.checked_sub(1).map(|before| &readings[before]);
    before.is_some_and(|before| {
        let mut ending = EndingSoFar::new(before.role);
        ending.push(&before.text, u64::MAX);
        ending.done(u64::MAX) == Ending::Action
    })
}

/// Returns the command that an assistant's message ends in, with its block: the content of the last block of
/// code or tag, else the last paragraph. `None` if its last block is no text.
pub(super) fn command(reading: &Reading) -> Option<(usize, Range<usize>)> {
    let block = reading.blocks.len().checked_sub(1)?;
    let own = &reading.blocks[block];
    if own.kind != BlockKind::Text {
        return None;
    }
    let text = reading.text[own.span.clone()].trim_end();
    let span = fenced(text).or_else(|| tagged(text)).unwrap_or_else(|| {
        let paragraph = text.rfind("\n\n").map_or(0, |at| at + 2);
        paragraph..text.len()
    });
    Some((block, own.span.start + span.start..own.span.start + span.end))
}

/// Returns the content of the block of code that a text ends in.
fn fenced(text: &str) -> Option<Range<usize>> {
    let fence = ["```", "~~~"].into_iter().find(|fence| text.ends_with(fence))?;
    let end = text.len() - fence.len();
    let open = text[..end].rfind(fence)? + fence.len();
    let start = open + text[open..end].find('\n')? + 1;
    Some(start..end)
}

/// Returns the content of the tag that a text ends in.
fn tagged(text: &str) -> Option<Range<usize>> {
    let name = text.strip_suffix('>')?;
    let end = name.rfind("</")?;
    let open = format!("<{}", &name[end + 2..]);
    let tag = text[..end].rfind(&open)?;
    let start = tag + text[tag..end].find('>')? + 1;
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_an_action_is_found() {
        for (text, expected) in [
            ("I look.\n```sh\nls -l\n```\n", "ls -l\n"),
            ("First:\n```\na\n```\nthen\n~~~bash\nb\n~~~", "b\n"),
            ("<run>a</run> and <run lang=x>b</run>", "b"),
            ("Thought: look\n\nAction: find[x]", "Action: find[x]"),
            ("{\"tool\": \"find\"}", "{\"tool\": \"find\"}"),
            ("```\n```", ""),
            ("```", "```"),
            ("</a>", "</a>"),
            ("a >", "a >"),
        ] {
            let reading = Reading::of_text(Role::Assistant, text);
            let found = command(&reading).map(|(_, span)| &reading.text[span]);
            assert_eq!(found, Some(expected), "{text}");
        }
    }
}
