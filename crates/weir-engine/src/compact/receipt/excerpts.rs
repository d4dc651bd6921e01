//! Excerpts of a note, found again in the messages that it names: each line word for word and in order.
//! Reads the text of a note as anybody can, not the engine's choice. Pure.

use std::sync::Arc;

use memchr::memmem;

use super::{NoteEntry, digest};
use crate::compact::excerpt::compose::{CUT, CUT_BEHIND};
use crate::compact::message::quote;
use crate::compact::message::reading::Reading;
use crate::wire::Role;

/// Marks of gaps: between lines, and inside one.
const GAP: &str = "…";
const INNER_GAP: &str = " … ";
/// Maximum number of unknown lines reported, and of characters of each.
const MAX_UNKNOWN_LINES: usize = 100;
const SHOWN_CHARACTERS: usize = 80;

/// Excerpts found so far.
pub(super) struct FoundExcerpts {
    of_message: Vec<Vec<(usize, usize, String)>>,
    unknown_lines: Vec<String>,
}

impl FoundExcerpts {
    pub(super) fn new(messages: usize) -> Self {
        Self { of_message: vec![Vec::new(); messages], unknown_lines: Vec::new() }
    }

    /// Returns the excerpts of a message, in order.
    pub(super) fn of(&self, message: usize) -> &[(usize, usize, String)] {
        &self.of_message[message]
    }

    pub(super) fn into_unknown_lines(self) -> Vec<String> {
        self.unknown_lines
    }

    /// Finds the excerpts of a note, and describes it.
    pub(super) fn take(&mut self, note: &str, readings: &[Arc<Reading>]) -> NoteEntry {
        let mut shown =
            NoteEntry { digest: digest(note), bytes: note.len(), ..NoteEntry::default() };
        let mut message: Option<usize> = None;
        let mut spans: Vec<(usize, usize)> = Vec::new();
        // A model's summary is no excerpt: it ends at the next line of weir's own.
        let mut is_summary = false;
        for line in note.split('\n') {
            if let Some(head) = line.strip_prefix("[weir: ") {
                is_summary = read_head(head, &mut shown);
                continue;
            }
            if is_summary || line.is_empty() || line == GAP {
                continue;
            }
            let (next, line) = header(line);
            if let Some(next) = next.filter(|next| *next < readings.len()) {
                self.close(message, &mut spans, readings);
                message = Some(next);
            }
            if line.is_empty() {
                continue;
            }
            let reading = message.map(|message| &readings[message]);
            let is_found = match quote::names(line) {
                Some(names) => is_named(names, reading, readings),
                None => reading.is_some_and(|reading| locate(line, reading, &mut spans)),
            };
            if !is_found {
                shown.unknown_lines += 1;
                if self.unknown_lines.len() < MAX_UNKNOWN_LINES {
                    self.unknown_lines.push(line.chars().take(SHOWN_CHARACTERS).collect());
                }
            }
        }
        self.close(message, &mut spans, readings);
        shown
    }

    /// Keeps the spans of a message, adjacent ones as one.
    fn close(
        &mut self,
        message: Option<usize>,
        spans: &mut Vec<(usize, usize)>,
        readings: &[Arc<Reading>],
    ) {
        let Some(message) = message else { return };
        let text = &readings[message].text;
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for (start, end) in spans.drain(..) {
            match joined.last_mut() {
                Some(last) if text[last.1..start].trim().is_empty() => last.1 = end,
                _ => joined.push((start, end)),
            }
        }
        let own = joined.into_iter().map(|(start, end)| (start, end, digest(&text[start..end])));
        self.of_message[message].extend(own);
        self.of_message[message].sort();
    }
}

/// Reads one of weir's own lines; returns whether a summary follows.
fn read_head(head: &str, shown: &mut NoteEntry) -> bool {
    let number = |text: &str| text.split(' ').next().and_then(|word| word.parse().ok());
    if let Some(rest) = head.strip_prefix("summary by a model of ") {
        shown.summarised = number(rest).unwrap_or_default();
        let all = rest.split_once(", ").and_then(|(_, all)| number(all));
        shown.covers = all.unwrap_or(shown.summarised);
        return true;
    }
    if let Some(covers) = number(head) {
        shown.covers = covers;
    }
    false
}

/// Returns the message that a line names, with its speaker (`#3 user:`) or a call (`#4 > bash: ls`), and
/// the rest of the line.
fn header(line: &str) -> (Option<usize>, &str) {
    let named = line.strip_prefix('#').and_then(|rest| rest.split_once(' '));
    let Some((Ok(message), rest)) = named.map(|(number, rest)| (number.parse(), rest)) else {
        return (None, line);
    };
    match rest {
        _ if rest.starts_with("> ") => (Some(message), rest),
        _ if rest.ends_with(':') => (Some(message), ""),
        _ => (None, line),
    }
}

/// Returns whether the message, or else some message, holds each of the names.
fn is_named(names: &str, reading: Option<&Arc<Reading>>, readings: &[Arc<Reading>]) -> bool {
    let holds = |name: &str, reading: &Reading| {
        memmem::find(reading.text.as_bytes(), name.as_bytes()).is_some()
    };
    // A name may hold the separator itself.
    let is_held = |name: &str| {
        reading.is_some_and(|reading| holds(name, reading))
            || readings.iter().any(|reading| holds(name, reading))
    };
    // Data has the name of its member before it, and the key of its record.
    let is_datum = |entry: &str| {
        let (key, datum) = entry.split_once(" (").unwrap_or(("", entry));
        let datum = datum.strip_suffix(')').unwrap_or(datum);
        datum.split_once(": ").is_some_and(|(_, value)| is_held(key) && is_held(value))
    };
    is_held(names) || names.split(", ").all(|entry| is_held(entry) || is_datum(entry))
}

/// Finds a line of a note in the text of its message, behind the spans so far.
fn locate(line: &str, reading: &Reading, spans: &mut Vec<(usize, usize)>) -> bool {
    let mut forms = vec![line];
    if reading.role == Role::Assistant {
        let call = line.strip_prefix("> ").and_then(|call| call.split_once(": "));
        forms.extend(call.map(|own| own.1));
        let is_empty = line.strip_prefix("> ").is_some_and(|call| call.ends_with(": "));
        if is_empty {
            return true;
        }
    }
    // A piece of a line has a gap before or behind it.
    for at in 0..forms.len() {
        let begun = forms[at].strip_prefix(CUT).unwrap_or(forms[at]);
        forms.extend([begun, forms[at].strip_suffix(CUT_BEHIND).unwrap_or(forms[at])]);
        forms.push(begun.strip_suffix(CUT_BEHIND).unwrap_or(begun));
    }
    for at in 0..forms.len() {
        forms.extend(forms[at].trim_start().strip_prefix("| "));
        forms.extend(forms[at].strip_prefix("| "));
    }
    if forms.iter().any(|form| locate_form(form, reading, spans)) {
        return true;
    }
    // Other ends of lines than a line feed, behind which a mark may stand.
    let plain = ["\r", "\u{b}", "\u{c}", "\u{85}", "\u{2028}", "\u{2029}"]
        .iter()
        .fold(line.to_owned(), |text, end| text.replace(&format!("{end}| "), end));
    plain != line && locate_form(&plain, reading, spans)
}

/// Finds a text as a whole, or else its parts between gaps.
fn locate_form(form: &str, reading: &Reading, spans: &mut Vec<(usize, usize)>) -> bool {
    let from = spans.last().map_or(0, |last| last.1);
    let find = |part: &str, from: usize| {
        let start = from + memmem::find(&reading.text.as_bytes()[from..], part.as_bytes())?;
        Some((start, start + part.len()))
    };
    if form.trim().is_empty() {
        return true;
    }
    if let Some(span) = find(form, from) {
        spans.push(span);
        return true;
    }
    let (mut at, mut own) = (from, Vec::new());
    for part in form.split(INNER_GAP).filter(|part| !part.trim().is_empty()) {
        let Some(span) = find(part, at) else { return false };
        at = span.1;
        own.push(span);
    }
    let is_split = own.len() > 1;
    if is_split {
        spans.extend(own);
    }
    is_split
}
