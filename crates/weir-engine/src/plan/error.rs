//! Reasons why a request has no plan.

use std::error::Error;
use std::fmt;

use super::Plan;
use crate::compact::Floor;
use crate::compact::report::Treatment;
use crate::wire::FieldError;

/// Reason why a request has no plan.
#[derive(Debug, Clone)]
pub enum PlanError {
    /// A message cannot be read.
    Message { index: usize, error: FieldError },
    /// The request exceeds its limit, however much is removed.
    CannotFit(Box<CannotFit>),
    /// The work was to end ([`Known::is_over`](super::Known::is_over)) after so many compactions.
    Stopped { compactions: u32 },
}

/// Request that cannot be brought within its limit.
#[derive(Debug, Clone)]
pub struct CannotFit {
    /// The plan as far as it came: nothing of it is sent. Its `sent_tokens` are the fewest that were
    /// reached.
    pub plan: Plan,
    /// The limit that it exceeds.
    pub limit_tokens: u64,
}

impl CannotFit {
    pub(super) fn of(plan: Plan, limit_tokens: u64) -> PlanError {
        let plan = Plan { action: "refuse".to_owned(), ..plan };
        PlanError::CannotFit(Box::new(Self { plan, limit_tokens }))
    }

    /// Returns the sizes of the parts that must stay.
    pub fn floor(&self) -> Floor {
        self.plan.end.floor()
    }

    /// Whether compaction was bypassed.
    pub fn is_bypassed(&self) -> bool {
        self.plan.treatment == Treatment::Bypassed
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { index, error } => write!(formatter, "message {index}: {error:?}"),
            Self::CannotFit(error) => error.fmt(formatter),
            Self::Stopped { compactions } => {
                write!(formatter, "stopped after {compactions} compactions")
            }
        }
    }
}

impl fmt::Display for CannotFit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent_tokens, limit_tokens) = (self.plan.sent_tokens, self.limit_tokens);
        write!(formatter, "the parts that must stay take {sent_tokens} of {limit_tokens} tokens")
    }
}

impl Error for CannotFit {}

impl Error for PlanError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Message { .. } | Self::Stopped { .. } => None,
            Self::CannotFit(error) => Some(&**error),
        }
    }
}
