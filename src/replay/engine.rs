//! The engine as the replay drives it: the one place that knows how a plan is made. Measures
//! nothing.

use std::rc::Rc;
use std::sync::Arc;

use super::conversation::{Conversation, MEASURE};
use super::sent::{Other, Piece};
use super::summaries::{Sent, Stub, Stubs, Summaries};
use crate::context::history::SummaryUse;
use crate::context::{self, Fate, Fold, Policy, Profile, RequestSource};
use crate::wire::{Edit, Protocol, splice};

/// A conversation under weir's own engine, request by request.
pub struct Engine<'a> {
    conversation: &'a Conversation,
    raws: Vec<&'a str>,
    fold: Fold,
    /// The edits of the request before.
    edits: Vec<(usize, Edit)>,
    sent: Vec<Piece>,
    /// How many messages the request before had.
    length: usize,
    summaries: Option<Stubs>,
}

impl<'a> Engine<'a> {
    /// The engine at a limit of exactly `budget_tokens` for the messages.
    pub fn new(
        conversation: &'a Conversation,
        budget_tokens: u64,
        policy: &Policy,
        stub: Option<Stub>,
    ) -> Self {
        let margin_tokens = budget_tokens / 1000 * u64::from(policy.counting.margin_permille);
        let profile = Profile {
            limit_tokens: budget_tokens - margin_tokens,
            overhead_tokens: 0,
            policy: policy.clone(),
            measure: MEASURE,
        };
        Self {
            conversation,
            raws: conversation.messages.iter().map(|message| &*message.raw).collect(),
            fold: Fold::new(Arc::new(profile)),
            edits: Vec::new(),
            sent: Vec::new(),
            length: 0,
            summaries: stub.map(Stubs::new),
        }
    }

    /// What is sent of the first `length` messages, which are no fewer than last time.
    pub fn send(&mut self, length: usize) -> &[Piece] {
        let stubs = self.summaries.as_ref();
        let summary = |gone: &[usize], _| stubs?.of(gone);
        let source = RequestSource::new(Protocol::Chat, &self.raws, MEASURE.encoding)
            .with_summaries(&summary);
        for message in &self.conversation.messages[self.fold.messages()..length] {
            self.fold.push(message.fact, &source);
        }
        let end = self.fold.ended(&source);
        let mut edits = context::edits(&end);
        if let Some(tail) = context::tail(&end, &source) {
            edits.push((tail.message, Edit::Append(tail.text)));
        }
        if let Some(stubs) = stubs {
            let is_used = |number: &u32| {
                end.history()
                    .cut(*number)
                    .is_some_and(|cut| matches!(cut.summary, SummaryUse::Used { .. }))
            };
            let used = (1..=end.cuts()).filter(is_used).count();
            stubs.count(used as u64, end.cuts().into());
            if let Some(ahead) = end.ahead(stubs.asking(), &source) {
                let is_sent = |message: &usize| end.fates()[*message] == Fate::Kept;
                let is_whole = ahead.span.iter().all(is_sent);
                let sent = Sent { raws: &self.raws, tokens: end.sent_tokens(), is_whole };
                stubs.announce(ahead, &sent);
            }
        }
        if edits == self.edits {
            self.sent.extend((self.length..length).map(Piece::Verbatim));
        } else {
            self.sent = self.spliced(&edits, length);
            self.edits = edits;
        }
        self.length = length;
        &self.sent
    }

    /// What the summaries came to so far.
    pub fn summaries(&self) -> Summaries {
        self.summaries.as_ref().map(Stubs::figures).unwrap_or_default()
    }

    /// The request as spliced, read back message by message. Pieces that the request before had are
    /// taken over, so that what was found in them stays known.
    fn spliced(&self, edits: &[(usize, Edit)], length: usize) -> Vec<Piece> {
        let body = format!(r#"{{"messages":[{}]}}"#, self.raws[..length].join(","));
        let request = Protocol::Chat.read(body.as_bytes(), length).expect("it was read before");
        let spliced = splice::apply(Protocol::Chat, &request, edits);
        let sent = Protocol::Chat.read(spliced.as_bytes(), usize::MAX);
        let sent = sent.expect("what is spliced is a request").messages;
        let pieces = sent.iter().zip(origins(length, edits)).map(|(raw, origin)| match origin {
            Some(index) if self.raws[index] == *raw => Piece::Verbatim(index),
            origin => self.other(raw, origin),
        });
        pieces.collect()
    }

    fn other(&self, raw: &str, of: Option<usize>) -> Piece {
        let same = self.sent.iter().find_map(|piece| match piece {
            Piece::Other(other) if *other.message.raw == *raw => Some(Rc::clone(other)),
            _ => None,
        });
        let read = || Rc::new(Other::read(raw, of).expect("what is spliced is a message"));
        Piece::Other(same.unwrap_or_else(read))
    }
}

/// Tells for each message that is sent of the first `length` under `edits` which one it is or was
/// made of; `None` for one that stands between.
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
        let conversation = Conversation::read(&line, 1).expect("it is a conversation");
        let mut engine = Engine::new(&conversation, 600, &Policy::default(), None);
        for length in [2, 8, 10, 24, 26] {
            let sent = engine.send(length).to_vec();
            let tokens: u64 = sent.iter().map(|piece| piece.tokens(&conversation)).sum();
            assert!(tokens <= 600, "{tokens} at {length}");
            let last = matches!(sent.last(), Some(Piece::Verbatim(last)) if last + 1 == length);
            assert!(last, "the last message is as it was, at {length}");
            let mut anew = Engine::new(&conversation, 600, &Policy::default(), None);
            let raws = |sent: &[Piece]| -> Vec<String> {
                let raw = |piece: &Piece| piece.message(&conversation).raw.to_string();
                sent.iter().map(raw).collect()
            };
            assert_eq!(raws(&sent), raws(anew.send(length)), "at {length}");
        }
    }
}
