//! Stability tiers: how many requests a message has been sent in as it is, and where breakpoints of
//! the provider's prompt cache follow from that. Read off the transcript; nothing is stored.

use super::cut::current_tokens;
use super::fold::{Fate, Fold};

/// The tiers, the least stable first: L3, L2, L1, L0.
const TIERS: u32 = 4;

impl Fold {
    /// How many requests were sent before this one.
    fn earlier_requests(&self) -> u32 {
        if self.is_settled { self.requests.saturating_sub(1) } else { self.requests }
    }

    /// Whether the policy places breakpoints at all.
    pub fn places_breakpoints(&self) -> bool {
        self.profile.policy.breakpoints.tier_requests > 0
    }

    /// Of the messages that are sent, those that a breakpoint is to stand on, in order: at most
    /// `most`, where there are more the longest prefixes.
    ///
    /// Each tier ends where messages have not been sent often enough yet. One that holds less than
    /// the policy's target is taken together with the next.
    pub fn breakpoints(&self, most: usize) -> Vec<usize> {
        let policy = self.profile.policy.breakpoints;
        if !self.places_breakpoints() {
            return Vec::new();
        }
        let mut places: Vec<usize> = Vec::new();
        let mut from = 0;
        let mut held_tokens = self.profile.overhead_tokens;
        for tier in (1..=TIERS).rev() {
            let Some(newest) = self.earlier_requests().checked_sub(tier * policy.tier_requests)
            else {
                continue;
            };
            // What changed at a message changed for all behind it, so that this only grows.
            let end = self.since.partition_point(|since| *since <= newest);
            let Some(place) = (from..end).rev().find(|message| self.takes_breakpoint(*message))
            else {
                continue;
            };
            let tokens: u64 = (from..=place).map(|message| self.sent_tokens_of(message)).sum();
            if held_tokens + tokens >= policy.target_tokens {
                places.push(place);
                held_tokens = 0;
                from = place + 1;
            }
        }
        places.split_off(places.len().saturating_sub(most))
    }

    fn takes_breakpoint(&self, message: usize) -> bool {
        let fact = &self.facts[message];
        self.fates[message] != Fate::Gone && fact.takes_note && fact.text_tokens > 0
    }

    fn sent_tokens_of(&self, message: usize) -> u64 {
        match self.fates[message] {
            Fate::Gone => 0,
            _ => current_tokens(self, message),
        }
    }

    /// Messages from `message` on are counted anew: what is cached of them is of no use any more.
    pub(super) fn register_anew(&mut self, message: usize) {
        for since in &mut self.since[message..] {
            *since = self.requests;
        }
    }
}
