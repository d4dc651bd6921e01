//! Search terms of a text in any language: words, word prefixes, and pairs of characters in scripts
//! without spaces. Pure.

use xxhash_rust::xxh3::xxh3_64;

/// Maximum length of a word; longer runs are no words of a language.
const WORD_BYTES: usize = 64;
/// Seed byte for the hash of a prefix, so that it differs from any word's hash.
const BEGINNING: u8 = b'^';

/// Word of a text, or its equivalent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    /// Hash of the spelling.
    pub key: u64,
    pub kind: TermKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TermKind {
    /// A word, or two characters of a script without spaces.
    Word,
    /// Prefix of a word: inflected and compound forms share it.
    Beginning,
}

/// Passes each term of `text` to `take`, in order, in lower case.
pub(crate) fn terms(text: &str, mut take: impl FnMut(Term)) {
    let mut word = String::new();
    // Previous character, if its script has no spaces.
    let mut before: Option<char> = None;
    for letter in text.chars() {
        let letter = narrow(letter);
        if has_no_spaces(letter) {
            end_word(&mut word, &mut take);
            if let Some(before) = before {
                let mut pair = [0; 8];
                let first = before.encode_utf8(&mut pair).len();
                let second = letter.encode_utf8(&mut pair[first..]).len();
                let key = xxh3_64(&pair[..first + second]);
                take(Term { key, kind: TermKind::Word });
            }
            before = Some(letter);
            continue;
        }
        before = None;
        match letter.is_alphanumeric() {
            true => word.extend(letter.to_lowercase()),
            false => end_word(&mut word, &mut take),
        }
    }
    end_word(&mut word, &mut take);
}

/// Emits the word, if it is long enough, and clears it.
fn end_word(word: &mut String, take: &mut impl FnMut(Term)) {
    let letters = word.chars().count();
    if letters > 1 && word.len() <= WORD_BYTES {
        take(Term { key: xxh3_64(word.as_bytes()), kind: TermKind::Word });
        let beginning = match letters {
            0..4 => None,
            4..7 => Some(4),
            _ => Some(5),
        };
        if let Some(letters) = beginning {
            let end = word.char_indices().nth(letters).map_or(word.len(), |(at, _)| at);
            let mut own = [BEGINNING; 1 + 4 * 5];
            own[1..=end].copy_from_slice(&word.as_bytes()[..end]);
            take(Term { key: xxh3_64(&own[..=end]), kind: TermKind::Beginning });
        }
    }
    word.clear();
}

/// Converts full-width Latin letters and digits to plain ones.
fn narrow(letter: char) -> char {
    match letter {
        '\u{ff01}'..='\u{ff5e}' => {
            char::from_u32(letter as u32 - 0xfee0).expect("that is printable ASCII")
        }
        letter => letter,
    }
}

/// Returns whether pairs of characters are the search terms in a letter's script: it puts no spaces
/// between words, or its words are too long to match. These are Thai, Lao, Tibetan, Burmese, Khmer,
/// kana, Han, Hangul.
fn has_no_spaces(letter: char) -> bool {
    matches!(letter,
        '\u{0e01}'..='\u{0eff}'
        | '\u{0f00}'..='\u{0fff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{30fa}'
        | '\u{30fc}'..='\u{30ff}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ff9f}'
        | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keys(text: &str) -> HashSet<u64> {
        let mut keys = HashSet::new();
        terms(text, |term| {
            keys.insert(term.key);
        });
        keys
    }

    #[test]
    fn words_that_mean_the_same_have_terms_in_common() {
        for (left, right, is_alike) in [
            ("The ROOMS", "a room", true),
            ("Reise", "reisen", true),
            ("Zahnarzttermin", "zum Zahnarzt", true),
            ("Größe", "GRÖSSE", false),
            ("встречи", "Встречу", true),
            ("ＡＢＣ１２", "abc12", true),
            ("牙医在哪里", "我的牙医搬家了", true),
            ("歯医者はどこ", "新しい歯医者に行く", true),
            ("서울에서", "서울", true),
            ("a b c", "b", false),
            ("room", "broom", false),
            ("", "word", false),
            ("!? — …", "— …", false),
        ] {
            let shared = keys(left).intersection(&keys(right)).count();
            assert_eq!(shared > 0, is_alike, "{left} {right}");
        }
    }

    #[test]
    fn pairs_do_not_reach_over_other_signs() {
        assert_eq!(keys("牙。医"), keys(""));
        assert_eq!(keys("牙医 x").len(), 1);
        // A word and its prefix.
        assert_eq!(keys("dentist").len(), 2);
        assert_eq!(keys("dog").len(), 1);
        assert_eq!(keys(&"x".repeat(WORD_BYTES + 1)).len(), 0);
        assert_eq!(keys("日本語").len(), 2);
    }
}
