//! Conversation as received, and an attempt for it: the upstream, the target and the body of one
//! model. Plans and sends nothing.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::find_model;
use crate::proxy::admit::caller::Caller;
use crate::proxy::admit::request::Call;
use crate::proxy::error::ProxyError;
use crate::proxy::plan::{Job, Planned, RequestOptions};
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::Upstream;
use crate::proxy::upstreams::routes::ModelOverride;
use crate::upstream::Target;
use weir_engine::wire::Protocol;
use weir_engine::wire::model::ModelField;

/// Conversation as received, the source of every attempt.
pub struct ChatRequest {
    pub method: Method,
    pub protocol: Protocol,
    /// Headers of the caller.
    pub headers: HeaderMap,
    pub target: Target,
    pub received: Bytes,
    /// Decoded body.
    pub readable: Bytes,
    pub caller: Caller,
    pub options: RequestOptions,
    /// Requested model; `None` if all conversations have one route.
    pub model: Option<String>,
    /// Whether the body named it.
    is_by_body: bool,
    /// Position of the model name in the body, if it may have to be replaced.
    field: Option<ModelField>,
}

impl ChatRequest {
    /// Collects everything that attempts need, without the caller's slot and permit.
    pub async fn new(
        settings: &Settings,
        call: Call,
        options: RequestOptions,
    ) -> Result<Self, ProxyError> {
        let readable = call.decoded.unwrap_or_else(|| call.received.clone());
        let is_routed = settings.planner.routes().are_several();
        let by_path = call.target.asked_model();
        let is_put = call.target.is_model_in_body || call.caller.has_own_models();
        let field = match is_routed || (is_put && call.target.path_model.is_some()) {
            true => find_model(readable.clone()).await?,
            false => None,
        };
        let by_body =
            field.as_ref().and_then(ModelField::model).filter(|_| is_routed && by_path.is_none());
        let is_by_body = by_body.is_some();
        // If neither names one, it is the default's own deployment, if its base names one.
        let named = by_path.as_deref().or(by_body).or(call.target.path_model.as_deref());
        let model = is_routed.then(|| named.unwrap_or_default().to_owned());
        Ok(Self {
            method: call.method,
            protocol: call.protocol,
            headers: call.headers,
            target: call.target,
            received: call.received,
            readable,
            caller: call.caller,
            options,
            model,
            is_by_body,
            field,
        })
    }
}

/// Attempt at one upstream, with one model.
pub struct Attempt {
    pub upstream: Arc<Upstream>,
    pub target: Target,
    /// Body for the upstream without further changes.
    pub received: Bytes,
    /// Whether the model was replaced, for which the body was decoded.
    pub is_renamed: bool,
    /// Its planning, with the decoded body.
    pub job: Job,
}

/// Planned attempt.
pub struct PlannedAttempt {
    pub attempt: Attempt,
    pub planned: Planned,
}

impl Attempt {
    /// Prepares an attempt on the route of `model`. `model` is `None` if there are no routes.
    pub fn new(
        settings: &Settings,
        request: &ChatRequest,
        model: Option<&str>,
    ) -> Result<Self, ProxyError> {
        let routes = settings.planner.routes();
        let (Some(model), Some(asked)) = (model, &request.model) else {
            let upstream = Arc::clone(&settings.upstreams.default);
            let target = match upstream.gets_callers_key || !request.target.has_credentials() {
                true => request.target.clone(),
                false => {
                    let asked = request.target.asked_model().unwrap_or_default();
                    request.target.onto(upstream.client.base(), &asked, false)?
                }
            };
            let renamed = request.renamed(&target, None);
            let alias_of = renamed.as_ref().and(target.path_model.clone());
            let mut attempt = Self::with_body(request, upstream, target, renamed);
            attempt.job.alias_of = alias_of;
            attempt.job.route = Some(Arc::clone(routes.unmatched()));
            return Ok(attempt);
        };
        let route = Arc::clone(routes.find(model));
        let upstream = Arc::clone(settings.upstreams.find(&route.knowledge.name));
        let sent = route.sent(model);
        let target = settings.target(&request.target, &upstream, asked, sent)?;
        let renamed = request.renamed(&target, request.is_by_body.then_some(sent));
        let alias_of = (asked != sent || renamed.is_some()).then(|| asked.clone());
        let mut attempt = Self::with_body(request, upstream, target, renamed);
        attempt.job.alias_of = alias_of;
        attempt.job.route = Some(route);
        Ok(attempt)
    }

    /// `renamed` is the body with another model in it.
    fn with_body(
        request: &ChatRequest,
        upstream: Arc<Upstream>,
        target: Target,
        renamed: Option<Bytes>,
    ) -> Self {
        let is_renamed = renamed.is_some();
        let (received, readable) = match renamed {
            Some(renamed) => (renamed.clone(), renamed),
            None => (request.received.clone(), request.readable.clone()),
        };
        let options = request.options.clone();
        let mut job = Job::new(request.caller.tenant, request.protocol, readable, options);
        job.as_of = request.caller.as_of;
        job.path_model.clone_from(&target.path_model);
        Self { upstream, target, received, is_renamed, job }
    }
}

impl ChatRequest {
    /// Returns the body with the model for `target` in it, if that is another than received.
    fn renamed(&self, target: &Target, sent: Option<&str>) -> Option<Bytes> {
        let has_own_models = self.caller.has_own_models();
        ModelOverride::of(target, sent, has_own_models).apply(&self.readable, self.field.as_ref())
    }
}
