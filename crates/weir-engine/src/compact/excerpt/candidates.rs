//! Candidates for a note's room in order: the best ratio of worth to price first, equal ones in
//! order of listing. Pure.

use std::cmp::Ordering;
use std::num::NonZeroU32;

/// Candidate that is worth its price, by index.
#[derive(PartialEq)]
pub(crate) struct Offer {
    /// Ratio of worth to price.
    pub ratio: f64,
    pub candidate: usize,
}

impl Eq for Offer {}
impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ratio.total_cmp(&other.ratio).then(other.candidate.cmp(&self.candidate))
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
