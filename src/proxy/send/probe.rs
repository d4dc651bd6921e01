//! Probe requests that ask an upstream for more than it last refused, since the model behind it may
//! have been replaced by a larger one. None is sent within an hour of a refusal, and only one at a
//! time across all processes. Other requests are planned as before until a probe is accepted.

use std::sync::Arc;

use crate::proxy::admit::request::ChatRequest;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::logged::shown;
use crate::proxy::plan::{Job, Planned};
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::{Upstream, probe::Probe};
use weir_engine::compact::learned::is_telling;
use weir_engine::wire::model::ModelField;

/// Plans a job as a probe, and turns it into one, if it qualifies. It qualifies only if its
/// conversation is compacted at just this point, or would be refused: otherwise the messages sent
/// before would be rewritten for nothing.
pub async fn probed(
    settings: &Settings,
    request: &ChatRequest,
    upstream: &Upstream,
    job: &mut Job,
    planned: &Result<Planned, ProxyError>,
) -> Option<Planned> {
    let (caller, asked) = (&request.caller, request.model.name.as_deref());
    let learned = &upstream.knowledge.learned;
    let (model, received_tokens) = match planned {
        Ok(planned) if planned.is_compacted_here => {
            (planned.model.clone(), planned.received_tokens)
        }
        Err(error) if error.kind == ErrorKind::ContextLengthExceeded => {
            let named = || Some(ModelField::of(&job.body)?.model()?.to_owned());
            (job.path_model.clone().or_else(named)?, u64::MAX)
        }
        _ => return None,
    };
    let is_open = caller.check_model(asked.unwrap_or(&model), &settings.config.routes).is_ok();
    if !is_open || job.options.bypass || settings.is_observed() {
        return None;
    }
    let configured = settings.configured(&model);
    let (before, refused_ms) = learned.may_probe(job.tenant, &model, configured)?;
    let raised = before.raised(configured)?;
    if !is_telling(received_tokens, before.least_tokens()) {
        return None;
    }
    let mut probing = job.clone();
    probing.options.learned = Some(raised);
    let planned = settings.planner.plan_job(&probing).await.ok()?;
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
    job.options.learned = Some(raised);
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
