//! What turns leave that go: a note of verbatim excerpts and names, chosen by what the conversation
//! is likely to use again for each token. Pure, and the same for the same messages.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::ops::Range;
use std::rc::Rc;

use super::knobs::knobs;
use super::reading::{BlockKind, Reading};
use super::weight::Lexicon;
use crate::tokens::Encoding;
use crate::wire::Role;

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
}

/// The note's first line.
const HEAD: &str = "[weir: earlier messages, shortened to fit; … = left out]";
/// Before names and values that stand in a message but in none of the excerpts.
const ALSO: &str = "also: ";

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
    room_tokens: f64,
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
            room_tokens,
        };
        writer.cover_what_stays();
        writer.list_candidates();
        writer
    }

    fn cover_what_stays(&mut self) {
        let k = knobs();
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
                        k.beta
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
        let k = knobs();
        let mut named = vec![false; self.lexicon.len()];
        for message in self.subject.gone.iter().rev().copied() {
            let reading = &self.subject.readings[message];
            for (index, mention) in reading.values.iter().enumerate() {
                let Some(id) = self.lexicon.id(mention.key) else { continue };
                if !std::mem::replace(&mut named[id as usize], true)
                    && self.covered[id as usize] < k.beta
                {
                    let tokens = 0.4 + f64::from(mention.end - mention.start) / 3.2;
                    let what = What::Name { id, mention: index };
                    self.candidates.push(Candidate { message, what, tokens, bonus: 0.0 });
                }
            }
        }
        for message in self.subject.gone.iter().copied() {
            self.list_units(message);
        }
    }

    fn list_units(&mut self, message: usize) {
        let k = knobs();
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
        let is_short_user = reading.role == Role::User && text_tokens <= k.uall;
        if is_short_user {
            let all = 0..reading.units.len();
            let bonus = k.bu * text_tokens;
            self.candidates.push(Candidate {
                message,
                what: What::Units(all),
                tokens: text_tokens,
                bonus,
            });
            return;
        }
        for (index, unit) in reading.units.iter().enumerate() {
            let tokens = unit.span.len() as f64 * per_byte;
            let bonus = match reading.role {
                Role::Assistant => lead(reading, index) * tokens,
                _ => 0.0,
            };
            let what = What::Units(index..index + 1);
            self.candidates.push(Candidate { message, what, tokens, bonus });
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
            self.candidates.push(Candidate { message, what, tokens, bonus });
        }
    }

    fn price(&self, candidate: &Candidate) -> f64 {
        let k = knobs();
        match candidate.what {
            What::Units(_) => {
                let header = if self.has_header[candidate.message] { 0.0 } else { k.header };
                candidate.tokens + k.gap + header
            }
            What::Name { .. } => candidate.tokens + k.entry,
        }
    }

    fn gain(&self, candidate: &Candidate) -> f64 {
        let k = knobs();
        match &candidate.what {
            What::Name { id, .. } => {
                let id = *id as usize;
                self.weights[id] * (k.beta - self.covered[id]).max(0.0)
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
                gain
            }
        }
    }

    fn is_worth(&self, candidate: &Candidate, ratio: f64) -> bool {
        let k = knobs();
        match candidate.what {
            What::Units(_) => ratio > k.lam,
            What::Name { .. } => ratio > k.lamv,
        }
    }

    fn select(&mut self, room_tokens: f64) {
        let mut left = room_tokens - 14.0;
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
            What::Name { id, .. } => self.covered[*id as usize] = knobs().beta,
            What::Units(range) => {
                self.has_header[candidate.message] = true;
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
        let k = knobs();
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
                if is_open && !gap.is_empty() && gap.len() <= 3 && tokens <= k.fillt {
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
        let mut by_message: BTreeMap<usize, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for pick in &self.picks[..picks] {
            let candidate = &self.candidates[pick.candidate];
            let entry = by_message.entry(candidate.message).or_default();
            match &candidate.what {
                What::Units(range) => entry.0.extend(range.clone()),
                What::Name { mention, .. } => entry.1.push(*mention),
            }
        }
        let mut shown: Vec<f64> = vec![0.0; self.lexicon.len()];
        for (message, (units, _)) in &by_message {
            let reading = &self.subject.readings[*message];
            for unit in units {
                for mention in reading.values_of(&reading.units[*unit]) {
                    if let Some(id) = self.lexicon.id(mention.key) {
                        shown[id as usize] = 1.0;
                    }
                }
            }
        }
        let mut out = HEAD.to_owned();
        let mut elsewhere: Vec<&str> = Vec::new();
        for (message, (units, names)) in &mut by_message {
            let reading = &self.subject.readings[*message];
            units.sort_unstable();
            names.sort_unstable();
            let names: Vec<&str> = names
                .iter()
                .map(|index| &reading.values[*index])
                .filter(|mention| {
                    self.lexicon.id(mention.key).is_some_and(|id| shown[id as usize] == 0.0)
                })
                .map(|mention| reading.said(mention))
                .collect();
            if units.is_empty() {
                elsewhere.extend(names);
                continue;
            }
            let _ = write!(out, "\n#{message} {}:", self.subject.speakers[*message]);
            compose_units(reading, units, &mut out);
            if !names.is_empty() {
                let _ = write!(out, "\n{ALSO}{}", names.join(", "));
            }
        }
        if !elsewhere.is_empty() {
            let _ = write!(out, "\n{ALSO}{}", elsewhere.join(", "));
        }
        out
    }
}

/// Units of one message, what is adjacent in one piece.
fn compose_units(reading: &Reading, units: &[usize], out: &mut String) {
    let mut block = None;
    let mut before: Option<usize> = None;
    let mut index = 0;
    while index < units.len() {
        let first = &reading.units[units[index]];
        let mut end = index;
        while end + 1 < units.len()
            && units[end + 1] == units[end] + 1
            && reading.units[units[end + 1]].block == first.block
        {
            end += 1;
        }
        let span = first.span.start..reading.units[units[end]].span.end;
        if block != Some(first.block) {
            match &reading.blocks[first.block as usize].kind {
                BlockKind::Text => out.push('\n'),
                BlockKind::Call { name, .. } => {
                    let _ = write!(out, "\n> {name}: ");
                }
            }
            block = Some(first.block);
        } else {
            let is_one_line =
                before.is_some_and(|before| !reading.text[before..span.start].contains('\n'));
            out.push_str(if is_one_line { " … " } else { "\n…\n" });
        }
        out.push_str(&reading.text[span.clone()]);
        before = Some(span.end);
        index = end + 1;
    }
}

fn text_tokens_of(reading: &Reading, per_byte: f64) -> f64 {
    reading.units.iter().map(|unit| unit.span.len() as f64 * per_byte).sum()
}

/// How well a unit says a value in it: context counts.
fn full(unit_bytes: usize, value_bytes: u32) -> f64 {
    if unit_bytes >= value_bytes as usize + 12 { 1.0 } else { knobs().short }
}

/// What a unit is worth by each token for telling what an assistant turn was about: its first and
/// last words, and the head of each call.
fn lead(reading: &Reading, index: usize) -> f64 {
    let k = knobs();
    let block = reading.units[index].block;
    let is_first = index == 0 || reading.units[index - 1].block != block;
    let is_last = index + 1 == reading.units.len() || reading.units[index + 1].block != block;
    match reading.blocks[block as usize].kind {
        BlockKind::Call { .. } if is_first => k.ba,
        BlockKind::Call { .. } => 0.0,
        BlockKind::Text => {
            let opens_code = !is_first
                && reading.text[reading.units[index - 1].span.clone()]
                    .trim_start()
                    .starts_with("```");
            if opens_code
                && !reading.text[reading.units[index].span.clone()].trim_start().starts_with("```")
            {
                k.ba
            } else if is_first {
                k.bt
            } else if is_last {
                k.bent
            } else {
                0.0
            }
        }
    }
}
