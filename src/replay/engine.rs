//! The engine as the replay drives it: the one place that knows how a plan is made. Measures
//! nothing.

use std::rc::Rc;
use std::sync::Arc;

use super::conversation::{Conversation, MEASURE};
use super::sent::{Other, Piece};
use crate::context::clip::RequestClips;
use crate::context::{self, Fold, Policy, Profile};
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
        let profile = Profile {
            limit_tokens: budget_tokens,
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
        let source = RequestClips {
            protocol: Protocol::Chat,
            messages: &self.raws,
            encoding: MEASURE.encoding,
        };
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
        let edited = |index: usize, edit: fn(&Edit) -> bool| {
            let from = edits.partition_point(|(message, _)| *message < index);
            edits[from..].iter().take_while(|own| own.0 == index).any(|(_, own)| edit(own))
        };
        let is_gone = |index: &usize| edited(*index, |edit| *edit == Edit::Remove);
        let mut kept = (0..length).filter(|index| !is_gone(index)).peekable();
        let mut pieces = Vec::with_capacity(sent.len());
        for (place, raw) in sent.iter().enumerate() {
            // As many of the conversation's messages are left as pieces, unless some are new.
            let left = sent.len() - place;
            let next = kept.peek().copied();
            let is_new = next.is_none_or(|next| {
                let more = left > kept.clone().count();
                more && *raw != self.raws[next] && !self.is_made_of(raw, next)
            });
            match next.filter(|_| !is_new) {
                Some(next) if *raw == self.raws[next] => pieces.push(Piece::Verbatim(next)),
                of => pieces.push(self.other(raw, of)),
            }
            if !is_new {
                kept.next();
            }
        }
        pieces
    }

    /// Whether a message with the bytes `raw` may be message `index` with edits.
    fn is_made_of(&self, raw: &str, index: usize) -> bool {
        let head = |raw: &str| raw.chars().take(40).collect::<String>();
        head(raw) == head(self.raws[index])
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
