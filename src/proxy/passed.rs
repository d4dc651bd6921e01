//! Requests that weir does not read, streamed through. Where there are routes, those whose body names
//! a model go its way; what was read whole can be sent again. Relays as `relay.rs` does.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::Body as _;

use super::opening::Opening;
use super::record::Record;
use super::routed::{spot, status, tried, wait};
use super::upstreams::Upstream;
use super::ways::Put;
use super::{Body, ErrorKind, Pass, PassBody, Proxy, ProxyError, headers, relay};
use crate::upstream::retry::Tried;
use crate::upstream::{Endpoint, Inbound, Outbound, OutboundBody, Target};
use crate::wire::model::Spot;

/// A request as it came.
struct Passing {
    method: Method,
    headers: HeaderMap,
    target: Target,
    body: Source,
    body_bytes: u64,
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
        let mut record = Record::begin(&method, &target, pass.caller.clone(), pass.admission);
        let sent = async {
            self.refuse_loop(&pass.headers)?;
            // Nothing is known of the tokens yet: what was used before must leave some room.
            record.take_tokens(0).await?;
            let mut passing =
                Passing::new(pass.method, pass.headers, pass.target, pass.body).await?;
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
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        let shown = self.shown_name(&leg.upstream).map(|name| (&**name, leg.model.as_str()));
        headers::way(&mut inbound.headers, shown, record.attempts());
        Ok(relay::relay(inbound, record, &self.drains))
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
        let has_own_models = false;
        Ok(Self {
            method,
            headers,
            target,
            body,
            body_bytes,
            model,
            is_by_body,
            spot,
            has_own_models,
            is_single,
        })
    }
}

/// Whether the body of a request names a model, or should where the path does.
pub(super) fn names_a_model(method: &Method, target: &Target, headers: &HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = content_type.trim_start().to_ascii_lowercase().starts_with("multipart/");
    let is_route = matches!(target.endpoint(), Endpoint::Route(_));
    *method == Method::POST && is_route && !is_form
}
