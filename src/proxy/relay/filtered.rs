//! Answer body whose events are changed in passing. Knows nothing of events but the position of their
//! filter.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};

use crate::upstream::{Body, BoxError};
use weir_engine::wire::event_filter::{Filter, Judge};

/// Body whose events pass a filter.
pub(super) struct Filtered<J> {
    upstream: Body,
    /// `None` once the events have ended.
    filter: Option<Filter<J>>,
    /// Frame after the last event.
    ending: Option<LastFrame>,
}

enum LastFrame {
    End,
    Trailers(Frame<Bytes>),
    /// The error is reported one poll after the last bytes: the listener drops unwritten data when
    /// it sees one.
    Error {
        error: BoxError,
        is_next: bool,
    },
}

impl<J: Judge> Filtered<J> {
    /// Creates a body of the events of `upstream` as `judge` changes them.
    pub(super) fn new(upstream: Body, judge: J, max_event_bytes: usize) -> Self {
        let filter = Some(Filter::with(judge, max_event_bytes));
        Self { upstream, filter, ending: None }
    }

    /// Takes the upstream's last frame, and returns the bytes held back until then, if any.
    fn end(&mut self, ending: LastFrame) -> Bytes {
        self.ending = Some(ending);
        self.filter.take().map(Filter::finish).unwrap_or_default().into()
    }
}

impl<J: Judge + Unpin> HttpBody for Filtered<J> {
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
                Some(LastFrame::Trailers(frame)) => return Poll::Ready(Some(Ok(frame))),
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
            let Some(filter) = this.filter.as_mut() else { return Poll::Ready(frame) };
            let bytes = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => match filter.feed(&bytes) {
                    Cow::Borrowed(part) => bytes.slice_ref(part),
                    Cow::Owned(made) => made.into(),
                },
                Some(Ok(Err(trailers))) => this.end(LastFrame::Trailers(trailers)),
                Some(Err(error)) => {
                    let is_next = !filter.is_holding();
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
        let is_holding = self.filter.as_ref().is_some_and(Filter::is_holding);
        self.ending.is_none() && !is_holding && self.upstream.is_end_stream()
    }
}
