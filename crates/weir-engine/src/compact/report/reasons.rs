//! Reasons for the fate of each message, derived from a finished compaction state. Decides nothing.

use serde::Serialize;

use crate::compact::state::Compactor;
use crate::compact::state::history::Pin;
use crate::compact::state::messages::Fate;
use crate::compact::state::turns::TurnKind;
use crate::wire::Role;

/// Reason for a message's fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No compaction was due.
    Fits,
    /// The caller disabled compaction.
    Bypassed,
    /// System messages are never removed.
    System,
    /// It belongs to the newest turn, which is never removed.
    NewestTurn,
    FirstUser,
    /// The message that the newest turn answers.
    NewestQuestion,
    /// It is the note of an earlier compaction.
    EarlierNote,
    /// The caller marked it to stay.
    PinnedByCaller,
    /// It was just before the newest turn at the last compaction.
    Recent,
    /// It came after the last compaction.
    #[serde(rename = "after_last_cut")]
    AfterLastCompaction,
    /// The last compaction freed enough without it.
    HadRoom,
    /// A pattern of the policy matches it.
    Anchor,
    /// It loads a tool that a call behind it needs.
    LoadedTools,
    /// It is old and bulky.
    Masked,
    /// It exceeds the size bound of a single result.
    Oversized,
    /// It did not fit together with the messages that had to stay.
    TooLarge,
    /// There was no room for it.
    LeftOut,
    /// It names a block that was left out before it came.
    Unpaired,
}

/// Reason for a message's fate, with its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Why {
    pub reason: Reason,
    /// Number of the compaction that assigned its fate, counted from 1.
    #[serde(rename = "cut")]
    pub compaction: Option<u32>,
    /// Number of messages in the conversation at that compaction.
    pub at_messages: Option<usize>,
    /// Number of the note that covers it, counted from 1.
    pub note: Option<usize>,
}

impl Why {
    /// Creates a reason without a compaction.
    pub fn plain(reason: Reason) -> Self {
        Self { reason, compaction: None, at_messages: None, note: None }
    }

    /// Returns the reason as a sentence without its period.
    pub fn text(&self) -> String {
        let said = match self.reason {
            Reason::Fits => "no compaction was due",
            Reason::Bypassed => "bypassed",
            Reason::System => "system message",
            Reason::NewestTurn => "newest turn",
            Reason::FirstUser => "first user message",
            Reason::EarlierNote => "note of an earlier compaction",
            Reason::PinnedByCaller => "pinned by the caller",
            Reason::Recent => "recent at the last compaction",
            Reason::AfterLastCompaction => "came after the last compaction",
            Reason::HadRoom => "there was room for it",
            Reason::NewestQuestion => "the newest question",
            Reason::Anchor => "matches an anchor of the policy",
            Reason::LoadedTools => "loads a tool that a later call needs",
            Reason::Masked => "masked",
            Reason::Oversized => "too large by itself",
            Reason::TooLarge => "too large to send whole",
            Reason::LeftOut => "left out",
            Reason::Unpaired => "left out with the call that it belongs to",
        };
        let mut text = said.to_owned();
        if let (Some(compaction), Some(messages)) = (self.compaction, self.at_messages) {
            text.push_str(&format!(" in compaction {compaction} (at {messages} messages)"));
        }
        if let Some(note) = self.note {
            text.push_str(&format!(", see note {note}"));
        }
        text
    }
}

impl Compactor {
    /// Returns the reason for each message's fate, in order.
    pub fn reasons(&self) -> Vec<Why> {
        (0..self.messages()).map(|message| self.reason(message)).collect()
    }

    fn reason(&self, message: usize) -> Why {
        match self.messages.fates[message] {
            Fate::Kept => Why::plain(self.reason_to_keep(message)),
            Fate::Masked if self.history.changed_in(message) == 0 => Why::plain(Reason::Oversized),
            Fate::Masked => self.by_compaction(message, Reason::Masked),
            Fate::Clipped => self.by_compaction(message, Reason::TooLarge),
            Fate::Gone if self.history.changed_in(message) == 0 => {
                let next = self.history.count_before(message) + 1;
                Why { note: self.note_about(next), ..Why::plain(Reason::Unpaired) }
            }
            Fate::Gone => {
                let why = self.by_compaction(message, Reason::LeftOut);
                Why {
                    note: why.compaction.and_then(|compaction| self.note_about(compaction)),
                    ..why
                }
            }
        }
    }

    fn by_compaction(&self, message: usize, reason: Reason) -> Why {
        let number = self.history.changed_in(message);
        match self.history.compaction(number) {
            None => Why::plain(reason),
            Some(compaction) => Why {
                reason,
                compaction: Some(number),
                at_messages: Some(compaction.messages),
                note: None,
            },
        }
    }

    /// Returns the note about messages removed in the compaction of this number. It is the first
    /// one written then or later, since each note covers everything that no earlier one does.
    fn note_about(&self, compaction: u32) -> Option<usize> {
        let since =
            self.notes.list.iter().enumerate().filter(|(_, note)| note.compaction >= compaction);
        since.min_by_key(|(place, note)| (note.compaction, *place)).map(|(place, _)| place + 1)
    }

    fn reason_to_keep(&self, message: usize) -> Reason {
        let last_compaction = self.history.last();
        if last_compaction.is_none() && !self.is_above_mark() {
            return Reason::Fits;
        }
        if self.messages.facts[message].role == Role::System {
            return Reason::System;
        }
        let Some(turn) = self.turns.of_message[message] else { return Reason::HadRoom };
        if turn >= self.turns.newest_from() {
            return Reason::NewestTurn;
        }
        let own = &self.turns.list[turn];
        if self.turns.first_user == Some(turn) && own.kind == TurnKind::User {
            return Reason::FirstUser;
        }
        let newest = self.turns.list.last().map(|newest| newest.exchange);
        if own.is_note {
            return Reason::EarlierNote;
        }
        if own.kind == TurnKind::User && newest == Some(own.exchange) {
            return Reason::NewestQuestion;
        }
        match self.history.pins.get(&turn) {
            Some(Pin::ByCaller) if self.messages.facts[message].is_marked => Reason::PinnedByCaller,
            Some(Pin::ByCaller) => Reason::Anchor,
            Some(Pin::Recent | Pin::Question) => Reason::Recent,
            Some(Pin::FirstUser) => Reason::FirstUser,
            Some(Pin::Load) => Reason::LoadedTools,
            Some(Pin::Summary) => Reason::EarlierNote,
            None if last_compaction.is_some_and(|compaction| message >= compaction.messages) => {
                Reason::AfterLastCompaction
            }
            None if last_compaction.is_some() && turn >= self.history.newest => Reason::Recent,
            None => Reason::HadRoom,
        }
    }
}
