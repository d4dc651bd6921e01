//! One request, from plan to relay. Knows nothing of listeners or of how errors are rendered.

mod admission;
mod asking;
mod beginnings;
mod budgets;
mod caller;
mod draft;
mod drain;
mod edited;
pub mod error;
mod explain;
mod headers;
mod heal;
pub mod host;
mod journal;
pub mod learned;
mod memory;
pub mod metrics;
mod misplaced;
mod models;
mod opening;
mod originals;
mod outcome;
mod passed;
mod planned;
pub mod planner;
mod prices;
mod probe;
mod question;
mod record;
mod refusal;
mod relay;
mod routed;
mod settlement;
mod several;
mod shared;
pub mod shelf;
mod spend;
pub mod summaries;
mod unasked;
mod upstreams;
mod ways;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response};

pub use admission::Admission;
use admission::Admissions;
use budgets::Budgets;
pub use caller::Caller;
pub use drain::Drains;
pub use error::{ErrorKind, ProxyError};
pub use explain::Explained;
pub use journal::Journal;
pub use originals::{LeftOut, Originals};
pub use question::Question;
pub use spend::SpendQuery;

use self::planner::Planner;
use self::prices::{RoutePrices, Warned};
pub use self::record::MAX_LOGGED_BYTES;
use self::record::Record;
use self::routed::Ready;
use self::summaries::{Sent, Summaries};
use self::upstreams::{Upstream, Upstreams};
use self::ways::Ways;
use crate::config::{Config, Routes};
pub use crate::store::Tenant;
use crate::store::redis::Redis;
use crate::store::{OpenError, Store};
use crate::upstream::{Base, Client, Target};
pub use crate::upstream::{Body, BoxError};
use crate::wire::Protocol;

/// A request on a route that weir reads, its body complete.
pub struct Call {
    pub protocol: Protocol,
    pub target: Target,
    pub method: Method,
    pub headers: HeaderMap,
    /// The body as received, perhaps compressed.
    pub received: Bytes,
    /// The same, decoded, where `received` was compressed.
    pub decoded: Option<Bytes>,
    pub caller: Caller,
    /// The caller's place among its requests, kept to the end of the answer.
    pub admission: Admission,
    /// Gives the body's place in memory back when the call is dropped.
    pub permit: Box<dyn Send>,
}

/// A request on any other route: streamed through.
pub struct Pass {
    pub caller: Caller,
    /// The caller's place among its requests, kept to the end of the answer.
    pub admission: Admission,
    pub target: Target,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: PassBody,
}

/// A body that is passed on as it is.
pub enum PassBody {
    /// As it comes from the caller.
    Streamed(Body),
    /// Read before, because something in it had to be checked, or says where it goes.
    Whole {
        bytes: Bytes,
        /// The same, decoded, where `bytes` are compressed.
        decoded: Option<Bytes>,
        /// Gives the body's place in memory back when the answer's head is here.
        permit: Box<dyn Send>,
    },
}

/// The way from a request to its answer.
pub struct Proxy {
    config: Arc<Config>,
    upstreams: Upstreams,
    /// Routes and models for which it was said that weir does not read them.
    unread: Arc<Warned>,
    planner: Planner,
    store: Store,
    originals: Arc<Originals>,
    /// `None` where no model sums up what cuts take.
    summaries: Option<Arc<Summaries>>,
    journal: Arc<Journal>,
    /// Answers that are read on without their callers.
    drains: Drains,
    admissions: Admissions,
    /// What this instance writes into `via`, and knows its own requests by.
    via: headers::Via,
}

impl Proxy {
    /// A proxy that sends by `client`, or to the other upstreams, as `config` says, and keeps in
    /// `store` what outlives a request. Fails where what is to be kept in memory finds no place there.
    pub fn new(config: Arc<Config>, client: Client, store: Store) -> Result<Self, OpenError> {
        let upstreams = Upstreams::new(&config, client, &store)?;
        let ways = Ways::new(Arc::clone(&config), |name| Arc::clone(&upstreams.find(name).taught));
        let redis = Redis::configured(&config.redis)
            .map_err(|error| OpenError::System { said: format!("redis.url: {error}") })?;
        let budgets = Budgets::new(Arc::clone(&config), &store, redis.clone());
        let prices = RoutePrices::new(&config, |name| upstreams.find(name).origin.to_string());
        let origin = upstreams.default.origin.to_string();
        let journal = Journal::new(Arc::clone(&config), store.clone(), origin, budgets, prices);
        let journal = Arc::new(journal);
        let summaries = Summaries::new(&config, &upstreams.default, &journal, &store, None)
            .map_err(|error| OpenError::System { said: format!("summaries.url: {error}") })?;
        let metrics = Arc::clone(journal.metrics());
        let planner =
            Planner::with(Arc::clone(&config), Arc::new(ways), summaries.clone(), metrics);
        Ok(Self {
            upstreams,
            unread: Arc::default(),
            admissions: Admissions::new(redis),
            planner,
            originals: Arc::new(Originals::new(&config.context, &store)?),
            summaries,
            journal,
            drains: Drains::new(&config.ledger),
            store,
            config,
            via: headers::Via::random(),
        })
    }

    /// The same by another configuration, for requests from now on: what is remembered, learned, held,
    /// written down and under way goes on, and so do connections to what has not changed.
    pub fn reconfigured(&self, config: Arc<Config>) -> Result<Self, OpenError> {
        let upstreams = self.upstreams.renewed([&self.config, &config], &self.store)?;
        let ways = Ways::new(Arc::clone(&config), |name| Arc::clone(&upstreams.find(name).taught));
        let prices = RoutePrices::new(&config, |name| upstreams.find(name).origin.to_string());
        let origin = upstreams.default.origin.to_string();
        let journal = Arc::new(self.journal.renewed(Arc::clone(&config), origin, prices));
        let before = self.summaries.as_deref();
        let summaries = Summaries::new(&config, &upstreams.default, &journal, &self.store, before)
            .map_err(|error| OpenError::System { said: format!("summaries.url: {error}") })?;
        let planner = self.planner.renewed(Arc::clone(&config), Arc::new(ways), summaries.clone());
        Ok(Self {
            upstreams,
            unread: Arc::clone(&self.unread),
            admissions: self.admissions.clone(),
            planner,
            originals: Arc::clone(&self.originals),
            summaries,
            journal,
            drains: self.drains.clone(),
            store: self.store.clone(),
            config,
            via: self.via.clone(),
        })
    }

    /// The store for all that outlives the process.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The originals of messages that were not sent whole.
    pub fn originals(&self) -> &Arc<Originals> {
        &self.originals
    }

    /// Where requests are written down.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Counts a request that was refused before it reached the proxy.
    pub fn count_refused(&self, path: &str, problem: &ProxyError) {
        let target = Target::map(self.base(), path);
        let route = target.as_ref().map_or("other", |target| target.endpoint().label());
        self.journal.metrics().refused(route, problem.kind);
    }

    /// What a model sums up; `None` where none does.
    pub fn summaries(&self) -> Option<&Arc<Summaries>> {
        self.summaries.as_ref()
    }

    /// Answers that are read on without their callers: what is to be waited for at the end.
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// Lets a request of the caller's in, as far as its key's limits go.
    pub async fn admit(&self, caller: &Caller) -> Result<Admission, ProxyError> {
        self.admissions.admit(caller).await
    }

    /// Which model goes where.
    pub fn routes(&self) -> &Routes {
        &self.config.routes
    }

    /// The base that callers' paths are mapped onto.
    pub fn base(&self) -> &Base {
        self.upstreams.default.client.base()
    }

    /// Whether the body of a request has to be read before it is known where it goes, or as what.
    pub fn needs_body(&self, method: &Method, target: &Target, headers: &HeaderMap) -> bool {
        (self.planner.ways().are_several() || target.is_model_in_body)
            && passed::names_a_model(method, target, headers)
    }

    /// Brings the conversation inside its limit, forwards it and relays the answer.
    ///
    /// The call, its body and its permit are given back when the head of the answer is here.
    pub async fn handle(&self, mut call: Call) -> Result<Response<Body>, ProxyError> {
        let admission = std::mem::replace(&mut call.admission, Admission::unlimited());
        let permit = std::mem::replace(&mut call.permit, Box::new(()));
        let tenant = call.caller.tenant;
        let metrics = self.journal.metrics();
        let caller = call.caller.clone();
        let mut record = Record::begin(&call.method, &call.target, caller, admission, metrics);
        let sent = async {
            self.refuse_loop(&call.headers)?;
            let asked = headers::asked(&call.headers, &self.config.context, &call.caller)?;
            let trip = self.trip(call, asked).await?;
            let (inbound, mut ready) = self.send_routed(trip, &mut record).await?;
            record.edited(&ready.planned);
            if inbound.status.is_success() {
                record.taken(&ready.planned);
                self.announce(&mut ready);
                // Only of what the upstream took: its answer is what tells a credential from noise.
                let left_out = std::mem::take(&mut ready.planned.left_out);
                self.originals.keep(tenant, ready.leg.readable.clone(), left_out, permit);
            }
            Ok((inbound, ready))
        };
        let (mut inbound, Ready { leg, planned, .. }) = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error).await),
        };
        inbound.headers = leg.upstream.inbound(inbound.headers);
        headers::report(&mut inbound.headers, &planned);
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        let shown = self.shown_name(&leg.upstream).map(|name| (&**name, planned.model.as_str()));
        headers::way(&mut inbound.headers, shown, record.attempts());
        let response = relay::relay(inbound, record, &self.drains);
        Ok(if planned.usage_asked.is_some() { unasked::without_usage(response) } else { response })
    }

    /// An upstream's name, where there are several ways to go.
    fn shown_name<'a>(&self, upstream: &'a Upstream) -> Option<&'a Arc<str>> {
        self.planner.ways().are_several().then_some(&upstream.name)
    }

    /// Has what the next cut will take summed up, in the background.
    fn announce(&self, ready: &mut Ready) {
        let Some((summaries, behalf)) = self.summaries.as_ref().zip(ready.behalf().cloned()) else {
            return;
        };
        summaries.note_taken(&behalf.caller);
        let Some(wanted) = ready.planned.ahead.take() else { return };
        let received = &ready.leg.readable;
        let body = ready.planned.body.as_ref().unwrap_or(received).clone();
        let sent = Sent { body, tokens: ready.planned.sent_tokens };
        summaries.announce(wanted, received, &behalf, Some(sent));
    }

    /// Tells what [`Self::handle`] would send in place of a request, and why. Sends nothing.
    pub async fn explain(&self, call: Call) -> Result<Explained, ProxyError> {
        let asked = headers::asked(&call.headers, &self.config.context, &call.caller)?;
        let job = self.looked_at(call, asked).await?;
        self.planner.explain_job(job, None).await
    }

    /// Refuses a request that has been through this very instance before.
    fn refuse_loop(&self, headers: &HeaderMap) -> Result<(), ProxyError> {
        if !self.via.is_in(headers) {
            return Ok(());
        }
        Err(ProxyError::new(
            ErrorKind::LoopDetected,
            "this request has come back to the weir that sent it: the upstream that it went to leads to \
             weir itself. Set its url (upstream.url, upstreams.NAME.url, or OPENAI_BASE_URL for weir \
             alone) to the provider",
        ))
    }
}
