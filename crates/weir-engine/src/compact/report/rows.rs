//! Rows of a report: messages, notes and files, each read once.

use super::files::{self, FileUse, Files};
use super::members::{MessageRow, NoteRow, Subject};
use super::reasons::{Reason, Why};
use super::treatment::Treatment;
use super::{plain, shown};
use crate::compact::message::extract;
use crate::compact::state::messages::Fate;
use crate::compact::state::note::Place;
use crate::wire::{Message, Role, json};

/// Maximum characters of a message's text in a row.
const FIRST_CHARACTERS: usize = 60;
/// Maximum characters of a tool's name, and of the names of tools that are called at once.
const TOOL_CHARACTERS: usize = 64;
/// Bytes of a text that are examined for its first words.
const LOOKED_AT_BYTES: usize = 1024;

/// Returns a row for each message.
pub(super) fn messages(subject: &Subject<'_>) -> Vec<MessageRow> {
    let mut tools = Tools::default();
    let reasons = match subject.treatment {
        Treatment::Compacted | Treatment::Observed => subject.state.reasons(),
        Treatment::LeftAlone => vec![Why::plain(Reason::Fits); subject.messages.len()],
        Treatment::Bypassed => vec![Why::plain(Reason::Bypassed); subject.messages.len()],
    };
    let is_by_state = subject.treatment.is_by_state();
    let rows = subject.messages.iter().zip(reasons).enumerate().map(|(index, (raw, why))| {
        let fact = &subject.state.messages.facts[index];
        let fate = if is_by_state { subject.state.messages.fates[index] } else { Fate::Kept };
        let sent_tokens =
            if is_by_state { subject.state.messages.sent_tokens(index) } else { fact.tokens };
        let read = subject.protocol.read_message(raw).ok();
        MessageRow {
            index,
            role: fact.role,
            tool: read.as_ref().and_then(|message| tools.of(message)),
            received_tokens: fact.tokens,
            sent_tokens,
            fate,
            why,
            why_text: why_text(&why, fate, sent_tokens),
            first_words: read.as_ref().map(first_words).unwrap_or_default(),
        }
    });
    rows.collect()
}

fn why_text(why: &Why, fate: Fate, sent_tokens: u64) -> String {
    let text = why.text();
    match fate {
        Fate::Masked => format!("{text}, {} left", shown::tokens(sent_tokens)),
        Fate::Clipped => format!("{text}, clipped to {}", shown::tokens(sent_tokens)),
        Fate::Kept | Fate::Gone => text,
    }
}

fn first_words(message: &Message<'_>) -> String {
    let said = plain::said(message);
    let head = &said[..said.floor_char_boundary(LOOKED_AT_BYTES)];
    let words = shown::first_words(head, FIRST_CHARACTERS);
    if !words.is_empty() || message.calls.is_empty() {
        return words;
    }
    let arguments = message.calls[0].text();
    let head = &arguments[..arguments.floor_char_boundary(LOOKED_AT_BYTES)];
    shown::first_words(head, FIRST_CHARACTERS)
}

/// Returns a row for each note, and one for recall.
pub(super) fn notes(subject: &Subject<'_>) -> Vec<NoteRow> {
    if !subject.treatment.is_by_state() {
        return Vec::new();
    }
    let rows = subject.state.notes.list.iter().enumerate().map(|(place, note)| NoteRow {
        number: place + 1,
        message: note.message,
        place: note.place.word(),
        compaction: note.compaction,
        left_out_messages: note.left_out,
        summarised_messages: note.summary.as_ref().map_or(0, |summary| summary.covers),
        sent_tokens: note.tokens,
        first_words: shown::first_words(&note.text(), FIRST_CHARACTERS),
    });
    let recall = subject.recall.map(|recall| NoteRow {
        number: subject.state.notes.list.len() + 1,
        message: recall.message,
        place: Place::After.word(),
        compaction: subject.state.compactions(),
        left_out_messages: 0,
        summarised_messages: 0,
        sent_tokens: recall.tokens,
        first_words: shown::first_words(&recall.text, FIRST_CHARACTERS),
    });
    rows.chain(recall).collect()
}

/// Calls that results may answer.
#[derive(Default)]
struct Tools {
    /// Id (JSON text) and tool of each call in the last assistant message with calls.
    calls: Vec<(String, String)>,
    results: usize,
}

impl Tools {
    /// Returns the tool or tools of a message.
    fn of(&mut self, message: &Message<'_>) -> Option<String> {
        if message.role == Role::Tool {
            let place = self.place_of(message);
            self.results += 1;
            let called = place.map(|place| self.calls[place].1.clone());
            let own = || message.name.as_deref().map(named);
            return called.or_else(own).filter(|name| !name.is_empty());
        }
        if message.calls.is_empty() {
            return None;
        }
        let name = |raw: &str| named(&json::string(raw).unwrap_or_default());
        let calls = message.calls.iter();
        self.calls = calls.map(|call| (call.id.to_owned(), name(call.name))).collect();
        self.results = 0;
        let all = self.calls.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
        Some(shown::first_words(&all, TOOL_CHARACTERS))
    }

    /// Returns the index of the call that a result answers: by its id, or else by position.
    fn place_of(&self, message: &Message<'_>) -> Option<usize> {
        let by_id = message.answers.and_then(|id| self.calls.iter().position(|(own, _)| own == id));
        by_id.or_else(|| (self.results < self.calls.len()).then_some(self.results))
    }
}

fn named(name: &str) -> String {
    shown::first_words(name, TOOL_CHARACTERS)
}

/// Returns the files of the conversation. A result counts for the first file that its call names; a
/// block for its own file.
pub(super) fn files(subject: &Subject<'_>, rows: &[MessageRow]) -> Vec<FileUse> {
    let encoding = subject.state.profile.measure.encoding;
    let mut found = Files::default();
    let mut tools = Tools::default();
    let mut paths: Vec<Vec<String>> = Vec::new();
    for (row, raw) in rows.iter().zip(subject.messages) {
        let Ok(message) = subject.protocol.read_message(raw) else { continue };
        if message.role == Role::Tool {
            let place = tools.place_of(&message);
            tools.results += 1;
            if let Some(path) = place.and_then(|place| paths.get(place)?.first()) {
                found.hold(path, row.received_tokens, row.sent_tokens);
                continue;
            }
        }
        if !message.calls.is_empty() {
            tools.of(&message);
            paths = message.calls.iter().map(extract::paths_of).collect();
            for path in paths.iter().flatten() {
                found.mention(path, row.index);
            }
        }
        for text in message.texts() {
            let text = json::string(text).unwrap_or_default();
            for block in files::blocks(&text) {
                let received_tokens = encoding.count(block.content);
                let sent = u128::from(received_tokens) * u128::from(row.sent_tokens)
                    / u128::from(row.received_tokens.max(1));
                found.mention(block.path, row.index);
                found.hold(block.path, received_tokens, sent as u64);
            }
        }
    }
    found.listed()
}
