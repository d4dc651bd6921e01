//! One request, from plan to relay. Knows nothing of listeners or of how errors are rendered.

mod asking;
mod drain;
mod edited;
pub mod error;
mod explain;
mod headers;
mod memory;
mod originals;
pub mod planner;
mod question;
mod refusal;
pub mod relay;
mod shared;
mod unasked;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::Body as _;

pub use drain::Drains;
pub use error::{ErrorKind, ProxyError};
pub use explain::Explained;
pub use originals::{LeftOut, Originals};
pub use question::Question;

use self::planner::Planner;
use self::relay::Record;
use crate::config::Config;
pub use crate::store::Tenant;
use crate::store::{OpenError, Store};
use crate::upstream::{Base, Client, Outbound, OutboundBody, Target};
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
    pub tenant: Tenant,
    /// Gives the body's place in memory back when the call is dropped.
    pub permit: Box<dyn Send>,
}

/// A request on any other route: streamed through.
pub struct Pass {
    pub target: Target,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Body,
}

/// The way from a request to its answer.
pub struct Proxy {
    config: Arc<Config>,
    client: Client,
    planner: Planner,
    store: Store,
    originals: Arc<Originals>,
    /// Answers that are read on without their callers.
    drains: Drains,
    /// What this instance writes into `via`, and knows its own requests by.
    via: headers::Via,
}

impl Proxy {
    /// A proxy that sends by `client` as `config` says and keeps in `store` what outlives a
    /// request. Fails where what is to be kept in memory finds no place there.
    pub fn new(config: Arc<Config>, client: Client, store: Store) -> Result<Self, OpenError> {
        Ok(Self {
            planner: Planner::new(Arc::clone(&config)),
            originals: Arc::new(Originals::new(&config.context, &store)?),
            drains: Drains::new(&config.ledger),
            store,
            config,
            client,
            via: headers::Via::random(),
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

    /// Answers that are read on without their callers: what is to be waited for at the end.
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// The base that callers' paths are mapped onto.
    pub fn base(&self) -> &Base {
        self.client.base()
    }

    /// Brings the conversation inside its limit, forwards it and relays the answer.
    ///
    /// The call, its body and its permit are given back when the head of the answer is here.
    pub async fn handle(&self, call: Call) -> Result<Response<Body>, ProxyError> {
        let mut record = Record::begin(&call.method, &call.target);
        let sent = async {
            self.refuse_loop(&call.headers)?;
            let asked = headers::asked(&call.headers, &self.config.context)?;
            let readable = call.decoded.unwrap_or_else(|| call.received.clone());
            let mut planned = self
                .planner
                .plan(
                    call.tenant,
                    call.protocol,
                    readable.clone(),
                    call.target.path_model.as_deref(),
                    asked,
                )
                .await?;
            record.planned(&planned);
            let mut headers = headers::outbound(call.headers, &self.via);
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
            let inbound = self.send_asking(outbound, &mut planned).await?;
            record.edited(&planned.edits);
            if inbound.status.is_success() {
                // Only of what the upstream took: its answer is what tells a credential from noise.
                let left_out = std::mem::take(&mut planned.left_out);
                self.originals.keep(call.tenant, readable, left_out, call.permit);
            }
            Ok((inbound, planned))
        };
        let (mut inbound, planned) = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error)),
        };
        inbound.headers = headers::inbound(inbound.headers);
        headers::report(&mut inbound.headers, &planned);
        let response = relay::relay(inbound, record, &self.drains);
        Ok(if planned.usage_asked.is_some() { unasked::without_usage(response) } else { response })
    }

    /// Tells what [`Self::handle`] would send in place of a request, and why. Sends nothing.
    pub async fn explain(&self, call: Call) -> Result<Explained, ProxyError> {
        let asked = headers::asked(&call.headers, &self.config.context)?;
        let body = call.decoded.unwrap_or(call.received);
        let model = call.target.path_model.as_deref();
        self.planner.explain(call.tenant, call.protocol, body, model, asked, None).await
    }

    /// Streams a request through, and its answer back.
    pub async fn pass(&self, pass: Pass) -> Result<Response<Body>, ProxyError> {
        let record = Record::begin(&pass.method, &pass.target);
        let sent = async {
            self.refuse_loop(&pass.headers)?;
            let announced_length = pass.headers.contains_key(CONTENT_LENGTH);
            let mut headers = headers::outbound(pass.headers, &self.via);
            let body = if !pass.body.is_end_stream() {
                OutboundBody::Stream(pass.body)
            } else {
                if announced_length {
                    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
                }
                OutboundBody::Empty
            };
            let outbound = Outbound { method: pass.method, target: pass.target, headers, body };
            Ok(self.client.send(outbound).await?)
        };
        let mut inbound = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error)),
        };
        inbound.headers = headers::inbound(inbound.headers);
        Ok(relay::relay(inbound, record, &self.drains))
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
