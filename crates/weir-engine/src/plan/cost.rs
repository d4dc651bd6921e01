//! Cost of a plan, known before it starts: what is not counted yet, and whether content must be read.

use std::sync::Arc;

use super::{Known, Mode, PlanOptions};
use crate::compact::{Compactor, Fact, Notes, recall};
use crate::wire::Request;

/// Bytes of JSON text that take a token in nearly any conversation: most take fewer.
const EXPECTED_BYTES_PER_TOKEN: u64 = 6;

/// Work that a plan takes, given what is at hand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the messages that are not counted yet.
    pub uncounted_bytes: usize,
    /// Bytes of the largest item outside the messages that is not counted yet.
    pub largest_uncounted_extra_bytes: usize,
    /// Bytes of the messages in which the policy's patterns are searched.
    pub searched_bytes: usize,
    /// Whether a compaction is due, as far as the messages are counted.
    pub is_compaction_due: bool,
    /// Whether a compaction is likely to ask what the uncounted messages say. Then they are best counted
    /// and parsed at once ([`Measure::read`](crate::Measure::read)).
    pub is_read_likely: bool,
    /// Whether removed messages may be searched for an answer to the last one, as far as the messages
    /// are counted.
    pub is_recall_possible: bool,
}

/// Determines the cost of the plan of `request`. Counts nothing.
pub fn cost(request: &Request<'_>, options: &PlanOptions, known: &dyn Known) -> Cost {
    let (mut largest_uncounted_extra_bytes, mut extras_tokens) = (0, 0);
    for (index, extra) in request.extras.iter().enumerate() {
        match known.extra_tokens(index) {
            Some(tokens) => extras_tokens += tokens,
            None => {
                largest_uncounted_extra_bytes = largest_uncounted_extra_bytes.max(extra.raw.len());
            }
        }
    }
    let state = known.state().unwrap_or_else(|| {
        Arc::new(Compactor::new(Arc::new(options.profile(request, extras_tokens))))
    });
    let (mut uncounted_bytes, mut new_bytes) = (0, 0);
    let mut facts: Vec<Fact> = Vec::new();
    for (index, raw) in request.messages.iter().enumerate().skip(state.messages()) {
        new_bytes += raw.len();
        match known.fact(index) {
            Some(fact) => facts.push(fact),
            None => uncounted_bytes += raw.len(),
        }
    }
    let new_tokens = facts.iter().map(|fact| fact.tokens).sum();
    // A bypass leaves out the compaction that is due at the end.
    let is_done = options.mode == Mode::Bypass && state.messages() == request.messages.len();
    Cost {
        uncounted_bytes,
        largest_uncounted_extra_bytes,
        searched_bytes: if options.policy.anchors.is_empty() { 0 } else { new_bytes },
        is_read_likely: options.policy.notes == Notes::Excerpts
            && state.is_above_mark(new_tokens + uncounted_bytes as u64 / EXPECTED_BYTES_PER_TOKEN),
        is_compaction_due: !is_done && state.is_above_mark(new_tokens),
        is_recall_possible: options.mode == Mode::Compact && recall::may_follow(&state, &facts),
    }
}
