//! What of a conversation reached the upstream: each message received there traced back to one of
//! the caller's, byte for byte or by one of the two changes that a proxy may make.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::conversation::{Conversation, Role, count};

/// What opens everything that weir writes into a conversation.
const MARK: &str = "[weir: ";
/// Stands between a note and what the message itself says, as JSON writes two newlines.
const SEAM: &str = r"\n\n";

/// One message as the upstream received it.
#[derive(Clone)]
pub struct Piece {
    /// The caller's message that it is, or was made of.
    pub index: usize,
    pub change: Option<Arc<Change>>,
}

/// A message that is not the caller's byte for byte.
pub struct Change {
    pub kind: ChangeKind,
    pub raw: Box<str>,
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A user message with a note of weir's beside what it says.
    Note,
    /// A tool result with its middle left out.
    Clip,
}

impl Piece {
    pub fn raw<'a>(&'a self, conversation: &'a Conversation) -> &'a str {
        match &self.change {
            Some(change) => &change.raw,
            None => &conversation.messages[self.index].raw,
        }
    }

    pub fn tokens(&self, conversation: &Conversation) -> u64 {
        match &self.change {
            Some(change) => change.tokens,
            None => conversation.messages[self.index].tokens,
        }
    }

    /// Whether both are the same bytes.
    pub fn is_same(&self, other: &Self, conversation: &Conversation) -> bool {
        let is_same_message = self.index == other.index
            && match (&self.change, &other.change) {
                (None, None) => true,
                (Some(own), Some(others)) => Arc::ptr_eq(own, others),
                _ => false,
            };
        is_same_message || self.raw(conversation) == other.raw(conversation)
    }

    pub fn is_clipped(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.kind == ChangeKind::Clip)
    }
}

/// All of a request, untouched.
pub fn whole(length: usize) -> Vec<Piece> {
    (0..length).map(|index| Piece { index, change: None }).collect()
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// Traces requests of one conversation, and remembers the changed messages that it has met.
pub struct Tracer<'a> {
    conversation: &'a Conversation,
    changes: HashMap<Box<str>, (usize, Arc<Change>)>,
}

impl<'a> Tracer<'a> {
    pub fn new(conversation: &'a Conversation) -> Self {
        Self { conversation, changes: HashMap::new() }
    }

    /// Traces each message in `body` to one of the first `length` of the caller's, in order.
    /// The error says which message is none of them.
    pub fn trace(&mut self, body: &[u8], length: usize) -> Result<Vec<Piece>, String> {
        let body: Body<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let mut next = 0;
        let mut pieces = Vec::with_capacity(body.messages.len());
        for (position, raw) in body.messages.iter().enumerate() {
            let piece = self.find(raw.get(), next, length).ok_or_else(|| {
                format!("message {position} of those sent is none of the caller's")
            })?;
            next = piece.index + 1;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    fn find(&mut self, raw: &str, next: usize, length: usize) -> Option<Piece> {
        let messages = &self.conversation.messages;
        let exact = (next..length).find(|index| *messages[*index].raw == *raw);
        if let Some(index) = exact {
            return Some(Piece { index, change: None });
        }
        if !raw.contains(MARK) {
            return None;
        }
        if let Some((index, change)) = self.changes.get(raw).filter(|known| known.0 >= next) {
            return Some(Piece { index: *index, change: Some(change.clone()) });
        }
        let (index, kind) = self.origin(raw, next, length)?;
        let change = Arc::new(Change { kind, raw: raw.into(), tokens: count(raw).ok()? });
        self.changes.insert(raw.into(), (index, change.clone()));
        Some(Piece { index, change: Some(change) })
    }

    /// The message that `raw` was made of, and how.
    fn origin(&self, raw: &str, next: usize, length: usize) -> Option<(usize, ChangeKind)> {
        let messages = &self.conversation.messages;
        let bare = without_notes(raw);
        let noted = (next..length)
            .find(|index| messages[*index].role == Role::User && *messages[*index].raw == *bare);
        if let Some(index) = noted {
            return Some((index, ChangeKind::Note));
        }
        let sent: Value = serde_json::from_str(raw).ok()?;
        let clipped = (next..length).find(|index| {
            let message = &messages[*index];
            message.role == Role::Tool && is_clipped(&sent, &message.raw)
        });
        clipped.map(|index| (index, ChangeKind::Clip))
    }
}

/// `raw` without the notes in it, each with its seam.
fn without_notes(raw: &str) -> String {
    let mut bare = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(start) = rest.find(MARK) {
        let end = rest[start..].find(']').map_or(rest.len(), |end| start + end + 1);
        let (before, after) = (&rest[..start], &rest[end..]);
        match (before.strip_suffix(SEAM), after.strip_prefix(SEAM)) {
            (Some(before), _) => {
                bare.push_str(before);
                rest = after;
            }
            (None, Some(after)) => {
                bare.push_str(before);
                rest = after;
            }
            (None, None) => {
                bare.push_str(&rest[..end]);
                rest = after;
            }
        }
    }
    bare.push_str(rest);
    bare
}

/// Whether `sent` is the message `raw` with nothing changed but texts whose middle is left out.
fn is_clipped(sent: &Value, raw: &str) -> bool {
    let Ok(mut own) = serde_json::from_str::<Value>(raw) else { return false };
    let mut sent = sent.clone();
    let contents = (sent["content"].take(), own["content"].take());
    sent == own && is_clipped_content(&contents.0, &contents.1)
}

fn is_clipped_content(sent: &Value, own: &Value) -> bool {
    match (sent, own) {
        (Value::String(sent), Value::String(own)) => sent == own || is_clipped_text(sent, own),
        (Value::Array(sent), Value::Array(own)) => {
            let mut parts = sent.iter().zip(own);
            let clipped = |(sent, own): (&Value, &Value)| {
                sent["type"] == own["type"] && is_clipped_content(&sent["text"], &own["text"])
            };
            sent.len() == own.len() && parts.all(clipped)
        }
        _ => sent == own,
    }
}

/// Whether `sent` is the head of `own`, a marker that says truly how much is left out, and the tail.
fn is_clipped_text(sent: &str, own: &str) -> bool {
    sent.match_indices(MARK).any(|(start, _)| {
        let Some(length) = sent[start..].find(']') else { return false };
        let marker = &sent[start..start + length];
        let numbers: Vec<usize> =
            marker.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let head = sent[..start].strip_suffix('\n');
        let tail = sent[start + length + 1..].strip_prefix('\n');
        let (Some(head), Some(tail), [left_out, whole]) = (head, tail, numbers.as_slice()) else {
            return false;
        };
        *whole == own.len()
            && head.len() + left_out + tail.len() == *whole
            && own.starts_with(head)
            && own.ends_with(tail)
    })
}
