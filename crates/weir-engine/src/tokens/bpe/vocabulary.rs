//! Tokens of a vocabulary with their ranks, in a compact table.
//!
//! A vocabulary file begins with the number of its tokens (four bytes, little-endian). Then come
//! one byte with the length of each token, and the tokens' bytes, both in the order of ranks. The
//! bytes are used in place; the tables built from them take some 5 MB for 200,000 tokens.

/// No token. No vocabulary has as many.
pub const NONE: u32 = u32::MAX;

/// Bits of a slot that hold a rank. The others hold part of the hash, so that slots of other tokens
/// are rarely compared.
const RANK_BITS: u32 = 18;
const RANK_MASK: u32 = (1 << RANK_BITS) - 1;

pub struct Vocabulary {
    /// All tokens, one behind the other.
    bytes: &'static [u8],
    /// Start of each token in `bytes`, and the end of the last.
    starts: Box<[u32]>,
    /// Ranks of the tokens of two bytes, indexed by these bytes.
    pairs: Box<[u32]>,
    /// Keys and ranks of the other tokens of at most [`SHORT`] bytes, hashed, with linear probing.
    short_keys: Box<[u64]>,
    short_ranks: Box<[u32]>,
    /// Longer tokens, hashed in the same way.
    long: Box<[u32]>,
    longest: usize,
}

/// Maximum bytes of a token that fit in one number together with their length.
const SHORT: usize = 7;

impl Vocabulary {
    /// Builds the tables for a vocabulary file.
    ///
    /// # Panics
    ///
    /// If the file is invalid. All of them are part of the program.
    pub fn new(file: &'static [u8]) -> Self {
        let (count, rest) = file.split_first_chunk().expect("a number of tokens");
        let (lengths, bytes) = rest.split_at(u32::from_le_bytes(*count) as usize);
        assert!(lengths.len() < RANK_MASK as usize, "ranks fit in a slot");
        // Tokens of two bytes are looked up by these alone.
        let pairs = lengths.iter().filter(|length| **length == 2).count();
        let short = lengths.iter().filter(|length| usize::from(**length) <= SHORT).count();
        // Half of the slots stay free, so that a search soon ends at one.
        let slots = |tokens: usize| (tokens * 2).next_power_of_two();
        let mut end = 0;
        let ends = lengths.iter().map(|length| {
            end += u32::from(*length);
            end
        });
        let mut vocabulary = Self {
            bytes,
            starts: std::iter::once(0).chain(ends).collect(),
            pairs: vec![NONE; 1 << 16].into(),
            short_keys: vec![0; slots(short - pairs)].into(),
            short_ranks: vec![NONE; slots(short - pairs)].into(),
            long: vec![NONE; slots(lengths.len() - short)].into(),
            longest: lengths.iter().copied().max().map_or(0, usize::from),
        };
        for rank in 0..lengths.len() as u32 {
            vocabulary.insert(rank);
        }
        vocabulary
    }

    fn insert(&mut self, rank: u32) {
        let token = self.token(rank);
        if let [first, second] = *token {
            self.pairs[pair_index(first, second)] = rank;
        } else if token.len() <= SHORT {
            let key = short_key(token);
            let mask = self.short_keys.len() - 1;
            let mut at = mixed(key) as usize & mask;
            while self.short_keys[at] != 0 {
                at = (at + 1) & mask;
            }
            (self.short_keys[at], self.short_ranks[at]) = (key, rank);
        } else {
            let hash = hash(token);
            let mask = self.long.len() - 1;
            let mut at = hash as usize & mask;
            while self.long[at] != NONE {
                at = (at + 1) & mask;
            }
            self.long[at] = tag(hash) | rank;
        }
    }

    /// Returns the bytes of a token.
    fn token(&self, rank: u32) -> &'static [u8] {
        let rank = rank as usize;
        &self.bytes[self.starts[rank] as usize..self.starts[rank + 1] as usize]
    }

    /// Returns the rank of a token, or [`NONE`]. Always inlined: most pieces are one look-up.
    #[inline(always)]
    pub fn rank(&self, token: &[u8]) -> u32 {
        if let [first, second] = *token {
            return self.pair(first, second);
        }
        if token.len() > SHORT {
            return self.long_rank(token);
        }
        self.short_place(token).map_or(NONE, |place| self.short_ranks[place])
    }

    /// Returns whether `piece` is a token. Reads no rank, which lies in other memory than the key.
    #[inline(always)]
    pub fn holds(&self, piece: &[u8]) -> bool {
        match piece {
            [first, second] => self.pair(*first, *second) != NONE,
            _ if piece.len() > SHORT => self.long_rank(piece) != NONE,
            _ => self.short_place(piece).is_some(),
        }
    }

    /// Returns the slot of a token of at most [`SHORT`] bytes, but not of two.
    #[inline(always)]
    fn short_place(&self, token: &[u8]) -> Option<usize> {
        let key = short_key(token);
        let mask = self.short_keys.len() - 1;
        let mut at = mixed(key) as usize & mask;
        loop {
            let own = self.short_keys[at];
            if own == key {
                return Some(at);
            }
            if own == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    fn long_rank(&self, token: &[u8]) -> u32 {
        if token.len() > self.longest {
            return NONE;
        }
        let hash = hash(token);
        let mask = self.long.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.long[at];
            if slot == NONE {
                return NONE;
            }
            if slot & !RANK_MASK == tag(hash) && self.token(slot & RANK_MASK) == token {
                return slot & RANK_MASK;
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns the rank of a token of two bytes, or [`NONE`].
    #[inline]
    pub fn pair(&self, first: u8, second: u8) -> u32 {
        self.pairs[pair_index(first, second)]
    }
}

fn pair_index(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// Packs a token of at most [`SHORT`] bytes with its length, which is not 0.
#[inline]
fn short_key(token: &[u8]) -> u64 {
    let length = token.len();
    let word = match token {
        // Both halves contain the middle bytes.
        [a, b, c, d, ..] => {
            let head = u32::from_le_bytes([*a, *b, *c, *d]);
            let tail = token.last_chunk().map_or(0, |tail| u32::from_le_bytes(*tail));
            u64::from(head) | u64::from(tail) << (8 * (length - 4))
        }
        _ => token.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    word | (length as u64) << 56
}

/// Returns the part of a hash that a slot stores, in its position within the slot.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 & !RANK_MASK
}

/// Hashes a token of more than [`SHORT`] bytes. Suitable for a fixed table only: chosen texts can
/// hit chosen slots, but none is far from the next free one.
#[inline]
fn hash(token: &[u8]) -> u64 {
    let seed = (token.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (words, _) = token.as_chunks::<8>();
    let hash = words.iter().fold(seed, |hash, word| mixed(hash ^ u64::from_le_bytes(*word)));
    mixed(hash ^ token.last_chunk().map_or(0, |tail| u64::from_le_bytes(*tail)))
}

#[inline]
fn mixed(word: u64) -> u64 {
    let product = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    product ^ product >> 32
}
