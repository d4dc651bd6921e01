//! The answer on its way back: forwarded chunk by chunk as it comes, metered in passing, and one
//! log line at its end. Nothing that a conversation says is kept or logged.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::planner::Planned;
use super::{Admission, Body, BoxError, Caller, ErrorKind, LeftOut, ProxyError};
use crate::upstream::{AnswerBody, AnswerError, Inbound, Target};
use crate::wire::usage::{Meter, Metered};

/// The most of a path or of a model's name that goes into the log; callers choose them.
pub const MAX_LOGGED_BYTES: usize = 200;

/// The caller's answer: the upstream's, with `record` written when it ends.
pub fn relay(inbound: Inbound, mut record: Record) -> Response<Body> {
    record.answered(inbound.status);
    let meter = meter(&inbound.headers);
    let relay = Relay { upstream: inbound.body, meter, record };
    let mut response = Response::new(Body::new(relay));
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
    /// The caller went away; what the upstream had left to say was cancelled.
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
    caller: Caller,
    admission: Admission,
    planned: Option<Planned>,
    status: Option<StatusCode>,
    upstream_first_byte_ms: Option<u64>,
    bytes_out: u64,
    metered: Metered,
    outcome: Outcome,
}

impl Record {
    /// Begins the record of a request, and keeps its place among its caller's.
    pub fn begin(method: &Method, target: &Target, caller: Caller, admission: Admission) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            ready: now,
            method: method.clone(),
            path: logged(target.path()),
            caller,
            admission,
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

    /// Counts what the request will send, or refuses it where the minute has no room.
    pub fn take_tokens(&mut self, tokens: u64) -> Result<(), ProxyError> {
        self.admission.take_tokens(tokens)
    }

    /// Puts what was used in the place of what was counted before. What was not sent, or not
    /// taken, used nothing; where the upstream does not say, the count stands.
    fn settle_tokens(&mut self) {
        let usage = self.metered.usage.unwrap_or_default();
        match (usage.prompt_tokens, usage.completion_tokens) {
            (None, None) if self.status.is_some_and(|status| status.is_success()) => {}
            (None, None) if self.outcome == Outcome::CallerLeft => {}
            (prompt, completion) => {
                let used = prompt.unwrap_or(0).saturating_add(completion.unwrap_or(0));
                self.admission.settle_tokens(used);
            }
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
        self.settle_tokens();
        let planned = self.planned.as_ref();
        let key = self.caller.key.as_ref();
        let usage = self.metered.usage.unwrap_or_default();
        tracing::info!(
            target: "weir::request",
            method = self.method.as_str(),
            path = self.path.as_str(),
            status = self.status.map(|status| status.as_u16()),
            outcome = self.outcome.name(),
            key = key.map(|key| key.id.as_str()),
            team = key.map(|key| key.team.as_str()),
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
struct Relay {
    upstream: AnswerBody,
    meter: Option<Meter>,
    record: Record,
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
                    self.record.bytes_out += chunk.len() as u64;
                    if let Some(meter) = &mut self.meter {
                        meter.feed(chunk);
                    }
                }
            }
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
        if self.record.outcome == Outcome::CallerLeft && has_all {
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
