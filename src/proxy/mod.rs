//! One request, from plan to relay. Knows nothing of listeners or of how errors are rendered.

pub mod error;
mod memory;
pub mod planner;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;

pub use error::{ErrorKind, ProxyError, Side};

use crate::config::Config;
use crate::upstream::{Client, Target};
use crate::wire::Protocol;

/// Any error a body may end with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A body that streams, in or out.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Whose request it is: a keyed fingerprint of the whole credential, never the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant(pub [u8; 16]);

/// A request on a route that weir reads, its body complete.
pub struct Call {
    pub protocol: Protocol,
    pub target: Target,
    pub method: http::Method,
    pub headers: http::HeaderMap,
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
    pub method: http::Method,
    pub headers: http::HeaderMap,
    pub body: Body,
}

/// The way from a request to its answer.
pub struct Proxy {
    config: Arc<Config>,
    client: Client,
}

impl Proxy {
    /// A proxy that sends by `client` as `config` says.
    pub fn new(config: Arc<Config>, client: Client) -> Self {
        Self { config, client }
    }

    /// Brings the conversation inside its limit, forwards it and relays the answer.
    pub async fn handle(&self, _call: Call) -> Result<Response<Body>, ProxyError> {
        let _ = (&self.config, &self.client);
        Err(ProxyError::new(ErrorKind::Internal, "not here yet"))
    }

    /// Streams a request through, and its answer back.
    pub async fn pass(&self, _pass: Pass) -> Result<Response<Body>, ProxyError> {
        Err(ProxyError::new(ErrorKind::Internal, "not here yet"))
    }
}
