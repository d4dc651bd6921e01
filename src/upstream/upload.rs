//! A streamed request body on its way out, and the note of when it last moved.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::{Body, BoxError};

/// When a request last moved.
pub struct Progress(Mutex<Instant>);

impl Progress {
    pub fn begin() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A caller's body, noted as it goes.
pub struct Upload {
    body: Body,
    progress: Arc<Progress>,
}

/// The caller's body ended in an error. Marks the fault as the caller's among all that a failed
/// request may hold.
#[derive(Debug)]
pub struct UploadError(BoxError);

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request's body broke off: {}", self.0)
    }
}

impl std::error::Error for UploadError {}

impl Upload {
    pub fn new(body: Body, progress: Arc<Progress>) -> Self {
        Self { body, progress }
    }

    /// The body's length where it was announced.
    pub fn length_bytes(&self) -> Option<u64> {
        http_body::Body::size_hint(&self.body).exact()
    }

    /// As the client takes it. Trailers are left behind.
    pub fn into_body(self) -> reqwest::Body {
        reqwest::Body::wrap_stream(self.into_data_stream())
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.progress.moved();
        Poll::Ready(frame.map(|frame| frame.map_err(UploadError)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
