//! Compaction for callers that ask for it: shorter conversations for `/v1/responses/compact`, items that
//! stand for earlier ones, and `context_management`, for upstreams that do not have them. Plans nothing:
//! the engine does.

pub mod answer;
pub mod edits;
pub mod managed;
pub mod open;
pub mod seal;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;

use super::admit::request::ChatRequest;
use super::error::ProxyError;
use super::settings::Settings;
use super::upstreams::Upstream;
use weir_engine::compact::policy::clearing::Clearing;
use weir_engine::wire::Protocol;

/// Compaction that a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedCompaction {
    /// Of this conversation, now.
    Now,
    /// Of this conversation, now, into one item that stands for all of it.
    Whole,
    /// Of a conversation above so many tokens; `None` for the policy's own mark.
    Above(Option<u64>),
}

/// What a caller asks for besides an answer, and what weir has done in the body for it.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub compaction: Option<AskedCompaction>,
    pub clearing: Option<Box<Clearing>>,
    /// Names of the edits that the body has already.
    pub edits: Vec<&'static str>,
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

/// Opens the items of a request that weir has sealed, and reads its options and its model.
pub async fn read(settings: &Settings, request: &mut ChatRequest) -> Result<(), ProxyError> {
    if request.protocol == Protocol::Responses
        && let Some(body) = open::opened(settings, request).await?
    {
        request.replace(body, open::EDIT);
    }
    request.read(settings).await
}

/// Takes out of a request what asks for compaction if its upstream does not have that: the member
/// `context_management`, and items that ask for it now.
pub async fn manage(settings: &Settings, request: &mut ChatRequest) -> Result<(), ProxyError> {
    let (has_member, has_trigger) =
        (managed::may_be_in(&request.decoded), managed::may_be_triggered(&request.decoded));
    let is_left = request.options.bypass || settings.is_observed();
    if is_left || !(has_member || has_trigger) || upstream(settings, request).compacts {
        return Ok(());
    }
    if let Some(managed) = managed::taken(request.protocol, &request.decoded)? {
        request.replace(managed.body, managed::EDIT);
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

impl ChatRequest {
    /// Replaces the body by one that weir has edited.
    pub(in crate::proxy) fn replace(&mut self, body: Bytes, edit: &'static str) {
        self.continue_with(body);
        self.asked.edits.push(edit);
    }

    /// Replaces the body by one with more messages behind it.
    pub(in crate::proxy) fn continue_with(&mut self, body: Bytes) {
        self.headers.remove(CONTENT_ENCODING);
        self.received = body.clone();
        self.decoded = body;
    }
}
