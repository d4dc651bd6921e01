//! Conversations as agents and gateways leave them on the disk: what is read of one, and a file for each
//! program that writes them. Reads no files.

use std::borrow::Cow;

pub(crate) use weir_engine::wire::json::quoted;
use weir_engine::wire::usage::{Meter, Metered, Usage};
use weir_engine::wire::{Protocol, json};

mod chat;
pub(crate) mod claude_code;
pub(crate) mod codex;
pub(crate) mod gemini;
pub(crate) mod langfuse;
pub(crate) mod logs;
pub(crate) mod opencode;
pub(crate) mod otel;
pub(crate) mod pi;

/// Conversation of a text, as a request body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    pub id: String,
    pub protocol: Protocol,
    pub body: String,
    /// Whether the whole was one request. A conversation may go on behind its last one.
    pub is_request: bool,
    /// Folder that the agent worked in.
    pub project: Option<String>,
    /// Requests in order; the only one if the whole was one request. Empty if the text says nothing about
    /// them.
    pub exchanges: Vec<RecordedExchange>,
}

/// Returns the name of a part of a session: those after the first one follow compactions by its agent.
fn part_name(session: &str, number: usize) -> String {
    match number {
        0 => session.to_owned(),
        _ => format!("{session}, after compaction {number}"),
    }
}

/// Returns a value as the JSON text of a string: a string as it is, others as their text.
fn as_text(raw: &str) -> String {
    if raw.starts_with('"') { raw.to_owned() } else { quoted(raw) }
}

impl Recorded {
    /// Says where it comes from, and why it cannot be read.
    pub(crate) fn refusal(&self, error: &str) -> String {
        let project = self.project.as_deref().map(|own| format!("{own}: ")).unwrap_or_default();
        format!("{project}{}: {error}", self.id)
    }
}

/// Request of a conversation and its answer, as far as the text knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedExchange {
    /// Number of the body's messages or items that were sent: those before the answer.
    pub sent: usize,
    /// When it was sent, in milliseconds since 1970.
    pub at_ms: Option<u64>,
    pub model: Option<String>,
    /// What the provider reported; its usage is without `cached_tokens` if nobody knows what was cached.
    pub reported: Metered,
    /// Name of the answer among others with the same text. A copy in another file has it, too.
    pub id: Option<String>,
    /// Whether nobody bills it: it failed, or a gateway answered from what it had kept.
    pub is_free: bool,
}

impl RecordedExchange {
    /// Returns the size of the prompt, if that was reported.
    pub(crate) fn prompt_tokens(&self) -> Option<u64> {
        self.reported.usage?.prompt_tokens
    }
}

/// Requests of a conversation, as its lines show them one by one.
#[derive(Debug, Default)]
struct Exchanges {
    made: Vec<RecordedExchange>,
    /// Whether the last line is not the assistant's: an answer to it begins.
    is_asked: bool,
    asked_at_ms: Option<u64>,
}

impl Exchanges {
    /// Notes a message of a user or a tool, which a request follows at once.
    fn ask(&mut self, at_ms: Option<u64>) {
        (self.is_asked, self.asked_at_ms) = (true, at_ms.or(self.asked_at_ms));
    }

    /// Notes that an answer begins, to a request of the first `sent` messages.
    fn answer(&mut self, sent: usize, at_ms: Option<u64>) -> &mut RecordedExchange {
        let asked_at_ms = self.asked_at_ms.filter(|_| self.is_asked);
        self.is_asked = false;
        let at_ms = asked_at_ms.or(at_ms);
        self.made.push_mut(RecordedExchange { sent, at_ms, ..RecordedExchange::default() })
    }
}

/// Returns what an answer reports, given as JSON or as the events of a stream. What it does not name as
/// cached was not.
fn reported(answer: &str) -> Metered {
    let begins = |word: &&str| answer.trim_start().starts_with(word);
    let is_stream = ["data:", "event:", "id:", ":"].iter().any(begins);
    let mut meter =
        Meter::new(Some(if is_stream { "text/event-stream" } else { "application/json" }));
    meter.feed(answer.as_bytes());
    let metered = meter.finish();
    let usage = metered.usage.filter(|usage| usage.prompt_tokens.is_some());
    let usage = usage.map(|own| Usage { cached_tokens: own.cached_tokens.or(Some(0)), ..own });
    Metered { usage, ..metered }
}

/// Returns what a member named `usage` reports.
fn usage_in(raw: Option<&str>) -> Metered {
    raw.map(|raw| reported(&format!(r#"{{"usage":{raw}}}"#))).unwrap_or_default()
}

/// LineMembers of a line by their names, without those that are null.
pub(crate) struct LineMembers<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> LineMembers<'a> {
    /// Returns those of a valid JSON text; `None` if it is no object.
    pub(crate) fn of(raw: &'a str) -> Option<Self> {
        json::members(raw).map(Self)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, raw)| *raw).filter(|raw| *raw != "null")
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        json::string(self.get(name)?).map(Into::into)
    }

    fn at_ms(&self) -> Option<u64> {
        time_ms(self.get("timestamp")?)
    }
}

/// Parses a time, in milliseconds since 1970: a text such as `2026-01-31T08:30:00Z`, or a number of
/// seconds or milliseconds.
fn time_ms(raw: &str) -> Option<u64> {
    /// Seconds above this would be in the year 5138; such a number counts milliseconds.
    const MOST_SECONDS: f64 = 1e11;
    let text = raw.trim_matches('"').trim();
    let from_text = || {
        // Databases write a blank for the T, and leave out the zone, which is UTC.
        let text = text.replacen(' ', "T", 1);
        let time = text.parse::<jiff::Timestamp>().or_else(|_| format!("{text}Z").parse());
        u64::try_from(time.ok()?.as_millisecond()).ok()
    };
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=1e15).contains(number));
    match number {
        Some(seconds) if seconds < MOST_SECONDS => Some((seconds * 1000.0) as u64),
        Some(milliseconds) => Some(milliseconds as u64),
        None => from_text(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_read_as_programs_write_them() {
        for (raw, expected) in [
            (r#""1970-01-01T00:01:00.250Z""#, Some(60_250)),
            (r#""1970-01-01 00:01:00.25""#, Some(60_250)),
            (r#""1970-01-01T01:01:00+01:00""#, Some(60_000)),
            ("1767225600.5", Some(1_767_225_600_500)),
            ("1767225600500", Some(1_767_225_600_500)),
            ("-1", None),
            ("1e300", None),
            ("null", None),
            (r#""yesterday""#, None),
        ] {
            assert_eq!(super::time_ms(raw), expected, "{raw}");
        }
    }
}
