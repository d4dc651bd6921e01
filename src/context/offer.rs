//! What competes for a note's room, in order: the most worth for its price first, of equals the one
//! that was listed first. Pure.

use std::cmp::Ordering;
use std::num::NonZeroU32;

/// A candidate that is worth its price, by its number.
#[derive(PartialEq)]
pub struct Offer {
    /// What it is worth by its price.
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

/// Something the note can say. There are tens of thousands of a long conversation: they are small.
pub struct Candidate {
    pub message: u32,
    pub what: What,
    /// The values it says, by place in the writer's list.
    pub said: (u32, u32),
    pub tokens: f64,
    /// What it is worth beside its values.
    pub bonus: f64,
    /// The place of its shape, which lines of a log share, among the writer's.
    pub shape: Option<NonZeroU32>,
    /// Whether it is of the same block as the candidate before it, and next to it.
    pub is_joined: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum What {
    /// Units of the message, by index: the first, and the one behind the last.
    Units { first: u32, end: u32 },
    /// A value in a list of names: its id, and where it is said.
    Name { id: u32, mention: u32 },
}

/// A value in a unit; one that is there twice counts once.
#[derive(Clone, Copy)]
pub struct Said {
    pub id: u32,
    /// Whether the unit says it fully.
    pub is_full: bool,
}
