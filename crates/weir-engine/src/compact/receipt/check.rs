//! Check of a receipt against a transcript: digests of messages, excerpts word for word, rules. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;

use super::{Entry, Fate, Receipt, VERSION, digest, lost};
use crate::compact::message::reading::Reading;
use crate::compact::source::read_one;
use crate::compact::survival;
use crate::wire::Protocol;

/// Maximum number of characters shown of a lost rule.
const SHOWN_CHARACTERS: usize = 200;

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub messages: usize,
    pub kept: usize,
    pub masked: usize,
    pub clipped: usize,
    pub excerpted: usize,
    /// Number of excerpts.
    pub excerpts: usize,
    pub summarised: usize,
    /// Number of messages that were not sent and that no note has.
    pub gone: usize,
    /// Number of rules of messages that were not sent whole: those that notes have, and those that are
    /// lost. `None` if rules were not checked, since something else contradicts.
    pub rules: Option<usize>,
    pub lost_rules: Option<usize>,
    pub problems: Vec<Problem>,
    /// Lost rules that the receipt lists as lost.
    #[serde(skip)]
    pub admitted: Vec<Problem>,
}

/// Contradiction between a receipt and a transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub kind: ProblemKind,
    /// Message that it is about, by number in the transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<usize>,
    /// Lost rule that it is about.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub rule: Option<LostRule>,
}

/// Rule that no sent message and no note has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostRule {
    pub digest: String,
    /// Its text in the transcript, shortened.
    pub text: String,
}

impl Problem {
    /// Creates a problem of a message, or of the receipt as a whole.
    pub fn of(kind: ProblemKind, message: Option<usize>) -> Self {
        Self { kind, message, rule: None }
    }
}

/// Kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The receipt has another version or protocol.
    Unsupported,
    /// The transcript has fewer messages.
    Missing,
    /// The message has another digest.
    DigestMismatch,
    /// An excerpt is not word for word in the message.
    NotVerbatim,
    /// A line of a note is in no message that the note names.
    UnknownLines,
    /// A rule is lost, and the receipt does not list it.
    UnlistedLostRule,
    /// A rule is lost, as the receipt says. A problem only if rules may not be lost.
    LostRule,
    /// The last message is not sent.
    LastLeftOut,
    /// The receipt contradicts itself, or is about no message.
    Inconsistent,
}

impl ProblemKind {
    /// Returns the problem in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unsupported => "the receipt has another version or protocol",
            Self::Missing => "the transcript ends before this message",
            Self::DigestMismatch => {
                "the message is not the one of the receipt (was the file re-formatted?)"
            }
            Self::NotVerbatim => "an excerpt is not word for word in the message",
            Self::UnknownLines => "a note has lines that are in no message it names",
            Self::UnlistedLostRule => "a rule was lost, and the receipt does not list it",
            Self::LostRule => "a rule was lost",
            Self::LastLeftOut => "the last message was not sent",
            Self::Inconsistent => "the receipt contradicts itself, or is about no message",
        }
    }
}

/// Checks a receipt against the messages of a transcript, which may go on after it.
pub fn check(receipt: &Receipt, protocol: Protocol, messages: &[&str]) -> Checked {
    let mut checked = Checked {
        messages: receipt.messages.len(),
        kept: receipt.count(Fate::Kept),
        masked: receipt.count(Fate::Masked),
        clipped: receipt.count(Fate::Clipped),
        excerpted: receipt.count(Fate::Excerpted),
        excerpts: receipt.messages.iter().map(|entry| entry.excerpts.len()).sum(),
        summarised: receipt.count(Fate::Summarised),
        gone: receipt.count(Fate::Gone),
        ..Checked::default()
    };
    let mut report = |kind, message| checked.problems.push(Problem::of(kind, message));
    if receipt.version != VERSION || receipt.protocol != protocol.name() {
        report(ProblemKind::Unsupported, None);
        return checked;
    }
    // The client does not have weir's recalls, which notes count.
    let own = receipt.messages.iter().filter(|entry| entry.recall).count();
    if messages.len() < receipt.messages.len() - own {
        report(ProblemKind::Missing, Some(messages.len()));
        return checked;
    }
    let mut transcript = messages.iter().enumerate();
    let next = |entry: &Entry| if entry.recall { None } else { transcript.next() };
    let places: Vec<Option<(usize, &&str)>> = receipt.messages.iter().map(next).collect();
    let read = |place: &Option<(usize, &&str)>| {
        Arc::new(read_one(protocol, place.map_or("null", |(_, raw)| *raw)))
    };
    let readings: Vec<Arc<Reading>> = places.iter().map(read).collect();
    for (number, entry) in receipt.messages.iter().enumerate() {
        let Some((message, raw)) = places[number] else { continue };
        if digest(&protocol.identity(raw)) != entry.digest {
            report(ProblemKind::DigestMismatch, Some(message));
            continue;
        }
        let text = &readings[number].text;
        let is_verbatim = |(start, end, wanted): &(usize, usize, String)| {
            start < end && text.get(*start..*end).is_some_and(|said| digest(said) == *wanted)
        };
        if !entry.excerpts.iter().all(is_verbatim) {
            report(ProblemKind::NotVerbatim, Some(message));
        }
    }
    if !is_consistent(receipt) {
        report(ProblemKind::Inconsistent, None);
    }
    // Results may be shortened there, and nothing else.
    let is_sent = |fate| matches!(fate, Fate::Kept | Fate::Masked | Fate::Clipped);
    if receipt.messages.last().is_some_and(|last| !is_sent(last.fate)) {
        let last = places.last().copied().flatten();
        report(ProblemKind::LastLeftOut, last.map(|(message, _)| message));
    }
    if receipt.notes.iter().any(|note| note.unknown_lines > 0) {
        report(ProblemKind::UnknownLines, None);
    }
    if checked.problems.is_empty() {
        let number = |entry: usize| places[entry].map(|(message, _)| message);
        check_rules(receipt, &readings, number, &mut checked);
    }
    checked
}

/// Whether the members of a receipt agree with each other: an excerpt needs a note, and an excerpted message
/// an excerpt.
fn is_consistent(receipt: &Receipt) -> bool {
    let Receipt { messages, notes, .. } = receipt;
    let agrees = messages.iter().all(|entry| match entry.fate {
        Fate::Excerpted => !entry.excerpts.is_empty(),
        Fate::Summarised | Fate::Gone => entry.excerpts.is_empty(),
        Fate::Kept | Fate::Masked | Fate::Clipped => true,
    });
    let has_excerpts = messages.iter().any(|entry| !entry.excerpts.is_empty());
    let summarised = notes.iter().fold(0_usize, |sum, note| sum.saturating_add(note.summarised));
    let has_notes = !has_excerpts || !notes.is_empty();
    agrees && has_notes && !messages.is_empty() && receipt.count(Fate::Summarised) <= summarised
}

/// Finds the rules of messages that were not sent whole again, and those that no excerpt has. `number` returns
/// the number in the transcript of a message of the receipt.
fn check_rules(
    receipt: &Receipt,
    readings: &[Arc<Reading>],
    number: impl Fn(usize) -> Option<usize>,
    checked: &mut Checked,
) {
    let is_kept = |message: &usize| receipt.messages[*message].fate == Fate::Kept;
    let (kept, gone): (Vec<usize>, Vec<usize>) = (0..readings.len()).partition(is_kept);
    let rules = survival::rules(readings, &gone, &kept);
    let spans = |message: usize| {
        let excerpts = &receipt.messages[message].excerpts;
        excerpts.iter().map(|(start, end, _)| (*start, *end)).collect()
    };
    let lost = lost(readings, &rules, spans);
    checked.rules = Some(rules.len() - lost.len());
    checked.lost_rules = Some(lost.len());
    let listed: HashSet<&(usize, usize, usize)> = receipt.lost_rules.iter().collect();
    for place in lost {
        let (message, start, end) = place;
        let said = &readings[message].text[start..end];
        let text = said.chars().take(SHOWN_CHARACTERS).collect();
        let rule = Some(LostRule { digest: digest(said), text });
        let (list, kind) = match listed.contains(&place) {
            true => (&mut checked.admitted, ProblemKind::LostRule),
            false => (&mut checked.problems, ProblemKind::UnlistedLostRule),
        };
        list.push(Problem { kind, message: number(message), rule });
    }
}
