//! Engine driver of the replay: the one place here that builds plans. Measures nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::conversation::{Conversation, MEASURE};
use super::sent::{Other, SentPiece};
use super::summaries::{Sent, Stub, Stubs, Summaries};
use weir_engine::compact::history::SummaryUse;
use weir_engine::compact::source::Readings;
use weir_engine::compact::summary::Space;
use weir_engine::compact::{Compactor, Fact, Fate, Policy};
use weir_engine::plan::{Known, Plan, PlanError, PlanOptions, plan_with};
use weir_engine::wire::{Edit, Protocol, Request, splice};

/// Request without messages.
const EMPTY: &str = r#"{"messages":[]}"#;

/// Replay of a conversation under weir's own engine, request by request.
pub(crate) struct Engine<'a> {
    at_hand: AtHand<'a>,
    /// The messages so far, without a body.
    request: Request<'a>,
    options: PlanOptions,
    /// Edits of the previous request.
    edits: Vec<(usize, Edit)>,
    /// Messages of the previous request.
    pub(crate) sent: Vec<SentPiece>,
    /// Number of messages in the previous request.
    length: usize,
    /// Whether the previous request is within the limit.
    pub(crate) fits: bool,
    summaries: Option<Stubs>,
}

/// Facts of all messages, and the state after the previous request.
struct AtHand<'a> {
    conversation: &'a Conversation,
    state: RefCell<Option<Arc<Compactor>>>,
    readings: Rc<Readings>,
}

impl Known for AtHand<'_> {
    fn fact(&self, message: usize) -> Option<Fact> {
        Some(self.conversation.messages[message].fact)
    }

    fn state(&self) -> Option<Arc<Compactor>> {
        self.state.take()
    }

    fn keep_state(&self, state: &Arc<Compactor>) {
        self.state.replace(Some(Arc::clone(state)));
    }

    fn readings(&self) -> Rc<Readings> {
        Rc::clone(&self.readings)
    }
}

impl<'a> Engine<'a> {
    /// Creates the engine with a limit of exactly `budget_tokens` for the messages.
    pub(crate) fn new(
        conversation: &'a Conversation,
        budget_tokens: u64,
        policy: &Policy,
        stub: Option<Stub>,
    ) -> Self {
        let margin_tokens = budget_tokens / 1000 * u64::from(policy.counting.margin_permille);
        let limit_tokens = budget_tokens - margin_tokens;
        let summaries = stub.map(Stubs::new);
        let prefetch = summaries.as_ref().map(Stubs::prefetch_settings);
        let options = PlanOptions::for_messages(limit_tokens, policy.clone(), MEASURE);
        Self {
            at_hand: AtHand { conversation, state: RefCell::default(), readings: Rc::default() },
            request: Protocol::Chat.read(EMPTY.as_bytes(), 0).expect("it is a request"),
            options: PlanOptions { prefetch, writes_body: false, ..options },
            edits: Vec::new(),
            sent: Vec::new(),
            length: 0,
            fits: true,
            summaries,
        }
    }

    /// Uses the readings of the conversation's messages that another engine made, and adds its own to them.
    pub(crate) fn with_readings(mut self, readings: &Rc<Readings>) -> Self {
        self.at_hand.readings = Rc::clone(readings);
        self
    }

    /// Returns the messages sent for the first `length` messages, at least as many as last time.
    pub(crate) fn send(&mut self, length: usize) -> &[SentPiece] {
        let planned = self.planned(length, false);
        self.fits = planned.is_ok();
        let plan = match planned {
            Ok(plan) => plan,
            // Judged as far as it came.
            Err(PlanError::CannotFit(unfit)) => unfit.plan,
            Err(error) => panic!("each message was read before: {error}"),
        };
        // The plan took it, and is the only other one that holds it: the next request continues it in place.
        self.at_hand.state.replace(Some(Arc::clone(&plan.state)));
        self.count_summaries(&plan);
        if plan.changes == self.edits {
            self.sent.extend((self.length..length).map(SentPiece::Verbatim));
        } else {
            self.sent = self.spliced(&plan);
            self.edits = plan.changes;
        }
        self.length = length;
        &self.sent
    }

    /// Plans the request of the first `length` messages.
    fn planned(&mut self, length: usize, is_early: bool) -> Result<Plan, PlanError> {
        self.options.compacts_early = is_early;
        let sent = &mut self.request.messages;
        sent.truncate(length);
        let all = &self.at_hand.conversation.messages[..length];
        sent.extend(all[sent.len()..].iter().map(|message| &*message.raw));
        let stubs = self.summaries.as_ref();
        let summary = |gone: &[usize], _: Space| stubs?.of(gone);
        plan_with(&self.request, &self.options, &summary, &self.at_hand)
    }

    /// Compacts the conversation before its request of `length` messages, if half the way to the next compaction
    /// is done: what was sent before is in no cache any more.
    pub(crate) fn compact_early(&mut self, length: usize) {
        if let Ok(plan) = self.planned(length, true) {
            self.at_hand.state.replace(Some(plan.state));
        }
    }

    /// Counts the summaries that a plan uses, and requests the next one.
    fn count_summaries(&self, plan: &Plan) {
        let Some(stubs) = &self.summaries else { return };
        let end = &plan.end;
        let is_used = |number: &u32| {
            let compaction = end.history().compaction(*number);
            compaction.is_some_and(|own| matches!(own.summary, SummaryUse::Used { .. }))
        };
        let used = (1..=end.compactions()).filter(is_used).count();
        stubs.count(used as u64, end.compactions().into());
        if let Some(prefetch) = plan.prefetch.clone() {
            let is_sent = |message: &usize| end.fates()[*message] == Fate::Kept;
            let is_whole = prefetch.span.iter().all(is_sent);
            let sent = Sent { raws: &self.request.messages, tokens: end.sent_tokens(), is_whole };
            stubs.prefetch(prefetch, &sent);
        }
    }

    /// Totals of the summaries so far.
    pub(crate) fn summaries(&self) -> Summaries {
        self.summaries.as_ref().map(Stubs::figures).unwrap_or_default()
    }

    /// Returns the request as planned, parsed message by message. Pieces of the previous request are
    /// reused with their search results.
    fn spliced(&self, plan: &Plan) -> Vec<SentPiece> {
        let raws = &self.request.messages;
        let length = raws.len();
        let body = format!(r#"{{"messages":[{}]}}"#, raws.join(","));
        let request = Protocol::Chat.read(body.as_bytes(), length).expect("it was read before");
        let spliced = splice::apply(Protocol::Chat, &request, &plan.changes);
        let sent = Protocol::Chat.read(spliced.as_bytes(), usize::MAX);
        let sent = sent.expect("what is spliced is a request").messages;
        let origins = origins(length, &plan.changes);
        let pieces = sent.iter().zip(origins).map(|(raw, origin)| match origin {
            Some(index) if raws[index] == *raw => SentPiece::Verbatim(index),
            origin => self.other(raw, origin),
        });
        pieces.collect()
    }

    fn other(&self, raw: &str, of: Option<usize>) -> SentPiece {
        let same = self.sent.iter().find_map(|piece| match piece {
            SentPiece::Other(other) if *other.message.raw == *raw => Some(Rc::clone(other)),
            _ => None,
        });
        let read = || Rc::new(Other::read(raw, of).expect("what is spliced is a message"));
        SentPiece::Other(same.unwrap_or_else(read))
    }
}

/// Maps each sent message of the first `length` under `edits` to its original; `None` for an
/// inserted one.
fn origins(length: usize, edits: &[(usize, Edit)]) -> Vec<Option<usize>> {
    let mut origins = Vec::with_capacity(length);
    let mut edits = edits.iter().peekable();
    for index in 0..length {
        let (mut before, mut after, mut is_gone) = (0, 0, false);
        while let Some((_, edit)) = edits.next_if(|(message, _)| *message == index) {
            before += usize::from(matches!(edit, Edit::InsertBefore(_)));
            after += usize::from(matches!(edit, Edit::InsertAfter(_)));
            is_gone |= *edit == Edit::Remove;
        }
        if !is_gone {
            origins.extend((0..before).map(|_| None));
            origins.push(Some(index));
            origins.extend((0..after).map(|_| None));
        }
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let note = || "note".to_owned();
        let edits = [
            (0, Edit::InsertAfter(note())),
            (1, Edit::Remove),
            (2, Edit::InsertBefore(note())),
            (2, Edit::InsertBefore(note())),
            (2, Edit::Append(note())),
            (4, Edit::Append(note())),
        ];
        let all = [Some(0), None, None, None, Some(2), Some(3), Some(4)];
        assert_eq!(origins(5, &edits), all);
        assert_eq!(origins(2, &[]), [Some(0), Some(1)]);
    }

    #[test]
    fn what_is_sent_is_what_the_edits_say() {
        let words = "word ".repeat(100);
        let spoken = |role: &str, text: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
        let mut messages = vec![spoken("system", "s"), spoken("user", "first")];
        for _ in 0..12 {
            messages.push(spoken("assistant", &words));
            messages.push(spoken("user", "go on"));
        }
        let line = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        let conversation = Conversation::read(&line, 1, None).expect("it is a conversation");
        let mut engine = Engine::new(&conversation, 600, &Policy::default(), None);
        for length in [2, 8, 10, 24, 26] {
            let sent = engine.send(length).to_vec();
            let tokens: u64 = sent.iter().map(|piece| piece.tokens(&conversation)).sum();
            assert!(tokens <= 600, "{tokens} at {length}");
            let last = matches!(sent.last(), Some(SentPiece::Verbatim(last)) if last + 1 == length);
            assert!(last, "the last message is as it was, at {length}");
            let mut again = Engine::new(&conversation, 600, &Policy::default(), None);
            let raws = |sent: &[SentPiece]| -> Vec<String> {
                let raw = |piece: &SentPiece| piece.message(&conversation).raw.to_string();
                sent.iter().map(raw).collect()
            };
            assert_eq!(raws(&sent), raws(again.send(length)), "at {length}");
        }
    }
}
