//! The answer on its way back: forwarded chunk by chunk as it comes, metered in passing, and one
//! log line at its end. Nothing that a conversation says is kept or logged.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::drain::{Drained, Drains};
use super::planner::Planned;
use super::{Body, BoxError, ErrorKind, LeftOut, ProxyError};
use crate::upstream::{AnswerBody, AnswerError, Inbound, Target};
use crate::wire::usage::{Meter, Metered};

/// The most of a path or of a model's name that goes into the log; callers choose them.
pub const MAX_LOGGED_BYTES: usize = 200;

/// The caller's answer: the upstream's, with `record` written when it ends. Where the caller leaves
/// before that, `drains` reads on.
pub fn relay(inbound: Inbound, mut record: Record, drains: &Drains) -> Response<Body> {
    record.answered(inbound.status);
    let meter = meter(&inbound.headers);
    let relay = Relay { upstream: inbound.body, meter, record, has_left: false };
    let mut response = Response::new(Body::new(Drained::new(relay, drains)));
    *response.status_mut() = inbound.status;
    *response.headers_mut() = inbound.headers;
    response
}

/// A meter for an answer with these headers, where it can be read: a provider may compress what
/// it was asked to leave plain.
fn meter(headers: &HeaderMap) -> Option<Meter> {
    if headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let content_type = headers.get(CONTENT_TYPE);
    Some(Meter::new(content_type.and_then(|value| value.to_str().ok())))
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Complete,
    /// The caller went away; what the upstream had left to say was read for its usage, or cancelled.
    CallerLeft,
    UpstreamCut,
    IdleTimeout,
    Failed(ErrorKind),
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::CallerLeft => "caller_left",
            Self::UpstreamCut => "upstream_cut",
            Self::IdleTimeout => "idle_timeout",
            Self::Failed(kind) => kind.code(),
        }
    }
}

/// The log line of one request, written when the record is dropped: a request whose future or
/// body is dropped is one that the caller has left.
#[must_use = "a record that is dropped early says that the caller left"]
pub struct Record {
    begun: Instant,
    /// When the request was ready to be sent.
    ready: Instant,
    method: Method,
    path: String,
    planned: Option<Planned>,
    status: Option<StatusCode>,
    upstream_first_byte_ms: Option<u64>,
    bytes_out: u64,
    metered: Metered,
    outcome: Outcome,
}

impl Record {
    /// Begins the record of a request.
    pub fn begin(method: &Method, target: &Target) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            ready: now,
            method: method.clone(),
            path: logged(target.path()),
            planned: None,
            status: None,
            upstream_first_byte_ms: None,
            bytes_out: 0,
            metered: Metered::default(),
            outcome: Outcome::CallerLeft,
        }
    }

    /// Notes what is sent, without the body.
    pub fn planned(&mut self, planned: &Planned) {
        self.ready = Instant::now();
        self.planned = Some(Planned {
            body: None,
            action: planned.action.clone(),
            edits: planned.edits.clone(),
            left_out: LeftOut::default(),
            model: logged(&planned.model),
            ..*planned
        });
    }

    /// Notes the edits of what was sent in the end, by their names.
    pub fn edited(&mut self, edits: &str) {
        if let Some(planned) = &mut self.planned
            && planned.edits != edits
        {
            edits.clone_into(&mut planned.edits);
        }
    }

    /// Ends the record of a request that got no answer, and hands its error on.
    pub fn failed(mut self, error: ProxyError) -> ProxyError {
        self.outcome = Outcome::Failed(error.kind);
        error
    }

    fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.upstream_first_byte_ms = Some(self.ready.elapsed().as_millis() as u64);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let planned = self.planned.as_ref();
        let usage = self.metered.usage.unwrap_or_default();
        tracing::info!(
            target: "weir::request",
            method = self.method.as_str(),
            path = self.path.as_str(),
            status = self.status.map(|status| status.as_u16()),
            outcome = self.outcome.name(),
            model = planned.map(|planned| planned.model.as_str()),
            action = planned.map(|planned| planned.action.as_str()),
            edits = planned.map(|planned| planned.edits.as_str()),
            received_tokens = planned.map(|planned| planned.received_tokens),
            sent_tokens = planned.map(|planned| planned.sent_tokens),
            limit_tokens = planned.map(|planned| planned.limit_tokens),
            messages = planned.map(|planned| planned.messages),
            stream = planned.map(|planned| planned.stream),
            upstream_first_byte_ms = self.upstream_first_byte_ms,
            total_ms = self.begun.elapsed().as_millis() as u64,
            bytes_out = self.bytes_out,
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            cached_tokens = usage.cached_tokens,
            finish_reason = self.metered.finish_reason.as_deref(),
            "request"
        );
    }
}

/// As much of a text as goes into the log.
fn logged(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_LOGGED_BYTES)].to_owned()
}

/// The upstream's body on its way to the caller.
pub struct Relay {
    upstream: AnswerBody,
    meter: Option<Meter>,
    record: Record,
    /// Whether the caller has left, and what is read is for the meter alone.
    has_left: bool,
}

impl Relay {
    /// Whether reading on may tell what the answer used.
    pub fn may_tell_more(&self) -> bool {
        self.record.outcome == Outcome::CallerLeft
            && self.record.status.is_some_and(|status| status.is_success())
            && self.meter.as_ref().is_some_and(Meter::is_reading)
            && !self.upstream.is_end_stream()
    }

    /// Notes that the caller has left: whatever follows, that is what became of its request.
    pub fn leave(&mut self) {
        self.has_left = true;
    }

    /// Reads on; whether there may be more.
    pub async fn next(&mut self) -> bool {
        let frame = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await;
        matches!(frame, Some(Ok(_)))
    }
}

impl HttpBody for Relay {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.upstream).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(chunk) = frame.data_ref() {
                    if !self.has_left {
                        self.record.bytes_out += chunk.len() as u64;
                    }
                    if let Some(meter) = &mut self.meter {
                        meter.feed(chunk);
                    }
                }
            }
            _ if self.has_left => {}
            Some(Err(AnswerError::Cut { .. })) => self.record.outcome = Outcome::UpstreamCut,
            Some(Err(AnswerError::Idle { .. })) => self.record.outcome = Outcome::IdleTimeout,
            None if self.record.outcome == Outcome::CallerLeft => {
                self.record.outcome = Outcome::Complete;
            }
            None => {}
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.upstream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.upstream.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.record.metered = self.meter.take().map(Meter::finish).unwrap_or_default();
        // A listener that knows the length stops asking at the last byte, and a caller that has
        // read `[DONE]` may hang up: both have all there was.
        let has_all = self.upstream.is_end_stream() || self.record.metered.done;
        if self.record.outcome == Outcome::CallerLeft && has_all && !self.has_left {
            self.record.outcome = Outcome::Complete;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_choose_is_logged_in_part() {
        assert_eq!(logged("/v1/models"), "/v1/models");
        assert_eq!(logged(&"a".repeat(201)), "a".repeat(200));
        assert_eq!(logged(&"€".repeat(100)), "€".repeat(66));
    }
}
