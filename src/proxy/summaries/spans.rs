//! What stands in the place of messages that a cut takes, for one request: asked by the engine while
//! it folds, answered from what earlier cuts settled, and settled where none did.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Summaries;
use super::keys::Key;
use super::records::Standing;
use crate::config::SummaryMode;
use crate::context::summary::Summary;
use crate::context::{Fate, Fold, Source};
use crate::proxy::planned::Job;
use crate::store::Tenant;
use crate::wire::{Protocol, Role};

/// What a request may do where nothing is settled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Nothing: it is not sent.
    Looks,
    /// Settle it by what is ready.
    Settles,
    /// Wait for the summary first.
    Waits,
}

/// How the last cut of a request came by what stands there, as `x-weir-summary` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A summary that an earlier request settled.
    Kept,
    /// A summary that was ready.
    Ready,
    /// The extract, which an earlier request settled.
    KeptExtract,
    /// The extract: no summary was ready.
    Late,
    /// The extract: what is settled could not be read.
    StoreFails,
    /// The extract: there is a summary, and no room for it.
    Unfit,
}

impl Look {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Ready => "ready",
            Self::KeptExtract => "kept_extract",
            Self::Late => "late",
            Self::StoreFails => "store_fails",
            Self::Unfit => "unfit",
        }
    }
}

/// A span that a summary is wanted of, by what it is found by and where it stands in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub start: Key,
    pub covered: Key,
    /// The model of the request.
    pub model: String,
    /// Each message's bytes in the body that it was read from, in order.
    pub messages: Vec<Range<usize>>,
    /// Whether all of them are sent whole, so that the request as sent tells them.
    pub are_sent: bool,
}

impl Wanted {
    /// Copies of the span's messages in `body`, which is not kept for them.
    pub fn of(&self, body: &Bytes) -> Vec<Bytes> {
        self.messages.iter().map(|range| Bytes::copy_from_slice(&body[range.clone()])).collect()
    }

    /// What the messages take.
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(Range::len).sum()
    }
}

/// One request's spans.
pub struct Spans<'a> {
    summaries: &'a Arc<Summaries>,
    tenant: Tenant,
    protocol: Protocol,
    /// The body that the messages are parts of.
    body: &'a Bytes,
    messages: &'a [&'a str],
    model: &'a str,
    patience: Patience,
    wanted: RefCell<Option<Wanted>>,
    /// How each cut came by what stands there, in order.
    looks: RefCell<Vec<Look>>,
    is_unsettled: Cell<bool>,
}

impl<'a> Spans<'a> {
    pub fn new(
        summaries: &'a Arc<Summaries>,
        job: &'a Job,
        (messages, model): (&'a [&'a str], &'a str),
    ) -> Self {
        let Job { tenant, protocol, patience, ref body, .. } = *job;
        Self {
            summaries,
            tenant,
            protocol,
            body,
            messages,
            model,
            patience,
            wanted: RefCell::default(),
            looks: RefCell::default(),
            is_unsettled: Cell::default(),
        }
    }

    /// What stands in the place of the messages `gone`; `None` for the extract. Blocks while the
    /// store is read: cuts are made off the async threads.
    pub fn standing(&self, gone: &[usize]) -> Option<Summary> {
        // Where no runtime is, nothing is kept either.
        let runtime = Handle::try_current().ok()?;
        let (look, standing) = runtime.block_on(self.look(gone));
        self.looks.borrow_mut().push(look);
        match standing {
            Standing::Extract => None,
            Standing::Summary(summary) => Some(summary),
        }
    }

    async fn look(&self, gone: &[usize]) -> (Look, Standing) {
        let records = &self.summaries.records;
        let span = self.summaries.keys.span(self.tenant, self.texts(gone));
        match records.standing(self.tenant, &span).await {
            Ok(Some(Standing::Extract)) => return (Look::KeptExtract, Standing::Extract),
            Ok(Some(standing)) => return (Look::Kept, standing),
            Ok(None) => {}
            Err(_) => {
                self.is_unsettled.set(true);
                return (Look::StoreFails, Standing::Extract);
            }
        }
        let is_written = self.summaries.settings.are_written();
        if !is_written {
            return (Look::Late, Standing::Extract);
        }
        let Some(start) = self.start(gone) else { return (Look::Late, Standing::Extract) };
        let ready = records.ready(self.tenant, &start).await;
        let ready = ready.filter(|ready| self.is_of(gone, ready.summary.covers, &ready.covered));
        if ready.is_none() && self.patience == Patience::Waits && self.wanted.borrow().is_none() {
            *self.wanted.borrow_mut() = self.want(gone, start);
        }
        let wanted = match &ready {
            Some(ready) => Standing::Summary(ready.summary.clone()),
            None => Standing::Extract,
        };
        let stands = match self.patience {
            // Whatever comes behind a span that is waited for is planned again.
            Patience::Waits if self.wanted.borrow().is_some() => wanted,
            Patience::Looks => {
                self.is_unsettled.set(true);
                wanted
            }
            Patience::Waits | Patience::Settles => {
                let (standing, is_settled) = records.settle(self.tenant, &span, wanted).await;
                self.is_unsettled.set(self.is_unsettled.get() || !is_settled);
                standing
            }
        };
        let look = match stands {
            Standing::Summary(_) => Look::Ready,
            Standing::Extract => Look::Late,
        };
        (look, stands)
    }

    /// What is to be summed up for the cut that the state `end` will need next; `None` where that is
    /// far off, or its summary is ready, on its way, or has failed just now.
    pub fn ahead(&self, end: &Fold, source: &dyn Source) -> Option<Wanted> {
        let announce_permille = self.summaries.announce_permille()?;
        if self.patience == Patience::Looks {
            return None;
        }
        let gone = end.span_ahead(announce_permille, source)?;
        let are_sent = gone.iter().all(|message| end.fates().get(*message) == Some(&Fate::Kept));
        self.wanted(&gone).map(|wanted| Wanted { are_sent, ..wanted })
    }

    fn wanted(&self, gone: &[usize]) -> Option<Wanted> {
        let start = self.start(gone)?;
        if self.summaries.flights.has(&start) {
            return None;
        }
        // One that speaks of the greater part will do. Whether it is of these very messages shows at
        // the cut; to look here, with each request, would cost more than a summary that is missing.
        if let Some(ready) = self.summaries.records.ready_in_memory(&start) {
            let covers = ready.summary.covers.min(gone.len());
            let bytes = |gone: &[usize]| self.texts(gone).map(str::len).sum::<usize>();
            if 2 * bytes(&gone[..covers]) >= bytes(gone) {
                return None;
            }
        }
        self.want(gone, start)
    }

    /// The span that the request has to wait for, if there is one: what was planned without it is
    /// not to be sent.
    pub fn take_wanted(&self) -> Option<Wanted> {
        self.wanted.borrow_mut().take()
    }

    /// Whether a fold whose cuts were looked up at `at` is to be made anew, so that what stands there
    /// lives on.
    pub fn is_stale(&self, at: Instant) -> bool {
        at.elapsed() >= Duration::from_millis(self.summaries.settings.lifetime_ms / 4)
    }

    /// Whether something was decided that nobody has settled.
    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled.get()
    }

    /// How the last cut came by what stands there, where any was made: `is_unfit` says that the note
    /// had no room for it. Counts all of them where the request is going to be sent.
    pub fn told(&self, is_unfit: bool) -> Option<Look> {
        let mut looks = self.looks.borrow_mut();
        if let Some(last @ (Look::Kept | Look::Ready)) = looks.last_mut()
            && is_unfit
        {
            *last = Look::Unfit;
        }
        if self.patience != Patience::Looks {
            looks.iter().for_each(|look| self.summaries.counts.looked(*look));
        }
        looks.last().copied()
    }

    fn texts<'g>(&'g self, gone: &'g [usize]) -> impl Iterator<Item = &'a str> + 'g {
        gone.iter().filter_map(|message| self.messages.get(*message).copied())
    }

    fn start(&self, gone: &[usize]) -> Option<Key> {
        let first = *gone.first()?;
        let before = self.messages.get(..=first)?;
        // Without what operators say first: there may be a clock in it, and no cut takes it.
        let is_system = |raw: &&&str| {
            self.protocol.read_message(raw).is_ok_and(|message| message.role == Role::System)
        };
        let run = before.iter().take_while(is_system).count();
        Some(self.summaries.keys.start(self.tenant, &before[run..]))
    }

    /// Whether `covered` is the key of the first `covers` messages of `gone`.
    fn is_of(&self, gone: &[usize], covers: usize, covered: &Key) -> bool {
        let own = gone.get(..covers).filter(|own| !own.is_empty());
        own.is_some_and(|own| self.summaries.keys.span(self.tenant, self.texts(own)) == *covered)
    }

    fn want(&self, gone: &[usize], start: Key) -> Option<Wanted> {
        let base = self.body.as_ptr() as usize;
        let ranges = self.texts(gone).map(|text| {
            let from = (text.as_ptr() as usize).checked_sub(base)?;
            let until = from + text.len();
            (until <= self.body.len()).then_some(from..until)
        });
        let messages = ranges.collect::<Option<Vec<_>>>()?;
        let covered = self.summaries.keys.span(self.tenant, self.texts(gone));
        let model = self.model.to_owned();
        Some(Wanted { start, covered, model, messages, are_sent: false })
    }
}

/// Whether requests look for what stands at all.
pub fn are_looked_for(mode: SummaryMode) -> bool {
    !matches!(mode, SummaryMode::Off | SummaryMode::Auto)
}
