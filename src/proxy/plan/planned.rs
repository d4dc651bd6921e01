//! Input and result of planning. Decides nothing.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::decisions::Begun;
use super::effort::Effort;
use super::plan_cache::{LastSent, Sent};
use super::read_ahead::ReadAhead;
use crate::proxy::admit::attribution::BodyLabels;
use crate::proxy::admit::class::RequestClass;
use crate::proxy::admit::request::{Asked, RequestOptions};
use crate::proxy::summaries::{PrefetchSpan, Requester, SummaryOutcome, WaitMode};
use crate::proxy::upstreams::probe::Probe;
use crate::proxy::upstreams::routes::Route;
use tokio::time::Instant;
use weir_engine::compact::policy::clearing::Cleared;
use weir_engine::compact::{Fate, Limits, Zone};
use weir_engine::plan::USAGE;
use weir_engine::tokens::Encoding;
use weir_engine::wire::usage_option::AddedUsageOption;
use weir_engine::wire::{Protocol, Request};
use weir_store::Tenant;
use weir_store::budget::Compaction;

/// Action of a conversation that is forwarded unread.
pub const UNREAD: &str = "unread";

/// Request to plan.
#[derive(Clone)]
pub struct Job {
    pub tenant: Tenant,
    pub protocol: Protocol,
    /// Decoded body, with the model for its upstream.
    pub body: Bytes,
    /// Whether its model is another than received.
    pub is_renamed: bool,
    /// Model named by the path (Azure's deployments), which takes precedence over the body's.
    pub path_model: Option<String>,
    pub options: RequestOptions,
    /// Compaction that its caller asks for.
    pub asked: Asked,
    /// The same request without the recall tool; `None` if it has none.
    pub without_recall: Option<WithoutRecall>,
    /// Its route; `None` for the route of models that match no row.
    pub route: Option<Arc<Route>>,
    /// Requested model, if the body has another one instead.
    pub alias_of: Option<String>,
    /// Requester of the summaries that this request waits for; `None` if it is not sent.
    pub requester: Option<Arc<Requester>>,
    /// [`Caller::as_of`](crate::proxy::Caller::as_of).
    pub as_of: Option<u64>,
    /// Probe of the model's limits by this request.
    pub(crate) probe: Option<Arc<Probe>>,
    /// Wait mode if no summary record exists yet; set by the planner.
    pub(crate) wait_mode: WaitMode,
    /// Bound on its work; set by the planner for work that may be long.
    pub(crate) effort: Option<Effort>,
}

impl Job {
    /// Creates a job for a request that is only examined, whose body names its model.
    pub fn new(tenant: Tenant, protocol: Protocol, body: Bytes, options: RequestOptions) -> Self {
        let (path_model, route, alias_of, requester) = (None, None, None, None);
        let (is_renamed, as_of, probe, wait_mode) = (false, None, None, WaitMode::LookOnly);
        Self {
            tenant,
            protocol,
            body,
            is_renamed,
            path_model,
            options,
            asked: Asked::default(),
            without_recall: None,
            route,
            alias_of,
            requester,
            as_of,
            probe,
            wait_mode,
            effort: None,
        }
    }
}

impl Job {
    /// Leaves the recall tool and earlier recalls out. Returns whether there were any.
    pub(crate) fn leave_out_recall(&mut self) -> bool {
        let Some(WithoutRecall { body, edits }) = self.without_recall.take() else { return false };
        (self.body, self.asked.edits) = (body, edits);
        true
    }
}

/// Request without the recall tool, for a plan that has no room for it.
#[derive(Clone)]
pub struct WithoutRecall {
    /// Decoded body, with the model for its upstream.
    pub body: Bytes,
    /// Names of the edits that it has.
    pub edits: Vec<&'static str>,
}

/// Result of planning: the body to send, and facts about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Body to send; `None` forwards it as received.
    pub body: Option<Bytes>,
    /// `x-weir-action`, such as `pass` or `evict+fit`.
    pub action: String,
    /// Member that refers to a conversation kept by the provider, if the request has one.
    pub provider_state: Option<&'static str>,
    /// Labels that the body gives.
    pub labels: BodyLabels,
    /// `x-weir-edits`; empty if there are none.
    pub edits: String,
    pub received_tokens: u64,
    pub sent_tokens: u64,
    pub limit_tokens: u64,
    pub messages: u32,
    /// Number of compactions of the conversation.
    pub compactions: u32,
    /// Whether the last of them is made at this very request.
    pub is_compacted_here: bool,
    /// Messages not sent whole, if originals are kept; else empty.
    pub left_out: LeftOut,
    pub model: String,
    /// Name of its upstream, if not the default.
    pub upstream: Option<Arc<str>>,
    pub stream: bool,
    /// Usage request in `body`, if weir added one.
    pub usage_request: Option<AddedUsageOption>,
    /// How full the context is.
    pub zone: Zone,
    /// Facts of the compaction, to compute its savings.
    pub compaction: Compaction,
    /// Output limit that the request sets.
    pub max_output_tokens: Option<u64>,
    /// Whether its output limit can be lowered or set.
    pub is_clampable: bool,
    /// Limits of the plan.
    pub limits: Limits,
    /// Whether weir knows the model by its name.
    pub is_model_known: bool,
    /// Encoding of the token counts.
    pub encoding: Encoding,
    /// Whether the model's own counts correct weir's.
    pub is_calibrated: bool,
    /// Source of the record for the last compaction made for this request, if summaries are
    /// enabled.
    pub summary: Option<SummaryOutcome>,
    /// Summary to prefetch for the next compaction.
    pub prefetch: Option<PrefetchSpan>,
    /// The conversation as it is sent, if its caller asks for a shorter one and it is compacted.
    pub shortened: Option<Box<ShortenedItems>>,
    /// Amounts that the caller's own rules cleared.
    pub cleared: Cleared,
    /// State of its budgets.
    pub budget: Option<BudgetReport>,
    /// Expected saving of the compaction that observe mode leaves out, if the model has a price.
    pub planned_saved_nano_usd: Option<i64>,
    /// Steps of the compactions that no earlier request had, in the words of `action`; empty if
    /// there are none.
    pub compacted_by: String,
    /// Recorded once an upstream has accepted the request.
    pub progress: Option<Progress>,
    /// Decisions to record before it is sent.
    pub begun: Option<Begun>,
    /// Reading for the next compaction, to do once it is sent.
    pub read_ahead: ReadAhead,
    /// Class of the request by its client's headers, or by the fixed prompt of an agent that compacts
    /// its own conversation.
    pub class: Option<RequestClass>,
}

/// Report to a caller on the budgets that apply to its request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BudgetReport {
    /// Dollars held for the request until it ends, if a budget is in money.
    pub held_usd: Option<String>,
    /// Smallest remainder of any budget in money, in dollars.
    pub left_usd: Option<String>,
    /// Smallest remainder of any budget in tokens.
    pub left_tokens: Option<u64>,
    /// Budgets that have passed their warning mark.
    pub warning: Option<String>,
}

/// Messages of a request that are not sent whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Spans of these messages in the decoded body.
    pub spans: Vec<Range<usize>>,
    pub protocol: Protocol,
}

impl LeftOut {
    /// Collects the messages of `request`, parsed from `body`, that are not `Kept`.
    pub fn of(body: &[u8], request: &Request<'_>, fates: &[Fate]) -> Self {
        let pairs = request.messages.iter().zip(fates);
        let spans = pairs.filter(|(_, fate)| **fate != Fate::Kept).map(|(raw, _)| {
            let start = raw.as_ptr() as usize - body.as_ptr() as usize;
            start..start + raw.len()
        });
        Self { spans: spans.collect(), protocol: request.protocol }
    }
}

/// Conversation that was shortened, as a list of items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortenedItems {
    /// Items that stay as received, joined by commas.
    pub kept: String,
    /// Items that a compaction item stands for, joined by commas.
    pub rest: String,
    /// Items behind that one, joined by commas.
    pub open: String,
    /// Size of `rest`.
    pub rest_tokens: u64,
}

/// Request that may become the last one of its conversation accepted by an upstream.
#[derive(Debug, Clone)]
pub struct Progress {
    pub(super) last_sent: LastSent,
    pub(super) sent: Sent,
}

impl Progress {
    /// Describes a request with so many tokens of messages and so many compactions.
    pub(super) fn new(last_sent: &LastSent, received_tokens: u64, compactions: u32) -> Self {
        Self { last_sent: last_sent.clone(), sent: Sent { received_tokens, compactions } }
    }

    /// Records that an upstream accepted the request at this time, and returns whether it is the first with its
    /// compactions.
    pub fn note(&self, at: Instant) -> bool {
        let before = self.last_sent.set(self.sent, at);
        self.sent.compactions > before.map_or(0, |before| before.compactions)
    }
}

/// Two plans are equal if they send the same, regardless of earlier requests.
impl PartialEq for Progress {
    fn eq(&self, other: &Self) -> bool {
        self.sent == other.sent
    }
}

impl Eq for Progress {}

impl Planned {
    /// Prompt tokens that would be sent without observe mode; `None` if they are those that are sent.
    pub fn planned_tokens(&self) -> Option<u64> {
        self.compaction.observed.map(|observed| observed.sent_tokens)
    }

    /// Whether the model receives less of the conversation than the caller sent.
    pub fn loses(&self) -> bool {
        self.compactions > 0 || self.received_tokens > self.limit_tokens
    }

    /// Replaces a plan that the upstream refused by the one that is sent again.
    pub fn replace_refused(&mut self, again: Self) {
        // Under another limit nothing is remembered of the conversation, although the provider's
        // cache still has its last accepted request.
        let earlier_tokens = again.compaction.earlier_tokens.or(self.compaction.earlier_tokens);
        *self = again;
        self.compaction.earlier_tokens = earlier_tokens;
    }

    /// Removes weir's usage request, for an upstream that refuses it. `sent` is the body with it.
    pub fn remove_usage_request(&mut self, sent: &[u8]) -> Option<Bytes> {
        let asked = self.usage_request.take()?;
        let names = self.edits.split(',').filter(|name| *name != USAGE);
        self.edits = names.collect::<Vec<_>>().join(",");
        Some(asked.removed_from(sent).into())
    }
}
