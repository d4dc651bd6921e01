//! Exact counts in `o200k_base` and `cl100k_base`, in linear time for any text.
//!
//! A text is parted (`split.rs`); a piece is a token (`vocabulary.rs`) or is merged from its bytes
//! (`merge.rs`). The results are those of `tiktoken-rs`, which the tests compare them with.

mod merge;
mod split;
mod vocabulary;

use std::collections::VecDeque;
use std::sync::LazyLock;

use split::{Classes, Pattern};
use vocabulary::{NONE, Vocabulary};

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::new);
static O200K: LazyLock<Bpe> =
    LazyLock::new(|| Bpe::new(Pattern::O200k, include_bytes!("o200k_base.tokens")));
static CL100K: LazyLock<Bpe> =
    LazyLock::new(|| Bpe::new(Pattern::Cl100k, include_bytes!("cl100k_base.tokens")));

/// An encoding: how texts are parted, and what tokens there are. Built when it is first asked for.
pub struct Bpe {
    pattern: Pattern,
    classes: &'static Classes,
    vocabulary: Vocabulary,
}

/// `o200k_base`.
pub fn o200k() -> &'static Bpe {
    &O200K
}

/// `cl100k_base`.
pub fn cl100k() -> &'static Bpe {
    &CL100K
}

impl Bpe {
    fn new(pattern: Pattern, vocabulary: &'static [u8]) -> Self {
        Self { pattern, classes: &CLASSES, vocabulary: Vocabulary::new(vocabulary) }
    }

    fn pieces<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start >= text.len() {
                return None;
            }
            let end = self.classes.piece_end(self.pattern, text, start);
            let piece = &text.as_bytes()[start..end];
            start = end;
            Some(piece)
        })
    }

    #[inline]
    fn count_piece(&self, piece: &[u8]) -> usize {
        if self.vocabulary.rank(piece) != NONE {
            return 1;
        }
        merge::count(&self.vocabulary, piece)
    }

    /// Tokens of `text`.
    pub fn count(&self, text: &str) -> usize {
        self.pieces(text).map(|piece| self.count_piece(piece)).sum()
    }

    /// Bytes of the longest head of `text` that takes at most `tokens`. They may end within a character.
    pub fn head_bytes(&self, text: &str, tokens: usize) -> usize {
        let (mut left, mut bytes) = (tokens, 0);
        for piece in self.pieces(text) {
            let ends = self.ends(piece, left);
            if ends.len() > left {
                let end = left.checked_sub(1).map_or(0, |last| ends[last]);
                return bytes + end as usize;
            }
            left -= ends.len();
            bytes += piece.len();
        }
        bytes
    }

    /// Bytes of the longest tail of `text`, whose pieces are all read, that takes at most `tokens`. They may
    /// begin within a character.
    pub fn tail_bytes(&self, text: &str, tokens: usize) -> usize {
        let mut kept: VecDeque<(&[u8], usize)> = VecDeque::new();
        let mut count = 0;
        for piece in self.pieces(text) {
            let own = self.count_piece(piece);
            kept.push_back((piece, own));
            count += own;
            while count > tokens && kept.len() > 1 {
                count -= kept.pop_front().map_or(0, |(_, own)| own);
            }
        }
        let bytes: usize = kept.iter().map(|(piece, _)| piece.len()).sum();
        if count <= tokens {
            return bytes;
        }
        // One piece is larger than what may stay: it is parted between its tokens.
        let piece = kept.front().map_or(&b""[..], |(piece, _)| piece);
        let ends = self.ends(piece, usize::MAX);
        let dropped = ends.len().saturating_sub(tokens).checked_sub(1);
        bytes - dropped.map_or(0, |last| ends[last] as usize)
    }

    /// Where the tokens of a piece end; of a long one those behind the first `most` may be left out, but for
    /// one.
    fn ends(&self, piece: &[u8], most: usize) -> Vec<u32> {
        if self.vocabulary.rank(piece) != NONE {
            return vec![piece.len() as u32];
        }
        merge::ends(&self.vocabulary, piece, most.saturating_add(1))
    }
}
