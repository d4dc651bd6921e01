//! How likely each value of a conversation is to be used again, read off the conversation itself:
//! what the assistant took up before it takes up again. Pure.

use std::collections::HashMap;

use super::reading::Reading;
use super::values::ValueKind;
use crate::wire::Role;

/// The values of a conversation, numbered in order of appearance.
#[derive(Debug, Default)]
pub struct Lexicon {
    ids: HashMap<u64, u32>,
    stats: Vec<Stats>,
    messages: usize,
}

#[derive(Debug, Clone)]
struct Stats {
    /// Messages of the assistant that hold it.
    cited: u32,
    /// Other messages that hold it.
    others: u32,
    /// The last message that holds it.
    last: usize,
    /// How many values the smallest message that holds it has.
    company: usize,
    /// Whether it stands on or beside a unit that holds a cited value.
    is_near_cited: bool,
    kind: ValueKind,
    /// Stamp of the message counted last.
    seen_in: usize,
}

impl Lexicon {
    /// Takes the next message.
    pub fn push(&mut self, reading: &Reading) {
        let message = self.messages;
        self.messages += 1;
        for mention in &reading.values {
            let next = self.stats.len() as u32;
            let id = *self.ids.entry(mention.key).or_insert(next);
            if id == next {
                self.stats.push(Stats {
                    cited: 0,
                    others: 0,
                    last: message,
                    company: usize::MAX,
                    is_near_cited: false,
                    kind: mention.kind,
                    seen_in: usize::MAX,
                });
            }
            let stats = &mut self.stats[id as usize];
            if stats.seen_in == message {
                continue;
            }
            stats.seen_in = message;
            match reading.role {
                Role::Assistant => stats.cited += 1,
                _ => stats.others += 1,
            }
            stats.last = message;
            stats.company = stats.company.min(reading.values.len());
        }
    }

    /// Marks values that stand beside what was cited. Called once all messages are taken.
    pub fn mark_neighbours(&mut self, reading: &Reading) {
        let cited: Vec<bool> = reading
            .units
            .iter()
            .map(|unit| {
                reading.values_of(unit).any(|mention| {
                    self.id(mention.key).is_some_and(|id| {
                        let stats = &self.stats[id as usize];
                        stats.cited > 0 && stats.others > 0
                    })
                })
            })
            .collect();
        for (index, unit) in reading.units.iter().enumerate() {
            let from = index.saturating_sub(1);
            let to = (index + 2).min(cited.len());
            if cited[from..to].contains(&true) {
                for mention in reading.values_of(unit) {
                    if let Some(id) = self.id(mention.key) {
                        self.stats[id as usize].is_near_cited = true;
                    }
                }
            }
        }
    }

    pub fn id(&self, key: u64) -> Option<u32> {
        self.ids.get(&key).copied()
    }

    pub fn len(&self) -> usize {
        self.stats.len()
    }

    /// The expected later use of each value.
    pub fn weights(&self) -> Vec<f64> {
        self.stats.iter().map(|stats| self.weight(stats)).collect()
    }

    fn weight(&self, stats: &Stats) -> f64 {
        let k = super::knobs::knobs();
        let age = (self.messages - stats.last) as f64 / self.messages as f64;
        let weight = if stats.cited == 0 {
            let often = f64::from(stats.others.saturating_sub(1).min(3));
            let company = (50.0 / (stats.company as f64 + 10.0)).sqrt();
            let near = if stats.is_near_cited { k.near } else { 1.0 };
            (0.05 + 0.09 * often) * (1.0 - k.age0 * age) * company * near
        } else {
            let own = match stats.others {
                0 => 0.10,
                others => 0.30 + 0.25 * f64::from(others.min(2)),
            };
            (own + 0.35 * f64::from(stats.cited.min(4))) * (1.0 - k.age1 * age)
        };
        match stats.kind {
            ValueKind::Name => weight,
            ValueKind::Phrase => weight * k.phrase,
            ValueKind::Word if stats.cited == 0 => weight * k.word,
            ValueKind::Word => weight * k.cited_word,
        }
    }
}
