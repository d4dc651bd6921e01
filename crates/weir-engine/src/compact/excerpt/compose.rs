//! Text of a note of excerpts: the chosen parts of each message, in order and word for word, with
//! gaps marked. Chooses nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use memchr::memmem;

use super::label::{Label, datum};
use super::speaker::{Speakers, tool_name};
use super::subject::Subject;
use super::weight::Seeded;
use crate::compact::message::quote::{ALSO, OTHERS, quote};
use crate::compact::message::reading::{BlockKind, Mention, Reading};

/// Opening line of excerpts that follow a summary.
pub(crate) const AFTER_SUMMARY: &str =
    "[weir: the same messages word for word, shortened to fit; … = left out]";

/// Marks of a piece whose line begins before it, or goes on behind it.
pub(crate) const CUT: &str = "… ";
pub(crate) const CUT_BEHIND: &str = " …";

/// Maximum number of ranges of messages in the opening line.
const MOST_RANGES: usize = 4;

/// Parts of a message that are in the note.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// Units, by index.
    pub units: Vec<usize>,
    /// Values in the list of names, by index.
    pub names: Vec<usize>,
}

/// Mark of a call whose result says that it failed or was refused.
const FAILED: &str = " (failed)";

/// Writes the note from the chosen parts of each message. `has_failed` judges the call in a block of a message.
pub(crate) fn note(
    subject: &Subject<'_>,
    mut chosen: BTreeMap<usize, Chosen>,
    is_numbered: bool,
    has_failed: &dyn Fn(usize, usize) -> bool,
) -> String {
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
        None if is_numbered => {
            let numbers = ranges(subject.gone);
            format!("[weir: {count} earlier {noun} ({numbers}), shortened to fit; … = left out]")
        }
        None => format!("[weir: {count} earlier {noun}, shortened to fit; … = left out]"),
    };
    let mut elsewhere: Vec<String> = Vec::new();
    let reading_of = |message: usize| Arc::clone(&subject.readings[message]);
    let mut speakers = Speakers::new(subject.turns, reading_of);
    for (message, own) in &chosen {
        let reading = &subject.readings[*message];
        let mentions = own.names.iter().map(|index| &reading.values[*index]);
        let mentions: Vec<&Mention> =
            mentions.filter(|mention| !shown.contains(&mention.key)).collect();
        let names = listed(reading, &mentions);
        if own.units.is_empty() {
            elsewhere.extend(names);
            continue;
        }
        let speaker = speakers.of(*message);
        write_message(*message, &speaker, reading, &own.units, has_failed, &mut out);
        write_names(ALSO, &names, &mut out);
    }
    write_names(OTHERS, &elsewhere, &mut out);
    out
}

/// Entry of a list of names: a name, or the key of a record with data, or a datum without one.
struct Entry<'a> {
    head: Option<&'a str>,
    data: Vec<(&'a str, &'a str)>,
}

/// Returns the entries of a list of names: data of records with the names of their members, those of
/// one record together behind its key. A name inside a longer one is not repeated.
fn listed<'a>(reading: &'a Reading, mentions: &[&'a Mention]) -> Vec<String> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    // Entry of each head without data, which are those of the first record with that key.
    let mut bare: HashMap<&str, usize> = HashMap::new();
    // Entry that is open for more data of its record.
    let mut open: Option<usize> = None;
    for mention in outermost(mentions) {
        let said = reading.said(mention);
        let Some(Label { record, member }) = datum(reading, mention) else {
            if entries.last().is_none_or(|last| last.head != Some(said)) {
                open = None;
                bare.insert(said, entries.len());
                entries.push(Entry { head: Some(said), data: Vec::new() });
            }
            continue;
        };
        let own = record.and_then(|key| {
            let open = open.filter(|place| entries[*place].head == Some(key));
            open.or_else(|| bare.remove(key))
        });
        let place = own.unwrap_or(entries.len());
        if place == entries.len() {
            entries.push(Entry { head: record, data: Vec::new() });
        }
        entries[place].data.push((member, said));
        open = record.is_some().then_some(place);
    }
    entries.iter().map(Entry::text).collect()
}

impl Entry<'_> {
    fn text(&self) -> String {
        let data: Vec<String> =
            self.data.iter().map(|(member, said)| format!("{member}: {said}")).collect();
        let data = data.join(", ");
        match self.head {
            Some(head) if data.is_empty() => head.to_owned(),
            Some(head) => format!("{head} ({data})"),
            None => data,
        }
    }
}

/// Returns the mentions that are inside no other, in order.
fn outermost<'a>(mentions: &[&'a Mention]) -> Vec<&'a Mention> {
    let mut sorted = mentions.to_vec();
    sorted.sort_by_key(|mention| (mention.start, std::cmp::Reverse(mention.end)));
    let mut end = 0;
    sorted.retain(|mention| {
        let is_outer = mention.end > end;
        end = end.max(mention.end);
        is_outer
    });
    sorted
}

fn write_names(prefix: &str, names: &[String], out: &mut String) {
    if !names.is_empty() {
        let _ = write!(out, "\n{prefix}{}", names.join(", "));
    }
}

/// Returns the numbers of messages as ranges: all of up to four, else the first two and the last.
fn ranges(messages: &[usize]) -> String {
    let is_new = |at: &usize| *at == 0 || messages[*at] != messages[*at - 1] + 1;
    let starts: Vec<usize> = (0..messages.len()).filter(is_new).collect();
    let range = |nth: usize| {
        let end = starts.get(nth + 1).copied().unwrap_or(messages.len());
        let (first, last) = (messages[starts[nth]], messages[end - 1]);
        if first == last { format!("#{first}") } else { format!("#{first}-#{last}") }
    };
    let mut shown: Vec<String> = (0..starts.len().min(MOST_RANGES)).map(range).collect();
    if starts.len() > MOST_RANGES {
        shown[MOST_RANGES - 2] = "…".to_owned();
        shown[MOST_RANGES - 1] = range(starts.len() - 1);
    }
    shown.join(", ")
}

/// Writes units of one message, in order, under a line that names the speaker, as `speaker.rs`
/// formats it. A call, which only an assistant makes, is in that line and names no speaker.
pub(crate) fn write_message(
    message: usize,
    speaker: &str,
    reading: &Reading,
    units: &[usize],
    has_failed: &dyn Fn(usize, usize) -> bool,
    out: &mut String,
) {
    let first = units.first().map(|unit| reading.units[*unit].block as usize);
    let is_call = |block: usize| matches!(reading.blocks[block].kind, BlockKind::Call { .. });
    let is_call = first.is_some_and(is_call);
    let _ = match is_call {
        true => write!(out, "\n#{message}"),
        false => write!(out, "\n#{message} {speaker}:"),
    };
    write_units(reading, units, &|block| has_failed(message, block), out);
}

/// Returns the part of a note about a message, from its header to the next one, or to the names of other
/// messages, or the end.
pub(crate) fn of_message(note: &str, message: usize) -> Option<&str> {
    let header = format!("\n#{message} ");
    let start = memmem::find(note.as_bytes(), header.as_bytes())? + 1;
    let shown = &note[start..];
    let is_header = |at: &usize| shown[at + 2..].starts_with(|own: char| own.is_ascii_digit());
    let end = memmem::find_iter(shown.as_bytes(), b"\n#").find(is_header);
    let others = || memmem::rfind(shown.as_bytes(), format!("\n{OTHERS}").as_bytes());
    Some(&shown[..end.or_else(others).unwrap_or(shown.len())])
}

/// Writes units; adjacent ones stay one piece. A piece that begins or ends inside a line has a mark there.
fn write_units(
    reading: &Reading,
    units: &[usize],
    has_failed: &dyn Fn(usize) -> bool,
    out: &mut String,
) {
    let mut block = None;
    // Piece before, and whether its line goes on.
    let mut before: Option<(usize, bool)> = None;
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
        let own = &reading.blocks[first.block as usize];
        let span = first.span.start..reading.units[units[end]].span.end;
        let is_cut = !on_line_before(&reading.text[own.span.start..span.start]).is_empty();
        if block != Some(first.block) {
            out.push_str(if before.is_some_and(|(_, goes_on)| goes_on) { CUT_BEHIND } else { "" });
            match &own.kind {
                BlockKind::Text => out.push('\n'),
                BlockKind::Output => out.push_str("\nresult:\n"),
                BlockKind::Call { name, .. } => {
                    out.push(if block.is_none() { ' ' } else { '\n' });
                    let failed = if has_failed(first.block as usize) { FAILED } else { "" };
                    let _ = write!(out, "> {}{failed}: ", tool_name(name));
                }
            }
            // Without a mark the rest of a call would look like all of it.
            let is_call = matches!(own.kind, BlockKind::Call { .. });
            let is_rest = !reading.text[own.span.start..span.start].trim().is_empty();
            out.push_str(if is_cut || (is_call && is_rest) { CUT } else { "" });
            block = Some(first.block);
        } else {
            let (at, goes_on) = before.unwrap_or((span.start, false));
            let is_one_line = !reading.text[at..span.start].contains('\n');
            out.push_str(match (is_one_line, goes_on, is_cut) {
                (true, ..) => " … ",
                (_, true, true) => " …\n… ",
                (_, true, false) => " …\n",
                (_, false, true) => "\n… ",
                (_, false, false) => "\n…\n",
            });
        }
        quote(&reading.text[span.clone()], reading.role, out);
        let rest = reading.text[span.end..own.span.end.max(span.end)].lines().next();
        before = Some((span.end, rest.is_some_and(|rest| !rest.trim().is_empty())));
        index = end + 1;
    }
    out.push_str(if before.is_some_and(|(_, goes_on)| goes_on) { CUT_BEHIND } else { "" });
}

/// Returns what stands on the last line of a text.
fn on_line_before(text: &str) -> &str {
    text.rsplit('\n').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Role;

    #[test]
    fn a_list_repeats_no_name() {
        let text = r#"{"flights": [{"number": "HAT148", "price": 2048}, {"number": "HAT149", "price": 1024, "of": "src/mill_2.rs"}]}"#;
        let reading = Reading::of_text(Role::Tool, text);
        let wanted = ["HAT148", "2048", "1024", "mill_2.rs", "src/mill_2.rs", "mill_2"];
        let mentions: Vec<&Mention> =
            reading.values.iter().filter(|own| wanted.contains(&reading.said(own))).collect();
        assert_eq!(
            listed(&reading, &mentions),
            ["HAT148 (price: 2048)", "HAT149 (price: 1024)", "src/mill_2.rs"]
        );
    }

    #[test]
    fn the_opening_line_has_the_numbers_of_the_messages() {
        for (messages, shown) in [
            (&[3][..], "#3"),
            (&[2, 3, 4], "#2-#4"),
            (&[2, 3, 5, 7, 8], "#2-#3, #5, #7-#8"),
            (&[1, 3, 5, 7, 9, 10], "#1, #3, …, #9-#10"),
        ] {
            assert_eq!(ranges(messages), shown);
        }
    }

    #[test]
    fn what_is_shown_of_a_message_ends_before_the_next() {
        let note = "[weir: 9]\n#1 user:\na\n# b\n#21 read():\n| #2 c\n#2 assistant:\nd\nalso: e\nother messages: f";
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
