//! Results of earlier requests for the engine's plan of a draft: counts, state and readings. New readings are
//! made by several threads.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::{Draft, Given, map};
use crate::proxy::plan::effort::Effort;
use crate::proxy::plan::parallel::{Ahead, span};
use crate::proxy::plan::plan_cache::Remembered;
use crate::proxy::plan::planned::Job;
use crate::proxy::plan::read_ahead::ReadAhead;
use crate::proxy::plan::readings::Table;
use crate::proxy::plan::shared::Shared;
use crate::proxy::summaries::Spans;
use weir_engine::compact::reading::Reading;
use weir_engine::compact::source::{ReadOne, Readings};
use weir_engine::compact::{Compactor, Fact, Notes};
use weir_engine::plan::{Known, Mode, Plan};
use weir_engine::wire::Request;

/// Minimum bytes of new text that are worth keeping.
const MIN_KEPT_BYTES: usize = 4 << 10;
/// Maximum number of messages that are read with others, but not wanted.
const MAX_SKIPPED: usize = 8;

/// Work at hand of a draft, for the engine.
pub(super) struct AtHand<'a> {
    draft: &'a Draft,
    shared: &'a Shared,
    job: &'a Job,
    spans: Option<&'a Spans<'a>>,
    readings: Rc<Readings>,
    /// Readings kept of the conversation, once the plan asks for any.
    kept: OnceCell<Arc<Table>>,
    /// Readings that other threads work on ahead of the plan.
    under_way: RefCell<Option<UnderWay>>,
}

impl<'a> AtHand<'a> {
    /// Creates the access to the results of earlier requests.
    pub(super) fn new(draft: &'a Draft, shared: &'a Shared, job: &'a Job) -> Self {
        let (readings, kept, under_way) = Default::default();
        Self { draft, shared, job, spans: None, readings, kept, under_way }
    }

    /// Adds the messages that this request parsed, and the records of its summaries.
    pub(super) fn with(self, parsed: super::Parsed, spans: Option<&'a Spans<'a>>) -> Self {
        Self { spans, readings: Rc::new(parsed.into()), ..self }
    }

    /// Returns the kept reading of a message.
    fn kept(&self, message: usize) -> Option<Arc<Reading>> {
        // Readings of short bodies are not kept.
        let conversation = self.draft.looked.as_ref().and(self.draft.conversation.as_ref())?;
        let look = || self.shared.state.cache.readings.look(&conversation.readings);
        let hash = conversation.chain.own().get(message)?;
        self.kept.get_or_init(look).get(message, *hash).cloned()
    }

    /// Keeps the readings that the plan has made, for the conversation's next compaction.
    pub(super) fn keep_readings(&self) {
        let Draft { conversation, looked, is_side, .. } = self.draft;
        let (Some(conversation), Some(_), false) = (conversation, looked, is_side) else { return };
        let readings = self.readings.borrow();
        let is_kept = |message: usize, hash: u128| {
            self.kept.get().is_some_and(|kept| kept.get(message, hash).is_some())
        };
        let made = readings.iter().zip(conversation.chain.own()).enumerate();
        let new = made.filter(|(message, (_, hash))| !is_kept(*message, **hash));
        let new = new.filter_map(|(message, (reading, hash))| {
            Some((message, (*hash, Arc::clone(reading.as_ref()?))))
        });
        let new: Vec<_> = new.collect();
        let bytes: usize = new.iter().map(|(_, (_, reading))| reading.text.len()).sum();
        if bytes >= MIN_KEPT_BYTES {
            self.shared.state.cache.readings.keep(&conversation.readings, new);
        }
    }

    /// Returns the messages to read before the next compaction, once the conversation is past half the way to
    /// it.
    pub(super) fn read_ahead(&self, request: &Request<'_>, plan: &Plan) -> ReadAhead {
        let Draft { options, looked, conversation, is_side, .. } = self.draft;
        let is_near = options.policy.notes == Notes::Excerpts
            && options.mode != Mode::Bypass
            && looked.is_some()
            && !is_side
            && plan.end.is_past_half_way();
        let Some(conversation) = conversation.as_ref().filter(|_| is_near) else {
            return ReadAhead::default();
        };
        let body = &self.job.body;
        let spans = request.messages.iter().map(|raw| span(body, raw));
        let messages = conversation.chain.own().iter().copied().zip(spans);
        let of = (request.protocol, body);
        let unread = self.shared.state.cache.readings.unread(&conversation.readings, of, messages);
        ReadAhead::new(&self.shared.state, unread)
    }
}

impl Known for AtHand<'_> {
    fn extra_tokens(&self, extra: usize) -> Option<u64> {
        self.draft.extras.get(extra).copied().flatten()
    }

    fn fact(&self, message: usize) -> Option<Fact> {
        if let Some(fact) = self.draft.head.get(message) {
            return Some(*fact);
        }
        let conversation = self.draft.conversation.as_ref()?;
        let place = message.checked_sub(conversation.start())?;
        conversation.facts.get(place).copied().flatten()
    }

    fn state(&self) -> Option<Arc<Compactor>> {
        self.draft.conversation.as_ref()?.state.clone()
    }

    fn keep_state(&self, state: &Arc<Compactor>) {
        let Some(conversation) = &self.draft.conversation else { return };
        // Records that are not settled must not be reused by requests that are sent.
        // The conversation does not go on after its agent has compacted it.
        let is_last = self.draft.options.passes_whole;
        if conversation.is_whole || is_last || self.spans.is_some_and(Spans::is_unsettled) {
            return;
        }
        let (looked_at, last_sent) = (conversation.looked_at, conversation.last_sent.clone());
        let (state, readings) = (Arc::clone(state), conversation.readings.clone());
        let kept = Remembered { state, looked_at, last_sent, before: None, readings };
        let super::Conversation { chain, remembered_messages, .. } = conversation;
        let earlier = remembered_messages.filter(|_| !conversation.is_whole);
        self.shared.state.cache.keep_state(chain, kept, earlier);
    }

    fn is_over(&self) -> bool {
        self.job.effort.as_ref().is_some_and(Effort::is_over)
    }

    fn readings(&self) -> Rc<Readings> {
        Rc::clone(&self.readings)
    }

    fn read_many(
        &self,
        request: &Request<'_>,
        messages: &[usize],
        later: &[usize],
        read: ReadOne,
    ) -> Vec<Arc<Reading>> {
        let kept: Vec<_> = messages.iter().map(|message| self.kept(*message)).collect();
        let new = messages.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        let new: Vec<usize> = new.map(|(message, _)| *message).collect();
        let is_new = |message: &usize| self.kept(*message).is_none();
        let later: Vec<usize> = later.iter().copied().filter(is_new).collect();
        if self.draft.looked.is_some() {
            self.shared.state.cache.readings.note(messages.len() - new.len(), new.len());
        }
        let made = self.read_new(request, &new, &later, read);
        debug_assert_eq!(made.len(), new.len());
        let mut made = made.into_iter().map(Arc::new);
        kept.into_iter().filter_map(|kept| kept.or_else(|| made.next())).collect()
    }
}

impl AtHand<'_> {
    /// Reads messages that are not kept.
    fn read_new(
        &self,
        request: &Request<'_>,
        messages: &[usize],
        later: &[usize],
        read: ReadOne,
    ) -> Vec<Reading> {
        if messages.is_empty() {
            return Vec::new();
        }
        let protocol = request.protocol;
        let read = move |raw: &str| read(protocol, raw);
        let mut under_way = self.under_way.borrow_mut();
        if under_way.is_none() && !later.is_empty() {
            let all = [messages, later].concat();
            let raws: Vec<&str> = all.iter().map(|index| request.messages[*index]).collect();
            let work = Ahead::new(&self.shared.state.heavy, &self.job.body, &raws, read);
            *under_way = Some(UnderWay { messages: all, readings: Vec::new(), work });
        }
        let readings = under_way.as_mut().and_then(|under_way| under_way.read(messages));
        let given = Given { shared: self.shared, job: self.job, request };
        readings.unwrap_or_else(|| map(given, messages, read))
    }
}

/// Messages that are read ahead of the plan, by index in order, and their readings.
struct UnderWay {
    messages: Vec<usize>,
    /// Those of the first ones, without those that were asked for.
    readings: Vec<Option<Reading>>,
    work: Ahead<Reading>,
}

impl UnderWay {
    /// Returns the readings of `wanted`, by index; `None` if one is not among them, or was returned before, or
    /// if many others would have to be read.
    fn read(&mut self, wanted: &[usize]) -> Option<Vec<Reading>> {
        let place = |message: &usize| self.messages.binary_search(message).ok();
        let places: Vec<usize> = wanted.iter().map(place).collect::<Option<_>>()?;
        let end = places.iter().max()? + 1;
        let is_there = |place: &usize| self.readings.get(*place).is_none_or(Option::is_some);
        let new = end.saturating_sub(self.readings.len());
        if new > wanted.len() + MAX_SKIPPED || !places.iter().all(is_there) {
            return None;
        }
        self.readings.extend(self.work.up_to(end).into_iter().map(Some));
        places.into_iter().map(|place| self.readings[place].take()).collect()
    }
}
