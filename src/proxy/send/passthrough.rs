//! Requests that weir does not read, streamed through. If there are routes, a request whose body
//! names a model follows that model's route; a body that was read completely can be sent again.
//! Relays as `relay.rs` does.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::{Cause, Exchange, is_cause};
use crate::proxy::admit::request::{PassBody, on_time};
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::headers;
use crate::proxy::hold::account::JournalEntry;
use crate::proxy::hold::prices::Warned;
use crate::proxy::logged::shown;
use crate::proxy::record::Record;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::Upstream;
use crate::proxy::upstreams::routes::{ModelOverride, Route};
use crate::upstream::{Body, Endpoint, Inbound, Naming, Outbound, OutboundBody, Target};
use weir_engine::wire::form::FormModelFinder;
use weir_engine::wire::model::{ModelField, ModelFinder};
use weir_store::Tenant;

/// Bytes per token assumed for a body that is not read.
const BYTES_A_TOKEN: u64 = 4;

/// Request as received.
pub struct PassRequest {
    method: Method,
    headers: HeaderMap,
    target: Target,
    body: BodySource,
    /// Model that its path or its body names, as soon as that is known.
    pub named: Arc<OnceLock<String>>,
    /// Model that its path or its body names.
    model: String,
    /// Whether the body named it.
    is_by_body: bool,
    /// Position of the model name in the body.
    field: Option<ModelField>,
    /// Whether the caller may use only some models.
    has_own_models: bool,
}

enum BodySource {
    Empty,
    Whole {
        received: Bytes,
        /// Decoded body.
        readable: Bytes,
        _permit: Box<dyn Send>,
    },
    /// Streamed, and consumed by the first attempt.
    Stream(Option<Body>),
}

/// Attempt at one upstream, with one model.
pub struct Attempt {
    pub upstream: Arc<Upstream>,
    target: Target,
    /// Body with another model in it.
    renamed: Option<Bytes>,
    pub model: String,
}

/// Request with its current attempt and the models left to try.
pub struct Passthrough<'a> {
    settings: &'a Settings,
    request: PassRequest,
    current: Attempt,
    route: Arc<Route>,
    /// Number of the route's fallback models that were tried or passed over.
    tried_fallbacks: usize,
    tenant: Tenant,
}

impl<'a> Passthrough<'a> {
    /// Prepares a request for the model of its route. An upstream that fails repeatedly is skipped
    /// while there is another.
    pub fn prepare(
        settings: &'a Settings,
        request: PassRequest,
        tenant: Tenant,
    ) -> Result<Self, ProxyError> {
        let route = Arc::clone(settings.planner.routes().find(&request.model));
        let current = Attempt::new(settings, &request, &request.model)?;
        let mut own = Self { settings, request, current, route, tried_fallbacks: 0, tenant };
        if !own.route.row.fallback.is_empty()
            && !own.current.may_be_asked(tenant)
            && let Some(other) = own.next_fallback()
        {
            own.current = other;
        }
        Ok(own)
    }

    /// Returns the attempt that was made last.
    pub fn into_current(self) -> Attempt {
        self.current
    }

    /// Selects the next fallback model whose upstream is not skipped.
    fn next_fallback(&mut self) -> Option<Attempt> {
        while let Some(model) = self.route.row.fallback.get(self.tried_fallbacks) {
            self.tried_fallbacks += 1;
            let attempt = Attempt::new(self.settings, &self.request, model).ok();
            if let Some(attempt) = attempt.filter(|attempt| attempt.may_be_asked(self.tenant)) {
                return Some(attempt);
            }
        }
        None
    }

    /// Returns the request of the current attempt.
    fn outbound(&mut self) -> Outbound {
        let (request, attempt) = (&mut self.request, &self.current);
        let callers = request.headers.clone();
        let announced_length = callers.contains_key(CONTENT_LENGTH);
        let endpoint = attempt.target.endpoint();
        let mut headers = attempt.upstream.outbound(callers, &self.settings.via, endpoint);
        let is_form = is_form(&request.headers);
        if is_form || matches!(endpoint, Endpoint::Route(_) | Endpoint::Model(_)) {
            // In a compressed answer the usage could not be read, nor an entry extended.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let body = match (&mut request.body, &attempt.renamed) {
            (_, Some(renamed)) => {
                headers.remove(CONTENT_ENCODING);
                OutboundBody::Bytes(renamed.clone())
            }
            (BodySource::Whole { received, .. }, None) => OutboundBody::Bytes(received.clone()),
            (BodySource::Stream(body), None) => {
                body.take().map_or(OutboundBody::Empty, OutboundBody::Stream)
            }
            (BodySource::Empty, None) => {
                if announced_length {
                    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
                }
                OutboundBody::Empty
            }
        };
        let (method, target) = (request.method.clone(), attempt.target.clone());
        Outbound { method, target, headers, body }
    }
}

impl Exchange for Passthrough<'_> {
    type Next = Attempt;

    fn place(&self) -> (&Upstream, &Target) {
        (&self.current.upstream, &self.current.target)
    }

    fn is_replayable(&self) -> bool {
        !matches!(self.request.body, BodySource::Stream(_))
    }

    fn is_opened(&self) -> bool {
        let is_route = matches!(self.current.target.endpoint(), Endpoint::Route(_));
        self.request.method == Method::POST && is_route
    }

    async fn send(&mut self, _: Option<Cause>, record: &mut Record) -> Result<Inbound, ProxyError> {
        record.ready();
        let mut outbound = self.outbound();
        let (settings, attempt) = (self.settings, &self.current);
        // A form's is found in its fields.
        let of_form = || self.request.named.get().cloned().unwrap_or_default();
        let model = if attempt.model.is_empty() { of_form() } else { attempt.model.clone() };
        let named = response_name(&outbound.method, outbound.target.path());
        let awaited = named.and_then(|name| settings.journal.awaited(self.tenant, name));
        let (origin, plan_ms) = (record.attribution(), record.plan_ms());
        let entry = JournalEntry::passed(record.caller(), &outbound, model, origin, plan_ms);
        if awaited.is_some() {
            outbound.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            record.awaits(awaited);
        } else if let Some(mut entry) = entry {
            entry.upstream = attempt.upstream.knowledge.origin.as_deref().map(str::to_owned);
            let queued = Instant::now();
            let body = match &self.request.body {
                BodySource::Whole { readable, .. } => Some(readable),
                BodySource::Empty | BodySource::Stream(_) => None,
            };
            // Of a body in unknown length nothing is known.
            let body_bytes =
                Some(headers::length(&self.request.headers)).filter(|bytes| *bytes > 0);
            // A form's are those of sound and pictures, for a model.
            let is_form = is_form(&self.request.headers);
            let body_bytes = body_bytes.filter(|_| !is_form);
            let endpoint = attempt.target.endpoint();
            entry.is_billed |= is_form && matches!(endpoint, Endpoint::Other(Naming::Body));
            entry.counted_tokens = body_bytes.map(|bytes| bytes.div_ceil(BYTES_A_TOKEN));
            let holding = settings.journal.hold_unread(&mut entry, body).await;
            record.held(queued, holding.is_ok());
            record.account(settings.journal.open(entry, holding?).await?);
        }
        record.sent_to(settings.shown_name(&attempt.upstream));
        record.sending(&attempt.upstream, &mut outbound);
        let sent = attempt.upstream.client.send(outbound).await;
        sent.map_err(|error| attempt.upstream.error(error))
    }

    /// Nothing is known of such a request that could be changed.
    async fn correct(
        &mut self,
        _: &mut Inbound,
        _: &mut Record,
    ) -> Result<Option<Cause>, ProxyError> {
        Ok(None)
    }

    fn model(&self) -> &str {
        &self.current.model
    }

    async fn next(&mut self, sent: &mut Result<Inbound, ProxyError>) -> Option<Attempt> {
        match self.is_replayable() && is_cause(&self.route, sent).await {
            true => self.next_fallback(),
            false => None,
        }
    }

    fn enter(&mut self, next: Attempt, _: &mut Record) {
        self.current = next;
    }
}

impl Attempt {
    fn new(settings: &Settings, request: &PassRequest, model: &str) -> Result<Self, ProxyError> {
        let route = settings.planner.routes().find(model);
        let upstream = Arc::clone(settings.upstreams.find(&route.knowledge.name));
        let sent = route.sent(model);
        let target = settings.target(&request.target, &upstream, &request.model, sent)?;
        upstream.check_protocol(&target)?;
        let renamed =
            ModelOverride::of(&target, request.is_by_body.then_some(sent), request.has_own_models);
        let renamed = match (&request.body, &request.field, renamed) {
            (BodySource::Whole { .. }, None, ModelOverride::Set(_)) => {
                let message = "The body must be a JSON object that gives 'model' once or not at all: the \
                               upstream looks there for the model that the path names.";
                return Err(ProxyError::new(ErrorKind::InvalidRequest, message));
            }
            (BodySource::Whole { readable, .. }, field, renamed) => {
                renamed.apply(readable, field.as_ref())
            }
            (BodySource::Empty | BodySource::Stream(_), ..) => None,
        };
        let model = target.path_model.clone().unwrap_or_else(|| sent.to_owned());
        Ok(Self { upstream, target, renamed, model })
    }

    /// Whether its upstream may be asked while another could be.
    fn may_be_asked(&self, tenant: Tenant) -> bool {
        self.upstream.may_be_asked((tenant, &self.model))
    }

    /// Warns once for each route and model that weir does not read such requests. `model` is the
    /// name in the body, if it was seen.
    pub fn warn_unread(&self, settings: &Settings, unread: &Warned, model: Option<&str>) {
        let model = model.unwrap_or(&self.model);
        let route = self.target.endpoint().label();
        if !unread.is_first(format!("{route} {}", shown(model))) {
            return;
        }
        let limit_tokens = settings.config.configured_limit_tokens(model);
        let by_route = settings.planner.routes().find(model).row.max_input_tokens;
        tracing::warn!(
            target: "weir::limits",
            route,
            model = shown(model),
            limit_tokens = limit_tokens.into_iter().chain(by_route).min(),
            "weir does not read this route yet: no conversation is compacted there, and no limit on \
             its size holds"
        );
    }
}

impl PassRequest {
    pub async fn new(
        method: Method,
        headers: HeaderMap,
        target: Target,
        body: PassBody,
        has_own_models: bool,
    ) -> Result<Self, ProxyError> {
        let (body, field) = match body {
            PassBody::Whole { bytes, decoded, permit } => {
                let readable = decoded.unwrap_or_else(|| bytes.clone());
                let body = readable.clone();
                let field = on_time(body.len(), move || ModelField::of(&body)).await?;
                if field.is_none() && names_a_model(&method, &target, &headers) {
                    return Err(unreadable());
                }
                (BodySource::Whole { received: bytes, readable, _permit: permit }, field)
            }
            PassBody::Streamed(body) if body.is_end_stream() => (BodySource::Empty, None),
            PassBody::Streamed(body) => (BodySource::Stream(Some(body)), None),
        };
        // A path's model takes precedence over the body's.
        let by_path = target.asked_model();
        let by_body = field.as_ref().and_then(ModelField::model).filter(|_| by_path.is_none());
        let is_by_body = by_body.is_some();
        let model = by_path.as_deref().or(by_body).unwrap_or_default().to_owned();
        let named: Arc<OnceLock<String>> = Arc::default();
        let body = match body {
            _ if !model.is_empty() => {
                // It is still empty.
                let _ = named.set(model.clone());
                body
            }
            BodySource::Stream(Some(body)) if method == Method::POST => {
                let finder = Finder::new(&headers);
                let body = match finder {
                    Some(finder) => watched(body, finder, Arc::clone(&named)),
                    None => body,
                };
                BodySource::Stream(Some(body))
            }
            BodySource::Whole { ref readable, .. } => {
                let form = FormModelFinder::new(content_type(&headers));
                if let Some(model) = form.and_then(|mut form| form.feed(readable)) {
                    // It is still empty.
                    let _ = named.set(model);
                }
                body
            }
            body => body,
        };
        Ok(Self { method, headers, target, body, named, model, is_by_body, field, has_own_models })
    }
}

/// Finder of the model in a body.
enum Finder {
    Json(ModelFinder),
    Form(FormModelFinder),
}

impl Finder {
    /// Creates a finder for a body with these headers; `None` if it cannot be read.
    fn new(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(CONTENT_ENCODING) {
            return None;
        }
        let content_type = content_type(headers);
        Some(match FormModelFinder::new(content_type) {
            Some(form) => Self::Form(form),
            None => Self::Json(ModelFinder::default()),
        })
    }

    fn feed(&mut self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Json(json) => json.feed(bytes),
            Self::Form(form) => form.feed(bytes),
        }
    }
}

/// Records the model that a streamed body names as it passes.
fn watched(body: Body, mut finder: Finder, named: Arc<OnceLock<String>>) -> Body {
    Body::new(body.inspect_frame(move |frame| {
        if let Some(model) = frame.data_ref().and_then(|chunk| finder.feed(chunk)) {
            // A body names its model once.
            let _ = named.set(model);
        }
    }))
}

/// Whether a request is a conversation that weir forwards unread.
pub fn is_unread(method: &Method, target: &Target) -> bool {
    let endpoint = target.endpoint();
    *method == Method::POST
        && matches!(endpoint, Endpoint::Route(route) if route.is_unread_conversation())
}

/// Returns the response that a request asks for, or ends.
fn response_name<'p>(method: &Method, path: &'p str) -> Option<&'p str> {
    let (_, name) = path.rsplit_once("/responses/")?;
    match *method {
        Method::GET => Some(name),
        Method::POST => name.strip_suffix("/cancel"),
        _ => None,
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    let content_type = headers.get(http::header::CONTENT_TYPE);
    content_type.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Whether the body of a request names a model, or should if the path does.
pub fn names_a_model(method: &Method, target: &Target, headers: &HeaderMap) -> bool {
    let names = matches!(target.endpoint(), Endpoint::Route(_) | Endpoint::Count);
    *method == Method::POST && names && !is_form(headers)
}

/// Whether the JSON body of a request to a path that weir does not meter may name a model, which has a price.
pub fn may_name_a_model(method: &Method, target: &Target, headers: &HeaderMap) -> bool {
    let may_name = matches!(
        target.endpoint(),
        Endpoint::Other(Naming::Body | Naming::Optional | Naming::Unseen)
    );
    let is_json = content_type(headers).to_ascii_lowercase().contains("json");
    *method == Method::POST && may_name && is_json
}

/// Refuses a body whose model weir would take for another than the upstream does, which may ignore what
/// stands behind an object, or prefer another of two models.
fn unreadable() -> ProxyError {
    ProxyError::new(
        ErrorKind::InvalidRequest,
        "The body must be one JSON object that names its model once, with nothing behind it.",
    )
}

fn is_form(headers: &HeaderMap) -> bool {
    content_type(headers).trim_start().to_ascii_lowercase().starts_with("multipart/")
}
