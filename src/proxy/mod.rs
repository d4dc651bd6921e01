//! One request, from plan to relay. Knows nothing of listeners or of how errors are rendered.

mod admission;
mod asking;
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
mod opening;
mod originals;
mod planned;
pub mod planner;
mod question;
mod record;
mod refusal;
mod relay;
mod settlement;
mod shared;
pub mod shelf;
mod spend;
pub mod summaries;
mod unasked;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::Body as _;

pub use admission::Admission;
use admission::Admissions;
use budgets::Budgets;
pub use caller::Caller;
pub use drain::Drains;
pub use error::{ErrorKind, ProxyError};
pub use explain::Explained;
pub use journal::Journal;
use opening::Opening;
pub use originals::{LeftOut, Originals};
pub use question::Question;
pub use spend::SpendQuery;

use self::learned::Learned;
use self::planner::{Job, Planned, Planner};
pub use self::record::MAX_LOGGED_BYTES;
use self::record::Record;
use self::summaries::{Behalf, Sent, Summaries};
use crate::config::Config;
pub use crate::store::Tenant;
use crate::store::redis::Redis;
use crate::store::{OpenError, Store};
use crate::upstream::{Base, Client, Endpoint, Outbound, OutboundBody, OwnKey, Target};
pub use crate::upstream::{Body, BoxError};
use crate::wire::{Protocol, json};

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
    /// Read before, because something in it had to be checked.
    Whole {
        bytes: Bytes,
        /// Gives the body's place in memory back when the answer's head is here.
        permit: Box<dyn Send>,
    },
}

/// The way from a request to its answer.
pub struct Proxy {
    config: Arc<Config>,
    client: Client,
    planner: Planner,
    learned: Arc<Learned>,
    store: Store,
    originals: Arc<Originals>,
    /// `None` where no model sums up what cuts take.
    summaries: Option<Arc<Summaries>>,
    journal: Arc<Journal>,
    /// Answers that are read on without their callers.
    drains: Drains,
    admissions: Admissions,
    /// What goes out in the place of callers' credentials; `None` where they send their own.
    own_key: Option<OwnKey>,
    /// What this instance writes into `via`, and knows its own requests by.
    via: headers::Via,
}

impl Proxy {
    /// A proxy that sends by `client` as `config` says and keeps in `store` what outlives a
    /// request. Fails where what is to be kept in memory finds no place there.
    pub fn new(config: Arc<Config>, client: Client, store: Store) -> Result<Self, OpenError> {
        let own_key = own_key(&config, &client)?;
        let upstream = client.base().origin().to_owned();
        let learned =
            Learned::new(store.clone(), upstream.clone(), own_key.is_some(), config.learning);
        let learned = Arc::new(learned);
        let redis = Redis::configured(&config.redis)
            .map_err(|error| OpenError::System { said: format!("redis.url: {error}") })?;
        let budgets = Budgets::new(Arc::clone(&config), &store, redis.clone());
        let journal = Journal::new(Arc::clone(&config), store.clone(), upstream, budgets);
        let journal = Arc::new(journal);
        let summaries =
            Summaries::new(&config, &client, own_key.as_ref(), &journal, &learned, &store, None)
                .map_err(|error| OpenError::System { said: format!("summaries.url: {error}") })?;
        let planner = Planner::with(Arc::clone(&config), Arc::clone(&learned), summaries.clone());
        Ok(Self {
            own_key,
            admissions: Admissions::new(redis),
            planner,
            learned,
            originals: Arc::new(Originals::new(&config.context, &store)?),
            summaries,
            journal,
            drains: Drains::new(&config.ledger),
            store,
            config,
            client,
            via: headers::Via::random(),
        })
    }

    /// The same by another configuration, for requests from now on: what is remembered, learned, held,
    /// written down and under way goes on, and so do connections to what has not changed.
    pub fn reconfigured(&self, config: Arc<Config>) -> Result<Self, OpenError> {
        let is_same = config.upstream == self.config.upstream;
        let client = match is_same {
            true => self.client.clone(),
            false => Client::new(&config.upstream)
                .map_err(|error| OpenError::System { said: error.to_string() })?,
        };
        let own_key = own_key(&config, &client)?;
        let upstream = client.base().origin().to_owned();
        let learned = match is_same && config.learning == self.config.learning {
            true => Arc::clone(&self.learned),
            false => Arc::new(Learned::new(
                self.store.clone(),
                upstream.clone(),
                own_key.is_some(),
                config.learning,
            )),
        };
        let journal = Arc::new(self.journal.renewed(Arc::clone(&config), upstream));
        let before = self.summaries.as_deref();
        let own = own_key.as_ref();
        let summaries =
            Summaries::new(&config, &client, own, &journal, &learned, &self.store, before)
                .map_err(|error| OpenError::System { said: format!("summaries.url: {error}") })?;
        let planner =
            self.planner.renewed(Arc::clone(&config), Arc::clone(&learned), summaries.clone());
        Ok(Self {
            own_key,
            admissions: self.admissions.clone(),
            planner,
            learned,
            originals: Arc::clone(&self.originals),
            summaries,
            journal,
            drains: self.drains.clone(),
            store: self.store.clone(),
            config,
            client,
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

    /// The base that callers' paths are mapped onto.
    pub fn base(&self) -> &Base {
        self.client.base()
    }

    /// Brings the conversation inside its limit, forwards it and relays the answer.
    ///
    /// The call, its body and its permit are given back when the head of the answer is here.
    pub async fn handle(&self, call: Call) -> Result<Response<Body>, ProxyError> {
        let mut record =
            Record::begin(&call.method, &call.target, call.caller.clone(), call.admission);
        let tenant = call.caller.tenant;
        let sent = async {
            self.refuse_loop(&call.headers)?;
            let asked = headers::asked(&call.headers, &self.config.context, &call.caller)?;
            let readable = call.decoded.unwrap_or_else(|| call.received.clone());
            let behalf = self.behalf(&call.caller, call.protocol, &call.headers, &call.target);
            let mut job = Job::new(tenant, call.protocol, readable.clone(), asked);
            job.path_model.clone_from(&call.target.path_model);
            job.behalf.clone_from(&behalf);
            let mut planned = self.planner.plan_job(&job).await?;
            record.planned(&planned);
            call.caller.check_model(&planned.model)?;
            call.caller.check_conversation(&readable)?;
            record.take_tokens(planned.sent_tokens).await?;
            let account = opening::account(&call.caller);
            let holding = self.hold(&account, &mut job, &mut planned).await?;

            let mut headers = self.outbound_headers(call.headers, &call.target);
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            let body = match &planned.body {
                Some(edited) => {
                    headers.remove(CONTENT_ENCODING);
                    edited.clone()
                }
                None => call.received,
            };
            let outbound = Outbound {
                method: call.method,
                target: call.target,
                headers,
                body: OutboundBody::Bytes(body),
            };
            let opening = Opening::planned(account, &outbound.target, &planned, record.plan_ms());
            record.account(self.journal.open(opening, holding).await?);
            let inbound = self.send_fitting(outbound, &mut planned, job, &mut record).await?;
            record.edited(&planned);
            if inbound.status.is_success() {
                if let Some(behalf) = &behalf {
                    self.announce(behalf, &readable, &mut planned);
                }
                // Only of what the upstream took: its answer is what tells a credential from noise.
                let left_out = std::mem::take(&mut planned.left_out);
                self.originals.keep(tenant, readable, left_out, call.permit);
            }
            Ok((inbound, planned))
        };
        let (mut inbound, planned) = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error).await),
        };
        inbound.headers = self.inbound_headers(inbound.headers);
        headers::report(&mut inbound.headers, &planned);
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        let response = relay::relay(inbound, record, &self.drains);
        Ok(if planned.usage_asked.is_some() { unasked::without_usage(response) } else { response })
    }

    /// On whose behalf messages are summed up, where they are.
    fn behalf(
        &self,
        caller: &Caller,
        protocol: Protocol,
        headers: &HeaderMap,
        target: &Target,
    ) -> Option<Arc<Behalf>> {
        self.summaries.as_ref()?;
        let (caller, headers, target) = (caller.clone(), headers.clone(), target.clone());
        Some(Arc::new(Behalf { caller, headers, target, protocol }))
    }

    /// Has what the next cut will take summed up, in the background.
    fn announce(&self, behalf: &Arc<Behalf>, received: &Bytes, planned: &mut Planned) {
        let Some(summaries) = &self.summaries else { return };
        summaries.note_taken(&behalf.caller);
        let Some(wanted) = planned.ahead.take() else { return };
        let body = planned.body.as_ref().unwrap_or(received).clone();
        let sent = Sent { body, tokens: planned.sent_tokens };
        summaries.announce(wanted, received, behalf, Some(sent));
    }

    /// Tells what [`Self::handle`] would send in place of a request, and why. Sends nothing.
    pub async fn explain(&self, call: Call) -> Result<Explained, ProxyError> {
        let asked = headers::asked(&call.headers, &self.config.context, &call.caller)?;
        let body = call.decoded.unwrap_or(call.received);
        let model = call.target.path_model.as_deref();
        self.planner.explain(call.caller.tenant, call.protocol, body, model, asked, None).await
    }

    /// Streams a request through, and its answer back.
    pub async fn pass(&self, pass: Pass) -> Result<Response<Body>, ProxyError> {
        let mut record = Record::begin(&pass.method, &pass.target, pass.caller, pass.admission);
        let sent = async {
            self.refuse_loop(&pass.headers)?;
            // Nothing is known of the tokens yet: what was used before must leave some room.
            record.take_tokens(0).await?;
            let announced_length = pass.headers.contains_key(CONTENT_LENGTH);
            let body_bytes = headers::length(&pass.headers);
            let mut headers = self.outbound_headers(pass.headers, &pass.target);
            if matches!(pass.target.endpoint(), Endpoint::Route(_)) {
                // The usage in a compressed answer could not be read.
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            let mut model = pass.target.path_model.clone().unwrap_or_default();
            let (body, _permit) = match pass.body {
                PassBody::Whole { bytes, permit } => {
                    if let Some(named) =
                        json::text_member(&bytes, "model").filter(|_| model.is_empty())
                    {
                        model = named;
                    }
                    (OutboundBody::Bytes(bytes), Some(permit))
                }
                PassBody::Streamed(body) if body.is_end_stream() => {
                    if announced_length {
                        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
                    }
                    (OutboundBody::Empty, None)
                }
                PassBody::Streamed(body) => (OutboundBody::Stream(body), None),
            };
            let outbound = Outbound { method: pass.method, target: pass.target, headers, body };
            record.ready();
            let opening = Opening::passed(record.caller(), &outbound, model, record.plan_ms());
            if let Some(opening) = opening {
                let holding = self.journal.hold_unread(&opening, body_bytes).await?;
                record.account(self.journal.open(opening, holding).await?);
            }
            Ok(self.client.send(outbound).await?)
        };
        let mut inbound = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error).await),
        };
        inbound.headers = self.inbound_headers(inbound.headers);
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        Ok(relay::relay(inbound, record, &self.drains))
    }

    /// A caller's headers as the upstream gets them, with weir's own key where it has one.
    fn outbound_headers(&self, callers: HeaderMap, target: &Target) -> HeaderMap {
        let mut headers = headers::outbound(callers, &self.via);
        if let Some(own_key) = &self.own_key {
            own_key.put_into(&mut headers, target.endpoint());
        }
        headers
    }

    /// An upstream's headers as the caller gets them.
    fn inbound_headers(&self, upstreams: HeaderMap) -> HeaderMap {
        let mut headers = headers::inbound(upstreams);
        if self.own_key.is_some() {
            OwnKey::clean_answer(&mut headers);
        }
        headers
    }

    /// Refuses a request that has been through this very instance before.
    fn refuse_loop(&self, headers: &HeaderMap) -> Result<(), ProxyError> {
        if !self.via.is_in(headers) {
            return Ok(());
        }
        Err(ProxyError::new(
            ErrorKind::LoopDetected,
            "this request has come back to the weir that sent it: upstream.url leads to weir \
             itself. Set upstream.url (or OPENAI_BASE_URL for weir alone) to the provider",
        ))
    }
}

/// weir's own key for the provider, as it goes out.
fn own_key(config: &Config, client: &Client) -> Result<Option<OwnKey>, OpenError> {
    let own_key = config.upstream.own_key.as_ref().map(|secret| {
        OwnKey::new(secret, client.base()).ok_or_else(|| OpenError::System {
            said: "weir's own key for the provider holds characters that no header may".into(),
        })
    });
    own_key.transpose()
}
