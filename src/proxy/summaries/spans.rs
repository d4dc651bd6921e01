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
use super::flights::Part;
use super::keys::Key;
use super::records::{Ready, Standing};
use crate::config::SummaryMode;
use crate::context::summary::{Space, Summary};
use crate::context::{Ahead, Fate, Fold, Source};
use crate::proxy::planned::Job;
use crate::store::Tenant;
use crate::tokens::Encoding;
use crate::wire::{Protocol, Role};

/// What a request may do where nothing is settled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Nothing: it is not sent.
    Looks,
    /// Settle it by what is ready.
    Settles,
    /// Find the last cut first, whose summary is waited for; settle all when planned again.
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
    /// A summary of so many of them, from the front, will do.
    pub least_covers: usize,
    /// What the summary may take, as the request's own model counts.
    pub summary_tokens: u64,
    pub encoding: Encoding,
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
    encoding: Encoding,
    patience: Patience,
    wanted: RefCell<Option<Wanted>>,
    /// How each cut came by what stands there, in order.
    looks: RefCell<Vec<Look>>,
    is_unsettled: Cell<bool>,
    /// Whether a cut was left open that is to be settled when the request is planned again.
    is_open: Cell<bool>,
}

impl<'a> Spans<'a> {
    pub fn new(
        summaries: &'a Arc<Summaries>,
        job: &'a Job,
        (messages, model, encoding): (&'a [&'a str], &'a str, Encoding),
    ) -> Self {
        let Job { tenant, protocol, patience, ref body, .. } = *job;
        Self {
            summaries,
            tenant,
            protocol,
            body,
            messages,
            model,
            encoding,
            patience,
            wanted: RefCell::default(),
            looks: RefCell::default(),
            is_unsettled: Cell::default(),
            is_open: Cell::default(),
        }
    }

    /// What stands in the place of the messages `gone`; `None` for the extract. Blocks while the
    /// store is read: cuts are made off the async threads.
    pub fn standing(&self, gone: &[usize], space: Space) -> Option<Summary> {
        // Where no runtime is, nothing is kept either.
        let runtime = Handle::try_current().ok()?;
        let (look, standing) = runtime.block_on(self.look(gone, space));
        self.looks.borrow_mut().push(look);
        match standing {
            Standing::Extract => None,
            Standing::Summary(summary) => Some(summary),
        }
    }

    async fn look(&self, gone: &[usize], space: Space) -> (Look, Standing) {
        // Of all cuts the last is the one that is waited for.
        self.wanted.borrow_mut().take();
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
        let Some(asking) = self.summaries.asking() else { return (Look::Late, Standing::Extract) };
        let Some(start) = self.start(gone) else { return (Look::Late, Standing::Extract) };
        let ready = records.ready(self.tenant, &start, |ready| self.is_of(gone, ready)).await;
        let size = asking.size(space.note_tokens, space.replaced_tokens);
        if let (Patience::Waits, None, Some(summary_tokens)) = (self.patience, &ready, size) {
            let least_covers = gone.len();
            let ahead = Ahead { span: gone.to_vec(), summary_tokens, least_covers };
            *self.wanted.borrow_mut() = self.want(&ahead, start);
        }
        let wanted = match ready {
            Some(ready) => Standing::Summary(ready.summary),
            None => Standing::Extract,
        };
        let stands = match self.patience {
            Patience::Looks | Patience::Waits => {
                self.is_unsettled.set(true);
                self.is_open.set(self.patience == Patience::Waits);
                wanted
            }
            Patience::Settles => {
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
    /// far off or not worth a call, or its summary is ready, on its way, or has failed just now.
    pub fn ahead(&self, end: &Fold, source: &dyn Source) -> Option<Wanted> {
        let asking = self.summaries.asking()?;
        if self.patience == Patience::Looks {
            return None;
        }
        let ahead = end.ahead(asking, source)?;
        let is_sent = |message: &usize| end.fates().get(*message) == Some(&Fate::Kept);
        let are_sent = ahead.span.iter().all(is_sent);
        self.wanted(&ahead).map(|wanted| Wanted { are_sent, ..wanted })
    }

    fn wanted(&self, ahead: &Ahead) -> Option<Wanted> {
        let gone = &ahead.span;
        let start = self.start(gone)?;
        let is_own = |part: &Part| self.is_key_of(gone, part.messages, &part.key);
        if self.summaries.flights.has(&start, is_own) {
            return None;
        }
        let serves =
            |ready: &Ready| ready.summary.covers >= ahead.least_covers && self.is_of(gone, ready);
        match self.summaries.records.ready_in_memory(&start, serves) {
            Some(_) => None,
            None => self.want(ahead, start),
        }
    }

    /// Whether the request has to be planned again, since nothing was settled on the way; and the span
    /// that it is to wait for before, if there is one.
    pub fn take_open(&self) -> Option<Option<Box<Wanted>>> {
        self.is_open.take().then(|| self.wanted.borrow_mut().take().map(Box::new))
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

    /// Whether a summary speaks of the beginning of `gone`.
    fn is_of(&self, gone: &[usize], ready: &Ready) -> bool {
        self.is_key_of(gone, ready.summary.covers, &ready.covered)
    }

    /// Whether `key` is that of the first `messages` of `gone`.
    fn is_key_of(&self, gone: &[usize], messages: usize, key: &Key) -> bool {
        let own = gone.get(..messages).filter(|own| !own.is_empty());
        own.is_some_and(|own| self.summaries.keys.span(self.tenant, self.texts(own)) == *key)
    }

    fn want(&self, ahead: &Ahead, start: Key) -> Option<Wanted> {
        let base = self.body.as_ptr() as usize;
        let ranges = self.texts(&ahead.span).map(|text| {
            let from = (text.as_ptr() as usize).checked_sub(base)?;
            let until = from + text.len();
            (until <= self.body.len()).then_some(from..until)
        });
        let messages = ranges.collect::<Option<Vec<_>>>()?;
        Some(Wanted {
            start,
            covered: self.summaries.keys.span(self.tenant, self.texts(&ahead.span)),
            least_covers: ahead.least_covers,
            summary_tokens: ahead.summary_tokens,
            encoding: self.encoding,
            model: self.model.to_owned(),
            messages,
            are_sent: false,
        })
    }
}

/// Whether requests look for what stands at all.
pub fn are_looked_for(mode: SummaryMode) -> bool {
    !matches!(mode, SummaryMode::Off | SummaryMode::Auto)
}
