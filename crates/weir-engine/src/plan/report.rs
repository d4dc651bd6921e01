//! Reports about a plan. They describe what the plan holds and decide nothing.

use super::Plan;
use crate::compact::report::{self, Base, Category, Preflight, Report, Subject};
use crate::wire::Request;

/// Names in a report that the plan does not hold.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub model: &'a str,
    /// Policy that the plan follows.
    pub policy: &'a str,
    pub is_model_known: bool,
    /// Names of all edits, as in the header `x-weir-edits`.
    pub edits: &'a str,
    /// Reason why the request would be refused.
    pub refusal: Option<&'a str>,
}

impl Plan {
    /// Describes the plan of `request`.
    pub fn report(&self, request: &Request<'_>, names: &Names<'_>) -> Report {
        Report::new(&Subject {
            state: &self.end,
            recall: self.recall.as_ref(),
            protocol: request.protocol,
            messages: &request.messages,
            model: names.model,
            policy: names.policy,
            is_model_known: names.is_model_known,
            limits: &self.limits,
            overhead_tokens: self.overhead_tokens,
            treatment: self.treatment,
            action: &self.action,
            edits: names.edits,
            refusal: names.refusal,
            sent_tokens: self.sent_tokens,
        })
    }

    /// Forecasts what becomes of `content` if it is the next message.
    pub fn preflight(&self, request: &Request<'_>, category: Category, content: &str) -> Preflight {
        let base = Base {
            state: &self.state,
            protocol: request.protocol,
            messages: &request.messages,
            limit_tokens: self.limit_tokens,
            overhead_tokens: self.overhead_tokens,
        };
        report::preflight(&base, category, content)
    }
}
