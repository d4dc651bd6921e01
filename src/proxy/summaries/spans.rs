//! Records for one request's compactions: looked up by the engine while it compacts, taken from
//! earlier settlements, and settled if there are none.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::SummaryLookup;
use super::flights::Part;
use super::keys::Key;
use super::records::{Ready, Status};
use crate::config::SummaryMode;
use crate::config::words::worded;
use weir_engine::compact::summary::{Space, Summary};
use weir_engine::compact::{Compactor, Fate, Prefetch};
use weir_engine::tokens::Encoding;
use weir_engine::wire::{Protocol, Role};
use weir_store::Tenant;

/// Wait mode of a request if a record is not settled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// Nothing: it is not sent.
    LookOnly,
    /// Settle it with a ready summary, if any.
    Settle,
    /// Find the last compaction first and wait for its summary; settle all when planned again.
    Wait,
}

worded! {
    /// Source of the record for a request's last compaction, as reported in `x-weir-summary`.
    SummaryOutcome {
        /// Summary settled by an earlier request.
        Kept = "kept",
        /// Summary that was ready.
        Ready = "ready",
        /// Extract settled by an earlier request.
        KeptExtract = "kept_extract",
        /// Extract: no summary was ready.
        Late = "late",
        /// Extract: the record could not be read.
        StoreFails = "store_fails",
        /// Extract: there is a summary, but no room for it.
        Unfit = "unfit",
    }
}

/// Span to summarise, with its keys and its position in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefetchSpan {
    pub start: Key,
    pub covered: Key,
    /// Minimum number of messages, from the front, that a usable summary covers.
    pub least_covers: usize,
    /// Maximum size of the summary, as the request's own model counts.
    pub summary_tokens: u64,
    pub encoding: Encoding,
    /// Model of the request.
    pub model: String,
    /// Byte ranges of the messages in the body, in order.
    pub messages: Vec<Range<usize>>,
    /// Whether all of them are sent whole, so that the request as sent contains them.
    pub are_sent: bool,
}

impl PrefetchSpan {
    /// Copies the span's messages from `body`, so that the body need not be kept.
    pub fn of(&self, body: &Bytes) -> Vec<Bytes> {
        self.messages.iter().map(|range| Bytes::copy_from_slice(&body[range.clone()])).collect()
    }

    /// Size of the messages in bytes.
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(Range::len).sum()
    }
}

/// Spans of one request.
pub struct Spans<'a> {
    summaries: &'a SummaryLookup,
    tenant: Tenant,
    protocol: Protocol,
    /// Body that contains the messages.
    body: &'a Bytes,
    messages: &'a [&'a str],
    model: &'a str,
    encoding: Encoding,
    wait_mode: WaitMode,
    wanted: RefCell<Option<PrefetchSpan>>,
    /// Source of each compaction's record, in order.
    looks: RefCell<Vec<SummaryOutcome>>,
    is_unsettled: Cell<bool>,
    /// Whether a compaction was left open, to be settled when the request is planned again.
    is_open: Cell<bool>,
}

impl<'a> Spans<'a> {
    pub fn new(
        summaries: &'a SummaryLookup,
        (tenant, wait_mode): (Tenant, WaitMode),
        (protocol, body): (Protocol, &'a Bytes),
        (messages, model, encoding): (&'a [&'a str], &'a str, Encoding),
    ) -> Self {
        Self {
            summaries,
            tenant,
            protocol,
            body,
            messages,
            model,
            encoding,
            wait_mode,
            wanted: RefCell::default(),
            looks: RefCell::default(),
            is_unsettled: Cell::default(),
            is_open: Cell::default(),
        }
    }

    /// Returns the summary for the messages `gone`; `None` for the extract. Blocks while the store
    /// is read: compactions run off the async threads.
    pub fn status(&self, gone: &[usize], space: Space) -> Option<Summary> {
        // Without a runtime nothing is stored either.
        let runtime = Handle::try_current().ok()?;
        let (look, status) = runtime.block_on(self.look(gone, space));
        self.looks.borrow_mut().push(look);
        match status {
            Status::Extract => None,
            Status::Summary(summary) => Some(summary),
        }
    }

    async fn look(&self, gone: &[usize], space: Space) -> (SummaryOutcome, Status) {
        // Of all compactions, the last is the one waited for.
        self.wanted.borrow_mut().take();
        let records = &self.summaries.state.records;
        let span = self.summaries.keys.span(self.tenant, self.texts(gone));
        match records.status(self.tenant, &span).await {
            Ok(Some(Status::Extract)) => return (SummaryOutcome::KeptExtract, Status::Extract),
            Ok(Some(status)) => return (SummaryOutcome::Kept, status),
            Ok(None) => {}
            Err(_) => {
                self.is_unsettled.set(true);
                return (SummaryOutcome::StoreFails, Status::Extract);
            }
        }
        let Some(settings) = self.summaries.prefetch_settings() else {
            return (SummaryOutcome::Late, Status::Extract);
        };
        let Some(start) = self.start(gone) else { return (SummaryOutcome::Late, Status::Extract) };
        let ready = records.ready(self.tenant, &start, |ready| self.is_of(gone, ready)).await;
        let size = settings.size(space.note_tokens, space.replaced_tokens);
        if let (WaitMode::Wait, None, Some(summary_tokens)) = (self.wait_mode, &ready, size) {
            let least_covers = gone.len();
            let prefetch = Prefetch { span: gone.to_vec(), summary_tokens, least_covers };
            *self.wanted.borrow_mut() = self.want(&prefetch, start);
        }
        let wanted = match ready {
            Some(ready) => Status::Summary(ready.summary),
            None => Status::Extract,
        };
        let stands = match self.wait_mode {
            WaitMode::LookOnly | WaitMode::Wait => {
                self.is_unsettled.set(true);
                self.is_open.set(self.wait_mode == WaitMode::Wait);
                wanted
            }
            WaitMode::Settle => {
                let (status, is_settled) = records.settle(self.tenant, &span, wanted).await;
                self.is_unsettled.set(self.is_unsettled.get() || !is_settled);
                status
            }
        };
        let look = match stands {
            Status::Summary(_) => SummaryOutcome::Ready,
            Status::Extract => SummaryOutcome::Late,
        };
        (look, stands)
    }

    /// Returns the span to summarise for the next compaction, as the plan that ends in the state
    /// `end` asks for it. `None` if its summary is ready, in progress, or has just failed.
    pub fn prefetch(&self, prefetch: &Prefetch, end: &Compactor) -> Option<PrefetchSpan> {
        let is_sent = |message: &usize| end.fates().get(*message) == Some(&Fate::Kept);
        let are_sent = prefetch.span.iter().all(is_sent);
        self.wanted(prefetch).map(|wanted| PrefetchSpan { are_sent, ..wanted })
    }

    fn wanted(&self, prefetch: &Prefetch) -> Option<PrefetchSpan> {
        let gone = &prefetch.span;
        let start = self.start(gone)?;
        let is_own = |part: &Part| self.is_key_of(gone, part.messages, &part.key);
        if self.summaries.state.flights.has(&start, is_own) {
            return None;
        }
        let serves = |ready: &Ready| {
            ready.summary.covers >= prefetch.least_covers && self.is_of(gone, ready)
        };
        match self.summaries.state.records.ready_in_memory(&start, serves) {
            Some(_) => None,
            None => self.want(prefetch, start),
        }
    }

    /// Returns whether the request must be planned again, since nothing was settled on the way, and
    /// the span to wait for before, if any.
    pub fn take_open(&self) -> Option<Option<Box<PrefetchSpan>>> {
        self.is_open.take().then(|| self.wanted.borrow_mut().take().map(Box::new))
    }

    /// Whether a compaction state whose records were looked up at `at` must be computed again, to
    /// renew their lifetime.
    pub fn is_stale(&self, at: Instant) -> bool {
        at.elapsed() >= Duration::from_millis(self.summaries.settings.lifetime_ms / 4)
    }

    /// Whether the plan used records that are not settled.
    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled.get()
    }

    /// Returns the source of the last compaction's record, if there was a compaction; `is_unfit`
    /// means that the note had no room for it. Counts all of them if the request is going to be
    /// sent.
    pub fn outcome(&self, is_unfit: bool) -> Option<SummaryOutcome> {
        let mut looks = self.looks.borrow_mut();
        if let Some(last @ (SummaryOutcome::Kept | SummaryOutcome::Ready)) = looks.last_mut()
            && is_unfit
        {
            *last = SummaryOutcome::Unfit;
        }
        if self.wait_mode != WaitMode::LookOnly {
            looks.iter().for_each(|look| self.summaries.state.counts.looked(*look));
        }
        looks.last().copied()
    }

    fn texts<'g>(&'g self, gone: &'g [usize]) -> impl Iterator<Item = &'a str> + 'g {
        gone.iter().filter_map(|message| self.messages.get(*message).copied())
    }

    fn start(&self, gone: &[usize]) -> Option<Key> {
        let first = *gone.first()?;
        let before = self.messages.get(..=first)?;
        // Without the operator's leading messages: they may contain the time, and no compaction
        // removes them.
        let is_system = |raw: &&&str| {
            self.protocol.read_message(raw).is_ok_and(|message| message.role == Role::System)
        };
        let run = before.iter().take_while(is_system).count();
        Some(self.summaries.keys.start(self.tenant, &before[run..]))
    }

    /// Whether a summary covers the beginning of `gone`.
    fn is_of(&self, gone: &[usize], ready: &Ready) -> bool {
        self.is_key_of(gone, ready.summary.covers, &ready.covered)
    }

    /// Whether `key` is that of the first `messages` of `gone`.
    fn is_key_of(&self, gone: &[usize], messages: usize, key: &Key) -> bool {
        let own = gone.get(..messages).filter(|own| !own.is_empty());
        own.is_some_and(|own| self.summaries.keys.span(self.tenant, self.texts(own)) == *key)
    }

    fn want(&self, prefetch: &Prefetch, start: Key) -> Option<PrefetchSpan> {
        let base = self.body.as_ptr() as usize;
        let ranges = self.texts(&prefetch.span).map(|text| {
            let from = (text.as_ptr() as usize).checked_sub(base)?;
            let until = from + text.len();
            (until <= self.body.len()).then_some(from..until)
        });
        let messages = ranges.collect::<Option<Vec<_>>>()?;
        Some(PrefetchSpan {
            start,
            covered: self.summaries.keys.span(self.tenant, self.texts(&prefetch.span)),
            least_covers: prefetch.least_covers,
            summary_tokens: prefetch.summary_tokens,
            encoding: self.encoding,
            model: self.model.to_owned(),
            messages,
            are_sent: false,
        })
    }
}

/// Whether requests look up records at all.
pub(super) fn are_looked_for(mode: SummaryMode) -> bool {
    !matches!(mode, SummaryMode::Off | SummaryMode::Auto)
}
