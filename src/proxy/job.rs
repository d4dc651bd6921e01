//! Request before its plan: its options and its model are read, and the job of its plan is prepared for the
//! upstream of its route.

use std::sync::Arc;

use super::admit::request::{ChatRequest, RequestedModel, on_time};
use super::error::ProxyError;
use super::headers;
use super::plan::{Job, WithoutRecall};
use super::settings::Settings;
use super::upstreams::{Upstream, routes::ModelOverride};
use crate::upstream::Target;
use weir_engine::wire::model::ModelField;

impl ChatRequest {
    /// Reads the options in the request's headers, and finds the model that it names.
    pub async fn read(&mut self, settings: &Settings) -> Result<(), ProxyError> {
        self.options = headers::options(&self.headers, &settings.config.context, &self.caller)?;
        let is_routed = settings.planner.routes().are_several();
        let by_path = self.target.asked_model();
        let is_put = self.target.is_model_in_body || self.caller.has_own_models();
        let field = match is_routed || (is_put && self.target.path_model.is_some()) {
            true => {
                let body = self.decoded.clone();
                on_time(body.len(), move || ModelField::of(&body)).await?
            }
            false => None,
        };
        let by_body =
            field.as_ref().and_then(ModelField::model).filter(|_| is_routed && by_path.is_none());
        let is_by_body = by_body.is_some();
        // If neither names one, it is the default's own deployment, if its base names one.
        let named = by_path.as_deref().or(by_body).or(self.target.path_model.as_deref());
        let name = is_routed.then(|| named.unwrap_or_default().to_owned());
        self.model = RequestedModel { name, is_by_body, field };
        Ok(())
    }

    /// Prepares the planning for the route of `model`, with its upstream and target. `model` is
    /// `None` if there are no routes.
    pub fn job(
        &self,
        settings: &Settings,
        model: Option<&str>,
    ) -> Result<(Arc<Upstream>, Target, Job), ProxyError> {
        let routes = settings.planner.routes();
        let (upstream, target, mut job) = match (model, &self.model.name) {
            (Some(model), Some(asked)) => {
                let route = Arc::clone(routes.find(model));
                let upstream = Arc::clone(settings.upstreams.find(&route.knowledge.name));
                let sent = route.sent(model);
                let target = settings.target(&self.target, &upstream, asked, sent)?;
                let mut job = self.job_for(&target, self.model.is_by_body.then_some(sent));
                job.alias_of = (asked != sent || job.is_renamed).then(|| asked.clone());
                job.route = Some(route);
                (upstream, target, job)
            }
            _ => {
                let upstream = Arc::clone(&settings.upstreams.default);
                let target = match upstream.gets_callers_key || !self.target.has_credentials() {
                    true => self.target.clone(),
                    false => {
                        let asked = self.target.asked_model().unwrap_or_default();
                        self.target.onto(upstream.client.base(), &asked, false)?
                    }
                };
                let mut job = self.job_for(&target, None);
                job.alias_of = target.path_model.clone().filter(|_| job.is_renamed);
                job.route = Some(Arc::clone(routes.unmatched()));
                (upstream, target, job)
            }
        };
        upstream.check_protocol(&target)?;
        job.path_model.clone_from(&target.path_model);
        Ok((upstream, target, job))
    }

    /// Prepares the planning of the body for `target`, with the model `sent` in it if the body names
    /// one.
    fn job_for(&self, target: &Target, sent: Option<&str>) -> Job {
        let has_own_models = self.caller.has_own_models();
        let put = ModelOverride::of(target, sent, has_own_models);
        let renamed = put.apply(&self.decoded, self.model.field.as_ref());
        let is_renamed = renamed.is_some();
        let body = renamed.unwrap_or_else(|| self.decoded.clone());
        let mut job = Job::new(self.caller.tenant, self.protocol, body, self.options.clone());
        job.is_renamed = is_renamed;
        job.asked.clone_from(&self.asked);
        job.without_recall = self.recall.as_ref().map(|offer| {
            let renamed = put.apply(&offer.plain, offer.model.as_ref());
            let body = renamed.unwrap_or_else(|| offer.plain.clone());
            WithoutRecall { body, edits: offer.edits.clone() }
        });
        job.as_of = self.caller.as_of;
        job
    }
}
