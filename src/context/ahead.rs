//! What of the next cut is worth having summed up ahead, and in how many tokens. Asks nobody.

use super::cut::{self, Mark};
use super::fold::{Fold, share};
use super::history::{CutRecord, SummaryUse};
use super::source::Source;

/// What stands above a summary in its note takes no more than this.
const HEAD_TOKENS: u64 = 32;
/// A summary of fewer tokens is not worth a call, unless none is to have more.
const LEAST_TOKENS: u64 = 150;
/// A summary that would not be this many times shorter than what it stands for says less than
/// excerpts do.
const LEAST_SHORTENING: u64 = 6;
/// A summary of less than this share of what a cut takes leaves a call worth making.
const LEAST_SERVED_PERCENT: u64 = 25;
/// After so many cuts in a row without a summary, one is asked for every so many cuts alone.
const MOST_UNUSED: usize = 3;

/// How summaries are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking {
    /// How far a conversation is on the way from one cut to the mark of the next when the summary is
    /// begun.
    pub announce_permille: u32,
    /// The most that one may take.
    pub summary_tokens: u64,
}

/// What the next cut would turn into a note if it were made now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    /// The messages, in order.
    pub span: Vec<usize>,
    /// What a summary of them may take.
    pub summary_tokens: u64,
    /// A summary of so many of them, from the front, will do: no other is asked for.
    pub least_covers: usize,
}

impl Asking {
    /// What a summary may take whose note has `note_tokens` for it, in the place of `replaced_tokens`;
    /// `None` where that is not worth a call.
    pub fn size(&self, note_tokens: u64, replaced_tokens: u64) -> Option<u64> {
        let most = note_tokens.min(replaced_tokens / LEAST_SHORTENING);
        let tokens = most.saturating_sub(HEAD_TOKENS).min(self.summary_tokens);
        (tokens >= LEAST_TOKENS.min(self.summary_tokens)).then_some(tokens)
    }
}

impl Fold {
    /// What is to be summed up for the next cut; `None` below the announce mark, where a cut would
    /// leave no note or one without room, and mostly where the last cuts had no use for a summary.
    /// Asks for none itself. Where a cut is due already, ask this of the state that it leaves
    /// ([`Fold::ended`]).
    pub fn ahead(&self, asking: Asking, source: &dyn Source) -> Option<Ahead> {
        if !self.is_near_cut(asking.announce_permille) || self.had_no_use() {
            return None;
        }
        let (span, note_tokens) = cut::ahead(&mut self.clone(), source)?;
        let tokens = || span.iter().map(|message| self.facts()[*message].tokens);
        let replaced_tokens: u64 = tokens().sum();
        let summary_tokens = asking.size(note_tokens, replaced_tokens)?;
        let mut left_tokens = replaced_tokens * LEAST_SERVED_PERCENT / 100;
        let is_short = |own: &u64| {
            let is_short = left_tokens > 0;
            left_tokens = left_tokens.saturating_sub(*own);
            is_short
        };
        let least_covers = tokens().take_while(is_short).count();
        Some(Ahead { span, summary_tokens, least_covers })
    }

    fn is_near_cut(&self, announce_permille: u32) -> bool {
        let (_, hard_tokens) = self.due_above();
        let last = self.history().last().map_or(0, |cut| cut.after_tokens);
        let from = self.base_tokens().1.max(last).min(hard_tokens);
        self.size_tokens > from + share(hard_tokens - from, announce_permille.min(1000))
    }

    /// Whether the last cuts stand without a summary, and the next is none to try it again.
    fn had_no_use(&self) -> bool {
        let cuts = (1..=self.cuts()).filter_map(|number| self.history().cut(number));
        let hard: Vec<_> = cuts.filter(|cut| cut.mark == Mark::Hard).collect();
        let is_used = |cut: &CutRecord| matches!(cut.summary, SummaryUse::Used { .. });
        hard.len() >= MOST_UNUSED
            && !hard.len().is_multiple_of(MOST_UNUSED)
            && !hard[hard.len() - MOST_UNUSED..].iter().any(is_used)
    }
}
