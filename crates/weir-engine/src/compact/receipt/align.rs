//! Alignment of the messages sent with those received, in order: equal ones, ones with a note in their
//! text, placeholders and clipped ones. The rest are notes, or were added. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Fate;
use crate::compact::excerpt::weight::Seeded;
use crate::compact::message::placeholder::is_placeholder;
use crate::compact::message::reading::{BlockKind, Reading};
use crate::wire::Role;

/// Beginning of weir's own lines.
const MARK: &str = "[weir: ";
/// Maximum number of texts in a message that are looked at one by one.
const MOST_BLOCKS: usize = 16;

/// Fates of the messages received, and the notes among those sent.
pub(super) struct Alignment {
    pub(super) fates: Vec<Fate>,
    /// Texts of notes, in order.
    pub(super) notes: Vec<String>,
    /// Messages sent that are neither.
    pub(super) added: Vec<usize>,
}

/// Finds each message sent among those received; `None` for one that is known already.
pub(super) fn align(received: &[Arc<Reading>], sent: &[Option<Arc<Reading>>]) -> Alignment {
    let mut alignment =
        Alignment { fates: vec![Fate::Gone; received.len()], notes: Vec::new(), added: Vec::new() };
    let mut places: HashMap<u64, Vec<usize>, Seeded> = HashMap::default();
    for (message, reading) in received.iter().enumerate().rev() {
        places.entry(key(reading)).or_default().push(message);
    }
    // First message that none of those sent so far follows.
    let mut next = 0;
    let looked_for = sent.iter().enumerate();
    for (index, own) in looked_for.filter_map(|(index, own)| Some((index, own.as_ref()?))) {
        let same = places.get_mut(&key(own)).and_then(|list| {
            while list.pop_if(|message| *message < next).is_some() {}
            list.pop()
        });
        if let Some(message) = same {
            alignment.fates[message] = Fate::Kept;
            next = message + 1;
            continue;
        }
        if let Some(pieces) = pieces(received, next, own) {
            for piece in pieces {
                match piece {
                    TextPiece::Note(note) => alignment.notes.push(note),
                    TextPiece::Message(message, fate) => {
                        alignment.fates[message] = fate;
                        next = message + 1;
                    }
                }
            }
            continue;
        }
        if let Some((message, fate, note)) = changed(received, next, own) {
            alignment.fates[message] = fate;
            alignment.notes.extend(note);
            next = message + 1;
            continue;
        }
        match own.text.trim_start().starts_with(MARK) && own.role == Role::User {
            true => alignment.notes.push(own.text.clone()),
            false => alignment.added.push(index),
        }
    }
    alignment
}

/// Part of a user's message as sent.
enum TextPiece {
    Note(String),
    Message(usize, Fate),
}

/// Splits a user's message, as sent, into several received ones and notes: some protocols and models take no
/// two of them in a row. `None` if it is no such message.
fn pieces(received: &[Arc<Reading>], next: usize, own: &Reading) -> Option<Vec<TextPiece>> {
    if own.role != Role::User {
        return None;
    }
    let later = || received.iter().enumerate().skip(next);
    let texts: Vec<&str> =
        own.blocks.iter().take(MOST_BLOCKS).map(|block| &own.text[block.span.clone()]).collect();
    let unmasked: Vec<&str> = texts.iter().copied().filter(|text| !is_placeholder(text)).collect();
    if unmasked.len() < texts.len() {
        let rest = unmasked.join("\n");
        let is_own = |other: &Reading| other.text == rest || (rest.is_empty() && other.is_media);
        let (message, _) = later().find(|(_, other)| is_own(other))?;
        return Some(vec![TextPiece::Message(message, Fate::Masked)]);
    }
    if let [text] = texts[..] {
        let mut pairs = later().zip(later().skip(1));
        let ((first, _), (second, _)) = pairs.find(|((_, first), (_, second))| {
            let rest = text.strip_prefix(first.text.as_str());
            rest.and_then(|rest| rest.strip_prefix("\n\n")) == Some(second.text.as_str())
        })?;
        let kept = [first, second].map(|message| TextPiece::Message(message, Fate::Kept));
        return Some(kept.into());
    }
    let (mut pieces, mut from, mut place) = (Vec::new(), next, 0);
    while place < texts.len() {
        let whole = (place + 1..=texts.len()).rev().find_map(|end| {
            let text = texts[place..end].join("\n");
            let mut after = received.iter().enumerate().skip(from);
            after.find(|(_, other)| other.text == text).map(|(message, _)| (message, end))
        });
        if let Some((message, end)) = whole {
            pieces.push(TextPiece::Message(message, Fate::Kept));
            (from, place) = (message + 1, end);
        } else if texts[place].trim_start().starts_with(MARK) {
            pieces.push(TextPiece::Note(texts[place].to_owned()));
            place += 1;
        } else {
            return None;
        }
    }
    Some(pieces)
}

/// Finds the message, from `next` on, that `own` is a changed form of; with its fate, and the note in it.
fn changed(
    received: &[Arc<Reading>],
    next: usize,
    own: &Reading,
) -> Option<(usize, Fate, Option<String>)> {
    if !own.text.contains("[weir: ") && own.role != Role::Assistant {
        return None;
    }
    let later =
        || received.iter().enumerate().skip(next).filter(|(_, other)| other.role == own.role);
    let holding =
        later().filter(|(_, other)| !other.text.is_empty()).find_map(|(message, other)| {
            let behind = own.text.strip_prefix(other.text.as_str());
            let behind = behind.filter(|note| note.starts_with('\n'));
            let before = own.text.strip_suffix(other.text.as_str());
            let note = behind.or(before.filter(|note| note.ends_with("\n\n")));
            let note = note.filter(|note| note.trim_start().starts_with(MARK))?;
            Some((message, Fate::Kept, Some(note.trim().to_owned())))
        });
    if holding.is_some() || own.role == Role::User {
        return holding;
    }
    let fate = match own.text.lines().all(is_placeholder) {
        true => Fate::Masked,
        false => Fate::Clipped,
    };
    let is_same = |other: &Reading| match own.role {
        Role::Tool => own.answers.is_some() && own.answers == other.answers,
        _ => names(own).next().is_some() && names(own).eq(names(other)),
    };
    later().find(|(_, other)| is_same(other)).map(|(message, _)| (message, fate, None))
}

/// Returns the IDs of a message's calls.
fn names(reading: &Reading) -> impl Iterator<Item = &str> {
    reading.blocks.iter().filter_map(|block| match &block.kind {
        BlockKind::Call { id, .. } => Some(id.as_str()),
        BlockKind::Text | BlockKind::Output => None,
    })
}

/// Returns a key that equal messages share, with the ID of an answered call. A system message may be sent
/// as a user's.
fn key(reading: &Reading) -> u64 {
    let speaker = match reading.role {
        Role::System | Role::User => 0,
        Role::Assistant => 1,
        Role::Tool => 2,
        Role::Other => 3,
    };
    let mut bytes = reading.text.clone().into_bytes();
    bytes.extend([0, speaker]);
    bytes.extend_from_slice(reading.answers.as_deref().unwrap_or_default().as_bytes());
    for name in names(reading) {
        bytes.push(0);
        bytes.extend_from_slice(name.as_bytes());
    }
    xxh3_64(&bytes)
}
