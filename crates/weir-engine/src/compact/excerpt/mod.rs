//! Notes of verbatim excerpts and names from removed turns, chosen by expected later use per token.
//! Pure: equal messages give equal notes.
//!
//! `subject` is the input. `weight` estimates the later use of each value, `worth` what else a piece
//! is worth (`edits`: what an edit wrote, `conclusions`: what an assistant decided), `candidates` has
//! the pieces to choose from. `compose` writes the note, `label` names the data in its lists, `speaker`
//! the speakers. `claims` takes first what must survive. `lines` finds lines of results that stand out.

pub(super) mod candidates;
mod claims;
pub(super) mod compose;
pub(super) mod conclusions;
pub(super) mod edits;
pub(super) mod label;
pub(super) mod lines;
pub(super) mod speaker;
pub(super) mod subject;
pub(super) mod weight;
pub(super) mod worth;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::num::NonZeroU32;
use std::ops::Range;

use crate::compact::message::pasted::pasted;
use crate::compact::message::quote::names;
use crate::compact::message::reading::{Mention, Reading, Unit};
use crate::compact::survival::Work;
use crate::wire::Role;
use candidates::{Candidate, Offer, Piece, Said};
use compose::Chosen;
use conclusions::{decisions, is_plain_turn};
use edits::{successful_texts, written_texts};
use label::{family, label_tokens};
use lines::odd;
use subject::Subject;
use weight::Seeded;
use worth::{
    EDIT_WORTH, GAP_TOKENS, HEADER_TOKENS, JOINED_WORTH, NAME_COVER, SHORT_TOKENS, TALK_WORTH,
    USER_WORTH, WORTHY_TOKENS, cover, is_full, is_talk, lead, shapes, text_tokens_of,
};

/// Tokens of the note's first line.
const HEAD_TOKENS: f64 = 16.0;
/// Tokens of the messages' numbers in it, and the minimum room of a note that has them. In a smaller one
/// they would take the place of a value.
const NUMBERS_TOKENS: f64 = 6.0;
const NUMBERED_TOKENS: f64 = 1000.0;
/// Tokens of the separator of two names in a list.
const ENTRY_TOKENS: f64 = 1.5;
/// Expected later use that a token must provide, in excerpts and in lists of names, to be worth
/// sending with each later request. `excerpt_cost` multiplies both. A name is cheap for what it leads
/// to: with it, an agent can ask for the rest.
const UNIT_PRICE: f64 = 0.009;
const NAME_PRICE: f64 = 0.003;
/// Addition to these prices, as a share of them, for the last tokens of the room. A note that fills its room
/// brings the next compaction nearer. It grows with the square of what is taken.
const FULL_SURCHARGE: f64 = 1.25;
/// Number of lines of one shape that count fully, of all messages together, and of uncited names that differ in
/// their digits alone.
const FEW_LINES: f64 = 6.0;
const FEW_NAMES: f64 = 10.0;
/// Worth per token of an assistant's conclusion, with the line that names it: more than the price in a note
/// with room left, so that it takes room that nothing better needs.
const CONCLUSION_WORTH: f64 = 0.014;
/// Worth per token of a line that differs from all others of a result, with its mark and the line that names it.
const ODD_WORTH: f64 = 0.02;
/// Bytes of a token in names of files.
const FILE_NAME_BYTES: f64 = 4.0;
/// Maximum gap, in units and tokens, that is filled.
const FILL_UNITS: usize = 6;
const FILL_TOKENS: f64 = 48.0;
/// Number of candidates without room after which all without room are dropped for the first time.
const FIRST_MISSES: usize = 64;

/// Searches a message for decisions, written texts and shapes of lines, which notes use.
pub(super) fn search(reading: &Reading) {
    decisions(reading);
    written_texts(reading);
    shapes(reading);
    odd(reading);
}

/// Returns the user's own words next to what is pasted in a message, those behind it if there are any, if they are
/// short; an empty range otherwise.
fn question(reading: &Reading, per_byte: f64) -> Range<usize> {
    let pasted = pasted(reading);
    let (Some(first), Some(last)) = (pasted.first(), pasted.last()) else { return 0..0 };
    let behind = last.end..reading.text.len();
    let has_words = !reading.text[behind.clone()].trim().is_empty();
    let own = if has_words { behind } else { 0..first.start };
    if own.len() as f64 * per_byte <= SHORT_TOKENS { own } else { 0..0 }
}

/// Writes a note of at most `room_tokens`, and returns its size too; `None` if the room is too
/// small for anything.
pub(super) fn write(subject: &Subject<'_>, room_tokens: u64) -> Option<(String, u64)> {
    let mut writer = Writer::new(subject, room_tokens as f64);
    writer.select(room_tokens as f64);
    let mut picks = writer.picks.len();
    let mut most_tokens = room_tokens;
    for _ in 0..8 {
        if picks == 0 {
            return None;
        }
        let text = writer.compose(picks);
        let tokens = subject.encoding.count(&text);
        if tokens <= room_tokens {
            return Some((text, tokens));
        }
        // The estimate was too low: the last picks, which are worth least, are dropped, at most three quarters of
        // them at once.
        most_tokens -= (tokens - room_tokens).min(most_tokens / 2);
        let mut sum = 0.0;
        let room = most_tokens as f64 * writer.picked_tokens() / tokens as f64;
        picks = writer.picks[..picks]
            .iter()
            .take_while(|pick| {
                sum += pick.price;
                sum <= room
            })
            .count();
    }
    None
}

struct Pick {
    candidate: usize,
    price: f64,
}

struct Writer<'a> {
    subject: &'a Subject<'a>,
    /// Expected later use of each value in a candidate.
    weights: Vec<f64>,
    /// How well the output covers each value so far, 0 to 1.
    covered: Vec<f64>,
    candidates: Vec<Candidate>,
    said: Vec<Said>,
    /// Messages with at least one pick.
    has_header: Vec<bool>,
    picks: Vec<Pick>,
    /// Which candidates are picked.
    is_picked: Vec<bool>,
    /// Number of picked lines per shape and message. The first entry stands for no shape.
    shapes: Vec<u32>,
    room_tokens: f64,
    /// Addition to the prices for what the picks take of the room.
    surcharge: f64,
    /// Whether the conversation is a plain dialogue.
    is_talk: bool,
    /// Whether the first line has the numbers of the messages.
    is_numbered: bool,
    /// Messages before this one are covered by a summary.
    summarised_before: usize,
    work: Work,
    /// Units of messages that show a task in an outdated state.
    outdated: BTreeSet<(usize, usize)>,
    /// Those that replace what an earlier result of the same call says.
    changed: BTreeSet<(usize, usize)>,
}

impl<'a> Writer<'a> {
    fn new(subject: &'a Subject<'a>, room_tokens: f64) -> Self {
        let gone = || subject.gone.iter().map(|message| &subject.readings[*message]);
        let mentions: usize = gone().map(|reading| reading.values.len()).sum();
        let units: usize = gone().map(|reading| reading.units.len()).sum();
        let work = Work::of(subject.readings);
        let mut writer = Self {
            subject,
            weights: vec![0.0; subject.lexicon.len()],
            covered: vec![0.0; subject.lexicon.len()],
            said: Vec::with_capacity(mentions),
            // What is not used of it takes no memory.
            candidates: Vec::with_capacity(units + mentions),
            has_header: vec![false; subject.readings.len()],
            picks: Vec::new(),
            is_picked: Vec::new(),
            shapes: vec![0],
            room_tokens,
            surcharge: 0.0,
            is_talk: is_talk(subject),
            is_numbered: room_tokens >= NUMBERED_TOKENS,
            summarised_before: subject
                .summarised
                .map_or(0, |covers| subject.gone.get(covers).copied().unwrap_or(usize::MAX)),
            outdated: work.outdated_tasks(subject),
            changed: work.changed(subject.readings),
            work,
        };
        writer.cover_kept();
        writer.list_candidates();
        writer.is_picked = vec![false; writer.candidates.len()];
        writer
    }

    fn cover_kept(&mut self) {
        for message in self.subject.kept {
            for id in self.subject.lexicon.ids_of(*message) {
                self.covered[*id as usize] = 1.0;
            }
        }
        for note in self.subject.notes {
            for unit in &note.units {
                let is_list = names(&note.text[unit.span.clone()]).is_some();
                for mention in note.values_of(unit) {
                    let Some(id) = self.subject.lexicon.id(mention.key) else { continue };
                    let cover = if is_list {
                        NAME_COVER
                    } else {
                        cover(is_full(unit.span.len(), mention.end - mention.start))
                    };
                    let covered = &mut self.covered[id as usize];
                    *covered = covered.max(cover);
                }
            }
        }
    }

    fn list_candidates(&mut self) {
        let lexicon = self.subject.lexicon;
        let mut named = vec![false; lexicon.len()];
        let mut families = HashMap::with_hasher(Seeded::default());
        for message in self.subject.gone.iter().rev().copied() {
            let reading = &self.subject.readings[message];
            let ids = lexicon.ids_of(message);
            for (index, (mention, id)) in reading.values.iter().zip(ids.iter().copied()).enumerate()
            {
                if named[id as usize] {
                    continue;
                }
                let label_tokens = label_tokens(reading, mention);
                if label_tokens.is_none() && !lexicon.is_cited(id) {
                    continue;
                }
                named[id as usize] = true;
                if self.covered[id as usize] < NAME_COVER {
                    self.weigh(id);
                    let family = (!lexicon.is_cited(id)).then(|| family(reading, mention));
                    let shape =
                        family.map(|own| *families.entry(own).or_insert_with(|| self.new_shape()));
                    let tokens = 0.4
                        + f64::from(mention.end - mention.start) / 3.2
                        + label_tokens.unwrap_or_default();
                    self.candidates.push(Candidate {
                        message: message as u32,
                        piece: Piece::Name { id, mention: index as u32 },
                        said: (0, 0),
                        tokens,
                        bonus: 0.0,
                        shape,
                        is_joined: false,
                    });
                }
            }
        }
        let mut line_shapes = HashMap::with_hasher(Seeded::default());
        for message in self.subject.gone.iter().copied() {
            self.list_units(message, &mut line_shapes);
        }
    }

    fn list_units(&mut self, message: usize, line_shapes: &mut HashMap<u64, NonZeroU32, Seeded>) {
        let reading = &self.subject.readings[message];
        if reading.units.is_empty() {
            return;
        }
        let text_tokens = match reading.is_media {
            true => reading.text.len() as f64 / FILE_NAME_BYTES,
            false => self.subject.text_tokens[message] as f64,
        };
        let per_byte = (text_tokens / reading.text.len() as f64).min(1.0);
        if self.subject.first_user == Some(message) {
            return self.list_first_user(message, per_byte);
        }
        let is_users = reading.role == Role::User || self.work.is_answer_of_user(message);
        if is_users && text_tokens <= SHORT_TOKENS {
            let header_tokens = if reading.is_media { HEADER_TOKENS } else { 0.0 };
            let worth = USER_WORTH * (text_tokens + header_tokens);
            return self.offer(message, 0..reading.units.len(), text_tokens, worth, None);
        }
        let age_messages = (self.subject.readings.len() - message) as f64;
        // A summary covers words and actions as far as it names them.
        let is_summarised = message < self.summarised_before;
        let is_talk = self.is_talk && !is_summarised;
        let talk_worth = if is_talk { TALK_WORTH * 30.0 / (30.0 + age_messages) } else { 0.0 };
        let is_plain_turn = is_plain_turn(reading) && !is_summarised;
        let mut written = successful_texts(self.subject, message).into_iter().peekable();
        let mut decisions = decisions(reading).iter().peekable();
        let mut odd = odd(reading).iter().peekable();
        let own_shapes = shapes(reading);
        let question = question(reading, per_byte);
        for (index, unit) in reading.units.iter().enumerate() {
            let decides = decisions.next_if_eq(&&(index as u32)).is_some();
            let is_odd = odd.next_if_eq(&&(index as u32)).is_some()
                || self.changed.contains(&(message, index));
            if self.outdated.contains(&(message, index)) {
                continue;
            }
            let tokens = unit.span.len() as f64 * per_byte;
            let mut lead = lead(reading, index);
            // Both are in order.
            while written.next_if(|own| own.end < unit.span.end).is_some() {}
            if written.peek().is_some_and(|own| own.start <= unit.span.start) {
                lead = lead.max(EDIT_WORTH);
            }
            if is_summarised && lead > 0.0 {
                lead *= self.newness(message, unit);
            }
            if question.contains(&unit.span.start) {
                lead = lead.max(USER_WORTH);
            }
            let mut bonus = (talk_worth * tokens).max(lead * tokens.min(WORTHY_TOKENS));
            if is_plain_turn && lead > 0.0 || !is_summarised && decides {
                let own_tokens = tokens.min(WORTHY_TOKENS) + HEADER_TOKENS;
                bonus = bonus.max(CONCLUSION_WORTH * own_tokens);
            }
            if is_odd {
                let own_tokens = tokens.min(WORTHY_TOKENS) + HEADER_TOKENS + GAP_TOKENS;
                bonus = bonus.max(ODD_WORTH * own_tokens);
            }
            let shape = own_shapes
                .get(index)
                .filter(|_| !is_odd)
                .map(|own| *line_shapes.entry(*own).or_insert_with(|| self.new_shape()));
            self.offer(message, index..index + 1, tokens, bonus, shape);
        }
    }

    /// Adds a counter for a shape with no picked line.
    fn new_shape(&mut self) -> NonZeroU32 {
        self.shapes.push(0);
        NonZeroU32::new(self.shapes.len() as u32 - 1).unwrap_or(NonZeroU32::MIN)
    }

    /// Returns the uncovered share of a unit's values; 0 if it has none.
    fn newness(&self, message: usize, unit: &Unit) -> f64 {
        let reading = &self.subject.readings[message];
        let ids = self.subject.lexicon.ids_of(message);
        let own: Vec<f64> =
            reading.places_in(unit).map(|place| 1.0 - self.covered[ids[place] as usize]).collect();
        if own.is_empty() { 0.0 } else { own.iter().sum::<f64>() / own.len() as f64 }
    }

    /// Adds units of a message as a candidate, with their values.
    fn offer(
        &mut self,
        message: usize,
        units: Range<usize>,
        tokens: f64,
        bonus: f64,
        shape: Option<NonZeroU32>,
    ) {
        let reading = &self.subject.readings[message];
        let ids = self.subject.lexicon.ids_of(message);
        let is_joined = self.candidates.last().is_some_and(|before| {
            let block = reading.units[units.start].block;
            let is_adjacent = matches!(before.piece,
                Piece::Units { end, .. } if end as usize == units.start);
            is_adjacent && before.message as usize == message && self.block(before) == Some(block)
        });
        let first = self.said.len();
        for unit in &reading.units[units.clone()] {
            let own = self.said.len();
            for place in reading.places_in(unit) {
                let (id, mention) = (ids[place], &reading.values[place]);
                if self.said[own..].iter().all(|said| said.id != id) {
                    let is_full = is_full(unit.span.len(), mention.end - mention.start);
                    self.said.push(Said { id, is_full });
                }
            }
        }
        for place in first..self.said.len() {
            self.weigh(self.said[place].id);
        }
        let piece = Piece::Units { first: units.start as u32, end: units.end as u32 };
        let (message, said) = (message as u32, (first as u32, self.said.len() as u32));
        self.candidates.push(Candidate { message, piece, said, tokens, bonus, shape, is_joined });
    }

    /// Looks up the weight of a value, once.
    fn weigh(&mut self, id: u32) {
        let weight = &mut self.weights[id as usize];
        if *weight == 0.0 {
            *weight = self.subject.lexicon.weight(id);
        }
    }

    /// Lists candidates of the first user message, which states the subject: two thirds of half the
    /// room for its beginning, one third for its end.
    fn list_first_user(&mut self, message: usize, per_byte: f64) {
        let reading = &self.subject.readings[message];
        let half = self.room_tokens / 2.0;
        let (mut head, mut tail) = (0.0, text_tokens_of(reading, per_byte));
        for (index, unit) in reading.units.iter().enumerate() {
            let tokens = unit.span.len() as f64 * per_byte;
            head += tokens;
            let is_shown = head <= half * 2.0 / 3.0 || tail <= half / 3.0;
            tail -= tokens;
            let bonus = if is_shown { tokens } else { 0.0 };
            self.offer(message, index..index + 1, tokens, bonus, None);
        }
    }

    /// Returns the neighbours of a candidate: those of the units before and after it, in the same
    /// block.
    fn neighbours(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let is_joined =
            |index: &usize| self.candidates.get(*index).is_some_and(|own| own.is_joined);
        let before = Some(index).filter(is_joined).map(|index| index - 1);
        let after = Some(index + 1).filter(is_joined);
        before.into_iter().chain(after)
    }

    /// Returns the block of a candidate's units; `None` for names.
    fn block(&self, candidate: &Candidate) -> Option<u32> {
        let Piece::Units { first, .. } = candidate.piece else { return None };
        Some(self.subject.readings[candidate.message as usize].units[first as usize].block)
    }

    /// Returns the values in a candidate.
    fn said_by(&self, candidate: &Candidate) -> &[Said] {
        &self.said[candidate.said.0 as usize..candidate.said.1 as usize]
    }

    fn picked_neighbours(&self, index: usize) -> usize {
        self.neighbours(index).filter(|other| self.is_picked[*other]).count()
    }

    /// Returns the lowest price that a candidate may have.
    fn least_price(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        match candidate.piece {
            Piece::Name { .. } => candidate.tokens + ENTRY_TOKENS,
            Piece::Units { .. } => (candidate.tokens - GAP_TOKENS).max(1.0),
        }
    }

    fn price(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        if let Piece::Name { .. } = candidate.piece {
            return candidate.tokens + ENTRY_TOKENS;
        }
        // A unit next to a shown one needs no mark before it; one between two saves a mark.
        let marks =
            match (self.has_header[candidate.message as usize], self.picked_neighbours(index)) {
                (false, _) => HEADER_TOKENS,
                (true, 0) => GAP_TOKENS,
                (true, 1) => 0.0,
                (true, _) => -GAP_TOKENS,
            };
        (candidate.tokens + marks).max(1.0)
    }

    fn gain(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        match &candidate.piece {
            Piece::Name { id, .. } => {
                let id = *id as usize;
                let uncovered = (NAME_COVER - self.covered[id]).max(0.0);
                self.weights[id] * uncovered * self.novelty(candidate, FEW_NAMES).powi(2)
            }
            Piece::Units { .. } => {
                let joined_tokens = candidate.tokens.min(WORTHY_TOKENS);
                let joined = JOINED_WORTH * joined_tokens * self.picked_neighbours(index) as f64;
                let mut gain = candidate.bonus + joined;
                for said in self.said_by(candidate) {
                    let id = said.id as usize;
                    gain += self.weights[id] * (cover(said.is_full) - self.covered[id]).max(0.0);
                }
                gain * self.novelty(candidate, FEW_LINES)
            }
        }
    }

    /// Returns the novelty of a candidate: one line of a log is typical of the others, so each
    /// beyond a few is worth less. So is one name of a family.
    fn novelty(&self, candidate: &Candidate, few: f64) -> f64 {
        let picked = candidate.shape.map_or(0, |shape| self.shapes[shape.get() as usize]);
        (few / (f64::from(picked) + 1.0)).min(1.0)
    }

    fn is_worth(&self, candidate: &Candidate, ratio: f64) -> bool {
        let price = match candidate.piece {
            Piece::Units { .. } => UNIT_PRICE,
            Piece::Name { .. } => NAME_PRICE,
        };
        ratio > price * self.subject.excerpt_cost * (1.0 + self.surcharge)
    }

    fn select(&mut self, room_tokens: f64) {
        let numbers = if self.is_numbered { NUMBERS_TOKENS } else { 0.0 };
        let mut left = room_tokens - HEAD_TOKENS - numbers;
        self.take_claims(&mut left);
        let offers: Vec<Offer> =
            (0..self.candidates.len()).filter_map(|index| self.offered(index)).collect();
        let mut heap = BinaryHeap::from(offers);
        let (mut misses, mut most_misses) = (0, FIRST_MISSES);
        while let Some(index) = heap.pop().map(|offer| offer.candidate()) {
            if !self.is_talk {
                self.surcharge = FULL_SURCHARGE * (1.0 - left / room_tokens).powi(2);
            }
            // A candidate that became cheaper was offered again.
            let Some(offer) = self.offered(index).filter(|_| !self.is_picked[index]) else {
                continue;
            };
            let next = heap.peek().map_or(0.0, Offer::ratio);
            if offer.ratio() < next {
                heap.push(offer);
                continue;
            }
            let price = self.price(index);
            if price > left {
                misses += 1;
                if misses == most_misses {
                    // The room only shrinks: what it cannot hold is not looked at one by one.
                    heap.retain(|offer| self.least_price(offer.candidate()) <= left);
                    (misses, most_misses) = (0, 2 * most_misses);
                }
                continue;
            }
            left -= price;
            self.take(index, price);
            let open = self.neighbours(index).filter(|other| !self.is_picked[*other]);
            heap.extend(open.filter_map(|other| self.offered(other)));
        }
        self.fill_gaps(&mut left);
    }

    /// Returns a candidate at its current value, if it is worth its price.
    fn offered(&self, index: usize) -> Option<Offer> {
        let ratio = self.gain(index) / self.price(index);
        self.is_worth(&self.candidates[index], ratio).then(|| Offer::new(ratio, index))
    }

    fn take(&mut self, index: usize, price: f64) {
        let Candidate { message, piece, said, shape, .. } = self.candidates[index];
        match piece {
            Piece::Name { mention, .. } => self.cover_inside(message as usize, mention as usize),
            Piece::Units { .. } => {
                self.has_header[message as usize] = true;
                for said in said.0..said.1 {
                    let said = self.said[said as usize];
                    let covered = &mut self.covered[said.id as usize];
                    *covered = covered.max(cover(said.is_full));
                }
            }
        }
        if let Some(shape) = shape {
            self.shapes[shape.get() as usize] += 1;
        }
        self.is_picked[index] = true;
        self.picks.push(Pick { candidate: index, price });
    }

    /// Covers a listed value and those inside it: the file of a path, the day of a timestamp.
    fn cover_inside(&mut self, message: usize, mention: usize) {
        let reading = &self.subject.readings[message];
        let ids = self.subject.lexicon.ids_of(message);
        let Mention { start, end, .. } = reading.values[mention];
        let from = reading.values.partition_point(|own| own.start < start);
        for (own, id) in reading.values[from..].iter().zip(&ids[from..]) {
            if own.start >= end {
                break;
            }
            if own.end <= end {
                let covered = &mut self.covered[*id as usize];
                *covered = covered.max(NAME_COVER);
            }
        }
    }

    /// Fills small gaps between picked units of a message: the text reads better whole.
    fn fill_gaps(&mut self, left: &mut f64) {
        let mut fills = Vec::new();
        let mut gap: Vec<usize> = Vec::new();
        // Message with a picked unit before the gap. Units are in order, message by message.
        let mut open = None;
        for (index, candidate) in self.candidates.iter().enumerate() {
            if matches!(candidate.piece, Piece::Name { .. }) {
                continue;
            }
            if gap.last().is_some_and(|last| self.candidates[*last].message != candidate.message) {
                gap.clear();
            }
            if !self.is_picked[index] {
                gap.push(index);
                continue;
            }
            let tokens: f64 = gap.iter().map(|index| self.candidates[*index].tokens).sum();
            let is_open = open == Some(candidate.message);
            if is_open && !gap.is_empty() && gap.len() <= FILL_UNITS && tokens <= FILL_TOKENS {
                fills.push((std::mem::take(&mut gap), tokens));
            }
            gap.clear();
            open = Some(candidate.message);
        }
        for (gap, tokens) in fills {
            if tokens <= *left {
                *left -= tokens;
                for index in gap {
                    let price = self.candidates[index].tokens;
                    self.take(index, price);
                }
            }
        }
    }

    fn picked_tokens(&self) -> f64 {
        self.picks.iter().map(|pick| pick.price).sum()
    }

    /// Writes the note from the first `picks` picks.
    fn compose(&self, picks: usize) -> String {
        let mut chosen: BTreeMap<usize, Chosen> = BTreeMap::new();
        for pick in &self.picks[..picks] {
            let candidate = &self.candidates[pick.candidate];
            let own = chosen.entry(candidate.message as usize).or_default();
            match candidate.piece {
                Piece::Units { first, end } => own.units.extend(first as usize..end as usize),
                Piece::Name { mention, .. } => own.names.push(mention as usize),
            }
        }
        let readings = self.subject.readings;
        let has_failed = |message, block| self.work.has_failed(readings, message, block);
        compose::note(self.subject, chosen, self.is_numbered, &has_failed)
    }
}
