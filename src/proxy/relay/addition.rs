//! Answer body with an addition of weir's: a compaction item in front of those of Responses, a report on
//! cleared content in Messages, or the model's name as the caller knows it.

use std::borrow::Cow;

use http::Response;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};

use super::filtered::{Filtered, Passage};
use crate::proxy::compaction::{answer, edits};
use crate::proxy::send::attempt::Attempt;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::headers::is_event_stream;
use crate::upstream::Body;
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
            Body::new(Filtered::events(body, AddItem::new(item), output_item::MAX_EVENT_BYTES))
        }
        (true, Addition::Report(report)) => Body::new(Filtered::events(
            body,
            AddReport::new(report),
            applied_edits::MAX_EVENT_BYTES,
        )),
        (true, Addition::Model(named)) => {
            Body::new(Filtered::events(body, named, output_item::MAX_EVENT_BYTES))
        }
        (false, addition) => {
            Body::new(Filtered::new(body, HeldAnswer { addition, held: Vec::new(), passes: false }))
        }
    };
    Response::from_parts(parts, body)
}

/// Answer that is held until it is complete, since only then its members are certain.
struct HeldAnswer {
    addition: Addition,
    held: Vec<u8>,
    /// Whether it is too large, and passes as it is.
    passes: bool,
}

impl Passage for HeldAnswer {
    fn feed<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        if self.passes {
            return bytes.into();
        }
        self.held.extend_from_slice(bytes);
        self.passes = self.held.len() > MAX_ANSWER_BYTES;
        if self.passes { std::mem::take(&mut self.held).into() } else { Cow::Borrowed(&[]) }
    }

    fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the answer with the addition, or as it is if it has no place for that.
    fn finish(self) -> Vec<u8> {
        let text = std::str::from_utf8(&self.held).ok();
        let added = text.and_then(|text| self.addition.added(text));
        added.map_or(self.held, String::into_bytes)
    }
}
