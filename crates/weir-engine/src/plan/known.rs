//! Inputs of a plan from outside the request: summaries, which are part of the result, and work that
//! an earlier plan has done, which is not.

use std::rc::Rc;
use std::sync::Arc;

use crate::compact::reading::Reading;
use crate::compact::source::{ReadOne, Readings};
use crate::compact::summary::Space;
use crate::compact::{Compactor, Fact, Measure, Summary};
use crate::tokens::tools;
use crate::wire::{Extra, ExtraKind, Request};

/// Source of the summaries that a model wrote of removed messages.
pub trait SummarySource {
    /// Returns the summary of the messages `gone` (indexes in order); `None` if there is none, so
    /// that a note of excerpts stands alone. Must always be the same for the same messages. Called
    /// at most once for each compaction.
    fn summary(&self, gone: &[usize], space: Space) -> Option<Summary>;
}

impl<F: Fn(&[usize], Space) -> Option<Summary>> SummarySource for F {
    fn summary(&self, gone: &[usize], space: Space) -> Option<Summary> {
        self(gone, space)
    }
}

/// Source without summaries.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSummaries;

impl SummarySource for NoSummaries {
    fn summary(&self, _gone: &[usize], _space: Space) -> Option<Summary> {
        None
    }
}

/// Work at hand from earlier requests. It saves time and never changes a plan.
pub trait Known {
    /// Returns the tokens of `request.extras[extra]`, if they are counted.
    fn extra_tokens(&self, _extra: usize) -> Option<u64> {
        None
    }

    /// Returns the facts of a message, if it is counted.
    fn fact(&self, _message: usize) -> Option<Fact> {
        None
    }

    /// Returns the state after some first messages of this conversation, under the same
    /// [decisions](super::Decisions).
    fn state(&self) -> Option<Arc<Compactor>> {
        None
    }

    /// Takes note of the state after all messages, for the conversation's next request.
    fn keep_state(&self, _state: &Arc<Compactor>) {}

    /// Whether the work is to end: nobody waits for it any more, or it takes too long.
    fn is_over(&self) -> bool {
        false
    }

    /// Returns the messages whose contents are parsed already.
    fn readings(&self) -> Rc<Readings> {
        Rc::default()
    }

    /// Returns the contents of messages of `request` in order, as `read` parses them, or as it did for an
    /// earlier request. May share the work among threads, which may go on with those of `later`: these follow,
    /// and are perhaps wanted later.
    fn read_many(
        &self,
        request: &Request<'_>,
        messages: &[usize],
        _later: &[usize],
        read: ReadOne,
    ) -> Vec<Arc<Reading>> {
        let read = |message: &usize| read(request.protocol, request.messages[*message]);
        messages.iter().map(|message| Arc::new(read(message))).collect()
    }
}

/// Nothing at hand.
#[derive(Debug, Clone, Copy, Default)]
pub struct NothingKnown;

impl Known for NothingKnown {}

/// Counts the tokens of one item outside the messages.
pub fn extra_tokens(measure: Measure, extra: &Extra<'_>) -> u64 {
    match extra.kind {
        ExtraKind::Tools | ExtraKind::Functions => tools::count_list(measure.encoding, extra.raw),
        ExtraKind::ResponseFormat => tools::count_response_format(measure.encoding, extra.raw),
        ExtraKind::Content => measure.encoding.count(extra.raw),
    }
}

/// Counts the tokens of all items outside the messages that are not counted yet.
pub(super) fn extras_tokens(request: &Request<'_>, measure: Measure, known: &dyn Known) -> u64 {
    let extras = request.extras.iter().enumerate();
    let tokens = extras.map(|(index, extra)| {
        known.extra_tokens(index).unwrap_or_else(|| extra_tokens(measure, extra))
    });
    tokens.sum()
}
