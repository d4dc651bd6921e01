//! Parts of messages that survival works with.

use std::ops::Range;

use crate::compact::message::reading::{Reading, Unit};

/// Tags around instructions that agents put into a user's message.
pub(super) const INSTRUCTION_TAGS: [&str; 9] = [
    "system-reminder",
    "INSTRUCTIONS",
    "instructions",
    "user_instructions",
    "project_instructions",
    "custom_instructions",
    "user_rules",
    "rules",
    "always_applied_workspace_rules",
];

/// Units of a message that go into a note first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) message: usize,
    pub(crate) units: Range<usize>,
}

/// Returns the units that have a part of a span, by index.
pub(super) fn units_within(reading: &Reading, span: &Range<usize>) -> Range<usize> {
    let first = reading.units.partition_point(|unit| unit.span.end <= span.start);
    let end = reading.units.partition_point(|unit| unit.span.start < span.end);
    first..end.max(first)
}

/// Returns the text of a unit.
pub(super) fn said<'a>(reading: &'a Reading, unit: &Unit) -> &'a str {
    &reading.text[unit.span.clone()]
}

/// Marks the messages of a list of indexes.
pub(super) fn marked(messages: &[usize], all: usize) -> Vec<bool> {
    let mut marks = vec![false; all];
    for message in messages {
        marks[*message] = true;
    }
    marks
}
