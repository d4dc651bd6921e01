//! Treatment of a conversation in a report. Decides nothing.

/// Treatment of a conversation, whichever decisions its compaction state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// As decided by the compaction state.
    Compacted,
    /// As received, since it fits.
    LeftAlone,
    /// As received, though the compaction state decides otherwise.
    Observed,
    /// As received, since the caller disabled compaction.
    Bypassed,
}

impl Treatment {
    /// Returns whether the report shows the fates of the compaction state.
    pub(crate) fn is_by_state(self) -> bool {
        matches!(self, Self::Compacted | Self::Observed)
    }
}
