//! Shares of the limit by kind of message: usage, kinds above their share, and the compaction that
//! reduces only the one furthest above it.

use super::{Compaction, Step};
use crate::compact::policy::{Shares, share};
use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::wire::Role;

/// Kind of message with a share of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// System messages and tools. Never compacted.
    System,
    /// Messages pinned by the caller or by a pattern.
    Anchors,
    /// All others, including notes.
    Conversation,
}

/// Size of the sent request, by category.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub system_tokens: u64,
    pub anchors_tokens: u64,
    pub conversation_tokens: u64,
    /// Tool results, which are part of the conversation or of anchors.
    pub results_tokens: u64,
}

impl Usage {
    /// Returns the categories above their share of `limit_tokens`, with the excess, the largest
    /// excess first.
    pub fn excesses(&self, shares: &Shares, limit_tokens: u64) -> Vec<(Category, u64)> {
        let mut over: Vec<(Category, u64)> = [
            (Category::System, self.system_tokens, shares.system_permille),
            (Category::Anchors, self.anchors_tokens, shares.anchors_permille),
            (Category::Conversation, self.conversation_tokens, shares.conversation_permille),
        ]
        .into_iter()
        .map(|(own, tokens, permille)| (own, tokens.saturating_sub(share(limit_tokens, permille))))
        .filter(|(_, excess)| *excess > 0)
        .collect();
        over.sort_by_key(|(_, excess)| std::cmp::Reverse(*excess));
        over
    }
}

impl Compactor {
    /// Returns the sent size by category.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage { system_tokens: self.profile.overhead_tokens, ..Usage::default() };
        for (message, fact) in self.messages.facts.iter().enumerate() {
            let Some(turn) = self.turns.of_message[message] else {
                usage.system_tokens += self.messages.sent_tokens(message);
                continue;
            };
            let turn = &self.turns.list[turn];
            if turn.is_gone {
                continue;
            }
            let tokens = self.messages.current_tokens(message);
            match turn.is_pinned_by_caller {
                true => usage.anchors_tokens += tokens,
                false => usage.conversation_tokens += tokens,
            }
            usage.results_tokens += if fact.role == Role::Tool { tokens } else { 0 };
        }
        usage.conversation_tokens += self.notes.tokens();
        usage
    }
}

impl Compaction<'_> {
    /// Compacts the category that is furthest above its share, and others only if the limit
    /// requires it.
    pub(crate) fn attack(&mut self, low_tokens: u64, source: &dyn Source) -> Step {
        let limit = self.state.profile.limit_tokens;
        let policy = &self.state.profile.policy;
        let over = self.state.usage().excesses(&policy.shares, limit);
        let first = over.iter().find(|(category, _)| *category != Category::System);
        let is_strict = policy.strict_alternation;
        if let Some((Category::Anchors, excess)) = first.filter(|_| !is_strict) {
            self.evict_anchors(*excess);
            if self.state.sizes.request_tokens <= limit {
                return Step::Evict;
            }
        }
        self.mask_or_evict(low_tokens, source)
    }

    /// Removes anchors that do not fit in their share, oldest first, until `excess_tokens` are
    /// freed.
    fn evict_anchors(&mut self, excess_tokens: u64) {
        let loose: Vec<usize> = self
            .older()
            .iter()
            .copied()
            .filter(|turn| self.turn(*turn).is_pinned_by_caller && !self.pins.contains_key(turn))
            .collect();
        let mut freed_tokens = 0;
        for turn in loose {
            if freed_tokens >= excess_tokens {
                break;
            }
            freed_tokens += self.turn(turn).tokens;
            self.evict(turn);
        }
        self.sweep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Policy;

    #[test]
    fn excesses_are_ordered_and_measured() {
        let shares = Policy::default().shares;
        for (system, anchors, conversation, expected) in [
            (150, 100, 750, vec![]),
            (200, 100, 800, vec![(Category::System, 50), (Category::Conversation, 50)]),
            (0, 500, 800, vec![(Category::Anchors, 400), (Category::Conversation, 50)]),
        ] {
            let usage = Usage {
                system_tokens: system,
                anchors_tokens: anchors,
                conversation_tokens: conversation,
                results_tokens: 0,
            };
            assert_eq!(usage.excesses(&shares, 1000), expected);
        }
    }
}
