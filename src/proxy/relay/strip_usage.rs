//! Answer body without the usage that only weir requested.

use http::Response;
use http::header::CONTENT_LENGTH;

use super::filtered::Filtered;
use crate::proxy::upstreams::headers::is_event_stream;
use crate::upstream::Body;
use weir_engine::wire::event_filter::{MAX_EVENT_BYTES, WithoutUsage};

/// Removes usage from the events of `response`. Answers other than plain event streams stay as they
/// are.
pub fn without_usage(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if !is_event_stream(&parts.headers) {
        return Response::from_parts(parts, body);
    }
    parts.headers.remove(CONTENT_LENGTH);
    let body = Filtered::events(body, WithoutUsage, MAX_EVENT_BYTES);
    Response::from_parts(parts, Body::new(body))
}
