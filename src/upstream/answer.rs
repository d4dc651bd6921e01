//! Body of an answer: chunks as they arrive, the end, or an error that says how it broke off.

use std::future::{Future, poll_fn};
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes decoded per step; gzip makes at most a thousand times as many of them.
const STEP_BYTES: usize = 4 << 10;
/// Maximum size of one decoded chunk.
const MAX_DECODED_BYTES: usize = 16 << 20;

/// Body of an answer. Dropping it cancels the request.
pub struct AnswerBody {
    /// `None` once the answer has broken off; its connection is closed at once.
    inner: Option<reqwest::Body>,
    /// How the answer was cut; reported one poll after its last chunk.
    cut: Option<AnswerError>,
    idle: Duration,
    /// Runs only while a chunk is awaited, so a slow caller does not count as upstream silence.
    silence: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// Bytes that were peeked before the body was read.
    early: Vec<u8>,
    /// Whether the peeked bytes are the complete body.
    ended: bool,
    /// Whether the peeked bytes were just returned and must be written before a cut is reported.
    is_given: bool,
    /// Decoder of a body that is compressed although that was not allowed.
    decoder: Option<Box<MultiGzDecoder<Vec<u8>>>>,
}

/// How an answer broke off.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The upstream's connection ended or failed before the answer did.
    #[error("the upstream's answer was cut: {}", super::client::root_cause(source))]
    Cut { source: reqwest::Error },
    /// The bytes do not match the encoding that the answer declares, or become too many.
    #[error("the upstream's answer is not valid gzip")]
    Encoding,
    /// The upstream was silent for longer than allowed.
    #[error("the upstream sent nothing for {timeout_ms} ms (upstream.timeouts_ms.idle)")]
    Idle { timeout_ms: u64 },
}

impl AnswerBody {
    pub(super) fn new(inner: reqwest::Body, idle: Duration) -> Self {
        Self {
            inner: Some(inner),
            cut: None,
            idle,
            silence: None,
            waiting: false,
            early: Vec::new(),
            ended: false,
            is_given: false,
            decoder: None,
        }
    }

    /// Creates a body from complete bytes.
    pub fn whole(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            inner: None,
            cut: None,
            idle: Duration::ZERO,
            silence: None,
            waiting: false,
            early: bytes.into(),
            ended: true,
            is_given: false,
            decoder: None,
        }
    }

    /// Decodes the body, which is gzip and was not read so far.
    pub(super) fn unzip(&mut self) {
        self.decoder = Some(Box::new(MultiGzDecoder::new(Vec::new())));
    }

    /// Peeks at the body before it is read: at all of it, or at its first `max_bytes`. Peeked bytes
    /// are still returned by a later read, so this future may be dropped at any time.
    pub async fn peek(&mut self, max_bytes: usize) -> &[u8] {
        self.peek_until(max_bytes, |_| false).await
    }

    /// Peeks until the bytes seen satisfy `is_enough`, or as far as `peek`.
    pub async fn peek_until(
        &mut self,
        max_bytes: usize,
        mut is_enough: impl FnMut(&[u8]) -> bool,
    ) -> &[u8] {
        while !self.ended && self.early.len() <= max_bytes && !is_enough(&self.early) {
            match poll_fn(|cx| self.poll_more(cx)).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.early.extend_from_slice(&data),
                    // Trailers end the part that can be peeked.
                    Err(_) => break,
                },
                Some(Err(error)) => {
                    self.inner = None;
                    self.cut = Some(error);
                    break;
                }
                None => self.ended = true,
            }
        }
        &self.early
    }

    /// Returns the bytes that were peeked.
    pub(super) fn seen(&self) -> &[u8] {
        &self.early
    }

    /// Returns how the answer broke off behind the peeked bytes, if it did.
    pub(super) fn cut(&self) -> Option<&AnswerError> {
        self.cut.as_ref()
    }

    /// Whether the complete body was peeked.
    pub fn is_seen_whole(&self) -> bool {
        self.ended
    }

    /// Whether the upstream has been silent for too long; called while no chunk is available.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.idle;
        let silence =
            self.silence.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + idle)));
        if !self.waiting {
            silence.as_mut().reset(Instant::now() + idle);
            self.waiting = true;
        }
        silence.as_mut().poll(cx)
    }
}

/// Decodes the next bytes of a body.
fn decode(decoder: &mut MultiGzDecoder<Vec<u8>>, data: &[u8]) -> Result<Vec<u8>, AnswerError> {
    for step in data.chunks(STEP_BYTES) {
        decoder.write_all(step).map_err(|_| AnswerError::Encoding)?;
        if decoder.get_ref().len() > MAX_DECODED_BYTES {
            return Err(AnswerError::Encoding);
        }
    }
    decoder.flush().map_err(|_| AnswerError::Encoding)?;
    Ok(std::mem::take(decoder.get_mut()))
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.is_given = self.cut.is_some();
            return Poll::Ready(Some(Ok(Frame::data(early.into()))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.is_given) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.poll_more(cx)
    }

    fn is_end_stream(&self) -> bool {
        let is_end = self.inner.as_ref().is_some_and(Body::is_end_stream);
        self.early.is_empty() && (self.ended || is_end)
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.as_ref().filter(|_| self.decoder.is_none());
        let rest = inner.map_or_else(SizeHint::new, Body::size_hint);
        if self.early.is_empty() {
            return rest;
        }
        let early_bytes = self.early.len() as u64;
        let mut whole = SizeHint::new();
        whole.set_lower(rest.lower() + early_bytes);
        if let Some(upper) = rest.upper() {
            whole.set_upper(upper + early_bytes);
        }
        whole
    }
}

impl AnswerBody {
    /// Polls the next bytes that were not peeked.
    fn poll_more(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let Some(inner) = self.inner.as_mut() else {
            return Poll::Ready(self.cut.take().map(Err));
        };
        match Pin::new(inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.waiting = false;
                let Some(decoder) = self.decoder.as_mut() else {
                    return Poll::Ready(Some(Ok(frame)));
                };
                let decoded = frame.into_data().ok().map(|data| decode(decoder, &data));
                if let Some(Err(_)) = decoded {
                    self.inner = None;
                }
                let decoded = decoded.unwrap_or(Ok(Vec::new()));
                Poll::Ready(Some(decoded.map(|decoded| Frame::data(decoded.into()))))
            }
            Poll::Ready(Some(Err(source))) => {
                self.inner = None;
                // On an error, the listener drops data that it has not written yet. After `Pending`
                // it writes first.
                self.cut = Some(AnswerError::Cut { source });
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.poll_silence(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    self.inner = None;
                    let timeout_ms = self.idle.as_millis() as u64;
                    Poll::Ready(Some(Err(AnswerError::Idle { timeout_ms })))
                }
            },
        }
    }
}
