//! Compaction for callers that ask for it: shorter conversations for `/v1/responses/compact`, items that
//! stand for earlier ones, and `context_management`, for upstreams that do not have them. Plans nothing:
//! the engine does.

pub mod answer;
pub mod edits;
pub mod managed;
pub mod open;
pub mod seal;

use super::admit::request::{AskedCompaction, ChatRequest};
use super::error::Proxied;
use super::settings::Settings;
use super::upstreams::Upstream;
use weir_engine::wire::Protocol;

/// Opens the items of a request that weir has sealed, and reads its options and its model.
pub async fn read(settings: &Settings, request: &mut ChatRequest) -> Proxied<()> {
    if request.protocol == Protocol::Responses
        && let Some(body) = open::opened(settings, request).await?
    {
        request.replace(body, open::EDIT);
    }
    request.read(settings).await
}

/// Takes out of a request what asks for compaction if its upstream does not have that: the member
/// `context_management`, and items that ask for it now.
pub async fn manage(settings: &Settings, request: &mut ChatRequest) -> Proxied<()> {
    let (has_member, has_trigger) =
        (managed::may_be_in(&request.decoded), managed::may_be_triggered(&request.decoded));
    let is_left = request.options.bypass || settings.is_observed();
    if is_left || !(has_member || has_trigger) || upstream(settings, request).compacts {
        return Ok(());
    }
    if let Some(managed) = managed::taken(request.protocol, &request.decoded)? {
        request.replace(managed.body, edits::EDIT);
        edits::remove_betas(&mut request.headers);
        request.asked.compaction = managed.compaction.map(AskedCompaction::Above);
        request.asked.clearing = managed.clearing.map(Box::new);
    }
    if let Some(body) = managed::without_trigger(request.protocol, &request.decoded) {
        request.replace(body, open::EDIT);
        request.asked.compaction = Some(AskedCompaction::Whole);
    }
    // The model has moved in the body.
    request.read(settings).await
}

/// Returns the upstream of the requested model.
pub fn upstream<'a>(settings: &'a Settings, request: &ChatRequest) -> &'a Upstream {
    let routes = settings.planner.routes();
    let route = request.model.name.as_ref().map(|model| routes.find(model));
    settings.upstreams.find(&route.unwrap_or(routes.unmatched()).knowledge.name)
}
