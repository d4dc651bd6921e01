//! Form of a system message: its text but for numbers and ids. Agents repeat reminders, notices and lists of
//! tools that differ in them alone, and have a clock or a counter in their system text. Pure.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use crate::tokens::Encoding;
use crate::wire::message::Part;
use crate::wire::{Message, Role, json};

/// Minimum length of a word without digits that is an id if it changes from lower to upper case repeatedly.
const MIXED_BYTES: usize = 12;
/// Minimum length of a value behind `=` that is a hash although its hexadecimal digits are letters by chance.
const HASH_BYTES: usize = 4;
/// Digits that tokenizers take together.
const GROUP_DIGITS: usize = 3;

/// Form of a message. All zero if it is no system message.
#[derive(Default)]
pub(super) struct Form {
    /// Key that equal forms share; 0 for a compaction, which stands for all before it.
    pub key: u64,
    /// Tokens of its texts if each number is one of zeros, and each hash takes as many tokens as bytes; 0 if
    /// there is none.
    pub text_tokens: u64,
    pub declares_tools: bool,
}

impl Form {
    pub(super) fn of(message: &Message<'_>, encoding: Encoding) -> Self {
        let is_sealed = |part: &Part<'_>| matches!(part, Part::Sealed(_));
        if message.role != Role::System || message.others.iter().any(is_sealed) {
            return Self::default();
        }
        let mut hasher = Xxh3::new();
        let texts = message.texts();
        let texts: Vec<_> = texts.iter().map(|raw| json::string(raw).unwrap_or_default()).collect();
        let mut has_ids = false;
        for text in &texts {
            has_ids |= hash(&mut hasher, text);
        }
        let mut declares_tools = false;
        for part in &message.others {
            match part {
                Part::Tools(raw) => {
                    declares_tools = true;
                    hash(&mut hasher, raw);
                }
                Part::Other(raw) => drop(hash(&mut hasher, raw)),
                _ => drop(hash(&mut hasher, message.raw)),
            }
        }
        let tokens = |text: &str| form_tokens(text, encoding);
        let text_tokens = if has_ids { texts.iter().map(|text| tokens(text)).sum() } else { 0 };
        Self { key: hasher.digest().max(1), text_tokens, declares_tools }
    }
}

/// Adds the form of a text to a hash. Returns whether it has numbers or ids.
fn hash(hasher: &mut Xxh3, text: &str) -> bool {
    let mut from = 0;
    for id in ids(text) {
        hasher.update(&text.as_bytes()[from..id.start]);
        hasher.update(&[0]);
        from = id.end;
    }
    hasher.update(&text.as_bytes()[from..]);
    hasher.update(&[1]);
    from > 0
}

/// Counts a text by its form.
fn form_tokens(text: &str, encoding: Encoding) -> u64 {
    let (mut rest, mut from, mut hash_tokens) = (String::with_capacity(text.len()), 0, 0);
    for id in ids(text) {
        rest.push_str(&text[from..id.start]);
        from = id.end;
        let word = &text[id];
        if is_hash(word) {
            hash_tokens += word.len().next_multiple_of(HASH_BYTES);
        } else {
            push_zeros(&mut rest, word);
        }
    }
    rest.push_str(&text[from..]);
    encoding.count(&rest) + hash_tokens as u64
}

/// Returns whether a word changes in more than its numbers: one piece has letters and digits, or is a value of
/// hexadecimal digits.
fn is_hash(word: &str) -> bool {
    let mut pieces = word.split(|letter: char| !letter.is_ascii_alphanumeric());
    let is_mixed = |piece: &str| {
        let digits = piece.bytes().filter(u8::is_ascii_digit).count();
        piece.len() >= HASH_BYTES && digits > 0 && digits < piece.len()
    };
    is_value_of_hash(word.as_bytes()) || pieces.any(is_mixed)
}

/// Adds a word with zeros for its digits, in whole groups, so that a counter that grows rarely counts more.
fn push_zeros(rest: &mut String, word: &str) {
    for run in word.as_bytes().chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit()) {
        match run[0].is_ascii_digit() {
            true => rest.extend(std::iter::repeat_n('0', run.len().next_multiple_of(GROUP_DIGITS))),
            false => rest.extend(run.iter().map(|byte| char::from(*byte))),
        }
    }
}

/// Returns the spans of the words in a text that are numbers or ids.
pub(super) fn ids(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + bytes[at..].iter().position(|byte| is_word(*byte))?;
            let length = bytes[start..].iter().position(|byte| !is_word(*byte));
            at = length.map_or(bytes.len(), |length| start + length);
            if is_id(&bytes[start..at]) {
                return Some(start..at);
            }
        }
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-+/.,:=".contains(&byte)
}

fn is_id(word: &[u8]) -> bool {
    let is_turn = |pair: &[u8]| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
    word.iter().any(u8::is_ascii_digit)
        || is_value_of_hash(word)
        || (word.len() >= MIXED_BYTES && word.windows(2).filter(|pair| is_turn(pair)).count() > 1)
}

fn is_value_of_hash(word: &[u8]) -> bool {
    let value = word.iter().rposition(|byte| *byte == b'=').map(|at| &word[at + 1..]);
    value.is_some_and(|value| value.len() >= HASH_BYTES && value.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_with_each_request_has_one_form() {
        let of = |text: &str| {
            let mut hasher = Xxh3::new();
            assert!(hash(&mut hasher, text), "{text}");
            (hasher.digest(), form_tokens(text, Encoding::O200kBase))
        };
        let head = |value: &str| format!("billing: version=2.1.9; cch={value};\nYou are careful.");
        for value in ["adaed", "56814", "fd998"] {
            assert_eq!(of(&head(value)), of(&head("56ab4")), "{value}");
        }
        assert_eq!(of("It is 09:05, request 7."), of("It is 17:42, request 120."));
        assert!(ids("set mode=fast and level=add").next().is_none(), "words are no ids");
    }
}
