//! Candidates that a note takes before all others: those with units that must survive. Chooses none.

use std::ops::Range;

use super::Writer;
use super::candidates::{Candidate, Piece};
use crate::compact::survival::Claim;
use crate::wire::Role;

/// Lines behind an error that belong to it, and how many: what an assertion compared.
const DETAILS: [&str; 9] =
    ["assertion", "left:", "right:", "Expected", "Received", "expected", "actual", "got", "E  "];
const MOST_DETAILS: usize = 3;

impl Writer<'_> {
    /// Takes the candidates that hold the claims on this note, as far as there is room.
    pub(super) fn take_claims(&mut self, left: &mut f64) {
        let room_tokens = left.min(self.subject.rules_tokens as f64);
        if room_tokens <= 0.0 {
            return;
        }
        let claimed: Vec<Range<usize>> = self
            .work
            .claims(self.subject, room_tokens)
            .iter()
            .map(|claim| self.claimed(claim))
            .filter(|claimed| !claimed.is_empty())
            .collect();
        for claimed in claimed {
            let end = claimed.end;
            self.take_all(claimed, left);
            self.take_all(self.details(end), left);
        }
    }

    /// Takes candidates as far as there is room.
    fn take_all(&mut self, candidates: Range<usize>, left: &mut f64) {
        for index in candidates {
            let price = self.price(index);
            if !self.is_picked[index] && price <= *left {
                *left -= price;
                self.take(index, price);
            }
        }
    }

    /// Returns the candidates from `first` on that say what an assertion before them compared.
    fn details(&self, first: usize) -> Range<usize> {
        let is_detail = |candidate: &&Candidate| {
            let Piece::Units { first, .. } = candidate.piece else { return false };
            let reading = &self.subject.readings[candidate.message as usize];
            let said = reading.text[reading.units[first as usize].span.clone()].trim_start();
            let is_compared = DETAILS.iter().any(|own| said.starts_with(own));
            candidate.is_joined && reading.role == Role::Tool && is_compared
        };
        let rest = self.candidates[first..].iter();
        first..first + rest.take(MOST_DETAILS).take_while(is_detail).count()
    }

    /// Returns the candidates with the units of a claim. Names come first in the list, then units in
    /// order.
    fn claimed(&self, claim: &Claim) -> Range<usize> {
        let is_before = |message: u32, unit: usize, bound: u32| {
            (message as usize, bound as usize) < (claim.message, unit)
        };
        let start = self.candidates.partition_point(|candidate| match candidate.piece {
            Piece::Name { .. } => true,
            Piece::Units { end, .. } => is_before(candidate.message, claim.units.start + 1, end),
        });
        let end = self.candidates.partition_point(|candidate| match candidate.piece {
            Piece::Name { .. } => true,
            Piece::Units { first, .. } => is_before(candidate.message, claim.units.end, first),
        });
        start..end.max(start)
    }
}
