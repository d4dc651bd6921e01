//! Compaction that turns all old turns into a note of excerpts. System messages, the first user
//! message, pins, earlier notes and a window of recent turns stay.

use std::sync::Arc;

use super::Compaction;
use super::note_summary::NoteSummary;
use crate::compact::excerpt;
use crate::compact::excerpt::subject::Subject;
use crate::compact::message::reading::Reading;
use crate::compact::policy::share;
use crate::compact::source::Source;
use crate::compact::state::history::{Pin, SummaryUse};
use crate::compact::state::messages::Fate;
use crate::compact::state::note::{Note, Place};
use crate::compact::state::turns::{Turn, TurnKind};
use crate::compact::summary::Summary;
use crate::tokens::MESSAGE_FRAMING;
use crate::wire::Role;

/// Minimum room for a new note: a tenth of the room for notes, at most these tokens, but at least
/// this share of the room. Below it all notes are rewritten as one.
const APPENDED_TOKENS: f64 = 100.0;
const APPENDED_SHARE: f64 = 0.02;
/// Minimum for notes: these tokens, or this share of the room for notes and growth if that is less.
/// With less they would say nothing, so the promised growth gives way.
const LEAST_NOTES_TOKENS: f64 = 1000.0;
const LEAST_NOTES_SHARE: f64 = 0.7;
/// Notes up to this size leave only this share of the promised growth if they would be smaller with
/// all of it.
const SMALL_NOTES_TOKENS: f64 = 2300.0;
const LEAST_GROWTH_SHARE: f64 = 0.6;
/// Share of the room below the low mark that recent turns leave to a new note.
const NEW_NOTE_SHARE: f64 = 0.6;
/// Share of the room below the low mark above which the newest turn is outsized. Its note is thin,
/// and the next compaction rewrites it.
const OUTSIZED_SHARE: f64 = 0.6;
/// Minimum room for a note; with less the first user message is removed.
pub(crate) const NOTE_ROOM_TOKENS: u64 = 60;
/// Part of the limit up to which the answer before a question stays.
const ANSWER_SHARE: u64 = 32;
/// Maximum size of the separator between a note and the text next to it.
const SEAM_TOKENS: u64 = 4;
/// Tokens around a note: a message's framing, or the separator.
const FRAME_TOKENS: u64 = if MESSAGE_FRAMING > SEAM_TOKENS { MESSAGE_FRAMING } else { SEAM_TOKENS };
/// Work on notes that any conversation may take, in tokens, and how often it may look at each token beyond
/// that: each note looks at all messages so far. A note past this only counts, and the next one covers its
/// messages. It takes more than forty compactions, and hundreds of thousands of tokens, to come there.
const FREE_WORK_TOKENS: u64 = 8_000_000;
const MOST_LOOKS: u64 = 20;
/// Work of a message besides its tokens.
const MESSAGE_WORK_TOKENS: u64 = 50;
/// Minimum size of excerpts that say something.
const LEAST_EXCERPT_TOKENS: f64 = 32.0;

impl Compaction<'_> {
    /// Removes all turns but the pinned and the newest, and decides which notes stay.
    pub(crate) fn condense(&mut self) -> Room {
        let (mut room, free) = self.make_room();
        self.pin_recent(free as u64);
        room.goal += self.pin_reply(room.goal);
        self.evict_down_to(0);
        room
    }

    /// Pins the answer before the newest question, however much notes take: the question may be about it. Takes up to
    /// half of the new note's room for it, and returns by how much the size to end at must grow.
    fn pin_reply(&mut self, goal: f64) -> f64 {
        let limit = self.state.profile.limit_tokens;
        let Some(answer) = self.older().last().copied() else { return 0.0 };
        let own = self.turn(answer);
        let is_answer = own.kind == TurnKind::Assistant && own.calls == 0;
        let is_asked = self.turn(self.newest).kind == TurnKind::User;
        if !is_answer || !is_asked || self.pins.contains_key(&answer) {
            return 0.0;
        }
        // The user's message that it answers stays with it.
        let of_answer = |turn: &&usize| {
            let other = self.turn(**turn);
            other.exchange == own.exchange && other.kind == TurnKind::User
        };
        let users =
            self.older().iter().filter(of_answer).filter(|turn| !self.pins.contains_key(turn));
        let tokens = own.tokens + users.map(|turn| self.turn(*turn).tokens).sum::<u64>();
        let stays = self.staying_tokens() + self.notes_tokens();
        if tokens > limit / ANSWER_SHARE || stays + tokens > limit {
            return 0.0;
        }
        self.pins.insert(answer, Pin::Recent);
        (tokens as f64 - (goal - stays as f64).max(0.0) / 2.0).max(0.0)
    }

    /// Does the same for a future compaction. By then the newest turn is another one, so recent
    /// turns count as staying and every turn reported here will indeed be removed.
    pub(crate) fn condense_for_prefetch(&mut self) -> Room {
        let (room, _) = self.make_room();
        self.pin_recent(u64::MAX);
        self.evict_down_to(0);
        room
    }

    /// Returns the room for a new note behind the messages that stay; `None` if it is too small.
    pub(crate) fn note_tokens(&self, room: Room) -> Option<u64> {
        let limit = self.state.profile.limit_tokens - self.state.recall_reserve_tokens();
        let size = self.state.sizes.request_tokens;
        let free = limit.saturating_sub(size).saturating_sub(FRAME_TOKENS);
        let room_tokens = (room.goal - size as f64).min(free as f64);
        (room_tokens >= LEAST_EXCERPT_TOKENS).then_some(room_tokens as u64)
    }

    /// Decides which notes stay: all, if they leave room for the promised growth and a new note.
    /// Otherwise none, and the new note covers everything removed. Returns the room for the new
    /// note, and the room for turns.
    fn make_room(&mut self) -> (Room, f64) {
        self.drop_counts();
        let newest: u64 = self.state.turns.list[self.newest..].iter().map(|turn| turn.tokens).sum();
        let newest = newest as f64;
        let limit = self.state.profile.limit_tokens as f64;
        let fixed = self.release_first_user(newest, limit);
        let low = self.state.low_tokens() as f64;
        let earlier = self.earlier_notes();
        let earlier_tokens: u64 = earlier.iter().map(|turn| self.turn(*turn).tokens).sum();
        let stays = self.staying_tokens().saturating_sub(earlier_tokens) as f64;
        let least = (LEAST_NOTES_SHARE * (limit - stays)).clamp(0.0, LEAST_NOTES_TOKENS);
        let small = (self.low_with_small_notes() - stays).min(SMALL_NOTES_TOKENS);
        let all_notes = (low - stays).max(least).max(small);
        self.drop_provisional();
        let appended = (0.1 * all_notes).min(APPENDED_TOKENS).max(APPENDED_SHARE * all_notes);
        let has_room = all_notes - (self.notes_tokens() + earlier_tokens) as f64 >= appended;
        if !has_room {
            self.drop_notes();
            self.evict_notes(&earlier);
        }
        let below_low = (low - fixed).max(0.0);
        let kept_tokens = if has_room { earlier_tokens } else { 0 };
        let notes = (self.notes_tokens() + kept_tokens) as f64;
        let free = (1.0 - NEW_NOTE_SHARE) * below_low - notes;
        let free = free.min(newest + all_notes - notes);
        let is_outsized = newest > OUTSIZED_SHARE * below_low;
        (Room { goal: stays + all_notes, is_outsized }, free)
    }

    /// Returns the size that a compaction reduces to if its notes are small.
    fn low_with_small_notes(&self) -> f64 {
        let permille = self.state.profile.policy.min_growth_permille.min(1000);
        let growth = share(self.state.goal_tokens(), permille) as f64;
        self.state.low_tokens() as f64 + (1.0 - LEAST_GROWTH_SHARE) * growth
    }

    /// Returns the tokens that stay regardless of notes: all but the turns that this compaction may
    /// remove.
    fn staying_tokens(&self) -> u64 {
        self.state.sizes.request_tokens.saturating_sub(self.loose_tokens() + self.notes_tokens())
    }

    /// Drops the note of the last compaction if it was written under an outsized turn.
    fn drop_provisional(&mut self) {
        let covered = std::mem::take(&mut self.state.notes.provisional);
        if covered.is_empty() {
            return;
        }
        if let Some(note) = self.state.notes.list.pop() {
            self.state.sizes.request_tokens -= note.tokens;
            self.state.notes.unexcerpted.extend(covered);
        }
    }

    /// Removes notes that the caller has sent back. The new note has excerpts of them.
    fn evict_notes(&mut self, turns: &[usize]) {
        for turn in turns {
            self.pins.remove(turn);
            self.evict(*turn);
        }
        self.sweep();
    }

    /// Moves the first user message into the note if it does not fit together with the newest turn.
    /// Returns the tokens below the base after that.
    fn release_first_user(&mut self, newest: f64, limit: f64) -> f64 {
        let fixed = self.state.base_tokens().1 as f64;
        let Some(first_user) = self
            .state
            .turns
            .first_user
            .filter(|turn| *turn < self.newest && self.turn(*turn).kind == TurnKind::User)
        else {
            return fixed;
        };
        let own = self.turn(first_user);
        let fits = fixed + newest + NOTE_ROOM_TOKENS as f64 <= limit;
        let system = fixed - own.tokens as f64;
        if own.is_gone || fits || system + newest > limit {
            return fixed;
        }
        self.pins.remove(&first_user);
        self.evict(first_user);
        self.sweep();
        self.drop_notes();
        self.state.base_tokens().1 as f64
    }

    fn notes_tokens(&self) -> u64 {
        self.state.notes.tokens()
    }

    /// Drops notes that only count: the new note covers their messages again.
    fn drop_counts(&mut self) {
        let mut tokens = 0;
        self.state.notes.list.retain(|note| {
            tokens += if note.excerpts.is_none() { note.tokens } else { 0 };
            note.excerpts.is_some()
        });
        self.state.sizes.request_tokens -= tokens;
    }

    /// Drops all notes: the next one is written from the messages themselves.
    pub(super) fn drop_notes(&mut self) {
        self.state.sizes.request_tokens -= self.notes_tokens();
        self.state.notes.list.clear();
        self.state.notes.provisional.clear();
        let messages = &self.state.messages;
        let is_gone = |message: &usize| {
            messages.fates[*message] == Fate::Gone && !messages.unread.contains(message)
        };
        self.state.notes.unexcerpted = (0..messages.count()).filter(is_gone).collect();
    }

    /// Leaves a note of the messages removed since the last one: excerpts, or only their number if
    /// there is no room for more.
    pub(crate) fn leave_excerpts(&mut self, room: Room, source: &dyn Source) {
        if self.state.notes.unexcerpted.is_empty() {
            // Nothing to note: existing notes stay in place, so the sent prefix does not change.
            return;
        }
        let Some((message, place)) = self.place_notes() else { return };
        self.make_room_for_rules(room, source);
        let limit = self.state.profile.limit_tokens;
        let size = self.state.sizes.request_tokens;
        let room_tokens = self.note_tokens(room);
        let written = room_tokens.and_then(|tokens| self.write_note(tokens, source));
        let written = written.unwrap_or_default();
        let Written { text, tokens: counted, summary } = written;
        let excerpts = text.map(Arc::from);
        let (compaction, left_out) =
            (self.state.compactions() + 1, self.state.notes.unexcerpted.len());
        let mut note = Note { message, place, compaction, left_out, tokens: 0, excerpts, summary };
        // A note in a message of its own consists of the written text alone.
        let counted = counted.filter(|_| matches!(place, Place::Own | Place::OwnBefore));
        let count = |note: &Note| self.state.profile.measure.encoding.count(&note.text());
        note.tokens = counted.unwrap_or_else(|| count(&note)) + FRAME_TOKENS;
        if size + note.tokens > limit {
            // A text may take more tokens next to another: what is left says how many are gone.
            let is_unfit = note.summary.take().is_some();
            note.excerpts = None;
            note.tokens = count(&note) + FRAME_TOKENS;
            if is_unfit {
                self.state.history.summary = SummaryUse::Unfit;
            }
            if size + note.tokens > limit {
                return;
            }
        }
        if note.excerpts.is_some() {
            let covered = std::mem::take(&mut self.state.notes.unexcerpted);
            if room.is_outsized {
                self.state.notes.provisional = covered;
            }
        }
        self.state.sizes.request_tokens += note.tokens;
        self.state.notes.list.push(note);
    }

    /// Returns the work of one look at all messages so far.
    fn look_tokens(&self) -> u64 {
        let messages = self.state.messages.count() as u64;
        self.state.sizes.received_tokens + MESSAGE_WORK_TOKENS * messages
    }

    /// Whether the work on notes so far leaves room for another one.
    pub(super) fn may_work(&self) -> bool {
        let look_tokens = self.look_tokens();
        let most_tokens = FREE_WORK_TOKENS.saturating_add(look_tokens.saturating_mul(MOST_LOOKS));
        self.state.notes.work_tokens.saturating_add(look_tokens) <= most_tokens
    }

    /// Writes the note: a model's summary if there is one, and excerpts in the remaining room.
    fn write_note(&mut self, room_tokens: u64, source: &dyn Source) -> Option<Written> {
        let span = self.span();
        let fitted = self.note_summary(&span, span.len(), room_tokens, source);
        let left_tokens = match &fitted {
            Some(fitted) => room_tokens.saturating_sub(fitted.tokens + SEAM_TOKENS),
            None => room_tokens,
        };
        let is_worth = self.may_work() && left_tokens as f64 >= LEAST_EXCERPT_TOKENS;
        self.state.notes.work_tokens += if is_worth { self.look_tokens() } else { 0 };
        let excerpts = is_worth
            .then(|| {
                self.with_subject(&span, fitted.as_ref(), source, |subject| {
                    excerpt::write(subject, left_tokens)
                })
            })
            .flatten();
        let Some(fitted) = fitted else {
            let (text, tokens) = excerpts?;
            return Some(Written { text: Some(text), tokens: Some(tokens), summary: None });
        };
        let mut text = fitted.block;
        if let Some((excerpts, _)) = excerpts {
            text.push('\n');
            text.push_str(&excerpts);
        }
        Some(Written { text: Some(text), tokens: None, summary: Some(fitted.summary) })
    }

    /// Calls `work` with the input for a note of the messages `gone`.
    pub(super) fn with_subject<T>(
        &self,
        gone: &[usize],
        fitted: Option<&NoteSummary>,
        source: &dyn Source,
        work: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        let state = &*self.state;
        source.expect_first(state.messages.facts.len());
        let superseded = state.superseded();
        let reading = |message: usize| match superseded.contains(&message) {
            // The copy that replaced it says the same.
            true => Arc::new(Reading::of_text(Role::System, "")),
            false => source.reading(message),
        };
        let readings: Vec<Arc<Reading>> = (0..state.messages.facts.len()).map(reading).collect();
        let text_tokens: Vec<u64> = state
            .messages
            .facts
            .iter()
            .map(|fact| fact.tokens.saturating_sub(MESSAGE_FRAMING + 8 * u64::from(fact.calls)))
            .collect();
        let kept: Vec<usize> = (0..state.messages.facts.len())
            .filter(|message| !matches!(state.messages.fates[*message], Fate::Gone | Fate::Masked))
            .collect();
        let mut notes: Vec<Arc<Reading>> = state
            .notes
            .list
            .iter()
            .filter_map(|note| note.excerpts.as_ref())
            .map(|text| source.note_reading(text))
            .collect();
        notes.extend(fitted.map(|fitted| source.note_reading(&fitted.summary.text)));
        let subject = Subject {
            turns: &state.turns,
            readings: &readings,
            lexicon: &source.lexicon(state.messages.facts.len()),
            text_tokens: &text_tokens,
            gone,
            summarised: fitted.map(|fitted| fitted.summary.covers),
            kept: &kept,
            notes: &notes,
            first_user: state.turns.first_user.map(|turn| self.turn(turn).first),
            encoding: state.profile.measure.encoding,
            excerpt_cost: state.profile.policy.excerpt_cost(),
            survival_tokens: self.survival_tokens(),
            rules_tokens: self.rules_tokens(),
        };
        work(&subject)
    }

    /// Returns where all notes stand, in order: behind the first user message, else behind the
    /// system messages. They are separate messages if the model accepts two user messages in a row,
    /// else part of the text of that user message or of the next, at last in front of the last one. `None` if
    /// there is no such message.
    fn notes_place(&self) -> Option<(usize, Place)> {
        let is_last = |message: usize| message + 1 == self.state.messages.facts.len();
        let takes_text =
            |message: usize| self.state.messages.facts[message].takes_note && !is_last(message);
        let is_apart = self.state.profile.policy.notes_apart;
        let first_user = self.state.turns.first_user.map(|turn| self.turn(turn));
        if let Some(turn) = first_user.filter(|turn| !turn.is_gone) {
            return match is_apart {
                true if is_last(turn.last) => Some(self.before(turn.first)),
                true => Some((self.behind_notes(turn.last), Place::Own)),
                false if turn.kind == TurnKind::User && takes_text(turn.first) => {
                    Some((turn.first, Place::After))
                }
                false => self.next_user(),
            };
        }
        let next = self.turn(*self.state.turns.live.first()?);
        if next.is_note && !is_last(next.first) && is_apart {
            return Some((self.behind_notes(next.first), Place::Own));
        }
        if next.kind == TurnKind::User && !is_apart {
            return self.next_user();
        }
        Some(self.before(next.first))
    }

    /// Returns the last of the notes of earlier compactions that directly follow `message`; itself if
    /// none does. The last message is none of them: nothing may follow it.
    fn behind_notes(&self, message: usize) -> usize {
        let is_note = |message: &usize| {
            let own = &self.state.messages;
            own.facts[*message].is_note && own.fates[*message] != Fate::Gone
        };
        let last = self.state.messages.facts.len() - 1;
        (message + 1..last).take_while(is_note).last().unwrap_or(message)
    }

    /// Returns the place of a separate message behind the system messages, before `message`.
    fn before(&self, message: usize) -> (usize, Place) {
        match self.state.turns.system_run.checked_sub(1) {
            Some(system) => (system, Place::Own),
            None => (message, Place::OwnBefore),
        }
    }

    /// Returns the place before the text of the first user message that can hold a note.
    fn next_user(&self) -> Option<(usize, Place)> {
        let turns = self.state.turns.live.iter().map(|turn| self.turn(*turn));
        let mut users = turns.filter(|turn| turn.kind == TurnKind::User);
        let takes_text = |turn: &&Turn| self.state.messages.facts[turn.first].takes_note;
        users.find(takes_text).map(|turn| (turn.first, Place::Before))
    }

    /// Moves the notes of earlier compactions to the current place; drops them if there is none.
    pub(crate) fn place_notes(&mut self) -> Option<(usize, Place)> {
        let Some((message, place)) = self.notes_place() else {
            self.drop_notes();
            return None;
        };
        let encoding = self.state.profile.measure.encoding;
        for note in &mut self.state.notes.list {
            note.message = message;
            if note.place != place {
                note.place = place;
                self.state.sizes.request_tokens -= note.tokens;
                note.tokens = encoding.count(&note.text()) + FRAME_TOKENS;
                self.state.sizes.request_tokens += note.tokens;
            }
        }
        Some((message, place))
    }
}

/// Text of a note.
#[derive(Default)]
struct Written {
    text: Option<String>,
    /// Size of the text, if known.
    tokens: Option<u64>,
    summary: Option<Summary>,
}

/// Room for a note.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Size to end at.
    goal: f64,
    /// Whether the newest turn takes so much of the room that the note must be rewritten later.
    is_outsized: bool,
}
