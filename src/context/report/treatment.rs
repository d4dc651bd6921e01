//! Which of a fold's decisions a report tells. Decides nothing.

/// How a conversation is treated, whatever its fold says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// As the fold says.
    Compacted,
    /// As received, since it fits so.
    LeftAlone,
    /// As received, though the fold would not.
    Observed,
    /// As received, since the caller asked for that.
    Bypassed,
}

impl Treatment {
    /// Whether the fold's fates are those that the report tells.
    pub(super) fn is_by_fold(self) -> bool {
        matches!(self, Self::Compacted | Self::Observed)
    }
}
