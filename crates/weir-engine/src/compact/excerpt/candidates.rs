//! Candidates for a note's room in order: the best ratio of worth to price first, equal ones in
//! order of listing. Pure.

use std::cmp::Reverse;
use std::num::NonZeroU32;

/// Candidate that is worth its price, by index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Offer {
    /// Bits of the ratio of worth to price: of positive numbers they have the order of the numbers.
    ratio: u64,
    candidate: Reverse<usize>,
}

impl Offer {
    /// Creates an offer; `ratio` is above 0.
    pub(crate) fn new(ratio: f64, candidate: usize) -> Self {
        Self { ratio: ratio.to_bits(), candidate: Reverse(candidate) }
    }

    /// Returns the ratio of worth to price.
    pub(crate) fn ratio(&self) -> f64 {
        f64::from_bits(self.ratio)
    }

    pub(crate) fn candidate(&self) -> usize {
        self.candidate.0
    }
}

/// Possible part of a note. Small, since a long conversation has tens of thousands.
pub(crate) struct Candidate {
    pub message: u32,
    pub piece: Piece,
    /// Its values, as a range of the writer's list.
    pub said: (u32, u32),
    pub tokens: f64,
    /// Its worth apart from its values.
    pub bonus: f64,
    /// Index of its shape, which similar lines of a log share, in the writer's list.
    pub shape: Option<NonZeroU32>,
    /// Whether it follows the candidate before it directly, in the same block.
    pub is_joined: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Piece {
    /// Units of the message: index of the first, and one past the last.
    Units { first: u32, end: u32 },
    /// Value in a list of names: its id, and where it occurs.
    Name { id: u32, mention: u32 },
}

/// Value in a unit; a repeated one counts once.
#[derive(Clone, Copy)]
pub(crate) struct Said {
    pub id: u32,
    /// Whether the unit gives the value enough context.
    pub is_full: bool,
}
