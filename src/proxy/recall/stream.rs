//! Answers in events: what the model says is passed on as it comes, its calls of the recall tool are held
//! back, and the events of the next round continue those of the one before. The end waits for the
//! settlement, as that of any answer does.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{RecallExchange, is_readable, not_continued};
use crate::proxy::conversations::Keeping;
use crate::proxy::error::{Proxied, ProxyError};
use crate::proxy::record::{Outcome, Presence, Record};
use crate::proxy::relay::drain::Drains;
use crate::proxy::relay::meter;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::headers::is_event_stream;
use crate::upstream::{AnswerBody, AnswerError, Body, BoxError, Inbound};
use weir_engine::wire::Protocol;
use weir_engine::wire::recall_tool::{Next, RecallStream, Round};
use weir_engine::wire::usage::Meter;

/// Time in which the connection of a round that has ended may be read to its end, to be used again.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the upstream's stream for the caller, continued by a round for each recall. `record` is written
/// at its end. If the caller leaves before, `drains` reads on in the round that has begun.
pub(crate) fn relay(
    inbound: Inbound,
    mut record: Record,
    (recall, settings): (RecallExchange, Arc<Settings>),
    keeping: Option<Keeping>,
    drains: &Drains,
) -> Response<Body> {
    let Inbound { status, mut headers, body, .. } = inbound;
    record.answered(status, true);
    headers.remove(CONTENT_LENGTH);
    let (caller, frames) = mpsc::channel(1);
    let presence = record.presence();
    let exchange = RelayedExchange {
        settings,
        protocol: recall.protocol,
        stream: RecallStream::new(recall.protocol, recall.name),
        recall: Some(recall),
        record,
        meter: meter(&headers),
        upstream: body,
        keeping,
        caller,
    };
    let running: Running = Box::pin(exchange.run());
    let (running, drains) = (Some(running), drains.clone());
    let body = AnswerRounds { running, frames, error: None, presence, drains };
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Body of an answer in several rounds. Reads only as fast as its caller.
struct AnswerRounds {
    /// `None` once all is written.
    running: Option<Running>,
    frames: mpsc::Receiver<Result<Bytes, BoxError>>,
    /// Error that is reported one poll after the last bytes: the listener drops unwritten data when it
    /// sees one.
    error: Option<BoxError>,
    presence: Arc<Presence>,
    drains: Drains,
}

impl HttpBody for AnswerRounds {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(running) = &mut this.running
            && running.as_mut().poll(cx).is_ready()
        {
            this.running = None;
        }
        if let Some(error) = this.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match this.frames.poll_recv(cx) {
            Poll::Ready(Some(Err(error))) => {
                this.error = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => frame.map(|frame| frame.map(|frame| frame.map(Frame::data))),
        }
    }
}

impl Drop for AnswerRounds {
    fn drop(&mut self) {
        self.frames.close();
        if let Some(running) = self.running.take() {
            self.presence.leave();
            self.drains.take_running(running);
        }
    }
}

/// Exchange while its answer is relayed.
struct RelayedExchange {
    settings: Arc<Settings>,
    protocol: Protocol,
    /// `None` once there is no further round.
    recall: Option<RecallExchange>,
    stream: RecallStream,
    record: Record,
    /// Meter of the round that is read.
    meter: Option<Meter>,
    upstream: AnswerBody,
    /// Exchange of a kept conversation, until the answer ends.
    keeping: Option<Keeping>,
    caller: mpsc::Sender<Result<Bytes, BoxError>>,
}

impl RelayedExchange {
    async fn run(mut self) {
        loop {
            let mut last = Vec::new();
            let (round, broken) = self.read(&mut last).await;
            let goes_on = round.next == Next::Recall && !self.caller.is_closed();
            let Some(recall) = self.recall.take_if(|recall| goes_on && recall.may_go_on()) else {
                self.stream.finish(&mut last);
                return self.end(last, &round, broken).await;
            };
            self.say(last).await;
            self.close_round().await;
            match self.go_on(recall, round).await {
                Ok(true) => {}
                Ok(false) => return self.leave().await,
                Err(error) => return self.fail(&error).await,
            }
        }
    }

    /// Reads a round to its end, and passes on what the caller gets of it. What is left for the caller at
    /// the end is added to `last`.
    async fn read(&mut self, last: &mut Vec<u8>) -> (Round, Option<AnswerError>) {
        let mut broken = None;
        while !self.stream.is_round_over() {
            let frame = poll_fn(|cx| Pin::new(&mut self.upstream).poll_frame(cx)).await;
            let chunk = match frame {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    broken = Some(error);
                    break;
                }
                None => {
                    self.upstream = AnswerBody::whole(Vec::new());
                    break;
                }
            };
            if let Some(meter) = &mut self.meter {
                meter.feed(&chunk);
            }
            let mut out = Vec::new();
            self.stream.feed(&chunk, &mut out);
            match self.stream.is_round_over() {
                true => last.extend_from_slice(&out),
                false => self.say(out).await,
            }
        }
        (self.stream.end_round(last), broken)
    }

    /// Passes bytes on to the caller, unless it has left.
    async fn say(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() || self.caller.is_closed() {
            return;
        }
        self.record.bytes_out += bytes.len() as u64;
        if let Some(keeping) = &mut self.keeping {
            keeping.feed(&bytes);
        }
        // If the caller leaves meanwhile, that is seen at the next bytes.
        let _ = self.caller.send(Ok(bytes.into())).await;
    }

    /// Settles a round whose calls are answered next.
    async fn close_round(&mut self) {
        let metered = self.meter.take().map(Meter::finish).unwrap_or_default();
        self.record.round(StatusCode::OK, metered).await;
        let mut upstream = std::mem::replace(&mut self.upstream, AnswerBody::whole(Vec::new()));
        // Its connection can be used again once it is read to its end.
        tokio::spawn(async move {
            let rest = async {
                while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut upstream).poll_frame(cx)).await {
                }
            };
            let _ = timeout(CLOSING_TIMEOUT, rest).await;
        });
    }

    /// Sends the conversation on with the answers to the calls of a round; returns whether the caller was
    /// still there to get more.
    async fn go_on(&mut self, recall: RecallExchange, round: Round) -> Proxied<bool> {
        let settings = Arc::clone(&self.settings);
        let has_left = || self.caller.is_closed();
        let sent = recall.go_on(&settings, round, &mut self.record, has_left).await;
        let (recall, inbound) = match sent {
            Ok(Some(sent)) => sent,
            Ok(None) => return Ok(false),
            Err(error) => {
                self.record.round_failed(Err(error.kind)).await;
                return Err(error);
            }
        };
        if !is_readable(&inbound) || !is_event_stream(&inbound.headers) {
            self.record.round_failed(Ok(inbound.status)).await;
            return Err(not_continued(inbound.status));
        }
        self.meter = meter(&inbound.headers);
        self.upstream = inbound.body;
        self.stream.next_round();
        self.recall = Some(recall);
        Ok(true)
    }

    /// Ends an answer whose caller left before its next round was sent.
    async fn leave(mut self) {
        self.keep_nothing().await;
    }

    /// Ends an answer whose next round could not be had.
    async fn fail(mut self, error: &ProxyError) {
        self.record.outcome = Outcome::UpstreamFailed;
        self.keep_nothing().await;
        let (kind, message) = match self.protocol {
            Protocol::Messages => (error.kind.anthropic_type(), error.anthropic_message()),
            Protocol::Chat | Protocol::Responses => {
                (error.kind.openai_type(), error.message.as_str().into())
            }
        };
        let mut out = Vec::new();
        self.stream.fail(kind, error.kind.word(), &message, &mut out);
        self.say(out).await;
    }

    /// Logs that the exchange of a kept conversation is not added to it.
    async fn keep_nothing(&mut self) {
        if let Some(keeping) = self.keeping.take() {
            keeping.end(false, self.record.id()).await;
        }
    }

    /// Ends the answer, once its last round is settled.
    async fn end(mut self, last: Vec<u8>, round: &Round, broken: Option<AnswerError>) {
        let has_left = self.caller.is_closed();
        self.record.metered = self.meter.take().map(Meter::finish).unwrap_or_default();
        match &broken {
            None => self.record.ended(has_left),
            _ if has_left => {}
            Some(AnswerError::Cut { .. } | AnswerError::Encoding) => {
                self.record.outcome = Outcome::UpstreamCut
            }
            Some(AnswerError::Idle { .. }) => self.record.outcome = Outcome::IdleTimeout,
        }
        if self.record.metered.failed
            && matches!(self.record.outcome, Outcome::Complete | Outcome::CallerLeft)
        {
            self.record.outcome = Outcome::UpstreamFailed;
        }
        self.record.bytes_out += if has_left { 0 } else { last.len() as u64 };
        if let Some(keeping) = &mut self.keeping {
            keeping.feed(&last);
        }
        let (is_complete, id) = (self.record.outcome == Outcome::Complete, self.record.id());
        if let Some((account, ended)) = self.record.end() {
            let cost = account.settle(ended).await;
            self.record.settled(cost);
        }
        if let Some(keeping) = self.keeping.take() {
            keeping.end(is_complete, id).await;
        }
        if let Some(recall) = self.recall.take().filter(|_| is_complete) {
            recall.keep(round).await;
        }
        if !last.is_empty() {
            let _ = self.caller.send(Ok(last.into())).await;
        }
        match broken {
            Some(error) => {
                let _ = self.caller.send(Err(error.into())).await;
            }
            None => self.read_on().await,
        }
    }

    /// Passes on what follows the last event, to the end of the upstream's answer. Its connection can be
    /// used again then.
    async fn read_on(&mut self) {
        loop {
            let frame = tokio::select! {
                biased;
                () = self.caller.closed() => return,
                frame = poll_fn(|cx| Pin::new(&mut self.upstream).poll_frame(cx)) => frame,
            };
            match frame {
                Some(Ok(frame)) => self.say(frame.into_data().unwrap_or_default().into()).await,
                Some(Err(error)) => {
                    let _ = self.caller.send(Err(error.into())).await;
                    return;
                }
                None => return,
            }
        }
    }
}

impl Drop for RelayedExchange {
    /// Keeps what was metered of an answer that is cancelled, for its settlement by rule.
    fn drop(&mut self) {
        if let Some(meter) = self.meter.take() {
            self.record.metered = meter.finish();
        }
    }
}
