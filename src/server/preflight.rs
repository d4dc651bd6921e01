//! CORS preflight requests of browsers for pages of an allowed origin. Decides nothing about
//! origins.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue,
};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use super::reply;
use crate::proxy::Body;

/// Header with which browsers ask before a public page may reach a private address, and the
/// consent.
const REQUEST_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-allow-private-network");

/// Whether a request is a CORS preflight.
pub(super) fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Allows the method and headers that the page asks for.
pub(super) fn preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = reply::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    let echoes = [
        (ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_ALLOW_METHODS),
        (ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_ALLOW_HEADERS),
    ];
    for (request, answer) in echoes {
        if let Some(value) = asked.get(request) {
            headers.insert(answer, value.clone());
        }
    }
    if asked.contains_key(REQUEST_PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}
