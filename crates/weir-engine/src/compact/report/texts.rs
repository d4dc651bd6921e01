//! Details of a plan for people who look into it: how each message appears in the sent request, and the
//! texts of notes and excerpts. Derived from a finished compaction state; decides nothing.

use serde::Serialize;

use super::members::MessageRow;
use super::plain;
use crate::compact::excerpt::compose;
use crate::compact::reasons::Reason;
use crate::compact::state::Compactor;
use crate::compact::state::messages::Fate;
use crate::wire::{Message, json};

/// Appearance of a message in the sent request: its fate, and where it can still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Appearance {
    /// Sent as received, because it must stay or was recent.
    Pinned,
    /// Sent as received.
    Kept,
    /// Not sent; a note has excerpts of it.
    Note,
    /// A placeholder stands for it.
    Masked,
    /// Not sent; a model's summary covers it.
    Summarised,
    /// Its middle is left out.
    Clipped,
    /// Not sent, and nothing of it is quoted.
    Gone,
}

impl Compactor {
    /// Returns the appearance of the message of a report's row.
    pub fn appearance(&self, row: &MessageRow) -> Appearance {
        match row.fate {
            Fate::Kept => match row.why.reason {
                Reason::System
                | Reason::NewestTurn
                | Reason::FirstUser
                | Reason::NewestQuestion
                | Reason::PinnedByCaller
                | Reason::Recent
                | Reason::Anchor
                | Reason::LoadedTools => Appearance::Pinned,
                _ => Appearance::Kept,
            },
            Fate::Masked => Appearance::Masked,
            Fate::Clipped => Appearance::Clipped,
            Fate::Gone if self.excerpts_of(row.index).is_some() => Appearance::Note,
            Fate::Gone => {
                let place = row.why.note.and_then(|number| number.checked_sub(1));
                let note = place.and_then(|place| self.notes.list.get(place));
                match note.is_some_and(|note| note.summary.is_some()) {
                    true => Appearance::Summarised,
                    false => Appearance::Gone,
                }
            }
        }
    }

    /// Returns the number of the note with excerpts of a removed message, and its part about that
    /// message.
    pub fn excerpts_of(&self, message: usize) -> Option<(usize, &str)> {
        let mut notes = self.notes.list.iter().enumerate();
        notes.find_map(|(place, note)| {
            let said = compose::of_message(note.excerpts.as_deref()?, message)?;
            Some((place + 1, said))
        })
    }

    /// Returns the text of the note of this number, counted from 1 as in a report.
    pub fn note_text(&self, number: usize) -> Option<String> {
        self.notes.list.get(number.checked_sub(1)?).map(|note| note.text().trim().to_owned())
    }
}

/// Returns the texts of a message, then each of its calls as the tool's name and the arguments.
pub(crate) fn full_text(message: &Message<'_>) -> String {
    let mut blocks = vec![plain::said(message)];
    blocks.extend(message.all_calls().map(|call| {
        let name = json::string(call.name).unwrap_or_default();
        format!("> {name}: {}", call.text())
    }));
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n")
}
