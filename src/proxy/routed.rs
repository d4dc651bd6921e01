//! A conversation on its way to an upstream that takes it: planned for the model of its route, sent,
//! sent again where that may help, and planned anew for the next model where it does not. Relays no
//! answer, and never sends less of the conversation elsewhere than the first model would have had.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Method};

use super::opening::{self, Opening};
use super::planner::{Asked, Job, Planned};
use super::record::Record;
use super::summaries::Behalf;
use super::upstreams::Upstream;
use super::ways::{Put, Way};
use super::{Call, Caller, ErrorKind, Proxy, ProxyError};
use crate::config::LargerWhen;
use crate::store::now_ms;
use crate::upstream::retry::{self, Told, Tried};
use crate::upstream::{Inbound, Outbound, OutboundBody, Target};
use crate::wire::Protocol;
use crate::wire::model::Spot;

/// Bodies above this are not read for their model on the request's own task.
const INLINE_BODY_BYTES: usize = 2 * 1024 * 1024;

/// A conversation as it came: what every attempt is made of.
pub(super) struct Trip {
    method: Method,
    protocol: Protocol,
    /// The caller's.
    headers: HeaderMap,
    target: Target,
    received: Bytes,
    /// The same, decoded.
    readable: Bytes,
    caller: Caller,
    asked: Asked,
    /// The model that the caller asked for; `None` where all conversations go one way.
    model: Option<String>,
    /// Whether it was the body that said so.
    is_by_body: bool,
    /// Where the body names its model, where that may have to be another.
    spot: Option<Spot>,
    /// Whether there is nothing to send it again for, nor anywhere else.
    is_single: bool,
}

/// A trip to one upstream, as one model.
pub(super) struct Leg {
    pub upstream: Arc<Upstream>,
    way: Arc<Way>,
    target: Target,
    /// The body as the upstream gets it where nothing else is changed.
    received: Bytes,
    /// The same, decoded.
    pub readable: Bytes,
    /// Whether another model was put in, for which it was decoded.
    is_renamed: bool,
    alias_of: Option<String>,
}

impl Leg {
    /// `put` is the body with another model in it.
    fn new(
        trip: &Trip,
        (upstream, way): (Arc<Upstream>, Arc<Way>),
        target: Target,
        put: Option<Bytes>,
        alias_of: Option<String>,
    ) -> Self {
        let is_renamed = put.is_some();
        let (received, readable) = match put {
            Some(put) => (put.clone(), put),
            None => (trip.received.clone(), trip.readable.clone()),
        };
        Self { upstream, way, target, received, readable, is_renamed, alias_of }
    }
}

/// A trip that is planned.
pub(super) struct Ready {
    pub leg: Leg,
    job: Job,
    pub planned: Planned,
}

impl Ready {
    /// On whose behalf summaries are made.
    pub fn behalf(&self) -> Option<&Arc<Behalf>> {
        self.job.behalf.as_ref()
    }
}

impl Proxy {
    /// What is to be sent, without the caller's place and permit.
    pub(super) async fn trip(&self, call: Call, headers: Asked) -> Result<Trip, ProxyError> {
        let readable = call.decoded.unwrap_or_else(|| call.received.clone());
        let is_routed = self.planner.ways().are_several();
        let by_path = call.target.asked_model();
        let is_put = call.target.is_model_in_body || call.caller.has_own_models();
        let spot = match is_routed || (is_put && call.target.path_model.is_some()) {
            true => spot(readable.clone()).await?,
            false => None,
        };
        let by_body =
            spot.as_ref().and_then(Spot::model).filter(|_| is_routed && by_path.is_none());
        let is_by_body = by_body.is_some();
        // Where neither says, it is the default's own deployment, if its base names one.
        let asked = by_path.as_deref().or(by_body).or(call.target.path_model.as_deref());
        let model = is_routed.then(|| asked.unwrap_or_default().to_owned());
        Ok(Trip {
            method: call.method,
            protocol: call.protocol,
            headers: call.headers,
            target: call.target,
            received: call.received,
            readable,
            caller: call.caller,
            asked: headers,
            model,
            is_by_body,
            spot,
            is_single: !is_routed && self.upstreams.default.patience.max_retries == 0,
        })
    }

    /// Sends a conversation to the first upstream that takes it.
    pub(super) async fn send_routed(
        &self,
        mut trip: Trip,
        record: &mut Record,
    ) -> Result<(Inbound, Ready), ProxyError> {
        let asked = trip.model.as_ref().map(|model| self.planner.ways().find(model));
        let way = asked.unwrap_or_else(|| self.planner.ways().unmatched());
        let mut larger = way.larger();
        let mut ready = self.choose(&trip, &mut larger).await?;
        record.planned(&ready.planned);
        let model = trip.model.as_deref().unwrap_or(&ready.planned.model);
        trip.caller.check_model(model, &self.config.routes)?;
        trip.caller.check_conversation(&trip.readable, &self.config.routes)?;
        record.take_tokens(ready.planned.sent_tokens).await?;
        let mut others: VecDeque<&str> = way.fallback().iter().map(String::as_str).collect();
        let limit_tokens = ready.planned.limit_tokens;
        // One that fails again and again is passed over while there is another.
        if !others.is_empty()
            && !ready.leg.upstream.lets_through()
            && let Some(other) = self.next(&trip, &mut others, limit_tokens).await
        {
            record.planned(&other.planned);
            ready = other;
        }
        loop {
            let sent = self.attempt(&mut trip, &mut ready, record).await;
            record.came_back();
            let next = match &sent {
                Err(error) if error.kind == ErrorKind::ContextLengthExceeded => {
                    match larger.take() {
                        Some((model, _)) => self.larger(&trip, model, Some(&ready.planned)).await,
                        None => None,
                    }
                }
                sent if tried(sent).is_some_and(Tried::may_pass) => {
                    self.next(&trip, &mut others, limit_tokens).await
                }
                _ => None,
            };
            let Some(next) = next else { return Ok((sent?, ready)) };
            record.gave_way(status(&sent)).await;
            drop(sent);
            record.planned(&next.planned);
            ready = next;
        }
    }

    /// The plan for the model that was asked for, or for the larger one where it needs that.
    async fn choose(
        &self,
        trip: &Trip,
        larger: &mut Option<(&str, LargerWhen)>,
    ) -> Result<Ready, ProxyError> {
        let asked = trip.model.as_deref();
        // Nothing is settled by a plan that may not be carried out.
        let first = match larger {
            Some((_, LargerWhen::Cut)) => self.look(trip, asked).await,
            _ => self.ready(trip, asked).await,
        };
        let wanted = larger.filter(|(_, when)| match &first {
            Ok(ready) => *when == LargerWhen::Cut && ready.planned.loses(),
            Err(error) => error.kind == ErrorKind::ContextLengthExceeded,
        });
        if let Some((model, _)) = wanted {
            *larger = None;
            let planned = first.as_ref().ok().map(|ready| &ready.planned);
            if let Some(ready) = self.larger(trip, model, planned).await {
                return Ok(ready);
            }
        }
        self.settled(trip, asked, first?).await
    }

    /// The plan for the larger model, where it is one.
    async fn larger(&self, trip: &Trip, model: &str, than: Option<&Planned>) -> Option<Ready> {
        let looked = self.look(trip, Some(model)).await.ok()?;
        let is_larger = |than: &Planned| looked.planned.limit_tokens > than.limit_tokens;
        match than.is_none_or(is_larger) {
            true => self.settled(trip, Some(model), looked).await.ok(),
            false => None,
        }
    }

    /// The next model to turn to: one whose upstream is not passed over, and that has as much of the
    /// conversation as the first, whose limit was `limit_tokens`.
    async fn next(
        &self,
        trip: &Trip,
        others: &mut VecDeque<&str>,
        limit_tokens: u64,
    ) -> Option<Ready> {
        while let Some(model) = others.pop_front() {
            let Ok(looked) = self.look(trip, Some(model)).await else { continue };
            let is_less = looked.planned.limit_tokens < limit_tokens && looked.planned.loses();
            if !is_less
                && looked.leg.upstream.lets_through()
                && let Ok(ready) = self.settled(trip, Some(model), looked).await
            {
                return Some(ready);
            }
        }
        None
    }

    /// The way of `model`, with the body and the path as they go there; of what has no routes, `None`.
    fn leg(&self, trip: &Trip, model: Option<&str>) -> Result<Leg, ProxyError> {
        let ways = self.planner.ways();
        let has_own_models = trip.caller.has_own_models();
        let (Some(model), Some(asked)) = (model, &trip.model) else {
            let upstream = Arc::clone(&self.upstreams.default);
            let target = match upstream.gets_callers_key || !trip.target.has_credentials() {
                true => trip.target.clone(),
                false => {
                    let asked = trip.target.asked_model().unwrap_or_default();
                    trip.target.onto(upstream.client.base(), &asked, false)?
                }
            };
            let put =
                Put::of(&target, None, has_own_models).into(&trip.readable, trip.spot.as_ref());
            let alias_of = put.as_ref().and(target.path_model.clone());
            let way = Arc::clone(ways.unmatched());
            return Ok(Leg::new(trip, (upstream, way), target, put, alias_of));
        };
        let way = Arc::clone(ways.find(model));
        let upstream = Arc::clone(self.upstreams.find(&way.taught.name));
        let sent = way.sent(model);
        let gets_callers_key = upstream.gets_callers_key;
        let is_same = asked == sent
            && Arc::ptr_eq(&upstream, &self.upstreams.default)
            && (gets_callers_key || !trip.target.has_credentials());
        let target = match is_same {
            true => trip.target.clone(),
            false => trip.target.onto(upstream.client.base(), sent, gets_callers_key)?,
        };
        let by_body = trip.is_by_body.then_some(sent);
        let put =
            Put::of(&target, by_body, has_own_models).into(&trip.readable, trip.spot.as_ref());
        let alias_of = (asked != sent || put.is_some()).then(|| asked.clone());
        Ok(Leg::new(trip, (upstream, way), target, put, alias_of))
    }

    /// Plans a trip for `model` that may not be made.
    async fn look(&self, trip: &Trip, model: Option<&str>) -> Result<Ready, ProxyError> {
        let leg = self.leg(trip, model)?;
        let job = job(trip, &leg);
        let planned = self.planner.plan_job(&job).await?;
        Ok(Ready { leg, job, planned })
    }

    /// What was looked at, planned for good: with what stands for cuts, where a model sums up.
    async fn settled(
        &self,
        trip: &Trip,
        model: Option<&str>,
        looked: Ready,
    ) -> Result<Ready, ProxyError> {
        match (&self.summaries, looked.behalf()) {
            (Some(_), None) => self.ready(trip, model).await,
            _ => Ok(looked),
        }
    }

    /// Plans a trip for `model`.
    async fn ready(&self, trip: &Trip, model: Option<&str>) -> Result<Ready, ProxyError> {
        let leg = self.leg(trip, model)?;
        let mut job = job(trip, &leg);
        job.behalf = self.summaries.as_ref().map(|_| {
            Arc::new(Behalf {
                caller: trip.caller.clone(),
                headers: trip.headers.clone(),
                target: leg.target.clone(),
                protocol: trip.protocol,
                upstream: Arc::clone(&leg.upstream),
            })
        });
        let planned = self.planner.plan_job(&job).await;
        let of = (&trip.caller, trip.model.as_deref());
        let planned = match self.probed(&leg.upstream, of, &mut job, &planned).await {
            Some(probing) => probing,
            None => planned?,
        };
        Ok(Ready { leg, job, planned })
    }

    /// What [`Self::handle`] would plan first of a request that is only looked at.
    pub(super) async fn looked_at(&self, call: Call, asked: Asked) -> Result<Job, ProxyError> {
        let trip = self.trip(call, asked).await?;
        let leg = self.leg(&trip, trip.model.as_deref())?;
        Ok(job(&trip, &leg))
    }

    /// Sends a request to its upstream, again and again where that is worth it.
    async fn attempt(
        &self,
        trip: &mut Trip,
        ready: &mut Ready,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        let upstream = Arc::clone(&ready.leg.upstream);
        let mut retries = 0;
        loop {
            let sent = self.send_once(trip, ready, record).await;
            record.came_back();
            let Some(wait) = wait(&upstream, retries, &sent) else { return sent };
            record.gave_way(status(&sent)).await;
            drop(sent);
            tokio::time::sleep(wait).await;
            record.ready();
            retries += 1;
        }
    }

    /// Holds what a request may come to, writes it down and sends it.
    async fn send_once(
        &self,
        trip: &mut Trip,
        ready: &mut Ready,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        let account = opening::account(&trip.caller);
        let Ready { leg, job, planned } = ready;
        let holding = self.hold(&account, job, planned).await?;
        let callers = match trip.is_single {
            true => std::mem::take(&mut trip.headers),
            false => trip.headers.clone(),
        };
        let upstream = &leg.upstream;
        let mut headers = upstream.outbound_read(callers, &self.via, leg.target.endpoint());
        if planned.body.is_some() || leg.is_renamed {
            headers.remove(CONTENT_ENCODING);
        }
        let body = planned.body.as_ref().unwrap_or(&leg.received).clone();
        let outbound = Outbound {
            method: trip.method.clone(),
            target: leg.target.clone(),
            headers,
            body: OutboundBody::Bytes(body),
        };
        let opening = Opening::planned(account, &outbound.target, planned, record.plan_ms());
        record.account(self.journal.open(opening, holding).await?);
        record.sent_to(self.shown_name(upstream));
        let inbound = self.send_fitting(upstream, outbound, planned, job, record).await?;
        upstream.well_placed(&leg.target, inbound).await
    }
}

/// What is to be planned of a leg.
fn job(trip: &Trip, leg: &Leg) -> Job {
    let asked = trip.asked.clone();
    let mut job = Job::new(trip.caller.tenant, trip.protocol, leg.readable.clone(), asked);
    job.as_of = trip.caller.as_of;
    job.path_model.clone_from(&leg.target.path_model);
    job.alias_of.clone_from(&leg.alias_of);
    job.way = Some(Arc::clone(&leg.way));
    job
}

/// How a request came back, where it came to an upstream.
pub(super) fn tried(sent: &Result<Inbound, ProxyError>) -> Option<Tried> {
    match sent {
        Ok(inbound) => Some(Tried::Status(inbound.status.as_u16())),
        Err(error) => match error.kind {
            ErrorKind::UpstreamConnect => Some(Tried::Unconnected),
            ErrorKind::UpstreamClosed => Some(Tried::Unanswered),
            ErrorKind::UpstreamTimeout => Some(Tried::Silent),
            _ => None,
        },
    }
}

/// The status of what came back, or what kept it from coming.
pub(super) fn status(sent: &Result<Inbound, ProxyError>) -> Result<http::StatusCode, ErrorKind> {
    sent.as_ref().map(|inbound| inbound.status).map_err(|error| error.kind)
}

/// Notes how a request came back from `upstream`, and tells how long to wait until it is sent there
/// again; `None` where it is not.
pub(super) fn wait(
    upstream: &Upstream,
    retries: u32,
    sent: &Result<Inbound, ProxyError>,
) -> Option<Duration> {
    let tried = tried(sent)?;
    upstream.note(tried);
    if retries >= upstream.patience.max_retries || !tried.may_pass() {
        return None;
    }
    let headers = sent.as_ref().ok().map(|inbound| &inbound.headers);
    let told = headers.map_or_else(Told::default, |headers| Told::read(headers, now_ms()));
    let mut random = [0; 4];
    // Without chance all would come back at once, and still come back.
    let _ = getrandom::fill(&mut random);
    let jitter = u32::from_ne_bytes(random);
    retry::wait_ms(retries, tried, told, upstream.patience, jitter).map(Duration::from_millis)
}

/// Where a body names its model, looked for off the async threads where the body is large.
pub(super) async fn spot(body: Bytes) -> Result<Option<Spot>, ProxyError> {
    if body.len() <= INLINE_BODY_BYTES {
        return Ok(Spot::of(&body));
    }
    let spot = tokio::task::spawn_blocking(move || Spot::of(&body));
    spot.await.map_err(|_| ProxyError::new(ErrorKind::Internal, "a body could not be read"))
}
