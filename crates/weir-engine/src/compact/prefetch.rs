//! Summary prefetch: which messages the next compaction will replace, and how long a summary of
//! them may be. Requests no summary itself.

use super::source::Source;
use crate::compact::passes;
use crate::compact::state::Compactor;
use crate::compact::state::history::{CompactionRecord, Mark, SummaryUse};

/// Maximum size of the lines above a summary in its note.
const HEAD_TOKENS: u64 = 32;
/// Minimum size of a summary worth a model call, unless the configured maximum is lower.
const LEAST_TOKENS: u64 = 150;
/// Minimum ratio between the replaced messages and their summary. Below it excerpts carry more.
const LEAST_SHORTENING: u64 = 6;
/// A summary that covers less than this share of a compaction does not prevent another call.
const LEAST_SERVED_PERCENT: u64 = 25;
/// After this many consecutive compactions without a summary, only every so many compactions
/// request one.
const MOST_UNUSED: usize = 3;

/// Settings for requesting summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefetchSettings {
    /// Point between one compaction and the next compaction's mark at which a summary is requested.
    pub mark_permille: u32,
    /// Maximum size of a summary.
    pub summary_tokens: u64,
}

/// Messages that the next compaction would turn into a note if it happened now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefetch {
    /// The messages, in order.
    pub span: Vec<usize>,
    /// Maximum size of their summary.
    pub summary_tokens: u64,
    /// Number of messages from the front that an existing summary must cover to make another
    /// unnecessary.
    pub least_covers: usize,
}

impl PrefetchSettings {
    /// Returns the maximum size of a summary for a note with `note_tokens` of room that replaces
    /// `replaced_tokens`; `None` if a call is not worthwhile.
    pub fn size(&self, note_tokens: u64, replaced_tokens: u64) -> Option<u64> {
        let most = note_tokens.min(replaced_tokens / LEAST_SHORTENING);
        let tokens = most.saturating_sub(HEAD_TOKENS).min(self.summary_tokens);
        (tokens >= LEAST_TOKENS.min(self.summary_tokens)).then_some(tokens)
    }
}

impl Compactor {
    /// Returns the messages to summarise for the next compaction. `None` below the prefetch mark,
    /// if a compaction would leave no note or one without room, and usually if the last compactions
    /// used no summary. Requests none itself. If a compaction is due already, call this on the
    /// state after it ([`Compactor::ended`]).
    pub(crate) fn prefetch(
        &self,
        settings: PrefetchSettings,
        source: &dyn Source,
    ) -> Option<Prefetch> {
        if !self.is_near_compaction(settings.mark_permille) || self.had_no_use() {
            return None;
        }
        let (span, note_tokens) = passes::prefetch(&mut self.clone(), source)?;
        let tokens = || span.iter().map(|message| self.facts()[*message].tokens);
        let replaced_tokens: u64 = tokens().sum();
        let summary_tokens = settings.size(note_tokens, replaced_tokens)?;
        let mut left_tokens = replaced_tokens * LEAST_SERVED_PERCENT / 100;
        let is_short = |own: &u64| {
            let is_short = left_tokens > 0;
            left_tokens = left_tokens.saturating_sub(*own);
            is_short
        };
        let least_covers = tokens().take_while(is_short).count();
        Some(Prefetch { span, summary_tokens, least_covers })
    }

    fn is_near_compaction(&self, mark_permille: u32) -> bool {
        self.sizes.request_tokens > self.on_the_way(mark_permille)
    }

    /// Returns whether the last compactions used no summary and the next one is not due to try
    /// again.
    fn had_no_use(&self) -> bool {
        let compactions =
            (1..=self.compactions()).filter_map(|number| self.history().compaction(number));
        let hard: Vec<_> = compactions.filter(|compaction| compaction.mark == Mark::Hard).collect();
        let is_used =
            |compaction: &CompactionRecord| matches!(compaction.summary, SummaryUse::Used { .. });
        hard.len() >= MOST_UNUSED
            && !hard.len().is_multiple_of(MOST_UNUSED)
            && !hard[hard.len() - MOST_UNUSED..].iter().any(is_used)
    }
}
