//! Conversations as agents and gateways leave them on the disk: what is read of one, and a file for each
//! program that writes them. Reads no files.

use weir_engine::wire::Protocol;
use weir_engine::wire::usage::Usage;

pub(crate) mod claude_code;
pub(crate) mod codex;
pub(crate) mod logs;
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
    /// Requests in order, one for each answer to a user or a tool; the only one if the whole was one
    /// request. Empty if the text says nothing about them.
    pub exchanges: Vec<RecordedExchange>,
}

/// Request of a conversation and its answer, as far as the text knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedExchange {
    /// When it was sent, in milliseconds since 1970.
    pub at_ms: Option<u64>,
    pub model: Option<String>,
    /// Usage as the provider reported it; without `cached_tokens` if nobody knows what was cached.
    pub usage: Option<Usage>,
    /// Usage of earlier requests, whose answers stand in the same message.
    pub earlier: Vec<Usage>,
}

impl RecordedExchange {
    /// Returns one exchange for each request.
    pub(crate) fn each(&self) -> Vec<Self> {
        let usages = self.earlier.iter().copied().map(Some).chain([self.usage]);
        let each = usages.map(|usage| Self {
            at_ms: self.at_ms,
            model: self.model.clone(),
            usage,
            earlier: Vec::new(),
        });
        each.collect()
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

    /// Notes that the answer to another request follows, in the same message.
    fn next(&mut self) {
        if let Some(last) = self.made.last_mut() {
            last.earlier.extend(last.usage.take());
        }
    }

    /// Notes a part of an answer, the first to a new request if `is_new`. Later parts report more of its usage.
    fn answer(
        &mut self,
        is_new: bool,
        at_ms: Option<u64>,
        model: Option<&str>,
        usage: Option<Usage>,
    ) {
        if is_new {
            let at_ms = self.asked_at_ms.or(at_ms);
            self.made.push(RecordedExchange { at_ms, ..RecordedExchange::default() });
        }
        self.is_asked = false;
        if let Some(last) = self.made.last_mut() {
            last.model = model.map(str::to_owned).or(last.model.take());
            last.usage = usage.or(last.usage);
        }
    }
}

/// Returns a text as a JSON string.
fn quoted(text: &str) -> String {
    let mut raw = String::from('"');
    weir_engine::wire::json::escape_into(text, &mut raw);
    raw.push('"');
    raw
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
