//! Exact counts in `o200k_base` and `cl100k_base`, in linear time for any text.
//!
//! A text is split into pieces (`split.rs`). A piece is a token (`vocabulary.rs`), cached
//! (`memo.rs`), or merged from its bytes (`merge.rs`). The results equal those of `tiktoken-rs`,
//! which the tests compare them with.

mod memo;
mod merge;
mod split;
mod vocabulary;

use std::collections::VecDeque;
use std::sync::LazyLock;

use memo::Memo;
use split::{Classes, Pattern};
use vocabulary::{NONE, Vocabulary};

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::new);
static O200K: LazyLock<Bpe> =
    LazyLock::new(|| Bpe::new(Pattern::O200k, include_bytes!("o200k_base.tokens")));
static CL100K: LazyLock<Bpe> =
    LazyLock::new(|| Bpe::new(Pattern::Cl100k, include_bytes!("cl100k_base.tokens")));

/// Encoding: a splitting pattern and a vocabulary. Built on first use.
pub struct Bpe {
    pattern: Pattern,
    classes: &'static Classes,
    vocabulary: Vocabulary,
}

/// Returns `o200k_base`.
pub fn o200k() -> &'static Bpe {
    &O200K
}

/// Returns `cl100k_base`.
pub fn cl100k() -> &'static Bpe {
    &CL100K
}

impl Bpe {
    fn new(pattern: Pattern, vocabulary: &'static [u8]) -> Self {
        Self { pattern, classes: &CLASSES, vocabulary: Vocabulary::new(vocabulary) }
    }

    /// Passes each piece of `text` to `next` while it returns true.
    fn pieces<'a>(&self, text: &'a str, next: impl FnMut(&'a [u8]) -> bool) {
        // One loop per pattern, so that the pattern is not checked for every piece.
        match self.pattern {
            Pattern::O200k => pieces(text, |start| self.classes.o200k(text, start), next),
            Pattern::Cl100k => pieces(text, |start| self.classes.cl100k(text, start), next),
        }
    }

    #[inline]
    fn count_piece(&self, piece: &[u8], memo: &mut Memo) -> usize {
        if self.vocabulary.holds(piece) {
            return 1;
        }
        memo.get(self.pattern, piece, || merge::count(&self.vocabulary, piece))
    }

    /// Counts the tokens of `text`.
    pub fn count(&self, text: &str) -> usize {
        let mut count = 0;
        memo::with(|memo| {
            self.pieces(text, |piece| {
                count += self.count_piece(piece, memo);
                true
            });
        });
        count
    }

    /// Returns the bytes of the longest head of `text` within `tokens`. They may end within a
    /// character.
    pub fn head_bytes(&self, text: &str, tokens: usize) -> usize {
        let (mut left, mut bytes) = (tokens, 0);
        self.pieces(text, |piece| {
            let ends = self.ends(piece, left);
            if ends.len() > left {
                bytes += left.checked_sub(1).map_or(0, |last| ends[last] as usize);
                return false;
            }
            left -= ends.len();
            bytes += piece.len();
            true
        });
        bytes
    }

    /// Returns the bytes of the longest tail of `text` within `tokens`, reading all pieces. They
    /// may begin within a character.
    pub fn tail_bytes(&self, text: &str, tokens: usize) -> usize {
        let mut kept: VecDeque<(&[u8], usize)> = VecDeque::new();
        let mut count = 0;
        memo::with(|memo| {
            self.pieces(text, |piece| {
                let own = self.count_piece(piece, memo);
                kept.push_back((piece, own));
                count += own;
                while count > tokens && kept.len() > 1 {
                    count -= kept.pop_front().map_or(0, |(_, own)| own);
                }
                true
            });
        });
        let bytes: usize = kept.iter().map(|(piece, _)| piece.len()).sum();
        if count <= tokens {
            return bytes;
        }
        // One piece is larger than the remaining room: it is split between its tokens.
        let piece = kept.front().map_or(&b""[..], |(piece, _)| piece);
        let ends = self.ends(piece, usize::MAX);
        let dropped = ends.len().saturating_sub(tokens).checked_sub(1);
        bytes - dropped.map_or(0, |last| ends[last] as usize)
    }

    /// Returns the ends of the tokens of a piece; for a long one those behind the first `most`,
    /// except one, may be missing.
    fn ends(&self, piece: &[u8], most: usize) -> Vec<u32> {
        if self.vocabulary.rank(piece) != NONE {
            return vec![piece.len() as u32];
        }
        merge::ends(&self.vocabulary, piece, most.saturating_add(1))
    }
}

#[inline]
fn pieces<'a>(
    text: &'a str,
    end_of: impl Fn(usize) -> usize,
    mut next: impl FnMut(&'a [u8]) -> bool,
) {
    let mut start = 0;
    while start < text.len() {
        let end = end_of(start);
        if !next(&text.as_bytes()[start..end]) {
            return;
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_the_first_tokens_and_tails_stay_within_theirs() {
        let texts = [
            "The quick brown fox jumped over 12345 lazy dogs, didn't it?\n  \n".repeat(20),
            "pneumonoultramicroscopicsilicovolcanoconiosis".repeat(200),
            "漢字かな交じり文。😀👩‍👩‍👧 ".repeat(50),
            "=-".repeat(3000),
        ];
        for (bpe, reference) in [
            (o200k(), tiktoken_rs::o200k_base_singleton()),
            (cl100k(), tiktoken_rs::cl100k_base_singleton()),
        ] {
            for text in &texts {
                let ids = reference.encode_ordinary(text);
                for tokens in [0, 1, 2, 3, 10, 100, 150, ids.len(), ids.len() + 1] {
                    let first = &ids[..tokens.min(ids.len())];
                    let bytes = reference.decode_bytes(first).expect("its own tokens").len();
                    assert_eq!(bpe.head_bytes(text, tokens), bytes, "{tokens} of {text:.20}");
                    let last = &ids[ids.len() - tokens.min(ids.len())..];
                    let most = reference.decode_bytes(last).expect("its own tokens").len();
                    let tail = bpe.tail_bytes(text, tokens);
                    assert!(tail <= most, "{tokens} of {text:.20}");
                    assert!(tokens < ids.len() || tail == text.len());
                }
            }
        }
    }
}
