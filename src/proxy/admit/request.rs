//! Requests as the server hands them over, admitted and with their bodies.

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::admission::Admission;
use super::caller::Caller;
use crate::upstream::{Body, Target};
use weir_engine::wire::Protocol;

/// Request on a route that weir reads, with its complete body.
pub struct Call {
    pub protocol: Protocol,
    pub target: Target,
    pub method: Method,
    pub headers: HeaderMap,
    /// Body as received, possibly compressed.
    pub received: Bytes,
    /// Decoded body, if `received` was compressed.
    pub decoded: Option<Bytes>,
    pub caller: Caller,
    /// The caller's slot, kept until the end of the answer.
    pub admission: Admission,
    /// Releases the body's share of memory when the call is dropped.
    pub permit: Box<dyn Send>,
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
