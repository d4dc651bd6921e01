//! What competes for a note's room, in order: the most worth for its price first, of equals the one
//! that was listed first. Pure.

use std::cmp::Ordering;

/// A candidate, by its number.
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
