//! What is to be planned, and what a plan says. Decides nothing.

use std::sync::Arc;

use bytes::Bytes;

use super::budgets::Report;
use super::edited;
use super::memory::{LastSent, Sent};
use super::probe::Probe;
use super::summaries::{Behalf, Look, Patience, Wanted};
use super::ways::Way;
use super::{LeftOut, Tenant};
use crate::budget::{Compaction, ServiceTier};
use crate::context::{Fold, LearnedLimits, Limits, Zone};
use crate::tokens::Encoding;
use crate::wire::Protocol;
use crate::wire::asking::Put;

/// One request to plan.
#[derive(Clone)]
pub struct Job {
    pub tenant: Tenant,
    pub protocol: Protocol,
    /// The body, decoded.
    pub body: Bytes,
    /// The model named by the path (Azure's deployments), which then counts instead of the body's.
    pub path_model: Option<String>,
    pub asked: Asked,
    /// The way it goes; `None` for the one of models that fit no route.
    pub way: Option<Arc<Way>>,
    /// The model that the caller asked for, where the body has another in its place.
    pub alias_of: Option<String>,
    /// On whose behalf summaries are made that this request waits for; `None` where it is not sent.
    pub behalf: Option<Arc<Behalf>>,
    /// [`Caller::as_of`](super::Caller::as_of).
    pub as_of: Option<u64>,
    /// What is to be found out by it of the model's limits.
    pub(super) probe: Option<Arc<Probe>>,
    /// What may be done where no summary stands yet; the planner's to decide.
    pub(super) patience: Patience,
}

impl Job {
    /// A request that is only looked at, whose model its body names.
    pub fn new(tenant: Tenant, protocol: Protocol, body: Bytes, asked: Asked) -> Self {
        let (path_model, way, alias_of, behalf) = (None, None, None, None);
        let (as_of, probe, patience) = (None, None, Patience::Looks);
        Self {
            tenant,
            protocol,
            body,
            path_model,
            asked,
            way,
            alias_of,
            behalf,
            as_of,
            probe,
            patience,
        }
    }
}

/// What the caller's headers ask of the plan.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// `x-weir-max-input-tokens`: lowers this request's limit.
    pub max_input_tokens: Option<u64>,
    /// `x-weir-bypass`: forward untouched.
    pub bypass: bool,
    /// `x-weir-policy`: the policy to plan by, one of those allowed.
    pub policy: Option<String>,
    /// What the refusal of this very request taught, in the place of what is kept of its model.
    pub learned: Option<LearnedLimits>,
    /// The most output of each answer that its budgets have room for.
    pub max_output_tokens: Option<u64>,
    /// Whether the upstream has refused to be asked for this request's usage.
    pub is_usage_refused: bool,
}

/// What is sent, and what there is to tell about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The body to send; `None` forwards it as received.
    pub body: Option<Bytes>,
    /// `x-weir-action`, such as `pass` or `evict+fit`.
    pub action: String,
    /// `x-weir-edits`; empty where there are none.
    pub edits: String,
    pub received_tokens: u64,
    pub sent_tokens: u64,
    pub limit_tokens: u64,
    pub messages: u32,
    /// Cuts that the conversation has seen.
    pub cuts: u32,
    /// Whether the last of them is made at this very request.
    pub is_cut_here: bool,
    /// Messages not sent whole, where originals are kept; else empty.
    pub left_out: LeftOut,
    pub model: String,
    /// Where it goes, if that is another upstream than the default.
    pub upstream: Option<Arc<str>>,
    pub stream: bool,
    /// The question for the stream's usage in `body`, where weir has put one there.
    pub usage_asked: Option<Put>,
    /// How full the context is.
    pub zone: Zone,
    /// What was done to the conversation, for what it saved.
    pub compaction: Compaction,
    /// The most output that the request lets the model write.
    pub max_output_tokens: Option<u64>,
    /// How many answers it wants.
    pub choices: u64,
    /// How it is to be served, where it says so.
    pub service_tier: Option<ServiceTier>,
    /// Whether its output limit can be lowered, or one be put.
    pub is_clampable: bool,
    /// What the plan was made under.
    pub limits: Limits,
    /// Whether weir knows the model by its name.
    pub is_model_known: bool,
    /// How texts were counted.
    pub encoding: Encoding,
    /// Whether the model's own counts correct weir's.
    pub is_calibrated: bool,
    /// How the last cut that was made for this request came by what stands there, where a model
    /// sums up.
    pub summary: Option<Look>,
    /// What is to be summed up for the next cut.
    pub ahead: Option<Wanted>,
    /// How its budgets stand.
    pub budget: Option<Report>,
    /// The steps of the compactions that no request before this one had, in the words of `action`;
    /// empty if there are none.
    pub compacted_by: String,
    /// What is noted once an upstream has taken the request.
    pub progress: Option<Progress>,
}

/// A conversation as it is, and the request of it that an upstream took last.
pub(super) struct Folded {
    pub(super) fold: Arc<Fold>,
    pub(super) last_sent: LastSent,
}

impl Folded {
    pub(super) fn progress(&self, compactions: u32) -> Progress {
        Progress::new(&self.last_sent, self.fold.received_tokens(), compactions)
    }
}

/// A request that may become the last one of its conversation that an upstream took.
#[derive(Debug, Clone)]
pub struct Progress {
    pub(super) last_sent: LastSent,
    pub(super) sent: Sent,
}

impl Progress {
    /// Of a request with so many tokens of messages, shaped by so many compactions.
    pub(super) fn new(last_sent: &LastSent, received_tokens: u64, compactions: u32) -> Self {
        Self { last_sent: last_sent.clone(), sent: Sent { received_tokens, compactions } }
    }

    /// Notes that an upstream took the request, and returns whether it is the first with its
    /// compactions.
    pub fn note(&self) -> bool {
        let before = self.last_sent.set(self.sent);
        self.sent.compactions > before.map_or(0, |before| before.compactions)
    }
}

/// Two plans are the same if they send the same, whatever was sent before.
impl PartialEq for Progress {
    fn eq(&self, other: &Self) -> bool {
        self.sent == other.sent
    }
}

impl Eq for Progress {}

impl Planned {
    /// Whether less of the conversation would reach the model than the caller sent.
    pub fn loses(&self) -> bool {
        self.cuts > 0 || self.received_tokens > self.limit_tokens
    }

    /// Replaces a plan that the upstream refused by the one that is sent again.
    pub fn replace_refused(&mut self, again: Self) {
        // Under another limit nothing is remembered of the conversation, and yet the provider has in
        // its cache what it took last.
        let earlier_tokens = again.compaction.earlier_tokens.or(self.compaction.earlier_tokens);
        *self = again;
        self.compaction.earlier_tokens = earlier_tokens;
    }

    /// The request without weir's question for its usage: what to send to an upstream that refuses
    /// it. `sent` is the body with the question.
    pub fn unask(&mut self, sent: &[u8]) -> Option<Bytes> {
        let asked = self.usage_asked.take()?;
        let names = self.edits.split(',').filter(|name| *name != edited::USAGE);
        self.edits = names.collect::<Vec<_>>().join(",");
        Some(asked.taken_back(sent).into())
    }
}
