//! Answer body with an addition of weir's: a compaction item in front of those of Responses, a report on
//! cleared content in Messages, or the model's name as the caller knows it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::Response;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body::{Body as HttpBody, Frame};

use super::filtered::Filtered;
use crate::proxy::compaction::{answer, edits};
use crate::proxy::send::attempt::Attempt;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::headers::is_event_stream;
use crate::upstream::{Body, BoxError};
use weir_engine::wire::applied_edits::{self, AddReport};
use weir_engine::wire::model::AnsweredAs;
use weir_engine::wire::output_item::{self, AddItem};
use weir_store::Tenant;

/// Larger answers pass without it.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Addition to an answer, as JSON text.
pub enum Addition {
    /// Item in front of the others.
    Item(String),
    /// Report on cleared content.
    Report(String),
    /// Name of the model that the caller asked for.
    Model(AnsweredAs),
}

impl Addition {
    /// Returns the additions to the answer of an attempt that was accepted. An item that cannot be sealed
    /// is left out: the answer matters more.
    pub fn of(settings: &Settings, tenant: Tenant, current: &mut Attempt) -> Vec<Self> {
        let alias = current.job.alias_of.as_deref().filter(|_| current.job.is_renamed);
        let alias = alias.map(|alias| Self::Model(AnsweredAs::new(alias)));
        Self::asked(settings, tenant, current).into_iter().chain(alias).collect()
    }

    /// Returns the addition that the caller asks for.
    fn asked(settings: &Settings, tenant: Tenant, current: &mut Attempt) -> Option<Self> {
        if let Some(shortened) = current.planned.shortened.take() {
            let item = answer::item(settings, tenant, true, &shortened.rest);
            let item = item.inspect_err(|error| {
                tracing::warn!(target: "weir::fault", %error, "an answer has no compaction item");
            });
            return item.ok().map(Self::Item);
        }
        let clearing = current.job.asked.clearing.as_deref()?;
        Some(Self::Report(edits::report(clearing, current.planned.cleared)))
    }

    /// Returns a complete answer with it; `None` if it has no place for it.
    fn added(&self, text: &str) -> Option<String> {
        match self {
            Self::Item(item) => output_item::added(text, item),
            Self::Report(report) => applied_edits::in_message(text, report),
            Self::Model(named) => named.named(text),
        }
    }
}

/// Makes an addition to an answer or to its events. An encoded answer stays as it is.
pub fn with(response: Response<Body>, addition: Addition) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if parts.headers.contains_key(CONTENT_ENCODING) {
        return Response::from_parts(parts, body);
    }
    parts.headers.remove(CONTENT_LENGTH);
    let body = match (is_event_stream(&parts.headers), addition) {
        (true, Addition::Item(item)) => {
            Body::new(Filtered::new(body, AddItem::new(item), output_item::MAX_EVENT_BYTES))
        }
        (true, Addition::Report(report)) => {
            Body::new(Filtered::new(body, AddReport::new(report), applied_edits::MAX_EVENT_BYTES))
        }
        (true, Addition::Model(named)) => {
            Body::new(Filtered::new(body, named, output_item::MAX_EVENT_BYTES))
        }
        (false, addition) => {
            Body::new(Whole { upstream: body, addition, held: BytesMut::new(), state: State::Held })
        }
    };
    Response::from_parts(parts, body)
}

/// Answer that is held until it is complete, since only then its members are certain.
struct Whole {
    upstream: Body,
    addition: Addition,
    held: BytesMut,
    state: State,
}

enum State {
    /// Bytes are held.
    Held,
    /// What was held has been passed on; the rest follows as it comes.
    Passed,
    /// The upstream's body ended with an error, which follows the bytes before it.
    Failed(BoxError),
    Ended,
}

impl Whole {
    /// Returns the answer with the addition, or as it is if it has no place for that.
    fn complete(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held).freeze();
        let text = std::str::from_utf8(&held).ok();
        let added = text.and_then(|text| self.addition.added(text));
        added.map_or(held, Bytes::from)
    }
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            match std::mem::replace(&mut this.state, State::Held) {
                State::Held => {}
                State::Passed => {
                    this.state = State::Passed;
                    return Pin::new(&mut this.upstream).poll_frame(cx);
                }
                State::Failed(error) => {
                    this.state = State::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
                State::Ended => {
                    this.state = State::Ended;
                    return Poll::Ready(None);
                }
            }
            let bytes = match ready!(Pin::new(&mut this.upstream).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // An answer has no trailers that anybody reads.
                    if let Ok(data) = frame.into_data() {
                        this.held.extend_from_slice(&data);
                    }
                    if this.held.len() <= MAX_ANSWER_BYTES {
                        continue;
                    }
                    this.state = State::Passed;
                    std::mem::take(&mut this.held).freeze()
                }
                Some(Err(error)) => {
                    this.state = State::Failed(error);
                    std::mem::take(&mut this.held).freeze()
                }
                None => {
                    this.state = State::Ended;
                    this.complete()
                }
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }
}
