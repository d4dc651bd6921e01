//! Streamed request body on its way out: the time of its last progress, and its first bytes, kept
//! for a retry if a pooled connection fails. Never holds more than that.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::{Body, BoxError};

/// Maximum size of a streamed body that is kept for a retry.
const MAX_KEPT_BYTES: usize = 512 * 1024;

/// Body of a caller; one sender at a time reads it.
#[derive(Clone)]
pub(super) struct Upload {
    /// Declared length of the body, if any.
    pub length_bytes: Option<u64>,
    state: Arc<Mutex<State>>,
}

struct State {
    body: Body,
    /// All chunks read so far; `None` once they are too large to keep.
    kept: Option<Vec<Bytes>>,
    kept_bytes: usize,
    last_moved: Instant,
    /// Number of senders so far; only the newest may read.
    senders: u32,
}

impl Upload {
    pub(super) fn new(body: Body) -> Self {
        let length_bytes = body.size_hint().exact();
        let state = State {
            body,
            kept: Some(Vec::new()),
            kept_bytes: 0,
            last_moved: Instant::now(),
            senders: 0,
        };
        Self { length_bytes, state: Arc::new(Mutex::new(state)) }
    }

    /// Time at which the caller last sent something.
    pub(super) fn last_moved(&self) -> Instant {
        self.state().last_moved
    }

    /// Whether a new sender can send the body from its first byte.
    pub(super) fn is_replayable(&self) -> bool {
        self.state().kept.is_some()
    }

    /// Returns the whole body for a new sender; the previous one gets no more of it. Trailers are
    /// dropped.
    pub(super) fn send(&self) -> reqwest::Body {
        let mut state = self.state();
        state.senders += 1;
        let sender = Sender { upload: self.clone(), number: state.senders, sent_chunks: 0 };
        reqwest::Body::wrap_stream(sender.into_data_stream())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock, and a half-read body would itself end in an error.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, chunk: &Bytes) {
        self.kept_bytes += chunk.len();
        if self.kept_bytes > MAX_KEPT_BYTES {
            self.kept = None;
        }
        if let Some(kept) = &mut self.kept {
            kept.push(chunk.clone());
        }
    }
}

/// Error in the caller's body. Marks the fault as the caller's among the causes of a failed
/// request.
#[derive(Debug)]
pub(super) struct UploadError(BoxError);

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request's body broke off: {}", self.0)
    }
}

impl std::error::Error for UploadError {}

struct Sender {
    upload: Upload,
    number: u32,
    sent_chunks: usize,
}

impl http_body::Body for Sender {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let upload = self.upload.clone();
        let mut state = upload.state();
        if state.senders != self.number {
            let error = UploadError("another connection sends it now".into());
            return Poll::Ready(Some(Err(error)));
        }
        let kept = state.kept.as_ref();
        if let Some(chunk) = kept.and_then(|kept| kept.get(self.sent_chunks)).cloned() {
            self.sent_chunks += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        let frame = ready!(Pin::new(&mut state.body).poll_frame(cx));
        state.last_moved = Instant::now();
        if let Some(Ok(frame)) = &frame
            && let Some(chunk) = frame.data_ref()
        {
            state.keep(chunk);
            self.sent_chunks += 1;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(UploadError)))
    }
}
