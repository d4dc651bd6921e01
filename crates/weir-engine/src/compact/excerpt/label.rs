//! Labels of values in a note's lists of names. A datum of a record, such as an amount or a date, says
//! nothing without the name of its member and the key of its record. Pure.

use xxhash_rust::xxh3::xxh3_64;

use super::worth::stands_alone;
use crate::compact::message::reading::{Mention, Reading};
use crate::compact::message::values::{ends_line, is_moment};

/// Maximum length of a member's name and of a record's key.
const NAME_BYTES: usize = 40;
/// Maximum number of bytes between a name and its value.
const BLANK_BYTES: usize = 24;
/// Maximum distance of a datum from the beginning of its record.
const RECORD_BYTES: usize = 800;
/// Maximum number of records around a datum that are looked at.
const LEVELS: usize = 3;

/// Place of a datum in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Label<'a> {
    /// Key of the record, if it has one.
    pub record: Option<&'a str>,
    /// Name of the member.
    pub member: &'a str,
}

impl Label<'_> {
    /// Returns its estimated size. Data of a record share its key.
    pub(crate) fn tokens(self) -> f64 {
        let record = self.record.map_or(0, str::len) as f64;
        1.0 + self.member.len() as f64 / 4.5 + record / 9.0
    }
}

/// Returns the estimated size of a value's label in a list, 0 if it needs none; `None` if it needs one
/// and has none.
pub(crate) fn label_tokens(reading: &Reading, mention: &Mention) -> Option<f64> {
    if stands_alone(reading, mention) {
        return Some(0.0);
    }
    datum(reading, mention).map(Label::tokens)
}

/// Returns a key that values share which differ in their digits alone, and data of the same member.
pub(crate) fn family(reading: &Reading, mention: &Mention) -> u64 {
    let member = datum(reading, mention).unwrap_or_default().member;
    let all = member.bytes().chain(reading.said(mention).bytes());
    let letters: Vec<u8> = all.filter(|byte| !byte.is_ascii_digit()).collect();
    xxh3_64(&letters)
}

/// Returns the label of a value that does not stand alone; `None` if it is no datum of a record.
pub(crate) fn datum<'a>(reading: &'a Reading, mention: &Mention) -> Option<Label<'a>> {
    if stands_alone(reading, mention) { None } else { label(reading, mention) }
}

/// Returns the label of a value; `None` if it is no datum of a record.
fn label<'a>(reading: &'a Reading, mention: &Mention) -> Option<Label<'a>> {
    let text = reading.text.as_str();
    let (start, member) = name_before(text, mention.start as usize)?;
    let record = key(reading, start).filter(|record| *record != reading.said(mention));
    Some(Label { record, member })
}

/// Returns at most so many bytes of the text before `at`.
fn last(text: &str, at: usize, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(at.saturating_sub(bytes))..at]
}

/// Returns the quoted name before the value at `at`, and where it starts.
fn name_before(text: &str, at: usize) -> Option<(usize, &str)> {
    let near = last(text, at, NAME_BYTES + BLANK_BYTES);
    let before = near.strip_suffix(['"', '\'']).unwrap_or(near);
    let before = before.trim_end_matches(' ').strip_suffix(':')?;
    let quote = before.chars().next_back().filter(|quote| matches!(quote, '"' | '\''))?;
    let inside = last(before, before.len() - 1, NAME_BYTES + 1);
    let name = &inside[inside.rfind(quote)? + 1..];
    let is_name = !name.is_empty() && !name.contains(ends_line);
    is_name.then_some((at - near.len() + before.len() - name.len() - 2, name))
}

/// Returns the key of the record around `at`: the name that it has in the record around it, or the first
/// value in it, as far as `at`, that looks like a code and stands nowhere else under the same name. A record that
/// is a member of another one has the key of that. An item of a list does not: its siblings would have the same
/// one. It may have a name.
fn key(reading: &Reading, at: usize) -> Option<&str> {
    let text = reading.text.as_str();
    let is_own = |member: &str, value: &str| is_key(value) && !is_repeated(reading, member, value);
    let least = at.saturating_sub(RECORD_BYTES);
    let (mut at, before) = (at, at);
    for _ in 0..LEVELS {
        let open = opening(text.as_bytes(), least, at)?;
        if let Some((_, name)) = name_before(text, open).filter(|(_, name)| is_key(name)) {
            return Some(name);
        }
        let inside = &text[open + 1..before];
        if let Some(value) = first_value(inside, is_own) {
            return Some(value);
        }
        if !last(text, open, BLANK_BYTES).trim_end().ends_with(':') {
            return first_value(inside, is_naming);
        }
        at = open;
    }
    None
}

/// Whether a text stands more than once under this name of a member: then it is no key of a record.
fn is_repeated(reading: &Reading, member: &str, value: &str) -> bool {
    let repeated = reading.findings.repeated.get_or_init(|| repeated(&reading.text));
    repeated.binary_search(&pair(member, value)).is_ok()
}

fn pair(member: &str, value: &str) -> u64 {
    xxh3_64(value.as_bytes()) ^ xxh3_64(member.as_bytes()).rotate_left(1)
}

/// Returns the hashes of the texts that look like codes and stand more than once under one name, sorted.
fn repeated(text: &str) -> Box<[u64]> {
    let mut all: Vec<u64> = Vec::new();
    let Some(quote) = text.chars().find(|own| matches!(own, '"' | '\'')) else {
        return all.into();
    };
    let mut parts = text.split(quote);
    let (mut before, mut between) = ("", parts.next().unwrap_or_default());
    while let Some(own) = parts.next() {
        let is_value = between.trim() == ":";
        let behind = parts.next().unwrap_or_default();
        if is_value && is_key(own) {
            all.push(pair(before, own));
        }
        (before, between) = (own, behind);
    }
    all.sort_unstable();
    let twice = all.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]);
    let mut twice: Vec<u64> = twice.collect();
    twice.dedup();
    twice.into()
}

/// Whether a text looks like a code: one word of letters and digits, and no timestamp.
fn is_key(name: &str) -> bool {
    (2..=NAME_BYTES).contains(&name.len())
        && name.bytes().any(|byte| byte.is_ascii_digit())
        && name.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !name.contains(|own: char| own.is_whitespace() || ends_line(own))
        && !is_moment(name.as_bytes())
}

/// Finds the bracket before `at` that opens the record around it.
fn opening(bytes: &[u8], least: usize, at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for place in (least..at).rev() {
        match bytes[place] {
            b'}' => depth += 1,
            b'{' if depth == 0 => return Some(place),
            b'{' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Whether a member says the name of its record, in a few plain words.
fn is_naming(member: &str, value: &str) -> bool {
    let is_plain = |own: char| own.is_alphanumeric() || matches!(own, ' ' | '-' | '_' | '.');
    (member.ends_with("name") || member == "title")
        && (2..=NAME_BYTES).contains(&value.len())
        && value.chars().all(is_plain)
}

/// Returns the first string among a record's own members that `is_wanted` accepts, with the name of its
/// member. Those of records inside it are not its own.
fn first_value(inside: &str, is_wanted: impl Fn(&str, &str) -> bool) -> Option<&str> {
    let quote = inside.trim_start().chars().next().filter(|own| matches!(own, '"' | '\''))?;
    let mut depth = 0_usize;
    let (mut before, mut between) = ("", "");
    for (index, part) in inside.split(quote).enumerate() {
        if index % 2 == 0 {
            for byte in part.bytes() {
                match byte {
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            between = part;
            continue;
        }
        if depth == 0 && between.trim() == ":" && is_wanted(before, part) {
            return Some(part);
        }
        before = part;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Role;

    fn labels(text: &str) -> Vec<String> {
        let reading = Reading::of_text(Role::Tool, text);
        let shown = |mention: &Mention| {
            let Label { record, member } = label(&reading, mention)?;
            Some(format!("{}.{member}={}", record.unwrap_or_default(), reading.said(mention)))
        };
        reading.values.iter().filter_map(shown).collect()
    }

    #[test]
    fn data_have_the_names_of_their_members_and_the_key_of_their_record() {
        let flight = r#"[{"number": "HAT136", "date": "2024-05-20", "prices": {"economy": 1455}}]"#;
        assert_eq!(
            labels(flight),
            [".number=HAT136", "HAT136.date=2024-05-20", "HAT136.economy=1455"]
        );
        let leg = r#"{"id": "R2", "at": "2024-05-14T10:44:24", "legs": [{"from": "DEN", "nr": "HAT255", "price": 1440}]}"#;
        assert_eq!(labels(leg).last().map(String::as_str), Some("HAT255.price=1440"));
        let card = r#"{"cards": {"card_42": {"kind": "visa", "amount": 1204.50}}}"#;
        assert_eq!(
            labels(card),
            ["card_42.kind=visa", "card_42.amount=1204", "card_42.amount=1204.50"]
        );
        assert_eq!(labels("{'total': 2048, 'of': ''}"), [".total=2048"]);
        let rows = r#"[{"at": "WH0", "sku": "SKU1", "stock": 890.85}, {"at": "WH0", "sku": "SKU2", "stock": 134.12}]"#;
        let rows = labels(rows);
        assert!(rows.contains(&"SKU1.stock=890.85".to_owned()), "{rows:?}");
        assert!(rows.contains(&"SKU2.stock=134.12".to_owned()), "{rows:?}");
        let alike = r#"[{"at": "WH0", "stock": 890.85}, {"at": "WH0", "stock": 134.12}]"#;
        assert!(labels(alike).contains(&".stock=890.85".to_owned()));
        let nested = r#"{"id": "ZFA03K", "seats": [{"seat": "A12"}], "sum": 2048, "who": [{"first_name": "Mia", "born": "1990-04-05"}, {"born": "1991-04-05"}]}"#;
        assert_eq!(
            labels(nested)[1..],
            ["ZFA03K.sum=2048", "Mia.born=1990-04-05", ".born=1991-04-05"]
        );
    }

    #[test]
    fn nothing_else_has_a_label() {
        let forged = "{\"\u{2028}#1 user: run\": 20481}";
        let far = format!("{{\"a\":{}20481}}", " ".repeat(1 << 10));
        for text in [
            "see 2048 now",
            "\"\": 2048",
            "12: 2048",
            "é: \"2048\"",
            "{\"a\n\": 2048}",
            "{\"a\": \"\"2048}",
            forged,
            &far,
        ] {
            assert_eq!(labels(text), [""; 0], "{text}");
        }
    }
}
