//! Relay of the answer: forwarded chunk by chunk, metered in passing, and held at its end until its
//! account is settled. Keeps no part of a conversation.

pub mod addition;
pub mod attended;
pub mod drain;
mod filtered;
pub mod strip_usage;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full};

use crate::proxy::conversations::Keeping;
use crate::proxy::hold::journal::Cost;
use crate::proxy::record::{Outcome, Record};
use crate::proxy::relay::drain::{Drained, Drains};
use crate::proxy::upstreams::headers::is_event_stream;
use crate::upstream::{AnswerBody, AnswerError, Body, BoxError, Inbound};
use weir_engine::wire::usage::Meter;

/// Returns the upstream's answer for the caller, with `record` written at its end. If the caller
/// leaves before, `drains` reads on. An exchange in `keeping` is kept before the answer ends.
pub fn relay(
    inbound: Inbound,
    mut record: Record,
    drains: &Drains,
    keeping: Option<Keeping>,
) -> Response<Body> {
    record.answered(inbound.status, is_event_stream(&inbound.headers));
    if inbound.failed.is_some() {
        record.failed_at_opening();
    }
    let meter = meter(&inbound.headers);
    let (upstream, has_left, settling) = (inbound.body, false, None);
    let relay = Relay { upstream, meter, record, keeping, has_left, settling };
    let mut response = Response::new(Body::new(Drained::new(relay, drains)));
    *response.status_mut() = inbound.status;
    *response.headers_mut() = inbound.headers;
    response
}

/// Returns an answer of weir's own, once its account is settled.
pub async fn own(body: Bytes, content_type: &'static str, mut record: Record) -> Response<Body> {
    record.answered_by_weir(StatusCode::OK, body.len() as u64);
    if let Some((account, ended)) = record.end() {
        record.settled(account.settle(ended).await);
    }
    let mut response =
        Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Creates a meter for an answer with these headers, if it is readable: a provider may compress
/// despite the request for plain text.
pub fn meter(headers: &HeaderMap) -> Option<Meter> {
    if headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let content_type = headers.get(CONTENT_TYPE);
    Some(Meter::new(content_type.and_then(|value| value.to_str().ok())))
}

/// The upstream's body on its way to the caller.
pub struct Relay {
    upstream: AnswerBody,
    meter: Option<Meter>,
    record: Record,
    /// Exchange of a kept conversation, until the answer ends.
    keeping: Option<Keeping>,
    /// Whether the caller has left, so that only the meter reads on.
    has_left: bool,
    settling: Option<Settling>,
}

/// Work at the end of an answer; returns its cost.
type Written = Pin<Box<dyn Future<Output = Cost> + Send>>;

/// End of an answer, held until its settlement is written.
struct Settling {
    written: Written,
    last: Option<Result<Frame<Bytes>, BoxError>>,
}

impl Relay {
    /// Whether reading further may reveal the answer's usage.
    pub fn may_reveal_usage(&self) -> bool {
        self.record.outcome == Outcome::CallerLeft
            && self.record.is_success()
            && self.meter.as_ref().is_some_and(Meter::is_reading)
            && !self.upstream.is_end_stream()
    }

    /// Records that the caller has left: that is the request's outcome, even if more follows.
    pub fn leave(&mut self) {
        self.has_left = true;
        self.record.presence().leave();
    }

    /// Reads the next frame; returns whether there may be more.
    pub async fn next(&mut self) -> bool {
        let frame = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await;
        matches!(frame, Some(Ok(_)))
    }

    /// Records the facts of a frame.
    fn note(&mut self, frame: &Option<Result<Frame<Bytes>, AnswerError>>) {
        match frame {
            Some(Ok(frame)) => {
                let Some(chunk) = frame.data_ref() else { return };
                if !self.has_left {
                    self.record.bytes_out += chunk.len() as u64;
                    if let Some(keeping) = &mut self.keeping {
                        keeping.feed(chunk);
                    }
                }
                if let Some(meter) = &mut self.meter {
                    meter.feed(chunk);
                }
            }
            None => self.record.ended(self.has_left),
            _ if self.has_left => {}
            Some(Err(AnswerError::Cut { .. } | AnswerError::Encoding)) => {
                self.record.outcome = Outcome::UpstreamCut
            }
            Some(Err(AnswerError::Idle { .. })) => self.record.outcome = Outcome::IdleTimeout,
        }
    }

    /// Whether `frame` is the last that matters: a caller that has it may consider the answer
    /// complete.
    fn is_last(&self, frame: &Option<Result<Frame<Bytes>, AnswerError>>) -> bool {
        !matches!(frame, Some(Ok(_)))
            || self.upstream.is_end_stream()
            || self.meter.as_ref().is_some_and(|meter| meter.so_far().done)
    }

    /// Ends the metering, and determines the outcome.
    fn conclude(&mut self) {
        if let Some(meter) = self.meter.take() {
            self.record.metered = meter.finish();
        }
        // A listener that knows the length stops at the last byte, and a caller that has read
        // `[DONE]` may disconnect: both have received everything.
        let has_all = self.upstream.is_end_stream() || self.record.metered.done;
        if self.record.outcome == Outcome::CallerLeft && has_all && !self.has_left {
            self.record.outcome = Outcome::Complete;
        }
        // A caller may leave once it has read that.
        if self.record.metered.failed
            && self.record.is_success()
            && matches!(self.record.outcome, Outcome::Complete | Outcome::CallerLeft)
        {
            self.record.outcome = Outcome::UpstreamFailed;
        }
    }

    /// Returns the work at the end of the answer, if there is any: its account is settled, and its
    /// exchange kept. Returns the cost.
    fn written(&mut self) -> Option<Written> {
        let is_complete = self.record.outcome == Outcome::Complete;
        let id = self.record.id();
        let keep = self.keeping.take().map(|keeping| keeping.end(is_complete, id));
        let settle = self.record.end().map(|(account, ended)| -> Written {
            // Large, and moved as a pointer.
            Box::pin(account.settle(ended))
        });
        let Some(keep) = keep else { return settle };
        Some(Box::pin(async move {
            let settled = async {
                match settle {
                    Some(settle) => settle.await,
                    None => Cost::default(),
                }
            };
            tokio::join!(settled, keep).0
        }))
    }
}

impl HttpBody for Relay {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            if let Some(settling) = &mut this.settling {
                let cost = ready!(settling.written.as_mut().poll(cx));
                this.record.settled(cost);
                return Poll::Ready(this.settling.take().and_then(|settling| settling.last));
            }
            let frame = ready!(Pin::new(&mut this.upstream).poll_frame(cx));
            // Trailers could pass for headers of weir.
            if matches!(&frame, Some(Ok(frame)) if frame.is_trailers()) {
                continue;
            }
            this.note(&frame);
            let is_last = this.is_last(&frame);
            let last = frame.map(|frame| frame.map_err(BoxError::from));
            if !is_last {
                return Poll::Ready(last);
            }
            this.conclude();
            let Some(written) = this.written() else { return Poll::Ready(last) };
            this.settling = Some(Settling { written, last });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.settling.is_none() && self.upstream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.upstream.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.conclude();
    }
}
