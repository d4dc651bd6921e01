//! Attempt of a conversation: the upstream, the target and the plan for one model. Sends nothing.

use std::sync::Arc;

use super::probe;
use crate::proxy::admit::request::{ChatRequest, RequestOptions};
use crate::proxy::error::ProxyError;
use crate::proxy::plan::{Job, Planned};
use crate::proxy::settings::Settings;
use crate::proxy::summaries::Requester;
use crate::proxy::upstreams::Upstream;
use crate::upstream::Target;
use weir_store::Tenant;

/// Attempt at one upstream, with one model.
#[derive(Clone)]
pub struct Attempt {
    /// The model that it is for, as the caller or its route names it.
    asked: Option<String>,
    pub upstream: Arc<Upstream>,
    pub target: Target,
    pub job: Job,
    pub planned: Planned,
}

impl Attempt {
    /// Plans an attempt for `model` that may not be made: it settles nothing.
    pub async fn look(
        settings: &Settings,
        request: &ChatRequest,
        model: Option<&str>,
    ) -> Result<Self, ProxyError> {
        let (upstream, target, mut job) = request.job(settings, model)?;
        let planned = settings.planner.plan_fitting(&mut job).await?;
        Ok(Self { asked: model.map(str::to_owned), upstream, target, job, planned })
    }

    /// Plans the next round of this attempt: the `request` continued, for the same model and with the
    /// options that the upstream has accepted.
    pub async fn continued(
        &self,
        settings: &Settings,
        request: &ChatRequest,
    ) -> Result<Self, ProxyError> {
        let (upstream, target, mut job) = request.job(settings, self.asked.as_deref())?;
        job.options = RequestOptions { max_output_tokens: None, ..self.job.options.clone() };
        job.requester.clone_from(&self.job.requester);
        let planned = settings.planner.plan_fitting(&mut job).await?;
        Ok(Self { asked: self.asked.clone(), upstream, target, job, planned })
    }

    /// Plans an attempt for `model`.
    pub async fn ready(
        settings: &Settings,
        request: &ChatRequest,
        model: Option<&str>,
    ) -> Result<Self, ProxyError> {
        let (upstream, target, mut job) = request.job(settings, model)?;
        job.requester = settings.summaries.as_ref().map(|_| {
            Arc::new(Requester {
                caller: request.caller.clone(),
                headers: request.headers.clone(),
                target: target.clone(),
                protocol: request.protocol,
                upstream: Arc::clone(&upstream),
            })
        });
        let planned = settings.planner.plan_fitting(&mut job).await;
        let planned = match probe::probed(settings, request, &upstream, &mut job, &planned).await {
            Some(probing) => probing,
            None => planned?,
        };
        Ok(Self { asked: model.map(str::to_owned), upstream, target, job, planned })
    }

    /// Whether its upstream may be asked while another could be.
    pub fn may_be_asked(&self, tenant: Tenant) -> bool {
        self.upstream.may_be_asked((tenant, &self.planned.model))
    }

    /// Completes a tentative attempt for `model` with the records of its compactions, if summaries
    /// are enabled.
    pub async fn settled(
        self,
        settings: &Settings,
        request: &ChatRequest,
        model: Option<&str>,
    ) -> Result<Self, ProxyError> {
        match settings.summaries.is_some() && self.job.requester.is_none() {
            true => Self::ready(settings, request, model).await,
            false => Ok(self),
        }
    }
}
