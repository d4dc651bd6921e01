//! Requests as the server hands them over, admitted and with their bodies.

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Method};

use super::admission::Admission;
use super::caller::Caller;
use super::class::RequestClass;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::upstream::{Body, Target};
use weir_engine::compact::LearnedLimits;
use weir_engine::compact::policy::clearing::Clearing;
use weir_engine::wire::Protocol;
use weir_engine::wire::model::ModelField;

/// Larger bodies are not read on the request's own task.
pub const INLINE_BODY_BYTES: usize = 2 * 1024 * 1024;

/// Does work on a body of this size, off the async threads if it is large.
pub async fn on_time<T: Send + 'static>(
    size_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ProxyError> {
    if size_bytes <= INLINE_BODY_BYTES {
        return Ok(work());
    }
    let failed = |_| ProxyError::new(ErrorKind::Internal, "a body could not be read");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

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

impl ChatRequest {
    /// Replaces the body by one that weir has edited.
    pub fn replace(&mut self, body: Bytes, edit: &'static str) {
        self.continue_with(body);
        self.asked.edits.push(edit);
    }

    /// Replaces the body by one with more messages behind it.
    pub fn continue_with(&mut self, body: Bytes) {
        self.headers.remove(CONTENT_ENCODING);
        self.received = body.clone();
        self.decoded = body;
    }
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

/// Options for the plan from the caller's headers.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// `x-weir-max-input-tokens`: lowers this request's limit.
    pub max_input_tokens: Option<u64>,
    /// `x-weir-bypass`: forward untouched.
    pub bypass: bool,
    /// Equal calls with equal results in a row from which it is refused.
    pub max_repeats: Option<u64>,
    /// `x-weir-policy`: one of the allowed policies.
    pub policy: Option<String>,
    /// Limits learned from the refusal of this very request, instead of the stored ones.
    pub learned: Option<LearnedLimits>,
    /// Whether the caller's budgets are nearly spent, so that it has half of its limit.
    pub is_tight: bool,
    /// Output limit of each answer that its budgets have room for.
    pub max_output_tokens: Option<u64>,
    /// Class of the request by its client's headers.
    pub class: Option<RequestClass>,
    /// Whether the upstream has refused this request's usage request.
    pub is_usage_refused: bool,
    /// Whether the upstream refused thinking in it as that of another conversation.
    pub is_thinking_refused: bool,
}

/// Compaction that a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedCompaction {
    /// Of this conversation, now.
    Now,
    /// Of this conversation, now, into one item that stands for all of it.
    Whole,
    /// Of a conversation above so many tokens; `None` for the policy's own mark.
    Above(Option<u64>),
}

/// What a caller asks for besides an answer, and what weir has done in the body for it.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub compaction: Option<AskedCompaction>,
    pub clearing: Option<Box<Clearing>>,
    /// Names of the edits that the body has already.
    pub edits: Vec<&'static str>,
}

/// Recall tool in a request.
#[derive(Debug)]
pub struct Offer {
    pub name: &'static str,
    /// Key of the record of the recalls before its answer; `None` for none.
    pub key: Option<[u8; 32]>,
    /// Body of the request before the tool was added, its model's place, and its edits.
    pub plain: Bytes,
    pub model: Option<ModelField>,
    pub edits: Vec<&'static str>,
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
