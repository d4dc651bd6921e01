//! Receipts: what became of each message of a request, by digest. A receipt is derived from the bytes
//! received and the bytes sent alone, so that anybody can make it again, and [`check`] it against a
//! transcript without the bytes sent. It holds no content. Pure.
//!
//! `align` finds each message among those sent, `parts` compares what they hold besides text, `excerpts`
//! finds the excerpts of notes in their messages.

mod align;
mod check;
mod excerpts;
mod parts;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::message::reading::Reading;
use super::source::read_one;
use super::survival::{self, Rule};
use crate::wire::recall_tool::without_recalls;
use crate::wire::{Protocol, Role};
use align::Alignment;
use excerpts::FoundExcerpts;

pub use check::{Checked, LostRule, Problem, ProblemKind, check};

/// Version of the form of receipts.
pub const VERSION: u32 = 1;
/// Bytes of a BLAKE3 hash that make a digest.
const DIGEST_BYTES: usize = 16;

/// Receipt of a request: the treatment of each message. The names of its members are part of weir's API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub version: u32,
    /// Protocol of the request.
    pub protocol: String,
    /// Messages as received, in order.
    pub messages: Vec<Entry>,
    /// Notes as sent, in order.
    pub notes: Vec<NoteEntry>,
    /// Rules of messages that are not sent whole and that no note has, each by message and place.
    pub lost_rules: Vec<(usize, usize, usize)>,
    /// Number of rules that notes have.
    pub noted_rules: usize,
    /// Messages as sent that are neither received ones, notes nor recalls, by index among those sent.
    pub added: Vec<usize>,
}

/// Message as received, with its fate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub fate: Fate,
    /// Whether it is a recall that weir has put into the conversation: the client does not have it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recall: bool,
    /// Digest of the message as received.
    pub digest: String,
    /// Its excerpts in notes: start and end in its decoded text, and the digest of the text as sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excerpts: Vec<(usize, usize, String)>,
}

/// Note as sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteEntry {
    pub digest: String,
    pub bytes: usize,
    /// Messages that it says it covers.
    pub covers: usize,
    /// Those of them, from the front, that a model's summary covers.
    pub summarised: usize,
    /// Lines that are in no message that the note names.
    pub unknown_lines: usize,
}

/// How a message was treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Sent whole; a note may stand in the same message.
    Kept,
    /// Sent with its content replaced by a placeholder.
    Masked,
    /// Sent with parts of its texts or arguments left out.
    Clipped,
    /// Not sent; a note has excerpts of it.
    Excerpted,
    /// Not sent; a model's summary covers it.
    Summarised,
    /// Not sent.
    Gone,
}

impl Fate {
    /// Returns the name in receipts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Masked => "masked",
            Self::Clipped => "clipped",
            Self::Excerpted => "excerpted",
            Self::Summarised => "summarised",
            Self::Gone => "gone",
        }
    }
}

/// For members that are left out if they are not set.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Receipt {
    /// Makes the receipt of a request from its messages as received and as sent.
    pub fn of(protocol: Protocol, received: &[&str], sent: &[&str]) -> Self {
        Self::with_unknown_lines(protocol, received, sent).0
    }

    /// Makes the receipt, and lists the lines of notes that are in no message, shortened.
    pub fn with_unknown_lines(
        protocol: Protocol,
        received: &[&str],
        sent: &[&str],
    ) -> (Self, Vec<String>) {
        let own: Vec<Option<Cow<'_, str>>> =
            received.iter().map(|raw| Some(Cow::Borrowed(*raw))).collect();
        Self::made_of(protocol, received, (received, &own), sent)
    }

    /// Makes the receipt of a request into which weir has put recalls, `received` with them and `client`
    /// without: notes count them. Their entries say so.
    pub fn with_recalls(
        protocol: Protocol,
        client: &[&str],
        received: &[&str],
        sent: &[&str],
    ) -> Self {
        let mut own = without_recalls(protocol, client, received);
        if own.iter().flatten().count() == client.len() {
            // Their bytes are those that the client has.
            for (own, raw) in own.iter_mut().flatten().zip(client) {
                *own = Cow::Borrowed(*raw);
            }
        }
        Self::made_of(protocol, client, (received, &own), sent).0
    }

    /// Makes a receipt from the messages of the client, those with recalls, the same without the recalls,
    /// and those sent.
    fn made_of(
        protocol: Protocol,
        client: &[&str],
        (received, own): (&[&str], &[Option<Cow<'_, str>>]),
        sent: &[&str],
    ) -> (Self, Vec<String>) {
        let read = |raw: &str| Arc::new(read_one(protocol, raw));
        let all = || own.iter().zip(received).map(|(own, raw)| own.as_deref().unwrap_or(raw));
        let readings: Vec<Arc<Reading>> = all().map(read).collect();
        let less = without_recalls(protocol, client, sent);
        let recalls: HashSet<&str> =
            less.iter().zip(sent).filter(|(own, _)| own.is_none()).map(|(_, raw)| *raw).collect();
        let read_sent: Vec<Option<Arc<Reading>>> =
            less.iter().map(|raw| raw.as_deref().map(read)).collect();
        let Alignment { mut fates, notes: texts, added } = align::align(&readings, &read_sent);
        let (wanted, less): (Vec<&str>, Vec<&str>) =
            (all().collect(), less.iter().flatten().map(AsRef::as_ref).collect());
        parts::check(protocol, &wanted, &less, &mut fates);
        for ((own, raw), fate) in own.iter().zip(received).zip(&mut fates) {
            if own.is_none() && recalls.contains(raw) {
                *fate = Fate::Kept;
            }
        }
        let mut found = FoundExcerpts::new(received.len());
        let notes: Vec<NoteEntry> = texts.iter().map(|text| found.take(text, &readings)).collect();
        summarise(&notes, &mut fates, &found);
        // A check does not have the texts of recalls.
        let nothing = Arc::new(Reading::of_text(Role::Other, ""));
        let ruled = own.iter().zip(&readings).map(|(own, reading)| match own {
            Some(_) => Arc::clone(reading),
            None => Arc::clone(&nothing),
        });
        let (noted_rules, lost_rules) = rules(&ruled.collect::<Vec<_>>(), &fates, &found);
        let entry = |(message, raw): (usize, &str)| Entry {
            fate: fates[message],
            recall: own[message].is_none(),
            digest: digest(&protocol.identity(raw)),
            excerpts: found.of(message).to_vec(),
        };
        let messages = all().enumerate().map(entry).collect();
        let protocol = protocol.name().to_owned();
        let receipt =
            Self { version: VERSION, protocol, messages, notes, lost_rules, noted_rules, added };
        (receipt, found.into_unknown_lines())
    }

    /// Returns the number of messages with this fate.
    pub fn count(&self, fate: Fate) -> usize {
        self.messages.iter().filter(|entry| entry.fate == fate).count()
    }
}

/// Sets the fates of messages that notes cover: excerpted, summarised or gone.
fn summarise(notes: &[NoteEntry], fates: &mut [Fate], found: &FoundExcerpts) {
    let gone: Vec<usize> =
        (0..fates.len()).filter(|message| fates[*message] == Fate::Gone).collect();
    let mut from = 0;
    for note in notes {
        for message in gone.iter().skip(from).take(note.summarised.min(note.covers)) {
            fates[*message] = Fate::Summarised;
        }
        from = from.saturating_add(note.covers);
    }
    for message in gone {
        if !found.of(message).is_empty() {
            fates[message] = Fate::Excerpted;
        }
    }
}

/// Returns the number of rules that notes have, and the others by place.
fn rules(
    readings: &[Arc<Reading>],
    fates: &[Fate],
    found: &FoundExcerpts,
) -> (usize, Vec<(usize, usize, usize)>) {
    let is_kept = |message: &usize| fates[*message] == Fate::Kept;
    let (kept, gone): (Vec<usize>, Vec<usize>) = (0..fates.len()).partition(is_kept);
    let spans = |message: usize| -> Vec<(usize, usize)> {
        found.of(message).iter().map(|(start, end, _)| (*start, *end)).collect()
    };
    let all = survival::rules(readings, &gone, &kept);
    let lost = lost(readings, &all, spans);
    (all.len() - lost.len(), lost)
}

/// Returns the rules that are in no excerpt of any message, by place.
fn lost(
    readings: &[Arc<Reading>],
    rules: &[Rule],
    spans: impl Fn(usize) -> Vec<(usize, usize)>,
) -> Vec<(usize, usize, usize)> {
    let mut said = HashSet::new();
    for (message, reading) in readings.iter().enumerate() {
        let own = spans(message);
        // Both lists are in order.
        let mut own = own.iter().peekable();
        for unit in &reading.units {
            while own.next_if(|(_, end)| *end < unit.span.end).is_some() {}
            if own.peek().is_some_and(|(start, _)| *start <= unit.span.start) {
                said.insert(survival::key(&reading.text[unit.span.clone()]));
            }
        }
    }
    let place = |rule: &Rule| {
        let span = &readings[rule.message].units[rule.unit].span;
        (rule.message, span.start, span.end)
    };
    rules
        .iter()
        .map(place)
        .filter(|(message, start, end)| {
            !said.contains(&survival::key(&readings[*message].text[*start..*end]))
        })
        .collect()
}

/// Returns the digest of a text.
fn digest(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    hash[..2 * DIGEST_BYTES].to_owned()
}
