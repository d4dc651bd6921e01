//! Byte pair encoding of one piece. Of all neighbours that form a token together, those of the
//! lowest rank are merged first, the leftmost of equal ones, until there are none.
//!
//! Short pieces look for the lowest rank in a small array. Long ones are merged by a heap in
//! windows that overlap, so that time is linear and memory small for any text.
//!
//! Why windows give the exact result: a row of tokens encodes its text if and only if every two
//! neighbours in it encode theirs. So two windows with a common token at the same place can be
//! joined there: all neighbours in the joined row are neighbours in a window.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::vocabulary::{NONE, Vocabulary};

/// Maximum length of a piece that is merged without a heap.
const SHORT: usize = 128;
/// Sizes of a window and of its overlap with the next one, in bytes; the overlap holds a few tokens
/// of any length. If two windows have no token in common, the piece is encoded again with the next
/// larger size.
const WINDOWS: [(usize, usize); 3] = [(2 << 10, 256), (32 << 10, 4 << 10), (1 << 20, 128 << 10)];

/// Counts the tokens in a piece that is no token itself.
pub fn count(vocabulary: &Vocabulary, piece: &[u8]) -> usize {
    match piece.len() {
        0..=2 => piece.len(),
        3..=16 => short::<16>(vocabulary, piece).0,
        17..=32 => short::<32>(vocabulary, piece).0,
        33..=64 => short::<64>(vocabulary, piece).0,
        65..=SHORT => short::<SHORT>(vocabulary, piece).0,
        _ => ends(vocabulary, piece, usize::MAX).len(),
    }
}

/// Returns the ends of the tokens in a piece that is no token itself; for a long one at least the
/// first `most`.
pub fn ends(vocabulary: &Vocabulary, piece: &[u8], most: usize) -> Vec<u32> {
    if piece.len() <= SHORT {
        let (_, next) = short::<SHORT>(vocabulary, piece);
        let (mut ends, mut start) = (Vec::new(), 0);
        while start < piece.len() {
            ends.push(u32::from(next[start]));
            start = usize::from(next[start]);
        }
        return ends;
    }
    let mut merger = Merger::default();
    for (window, overlap) in WINDOWS {
        if let Some(ends) = joined(vocabulary, piece, most, (window, overlap), &mut merger) {
            return ends;
        }
    }
    let mut ends = Vec::new();
    merger.merge(vocabulary, piece, 0, &mut ends);
    ends
}

/// Returns the number of tokens in a piece of at most `N` bytes (no more than 128), and the end of
/// each token by its start.
fn short<const N: usize>(vocabulary: &Vocabulary, piece: &[u8]) -> (usize, [u8; N]) {
    let length = piece.len();
    // Rank of each token merged with the next, combined with its position, so that the minimum
    // identifies the leftmost.
    let mut keys = [NONE; N];
    let mut next = [0_u8; N];
    let mut previous = [0_u8; N];
    for at in 0..length {
        next[at] = at as u8 + 1;
        previous[at] = (at as u8).wrapping_sub(1);
    }
    for (at, pair) in piece.array_windows::<2>().enumerate() {
        keys[at] = key(vocabulary.pair(pair[0], pair[1]), at);
    }
    let mut count = length;
    loop {
        let lowest = keys.iter().fold(NONE, |lowest, key| lowest.min(*key));
        if lowest == NONE {
            return (count, next);
        }
        let start = lowest as usize % SHORT;
        let middle = usize::from(next[start]);
        let end = usize::from(next[middle]);
        count -= 1;
        next[start] = end as u8;
        keys[middle] = NONE;
        keys[start] = NONE;
        if end < length {
            previous[end] = start as u8;
            keys[start] = key(vocabulary.rank(&piece[start..usize::from(next[end])]), start);
        }
        if start > 0 {
            let before = usize::from(previous[start]);
            keys[before] = key(vocabulary.rank(&piece[before..end]), before);
        }
    }
}

/// Combines a rank with a position below [`SHORT`].
fn key(rank: u32, at: usize) -> u32 {
    if rank == NONE { NONE } else { rank * SHORT as u32 + at as u32 }
}

/// Returns the ends of the tokens of `piece`, by windows; `None` if two of them cannot be joined.
fn joined(
    vocabulary: &Vocabulary,
    piece: &[u8],
    most: usize,
    (window, overlap): (usize, usize),
    merger: &mut Merger,
) -> Option<Vec<u32>> {
    let (mut ends, mut next) = (Vec::new(), Vec::new());
    let mut reach = window.min(piece.len());
    merger.merge(vocabulary, &piece[..reach], 0, &mut ends);
    while reach < piece.len() {
        // The next window begins between two tokens of this one.
        let known = ends.partition_point(|end| *end as usize <= reach - overlap);
        if known >= most {
            break;
        }
        let start = if known == 0 { 0 } else { ends[known - 1] as usize };
        let until = (start + window).min(piece.len());
        if until <= reach {
            return None;
        }
        next.clear();
        merger.merge(vocabulary, &piece[start..until], start, &mut next);
        let (old, new) = common(&ends[known..], &next, start as u32)?;
        ends.truncate(known + old);
        ends.extend_from_slice(&next[new..]);
        reach = until;
    }
    Some(ends)
}

/// Returns the number of tokens in each of two rows, which both begin at `start`, before the first
/// token that is in both.
fn common(first: &[u32], second: &[u32], start: u32) -> Option<(usize, usize)> {
    let (mut old, mut new) = (0, 0);
    // Starts of the tokens whose ends are compared.
    let (mut from_old, mut from_new) = (start, start);
    loop {
        let (end_old, end_new) = (*first.get(old)?, *second.get(new)?);
        if from_old == from_new && end_old == end_new {
            return Some((old, new));
        }
        if end_old <= end_new {
            (old, from_old) = (old + 1, end_old);
        }
        if end_new <= end_old {
            (new, from_new) = (new + 1, end_new);
        }
    }
}

/// Heap-based merger. Its memory is reused.
#[derive(Default)]
struct Merger {
    /// Per start of a token: its end, the start of the one before, and the rank of its merge with
    /// the next.
    tokens: Vec<MergeToken>,
    heap: BinaryHeap<Reverse<u64>>,
}

#[derive(Clone, Copy)]
struct MergeToken {
    end: u32,
    previous: u32,
    rank: u32,
}

impl Merger {
    /// Appends the ends of the tokens of `piece`, which begins at `offset`.
    fn merge(&mut self, vocabulary: &Vocabulary, piece: &[u8], offset: usize, ends: &mut Vec<u32>) {
        let length = piece.len();
        self.tokens.clear();
        self.tokens.extend((0..length as u32).map(|at| MergeToken {
            end: at + 1,
            previous: at.wrapping_sub(1),
            rank: NONE,
        }));
        let mut heap = std::mem::take(&mut self.heap).into_vec();
        heap.clear();
        for (at, pair) in piece.array_windows::<2>().enumerate() {
            let rank = vocabulary.pair(pair[0], pair[1]);
            self.tokens[at].rank = rank;
            if rank != NONE {
                heap.push(entry(rank, at));
            }
        }
        self.heap = heap.into();
        while let Some(Reverse(lowest)) = self.heap.pop() {
            let start = lowest as u32 as usize;
            // One of the two may have been merged with another since.
            if self.tokens[start].rank == (lowest >> 32) as u32 {
                self.merge_at(vocabulary, piece, start);
            }
        }
        let mut start = 0;
        while start < length {
            let end = self.tokens[start].end;
            ends.push(offset as u32 + end);
            start = end as usize;
        }
    }

    fn merge_at(&mut self, vocabulary: &Vocabulary, piece: &[u8], start: usize) {
        let middle = self.tokens[start].end as usize;
        let end = self.tokens[middle].end as usize;
        self.tokens[middle].rank = NONE;
        self.tokens[start].end = end as u32;
        let mut rank = NONE;
        if end < piece.len() {
            self.tokens[end].previous = start as u32;
            rank = vocabulary.rank(&piece[start..self.tokens[end].end as usize]);
        }
        self.set(start, rank);
        if start > 0 {
            let before = self.tokens[start].previous as usize;
            self.set(before, vocabulary.rank(&piece[before..end]));
        }
    }

    fn set(&mut self, at: usize, rank: u32) {
        self.tokens[at].rank = rank;
        if rank != NONE {
            self.heap.push(entry(rank, at));
        }
    }
}

fn entry(rank: u32, at: usize) -> Reverse<u64> {
    Reverse(u64::from(rank) << 32 | at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::new(include_bytes!("o200k_base.tokens"))
    }

    fn whole(vocabulary: &Vocabulary, piece: &[u8]) -> Vec<u32> {
        let mut ends = Vec::new();
        Merger::default().merge(vocabulary, piece, 0, &mut ends);
        ends
    }

    /// Returns bytes of an alphabet in pseudo-random order.
    fn random(alphabet: &str, length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            alphabet.as_bytes()[(state >> 33) as usize % alphabet.len()]
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    /// Returns pairs whose ranks fall from one to the next for as long as possible, repeatedly: the
    /// last pair always merges first.
    fn falling(vocabulary: &Vocabulary, length: usize) -> Vec<u8> {
        let mut text = b"e".to_vec();
        let mut rank = NONE;
        while text.len() < length {
            let last = text[text.len() - 1];
            let lower = (b'!'..=b'~').map(|byte| (vocabulary.pair(last, byte), byte));
            let highest = lower.filter(|(own, _)| *own < rank).max();
            let (own, byte) = highest.unwrap_or((NONE, b'z'));
            text.push(byte);
            rank = own;
        }
        text
    }

    fn hostile(vocabulary: &Vocabulary, length: usize) -> Vec<Vec<u8>> {
        let mut texts = vec![falling(vocabulary, length)];
        for (seed, alphabet) in (1..).zip([
            "a",
            " ",
            "ab",
            "=",
            "=-",
            "abcdefghijklmnopqrstuvwxyz",
            "\u{301}",
            "漢字的一是",
            "e\u{301}",
        ]) {
            texts.push(random(alphabet, length, seed));
            texts.push(alphabet.bytes().cycle().take(length).collect());
        }
        texts
    }

    #[test]
    fn windows_give_what_the_whole_gives() {
        let vocabulary = vocabulary();
        let mut merger = Merger::default();
        let mut joins = 0;
        for length in [300, 5000] {
            for piece in hostile(&vocabulary, length) {
                let expected = whole(&vocabulary, &piece);
                for sizes in [(40, 16), (64, 20), (256, 140), (2048, 256)] {
                    let some = joined(&vocabulary, &piece, usize::MAX, sizes, &mut merger);
                    joins += usize::from(some.is_some());
                    assert!(
                        some.is_none_or(|ends| ends == expected),
                        "{sizes:?} {:?}",
                        &piece[..20]
                    );
                }
                assert_eq!(ends(&vocabulary, &piece, usize::MAX), expected, "{:?}", &piece[..20]);
            }
        }
        assert!(joins > 100, "only {joins} could be joined");
    }

    #[test]
    fn short_pieces_are_merged_as_by_the_heap() {
        let vocabulary = vocabulary();
        for length in 3..=SHORT {
            for piece in hostile(&vocabulary, length) {
                let expected = whole(&vocabulary, &piece);
                assert_eq!(count(&vocabulary, &piece), expected.len(), "{piece:?}");
                assert_eq!(ends(&vocabulary, &piece, usize::MAX), expected, "{piece:?}");
            }
        }
    }

    #[test]
    fn the_first_tokens_of_a_long_piece_are_found_without_the_rest() {
        let vocabulary = vocabulary();
        for piece in hostile(&vocabulary, 60_000) {
            let (all, first) =
                (ends(&vocabulary, &piece, usize::MAX), ends(&vocabulary, &piece, 10));
            assert_eq!(first[..10], all[..10]);
            assert!(first.len() < 5000);
        }
    }
}
