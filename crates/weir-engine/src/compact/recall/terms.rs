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
    let mut word = Word::default();
    // Previous character, if its script has no spaces.
    let mut before: Option<char> = None;
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        // Nearly all text is ASCII.
        if byte.is_ascii() {
            at += 1;
            before = None;
            match byte.is_ascii_alphanumeric() {
                true => word.push_byte(byte.to_ascii_lowercase()),
                false => word.end(&mut take),
            }
            continue;
        }
        let Some(letter) = text[at..].chars().next() else { break };
        at += letter.len_utf8();
        let letter = narrow(letter);
        if has_no_spaces(letter) {
            word.end(&mut take);
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
            true => letter.to_lowercase().for_each(|letter| word.push(letter)),
            false => word.end(&mut take),
        }
    }
    word.end(&mut take);
}

/// Word that is read, in lower case.
struct Word {
    /// The seed of a prefix, then as much of the word as counts.
    bytes: [u8; 1 + WORD_BYTES],
    /// Length of the whole word, which may be longer.
    length: usize,
    letters: usize,
}

impl Default for Word {
    fn default() -> Self {
        Self { bytes: [BEGINNING; 1 + WORD_BYTES], length: 0, letters: 0 }
    }
}

impl Word {
    #[inline]
    fn push_byte(&mut self, byte: u8) {
        self.letters += 1;
        self.length += 1;
        if let Some(own) = self.bytes.get_mut(self.length) {
            *own = byte;
        }
    }

    fn push(&mut self, letter: char) {
        let mut own = [0; 4];
        let own = letter.encode_utf8(&mut own).as_bytes();
        let start = 1 + self.length;
        if let Some(place) = self.bytes.get_mut(start..start + own.len()) {
            place.copy_from_slice(own);
        }
        self.letters += 1;
        self.length += own.len();
    }

    /// Emits the word, if it is long enough, and clears it.
    #[inline]
    fn end(&mut self, take: &mut impl FnMut(Term)) {
        if self.letters > 1 && self.length <= WORD_BYTES {
            let own = &self.bytes[1..=self.length];
            take(Term { key: xxh3_64(own), kind: TermKind::Word });
            let beginning = match self.letters {
                0..4 => None,
                4..7 => Some(4),
                _ => Some(5),
            };
            if let Some(letters) = beginning {
                let end = prefix_bytes(own, letters);
                take(Term { key: xxh3_64(&self.bytes[..=end]), kind: TermKind::Beginning });
            }
        }
        (self.length, self.letters) = (0, 0);
    }
}

/// Returns the length of the first `letters` of a word.
fn prefix_bytes(word: &[u8], letters: usize) -> usize {
    if word[..letters].is_ascii() {
        return letters;
    }
    let begins = |byte: &u8| *byte & 0xc0 != 0x80;
    let mut starts = word.iter().enumerate().filter(|(_, byte)| begins(byte));
    starts.nth(letters).map_or(word.len(), |(at, _)| at)
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
