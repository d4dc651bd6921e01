//! Requests as the server hands them over, admitted and with their bodies.

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::admission::Admission;
use super::caller::Caller;
use crate::proxy::compaction::Asked;
use crate::proxy::plan::RequestOptions;
use crate::proxy::recall::Offer;
use crate::upstream::{Body, Target};
use weir_engine::wire::Protocol;
use weir_engine::wire::model::ModelField;

/// Share of the memory for bodies, released on drop.
pub trait Room: Send + Sync {
    /// Acquires room for `bytes` more; returns whether there is room.
    fn grow(&mut self, bytes: usize) -> bool;

    /// Releases room for `bytes`.
    fn shrink(&mut self, bytes: usize);

    /// Returns another share of the same memory, of no bytes so far.
    fn another(&self) -> Box<dyn Room>;
}

/// Of a body that is not counted.
impl Room for () {
    fn grow(&mut self, _: usize) -> bool {
        true
    }

    fn shrink(&mut self, _: usize) {}

    fn another(&self) -> Box<dyn Room> {
        Box::new(())
    }
}

/// Conversation on a route that weir reads, with its complete body: the source of every attempt.
pub struct ChatRequest {
    pub protocol: Protocol,
    pub target: Target,
    pub method: Method,
    /// Headers of the caller.
    pub headers: HeaderMap,
    /// Body as received, possibly compressed.
    pub received: Bytes,
    /// Body to read: decoded, and without a byte order mark.
    pub decoded: Bytes,
    pub caller: Caller,
    /// The caller's slot, kept until the end of the answer.
    pub admission: Admission,
    /// The body's share of memory.
    pub permit: Box<dyn Room>,
    /// Options from its headers or its key; the proxy reads them.
    pub options: RequestOptions,
    /// Model that it names; the proxy finds it.
    pub model: RequestedModel,
    /// Compaction that the caller asks for; the proxy reads it from the body.
    pub asked: Asked,
    /// Recall tool in its body; the proxy adds it.
    pub recall: Option<Offer>,
}

impl From<ChatRequest> for Pass {
    fn from(request: ChatRequest) -> Self {
        let is_decoded = request.decoded.len() != request.received.len();
        let ChatRequest { caller, admission, target, method, headers, .. } = request;
        let body = PassBody::Whole {
            bytes: request.received,
            decoded: is_decoded.then_some(request.decoded),
            permit: Box::new(request.permit),
        };
        Self { caller, admission, target, method, headers, body }
    }
}

/// Model that a request names.
#[derive(Default)]
pub struct RequestedModel {
    /// Its name; `None` if all conversations have one route.
    pub name: Option<String>,
    /// Whether the body names it.
    pub is_by_body: bool,
    /// Position of the name in the body, if it may have to be replaced.
    pub field: Option<ModelField>,
}

/// Request on any other route, streamed through.
pub struct Pass {
    pub caller: Caller,
    /// The caller's slot, kept until the end of the answer.
    pub admission: Admission,
    pub target: Target,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: PassBody,
}

/// Body that is forwarded unchanged.
pub enum PassBody {
    /// Streamed from the caller.
    Streamed(Body),
    /// Read beforehand, because its contents must be checked or decide the route.
    Whole {
        bytes: Bytes,
        /// Decoded body, if `bytes` are compressed.
        decoded: Option<Bytes>,
        /// Releases the body's share of memory when the answer's head arrives.
        permit: Box<dyn Send>,
    },
}
