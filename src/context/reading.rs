//! A message read for what it says: its texts decoded, split into units, with the values in them.
//! Made only when a cut needs it. Pure.

use std::borrow::Cow;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use super::units::units;
use super::values::{ValueKind, values};
use crate::wire::{Content, Message, Role, json, message::Part};

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub role: Role,
    /// All it says, decoded, block after block.
    pub text: String,
    pub blocks: Vec<Block>,
    pub units: Vec<Unit>,
    /// In order of where they stand.
    pub values: Vec<Mention>,
    /// The id of the call that a result answers.
    pub answers: Option<String>,
}

/// A part of what a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub kind: BlockKind,
    pub span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockKind {
    /// What the message says in its own words, or a tool's result.
    Text,
    /// The arguments of a call.
    Call { name: String, id: String },
}

/// A piece that stays whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub span: Range<usize>,
    /// Index of its block.
    pub block: u32,
    /// Index in `values` of the first that begins in it or later.
    pub first_value: u32,
}

/// A value where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mention {
    /// What tells values apart: a hash of their text.
    pub key: u64,
    pub start: u32,
    pub end: u32,
    pub kind: ValueKind,
}

impl Reading {
    /// Reads `message`.
    pub fn of(message: &Message<'_>) -> Self {
        let mut reading = Self::empty(message.role);
        match &message.content {
            Content::None => {}
            Content::Text(raw) => {
                reading.push(BlockKind::Text, json::string(raw).unwrap_or_default());
            }
            Content::Parts(parts) => {
                for part in parts {
                    if let Part::Text(raw) = part {
                        reading.push(BlockKind::Text, json::string(raw).unwrap_or_default());
                    }
                }
            }
        }
        for call in &message.calls {
            let name = json::string(call.name).unwrap_or_default().into_owned();
            let id = json::string(call.id).unwrap_or_default().into_owned();
            reading.push(BlockKind::Call { name, id }, arguments(call.arguments).into());
        }
        reading.answers = message.answers.and_then(json::string).map(std::borrow::Cow::into_owned);
        reading.index();
        reading
    }

    /// A message that says `text` and nothing else.
    pub fn of_text(role: Role, text: &str) -> Self {
        let mut reading = Self::empty(role);
        reading.push(BlockKind::Text, text.into());
        reading.index();
        reading
    }

    fn empty(role: Role) -> Self {
        Self {
            role,
            text: String::new(),
            blocks: Vec::new(),
            units: Vec::new(),
            values: Vec::new(),
            answers: None,
        }
    }

    fn push(&mut self, kind: BlockKind, said: Cow<'_, str>) {
        let mut start = 0;
        if self.text.is_empty() {
            self.text = said.into_owned();
        } else {
            self.text.push('\n');
            start = self.text.len();
            self.text.push_str(&said);
        }
        self.blocks.push(Block { kind, span: start..self.text.len() });
    }

    fn index(&mut self) {
        self.values = values(&self.text)
            .into_iter()
            .map(|value| Mention {
                key: xxh3_64(&self.text.as_bytes()[value.start as usize..value.end as usize]),
                start: value.start,
                end: value.end,
                kind: value.kind,
            })
            .collect();
        let mut first = 0;
        for (index, block) in self.blocks.iter().enumerate() {
            for span in units(&self.text[block.span.clone()]) {
                let span = block.span.start + span.start..block.span.start + span.end;
                let is_before = |value: &Mention| (value.start as usize) < span.start;
                // Units stand in order: the search goes on from the one before.
                if first > 0 && !is_before(&self.values[first - 1]) {
                    first = self.values.partition_point(is_before);
                }
                let ahead = &self.values[first..];
                first += ahead.iter().take_while(|value| is_before(value)).count();
                let first_value = first as u32;
                self.units.push(Unit { span, block: index as u32, first_value });
            }
        }
    }

    /// The values that lie in a unit.
    pub fn values_of(&self, unit: &Unit) -> impl Iterator<Item = &Mention> {
        self.places_in(unit).map(|place| &self.values[place])
    }

    /// The values that lie in a unit, by index.
    pub fn places_in(&self, unit: &Unit) -> impl Iterator<Item = usize> {
        let end = unit.span.end;
        let first = unit.first_value as usize;
        self.values[first..]
            .iter()
            .take_while(move |value| (value.start as usize) < end)
            .enumerate()
            .filter(move |(_, value)| value.end as usize <= end)
            .map(move |(place, _)| first + place)
    }

    /// What a value says.
    pub fn said(&self, value: &Mention) -> &str {
        &self.text[value.start as usize..value.end as usize]
    }
}

/// The arguments of a call as a reader sees them: the strings decoded, each after its name where
/// there are several.
fn arguments(raw: &str) -> String {
    let text = json::string(raw).unwrap_or_default();
    let Some(members) = json::members(&text) else { return text.into_owned() };
    let shown =
        |raw: &str| json::string(raw).map_or_else(|| raw.to_owned(), |text| text.into_owned());
    match members.as_slice() {
        [(_, only)] if only.starts_with('"') => shown(only),
        _ => {
            let lines: Vec<String> =
                members.iter().map(|(key, raw)| format!("{key}: {}", shown(raw))).collect();
            lines.join("\n")
        }
    }
}
