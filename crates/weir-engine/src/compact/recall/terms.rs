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
    pub opening: Opening,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TermKind {
    /// A word, or two characters of a script without spaces.
    Word,
    /// Prefix of a word: inflected and compound forms share it.
    Beginning,
}

/// First four bytes of a term, fewer if it is shorter. A word and its prefix have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opening(u32);

impl Opening {
    /// Returns the opening of a term in lower case.
    fn of(bytes: &[u8]) -> Self {
        let mut first = [0; 4];
        let length = bytes.len().min(4);
        first[..length].copy_from_slice(&bytes[..length]);
        Self(u32::from_le_bytes(first))
    }

    /// Returns the opening of a word of ASCII letters and digits, as if in lower case.
    fn of_ascii(bytes: &[u8]) -> Self {
        // Digits already have the bit that distinguishes small letters from capitals.
        let small = u32::from_le_bytes([b' '; 4]);
        match bytes.first_chunk() {
            Some(first) => Self(u32::from_le_bytes(*first) | small),
            None => Self(Self::of(bytes).0 | small >> (8 * (4 - bytes.len()))),
        }
    }
}

/// Set of openings, as a bitmap. `may_contain` is true for every opening inserted, and rarely for another, so
/// most words of a text are not hashed.
#[derive(Clone)]
pub(crate) struct Openings([u64; 64]);

impl Openings {
    /// Creates an empty set.
    pub(crate) fn new() -> Self {
        Self([0; 64])
    }

    pub(crate) fn insert(&mut self, opening: Opening) {
        let (place, bit) = Self::place(opening);
        self.0[place] |= bit;
    }

    pub(crate) fn may_contain(&self, opening: Opening) -> bool {
        let (place, bit) = Self::place(opening);
        self.0[place] & bit != 0
    }

    /// Returns the place of an opening, by twelve bits of its product with the golden ratio.
    fn place(Opening(opening): Opening) -> (usize, u64) {
        let hash = opening.wrapping_mul(0x9e37_79b9) >> 20;
        ((hash >> 6) as usize, 1 << (hash & 63))
    }
}

/// ASCII letters and digits.
const IN_WORD: [bool; 256] = {
    let mut all = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        all[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    all
};

/// Passes each term of `text` whose opening is wanted to `take`, in order, in lower case. Returns the number
/// of words, wanted or not.
pub(crate) fn terms(
    text: &str,
    is_wanted: impl Fn(Opening) -> bool,
    mut take: impl FnMut(Term),
) -> u32 {
    let bytes = text.as_bytes();
    let mut words = 0;
    let mut word = QueryWord::default();
    // Previous character, if its script has no spaces.
    let mut before: Option<char> = None;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        // Nearly all text is ASCII, and nearly all of its words are so from end to end.
        if byte.is_ascii() {
            before = None;
            let run = bytes[at..].iter().take_while(|byte| IN_WORD[usize::from(**byte)]).count();
            let own = &bytes[at..at + run];
            at += run.max(1);
            if run == 0 {
                words += u32::from(word.end(&is_wanted, &mut take));
            } else if word.length > 0 || bytes.get(at).is_some_and(|next| !next.is_ascii()) {
                own.iter().for_each(|byte| word.push_byte(byte.to_ascii_lowercase()));
            } else if (2..=WORD_BYTES).contains(&run) {
                words += 1;
                let opening = Opening::of_ascii(own);
                if is_wanted(opening) {
                    word.take_ascii(own, opening, &mut take);
                }
            }
            continue;
        }
        let Some(letter) = text[at..].chars().next() else { break };
        at += letter.len_utf8();
        let letter = narrow(letter);
        if has_no_spaces(letter) {
            words += u32::from(word.end(&is_wanted, &mut take));
            if let Some(before) = before {
                let mut pair = [0; 8];
                let first = before.encode_utf8(&mut pair).len();
                let second = letter.encode_utf8(&mut pair[first..]).len();
                let pair = &pair[..first + second];
                let opening = Opening::of(pair);
                words += 1;
                if is_wanted(opening) {
                    take(Term { key: xxh3_64(pair), kind: TermKind::Word, opening });
                }
            }
            before = Some(letter);
            continue;
        }
        before = None;
        match letter.is_alphanumeric() {
            true => letter.to_lowercase().for_each(|letter| word.push(letter)),
            false => words += u32::from(word.end(&is_wanted, &mut take)),
        }
    }
    words + u32::from(word.end(&is_wanted, &mut take))
}

/// Word that is read, in lower case.
struct QueryWord {
    /// The seed of a prefix, then as much of the word as counts.
    bytes: [u8; 1 + WORD_BYTES],
    /// Length of the whole word, which may be longer.
    length: usize,
    letters: usize,
}

impl Default for QueryWord {
    fn default() -> Self {
        Self { bytes: [BEGINNING; 1 + WORD_BYTES], length: 0, letters: 0 }
    }
}

impl QueryWord {
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

    /// Emits the terms of the word if it is wanted, and clears it. Returns whether it is one: it has two
    /// letters, and is not too long.
    #[inline]
    fn end(&mut self, is_wanted: impl Fn(Opening) -> bool, take: &mut impl FnMut(Term)) -> bool {
        let (length, letters) = (self.length, self.letters);
        (self.length, self.letters) = (0, 0);
        if letters < 2 || length > WORD_BYTES {
            return false;
        }
        let opening = Opening::of(&self.bytes[1..=length]);
        if is_wanted(opening) {
            self.emit(length, letters, opening, take);
        }
        true
    }

    /// Emits the terms of a whole word of ASCII letters and digits, while no other word is read.
    #[inline]
    fn take_ascii(&mut self, word: &[u8], opening: Opening, take: &mut impl FnMut(Term)) {
        for (own, byte) in self.bytes[1..].iter_mut().zip(word) {
            *own = byte.to_ascii_lowercase();
        }
        self.emit(word.len(), word.len(), opening, take);
    }

    /// Emits the terms of a word of so many bytes and letters.
    #[inline]
    fn emit(&self, length: usize, letters: usize, opening: Opening, take: &mut impl FnMut(Term)) {
        let own = &self.bytes[1..=length];
        take(Term { key: xxh3_64(own), kind: TermKind::Word, opening });
        let beginning = match letters {
            0..4 => return,
            4..7 => 4,
            _ => 5,
        };
        let key = xxh3_64(&self.bytes[..=prefix_bytes(own, beginning)]);
        take(Term { key, kind: TermKind::Beginning, opening });
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
        terms(
            text,
            |_| true,
            |term| {
                keys.insert(term.key);
            },
        );
        keys
    }

    #[test]
    fn wanted_terms_are_those_of_all_with_their_openings() {
        let text = "The rooms in Größe 42: a_b, straße x2 ÜBERMUT überall; 牙医在哪里 牙医 abc12ö ＡＢＣ１２ \
                    don't naïve NAIVE ab\u{0301} é Zahnarzttermin 4711 4711b aé 日本語abc";
        let long = ["a", "b", "ö"].map(|first| first.repeat(WORD_BYTES / first.len()));
        let text = &format!("{text} {0} {0}x {1}ö {2} {2}x", long[0], &long[1][2..], long[2]);
        let mut all = Vec::new();
        let words = terms(text, |_| true, |term| all.push(term));
        assert_eq!(all.iter().filter(|term| term.kind == TermKind::Word).count(), words as usize);
        for wanted in &all {
            let mut openings = Openings::new();
            openings.insert(wanted.opening);
            let mut found = Vec::new();
            let count = terms(text, |own| openings.may_contain(own), |term| found.push(term));
            let expected: Vec<Term> =
                all.iter().copied().filter(|own| openings.may_contain(own.opening)).collect();
            assert_eq!((count, found), (words, expected), "{wanted:?}");
        }
        let mut none = Vec::new();
        assert_eq!(terms(text, |_| false, |term| none.push(term)), words);
        assert_eq!(none, []);
    }

    #[test]
    fn a_set_of_openings_contains_few_others() {
        let mut openings = Openings::new();
        let opening = |number: u32| Opening::of(format!("w{number}").as_bytes());
        (0..128).for_each(|number| openings.insert(opening(number)));
        assert!((0..128).all(|number| openings.may_contain(opening(number))));
        let others = (200..999).filter(|number| openings.may_contain(opening(*number))).count();
        assert!(others < 100, "{others} of 799");
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
