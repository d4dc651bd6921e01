//! Tracing of messages at the upstream. Each is traced to one of the caller's, byte for byte or
//! through a permitted change of the proxy, or to a note of the proxy's own.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::conversation::{Conversation, Role, count};
use super::notes::{MARK, Note, Said};

/// Separator between a note and the message's own text: two newlines in JSON.
const SEAM: &str = r"\n\n";

/// Message as the upstream received it.
#[derive(Clone)]
pub struct Piece {
    /// Index of the caller's message that it is, or was made from; `None` for weir's own.
    pub index: Option<usize>,
    pub change: Option<Arc<Change>>,
}

/// Message that differs from the caller's bytes.
pub struct Change {
    pub kind: ChangeKind,
    pub raw: Box<str>,
    pub tokens: u64,
    /// Contents of the notes in it.
    pub note: Note,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// User message of weir's own that contains only a note.
    Apart,
    /// User message with a note added to its text.
    Note,
    /// A tool result, or the arguments of calls that are answered, with their middle left out.
    Clip,
}

impl Piece {
    /// Its bytes, and its tokens.
    fn sent<'a>(&'a self, conversation: &'a Conversation) -> (&'a str, u64) {
        let own = self.index.map(|index| &conversation.messages[index]);
        match (&self.change, own) {
            (Some(change), _) => (&change.raw, change.tokens),
            (None, Some(own)) => (&own.raw, own.tokens),
            (None, None) => ("", 0),
        }
    }

    pub fn raw<'a>(&'a self, conversation: &'a Conversation) -> &'a str {
        self.sent(conversation).0
    }

    pub fn tokens(&self, conversation: &Conversation) -> u64 {
        self.sent(conversation).1
    }

    pub fn role(&self, conversation: &Conversation) -> Role {
        self.index.map_or(Role::User, |index| conversation.messages[index].role)
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

    fn is_changed_by(&self, kind: ChangeKind) -> bool {
        self.change.as_ref().is_some_and(|change| change.kind == kind)
    }

    pub fn is_clipped(&self) -> bool {
        self.is_changed_by(ChangeKind::Clip)
    }

    /// Whether it is a note in a message of its own.
    pub fn is_apart(&self) -> bool {
        self.is_changed_by(ChangeKind::Apart)
    }

    /// Whether it carries recalled text for this one request.
    pub fn has_tail(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.note.is_tail)
    }

    /// Returns the part with which the next request must begin.
    pub fn without_tail(&self) -> Self {
        if self.has_tail() { Self { index: self.index, change: None } } else { self.clone() }
    }

    pub fn is_noted(&self) -> bool {
        self.is_apart() || self.is_changed_by(ChangeKind::Note)
    }
}

/// Number of the caller's messages in `pieces`.
pub fn callers(pieces: &[Piece]) -> usize {
    pieces.iter().filter(|piece| piece.index.is_some()).count()
}

/// All messages of a request, untouched.
pub fn whole(length: usize) -> Vec<Piece> {
    (0..length).map(|index| Piece { index: Some(index), change: None }).collect()
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// Traces requests of one conversation, and remembers the changed messages it has seen.
pub struct Tracer<'a> {
    conversation: &'a Conversation,
    said: Said<'a>,
    changes: HashMap<Box<str>, (Option<usize>, Arc<Change>)>,
}

impl<'a> Tracer<'a> {
    pub fn new(conversation: &'a Conversation) -> Self {
        Self { conversation, said: Said::new(conversation), changes: HashMap::new() }
    }

    /// Traces each message in `body` to one of the first `length` of the caller's, in order, or to
    /// a note about the messages that are gone. The error names the message that cannot be traced,
    /// and why.
    pub fn trace(&mut self, body: &[u8], length: usize) -> Result<Vec<Piece>, String> {
        let body: Body<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let mut next = 0;
        let mut pieces = Vec::with_capacity(body.messages.len());
        for (position, raw) in body.messages.iter().enumerate() {
            let piece = self.find(raw.get(), next, length).map_err(|reason| {
                format!("message {position} of those sent is not the caller's: {reason}")
            })?;
            next = piece.index.map_or(next, |index| index + 1);
            pieces.push(piece);
        }
        let last = pieces.len().saturating_sub(1);
        if pieces[..last].iter().any(Piece::has_tail) {
            return Err("recalled text follows a message other than the last question".to_owned());
        }
        self.check_told(&pieces, length)?;
        Ok(pieces)
    }

    fn find(&mut self, raw: &str, next: usize, length: usize) -> Result<Piece, String> {
        let messages = &self.conversation.messages;
        let exact = (next..length).find(|index| *messages[*index].raw == *raw);
        if exact.is_some() {
            return Ok(Piece { index: exact, change: None });
        }
        if !raw.contains(MARK) {
            return Err("it has no mark".to_owned());
        }
        let known = self.changes.get(raw);
        if let Some((index, change)) = known.filter(|known| known.0.is_none_or(|own| own >= next)) {
            return Ok(Piece { index: *index, change: Some(change.clone()) });
        }
        let (index, kind, note) = self.origin(raw, next, length)?;
        let change = Change { kind, raw: raw.into(), tokens: count(raw)?, note };
        let change = Arc::new(change);
        self.changes.insert(raw.into(), (index, change.clone()));
        Ok(Piece { index, change: Some(change) })
    }

    /// Returns the message that `raw` was made from, the change, and the contents of its notes.
    fn origin(
        &self,
        raw: &str,
        next: usize,
        length: usize,
    ) -> Result<(Option<usize>, ChangeKind, Note), String> {
        let messages = &self.conversation.messages;
        for index in (next..length).filter(|index| messages[*index].role == Role::User) {
            if let Some(text) = inserted(raw, &messages[index].raw) {
                let note = self.said.read_all(&text, length)?;
                return Ok((Some(index), ChangeKind::Note, note));
            }
        }
        if let Some(text) = note_apart(raw) {
            let note = self.said.read_all(&text, length)?;
            return Ok((None, ChangeKind::Apart, note));
        }
        let sent: Value = serde_json::from_str(raw).map_err(|error| error.to_string())?;
        let clipped = (next..length).find(|index| {
            let message = &messages[*index];
            match message.role {
                Role::Tool => is_clipped(&sent, &message.raw),
                Role::Assistant => {
                    self.conversation.is_answered(*index, length)
                        && has_clipped_arguments(&sent, &message.raw)
                }
                _ => false,
            }
        });
        let index = clipped.ok_or("no message yields it through a note or clipping")?;
        Ok((Some(index), ChangeKind::Clip, Note::default()))
    }

    /// Checks that notes describe only messages that are gone, and not more of them.
    fn check_told(&self, pieces: &[Piece], length: usize) -> Result<(), String> {
        let mut is_sent = vec![false; length];
        for index in pieces.iter().filter_map(|piece| piece.index) {
            is_sent[index] = true;
        }
        let notes = || pieces.iter().filter_map(|piece| Some(&piece.change.as_ref()?.note));
        // If several messages are equal, it is unknown which one was sent.
        let is_one_of_several = |quoted: &usize| {
            let messages = &self.conversation.messages;
            messages[..length].iter().filter(|own| own.raw == messages[*quoted].raw).count() > 1
        };
        let mut quoted = notes().flat_map(|note| &note.quoted);
        if let Some(quoted) = quoted.find(|quoted| is_sent[**quoted] && !is_one_of_several(quoted))
        {
            return Err(format!("a note quotes message {quoted}, which is sent"));
        }
        let told: usize = notes().map(|note| note.told).sum();
        let gone = length - callers(pieces);
        if told > gone {
            return Err(format!("notes count {told} messages, but {gone} are gone"));
        }
        Ok(())
    }
}

/// Returns the text of a message that contains only a note.
fn note_apart(raw: &str) -> Option<String> {
    let content = raw.strip_prefix(r#"{"role":"user","content":"#)?.strip_suffix('}')?;
    let text: String = serde_json::from_str(content).ok()?;
    text.starts_with(MARK).then_some(text)
}

/// Returns the notes that `raw` contains in addition to all of `own`, in sequence; `None` if it is
/// not `own` with inserted notes.
fn inserted(raw: &str, own: &str) -> Option<String> {
    let length = raw.len().checked_sub(own.len())?;
    raw.match_indices(MARK).find_map(|(at, _)| {
        let is_rest = |start: usize| {
            let inside = raw.get(start..start + length)?;
            let is_own = own.get(..start)? == &raw[..start]
                && own.get(start..)? == raw.get(start + length..)?;
            is_own.then_some(inside)
        };
        let after = at.checked_sub(SEAM.len()).and_then(is_rest);
        let after = after.and_then(|inside| inside.strip_prefix(SEAM));
        let before = || is_rest(at)?.strip_suffix(SEAM);
        let notes = after.or_else(before)?;
        serde_json::from_str(&format!("\"{notes}\"")).ok()
    })
}

/// Whether `sent` is the message `raw` with no change except clipped texts in the arguments of its
/// calls.
fn has_clipped_arguments(sent: &Value, raw: &str) -> bool {
    let Ok(mut own) = serde_json::from_str::<Value>(raw) else { return false };
    let mut sent = sent.clone();
    let take = |message: &mut Value| -> Vec<Value> {
        let calls = message["tool_calls"].as_array_mut().map_or(&mut [][..], Vec::as_mut_slice);
        calls.iter_mut().map(|call| call["function"]["arguments"].take()).collect()
    };
    let (calls_sent, calls_own) = (take(&mut sent), take(&mut own));
    let is_same = |(sent, own): (&Value, &Value)| match (sent.as_str(), own.as_str()) {
        (Some(sent), Some(own)) => match (serde_json::from_str(sent), serde_json::from_str(own)) {
            (Ok(sent), Ok(own)) => has_clipped_texts(&sent, &own),
            (_, Err(_)) => is_clipped_content(&sent.into(), &own.into()),
            _ => false,
        },
        _ => sent == own,
    };
    sent == own
        && calls_sent.len() == calls_own.len()
        && calls_sent.iter().zip(&calls_own).all(is_same)
}

/// Whether two values differ only in texts that are clipped.
fn has_clipped_texts(sent: &Value, own: &Value) -> bool {
    match (sent, own) {
        (Value::String(_), Value::String(_)) => sent == own || is_clipped_content(sent, own),
        (Value::Array(sent), Value::Array(own)) => {
            sent.len() == own.len()
                && sent.iter().zip(own).all(|(sent, own)| has_clipped_texts(sent, own))
        }
        (Value::Object(sent), Value::Object(own)) => {
            sent.len() == own.len()
                && own.iter().all(|(key, own)| {
                    sent.get(key).is_some_and(|sent| has_clipped_texts(sent, own))
                })
        }
        _ => sent == own,
    }
}

/// Whether `sent` is the message `raw` with no change except clipped texts.
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

/// Whether `sent` has only parts of `own`, in order: a head, a marker with the correct number of bytes left
/// out, and pieces behind it with a mark in each further gap.
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
        let behind = own.strip_prefix(head).and_then(|rest| pieces_bytes(rest, tail));
        *whole == own.len() && behind.is_some_and(|behind| head.len() + left_out + behind == *whole)
    })
}

/// The bytes of the pieces in `sent` if they stand in `rest` in order, and the last at its end.
fn pieces_bytes(rest: &str, sent: &str) -> Option<usize> {
    if rest.ends_with(sent) {
        return Some(sent.len());
    }
    let gap = "\n…\n";
    sent.match_indices(gap).find_map(|(at, _)| {
        let place = rest.find(&sent[..at])?;
        Some(at + pieces_bytes(&rest[place + at..], &sent[at + gap.len()..])?)
    })
}
