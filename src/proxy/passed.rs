//! Requests that weir does not read, streamed through. Where there are routes, those whose body names
//! a model go its way; what was read whole can be sent again. Relays as `relay.rs` does.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::{Body as _, Frame, SizeHint};

use super::opening::Opening;
use super::record::{Passed, Record};
use super::routed::{spot, status, tried, wait};
use super::shared::shown;
use super::upstreams::Upstream;
use super::ways::Put;
use super::{Body, BoxError, ErrorKind, Pass, PassBody, Proxy, ProxyError, headers, relay};
use crate::upstream::retry::Tried;
use crate::upstream::{Endpoint, Inbound, Outbound, OutboundBody, Target};
use crate::wire::model::{ModelFinder, Spot};

/// A request as it came.
struct Passing {
    method: Method,
    headers: HeaderMap,
    target: Target,
    body: Source,
    body_bytes: u64,
    /// The model that its path or its body names, as soon as that is known.
    named: Arc<OnceLock<String>>,
    /// The model that its path or its body names.
    model: String,
    /// Whether it was the body that did.
    is_by_body: bool,
    /// Where the body names its model.
    spot: Option<Spot>,
    /// Whether not all models are open to the caller.
    has_own_models: bool,
    /// Whether there is nothing to send it again for, nor anywhere else, nor with what.
    is_single: bool,
}

enum Source {
    Empty,
    Whole {
        received: Bytes,
        /// The same, decoded.
        readable: Bytes,
        _permit: Box<dyn Send>,
    },
    /// Streamed, and gone with the first attempt.
    Stream(Option<Body>),
}

/// Where it goes, and as what.
pub(super) struct PassLeg {
    pub upstream: Arc<Upstream>,
    target: Target,
    /// The body with another model in it.
    renamed: Option<Bytes>,
    pub model: String,
}

impl Proxy {
    /// Streams a request through, and its answer back.
    pub async fn pass(&self, pass: Pass) -> Result<Response<Body>, ProxyError> {
        if pass.method == Method::GET && *pass.target.endpoint() == Endpoint::Models {
            return self.models(pass).await;
        }
        let (target, method) = (pass.target.clone(), pass.method.clone());
        let single = match target.endpoint() {
            Endpoint::Model(name) if method == Method::GET => Some(name.clone()),
            _ => None,
        };
        let caller = pass.caller.clone();
        let metrics = self.journal.metrics();
        let mut record = Record::begin(&method, &target, caller, pass.admission, metrics);
        let is_unread = is_unread(&method, &target);
        let sent = async {
            self.refuse_loop(&pass.headers)?;
            // Nothing is known of the tokens yet: what was used before must leave some room.
            record.take_tokens(0).await?;
            let mut passing =
                Passing::new(pass.method, pass.headers, pass.target, pass.body).await?;
            let action = is_unread.then_some(headers::UNREAD);
            record.passed(Passed { model: Arc::clone(&passing.named), action });
            passing.has_own_models = pass.caller.has_own_models();
            passing.is_single |= !self.planner.ways().are_several()
                && self.upstreams.default.patience.max_retries == 0;
            self.send_passing(passing, &mut record).await
        };
        let (mut inbound, leg) = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error).await),
        };
        if let Some(name) = single {
            inbound = self.one_model(&name, record.caller(), inbound).await;
        }
        inbound.headers = leg.upstream.inbound(inbound.headers);
        if is_unread {
            headers::unread(&mut inbound.headers);
            if inbound.status.is_success() {
                self.warn_unread(&target, &leg, record.passed_model());
            }
        }
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        let shown = self.shown_name(&leg.upstream).map(|name| (&**name, leg.model.as_str()));
        headers::way(&mut inbound.headers, shown, record.attempts());
        Ok(relay::relay(inbound, record, &self.drains))
    }

    /// Says once for each route and model that weir does not read such requests.
    fn warn_unread(&self, target: &Target, leg: &PassLeg, model: Option<&str>) {
        let model = model.unwrap_or(&leg.model);
        let route = target.endpoint().label();
        if !self.unread.is_first(format!("{route} {}", shown(model))) {
            return;
        }
        let limit_tokens = self.config.configured_limit_tokens(model);
        let by_route = self.planner.ways().find(model).max_input_tokens();
        tracing::warn!(
            target: "weir::limits",
            route,
            model = shown(model),
            limit_tokens = limit_tokens.into_iter().chain(by_route).min(),
            "weir does not read this route yet: no conversation is compacted there, and no limit on \
             its size holds"
        );
    }

    async fn send_passing(
        &self,
        mut passing: Passing,
        record: &mut Record,
    ) -> Result<(Inbound, PassLeg), ProxyError> {
        let way = self.planner.ways().find(&passing.model);
        let mut others: VecDeque<&str> = way.fallback().iter().map(String::as_str).collect();
        let asked = passing.model.clone();
        let mut leg = self.pass_leg(&passing, &asked)?;
        if !leg.upstream.lets_through()
            && let Some(other) = self.next_pass(&passing, &mut others)
        {
            leg = other;
        }
        let mut retries = 0;
        loop {
            record.ready();
            let sent = self.pass_once(&mut passing, &leg, record).await;
            record.came_back();
            let wait = wait(&leg.upstream, retries, &sent).filter(|_| !passing.is_single);
            let may_pass = tried(&sent).is_some_and(Tried::may_pass);
            let next = match wait {
                None if may_pass => self.next_pass(&passing, &mut others),
                _ => None,
            };
            if wait.is_none() && next.is_none() {
                return Ok((sent?, leg));
            }
            record.gave_way(status(&sent)).await;
            drop(sent);
            if let Some(wait) = wait {
                retries += 1;
                tokio::time::sleep(wait).await;
            }
            if let Some(next) = next {
                (leg, retries) = (next, 0);
            }
        }
    }

    /// The next model to turn to whose upstream is not passed over.
    fn next_pass(&self, passing: &Passing, others: &mut VecDeque<&str>) -> Option<PassLeg> {
        while let Some(model) = others.pop_front().filter(|_| !passing.is_single) {
            let leg = self.pass_leg(passing, model).ok();
            if let Some(leg) = leg.filter(|leg| leg.upstream.lets_through()) {
                return Some(leg);
            }
        }
        None
    }

    fn pass_leg(&self, passing: &Passing, model: &str) -> Result<PassLeg, ProxyError> {
        let way = self.planner.ways().find(model);
        let upstream = Arc::clone(self.upstreams.find(&way.taught.name));
        let sent = way.sent(model);
        let gets_callers_key = upstream.gets_callers_key;
        let is_same = passing.model == sent
            && Arc::ptr_eq(&upstream, &self.upstreams.default)
            && (gets_callers_key || !passing.target.has_credentials());
        let target = match is_same {
            true => passing.target.clone(),
            false => passing.target.onto(upstream.client.base(), sent, gets_callers_key)?,
        };
        let put = Put::of(&target, passing.is_by_body.then_some(sent), passing.has_own_models);
        let renamed = match (&passing.body, &passing.spot, put) {
            (Source::Whole { .. }, None, Put::There(_)) => {
                let message = "The body must be a JSON object that gives 'model' once or not at all: the \
                               upstream looks there for the model that the path names.";
                return Err(ProxyError::new(ErrorKind::InvalidRequest, message));
            }
            (Source::Whole { readable, .. }, spot, put) => put.into(readable, spot.as_ref()),
            (Source::Empty | Source::Stream(_), ..) => None,
        };
        let model = target.path_model.clone().unwrap_or_else(|| sent.to_owned());
        Ok(PassLeg { upstream, target, renamed, model })
    }

    async fn pass_once(
        &self,
        passing: &mut Passing,
        leg: &PassLeg,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        let callers = match passing.is_single {
            true => std::mem::take(&mut passing.headers),
            false => passing.headers.clone(),
        };
        let announced_length = callers.contains_key(CONTENT_LENGTH);
        let mut headers = leg.upstream.outbound(callers, &self.via, leg.target.endpoint());
        if matches!(leg.target.endpoint(), Endpoint::Route(_) | Endpoint::Model(_)) {
            // The usage in a compressed answer could not be read, nor an entry added to.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let body = match (&mut passing.body, &leg.renamed) {
            (_, Some(renamed)) => {
                headers.remove(CONTENT_ENCODING);
                OutboundBody::Bytes(renamed.clone())
            }
            (Source::Whole { received, .. }, None) => OutboundBody::Bytes(received.clone()),
            (Source::Stream(body), None) => {
                body.take().map_or(OutboundBody::Empty, OutboundBody::Stream)
            }
            (Source::Empty, None) => {
                if announced_length {
                    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
                }
                OutboundBody::Empty
            }
        };
        let (method, target) = (passing.method.clone(), leg.target.clone());
        let outbound = Outbound { method, target, headers, body };
        let model = leg.model.clone();
        let opening = Opening::passed(record.caller(), &outbound, model, record.plan_ms());
        if let Some(mut opening) = opening {
            opening.upstream = leg.upstream.taught.origin.as_deref().map(str::to_owned);
            let holding = self.journal.hold_unread(&opening, passing.body_bytes).await?;
            record.account(self.journal.open(opening, holding).await?);
        }
        record.sent_to(self.shown_name(&leg.upstream));
        let sent = leg.upstream.client.send(outbound).await;
        let inbound = sent.map_err(|error| leg.upstream.error(error))?;
        leg.upstream.well_placed(&leg.target, inbound).await
    }
}

impl Passing {
    async fn new(
        method: Method,
        headers: HeaderMap,
        target: Target,
        body: PassBody,
    ) -> Result<Self, ProxyError> {
        let body_bytes = headers::length(&headers);
        let (body, spot) = match body {
            PassBody::Whole { bytes, decoded, permit } => {
                let readable = decoded.unwrap_or_else(|| bytes.clone());
                let spot = spot(readable.clone()).await?;
                (Source::Whole { received: bytes, readable, _permit: permit }, spot)
            }
            PassBody::Streamed(body) if body.is_end_stream() => (Source::Empty, None),
            PassBody::Streamed(body) => (Source::Stream(Some(body)), None),
        };
        // A path's model counts in the place of the body's.
        let by_path = target.asked_model();
        let by_body = spot.as_ref().and_then(Spot::model).filter(|_| by_path.is_none());
        let is_by_body = by_body.is_some();
        let model = by_path.as_deref().or(by_body).unwrap_or_default().to_owned();
        let is_single = matches!(body, Source::Stream(_));
        let named: Arc<OnceLock<String>> = Arc::default();
        let body = match body {
            _ if !model.is_empty() => {
                // It is empty as yet.
                let _ = named.set(model.clone());
                body
            }
            Source::Stream(Some(body)) if names_a_model(&method, &target, &headers) => {
                let is_plain = !headers.contains_key(CONTENT_ENCODING);
                let body = if is_plain { Watched::wrap(body, Arc::clone(&named)) } else { body };
                Source::Stream(Some(body))
            }
            body => body,
        };
        let has_own_models = false;
        Ok(Self {
            method,
            headers,
            target,
            body,
            body_bytes,
            named,
            model,
            is_by_body,
            spot,
            has_own_models,
            is_single,
        })
    }
}

/// A streamed body whose model is noted as it passes by.
struct Watched {
    body: Body,
    finder: ModelFinder,
    named: Arc<OnceLock<String>>,
}

impl Watched {
    fn wrap(body: Body, named: Arc<OnceLock<String>>) -> Body {
        Body::new(Self { body, finder: ModelFinder::default(), named })
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(chunk) = frame.data_ref()
            && let Some(model) = self.finder.feed(chunk)
        {
            // A body that is given names its model once.
            let _ = self.named.set(model);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a request is a conversation that weir forwards without reading it.
fn is_unread(method: &Method, target: &Target) -> bool {
    let endpoint = target.endpoint();
    *method == Method::POST
        && matches!(endpoint, Endpoint::Route(route) if route.is_unread_conversation())
}

/// Whether the body of a request names a model, or should where the path does.
pub(super) fn names_a_model(method: &Method, target: &Target, headers: &HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = content_type.trim_start().to_ascii_lowercase().starts_with("multipart/");
    let is_route = matches!(target.endpoint(), Endpoint::Route(_));
    *method == Method::POST && is_route && !is_form
}
