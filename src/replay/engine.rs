//! The engine as the replay drives it: the one place that knows how a plan is made. Measures
//! nothing.

use std::rc::Rc;
use std::sync::Arc;

use super::conversation::{Conversation, MEASURE};
use super::sent::{Other, Piece};
use crate::context::{self, Fold, Policy, Profile, RequestSource};
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
}

impl<'a> Engine<'a> {
    /// The engine at a limit of exactly `budget_tokens` for the messages.
    pub fn new(conversation: &'a Conversation, budget_tokens: u64, policy: &Policy) -> Self {
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
        }
    }

    /// What is sent of the first `length` messages, which are no fewer than last time.
    pub fn send(&mut self, length: usize) -> &[Piece] {
        let source = RequestSource::new(Protocol::Chat, &self.raws, MEASURE.encoding);
        for message in &self.conversation.messages[self.fold.messages()..length] {
            self.fold.push(message.fact, &source);
        }
        let edits = context::edits(&self.fold.ended(&source));
        if edits == self.edits {
            self.sent.extend((self.length..length).map(Piece::Verbatim));
        } else {
            self.sent = self.spliced(&edits, length);
            self.edits = edits;
        }
        self.length = length;
        &self.sent
    }

    /// The request as spliced, read back message by message. Pieces that the request before had are
    /// taken over, so that what was found in them stays known.
    fn spliced(&self, edits: &[(usize, Edit)], length: usize) -> Vec<Piece> {
        let body = format!(r#"{{"messages":[{}]}}"#, self.raws[..length].join(","));
        let request = Protocol::Chat.read(body.as_bytes(), length).expect("it was read before");
        let spliced = splice::apply(Protocol::Chat, &request, edits);
        let sent = Protocol::Chat.read(spliced.as_bytes(), usize::MAX);
        let sent = sent.expect("what is spliced is a request").messages;
        let is_gone = |index: &usize| edits.contains(&(*index, Edit::Remove));
        let kept: Vec<usize> = (0..length).filter(|index| !is_gone(index)).collect();
        let originals: Vec<&str> = kept.iter().map(|index| self.raws[*index]).collect();
        let pieces = sent.iter().zip(align(&originals, &sent)).map(|(raw, origin)| match origin {
            Origin::Same(place) => Piece::Verbatim(kept[place]),
            Origin::Changed(place) => self.other(raw, Some(kept[place])),
            Origin::New => self.other(raw, None),
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

/// Where a message that is sent comes from, by place among those kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Same(usize),
    Changed(usize),
    New,
}

/// Tells for each message of `sent` which of `kept` it is or was made of. All of `kept` are sent, in
/// order; some may be changed, and new ones may stand between. A message is taken for new where the
/// next kept one is seen to follow as it is.
fn align(kept: &[&str], sent: &[&str]) -> Vec<Origin> {
    let mut next = 0;
    let mut origins = Vec::with_capacity(sent.len());
    for (place, raw) in sent.iter().enumerate() {
        let left = &sent[place + 1..];
        let new = (left.len() + 1).saturating_sub(kept.len() - next);
        let origin = match kept.get(next) {
            Some(own) if own == raw => Origin::Same(next),
            Some(own) if !left[..new.min(left.len())].contains(own) => Origin::Changed(next),
            _ => Origin::New,
        };
        next += usize::from(origin != Origin::New);
        origins.push(origin);
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::Origin::{Changed, New, Same};
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        for (kept, sent, origins) in [
            (&["a", "b"][..], &["a", "b"][..], &[Same(0), Same(1)][..]),
            (&["a", "b"], &["a+", "b"], &[Changed(0), Same(1)]),
            (&["a", "b"], &["a", "n", "b"], &[Same(0), New, Same(1)]),
            (&["a", "b"], &["n", "m", "a", "b"], &[New, New, Same(0), Same(1)]),
            (&["a", "b"], &["a", "b", "n"], &[Same(0), Same(1), New]),
            (&["a", "b", "c"], &["a", "n", "b+", "c"], &[Same(0), Changed(1), New, Same(2)]),
            (&["a", "b", "c"], &["a+", "n", "b", "c"], &[Changed(0), New, Same(1), Same(2)]),
            (&[], &["n"], &[New]),
        ] {
            assert_eq!(align(kept, sent), origins, "{kept:?} {sent:?}");
        }
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
        let mut engine = Engine::new(&conversation, 600, &Policy::default());
        for length in [2, 8, 10, 24, 26] {
            let sent = engine.send(length).to_vec();
            let tokens: u64 = sent.iter().map(|piece| piece.tokens(&conversation)).sum();
            assert!(tokens <= 600, "{tokens} at {length}");
            let last = matches!(sent.last(), Some(Piece::Verbatim(last)) if last + 1 == length);
            assert!(last, "the last message is as it was, at {length}");
            let mut anew = Engine::new(&conversation, 600, &Policy::default());
            let raws = |sent: &[Piece]| -> Vec<String> {
                let raw = |piece: &Piece| piece.message(&conversation).raw.to_string();
                sent.iter().map(raw).collect()
            };
            assert_eq!(raws(&sent), raws(anew.send(length)), "at {length}");
        }
    }
}
