//! Recognition of rules: sentences in which a user, or an instruction file, says what must and must not be
//! done. Results of tools have none, unless the tool read an instruction file. Pure.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use memchr::{memchr_iter, memmem};
use xxhash_rust::xxh3::xxh3_64;

use super::calls::{Called, Calls};
use super::instructions;
use super::outputs::is_output;
use super::parts::{INSTRUCTION_TAGS, said};
use super::words;
use crate::compact::excerpt::weight::Seeded;
use crate::compact::message::pasted::pasted;
use crate::compact::message::reading::{BlockKind, Reading};
use crate::wire::Role;

/// Bytes of a message that are searched for rules, and maximum number found in it.
const SCANNED_BYTES: usize = 256 << 10;
const MOST_RULES: usize = 512;
/// Headings of instruction files that agents put into a user's message, and the beginning of one with a
/// file's name.
const HEADINGS: [&str; 2] = ["# AGENTS.md instructions", "# CLAUDE.md"];
const CONTENTS: &str = "Contents of ";

/// Rules of one message.
#[derive(Debug, Clone)]
pub(super) struct RulesOf {
    pub(super) message: usize,
    /// Its units with rules: strong ones first, in order.
    pub(super) units: Vec<usize>,
    /// Whether a tool has read it from an instruction file.
    pub(super) is_read: bool,
    /// Room that it has so far.
    pub(super) taken_tokens: f64,
}

/// Messages of a conversation, with those that stay.
pub(super) struct Conversation<'a> {
    pub(super) readings: &'a [Arc<Reading>],
    /// Messages that are not sent, in order.
    pub(super) gone: &'a [usize],
    pub(super) kept: &'a [usize],
    /// Notes that stay.
    pub(super) notes: &'a [Arc<Reading>],
}

/// Returns the rules of the messages that a note replaces, in order. One that still stands in a kept
/// message or an earlier note is left out, and so is a repeated one.
pub(super) fn of(conversation: &Conversation<'_>, calls: &Calls) -> Vec<RulesOf> {
    let Conversation { readings, gone, kept, notes } = conversation;
    let mut seen: HashSet<u64, Seeded> = HashSet::default();
    for reading in kept.iter().map(|message| &readings[*message]).chain(*notes) {
        add_units(reading, &mut seen);
    }
    let is_read = |call: &Called| instructions::is_read_by(call, &readings[call.message]);
    let mut all = Vec::new();
    for message in gone.iter().copied() {
        let reading = &readings[message];
        let is_read = match reading.role {
            Role::User if is_output(readings, message) => continue,
            Role::User | Role::System => false,
            Role::Tool if calls.answered_by(message).is_some_and(is_read) => true,
            _ => continue,
        };
        let found = found(reading, is_read).iter();
        let mut units: Vec<usize> = found.map(|unit| *unit as usize).collect();
        units.retain(|unit| seen.insert(key(said(reading, &reading.units[*unit]))));
        if !units.is_empty() {
            all.push(RulesOf { message, units, is_read, taken_tokens: 0.0 });
        }
    }
    all
}

/// Returns the units of a message that are rules, searched for once.
pub(super) fn found(reading: &Reading, is_read: bool) -> &[u32] {
    let findings = &reading.findings;
    let found = if is_read { &findings.instructions } else { &findings.rules };
    let units = || rules(reading, is_read).into_iter().map(|unit| unit as u32).collect();
    found.get_or_init(units)
}

/// Returns the units of a message that are rules, the strong ones first.
fn rules(reading: &Reading, is_read: bool) -> Vec<usize> {
    let end = reading.text.floor_char_boundary(SCANNED_BYTES);
    let instructions = match is_read {
        true => std::iter::once(0..end).collect(),
        false => instructions(&reading.text[..end]),
    };
    let mut instructions = instructions.into_iter().peekable();
    let (mut strong, mut weak) = (Vec::new(), Vec::new());
    let mut is_command = false;
    let mut pasted = pasted(reading).iter().peekable();
    for (index, unit) in reading.units.iter().enumerate() {
        if unit.span.end > end || strong.len() + weak.len() >= MOST_RULES {
            break;
        }
        // All are in order.
        while pasted.next_if(|own| own.end <= unit.span.start).is_some() {}
        if pasted.peek().is_some_and(|own| own.start <= unit.span.start) {
            continue;
        }
        let text = said(reading, unit);
        while instructions.next_if(|own| own.end <= unit.span.start).is_some() {}
        let is_instruction = instructions.peek().is_some_and(|own| own.contains(&unit.span.start));
        if let Some(fence) = text.trim_start().strip_prefix("```") {
            let is_shell = matches!(fence.trim(), "" | "bash" | "sh" | "shell" | "console");
            is_command = !is_command && is_instruction && is_shell;
            continue;
        }
        let is_text = matches!(reading.blocks[unit.block as usize].kind, BlockKind::Text);
        if words::obliges(text) && is_text {
            strong.push(index);
        } else if is_instruction && (is_command || words::advises(text)) {
            weak.push(index);
        }
    }
    strong.extend(weak);
    strong
}

/// Returns the parts of a user's message that an agent took from instruction files.
fn instructions(text: &str) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    // End of the last part in each tag.
    let mut ends = [0; INSTRUCTION_TAGS.len()];
    for at in memchr_iter(b'<', text.as_bytes()) {
        let rest = &text[at + 1..];
        let opens = |tag: &str| rest.strip_prefix(tag).is_some_and(|rest| rest.starts_with('>'));
        let Some(nth) = INSTRUCTION_TAGS.iter().position(|tag| opens(tag)) else { continue };
        if at < ends[nth] {
            continue;
        }
        let tag = INSTRUCTION_TAGS[nth];
        let start = at + tag.len() + 2;
        let close = format!("</{tag}>");
        let end = memmem::find(&text.as_bytes()[start..], close.as_bytes())
            .map_or(text.len(), |length| start + length);
        parts.push(start..end);
        ends[nth] = end;
    }
    // The rest of the text behind a heading belongs to it.
    let mut lines = std::iter::once(0).chain(memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1));
    parts.extend(lines.find(|at| is_heading(&text[*at..])).map(|start| start..text.len()));
    parts.sort_unstable_by_key(|part| part.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => joined.push(part),
        }
    }
    joined.truncate(MOST_RULES);
    joined
}

/// Returns whether a text begins with the heading of an instruction file.
fn is_heading(text: &str) -> bool {
    let line = || text.lines().next().unwrap_or_default();
    HEADINGS.iter().any(|heading| text.starts_with(heading))
        || (text.starts_with(CONTENTS) && line().split(' ').any(instructions::is_named))
}

/// Adds the units of a text that stays.
fn add_units(reading: &Reading, seen: &mut HashSet<u64, Seeded>) {
    if matches!(reading.role, Role::Tool | Role::Assistant) {
        return;
    }
    seen.extend(reading.units.iter().map(|unit| key(said(reading, unit))));
}

pub(super) fn key(text: &str) -> u64 {
    xxh3_64(text.trim().strip_prefix("| ").unwrap_or(text.trim()).as_bytes())
}
