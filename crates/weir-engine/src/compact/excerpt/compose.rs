//! Text of a note of excerpts: the chosen parts of each message, in order and word for word, with
//! gaps marked. Chooses nothing.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::rc::Rc;

use memchr::memmem;

use super::speaker::{Speakers, tool_name};
use super::subject::Subject;
use super::weight::Seeded;
use crate::compact::message::quote::{ALSO, quote};
use crate::compact::message::reading::{BlockKind, Reading};

/// Opening line of excerpts that follow a summary.
pub(crate) const AFTER_SUMMARY: &str =
    "[weir: the same messages word for word, shortened to fit; … = left out]";

/// Parts of a message that are in the note.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// Units, by index.
    pub units: Vec<usize>,
    /// Values in the list of names, by index.
    pub names: Vec<usize>,
}

/// Writes the note from the chosen parts of each message.
pub(crate) fn note(subject: &Subject<'_>, mut chosen: BTreeMap<usize, Chosen>) -> String {
    let mut shown = HashSet::with_hasher(Seeded::default());
    for (message, own) in &mut chosen {
        own.units.sort_unstable();
        own.names.sort_unstable();
        let reading = &subject.readings[*message];
        for unit in &own.units {
            shown.extend(reading.values_of(&reading.units[*unit]).map(|mention| mention.key));
        }
    }
    let count = subject.gone.len();
    let noun = if count == 1 { "message" } else { "messages" };
    let mut out = match subject.summarised {
        Some(_) => AFTER_SUMMARY.to_owned(),
        None => format!("[weir: {count} earlier {noun}, shortened to fit; … = left out]"),
    };
    let mut elsewhere: Vec<&str> = Vec::new();
    let reading_of = |message: usize| Rc::clone(&subject.readings[message]);
    let mut speakers = Speakers::new(subject.turns, reading_of);
    for (message, own) in &chosen {
        let reading = &subject.readings[*message];
        let names: Vec<&str> = own
            .names
            .iter()
            .map(|index| &reading.values[*index])
            .filter(|mention| !shown.contains(&mention.key))
            .map(|mention| reading.said(mention))
            .collect();
        if own.units.is_empty() {
            elsewhere.extend(names);
            continue;
        }
        write_message(*message, &speakers.of(*message), reading, &own.units, &mut out);
        write_names(&names, &mut out);
    }
    write_names(&elsewhere, &mut out);
    out
}

fn write_names(names: &[&str], out: &mut String) {
    if !names.is_empty() {
        let _ = write!(out, "\n{ALSO}{}", names.join(", "));
    }
}

/// Writes units of one message, in order, under a line that names the speaker, as `speaker.rs`
/// formats it.
pub(crate) fn write_message(
    message: usize,
    speaker: &str,
    reading: &Reading,
    units: &[usize],
    out: &mut String,
) {
    let _ = write!(out, "\n#{message} {speaker}:");
    write_units(reading, units, out);
}

/// Returns the part of a note about a message, from its header to the next one or the end.
pub(crate) fn of_message(note: &str, message: usize) -> Option<&str> {
    let header = format!("\n#{message} ");
    let start = memmem::find(note.as_bytes(), header.as_bytes())? + 1;
    let shown = &note[start..];
    let is_header = |at: &usize| shown[at + 2..].starts_with(|own: char| own.is_ascii_digit());
    let end = memmem::find_iter(shown.as_bytes(), b"\n#").find(is_header);
    Some(&shown[..end.unwrap_or(shown.len())])
}

/// Writes units; adjacent ones stay one piece.
fn write_units(reading: &Reading, units: &[usize], out: &mut String) {
    let mut block = None;
    let mut before: Option<usize> = None;
    let mut index = 0;
    while index < units.len() {
        let first = &reading.units[units[index]];
        let mut end = index;
        while end + 1 < units.len()
            && units[end + 1] == units[end] + 1
            && reading.units[units[end + 1]].block == first.block
        {
            end += 1;
        }
        let span = first.span.start..reading.units[units[end]].span.end;
        if block != Some(first.block) {
            match &reading.blocks[first.block as usize].kind {
                BlockKind::Text => out.push('\n'),
                BlockKind::Call { name, .. } => {
                    let _ = write!(out, "\n> {}: ", tool_name(name));
                }
            }
            block = Some(first.block);
        } else {
            let is_one_line =
                before.is_some_and(|before| !reading.text[before..span.start].contains('\n'));
            out.push_str(if is_one_line { " … " } else { "\n…\n" });
        }
        quote(&reading.text[span.clone()], reading.role, out);
        before = Some(span.end);
        index = end + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_message_ends_before_the_next() {
        let note = "[weir: 9]\n#1 user:\na\n# b\n#21 read():\n| #2 c\n#2 assistant:\nd\nalso: e";
        for (message, shown) in [
            (1, Some("#1 user:\na\n# b")),
            (21, Some("#21 read():\n| #2 c")),
            (2, Some("#2 assistant:\nd\nalso: e")),
            (3, None),
        ] {
            assert_eq!(of_message(note, message), shown, "{message}");
        }
    }
}
