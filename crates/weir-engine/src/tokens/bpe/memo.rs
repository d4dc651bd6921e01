//! Cache of token counts for recent pieces that are no tokens themselves: texts repeat names and
//! numbers. One per thread, 48 KB each.

use std::cell::RefCell;

use super::split::Pattern;

const SLOTS: usize = 2048;
/// Lengths of cached pieces.
const LENGTHS: std::ops::RangeInclusive<usize> = 4..=16;

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo(vec![MemoSlot::default(); SLOTS]));
}

pub struct Memo(Vec<MemoSlot>);

#[derive(Clone, Default)]
struct MemoSlot {
    piece: PieceKey,
    count: u32,
}

/// Complete key of a piece: its first and its last eight or four bytes, which may overlap, its
/// length and the pattern, which identifies the vocabulary.
#[derive(Clone, Default, PartialEq, Eq)]
struct PieceKey {
    first: u64,
    last: u64,
    kind: u32,
}

/// Passes this thread's cache to `work`.
pub fn with<R>(work: impl FnOnce(&mut Memo) -> R) -> R {
    MEMO.with_borrow_mut(work)
}

impl Memo {
    /// Returns the token count of `piece`, computing it if it is not cached.
    #[inline]
    pub fn get(&mut self, pattern: Pattern, piece: &[u8], count: impl FnOnce() -> usize) -> usize {
        if !LENGTHS.contains(&piece.len()) {
            return count();
        }
        let piece = PieceKey::new(pattern, piece);
        let word = (piece.first ^ piece.last.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = &mut self.0[(word >> 48) as usize % SLOTS];
        if slot.piece != piece {
            *slot = MemoSlot { piece, count: count() as u32 };
        }
        slot.count as usize
    }
}

impl PieceKey {
    #[inline]
    fn new(pattern: Pattern, piece: &[u8]) -> Self {
        let kind = (piece.len() as u32) << 8 | pattern as u32;
        let (first, last) = match (piece.first_chunk(), piece.last_chunk()) {
            (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
            _ => {
                let four =
                    |chunk: Option<&[u8; 4]>| chunk.map_or(0, |own| u32::from_le_bytes(*own));
                (four(piece.first_chunk()).into(), four(piece.last_chunk()).into())
            }
        };
        Self { first, last, kind }
    }
}
