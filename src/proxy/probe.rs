//! Requests that ask an upstream for more than it refused last, since it may have been replaced by one
//! that takes more: none within an hour of a refusal, and one at a time over all processes. Other
//! requests are planned as before until such a request is accepted.

use std::sync::Arc;

use super::learned::Learned;
use super::planner::{Job, Planned};
use super::shared::shown;
use super::upstreams::Upstream;
use super::{Caller, ErrorKind, Proxy, ProxyError, Tenant};
use crate::config::Mode;
use crate::context::learned::{is_read_whole, is_telling};
use crate::context::{Configured, LearnedLimits, Lesson};
use crate::wire::model::Spot;

/// A request that is sent under higher limits than were learned.
pub struct Probe {
    learned: Arc<Learned>,
    tenant: Tenant,
    model: String,
    configured: Configured,
    /// What was learned before, and when the upstream refused last.
    before: LearnedLimits,
    refused_ms: u64,
    /// What it is planned under.
    raised: LearnedLimits,
    sent_tokens: u64,
    is_estimated: bool,
}

impl Proxy {
    /// What configuration and catalogue say of a model's limits.
    pub(super) fn configured(&self, model: &str) -> Configured {
        let entry = self.config.models.find(model).entry;
        let (window_tokens, max_input_tokens) = (entry.window_tokens, entry.max_input_tokens);
        Configured { window_tokens, max_input_tokens }
    }

    /// The plan of a request as a probe, and `job` made one, if this request is to be one. Only a request
    /// whose conversation is compacted at just this point, or that would be refused, is: otherwise the
    /// messages sent before would be rewritten for nothing. `asked` is the model that the `caller` asks
    /// for.
    pub(super) async fn probed(
        &self,
        upstream: &Upstream,
        (caller, asked): (&Caller, Option<&str>),
        job: &mut Job,
        planned: &Result<Planned, ProxyError>,
    ) -> Option<Planned> {
        let learned = &upstream.taught.learned;
        let (model, received_tokens) = match planned {
            Ok(planned) if planned.is_cut_here => (planned.model.clone(), planned.received_tokens),
            Err(error) if error.kind == ErrorKind::ContextLengthExceeded => {
                let named = || Some(Spot::of(&job.body)?.model()?.to_owned());
                (job.path_model.clone().or_else(named)?, u64::MAX)
            }
            _ => return None,
        };
        let is_open = caller.check_model(asked.unwrap_or(&model), &self.config.routes).is_ok();
        if !is_open || job.asked.bypass || self.config.context.mode == Mode::Observe {
            return None;
        }
        let configured = self.configured(&model);
        let (before, refused_ms) = learned.may_probe(job.tenant, &model, configured)?;
        let raised = before.raised(configured)?;
        if !is_telling(received_tokens, before.least_tokens()) {
            return None;
        }
        let mut probing = job.clone();
        probing.asked.learned = Some(raised);
        let planned = self.planner.plan_job(&probing).await.ok()?;
        let is_worth_it = is_telling(planned.sent_tokens, before.least_tokens());
        if !is_worth_it || !learned.claim_probe(job.tenant, &model, before).await {
            return None;
        }
        tracing::info!(
            target: "weir::learned",
            model = shown(&model),
            learned_tokens = before.least_tokens(),
            sent_tokens = planned.sent_tokens,
            "the upstream is asked once for more than it refused before"
        );
        let learned = Arc::clone(learned);
        let (sent_tokens, is_estimated) = (planned.sent_tokens, planned.is_calibrated);
        let tenant = job.tenant;
        job.asked.learned = Some(raised);
        job.probe = Some(Arc::new(Probe {
            learned,
            tenant,
            model,
            configured,
            before,
            refused_ms,
            raised,
            sent_tokens,
            is_estimated,
        }));
        Some(planned)
    }
}

impl Probe {
    /// What a refusal of the probe teaches where it tells no number: that nothing has changed.
    pub fn in_vain(&self) -> Lesson {
        Lesson { kept: self.before, of_this: self.before }
    }

    /// Takes that the upstream accepted the request, and what it `reported` of its prompt.
    pub fn accepted(&self, reported: Option<u64>) {
        if !is_read_whole(self.sent_tokens, reported, self.is_estimated) {
            return;
        }
        tracing::info!(
            target: "weir::learned",
            model = shown(&self.model),
            learned_tokens = self.before.least_tokens(),
            sent_tokens = self.sent_tokens,
            limit_tokens = self.raised.least_tokens(),
            "the upstream takes more than it refused before; its learned limit is raised"
        );
        let of = (self.tenant, self.model.as_str());
        self.learned.raise_limits(of, self.raised, self.configured, self.refused_ms);
    }
}
