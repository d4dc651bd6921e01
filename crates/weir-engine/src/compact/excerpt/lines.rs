//! Lines of a tool's result that stand out of the others: those that report an error, that differ from all
//! others in form or value, or that have words of the request. Notes and clips keep them. Pure.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::weight::Seeded;
use crate::compact::message::reading::Reading;
use crate::compact::recall::terms::{TermKind, terms};
use crate::compact::survival::errors::reports;
use crate::wire::Role;

/// Points of a line for a report of an error, for a rare value or form, and for each word of the request,
/// up to `MOST_WORDS` of them.
const ALARM_POINTS: u32 = 40;
const ODD_POINTS: u32 = 24;
const WORD_POINTS: u32 = 16;
const MOST_WORDS: u32 = 3;
/// Lines with the same feature that all count; if more than this share of the lines have it, it says nothing.
const FEW: usize = 3;
const FEW_SHARE: usize = 50;
/// Maximum lines of an old result that a note has for being odd, and minimum lines of such a result.
const MOST_ODD: usize = 2;
const LEAST_NOTED: usize = 100;
/// Minimum lines that show what is usual, and how often a value occurs there on average.
const LEAST_LINES: usize = 24;
const LEAST_REPEATS: u32 = 8;
/// Tokens of a line that are compared with other lines.
const MOST_FIELDS: usize = 64;
/// Maximum words of a request that are looked for.
const MOST_ASKED: usize = 256;
/// Maximum entries of the table that counts values. Values that share an entry count as one, so fewer are rare.
const MOST_ENTRIES: usize = 1 << 18;
/// Words of logs for a line that reports an error.
const LEVELS: [&str; 8] =
    ["ERROR", "FATAL", "CRITICAL", "SEVERE", "PANIC", "Traceback", "Exception", "EMERG"];
const LEAST_LEVEL_BYTES: usize = 5;

/// Words of the request that a result answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked(HashMap<u64, usize, Seeded>);

impl Asked {
    /// Adds the words of a text, up to a maximum in all.
    pub(crate) fn add(&mut self, text: &str) {
        terms(
            text,
            |_| true,
            |term| {
                let next = self.0.len();
                if term.kind == TermKind::Word && next < MOST_ASKED {
                    self.0.entry(term.key).or_insert(next);
                }
            },
        );
    }
}

/// Returns units of a result, or of another long text from outside, that differ from all others in form or
/// value. They are searched for once.
pub(crate) fn odd(reading: &Reading) -> &[u32] {
    reading.findings.odd.get_or_init(|| {
        if reading.role == Role::Assistant || reading.units.len() < LEAST_NOTED {
            return Box::default();
        }
        let all: Vec<&str> =
            reading.units.iter().map(|unit| &reading.text[unit.span.clone()]).collect();
        let odd = Fields::of(&all).map(|fields| fields.odd(&all)).unwrap_or_default();
        odd.into_iter().take(MOST_ODD).map(|unit| unit as u32).collect()
    })
}

/// Returns the lines that stand out, by index, the best first.
pub(crate) fn outstanding(all: &[&str], asked: &Asked) -> Vec<usize> {
    let few = FEW.max(all.len() / FEW_SHARE);
    let mut points = vec![0_u32; all.len()];
    let mut add = |lines: Vec<usize>, own: u32| {
        if lines.len() <= few {
            lines.into_iter().for_each(|line| points[line] += own);
        }
    };
    let alarms: Vec<usize> = (0..all.len()).filter(|line| is_alarm(all[*line])).collect();
    // Of many reports, the first is mostly the cause and the last the state.
    let alarms = match alarms.len() > few {
        true => [&alarms[..few / 2], &alarms[alarms.len() - few.div_ceil(2)..]].concat(),
        false => alarms,
    };
    add(alarms, ALARM_POINTS);
    let odd = Fields::of(all).map(|fields| fields.odd(all)).unwrap_or_default();
    odd.into_iter().for_each(|line| points[line] += ODD_POINTS);
    for (line, words) in asked_for(all, asked, few) {
        points[line] += WORD_POINTS * words.min(MOST_WORDS);
    }
    let mut best: Vec<usize> = (0..all.len()).filter(|line| points[*line] > 0).collect();
    best.sort_by_key(|line| std::cmp::Reverse(points[*line]));
    best
}

/// Returns whether a line reports an error.
fn is_alarm(line: &str) -> bool {
    let is_level = |level: &&str| {
        line.match_indices(*level).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let behind = line[at + level.len()..].chars().next();
            let is_apart = |own: Option<char>| own.is_none_or(|own| !own.is_alphanumeric());
            is_apart(before) && is_apart(behind)
        })
    };
    line.len() >= LEAST_LEVEL_BYTES && LEVELS.iter().any(is_level) || reports(line)
}

/// Returns the lines with words of the request that few lines have, and how many of these each has.
fn asked_for(all: &[&str], asked: &Asked, few: usize) -> Vec<(usize, u32)> {
    if asked.0.is_empty() {
        return Vec::new();
    }
    let mut lines_of: Vec<Vec<usize>> = vec![Vec::new(); asked.0.len()];
    for (line, said) in all.iter().enumerate() {
        terms(
            said,
            |_| true,
            |term| {
                let word = asked.0.get(&term.key).filter(|_| term.kind == TermKind::Word);
                let Some(lines) = word.map(|word| &mut lines_of[*word]) else { return };
                if lines.len() <= few && lines.last() != Some(&line) {
                    lines.push(line);
                }
            },
        );
    }
    let mut words: Vec<(usize, u32)> = Vec::new();
    let mut lines: Vec<usize> =
        lines_of.into_iter().filter(|lines| lines.len() <= few).flatten().collect();
    lines.sort_unstable();
    for line in lines {
        match words.last_mut() {
            Some((last, count)) if *last == line => *count += 1,
            _ => words.push((line, 1)),
        }
    }
    words
}

/// Values of lines by their place: the number of a field in its line, and the field before it. A place is
/// closed if few values come back in it again and again, as the level of a log and the state of a record do.
struct Fields {
    /// Number of lines with each value in each place, by hash.
    values: Vec<u32>,
    places: Vec<Place>,
    /// Maximum lines with a rare value.
    few: u32,
}

#[derive(Clone, Copy, Default)]
struct Place {
    lines: u32,
    distinct: u32,
    /// Lines with a value that is rare there.
    odd: u32,
}

/// Number of places that are distinguished; the first ones are numbers of fields.
const PLACES: usize = 1 << 12;

impl Fields {
    /// Counts the values of a text's lines; `None` if there are too few lines.
    fn of(all: &[&str]) -> Option<Self> {
        if all.len() < LEAST_LINES {
            return None;
        }
        let entries = (all.len() * MOST_FIELDS).next_power_of_two().clamp(1 << 12, MOST_ENTRIES);
        let few = (all.len() / 200).max(1) as u32;
        let mut own =
            Self { values: vec![0; entries], places: vec![Place::default(); PLACES], few };
        for line in all {
            fields(line, |place, value| {
                let entry = &mut own.values[value as usize & (entries - 1)];
                own.places[place].lines += 1;
                own.places[place].distinct += u32::from(*entry == 0);
                *entry += 1;
            });
        }
        for line in all {
            fields(line, |place, value| {
                if own.is_rare(place, value) {
                    own.places[place].odd += 1;
                }
            });
        }
        Some(own)
    }

    /// Returns whether a value is rare in a closed place.
    fn is_rare(&self, place: usize, value: u64) -> bool {
        let Place { lines, distinct, .. } = self.places[place];
        lines as usize >= LEAST_LINES
            && distinct * LEAST_REPEATS <= lines
            && self.values[value as usize & (self.values.len() - 1)] <= self.few
    }

    /// Returns the lines with a rare value, as long as few in that place have one.
    fn odd(&self, all: &[&str]) -> Vec<usize> {
        let is_odd = |line: &usize| {
            let mut is_odd = false;
            fields(all[*line], |place, value| {
                is_odd |=
                    self.is_rare(place, value) && self.places[place].odd <= FEW as u32 + self.few;
            });
            is_odd
        };
        let odd: Vec<usize> = (0..all.len()).filter(is_odd).collect();
        if odd.len() > FEW.max(all.len() / FEW_SHARE) { Vec::new() } else { odd }
    }
}

/// Passes the fields of a line to `take`, each as its place and a hash of both, and the number of fields as
/// one more. Numbers count by their length, but for those of three digits, and other words with digits as one.
fn fields(line: &str, mut take: impl FnMut(usize, u64)) {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut pass = |place: usize, value: u64| {
        take(place, (value ^ (place as u64 + 1).wrapping_mul(SEED)).wrapping_mul(SEED) >> 20);
    };
    let bytes = line.as_bytes();
    let (mut at, mut count, mut before) = (0, 0, 0);
    while at < bytes.len() && count < MOST_FIELDS {
        let start = at;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        let is_blank = |byte: u8| byte.is_ascii_whitespace();
        let (mut has_digit, mut has_letter) = (false, false);
        let is_in_word = is_word(bytes[at]);
        while at < bytes.len() && is_word(bytes[at]) == is_in_word && !is_blank(bytes[at]) {
            has_digit |= bytes[at].is_ascii_digit();
            has_letter |= is_in_word && !bytes[at].is_ascii_digit();
            at += 1;
        }
        if at == start {
            at += 1;
            continue;
        }
        let value = match (has_digit, has_letter) {
            (true, true) => 1,
            // Of three digits are the states of servers and programs.
            (true, false) if at - start != 3 => 2 + (at - start) as u64,
            _ => xxh3_64(&bytes[start..at]),
        };
        pass(count, value);
        if count > 0 {
            pass(MOST_FIELDS + 1 + before as usize % (PLACES - MOST_FIELDS - 1), value);
        }
        (count, before) = (count + 1, value);
    }
    pass(MOST_FIELDS, count as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::message::units::units;

    fn pieces(text: &str) -> Vec<&str> {
        units(text).into_iter().map(|span| &text[span]).collect()
    }

    #[test]
    fn lines_that_stand_out_are_found() {
        let with = |odd: &str, line: &dyn Fn(usize) -> String| {
            let mut lines: Vec<String> = (0..900).map(line).collect();
            lines.insert(451, odd.to_owned());
            lines
        };
        let log = |odd: &str| {
            let line = |n: usize| {
                let (minute, second, id) = (n / 60, n % 60, n * 7919);
                let worker = n % 7;
                format!(
                    "2026-03-01T10:{minute:02}:{second:02} INFO worker-{worker} handled request id={id:x} in {second}ms"
                )
            };
            with(odd, &line).join("\n")
        };
        let csv = |odd: &str| {
            let names = ["Ada", "Ben", "Cleo", "Dov"];
            let line = |n: usize| {
                format!("{},{},{}.{:02},paid", 1000 + n, names[n % 4], 10 + n % 80, n % 100)
            };
            with(odd, &line).join("\n")
        };
        let json = |odd: &str| {
            let line = |n: usize| {
                let (id, host, ms) = (5000 + n, n % 12, n % 90);
                format!(r#"{{"id": {id}, "host": "node-{host}", "status": "ok", "ms": {ms}}}"#)
            };
            format!("[{}]", with(odd, &line).join(", "))
        };
        let plain = Asked::default();
        let mut of_host = Asked::default();
        of_host.add("Why was Zebulon rejected?");
        for (text, asked, wanted) in [
            (
                log("2026-03-01T10:15:31 ERROR worker-3 disk full on /var/spool"),
                &plain,
                "disk full",
            ),
            (log("2026-03-01T10:15:31 WARN worker-3 handled request id=7 in 12ms"), &plain, "WARN"),
            (csv("1451,Ben,17.20,refunded"), &plain, "refunded"),
            (csv("1451,Ben,,paid"), &plain, "Ben,,paid"),
            (csv("1451,Ben,-17.20,paid"), &plain, "-17.20"),
            (
                json(r#"{"id": 5451, "host": "node-7", "status": "failed", "ms": 31}"#),
                &plain,
                "failed",
            ),
            (
                log("2026-03-01T10:15:31 INFO worker-3 handled request of zebulon in 12ms"),
                &of_host,
                "zebulon",
            ),
        ] {
            let units = pieces(&text);
            let found = outstanding(&units, asked);
            assert!(!found.is_empty() && found.len() <= 8, "{wanted}: {}", found.len());
            let is_first = found.iter().take(2).any(|unit| units[*unit].contains(wanted));
            assert!(
                is_first,
                "{wanted}: {:?}",
                found.iter().map(|unit| units[*unit]).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn lines_alike_and_prose_stand_out_in_nothing() {
        let alike = "the same line again and again\n".repeat(500);
        let numbers: Vec<String> =
            (0..500).map(|n| format!("{n},{},{}", n * 31 % 977, n * n)).collect();
        for text in [alike, numbers.join("\n"), "short".to_owned(), String::new()] {
            let found = outstanding(&pieces(&text), &Asked::default());
            assert!(found.len() <= 8, "{} of {text:.60}", found.len());
        }
    }
}
