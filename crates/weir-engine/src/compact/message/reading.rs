//! Reading of a message's content: its texts decoded, split into units, with the values in them.
//! Made for compactions, and kept from one to the next. Pure.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64;

use super::units::units;
use super::values::{Value, ValueKind, values};
use crate::wire::message::Call;
use crate::wire::{Message, Role, json};

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub role: Role,
    /// Name of the participant, if a user's message has one.
    pub participant: Option<Box<str>>,
    /// Whether its text only names the files of a user's message that has none of its own.
    pub is_media: bool,
    /// All decoded text, block after block.
    pub text: String,
    pub blocks: Vec<Block>,
    pub units: Vec<Unit>,
    /// Values in order of position.
    pub values: Vec<Mention>,
    /// Id of the call that a result answers.
    pub answers: Option<String>,
    /// Whether a result is marked as an error.
    pub is_error: bool,
    /// Results of searches, each filled at its first use.
    pub(crate) findings: Findings,
}

/// Findings in the text of a message. Each compaction asks for them, so each is searched for once. They
/// follow from the text, so they are no part of equality.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    /// Units that are rules.
    pub(crate) rules: OnceLock<Box<[u32]>>,
    /// Units that are rules if the message is a file with instructions, which a tool has read.
    pub(crate) instructions: OnceLock<Box<[u32]>>,
    /// Units in which an assistant says a decision.
    pub(crate) decisions: OnceLock<Box<[u32]>>,
    /// Edits of files that an assistant's message makes.
    pub(crate) edits: OnceLock<Box<[FileEdit]>>,
    /// Texts that an assistant's message writes into files.
    pub(crate) written_texts: OnceLock<Box<[WrittenText]>>,
    /// Hash of each unit without its values; none of an assistant's units.
    pub(crate) shapes: OnceLock<Box<[u64]>>,
    /// Last units of a result that report an error, the last first.
    pub(crate) reports: OnceLock<Box<[u32]>>,
    /// Units of a user's message that are sentences.
    pub(crate) sentences: OnceLock<Box<[u32]>>,
    /// Parts of a user's message that are pasted.
    pub(crate) pasted: OnceLock<Box<[Range<usize>]>>,
    /// Units that differ from all others of a result.
    pub(crate) odd: OnceLock<Box<[u32]>>,
    /// Hashes of the texts that stand more than once under one name of a member, sorted.
    pub(crate) repeated: OnceLock<Box<[u64]>>,
}

/// Edit of a file: the block of its call, a key of the path, the unit with the path and those with the new text.
#[derive(Debug, Clone)]
pub(crate) struct FileEdit {
    pub(crate) block: usize,
    pub(crate) path: u64,
    pub(crate) units: Vec<usize>,
}

/// Text written into a file: the index of its block, and its span.
pub(crate) type WrittenText = (usize, Range<usize>);

impl PartialEq for Findings {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Findings {}

/// Part of a message's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub kind: BlockKind,
    pub span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockKind {
    /// Text of the message, or a tool's result.
    Text,
    /// Call, with its arguments if they are an object. Some say themselves that they failed.
    Call { name: String, id: String, arguments: Box<[Argument]>, has_failed: bool },
    /// Output of a call inside the message.
    Output,
}

/// Argument of a call. Positions are in the text of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Name in lower case and without signs.
    pub name: Box<str>,
    /// Start of its line, which its name precedes if there are several arguments.
    pub start: usize,
    /// Its value: the decoded text, or else the JSON.
    pub value: Range<usize>,
}

/// Piece of text that stays whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub span: Range<usize>,
    /// Index of its block.
    pub block: u32,
    /// Index in `values` of the first that begins in it or later.
    pub first_value: u32,
}

/// Occurrence of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mention {
    /// Hash of the value's text.
    pub key: u64,
    pub start: u32,
    pub end: u32,
    pub kind: ValueKind,
    pub has_digit: bool,
    pub has_slash: bool,
    /// Whether it is the name of a record's member.
    pub names_member: bool,
}

/// Incremental reader of a message, text by text.
#[derive(Debug)]
pub struct Reader(Reading);

impl Reader {
    /// Creates a reader for a message of `role`.
    pub fn new(role: Role) -> Self {
        let reading = Reading {
            role,
            participant: None,
            is_media: false,
            text: String::new(),
            blocks: Vec::new(),
            units: Vec::new(),
            values: Vec::new(),
            answers: None,
            is_error: false,
            findings: Findings::default(),
        };
        Self(reading)
    }

    /// Adds the next decoded text of the message: of its content, or the arguments of a call.
    pub fn push(&mut self, text: Cow<'_, str>, call: Option<&Call<'_>>) {
        let Some(call) = call else { return self.0.push(BlockKind::Text, text) };
        let name = json::string(call.name).unwrap_or_default().into_owned();
        let id = json::string(call.id).unwrap_or_default().into_owned();
        let (text, mut arguments) = arguments(text);
        let start = self.0.next_start();
        for own in &mut arguments {
            own.start += start;
            own.value = own.value.start + start..own.value.end + start;
        }
        let (arguments, has_failed) = (arguments.into(), call.has_failed);
        self.0.push(BlockKind::Call { name, id, arguments, has_failed }, text);
    }

    /// Finishes the reading of `message` after all its texts were added.
    pub fn done(mut self, message: &Message<'_>) -> Reading {
        let is_bare = message.role == Role::User && self.0.text.is_empty();
        if let Some(names) = message.media().filter(|_| is_bare) {
            self.0.push(BlockKind::Text, names.into());
            self.0.is_media = true;
        }
        for call in &message.inner_calls {
            self.push(call.text(), Some(call));
        }
        for raw in &message.inner_outputs {
            self.0.push(BlockKind::Output, json::string(raw).unwrap_or_default());
        }
        self.0.answers = message.answers.and_then(json::string).map(Cow::into_owned);
        self.0.is_error = message.is_error;
        let name = message.name.as_deref().filter(|_| message.role == Role::User);
        self.0.participant = name.map(Into::into);
        self.0.index();
        self.0
    }
}

impl Reading {
    /// Returns it without the values that have digits.
    pub(crate) fn without_numbers(&self) -> Self {
        let mut own = self.clone();
        own.values.retain(|value| !value.has_digit);
        for unit in &mut own.units {
            let before = &self.values[..unit.first_value as usize];
            unit.first_value = before.iter().filter(|value| !value.has_digit).count() as u32;
        }
        own
    }

    /// Reads `message`.
    pub fn of(message: &Message<'_>) -> Self {
        let mut reader = Reader::new(message.role);
        for raw in message.texts() {
            reader.push(json::string(raw).unwrap_or_default(), None);
        }
        for call in &message.calls {
            reader.push(call.text(), Some(call));
        }
        reader.done(message)
    }

    /// Creates the reading of a message that consists of `text`.
    pub fn of_text(role: Role, text: &str) -> Self {
        let Reader(mut reading) = Reader::new(role);
        reading.push(BlockKind::Text, text.into());
        reading.index();
        reading
    }

    /// Returns where the text of the next block begins.
    fn next_start(&self) -> usize {
        if self.text.is_empty() { 0 } else { self.text.len() + 1 }
    }

    fn push(&mut self, kind: BlockKind, said: Cow<'_, str>) {
        let start = self.next_start();
        if self.text.is_empty() {
            self.text = said.into_owned();
        } else {
            self.text.push('\n');
            self.text.push_str(&said);
        }
        self.blocks.push(Block { kind, span: start..self.text.len() });
    }

    fn index(&mut self) {
        let bytes = self.text.as_bytes();
        let mention = |value: Value| {
            let (said, behind) =
                bytes[value.start as usize..].split_at((value.end - value.start) as usize);
            let (mut has_digit, mut has_slash) = (false, false);
            for byte in said {
                has_digit |= byte.is_ascii_digit();
                has_slash |= *byte == b'/';
            }
            Mention {
                key: xxh3_64(said),
                start: value.start,
                end: value.end,
                kind: value.kind,
                has_digit,
                has_slash,
                names_member: matches!(behind, [b'"' | b'\'', b':', ..]),
            }
        };
        self.values = values(&self.text).into_iter().map(mention).collect();
        let mut first = 0;
        for (index, block) in self.blocks.iter().enumerate() {
            for span in units(&self.text[block.span.clone()]) {
                let span = block.span.start + span.start..block.span.start + span.end;
                let is_before = |value: &Mention| (value.start as usize) < span.start;
                // Units are in order: the search continues from the previous one.
                if first > 0 && !is_before(&self.values[first - 1]) {
                    first = self.values.partition_point(is_before);
                }
                let ahead = &self.values[first..];
                first += ahead.iter().take_while(|value| is_before(value)).count();
                let first_value = first as u32;
                self.units.push(Unit { span, block: index as u32, first_value });
            }
        }
        // Tens of thousands of short messages may be kept.
        self.blocks.shrink_to_fit();
        self.units.shrink_to_fit();
        self.values.shrink_to_fit();
    }

    /// Returns the memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let findings = &self.findings;
        let places = [
            &findings.rules,
            &findings.instructions,
            &findings.decisions,
            &findings.reports,
            &findings.sentences,
            &findings.odd,
        ];
        let places = places.map(|own| own.get().map_or(0, |own| size_of_val(&**own)));
        let blocks = self.blocks.iter().map(|block| match &block.kind {
            BlockKind::Text | BlockKind::Output => size_of::<Block>(),
            BlockKind::Call { name, id, arguments, .. } => {
                let names: usize = arguments.iter().map(|own| own.name.len()).sum();
                let all = name.capacity() + id.capacity() + names;
                size_of::<Block>() + all + size_of_val(&**arguments)
            }
        });
        size_of::<Self>()
            + self.text.capacity()
            + blocks.sum::<usize>()
            + self.units.capacity() * size_of::<Unit>()
            + self.values.capacity() * size_of::<Mention>()
            + self.answers.as_ref().map_or(0, String::capacity)
            + places.iter().sum::<usize>()
            + findings.written_texts.get().map_or(0, |own| size_of_val(&**own))
            + findings.shapes.get().map_or(0, |own| size_of_val(&**own))
            + findings.pasted.get().map_or(0, |own| size_of_val(&**own))
            + findings.repeated.get().map_or(0, |own| size_of_val(&**own))
    }

    /// Returns the values in a unit.
    pub fn values_of(&self, unit: &Unit) -> impl Iterator<Item = &Mention> {
        self.places_in(unit).map(|place| &self.values[place])
    }

    /// Returns the values in a unit, by index.
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

    /// Returns the text of a value.
    pub fn said(&self, value: &Mention) -> &str {
        &self.text[value.start as usize..value.end as usize]
    }
}

/// Returns the readable form of a call's arguments: the strings decoded, each after its name if
/// there are several. Positions are in that text.
fn arguments(text: Cow<'_, str>) -> (Cow<'_, str>, Vec<Argument>) {
    let Some(mut members) = json::members(&text) else { return (text, Vec::new()) };
    // A kind of action says less than what it acts on.
    members.sort_by_key(|(name, _)| name == "type");
    let is_named = !matches!(members.as_slice(), [(_, only)] if only.starts_with('"'));
    let (mut said, mut all) =
        (String::with_capacity(text.len()), Vec::with_capacity(members.len()));
    for (name, raw) in &members {
        if !said.is_empty() {
            said.push('\n');
        }
        let start = said.len();
        if is_named {
            said.push_str(name);
            said.push_str(": ");
        }
        let first = said.len();
        said.push_str(&json::string(raw).unwrap_or(Cow::Borrowed(raw)));
        let name = plain(name).into_boxed_str();
        all.push(Argument { name, start, value: first..said.len() });
    }
    (said.into(), all)
}

/// Returns a name in lower case and without signs.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
