//! Splitting of a text into separately encoded pieces, like the patterns of `o200k_base` and
//! `cl100k_base`: the code follows their order of alternatives and their backtracking.
//!
//! Character classes come from `regex-syntax`, whose tables are those of the regular expressions in
//! `tiktoken-rs`.

use std::collections::HashMap;

use regex_syntax::hir::{Class, HirKind};

use super::super::letters::behind_small;

/// Splitting pattern.
#[derive(Debug, Clone, Copy)]
pub enum Pattern {
    O200k,
    Cl100k,
}

// Character classes. Symbols are in none of them; marks count as letters for `o200k_base` alone.
/// Capital, or letter in title case.
const UPPER: u8 = 1;
const LOWER: u8 = 1 << 1;
/// Letter without case.
const CASELESS: u8 = 1 << 2;
const MARK: u8 = 1 << 3;
const NUMBER: u8 = 1 << 4;
const BLANK: u8 = 1 << 5;
/// One of the two line ends that the patterns name. In addition to [`BLANK`].
const LINE_END: u8 = 1 << 6;
/// Behind the last character.
const END: u8 = 1 << 7;

const LETTER: u8 = UPPER | LOWER | CASELESS;
/// Classes at the start and at the end of words in `o200k_base`.
const HEAD: u8 = UPPER | CASELESS | MARK;
const TAIL: u8 = LOWER | CASELESS | MARK;

/// Number of characters in a block, which share an entry of [`Classes::blocks`].
const BLOCK: usize = 128;

/// Class of each character.
pub struct Classes {
    ascii: [u8; 128],
    /// Index in `classes` of each block of characters.
    blocks: Vec<u16>,
    classes: Vec<[u8; BLOCK]>,
}

impl Classes {
    pub fn new() -> Self {
        let mut all = vec![0_u8; 0x11_0000];
        for (class, bits) in [
            (r"[\p{Lu}\p{Lt}]", UPPER),
            (r"\p{Ll}", LOWER),
            (r"[\p{Lm}\p{Lo}]", CASELESS),
            (r"\p{M}", MARK),
            (r"\p{N}", NUMBER),
            (r"\s", BLANK),
            (r"[\r\n]", LINE_END),
        ] {
            let parsed = regex_syntax::parse(class).map(|hir| hir.into_kind());
            let Ok(HirKind::Class(Class::Unicode(class))) = parsed else { continue };
            for range in class.ranges() {
                for own in &mut all[range.start() as usize..=range.end() as usize] {
                    *own |= bits;
                }
            }
        }
        let (mut blocks, mut classes, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for block in all.as_chunks::<BLOCK>().0 {
            let index = *known.entry(block).or_insert_with(|| {
                classes.push(*block);
                classes.len() as u16 - 1
            });
            blocks.push(index);
        }
        let ascii = classes[usize::from(blocks[0])];
        Self { ascii, blocks, classes }
    }

    /// Returns the class of the character at `at`, and its length in bytes. Always inlined: most
    /// pieces take a few of these look-ups and little else.
    #[inline(always)]
    fn at(&self, text: &str, at: usize) -> (u8, usize) {
        match text.as_bytes().get(at) {
            None => (END, 0),
            Some(byte) if byte.is_ascii() => (self.ascii[usize::from(*byte)], 1),
            Some(_) => self.wide(text, at),
        }
    }

    fn wide(&self, text: &str, at: usize) -> (u8, usize) {
        let Some(character) = text.get(at..).and_then(|rest| rest.chars().next()) else {
            return (END, 0);
        };
        let code = character as usize;
        let block = &self.classes[usize::from(self.blocks[code / BLOCK])];
        (block[code % BLOCK], character.len_utf8())
    }

    /// Returns the end of the row of characters in one of `kinds`.
    #[inline]
    fn skip(&self, text: &str, mut at: usize, kinds: u8) -> usize {
        loop {
            let (kind, bytes) = self.at(text, at);
            if kind & kinds == 0 {
                return at;
            }
            at += bytes;
        }
    }

    /// Returns the end of the `o200k_base` piece that begins at `start`, which is before the text's
    /// end.
    #[inline]
    pub fn o200k(&self, text: &str, start: usize) -> usize {
        if let Some(end) = behind_plain_word(text.as_bytes(), start) {
            return end;
        }
        let (kind, bytes) = self.at(text, start);
        if kind & LETTER != 0 {
            let word = self.word(text, start);
            return behind_contraction(text, word.tailed.unwrap_or(word.headed));
        }
        if kind & NUMBER != 0 {
            return self.digits(text, start);
        }
        let (next, _) = self.at(text, start + bytes);
        if kind & LINE_END == 0 && (kind & MARK | next & (LETTER | MARK)) != 0 {
            let word = self.word(text, start + bytes);
            // A mark may precede a word or begin it. Words with a tail come first.
            let own = if kind & MARK == 0 { None } else { self.word(text, start).tailed };
            let headed = (word.headed > start + bytes).then_some(word.headed);
            if let Some(end) = word.tailed.or(own).or(headed) {
                return behind_contraction(text, end);
            }
        }
        match self.signs(text, start, kind, next) {
            Some(end) => behind(text, end, b"\r\n/"),
            None => self.blanks(text, start),
        }
    }

    /// Returns the two readings of a word from `start` on in `o200k_base`.
    #[inline]
    fn word(&self, text: &str, start: usize) -> SplitWord {
        // Nearly all words consist of lowercase ASCII letters.
        let small = behind_small(text.as_bytes(), start);
        if small > start {
            return SplitWord { tailed: Some(self.skip(text, small, TAIL)), headed: start };
        }
        let (mut at, mut tailed) = (start, None);
        let kind = loop {
            let (kind, bytes) = self.at(text, at);
            if kind & HEAD == 0 {
                break kind;
            }
            at += bytes;
            if kind & TAIL != 0 {
                tailed = Some(at);
            }
        };
        if kind & TAIL != 0 {
            tailed = Some(self.skip(text, behind_small(text.as_bytes(), at), TAIL));
        }
        SplitWord { tailed, headed: at }
    }

    /// Does the same for `cl100k_base`.
    #[inline]
    pub fn cl100k(&self, text: &str, start: usize) -> usize {
        let (kind, bytes) = self.at(text, start);
        if kind & LETTER != 0 {
            return self.skip(text, start + bytes, LETTER);
        }
        let contraction = behind_contraction(text, start);
        if contraction > start {
            return contraction;
        }
        if kind & NUMBER != 0 {
            return self.digits(text, start);
        }
        let (next, _) = self.at(text, start + bytes);
        if kind & LINE_END == 0 && next & LETTER != 0 {
            return self.skip(text, start + bytes, LETTER);
        }
        if let Some(end) = self.signs(text, start, kind, next) {
            return behind(text, end, b"\r\n");
        }
        // Blanks at the text's end are one piece, including line ends.
        let end = self.skip(text, start, BLANK);
        if end == text.len() { end } else { self.blanks(text, start) }
    }

    /// Returns the end of up to three digits.
    fn digits(&self, text: &str, start: usize) -> usize {
        let mut at = start;
        for _ in 0..3 {
            let (kind, bytes) = self.at(text, at);
            if kind & NUMBER == 0 {
                break;
            }
            at += bytes;
        }
        at
    }

    /// Returns the end of a row of symbols, which a space may precede. `kind` and `next` are the
    /// classes of the first two characters.
    #[inline]
    fn signs(&self, text: &str, start: usize, kind: u8, next: u8) -> Option<usize> {
        const NO_SIGN: u8 = LETTER | NUMBER | BLANK | END;
        let is_spaced = text.as_bytes()[start] == b' ';
        if (if is_spaced { next } else { kind }) & NO_SIGN != 0 {
            return None;
        }
        let mut at = start + usize::from(is_spaced);
        loop {
            let (kind, bytes) = self.at(text, at);
            if kind & NO_SIGN != 0 {
                return Some(at);
            }
            at += bytes;
        }
    }

    /// Returns the end of a piece of blanks: behind the last line end among them, else before the
    /// last of them if something else follows.
    fn blanks(&self, text: &str, start: usize) -> usize {
        // Indentation is mostly long rows of spaces.
        let spaces = text.as_bytes()[start..].iter().take_while(|byte| **byte == b' ').count();
        let (mut at, mut lines) = (start + spaces, None);
        let mut last = start.max(at.saturating_sub(1));
        loop {
            let (kind, bytes) = self.at(text, at);
            if kind & BLANK == 0 {
                break;
            }
            (last, at) = (at, at + bytes);
            if kind & LINE_END != 0 {
                lines = Some(at);
            }
        }
        match lines {
            Some(end) => end,
            None if at == text.len() || last == start => at,
            None => last,
        }
    }
}

/// Returns the end of a plain word in `o200k_base`, as most are: lowercase ASCII letters behind a space, a
/// capital, both or neither, and then a character that cannot belong to them.
#[inline(always)]
fn behind_plain_word(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + usize::from(bytes[start] == b' ');
    at += usize::from(bytes.get(at).is_some_and(u8::is_ascii_uppercase));
    let end = behind_small(bytes, at);
    let is_end = bytes.get(end).is_none_or(|next| next.is_ascii() && *next != b'\'');
    (end > at && is_end).then_some(end)
}

/// Word by the rules of `o200k_base`.
struct SplitWord {
    /// Its end, if lowercase letters end it.
    tailed: Option<usize>,
    /// End of the capitals at its start.
    headed: usize,
}

/// Returns the end of the row of `bytes` at `at`.
#[inline]
fn behind(text: &str, at: usize, bytes: &[u8]) -> usize {
    at + text.as_bytes()[at..].iter().take_while(|byte| bytes.contains(byte)).count()
}

/// Returns the end of an English contraction ('s, 't, 're, 've, 'm, 'll, 'd) at `at`, else `at`.
#[inline]
fn behind_contraction(text: &str, at: usize) -> usize {
    match text.as_bytes().get(at..) {
        Some([b'\'', rest @ ..]) => at + contraction_bytes(rest),
        _ => at,
    }
}

/// Returns the bytes of a contraction including its apostrophe, which precedes `rest`; 0 if there
/// is none.
fn contraction_bytes(rest: &[u8]) -> usize {
    match rest {
        [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => 2,
        // The long s, which equals an s if case is ignored.
        [0xc5, 0xbf, ..]
        | [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..]
        | [b'l' | b'L', b'l' | b'L', ..] => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pattern: Pattern, text: &str) -> Vec<&str> {
        let classes = Classes::new();
        let (mut start, mut pieces) = (0, Vec::new());
        while start < text.len() {
            let end = match pattern {
                Pattern::O200k => classes.o200k(text, start),
                Pattern::Cl100k => classes.cl100k(text, start),
            };
            pieces.push(&text[start..end]);
            start = end;
        }
        pieces
    }

    #[test]
    fn texts_are_parted_as_the_patterns_do() {
        for (text, o200k, cl100k) in [
            ("Hello, world", vec!["Hello", ",", " world"], vec!["Hello", ",", " world"]),
            (
                "a THe The\n fooBar it's aé x1",
                vec!["a", " THe", " The", "\n", " foo", "Bar", " it's", " aé", " x", "1"],
                vec!["a", " THe", " The", "\n", " fooBar", " it", "'s", " aé", " x", "1"],
            ),
            ("HTTPServer's", vec!["HTTPServer's"], vec!["HTTPServer", "'s"]),
            ("fooBar don'T", vec!["foo", "Bar", " don'T"], vec!["fooBar", " don", "'T"]),
            ("it'ſ 'll", vec!["it'ſ", " '", "ll"], vec!["it", "'ſ", " '", "ll"]),
            ("1234567", vec!["123", "456", "7"], vec!["123", "456", "7"]),
            ("a  b\t\tc", vec!["a", " ", " b", "\t", "\tc"], vec!["a", " ", " b", "\t", "\tc"]),
            ("a \n\n  b", vec!["a", " \n\n", " ", " b"], vec!["a", " \n\n", " ", " b"]),
            ("a\n  ", vec!["a", "\n", "  "], vec!["a", "\n  "]),
            (");\n/x --", vec![");\n/", "x", " --"], vec![");\n", "/x", " --"]),
            ("e\u{301}a!\u{301}", vec!["e\u{301}a", "!\u{301}"], vec!["e", "\u{301}a", "!\u{301}"]),
            ("\u{301}AB", vec!["\u{301}", "AB"], vec!["\u{301}AB"]),
            ("漢字かな。ＡＢ", vec!["漢字かな", "。ＡＢ"], vec!["漢字かな", "。ＡＢ"]),
            ("ABʰcǅ", vec!["ABʰc", "ǅ"], vec!["ABʰcǅ"]),
        ] {
            assert_eq!(pieces(Pattern::O200k, text), o200k, "{text:?}");
            assert_eq!(pieces(Pattern::Cl100k, text), cl100k, "{text:?}");
        }
    }
}
