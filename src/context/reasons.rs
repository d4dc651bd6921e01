//! Why each message has its fate, told from a fold that has ended. Decides nothing.

use serde::Serialize;

use super::cut::{Mark, Pin, current_tokens};
use super::fold::{Fate, Fold};
use super::policy::Restart;
use super::turn::TurnKind;
use crate::wire::Role;

/// Why a message has its fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No cut was due.
    Fits,
    /// The caller asked that nothing be done.
    Bypassed,
    /// System messages never go.
    System,
    /// It belongs to the newest turn, which never goes.
    NewestTurn,
    FirstUser,
    /// What the newest turn answers.
    NewestQuestion,
    /// The caller marked it to stay.
    PinnedByCaller,
    /// It stood just before the newest turn when the last cut was made.
    Recent,
    /// It came after the last cut.
    AfterLastCut,
    /// The last cut made room enough without it.
    HadRoom,
    /// A pattern of the policy matches it.
    Anchor,
    /// It is old and bulky.
    Masked,
    /// It is so large that it gives way whatever else there is.
    Oversized,
    /// It did not fit beside what had to stay.
    TooLarge,
    /// There was no room for it.
    LeftOut,
}

/// Why a message has its fate, with the numbers that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Why {
    pub reason: Reason,
    /// The number of the cut that gave it its fate, counted from 1.
    pub cut: Option<u32>,
    /// How many messages the conversation had at that cut.
    pub at_messages: Option<usize>,
    /// The number of the note that stands for it, counted from 1.
    pub note: Option<usize>,
}

impl Why {
    /// A reason that no cut has a part in.
    pub fn plain(reason: Reason) -> Self {
        Self { reason, cut: None, at_messages: None, note: None }
    }

    /// The reason as a sentence without its period.
    pub fn text(&self) -> String {
        let said = match self.reason {
            Reason::Fits => "no cut was due",
            Reason::Bypassed => "bypassed",
            Reason::System => "system message",
            Reason::NewestTurn => "newest turn",
            Reason::FirstUser => "first user message",
            Reason::PinnedByCaller => "pinned by the caller",
            Reason::Recent => "recent at the last cut",
            Reason::AfterLastCut => "came after the last cut",
            Reason::HadRoom => "there was room for it",
            Reason::NewestQuestion => "the newest question",
            Reason::Anchor => "matches an anchor of the policy",
            Reason::Masked => "masked",
            Reason::Oversized => "too large by itself",
            Reason::TooLarge => "too large to send whole",
            Reason::LeftOut => "left out",
        };
        let mut text = said.to_owned();
        if let (Some(cut), Some(messages)) = (self.cut, self.at_messages) {
            text.push_str(&format!(" in cut {cut} (at {messages} messages)"));
        }
        if let Some(note) = self.note {
            text.push_str(&format!(", stands in note {note}"));
        }
        text
    }
}

impl Fold {
    /// Why each message has its fate, in order.
    pub fn reasons(&self) -> Vec<Why> {
        (0..self.messages()).map(|message| self.reason(message)).collect()
    }

    fn reason(&self, message: usize) -> Why {
        match self.fates[message] {
            Fate::Kept => Why::plain(self.reason_to_keep(message)),
            Fate::Masked if self.history.changed_in(message) == 0 => Why::plain(Reason::Oversized),
            Fate::Masked => self.by_cut(message, Reason::Masked),
            Fate::Clipped => self.by_cut(message, Reason::TooLarge),
            Fate::Gone => {
                let why = self.by_cut(message, Reason::LeftOut);
                Why { note: why.cut.and_then(|cut| self.note_about(cut)), ..why }
            }
        }
    }

    fn by_cut(&self, message: usize, reason: Reason) -> Why {
        let number = self.history.changed_in(message);
        match self.history.cut(number) {
            None => Why::plain(reason),
            Some(cut) => {
                Why { reason, cut: Some(number), at_messages: Some(cut.messages), note: None }
            }
        }
    }

    /// The note that speaks of what went in the cut of this number: the first one written then or
    /// later, since each speaks of all that none before it does.
    fn note_about(&self, cut: u32) -> Option<usize> {
        let since = self.notes.iter().enumerate().filter(|(_, note)| note.cut >= cut);
        since.min_by_key(|(place, note)| (note.cut, *place)).map(|(place, _)| place + 1)
    }

    fn reason_to_keep(&self, message: usize) -> Reason {
        let last_cut = self.history.last();
        if last_cut.is_none() && !self.is_above_mark(0) {
            return Reason::Fits;
        }
        if self.facts[message].role == Role::System {
            return Reason::System;
        }
        let Some(turn) = self.turns.of_message[message] else { return Reason::HadRoom };
        if turn >= self.turns.newest_from() {
            return Reason::NewestTurn;
        }
        if self.first_user == Some(turn) {
            return Reason::FirstUser;
        }
        let own = &self.turns.list[turn];
        let newest = self.turns.list.last().map(|newest| newest.exchange);
        if own.kind == TurnKind::User && newest == Some(own.exchange) {
            return Reason::NewestQuestion;
        }
        match self.history.pins.get(&turn) {
            Some(Pin::ByCaller) if self.facts[message].is_marked => Reason::PinnedByCaller,
            Some(Pin::ByCaller) => Reason::Anchor,
            Some(Pin::Recent | Pin::Question) => Reason::Recent,
            Some(Pin::FirstUser) => Reason::FirstUser,
            None if last_cut.is_some_and(|cut| message >= cut.messages) => Reason::AfterLastCut,
            None if last_cut.is_some() && turn >= self.history.newest => Reason::Recent,
            None => Reason::HadRoom,
        }
    }

    /// What a message takes of what is sent; 0 where it is gone.
    pub fn tokens_sent_of(&self, message: usize) -> u64 {
        match self.fates[message] {
            Fate::Gone => 0,
            _ => current_tokens(self, message),
        }
    }

    /// The size above which the next cut is due, and the one that it goes down to.
    pub fn marks(&self) -> Marks {
        let (soft_tokens, hard_tokens) = self.due_above();
        Marks {
            trigger_tokens: soft_tokens.map_or(hard_tokens, |soft| soft.min(hard_tokens)),
            low_tokens: self.low_tokens(),
        }
    }
}

/// How near the next cut is, or what kind of cut the last message brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Zone {
    /// Below all marks.
    Continue,
    /// Above the soft mark: old results are masked.
    Mask,
    /// Above the hard mark for the first time since the last restart, where there are restarts.
    WindDown,
    Restart,
    /// Above the hard mark, where there are no restarts.
    Cut,
}

impl Zone {
    /// The words for it in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Mask => "mask",
            Self::WindDown => "wind down",
            Self::Restart => "restart",
            Self::Cut => "cut",
        }
    }
}

impl Fold {
    /// The zone of the request that ends here.
    pub fn zone(&self) -> Zone {
        let last_cut = self.history.last().filter(|cut| cut.messages == self.messages());
        if last_cut.is_some_and(|cut| cut.is_restart) {
            return Zone::Restart;
        }
        let (soft_tokens, hard_tokens) = self.due_above();
        let by_size = match self.size_tokens {
            size if size > hard_tokens => Some(Mark::Hard),
            size if soft_tokens.is_some_and(|soft| size > soft) => Some(Mark::Soft),
            _ => None,
        };
        match last_cut.map(|cut| cut.mark).or(by_size) {
            None => Zone::Continue,
            Some(Mark::Soft) => Zone::Mask,
            Some(Mark::Hard) if self.profile.policy.zones.restart == Restart::Never => Zone::Cut,
            Some(Mark::Hard) => Zone::WindDown,
        }
    }
}

/// Sizes at which something happens, tools included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Above this a cut is due.
    pub trigger_tokens: u64,
    /// A cut goes down to this.
    pub low_tokens: u64,
}
