//! A cut that turns all that is old into a note of excerpts: what stays are system messages, the
//! first user message, pins, the notes of earlier cuts and a window of recent turns.

use std::rc::Rc;
use std::sync::Arc;

use super::cut::Cut;
use super::excerpt::{self, Subject};
use super::fold::Fate;
use super::history::SummaryUse;
use super::note::{Note, Place};
use super::reading::Reading;
use super::source::Source;
use super::summary::Summary;
use super::tail;
use super::told::Told;
use super::turn::TurnKind;
use crate::tokens::MESSAGE_FRAMING;

/// Notes are written again as one where less than this share of the room for them is left for a new
/// one.
const APPENDED_SHARE: f64 = 0.1;
/// What notes get at least of what is left for notes and growth, in tokens and as a share: with less they
/// would say nothing, and the growth that a compaction promises gives way.
const LEAST_NOTES_TOKENS: f64 = 1000.0;
const LEAST_NOTES_SHARE: f64 = 0.6;
/// What of the room below the low mark recent turns leave to a new note.
const NEW_NOTE_SHARE: f64 = 0.6;
/// A newest turn that takes more than this share of the room below the low mark leaves a thin note,
/// which the next compaction writes again.
const OUTSIZED_SHARE: f64 = 0.5;
/// The least that is left for a note, else the first user message goes.
const NOTE_ROOM_TOKENS: f64 = 60.0;
/// What the seam between a note and the text beside it may take.
const SEAM_TOKENS: u64 = 4;
/// What stands around a note: a message's framing, or the seam.
const FRAME_TOKENS: u64 = if MESSAGE_FRAMING > SEAM_TOKENS { MESSAGE_FRAMING } else { SEAM_TOKENS };
/// Each cut looks at all messages. A transcript with more cuts times messages than this, which no
/// window in use comes near, is only counted from there on.
const MOST_WORK: usize = 300_000;
/// Excerpts shorter than this say nothing.
const LEAST_EXCERPT_TOKENS: f64 = 32.0;

impl Cut<'_> {
    /// Takes all turns but the pinned and the newest, and decides which notes stay.
    pub(super) fn condense(&mut self) -> Room {
        let (room, free) = self.make_room();
        self.pin_recent(free as u64);
        self.evict_down_to(0);
        room
    }

    /// The same for a cut that is still to come. By then the newest turn is another one: recent turns
    /// are taken to stay, so that what is said to go will.
    pub(super) fn condense_ahead(&mut self) -> Room {
        let (room, _) = self.make_room();
        self.pin_recent(u64::MAX);
        self.evict_down_to(0);
        room
    }

    /// What a new note may take behind what stays; `None` where that is too little for one.
    pub(super) fn note_tokens(&self, room: Room) -> Option<u64> {
        let limit = self.fold.profile.limit_tokens - tail::reserved_tokens(self.fold);
        let size = self.fold.size_tokens;
        let free = limit.saturating_sub(size).saturating_sub(FRAME_TOKENS);
        let room_tokens = (room.goal - size as f64).min(free as f64);
        (room_tokens >= LEAST_EXCERPT_TOKENS).then_some(room_tokens as u64)
    }

    /// Decides which notes stay: all, where the growth that a compaction promises is left beside them
    /// and a new one; else none, and the new one speaks of all that went. Gives what it may take, and
    /// what is free for turns beside.
    fn make_room(&mut self) -> (Room, f64) {
        self.drop_counts();
        let newest: u64 = self.fold.turns.list[self.newest..].iter().map(|turn| turn.tokens).sum();
        let newest = newest as f64;
        let limit = self.fold.profile.limit_tokens as f64;
        let fixed = self.release_first_user(newest, limit);
        let low = self.fold.low_tokens() as f64;
        let stays = self.staying_tokens() as f64;
        let least = (LEAST_NOTES_SHARE * (limit - stays)).clamp(0.0, LEAST_NOTES_TOKENS);
        let all_notes = (low - stays).max(least);
        self.drop_provisional();
        if all_notes - (self.notes_tokens() as f64) < APPENDED_SHARE * all_notes {
            self.drop_notes();
        }
        let below_low = (low - fixed).max(0.0);
        let notes = self.notes_tokens() as f64;
        let free = (1.0 - NEW_NOTE_SHARE) * below_low - notes;
        let free = free.min(newest + all_notes - notes);
        let is_outsized = newest > OUTSIZED_SHARE * below_low;
        (Room { goal: stays + all_notes, is_outsized }, free)
    }

    /// What stays whatever notes there are: all but the turns that this cut may take.
    fn staying_tokens(&self) -> u64 {
        self.fold.size_tokens.saturating_sub(self.loose_tokens() + self.notes_tokens())
    }

    /// The note of the last cut goes where it was written under an outsized turn.
    fn drop_provisional(&mut self) {
        let told = std::mem::take(&mut self.fold.provisional);
        if told.is_empty() {
            return;
        }
        if let Some(note) = self.fold.notes.pop() {
            self.fold.size_tokens -= note.tokens;
            self.fold.unspoken.extend(told);
        }
    }

    /// Where the first user message and the newest turn do not fit together, the message goes into
    /// the note. Gives what lies below the base then.
    fn release_first_user(&mut self, newest: f64, limit: f64) -> f64 {
        let fixed = self.fold.base_tokens().1 as f64;
        let Some(first_user) = self.fold.first_user.filter(|turn| *turn < self.newest) else {
            return fixed;
        };
        let own = self.turn(first_user);
        let fits = fixed + newest + NOTE_ROOM_TOKENS <= limit;
        let system = fixed - own.tokens as f64;
        if own.is_gone || fits || system + newest > limit {
            return fixed;
        }
        self.pins.remove(&first_user);
        self.evict(first_user);
        self.sweep();
        self.drop_notes();
        self.fold.base_tokens().1 as f64
    }

    fn notes_tokens(&self) -> u64 {
        self.fold.notes.iter().map(|note| note.tokens).sum()
    }

    /// Notes that only count go: what they speak of is told anew.
    fn drop_counts(&mut self) {
        let mut tokens = 0;
        self.fold.notes.retain(|note| {
            tokens += if note.excerpts.is_none() { note.tokens } else { 0 };
            note.excerpts.is_some()
        });
        self.fold.size_tokens -= tokens;
    }

    /// All notes go: the next one is written from the messages themselves.
    fn drop_notes(&mut self) {
        self.fold.size_tokens -= self.notes_tokens();
        self.fold.notes.clear();
        self.fold.provisional.clear();
        let fates = self.fold.fates.iter().enumerate();
        self.fold.unspoken =
            fates.filter(|(_, fate)| **fate == Fate::Gone).map(|(message, _)| message).collect();
    }

    /// Leaves a note of what went since the last one: excerpts, or how many messages it was where
    /// there is no room for more.
    pub(super) fn leave_excerpts(&mut self, room: Room, source: &dyn Source) {
        if self.fold.unspoken.is_empty() {
            // Nothing is to be told: notes stay where they stand, as what was sent stays.
            return;
        }
        let Some((message, place)) = self.place_notes() else { return };
        let limit = self.fold.profile.limit_tokens;
        let size = self.fold.size_tokens;
        let room_tokens = self.note_tokens(room);
        let written = room_tokens.and_then(|tokens| self.write_note(tokens, source));
        let written = written.unwrap_or_default();
        let Written { text, tokens: counted, summary } = written;
        let excerpts = text.map(Arc::from);
        let (cut, left_out) = (self.fold.cuts() + 1, self.fold.unspoken.len());
        let mut note = Note { message, place, cut, left_out, tokens: 0, excerpts, summary };
        // Where a note is a message, what was written is all it says.
        let counted = counted.filter(|_| matches!(place, Place::Own | Place::OwnBefore));
        let count = || self.fold.profile.measure.encoding.count(&note.text());
        note.tokens = counted.unwrap_or_else(count) + FRAME_TOKENS;
        if size + note.tokens > limit {
            if note.summary.is_some() {
                self.fold.history.summary = SummaryUse::Unfit;
            }
            return;
        }
        if note.excerpts.is_some() {
            let told = std::mem::take(&mut self.fold.unspoken);
            if room.is_outsized {
                self.fold.provisional = told;
            }
        }
        self.fold.size_tokens += note.tokens;
        self.fold.notes.push(note);
    }

    /// What the note says: what a model wrote, where there is that, and excerpts in the room that is
    /// left.
    fn write_note(&mut self, room_tokens: u64, source: &dyn Source) -> Option<Written> {
        let span = self.span();
        let told = self.told(&span, span.len(), room_tokens, source);
        let left_tokens = match &told {
            Some(told) => room_tokens.saturating_sub(told.tokens + SEAM_TOKENS),
            None => room_tokens,
        };
        let work = self.fold.cuts() as usize * self.fold.facts.len();
        let is_worth = work <= MOST_WORK && left_tokens as f64 >= LEAST_EXCERPT_TOKENS;
        let excerpts = is_worth
            .then(|| self.write_excerpts(&span, told.as_ref(), left_tokens, source))
            .flatten();
        let Some(told) = told else {
            let (text, tokens) = excerpts?;
            return Some(Written { text: Some(text), tokens: Some(tokens), summary: None });
        };
        let mut text = told.block;
        if let Some((excerpts, _)) = excerpts {
            text.push('\n');
            text.push_str(&excerpts);
        }
        Some(Written { text: Some(text), tokens: None, summary: Some(told.summary) })
    }

    fn write_excerpts(
        &self,
        gone: &[usize],
        told: Option<&Told>,
        room_tokens: u64,
        source: &dyn Source,
    ) -> Option<(String, u64)> {
        let fold = &*self.fold;
        source.expect(&(0..fold.facts.len()).collect::<Vec<_>>());
        let readings: Vec<Rc<Reading>> =
            (0..fold.facts.len()).map(|message| source.reading(message)).collect();
        let text_tokens: Vec<u64> = fold
            .facts
            .iter()
            .map(|fact| fact.tokens.saturating_sub(MESSAGE_FRAMING + 8 * u64::from(fact.calls)))
            .collect();
        let kept: Vec<usize> = (0..fold.facts.len())
            .filter(|message| !matches!(fold.fates[*message], Fate::Gone | Fate::Masked))
            .collect();
        let mut notes: Vec<Rc<Reading>> = fold
            .notes
            .iter()
            .filter_map(|note| note.excerpts.as_ref())
            .map(|text| source.note_reading(text))
            .collect();
        notes.extend(told.map(|told| source.note_reading(&told.summary.text)));
        let subject = Subject {
            turns: &fold.turns,
            readings: &readings,
            lexicon: &source.lexicon(fold.facts.len()),
            text_tokens: &text_tokens,
            gone,
            summarised: told.map(|told| told.summary.covers),
            kept: &kept,
            notes: &notes,
            first_user: fold.first_user.map(|turn| self.turn(turn).first),
            encoding: fold.profile.measure.encoding,
            thrift: f64::from(fold.profile.policy.thrift_permille) / 1000.0,
        };
        excerpt::write(&subject, room_tokens)
    }

    /// Where all notes stand, in order: behind the first user message, else behind the system
    /// messages. In messages of their own where the model takes two user messages in a row; else in
    /// the text of the user message that is there, or of the next. Nowhere where that is the last
    /// message, which is sent as the caller asked it.
    fn notes_place(&self) -> Option<(usize, Place)> {
        let is_last = |message: usize| message + 1 == self.fold.facts.len();
        let takes_text = |message: usize| self.fold.facts[message].takes_note && !is_last(message);
        let is_apart = self.fold.profile.policy.notes_apart;
        let first_user = self.fold.first_user.map(|turn| self.turn(turn));
        if let Some(turn) = first_user.filter(|turn| !turn.is_gone) {
            return match is_apart {
                true if is_last(turn.first) => Some(self.before(turn.first)),
                true => Some((turn.first, Place::Own)),
                false if takes_text(turn.first) => Some((turn.first, Place::After)),
                false => self.next_user(takes_text),
            };
        }
        let next = self.turn(*self.fold.live.first()?);
        if next.kind == TurnKind::User && !is_apart {
            return self.next_user(takes_text);
        }
        Some(self.before(next.first))
    }

    /// In a message of its own behind the system messages, before `message`.
    fn before(&self, message: usize) -> (usize, Place) {
        match self.fold.turns.system_run.checked_sub(1) {
            Some(system) => (system, Place::Own),
            None => (message, Place::OwnBefore),
        }
    }

    /// Before what the first user message that can take a note says.
    fn next_user(&self, takes_text: impl Fn(usize) -> bool) -> Option<(usize, Place)> {
        let turns = self.fold.live.iter().map(|turn| self.turn(*turn));
        let mut users = turns.filter(|turn| turn.kind == TurnKind::User);
        users.find(|turn| takes_text(turn.first)).map(|turn| (turn.first, Place::Before))
    }

    /// Brings the notes of earlier cuts to where notes stand now. Where that is nowhere, they go.
    pub(super) fn place_notes(&mut self) -> Option<(usize, Place)> {
        let Some((message, place)) = self.notes_place() else {
            self.drop_notes();
            return None;
        };
        let encoding = self.fold.profile.measure.encoding;
        for note in &mut self.fold.notes {
            note.message = message;
            if note.place != place {
                note.place = place;
                self.fold.size_tokens -= note.tokens;
                note.tokens = encoding.count(&note.text()) + FRAME_TOKENS;
                self.fold.size_tokens += note.tokens;
            }
        }
        Some((message, place))
    }
}

/// What a note says.
#[derive(Default)]
struct Written {
    text: Option<String>,
    /// What it takes, where that is known.
    tokens: Option<u64>,
    summary: Option<Summary>,
}

/// What a note may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// The size to end at.
    goal: f64,
    /// Whether the newest turn takes so much of the room that the note is to be written again.
    is_outsized: bool,
}
