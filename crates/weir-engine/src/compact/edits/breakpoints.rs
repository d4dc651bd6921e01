//! Stability tiers: the number of requests that sent a message unchanged, and the provider's cache
//! breakpoints derived from it. Computed from the transcript; nothing is stored.

use crate::compact::state::Compactor;
use crate::compact::state::messages::Fate;

/// Number of tiers, the least stable first: L3, L2, L1, L0.
const TIERS: u32 = 4;

impl Compactor {
    /// Returns the number of requests before this one.
    fn earlier_requests(&self) -> u32 {
        if self.requests.is_settled {
            self.requests.ended.saturating_sub(1)
        } else {
            self.requests.ended
        }
    }

    /// Returns whether the policy places breakpoints.
    pub fn places_breakpoints(&self) -> bool {
        self.profile.policy.breakpoints.tier_requests > 0
    }

    /// Returns the sent messages that get a breakpoint, in order: at most `most`, the longest
    /// prefixes if there are more.
    ///
    /// Each tier ends at the first message with too few unchanged requests. A tier below the
    /// policy's target size is merged with the next.
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
            // A change at a message changes the prefix of all behind it, so this only grows.
            let end = self.messages.since.partition_point(|since| *since <= newest);
            let Some(place) = (from..end).rev().find(|message| self.takes_breakpoint(*message))
            else {
                continue;
            };
            let tokens: u64 =
                (from..=place).map(|message| self.messages.sent_tokens(message)).sum();
            if held_tokens + tokens >= policy.target_tokens {
                places.push(place);
                held_tokens = 0;
                from = place + 1;
            }
        }
        places.split_off(places.len().saturating_sub(most))
    }

    fn takes_breakpoint(&self, message: usize) -> bool {
        let fact = &self.messages.facts[message];
        self.messages.fates[message] != Fate::Gone && fact.takes_note && fact.text_tokens > 0
    }
}
