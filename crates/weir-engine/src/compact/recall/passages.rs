//! Passages of removed messages, ranked by relevance to a question: by their own words, and by
//! those of the message that they answer or that answers them. Pure, and equal on every machine.

use std::collections::{BTreeMap, HashMap};

use super::terms::{Openings, Term, TermKind, terms};
use crate::compact::excerpt::weight::Seeded;
use crate::compact::message::ending;
use crate::compact::message::reading::{BlockKind, Reading};
use crate::wire::Role;

/// Maximum number of question terms to search for.
const QUESTION_TERMS: usize = 128;
/// Maximum size of messages that are one passage, and approximate size of the passages of longer ones, in tokens:
/// for a question of a user, and for the recall tool, which shows single lines.
pub(crate) const OF_QUESTIONS: [f64; 2] = [160.0, 80.0];
pub(crate) const OF_LINES: [f64; 2] = [40.0, 24.0];
/// Weight of a term that is only the prefix of a word.
const BEGINNING_WEIGHT: f64 = 0.5;
/// The usual constants of BM25: saturation of repeated terms, and the penalty for longer passages.
const SATURATION: f64 = 1.2;
const LENGTH_WEIGHT: f64 = 0.5;
/// Share of a message's score that is added to the message answering it, and to the one that it
/// answers.
const ANSWER_SHARE: f64 = 0.65;
const ASKED_SHARE: f64 = 0.25;
/// Shares of other scores that a line has for a query of a model: of the two lines next to it, of the best line of
/// the message before a result, and of the best line of its own message; and share of all that an assistant's line has.
const NEAR_SHARE: f64 = 0.4;
const CALL_SHARE: f64 = 0.3;
const MESSAGE_SHARE: f64 = 0.2;
const SAID_SHARE: f64 = 0.7;
/// Minimum score of the best passage, relative to one with all terms of the question.
const LEAST_OF_ALL: f64 = 0.15;

/// Search terms of a question.
pub(crate) struct Question {
    /// Index of each term in the question.
    terms: HashMap<u64, usize, Seeded>,
    kinds: Vec<TermKind>,
    /// Openings of all of them.
    openings: Openings,
}

impl Question {
    /// Extracts the terms of a question; `None` if it has no words.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let openings = Openings::new();
        let mut own = Self { terms: HashMap::default(), kinds: Vec::new(), openings };
        let take = |term: Term| {
            let next = own.kinds.len();
            if next < QUESTION_TERMS && *own.terms.entry(term.key).or_insert(next) == next {
                own.kinds.push(term.kind);
                own.openings.insert(term.opening);
            }
        };
        terms(text, |_| true, take);
        (!own.kinds.is_empty()).then_some(own)
    }
}

/// Part of a message's text.
pub(crate) struct Passage {
    pub message: usize,
    role: Role,
    /// Its units, by index.
    pub units: Vec<usize>,
    pub tokens: f64,
    /// Number of words.
    words: u32,
    /// Index and frequency of each question term that it contains.
    found: Vec<(usize, u32)>,
    /// Whether the message asks something.
    asks: bool,
}

impl Passage {
    /// Appends the passages of `message` to `passages`.
    pub(crate) fn add_of(
        message: usize,
        reading: &Reading,
        text_tokens: u64,
        question: &Question,
        grain_tokens: [f64; 2],
        passages: &mut Vec<Self>,
    ) {
        let per_byte = text_tokens as f64 / (reading.text.len() as f64).max(1.0);
        let asks = ending::asks(&reading.text);
        for units in split(reading, text_tokens as f64, grain_tokens) {
            let bytes: usize = units.iter().map(|unit| reading.units[*unit].span.len()).sum();
            let tokens = bytes as f64 * per_byte;
            let (words, found) = words(&units, question, reading);
            passages.push(Self { message, role: reading.role, units, tokens, words, found, asks });
        }
    }

    /// Returns the passage's own score for these term `weights`.
    fn score(&self, weights: &[f64], mean_words: f64) -> f64 {
        let length = f64::from(self.words) / mean_words;
        let damping = SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * length);
        let score = |(place, times): &(usize, u32)| {
            let times = f64::from(*times);
            weights[*place] * times * (SATURATION + 1.0) / (times + damping)
        };
        self.found.iter().map(score).sum()
    }
}

/// Splits the prose of a message into groups of units: one group if it is short, otherwise runs.
fn split(
    reading: &Reading,
    text_tokens: f64,
    [whole_tokens, run_tokens]: [f64; 2],
) -> Vec<Vec<usize>> {
    let most_tokens = run_tokens;
    let is_text = |unit: &usize| {
        let block = reading.units[*unit].block as usize;
        !matches!(reading.blocks[block].kind, BlockKind::Call { .. })
    };
    let units = (0..reading.units.len()).filter(is_text);
    if text_tokens <= whole_tokens {
        let whole: Vec<usize> = units.collect();
        return if whole.is_empty() { Vec::new() } else { vec![whole] };
    }
    let per_byte = text_tokens / reading.text.len() as f64;
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut run_tokens = 0.0;
    for unit in units {
        let tokens = reading.units[unit].span.len() as f64 * per_byte;
        match runs.last_mut() {
            Some(run) if run_tokens + tokens <= most_tokens => run.push(unit),
            _ => {
                runs.push(vec![unit]);
                run_tokens = 0.0;
            }
        }
        run_tokens += tokens;
    }
    runs
}

/// Counts the words in units, and the question terms among them by index.
fn words(units: &[usize], question: &Question, reading: &Reading) -> (u32, Vec<(usize, u32)>) {
    let mut words = 0;
    let mut found = BTreeMap::new();
    for unit in units {
        let text = &reading.text[reading.units[*unit].span.clone()];
        let is_wanted = |opening| question.openings.may_contain(opening);
        words += terms(text, is_wanted, |term| {
            if let Some(place) = question.terms.get(&term.key) {
                *found.entry(*place).or_insert(0) += 1;
            }
        });
    }
    (words, found.into_iter().collect())
}

/// Ranks the relevant passages, the best first; of equal ones the newer. None if the best has little of the
/// question.
///
/// BM25 with the fourth root instead of the logarithm, since only roots round alike on every
/// machine. Neighbours in the dialogue receive a share of a message's score.
pub(crate) fn ranked(passages: &[Passage], question: &Question) -> Vec<usize> {
    let (own, all) = scores(passages, question);
    let scores = with_neighbours(passages, &own);
    let best = scores.iter().copied().fold(0.0, f64::max);
    if best < LEAST_OF_ALL * all { Vec::new() } else { in_order(passages, &scores) }
}

/// Ranks lines for a query of a model: each has a share of the lines around it, and of the best line of the call
/// that it answers. What the model itself said comes after what it read.
pub(crate) fn ranked_lines(passages: &[Passage], question: &Question) -> Vec<usize> {
    let (own, _) = scores(passages, question);
    let mut best: BTreeMap<usize, f64> = BTreeMap::new();
    for (passage, score) in passages.iter().zip(&own) {
        let best = best.entry(passage.message).or_default();
        *best = best.max(*score);
    }
    let near = |place: usize, other: Option<usize>| {
        let is_own = |other: &usize| {
            passages.get(*other).is_some_and(|own| own.message == passages[place].message)
        };
        other.filter(is_own).map_or(0.0, |other| own[other])
    };
    let score = |(place, passage): (usize, &Passage)| {
        let around = near(place, place.checked_sub(1)) + near(place, Some(place + 1));
        let of_call = passage.message.checked_sub(1).and_then(|call| best.get(&call));
        let of_call = of_call.filter(|_| passage.role != Role::Assistant).copied();
        let share = if passage.role == Role::Assistant { SAID_SHARE } else { 1.0 };
        let all = own[place]
            + NEAR_SHARE * around
            + CALL_SHARE * of_call.unwrap_or_default()
            + MESSAGE_SHARE * best.get(&passage.message).copied().unwrap_or_default();
        share * all
    };
    let scores: Vec<f64> = passages.iter().enumerate().map(score).collect();
    in_order(passages, &scores)
}

/// Returns the passages that have a score, the best first; of equal ones the newer.
fn in_order(passages: &[Passage], scores: &[f64]) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..passages.len()).filter(|own| scores[*own] > 0.0).collect();
    ranked.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]).then(right.cmp(left)));
    ranked
}

/// Returns the score of each passage by its own words, and the sum of the weights of all terms.
fn scores(passages: &[Passage], question: &Question) -> (Vec<f64>, f64) {
    let mut holders = vec![0_u32; question.kinds.len()];
    for (place, _) in passages.iter().flat_map(|passage| &passage.found) {
        holders[*place] += 1;
    }
    let weight = |(holders, kind): (&u32, &TermKind)| match kind {
        TermKind::Word => rarity(passages.len(), *holders),
        TermKind::Beginning => rarity(passages.len(), *holders) * BEGINNING_WEIGHT,
    };
    let weights: Vec<f64> = holders.iter().zip(&question.kinds).map(weight).collect();
    let words: f64 = passages.iter().map(|passage| f64::from(passage.words)).sum();
    let mean_words = (words / passages.len() as f64).max(1.0);
    let own = passages.iter().map(|own| own.score(&weights, mean_words)).collect();
    (own, weights.iter().sum())
}

/// Returns the weight of a term that `holders` of all passages contain.
fn rarity(passages: usize, holders: u32) -> f64 {
    let holders = f64::from(holders);
    let odds = (passages as f64 - holders + 0.5) / (holders + 0.5);
    (1.0 + odds.max(0.0)).sqrt().sqrt() - 1.0
}

/// Adds shares of the neighbours' scores to each score. The message before counts if this one
/// answers a user or a question, the message after if it answers this one. The beginning of an
/// answer carries most.
fn with_neighbours(passages: &[Passage], own: &[f64]) -> Vec<f64> {
    let mut scores = own.to_vec();
    let mut messages: BTreeMap<usize, (Role, bool, f64)> = BTreeMap::new();
    for (passage, score) in passages.iter().zip(own) {
        let new = (passage.role, passage.asks, *score);
        let best = &mut messages.entry(passage.message).or_insert(new).2;
        *best = best.max(*score);
    }
    let mut nth = 0;
    let mut message = usize::MAX;
    for (place, passage) in passages.iter().enumerate() {
        nth = if passage.message == message { nth + 1 } else { 1 };
        message = passage.message;
        let other = match passage.role {
            Role::Assistant => Role::User,
            Role::User => Role::Assistant,
            _ => continue,
        };
        let before = message.checked_sub(1).and_then(|before| messages.get(&before));
        let answers = |(role, asks, _): &&(Role, bool, f64)| {
            *role == other && (*asks || passage.role == Role::Assistant)
        };
        let answered = before.filter(answers).map_or(0.0, |(_, _, score)| score * ANSWER_SHARE);
        let after = messages.get(&(message + 1)).filter(|(role, _, _)| *role == other);
        let is_asked = passage.asks || passage.role == Role::User;
        let answer = after.filter(|_| is_asked).map_or(0.0, |(_, _, score)| score * ASKED_SHARE);
        scores[place] += (answered + answer) / f64::from(nth);
    }
    scores
}
