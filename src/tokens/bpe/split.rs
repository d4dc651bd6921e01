//! Parts a text into the pieces that are encoded each for itself, as the patterns of `o200k_base` and
//! `cl100k_base` do, whose order of alternatives and backtracking is followed by hand.
//!
//! What a character is comes from `regex-syntax`, whose tables are those of the regular expressions in
//! `tiktoken-rs`.

use std::collections::HashMap;

use regex_syntax::hir::{Class, HirKind};

/// Which pattern.
#[derive(Debug, Clone, Copy)]
pub enum Pattern {
    O200k,
    Cl100k,
}

// What a character is. Signs are none of these; marks count as letters for `o200k_base` alone.
/// A capital, or a letter in title case.
const UPPER: u8 = 1;
const LOWER: u8 = 1 << 1;
/// A letter without case.
const CASELESS: u8 = 1 << 2;
const MARK: u8 = 1 << 3;
const NUMBER: u8 = 1 << 4;
const BLANK: u8 = 1 << 5;
/// One of the two line ends that the patterns name. Beside [`BLANK`].
const LINE_END: u8 = 1 << 6;
/// Behind the last character.
const END: u8 = 1 << 7;

const LETTER: u8 = UPPER | LOWER | CASELESS;
/// What words begin and end with in `o200k_base`.
const HEAD: u8 = UPPER | CASELESS | MARK;
const TAIL: u8 = LOWER | CASELESS | MARK;

/// The characters of a block, which share an entry of [`Classes::blocks`].
const BLOCK: usize = 128;

/// What each character is.
pub struct Classes {
    ascii: [u8; 128],
    /// For each block of characters where in `classes` theirs are.
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

    /// What the character at `at` is, and its bytes.
    #[inline]
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

    /// Where the row of characters ends that have one of `kinds`.
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

    /// Where the piece ends that begins at `start`, which is before the text's end.
    #[inline]
    pub fn piece_end(&self, pattern: Pattern, text: &str, start: usize) -> usize {
        match pattern {
            Pattern::O200k => self.o200k(text, start),
            Pattern::Cl100k => self.cl100k(text, start),
        }
    }

    #[inline]
    fn o200k(&self, text: &str, start: usize) -> usize {
        let (kind, bytes) = self.at(text, start);
        if kind & LETTER != 0 {
            let word = self.word(text, start);
            return behind_contraction(text, word.tailed.unwrap_or(word.headed));
        }
        if kind & (NUMBER | LINE_END) == 0 {
            let word = self.word(text, start + bytes);
            // A mark may stand before a word or begin it. Words with a tail come first.
            let own = if kind & MARK == 0 { None } else { self.word(text, start).tailed };
            let headed = (word.headed > start + bytes).then_some(word.headed);
            if let Some(end) = word.tailed.or(own).or(headed) {
                return behind_contraction(text, end);
            }
        }
        self.no_word(text, start, kind, b"\r\n/").unwrap_or_else(|| self.blanks(text, start))
    }

    /// The two ways in which `o200k_base` reads a word from `start` on.
    #[inline]
    fn word(&self, text: &str, start: usize) -> Word {
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
            tailed = Some(self.skip(text, at, TAIL));
        }
        Word { tailed, headed: at }
    }

    #[inline]
    fn cl100k(&self, text: &str, start: usize) -> usize {
        let (kind, bytes) = self.at(text, start);
        if kind & LETTER != 0 {
            return self.skip(text, start + bytes, LETTER);
        }
        let contraction = behind_contraction(text, start);
        if contraction > start {
            return contraction;
        }
        if kind & (NUMBER | LINE_END) == 0 {
            let end = self.skip(text, start + bytes, LETTER);
            if end > start + bytes {
                return end;
            }
        }
        if let Some(end) = self.no_word(text, start, kind, b"\r\n") {
            return end;
        }
        // Blanks at the text's end are one piece, line ends among them too.
        let end = self.skip(text, start, BLANK);
        if end == text.len() { end } else { self.blanks(text, start) }
    }

    /// The end of up to three digits, or of signs with a space before and some of `behind` after them.
    #[inline]
    fn no_word(&self, text: &str, start: usize, kind: u8, behind: &[u8]) -> Option<usize> {
        const NO_SIGN: u8 = LETTER | NUMBER | BLANK | END;
        if kind & NUMBER != 0 {
            let mut at = start;
            for _ in 0..3 {
                let (kind, bytes) = self.at(text, at);
                if kind & NUMBER == 0 {
                    break;
                }
                at += bytes;
            }
            return Some(at);
        }
        let bytes = text.as_bytes();
        let signs = start + usize::from(bytes[start] == b' ');
        let mut at = signs;
        loop {
            let (kind, length) = self.at(text, at);
            if kind & NO_SIGN != 0 {
                break;
            }
            at += length;
        }
        if at == signs {
            return None;
        }
        let rest = bytes[at..].iter().take_while(|byte| behind.contains(byte));
        Some(at + rest.count())
    }

    /// The end of a piece of blanks: behind the last line end among them, else before the last of them if
    /// something else follows.
    fn blanks(&self, text: &str, start: usize) -> usize {
        let (mut at, mut last, mut lines) = (start, start, None);
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

/// A word as `o200k_base` reads it.
struct Word {
    /// Its end, if small letters end it.
    tailed: Option<usize>,
    /// The end of the capitals that it begins with.
    headed: usize,
}

/// The end of an English contraction ('s, 't, 're, 've, 'm, 'll, 'd) at `at`, else `at`.
#[inline]
fn behind_contraction(text: &str, at: usize) -> usize {
    match text.as_bytes().get(at..) {
        Some([b'\'', rest @ ..]) => at + contraction_bytes(rest),
        _ => at,
    }
}

/// The bytes of a contraction with its apostrophe, which is before `rest`; 0 if it is none.
fn contraction_bytes(rest: &[u8]) -> usize {
    match rest {
        [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => 2,
        // The long s, which is an s where case does not count.
        [0xc5, 0xbf, ..]
        | [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..]
        | [b'l' | b'L', b'l' | b'L', ..] => 3,
        _ => 0,
    }
}
