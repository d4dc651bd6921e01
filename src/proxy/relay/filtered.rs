//! Answer body whose bytes are changed in passing, event by event or as a whole. Knows nothing of either.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};

use crate::upstream::{Body, BoxError};
use weir_engine::wire::event_filter::{Filter, Judge};

/// Change of an answer's bytes on their way.
pub(super) trait Passage {
    /// Takes the next bytes and returns those to forward, borrowed if they are an unchanged part of `bytes`.
    fn feed<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]>;

    /// Whether bytes are held back.
    fn is_holding(&self) -> bool;

    /// Ends the answer and returns the bytes held back.
    fn finish(self) -> Vec<u8>;
}

impl<J: Judge> Passage for Filter<J> {
    fn feed<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        Filter::feed(self, bytes)
    }

    fn is_holding(&self) -> bool {
        Filter::is_holding(self)
    }

    fn finish(self) -> Vec<u8> {
        Filter::finish(self)
    }
}

/// Body whose bytes are changed.
pub(super) struct Filtered<P> {
    upstream: Body,
    /// `None` once the answer has ended.
    passage: Option<P>,
    /// Frame after the last bytes.
    ending: Option<LastFrame>,
}

enum LastFrame {
    End,
    /// The error is reported one poll after the last bytes: the listener drops unwritten data when
    /// it sees one.
    Error {
        error: BoxError,
        is_next: bool,
    },
}

impl<J: Judge> Filtered<Filter<J>> {
    /// Creates a body of the events of `upstream` as `judge` changes them.
    pub(super) fn events(upstream: Body, judge: J, max_event_bytes: usize) -> Self {
        Self::new(upstream, Filter::with(judge, max_event_bytes))
    }
}

impl<P: Passage> Filtered<P> {
    /// Creates a body of the bytes of `upstream` as `passage` changes them.
    pub(super) fn new(upstream: Body, passage: P) -> Self {
        Self { upstream, passage: Some(passage), ending: None }
    }

    /// Takes the upstream's last frame, and returns the bytes held back until then, if any.
    fn end(&mut self, ending: LastFrame) -> Bytes {
        self.ending = Some(ending);
        self.passage.take().map(P::finish).unwrap_or_default().into()
    }
}

impl<P: Passage + Unpin> HttpBody for Filtered<P> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            match this.ending.take() {
                None => {}
                Some(LastFrame::End) => return Poll::Ready(None),
                Some(LastFrame::Error { error, is_next: true }) => {
                    return Poll::Ready(Some(Err(error)));
                }
                Some(LastFrame::Error { error, is_next: false }) => {
                    this.ending = Some(LastFrame::Error { error, is_next: true });
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            let frame = ready!(Pin::new(&mut this.upstream).poll_frame(cx));
            let Some(passage) = this.passage.as_mut() else { return Poll::Ready(frame) };
            let bytes = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => match passage.feed(&bytes) {
                    Cow::Borrowed(part) => bytes.slice_ref(part),
                    Cow::Owned(made) => made.into(),
                },
                // Trailers go to no caller.
                Some(Ok(Err(_))) => continue,
                Some(Err(error)) => {
                    let is_next = !passage.is_holding();
                    this.end(LastFrame::Error { error, is_next })
                }
                None => this.end(LastFrame::End),
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_holding = self.passage.as_ref().is_some_and(P::is_holding);
        self.ending.is_none() && !is_holding && self.upstream.is_end_stream()
    }
}
