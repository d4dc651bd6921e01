//! Rendering of a `ProxyError` in the error shape of OpenAI or Anthropic. The only place that renders errors as
//! answers; it decides nothing about them.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue,
    RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use serde::Serialize;
use serde_json::value::RawValue;

use super::decode;
use crate::proxy::error::UpstreamAnswer;
use crate::proxy::{Body, ErrorKind, ProxyError, metrics};

/// Marks weir's own errors, so that callers can distinguish them from the upstream's.
pub(super) const X_WEIR_ERROR: HeaderName = HeaderName::from_static("x-weir-error");
/// Makes OpenAI's SDKs, which retry any 5xx and 429, stop if a retry is pointless.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Header of every request of Anthropic's SDKs.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// An error as an answer.
#[derive(Serialize)]
struct Envelope<E> {
    /// Anthropic's alone.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    error: E,
}

/// OpenAI's error shape, its fields in OpenAI's order.
#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
    /// The upstream's answer, if it is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<UpstreamError<'a>>,
}

/// Anthropic's error shape, as its API reference of errors describes it.
#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: Cow<'a, str>,
    /// The upstream's answer, if it is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<UpstreamError<'a>>,
}

#[derive(Serialize)]
struct UpstreamError<'a> {
    status: u16,
    body: UpstreamBody<'a>,
}

/// An upstream's body: JSON as received, or text if it is not JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum UpstreamBody<'a> {
    Json(&'a RawValue),
    Text(Cow<'a, str>),
}

impl<'a> UpstreamError<'a> {
    fn new(answer: &'a UpstreamAnswer) -> Self {
        let body = match serde_json::from_slice(&answer.body) {
            Ok(json) => UpstreamBody::Json(json),
            Err(_) => UpstreamBody::Text(String::from_utf8_lossy(&answer.body)),
        };
        Self { status: answer.status, body }
    }
}

/// Shape of error answers that a client understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    OpenAi,
    Anthropic,
}

impl Shape {
    /// Returns the shape for the client of a request.
    pub(super) fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_messages = path.split('/').any(|name| name == "messages");
        match is_messages || headers.contains_key(ANTHROPIC_VERSION) {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }
}

/// Renders an error.
pub(super) fn error(problem: &ProxyError, shape: Shape) -> Response<Body> {
    let status = problem.kind.status();
    let upstream = problem.upstream.as_deref().map(UpstreamError::new);
    let body = match shape {
        Shape::OpenAi => {
            let (kind, message) = (problem.kind.openai_type(), problem.message.as_str());
            let (param, code) = (problem.param.as_deref(), problem.kind.word());
            let error = OpenAiError { message, kind, param, code, upstream };
            serde_json::to_vec(&Envelope { kind: None, error })
        }
        Shape::Anthropic => {
            let (kind, message) = (problem.kind.anthropic_type(), problem.anthropic_message());
            let error = AnthropicError { kind, message, upstream };
            serde_json::to_vec(&Envelope { kind: Some("error"), error })
        }
    };
    let body = body.expect("strings under fixed keys are JSON");
    let mut response = json(status, body);
    let headers = response.headers_mut();
    headers.insert(X_WEIR_ERROR, HeaderValue::from_static(problem.kind.word()));
    if let Some(after_ms) = problem.retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(after_ms.div_ceil(1000)));
    }
    if is_retried(status) && !problem.may_retry() {
        headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    match problem.kind {
        ErrorKind::UnsupportedEncoding => {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(decode::SUPPORTED_ENCODINGS));
        }
        ErrorKind::InvalidApiKey => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        ErrorKind::UpgradeNotSupported => {
            // Clients that try a WebSocket first fall back to HTTP at once after this.
            headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

/// Renders the error for an unsupported method on one of weir's own pages, with the allowed
/// methods.
pub(super) fn method_not_allowed(problem: &ProxyError, allowed: &'static str) -> Response<Body> {
    let mut response = error(problem, Shape::OpenAi);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Builds a complete JSON answer.
pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Builds a complete JSON answer that nothing on the way may keep.
pub(super) fn private(body: impl Into<Bytes>) -> Response<Body> {
    let mut response = json(StatusCode::OK, body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Builds the metrics page for scrapers.
pub(super) fn metrics(page: String) -> Response<Body> {
    let mut response = private(page);
    let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Builds an answer without a body.
pub(super) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Whether OpenAI's SDKs send a request again after an answer with this status.
fn is_retried(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}
