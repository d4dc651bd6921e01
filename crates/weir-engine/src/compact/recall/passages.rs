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
/// Maximum size of messages that are recalled whole.
const WHOLE_TOKENS: f64 = 160.0;
/// Approximate size of the passages of longer messages.
const PASSAGE_TOKENS: f64 = 80.0;
/// Weight of a term that is only the prefix of a word.
const BEGINNING_WEIGHT: f64 = 0.5;
/// The usual constants of BM25: saturation of repeated terms, and the penalty for longer passages.
const SATURATION: f64 = 1.2;
const LENGTH_WEIGHT: f64 = 0.5;
/// Share of a message's score that is added to the message answering it, and to the one that it
/// answers.
const ANSWER_SHARE: f64 = 0.65;
const ASKED_SHARE: f64 = 0.25;
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
        passages: &mut Vec<Self>,
    ) {
        let per_byte = text_tokens as f64 / (reading.text.len() as f64).max(1.0);
        let asks = ending::asks(&reading.text);
        for units in split(reading, text_tokens as f64) {
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
fn split(reading: &Reading, text_tokens: f64) -> Vec<Vec<usize>> {
    let is_text = |unit: &usize| {
        let block = reading.units[*unit].block as usize;
        !matches!(reading.blocks[block].kind, BlockKind::Call { .. })
    };
    let units = (0..reading.units.len()).filter(is_text);
    if text_tokens <= WHOLE_TOKENS {
        let whole: Vec<usize> = units.collect();
        return if whole.is_empty() { Vec::new() } else { vec![whole] };
    }
    let per_byte = text_tokens / reading.text.len() as f64;
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut run_tokens = 0.0;
    for unit in units {
        let tokens = reading.units[unit].span.len() as f64 * per_byte;
        match runs.last_mut() {
            Some(run) if run_tokens + tokens <= PASSAGE_TOKENS => run.push(unit),
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

/// Ranks the relevant passages, the best first; of equal ones the newer.
///
/// BM25 with the fourth root instead of the logarithm, since only roots round alike on every
/// machine. Neighbours in the dialogue receive a share of a message's score.
pub(crate) fn ranked(passages: &[Passage], question: &Question) -> Vec<usize> {
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
    let own: Vec<f64> = passages.iter().map(|own| own.score(&weights, mean_words)).collect();
    let scores = with_neighbours(passages, &own);
    let best = scores.iter().copied().fold(0.0, f64::max);
    if best <= 0.0 || best < LEAST_OF_ALL * weights.iter().sum::<f64>() {
        return Vec::new();
    }
    let mut ranked: Vec<usize> = (0..passages.len()).filter(|own| scores[*own] > 0.0).collect();
    ranked.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]).then(right.cmp(left)));
    ranked
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
