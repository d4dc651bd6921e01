//! Recognition of users' own sentences, free of words and languages: what a user says inside a longer message,
//! apart from the code, logs and data pasted there. Pure.

use super::outputs::is_output;
use super::parts::said;
use super::rules::RulesOf;
use crate::compact::excerpt::subject::Subject;
use crate::compact::excerpt::worth::SHORT_TOKENS;
use crate::compact::message::pasted::pasted;
use crate::compact::message::reading::{BlockKind, Reading, Unit};
use crate::compact::message::values::ValueKind;
use crate::wire::Role;

/// Maximum size of a message that is searched, and number of its sentences.
const MOST_BYTES: usize = 64 << 10;
const MOST_SENTENCES: usize = 64;
/// Minimum and maximum letters of a sentence.
const LEAST_LETTERS: usize = 8;
const MOST_LETTERS: usize = 400;
/// Minimum share of letters and blanks in a sentence, in hundredths.
const LETTERS_PERCENT: usize = 85;

/// Returns the sentences inside long messages of users that a note replaces. Those of a message with the fewest
/// names for their length come first: nothing else keeps them.
pub(super) fn of(subject: &Subject<'_>) -> Vec<RulesOf> {
    let Subject { readings, gone, text_tokens, .. } = subject;
    let mut all = Vec::new();
    for message in gone.iter().copied() {
        let reading = &readings[message];
        let is_short = text_tokens[message] as f64 <= SHORT_TOKENS;
        if reading.role != Role::User || is_short || is_output(readings, message) {
            continue;
        }
        let units: Vec<usize> = sentences(reading).iter().map(|unit| *unit as usize).collect();
        if !units.is_empty() {
            all.push(RulesOf { message, units, is_read: false, taken_tokens: 0.0 });
        }
    }
    all
}

/// Returns the units of a message that are sentences, those with the fewest names for their length first. They
/// are searched for once.
fn sentences(reading: &Reading) -> &[u32] {
    reading.findings.sentences.get_or_init(|| {
        let names = |unit: &Unit| {
            let names = reading.values_of(unit).filter(|own| own.kind == ValueKind::Name).count();
            names * MOST_BYTES / unit.span.len().max(1)
        };
        let mut units = search(reading);
        // Rows and comments may be pasted.
        units.sort_by_cached_key(|unit| {
            let unit = &reading.units[*unit as usize];
            (!is_sentence(said(reading, unit)), names(unit))
        });
        units.into()
    })
}

/// Finds the units of a message that are sentences, in order.
fn search(reading: &Reading) -> Vec<u32> {
    let mut is_code = false;
    let pasted = pasted(reading);
    let mut found = Vec::new();
    for (index, unit) in reading.units.iter().enumerate() {
        if unit.span.end > MOST_BYTES || found.len() >= MOST_SENTENCES {
            break;
        }
        let is_pasted = pasted.iter().any(|part| part.contains(&unit.span.start));
        let text = said(reading, unit);
        if is_pasted {
            continue;
        }
        if text.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if matches!(reading.blocks[unit.block as usize].kind, BlockKind::Text)
            && (!is_code && (is_sentence(text) || is_row(text)) || is_comment(text))
        {
            found.push(index as u32);
        }
    }
    found
}

/// Whether a line is a row of a table with words in it.
fn is_row(text: &str) -> bool {
    let row = text.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
    row.is_some_and(|row| row.contains('|') && is_sentence(row.replace('|', " ").trim_start()))
}

/// Whether a line of code is a comment with a sentence in it.
fn is_comment(text: &str) -> bool {
    let signs = ['/', '#', '*', '-', ';', '%'];
    let text = text.trim_start();
    let said = text.trim_start_matches(signs);
    said.len() < text.len() && said.starts_with(' ') && is_sentence(said.trim_start())
}

/// Whether a line is written for a reader: nearly all of it letters and blanks, in several words.
fn is_sentence(text: &str) -> bool {
    let text = text.trim_end();
    // Code and logs are indented, quoted or tagged.
    if text.starts_with(['\t', '<', '>', '|', '+', '$', '{', '[', '/', '@'])
        || text.starts_with("    ")
    {
        return false;
    }
    let (mut letters, mut all, mut is_spaceless) = (0, 0, false);
    for letter in text.chars() {
        letters += usize::from(letter.is_alphabetic());
        all += usize::from(!letter.is_whitespace());
        // Chinese and Japanese have no blanks between words, and four letters say what eight do.
        is_spaceless |= matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}');
        if letters > MOST_LETTERS {
            return false;
        }
    }
    let words = text.split_whitespace().count();
    let (least_words, least_letters) =
        if is_spaceless { (1, LEAST_LETTERS / 2) } else { (3, LEAST_LETTERS) };
    words >= least_words
        && letters >= least_letters
        && letters * 100 >= all * LETTERS_PERCENT
        && !text.ends_with(['{', ';', '}', '='])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_told_from_code_and_logs() {
        for (text, expected) in [
            ("Please keep the functions short.", true),
            ("Nein, ich meinte die zweite Schleuse, nicht die erste.", true),
            ("- I prefer tabs over spaces", true),
            ("请不要修改测试文件。", true),
            ("テストは変更しないでください", true),
            ("Используй только стандартную библиотеку, пожалуйста", true),
            ("let gate = open(a, b);", false),
            ("    return gate", false),
            ("2026-03-01T10:15:31 INFO worker-3 handled request", false),
            ("{\"gate\": \"open\", \"level\": 7}", false),
            ("$ cargo build --release", false),
            ("<path>src/gate.rs</path>", false),
            ("if (gate) {", false),
            ("ok", false),
            ("", false),
        ] {
            assert_eq!(is_sentence(text), expected, "{text}");
        }
        for (line, expected) in [
            ("| Schleuse | nie vor Sonnenaufgang öffnen |", true),
            ("|---|---|", false),
            ("| 12 | 0x1f | 44 |", false),
            ("    // 水位が下がるまで門を開けないこと", true),
            ("  # laisse la porte de secours fermée", true),
            ("-- never drop the table of the keepers", true),
            ("#include <gate.h>", false),
            ("/// gate.open(7);", false),
        ] {
            assert_eq!(is_row(line) || is_comment(line), expected, "{line}");
        }
        let pasted = "It fails here:\n```\nthe gate is open now\n```\nPlease mend the gate only.";
        let reading = Reading::of_text(Role::User, pasted);
        let found: Vec<&str> = sentences(&reading)
            .iter()
            .map(|unit| said(&reading, &reading.units[*unit as usize]))
            .collect();
        assert_eq!(found, ["It fails here:", "Please mend the gate only."]);
    }
}
