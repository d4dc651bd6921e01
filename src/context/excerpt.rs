//! What turns leave that go: a note of verbatim excerpts and names, chosen by what the conversation
//! is likely to use again for each token. Pure, and the same for the same messages.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use super::compose::{self, ALSO, Chosen};
use super::reading::{Block, BlockKind, Mention, Reading, Unit};
use super::values::ValueKind;
use super::weight::Lexicon;
use crate::tokens::Encoding;
use crate::wire::Role;
use xxhash_rust::xxh3::Xxh3;

/// What a note is to be written about.
pub struct Subject<'a> {
    /// All messages so far, system messages included.
    pub readings: &'a [Rc<Reading>],
    /// Tokens of what each message says.
    pub text_tokens: &'a [u64],
    /// Who each message is from, as the note names it.
    pub speakers: &'a [String],
    /// The messages the note stands for, in order.
    pub gone: &'a [usize],
    /// The messages that are sent as they are.
    pub kept: &'a [usize],
    /// The notes that stay.
    pub notes: &'a [Reading],
    /// The first user message: what all is about.
    pub first_user: Option<usize>,
    pub encoding: Encoding,
    /// How dear a token is: 1 by default, more sends less.
    pub thrift: f64,
}

/// Tokens of the note's first line.
const HEAD_TOKENS: f64 = 16.0;
/// Tokens of the line that says whose words follow, of a mark for a gap, and of what parts two
/// names in a list.
const HEADER_TOKENS: f64 = 4.0;
const GAP_TOKENS: f64 = 1.0;
const ENTRY_TOKENS: f64 = 1.5;
/// The expected later use that a token must buy, in excerpts and in lists of names, to be worth
/// sending with each request from here on. Thrift multiplies both.
const UNIT_PRICE: f64 = 0.006;
const NAME_PRICE: f64 = 0.0033;
/// How well a value is said by a bare name in a list, and by a unit that says little else; in
/// context it is said fully.
const NAME_COVER: f64 = 0.5;
const BARE_COVER: f64 = 0.6;
/// How much further text makes a context.
const CONTEXT_BYTES: usize = 12;
/// What a token of a short user message is worth beside its values, so that a user's own words go
/// last; of the head of a call, so that it stays known what was done; of the first and last words
/// of an assistant's text; of the rest of a call.
const USER_WORTH: f64 = 0.04;
const ACTION_WORTH: f64 = 0.025;
const LEAD_WORTH: f64 = 0.0044;
const CALL_WORTH: f64 = 0.004;
/// What a token of plain talk is worth, half of it after 30 messages, where nothing but talk is there to
/// tell what matters.
const TALK_WORTH: f64 = 0.012;
/// So many lines of one shape in one message count fully.
const FEW_LINES: f64 = 3.0;
/// User messages up to this many tokens stay whole or go whole.
const SHORT_TOKENS: f64 = 120.0;
/// Gaps of at most this many units and tokens are filled.
const FILL_UNITS: usize = 3;
const FILL_TOKENS: f64 = 24.0;

/// Writes a note of at most `room_tokens`; `None` where that is too little for anything.
pub fn write(subject: &Subject<'_>, room_tokens: u64) -> Option<String> {
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
            return Some(text);
        }
        // The estimate was too low: the last picks, which are worth least, go.
        most_tokens -= (tokens - room_tokens).min(most_tokens);
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

/// Something the note can say.
struct Candidate {
    message: usize,
    what: What,
    tokens: f64,
    /// What it is worth beside its values.
    bonus: f64,
    /// What is left of a result's line without its values: lines of a log share it.
    shape: Option<u64>,
}

#[derive(Clone, PartialEq)]
enum What {
    /// Units of the message, by index.
    Units(Range<usize>),
    /// A value in a list of names: its id, and where it is said.
    Name { id: u32, mention: usize },
}

struct Pick {
    candidate: usize,
    price: f64,
}

struct Writer<'a> {
    subject: &'a Subject<'a>,
    lexicon: Lexicon,
    weights: Vec<f64>,
    /// How well each value is said so far, 0 to 1.
    covered: Vec<f64>,
    candidates: Vec<Candidate>,
    /// Messages with something picked.
    has_header: Vec<bool>,
    picks: Vec<Pick>,
    /// How many lines of each message and shape are picked.
    shapes: HashMap<(usize, u64), u32>,
    room_tokens: f64,
    /// Whether the conversation is a plain dialogue.
    is_talk: bool,
}

#[derive(PartialEq)]
struct Offer {
    ratio: f64,
    candidate: usize,
}

impl Eq for Offer {}
impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ratio.total_cmp(&other.ratio).then(other.candidate.cmp(&self.candidate))
    }
}

impl<'a> Writer<'a> {
    fn new(subject: &'a Subject<'a>, room_tokens: f64) -> Self {
        let mut lexicon = Lexicon::default();
        for reading in subject.readings {
            lexicon.push(reading);
        }
        for reading in subject.readings {
            lexicon.mark_neighbours(reading);
        }
        let weights = lexicon.weights();
        let mut writer = Self {
            subject,
            covered: vec![0.0; lexicon.len()],
            lexicon,
            weights,
            candidates: Vec::new(),
            has_header: vec![false; subject.readings.len()],
            picks: Vec::new(),
            shapes: HashMap::new(),
            room_tokens,
            is_talk: is_talk(subject),
        };
        writer.cover_what_stays();
        writer.list_candidates();
        writer
    }

    fn cover_what_stays(&mut self) {
        for message in self.subject.kept {
            for mention in &self.subject.readings[*message].values {
                if let Some(id) = self.lexicon.id(mention.key) {
                    self.covered[id as usize] = 1.0;
                }
            }
        }
        for note in self.subject.notes {
            for unit in &note.units {
                let is_list = note.text[unit.span.clone()].starts_with(ALSO);
                for mention in note.values_of(unit) {
                    let Some(id) = self.lexicon.id(mention.key) else { continue };
                    let cover = if is_list {
                        NAME_COVER
                    } else {
                        full(unit.span.len(), mention.end - mention.start)
                    };
                    let covered = &mut self.covered[id as usize];
                    *covered = covered.max(cover);
                }
            }
        }
    }

    fn list_candidates(&mut self) {
        let mut named = vec![false; self.lexicon.len()];
        for message in self.subject.gone.iter().rev().copied() {
            let reading = &self.subject.readings[message];
            for (index, mention) in reading.values.iter().enumerate() {
                let Some(id) = self.lexicon.id(mention.key) else { continue };
                if !self.lexicon.is_cited(id) && !is_telling_alone(reading, mention) {
                    continue;
                }
                if !std::mem::replace(&mut named[id as usize], true)
                    && self.covered[id as usize] < NAME_COVER
                {
                    let tokens = 0.4 + f64::from(mention.end - mention.start) / 3.2;
                    let what = What::Name { id, mention: index };
                    self.candidates.push(Candidate {
                        message,
                        what,
                        tokens,
                        bonus: 0.0,
                        shape: None,
                    });
                }
            }
        }
        for message in self.subject.gone.iter().copied() {
            self.list_units(message);
        }
    }

    fn list_units(&mut self, message: usize) {
        let reading = &self.subject.readings[message];
        if reading.units.is_empty() {
            return;
        }
        let text_tokens = self.subject.text_tokens[message] as f64;
        let per_byte = (text_tokens / reading.text.len() as f64).min(1.0);
        if self.subject.first_user == Some(message) {
            self.list_first_user(message, per_byte);
            return;
        }
        let is_short_user = reading.role == Role::User && text_tokens <= SHORT_TOKENS;
        if is_short_user {
            let all = 0..reading.units.len();
            let bonus = USER_WORTH * text_tokens;
            self.candidates.push(Candidate {
                message,
                what: What::Units(all),
                tokens: text_tokens,
                bonus,
                shape: None,
            });
            return;
        }
        let age_messages = (self.subject.readings.len() - message) as f64;
        let talk_worth = if self.is_talk { TALK_WORTH * 30.0 / (30.0 + age_messages) } else { 0.0 };
        for (index, unit) in reading.units.iter().enumerate() {
            let tokens = unit.span.len() as f64 * per_byte;
            let bonus = talk_worth.max(lead(reading, index)) * tokens;
            let what = What::Units(index..index + 1);
            let shape = (reading.role != Role::Assistant).then(|| shape(reading, unit));
            self.candidates.push(Candidate { message, what, tokens, bonus, shape });
        }
    }

    /// The first user message says what all is about: two thirds of half the room go to how it
    /// begins, one third to how it ends.
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
            let what = What::Units(index..index + 1);
            self.candidates.push(Candidate { message, what, tokens, bonus, shape: None });
        }
    }

    fn price(&self, candidate: &Candidate) -> f64 {
        match candidate.what {
            What::Units(_) => {
                let header = if self.has_header[candidate.message] { 0.0 } else { HEADER_TOKENS };
                candidate.tokens + GAP_TOKENS + header
            }
            What::Name { .. } => candidate.tokens + ENTRY_TOKENS,
        }
    }

    fn gain(&self, candidate: &Candidate) -> f64 {
        match &candidate.what {
            What::Name { id, .. } => {
                let id = *id as usize;
                self.weights[id] * (NAME_COVER - self.covered[id]).max(0.0)
            }
            What::Units(range) => {
                let reading = &self.subject.readings[candidate.message];
                let mut gain = candidate.bonus;
                for unit in &reading.units[range.clone()] {
                    for (index, mention) in reading.values_of(unit).enumerate() {
                        // A value said twice in a unit counts once.
                        let is_again =
                            reading.values_of(unit).take(index).any(|own| own.key == mention.key);
                        if let Some(id) = self.lexicon.id(mention.key).filter(|_| !is_again) {
                            let id = id as usize;
                            let full = full(unit.span.len(), mention.end - mention.start);
                            gain += self.weights[id] * (full - self.covered[id]).max(0.0);
                        }
                    }
                }
                gain * self.novelty(candidate)
            }
        }
    }

    /// One line of a log tells what the others are like: beyond a few, each is worth less.
    fn novelty(&self, candidate: &Candidate) -> f64 {
        let shape = candidate.shape.map(|shape| (candidate.message, shape));
        let picked = shape.and_then(|shape| self.shapes.get(&shape)).copied().unwrap_or(0);
        (FEW_LINES / (f64::from(picked) + 1.0)).min(1.0)
    }

    fn is_worth(&self, candidate: &Candidate, ratio: f64) -> bool {
        match candidate.what {
            What::Units(_) => ratio > UNIT_PRICE * self.subject.thrift,
            What::Name { .. } => ratio > NAME_PRICE * self.subject.thrift,
        }
    }

    fn select(&mut self, room_tokens: f64) {
        let mut left = room_tokens - HEAD_TOKENS;
        let mut heap: BinaryHeap<Offer> = BinaryHeap::new();
        for index in 0..self.candidates.len() {
            let candidate = &self.candidates[index];
            let ratio = self.gain(candidate) / self.price(candidate);
            if self.is_worth(candidate, ratio) {
                heap.push(Offer { ratio, candidate: index });
            }
        }
        while let Some(offer) = heap.pop() {
            let candidate = &self.candidates[offer.candidate];
            let price = self.price(candidate);
            let ratio = self.gain(candidate) / price;
            if !self.is_worth(candidate, ratio) {
                continue;
            }
            let next = heap.peek().map_or(0.0, |next| next.ratio);
            if ratio < next {
                heap.push(Offer { ratio, ..offer });
                continue;
            }
            if price > left {
                continue;
            }
            left -= price;
            self.take(offer.candidate, price);
        }
        self.fill_gaps(&mut left);
    }

    fn take(&mut self, index: usize, price: f64) {
        let candidate = &self.candidates[index];
        match &candidate.what {
            What::Name { id, .. } => self.covered[*id as usize] = NAME_COVER,
            What::Units(range) => {
                self.has_header[candidate.message] = true;
                if let Some(shape) = candidate.shape {
                    *self.shapes.entry((candidate.message, shape)).or_default() += 1;
                }
                let reading = &self.subject.readings[candidate.message];
                for unit in &reading.units[range.clone()] {
                    for mention in reading.values_of(unit) {
                        let Some(id) = self.lexicon.id(mention.key) else { continue };
                        let full = full(unit.span.len(), mention.end - mention.start);
                        let covered = &mut self.covered[id as usize];
                        *covered = covered.max(full);
                    }
                }
            }
        }
        self.picks.push(Pick { candidate: index, price });
    }

    /// Takes small gaps between picked units of a message along: they read better whole.
    fn fill_gaps(&mut self, left: &mut f64) {
        let mut by_message: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            if let What::Units(range) = &candidate.what {
                by_message.entry(candidate.message).or_default().insert(range.start, index);
            }
        }
        let mut is_picked = vec![false; self.candidates.len()];
        for pick in &self.picks {
            is_picked[pick.candidate] = true;
        }
        let mut fills = Vec::new();
        for units in by_message.values() {
            let mut gap: Vec<usize> = Vec::new();
            let mut is_open = false;
            for index in units.values() {
                if !is_picked[*index] {
                    gap.push(*index);
                    continue;
                }
                let tokens: f64 = gap.iter().map(|index| self.candidates[*index].tokens).sum();
                if is_open && !gap.is_empty() && gap.len() <= FILL_UNITS && tokens <= FILL_TOKENS {
                    fills.push((std::mem::take(&mut gap), tokens));
                }
                gap.clear();
                is_open = true;
            }
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

    /// The note with the first `picks` picks.
    fn compose(&self, picks: usize) -> String {
        let mut chosen: BTreeMap<usize, Chosen> = BTreeMap::new();
        for pick in &self.picks[..picks] {
            let candidate = &self.candidates[pick.candidate];
            let own = chosen.entry(candidate.message).or_default();
            match &candidate.what {
                What::Units(range) => own.units.extend(range.clone()),
                What::Name { mention, .. } => own.names.push(*mention),
            }
        }
        compose::note(self.subject, chosen)
    }
}

fn text_tokens_of(reading: &Reading, per_byte: f64) -> f64 {
    reading.units.iter().map(|unit| unit.span.len() as f64 * per_byte).sum()
}

/// A line without its values, as a hash.
fn shape(reading: &Reading, unit: &Unit) -> u64 {
    let mut hasher = Xxh3::new();
    let mut from = unit.span.start;
    for mention in reading.values_of(unit).filter(|mention| mention.kind == ValueKind::Name) {
        let start = mention.start as usize;
        if start >= from {
            hasher.update(&reading.text.as_bytes()[from..start]);
            hasher.update(&[0]);
            from = mention.end as usize;
        }
    }
    hasher.update(&reading.text.as_bytes()[from..unit.span.end]);
    hasher.digest()
}

/// Whether a value says something without what stood around it: a name does; a number, a date and
/// the key of a record do not.
fn is_telling_alone(reading: &Reading, mention: &Mention) -> bool {
    let said = reading.said(mention);
    let is_key = reading.text[mention.end as usize..].starts_with(['"', '\''])
        && reading.text[mention.end as usize + 1..].starts_with(':');
    said.bytes().any(|byte| byte.is_ascii_alphabetic()) && !is_key
}

/// How well a unit says a value in it: context counts.
fn full(unit_bytes: usize, value_bytes: u32) -> f64 {
    if unit_bytes >= value_bytes as usize + CONTEXT_BYTES { 1.0 } else { BARE_COVER }
}

/// Whether a conversation is a plain dialogue: nobody calls a tool, and names and numbers are too
/// rare in what is said to tell what matters.
fn is_talk(subject: &Subject<'_>) -> bool {
    const NAMES_PER_TOKEN: f64 = 0.03;
    let mut names = 0;
    let mut said_tokens = 0;
    for (message, reading) in subject.readings.iter().enumerate() {
        let is_call = |block: &Block| block.kind != BlockKind::Text;
        if reading.role == Role::Tool || reading.blocks.iter().any(is_call) {
            return false;
        }
        if reading.role != Role::System {
            let is_name = |mention: &&Mention| mention.kind == ValueKind::Name;
            names += reading.values.iter().filter(is_name).count();
            said_tokens += subject.text_tokens[message];
        }
    }
    (names as f64) < NAMES_PER_TOKEN * said_tokens as f64
}

/// What a unit is worth by each token for telling what an assistant turn was about: its first and
/// last words, and the head of each call.
fn lead(reading: &Reading, index: usize) -> f64 {
    if reading.role != Role::Assistant {
        return 0.0;
    }
    let block = reading.units[index].block;
    let is_first = index == 0 || reading.units[index - 1].block != block;
    let is_last = index + 1 == reading.units.len() || reading.units[index + 1].block != block;
    match reading.blocks[block as usize].kind {
        BlockKind::Call { .. } if is_first => ACTION_WORTH,
        BlockKind::Call { .. } => CALL_WORTH,
        BlockKind::Text => {
            let is_fence = |index: usize| {
                reading.text[reading.units[index].span.clone()].trim_start().starts_with("```")
            };
            // Agents without tools write what is to be run as a block of code.
            if !is_first && is_fence(index - 1) && !is_fence(index) {
                ACTION_WORTH
            } else if is_first || is_last {
                LEAD_WORTH
            } else {
                0.0
            }
        }
    }
}
