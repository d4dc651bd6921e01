//! Outcome of a request, and its name in the log, the journal and the metrics. Decides nothing.

use crate::proxy::error::ErrorKind;
use crate::proxy::hold::account::End;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// The caller left; the rest of the upstream's answer was read for its usage, or cancelled.
    CallerLeft,
    UpstreamCut,
    /// The upstream's answer reports that it failed.
    UpstreamFailed,
    IdleTimeout,
    /// The upstream refused it as too long, and it was planned again.
    Overflow,
    /// The upstream refused it in a way that may be transient, and it was sent again, there or
    /// elsewhere.
    Retried,
    /// The model called the recall tool, and the conversation was sent on with the result.
    Recalled,
    Failed(ErrorKind),
}

impl Outcome {
    /// Returns its name in the log and in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::CallerLeft => "caller_left",
            Self::UpstreamCut => "upstream_cut",
            Self::UpstreamFailed => "upstream_failed",
            Self::IdleTimeout => "idle_timeout",
            Self::Overflow => "overflow",
            Self::Retried => "retried",
            Self::Recalled => "recalled",
            Self::Failed(kind) => kind.word(),
        }
    }

    /// Returns how much was seen of the end of a request with this outcome.
    pub fn end(self) -> End {
        match self {
            Self::Complete | Self::Retried | Self::Recalled | Self::UpstreamFailed => End::Seen,
            Self::Overflow | Self::Failed(ErrorKind::UpstreamPath | ErrorKind::UpstreamFailed) => {
                End::Refused
            }
            Self::CallerLeft | Self::UpstreamCut | Self::IdleTimeout => End::Unseen,
            Self::Failed(ErrorKind::UpstreamTimeout | ErrorKind::UpstreamClosed) => End::Unseen,
            Self::Failed(_) => End::NotSent,
        }
    }
}
