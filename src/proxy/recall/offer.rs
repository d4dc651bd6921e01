//! Offer of the recall tool: adds it to the tools of a request if the policy of its model says so. A
//! function of configuration and request, so that the tools stay the same in the course of a
//! conversation, from its first request on.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::records::{Looked, RecallRecords, restored};
use crate::config::Config;
use crate::proxy::admit::class::RequestClass;
use crate::proxy::admit::request::{ChatRequest, Offer, on_time};
use crate::proxy::error::Proxied;
use crate::proxy::settings::Settings;
use weir_engine::wire::messages::binds_thinking;
use weir_engine::wire::recall_tool::without_marked;
use weir_engine::wire::{Protocol, json, offer};
use weir_store::Tenant;

/// Name of the edit.
const EDIT: &str = "recall";

/// Request body with the tool in it.
struct Offered {
    name: &'static str,
    body: Bytes,
    looked: Looked,
}

/// Adds the tool to a request whose policy offers it, and puts earlier recalls of its conversation back.
///
/// Requests that are not compacted get none: a bypassed one, one that is only observed, and those with
/// which an agent compacts its conversation or asks something on the side. Nor does one whose caller
/// replaces its messages by a compaction item: what is left out then is not sent again.
pub(crate) async fn add(
    settings: &Settings,
    records: &Arc<RecallRecords>,
    request: &mut ChatRequest,
) -> Proxied<()> {
    remove_marked(settings, request).await?;
    let is_side =
        matches!(request.options.class, Some(RequestClass::Compaction | RequestClass::Auxiliary));
    let is_left = request.options.bypass || settings.is_observed() || is_side;
    if is_left || request.asked.compaction.is_some() || !may_offer(&settings.config) {
        return Ok(());
    }
    let model = model_in_body(request).await?;
    if !is_offered(settings, request, model.as_deref()) {
        return Ok(());
    }
    let (protocol, body, tenant) =
        (request.protocol, request.decoded.clone(), request.caller.tenant);
    let max_messages = settings.config.server.max_messages;
    let (size_bytes, known) = (body.len(), Arc::clone(records));
    let work = move || offered(&known, (tenant, protocol), &body, max_messages);
    // A body that cannot be read is refused when it is planned.
    let Some(offered) = on_time(size_bytes, work).await? else { return Ok(()) };
    let Offered { name, body, mut looked } = offered;
    records.fetch(tenant, &mut looked).await;
    request.recall = Some(Offer {
        name,
        key: looked.key,
        plain: request.decoded.clone(),
        model: request.model.field.clone(),
        edits: request.asked.edits.clone(),
    });
    let body = match looked.is_empty() {
        true => body,
        false => {
            let received = body.clone();
            let work = move || restored(protocol, name, &body, &looked, max_messages);
            on_time(usize::MAX, work).await?.map_or(received, Bytes::from)
        }
    };
    edited(settings, request, body).await
}

/// Removes thinking of earlier answers that was signed over a recall. A bypassed request stays untouched.
async fn remove_marked(settings: &Settings, request: &mut ChatRequest) -> Proxied<()> {
    if request.options.bypass || request.protocol == Protocol::Chat {
        return Ok(());
    }
    let (protocol, body) = (request.protocol, request.decoded.clone());
    let work = move || without_marked(protocol, simdutf8::basic::from_utf8(&body).ok()?);
    match on_time(request.decoded.len(), work).await? {
        Some(body) => edited(settings, request, body.into()).await,
        None => Ok(()),
    }
}

/// Replaces the body of a request, and names the edit once.
async fn edited(settings: &Settings, request: &mut ChatRequest, body: Bytes) -> Proxied<()> {
    match request.asked.edits.contains(&EDIT) {
        true => request.continue_with(body),
        false => request.replace(body, EDIT),
    }
    // The model has moved in the body.
    request.read(settings).await
}

/// Whether any policy offers the tool.
fn may_offer(config: &Config) -> bool {
    config.context.policy.offers_recall || config.context.policies.offer_recall()
}

/// Returns the model that a body names, if nothing else names one. Reads nothing else of the body.
async fn model_in_body(request: &ChatRequest) -> Proxied<Option<String>> {
    if request.model.name.is_some() || request.target.path_model.is_some() {
        return Ok(None);
    }
    let body = request.decoded.clone();
    let work = move || {
        let model = json::member(simdutf8::basic::from_utf8(&body).ok()?, "model")?;
        json::string(model).map(Cow::into_owned)
    };
    on_time(request.decoded.len(), work).await
}

/// Whether the policy of a request offers the tool. `model` is the one that its body names.
fn is_offered(settings: &Settings, request: &ChatRequest, model: Option<&str>) -> bool {
    let routes = settings.planner.routes();
    let path_model = request.target.path_model.as_deref();
    let asked = request.model.name.as_deref().or(path_model).or(model).unwrap_or_default();
    let route = match request.model.name {
        Some(_) => routes.find(asked),
        None => routes.unmatched(),
    };
    let sent = if request.model.name.is_some() { route.sent(asked) } else { asked };
    let config = &settings.config;
    let of_model = config.settings(config.models.find(sent).name);
    let by_model = route.row.policy.as_deref().or(of_model.policy.as_deref());
    // A later request has not the recall that such a model has signed.
    let is_bound = request.protocol != Protocol::Responses && binds_thinking(sent);
    !is_bound && config.policy(request.options.policy.as_deref(), by_model).offers_recall
}

/// Returns a body with the tool.
fn offered(
    records: &RecallRecords,
    (tenant, protocol): (Tenant, Protocol),
    body: &[u8],
    max_messages: usize,
) -> Option<Offered> {
    let request = protocol.read(body, max_messages).ok()?;
    let name = offer::name(&request)?;
    let body = offer::with_tool(&request, name)?.into();
    let looked = records.look((tenant, protocol), name, &request.messages);
    Some(Offered { name, body, looked })
}
