//! From a `ProxyError` to what the caller sees: OpenAI's error shape. The only place that renders
//! errors; it decides nothing about them.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};

use super::decode;
use crate::proxy::{Body, ErrorKind, ProxyError};

/// Carried by weir's own errors alone, so that they are told from the upstream's.
pub const X_WEIR_ERROR: HeaderName = HeaderName::from_static("x-weir-error");
/// Tells OpenAI's SDKs, which try again on any 5xx, that it would be in vain.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The answer that says what went wrong.
pub fn error(problem: &ProxyError) -> Response<Body> {
    let rendered = Rendered::of(problem.kind);
    let body = serde_json::json!({
        "error": {
            "message": problem.message,
            "type": rendered.kind_of_error,
            "param": problem.param,
            "code": rendered.code,
        }
    });
    let mut response = json(rendered.status, body.to_string());
    let headers = response.headers_mut();
    headers.insert(X_WEIR_ERROR, HeaderValue::from_static(rendered.code));
    if let Some(after_ms) = problem.retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(after_ms.div_ceil(1000)));
    }
    match problem.kind {
        ErrorKind::UpgradeNotSupported | ErrorKind::LoopDetected => {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        ErrorKind::UnsupportedEncoding => {
            headers.insert(
                ACCEPT_ENCODING,
                HeaderValue::from_static(decode::SUPPORTED_ENCODINGS),
            );
        }
        _ => {}
    }
    response
}

/// A complete JSON answer.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// How a kind of error looks on the wire.
pub struct Rendered {
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind_of_error: &'static str,
    /// OpenAI's `code`, also the value of `x-weir-error`.
    pub code: &'static str,
}

impl Rendered {
    pub fn of(kind: ErrorKind) -> Self {
        let (status, code) = match kind {
            ErrorKind::InvalidRequest => (StatusCode::BAD_REQUEST, "invalid_request"),
            ErrorKind::ContextLengthExceeded => {
                (StatusCode::BAD_REQUEST, "context_length_exceeded")
            }
            ErrorKind::TooManyMessages => (StatusCode::BAD_REQUEST, "too_many_messages"),
            ErrorKind::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            ErrorKind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            ErrorKind::UnsupportedEncoding => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding")
            }
            ErrorKind::OriginNotAllowed => (StatusCode::FORBIDDEN, "origin_not_allowed"),
            ErrorKind::HostNotAllowed => (StatusCode::FORBIDDEN, "host_not_allowed"),
            ErrorKind::BypassNotAllowed => (StatusCode::FORBIDDEN, "bypass_not_allowed"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            ErrorKind::UpgradeNotSupported => {
                (StatusCode::NOT_IMPLEMENTED, "upgrade_not_supported")
            }
            ErrorKind::LoopDetected => (StatusCode::LOOP_DETECTED, "loop_detected"),
            ErrorKind::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            ErrorKind::UpstreamConnect => (StatusCode::BAD_GATEWAY, "upstream_connect"),
            ErrorKind::UpstreamTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout"),
            ErrorKind::UpstreamClosed => (StatusCode::BAD_GATEWAY, "upstream_closed"),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let kind_of_error = if status.is_server_error() {
            "server_error"
        } else {
            "invalid_request_error"
        };
        Self {
            status,
            kind_of_error,
            code,
        }
    }
}
