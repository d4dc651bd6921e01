//! Rendering of a `ProxyError` in OpenAI's error shape. The only place that renders errors; it
//! decides nothing about them.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use serde::Serialize;
use serde_json::value::RawValue;

use super::decode;
use crate::proxy::error::{Side, UpstreamAnswer};
use crate::proxy::{Body, ErrorKind, ProxyError, metrics};

/// Marks weir's own errors, so that callers can distinguish them from the upstream's.
pub(super) const X_WEIR_ERROR: HeaderName = HeaderName::from_static("x-weir-error");
/// Makes OpenAI's SDKs, which retry any 5xx and 429, stop if a retry is pointless.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// OpenAI's error shape, its fields in OpenAI's order.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Rendered<'a>,
}

#[derive(Serialize)]
struct Rendered<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
    /// The upstream's answer, if it is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<Upstream<'a>>,
}

#[derive(Serialize)]
struct Upstream<'a> {
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

impl<'a> Upstream<'a> {
    fn new(answer: &'a UpstreamAnswer) -> Self {
        let body = match serde_json::from_slice(&answer.body) {
            Ok(json) => UpstreamBody::Json(json),
            Err(_) => UpstreamBody::Text(String::from_utf8_lossy(&answer.body)),
        };
        Self { status: answer.status, body }
    }
}

/// Renders an error.
pub(super) fn error(problem: &ProxyError) -> Response<Body> {
    let status = problem.kind.status();
    let envelope = Envelope {
        error: Rendered {
            message: &problem.message,
            kind: kind_of_error(problem.kind),
            param: problem.param.as_deref(),
            code: problem.kind.code(),
            upstream: problem.upstream.as_deref().map(Upstream::new),
        },
    };
    let body = serde_json::to_vec(&envelope).expect("strings under fixed keys are JSON");
    let mut response = json(status, body);
    let headers = response.headers_mut();
    headers.insert(X_WEIR_ERROR, HeaderValue::from_static(problem.kind.code()));
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
        _ => {}
    }
    response
}

/// Renders the error for an unsupported method on one of weir's own pages, with the allowed
/// methods.
pub(super) fn method_not_allowed(problem: &ProxyError, allowed: &'static str) -> Response<Body> {
    let mut response = error(problem);
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

/// Builds the metrics page for scrapers.
pub(super) fn metrics(page: String) -> Response<Body> {
    let mut response = json(StatusCode::OK, page);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
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

/// OpenAI's `type` for errors of this kind.
fn kind_of_error(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::RequestRate => "requests",
        ErrorKind::TokenRate | ErrorKind::BudgetHeld => "tokens",
        ErrorKind::BudgetExhausted => "insufficient_quota",
        kind if kind.side() == Side::Caller => "invalid_request_error",
        _ => "server_error",
    }
}

/// Whether OpenAI's SDKs send a request again after an answer with this status.
fn is_retried(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}
