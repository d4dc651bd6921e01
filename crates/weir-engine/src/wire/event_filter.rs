//! Filter of a stream of server-sent events, and the one that removes usage from it. If weir asked for
//! usage and the caller did not, the caller does not get the event that this adds, nor the `null` in
//! all others. Usage that the provider sends unasked stays, as does every other byte, wherever the
//! stream is split.
//!
//! Bytes are held back only from the first non-comment line of an event to its end, up to a limit.
//! A longer event passes unchanged, as does anything that is not JSON.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{self, Key};
use super::sse::line_end;

/// Maximum size of an event that is examined, line ends included.
pub const MAX_EVENT_BYTES: usize = 1 << 20;
/// Capacity for held bytes that is kept from one event to the next.
const KEPT_BYTES: usize = 64 << 10;

/// Members that a chunk has in addition to its content. A chunk without choices that has only these
/// brings usage and nothing else, as the one that `include_usage` adds (OpenAI's reference of chat
/// completions). Others do not come from that: llama.cpp puts its `timings` into the last chunk,
/// whichever that is.
const ENVELOPE: [&str; 8] = [
    "id",
    "object",
    "created",
    "model",
    "system_fingerprint",
    "service_tier",
    "provider",
    "obfuscation",
];

/// Decides on the events of a stream, in order.
pub trait Judge {
    /// Decides on one event, with its line ends. `at_start` holds for the first of the stream, which may
    /// begin with a byte order mark.
    fn judge(&mut self, event: &[u8], at_start: bool) -> Verdict;
}

/// Removes usage from the events of chat completions.
#[derive(Debug, Clone, Copy)]
pub struct WithoutUsage;

impl Judge for WithoutUsage {
    fn judge(&mut self, event: &[u8], at_start: bool) -> Verdict {
        judge(event, at_start)
    }
}

/// Filter of one stream. Time is linear in the bytes fed.
#[derive(Debug)]
pub struct Filter<J = WithoutUsage> {
    judge: J,
    max_event_bytes: usize,
    /// The event so far, if it began in an earlier chunk.
    held: Vec<u8>,
    state: State,
    /// Whether the current line is empty so far.
    line_is_empty: bool,
    /// Whether the last byte was a carriage return, so that a line feed belongs to it.
    after_return: bool,
    /// Whether that carriage return was removed with its event.
    return_is_gone: bool,
    /// Whether the first line is still to come: it may begin with a byte order mark.
    at_start: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between events, at the start of a line.
    Between,
    /// In a comment, or a blank line, between events.
    Comment,
    /// In an event.
    Event,
    /// In an event that is too long to be held.
    Overlong,
}

impl Filter {
    /// Creates a filter that removes usage from events of at most `max_event_bytes`.
    pub fn new(max_event_bytes: usize) -> Self {
        Self::with(WithoutUsage, max_event_bytes)
    }
}

impl<J: Judge> Filter<J> {
    /// Creates a filter that examines events of at most `max_event_bytes`.
    pub fn with(judge: J, max_event_bytes: usize) -> Self {
        Self {
            judge,
            max_event_bytes,
            held: Vec::new(),
            state: State::Between,
            line_is_empty: true,
            after_return: false,
            return_is_gone: false,
            at_start: true,
        }
    }

    /// Takes the next bytes of the stream and returns those to forward. They are borrowed if they
    /// are an unchanged part of `bytes`.
    pub fn feed<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let mut out = Out { bytes, passed: 0..0, made: None };
        // Everything before this is done.
        let mut start = 0;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                at += 1;
                if self.state == State::Between {
                    if !self.return_is_gone {
                        out.pass(start..at);
                    }
                    start = at;
                }
                continue;
            }
            if self.state == State::Between {
                let is_event = !matches!(byte, b':' | b'\r' | b'\n');
                self.state = if is_event { State::Event } else { State::Comment };
            }
            let found = line_end(&bytes[at..]);
            let is_empty = self.line_is_empty && found == Some(0);
            self.line_is_empty = found.is_some();
            let Some(length) = found else { break };
            at += length + 1;
            self.after_return = bytes[at - 1] == b'\r';
            if self.state == State::Comment || is_empty {
                self.end(start..at, &mut out);
                start = at;
            }
        }
        self.rest(start..bytes.len(), &mut out);
        out.finish()
    }

    /// Ends the stream and returns the bytes held back. An event without its closing blank line
    /// still counts, since providers omit it.
    pub fn finish(self) -> Vec<u8> {
        self.into_judge().0
    }

    /// Like [`Self::finish`]; returns the judge, too.
    pub fn into_judge(mut self) -> (Vec<u8>, J) {
        if self.held.is_empty() {
            return (self.held, self.judge);
        }
        let last = match self.judge.judge(&self.held, self.at_start) {
            Verdict::Keep => self.held,
            Verdict::Edit(edited) => edited,
        };
        (last, self.judge)
    }

    /// Returns the judge.
    pub fn judge(&self) -> &J {
        &self.judge
    }

    /// Whether bytes are held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the memory used by the stream's content, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.held.capacity()
    }

    /// Ends an event, or a line between events, whose last bytes are those of `range`.
    fn end(&mut self, range: Range<usize>, out: &mut Out<'_>) {
        let at_start = std::mem::take(&mut self.at_start);
        self.return_is_gone = false;
        if std::mem::replace(&mut self.state, State::Between) != State::Event {
            out.pass(range);
            return;
        }
        let length = self.held.len() + range.len();
        let event = match self.held.is_empty() {
            true => &out.bytes[range.clone()],
            false => {
                self.held.extend_from_slice(&out.bytes[range.clone()]);
                &self.held
            }
        };
        let is_overlong = length > self.max_event_bytes;
        let judged = match is_overlong {
            true => Verdict::Keep,
            false => self.judge.judge(event, at_start),
        };
        match judged {
            Verdict::Keep if self.held.is_empty() => out.pass(range),
            Verdict::Keep => out.push(&self.held),
            Verdict::Edit(edited) => {
                self.return_is_gone = edited.is_empty();
                out.push(&edited);
            }
        }
        self.held.clear();
        self.held.shrink_to(KEPT_BYTES);
    }

    /// Handles the last bytes of a chunk, if they end neither an event nor a line between events.
    fn rest(&mut self, range: Range<usize>, out: &mut Out<'_>) {
        if self.state != State::Event {
            out.pass(range);
            return;
        }
        let length = self.held.len() + range.len();
        if length > self.max_event_bytes {
            self.state = State::Overlong;
            self.at_start = false;
            out.push(&std::mem::take(&mut self.held));
            out.pass(range);
            return;
        }
        if length > self.held.capacity() {
            // Doubles as a vector would, but never past the limit.
            let capacity = (self.held.capacity() * 2).clamp(length, self.max_event_bytes);
            self.held.reserve_exact(capacity - self.held.len());
        }
        self.held.extend_from_slice(&out.bytes[range]);
    }
}

/// Output for one chunk: a slice of it as long as possible.
struct Out<'b> {
    bytes: &'b [u8],
    passed: Range<usize>,
    made: Option<Vec<u8>>,
}

impl<'b> Out<'b> {
    fn pass(&mut self, range: Range<usize>) {
        match &mut self.made {
            Some(made) => made.extend_from_slice(&self.bytes[range]),
            None if self.passed.is_empty() => self.passed = range,
            None if range.start == self.passed.end => self.passed.end = range.end,
            None => self.push(&self.bytes[range]),
        }
    }

    fn push(&mut self, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        let made = self.made.get_or_insert_with(|| self.bytes[self.passed.clone()].to_vec());
        made.extend_from_slice(more);
    }

    fn finish(self) -> Cow<'b, [u8]> {
        match self.made {
            Some(made) => Cow::Owned(made),
            None => Cow::Borrowed(&self.bytes[self.passed]),
        }
    }
}

/// Decision on an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// Replaced by this, or removed.
    Edit(Vec<u8>),
}

/// Decides on an event: `edit` returns its data, a JSON text, as it is to be; `None` to leave it.
pub(super) fn edited(
    event: &[u8],
    at_start: bool,
    edit: impl FnOnce(&str) -> Option<String>,
) -> Verdict {
    let Ok(text) = std::str::from_utf8(event) else { return Verdict::Keep };
    let lines = lines(text, at_start);
    let Some(data) = joined(text, &lines) else { return Verdict::Keep };
    let Some(edited) = edit(&data) else { return Verdict::Keep };
    let (start, end) = (place(&lines, 0), place(&lines, data.len()));
    // One line of data says the same as several.
    Verdict::Edit([&text[..start], &edited.replace('\n', ""), &text[end..]].concat().into_bytes())
}

fn judge(event: &[u8], at_start: bool) -> Verdict {
    let Ok(text) = std::str::from_utf8(event) else { return Verdict::Keep };
    // Nearly all streams spell the name out; with escaped letters nothing is certain.
    if !text.contains("\"usage\"") && !text.contains("\\u") {
        return Verdict::Keep;
    }
    let lines = lines(text, at_start);
    let Some(joined) = joined(text, &lines) else { return Verdict::Keep };
    let Some(frame) = Frame::read(&joined) else { return Verdict::Keep };
    let gone: Vec<Range<usize>> = if frame.brings_usage && !frame.has_substance {
        let goes = |line: &&Line| line.data.is_some() || line.is_name || line.is_blank;
        if lines.iter().all(|line| goes(&line)) {
            return Verdict::Edit(Vec::new());
        }
        lines.iter().filter(|line| line.data.is_some()).map(|line| line.whole.clone()).collect()
    } else if frame.gone.is_empty() {
        return Verdict::Keep;
    } else {
        let place = |at| place(&lines, at);
        frame.gone.iter().map(|range| place(range.start)..place(range.end)).collect()
    };
    let mut edited = Vec::with_capacity(event.len());
    let mut written = 0;
    for range in gone {
        edited.extend_from_slice(&event[written..range.start]);
        written = range.end;
    }
    edited.extend_from_slice(&event[written..]);
    Verdict::Edit(edited)
}

/// Returns the data of an event, its lines joined; `None` if it has none.
pub(super) fn joined<'t>(text: &'t str, lines: &[Line]) -> Option<Cow<'t, str>> {
    let mut data = lines.iter().filter_map(|line| line.data.clone());
    let mut joined = Cow::Borrowed(&text[data.next()?]);
    for more in data {
        let joined = joined.to_mut();
        joined.push('\n');
        joined.push_str(&text[more]);
    }
    Some(joined)
}

/// Returns the fields of an event besides its data, a line each.
pub(super) fn fields(text: &str, lines: &[Line]) -> String {
    let mut fields = String::new();
    for line in lines.iter().filter(|line| line.data.is_none() && !line.is_blank) {
        fields.push_str(text[line.whole.clone()].trim_end_matches(['\r', '\n']));
        fields.push('\n');
    }
    fields
}

/// Returns an event with these fields and data.
pub(super) fn event(fields: &str, data: &str) -> Vec<u8> {
    let mut event = String::with_capacity(fields.len() + data.len() + 8);
    event.push_str(fields);
    for line in data.split(['\r', '\n']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event.into_bytes()
}

/// Line of an event.
pub(super) struct Line {
    /// With its line end.
    whole: Range<usize>,
    /// Value of a `data` field.
    data: Option<Range<usize>>,
    /// Whether it is an `event` field, which has no meaning without data.
    is_name: bool,
    is_blank: bool,
}

/// Splits an event into its lines.
pub(super) fn lines(text: &str, at_start: bool) -> Vec<Line> {
    let mut lines = Vec::with_capacity(4);
    let mut start = 0;
    while start < text.len() {
        let length = line_end(&text.as_bytes()[start..]);
        let end = length.map_or(text.len(), |length| start + length);
        let rest = &text[end..];
        let whole = start..end + if rest.starts_with("\r\n") { 2 } else { rest.len().min(1) };
        let mark = at_start && start == 0 && text.starts_with('\u{feff}');
        let line = &text[start + if mark { '\u{feff}'.len_utf8() } else { 0 }..end];
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        lines.push(Line {
            data: (field == "data").then(|| end - value.len()..end),
            is_name: field == "event",
            is_blank: start == end,
            whole,
        });
        start = lines.last().map_or(text.len(), |line| line.whole.end);
    }
    lines
}

/// Maps a position in the joined data to the position in the event.
pub(super) fn place(lines: &[Line], at: usize) -> usize {
    let mut before = 0;
    for data in lines.iter().filter_map(|line| line.data.as_ref()) {
        // The line feed that joins it to the next represents the line's end.
        if at <= before + data.len() {
            return data.start + (at - before);
        }
        before += data.len() + 1;
    }
    lines.last().map_or(0, |line| line.whole.end)
}

/// The JSON object in an event, as far as it matters here.
struct Frame<'t> {
    text: &'t str,
    /// Spans of the members `usage` that are null, each with a comma; consecutive ones merged.
    gone: Vec<Range<usize>>,
    /// Whether one is not null.
    brings_usage: bool,
    /// Whether there is anything other than the envelope and usage in tokens.
    has_substance: bool,
}

impl<'t> Frame<'t> {
    /// Reads `text`; `None` if it is not a JSON object.
    fn read(text: &'t str) -> Option<Self> {
        let frame = Self { text, gone: Vec::new(), brings_usage: false, has_substance: false };
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let frame = deserializer.deserialize_map(frame).ok()?;
        deserializer.end().ok()?;
        Some(frame)
    }

    fn note(&mut self, key: &str, value: &str) {
        match key {
            "usage" if value == "null" => self.remove(value),
            "usage" => {
                self.brings_usage = true;
                // OpenRouter reports usage with its cost in any case. Source: its guide to usage
                // accounting.
                let members = json::members(value).unwrap_or_default();
                self.has_substance |= members.iter().any(|(name, _)| name.starts_with("cost"));
            }
            key if ENVELOPE.contains(&key) => {}
            _ => self.has_substance |= !is_empty(value),
        }
    }

    /// Marks the member with this value, a slice of the text, for removal.
    fn remove(&mut self, value: &str) {
        let value_start = value.as_ptr() as usize - self.text.as_ptr() as usize;
        let value_end = value_start + value.len();
        let before = self.text[..value_start].trim_ascii_end();
        let name = before.strip_suffix(':').unwrap_or(before).trim_ascii_end();
        let name = name.strip_suffix('"').unwrap_or(name);
        // However the name is spelt, it contains no quote.
        let mut start = name.rfind('"').unwrap_or(name.len());
        if let Some(last) = self.gone.pop_if(|last| last.end == start) {
            start = last.start;
        }
        let after = self.text[value_end..].trim_ascii_start();
        let end = match after.strip_prefix(',') {
            Some(after) => self.text.len() - after.trim_ascii_start().len(),
            None => {
                let before = self.text[..start].trim_ascii_end();
                start = before.strip_suffix(',').map_or(start, str::len);
                value_end
            }
        };
        self.gone.push(start..end);
    }
}

impl<'t> Visitor<'t> for Frame<'t> {
    type Value = Self;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            self.note(&key, value.get());
        }
        Ok(self)
    }
}

/// Whether a member with this value is as good as absent.
fn is_empty(value: &str) -> bool {
    let inside = |open, close| value.strip_prefix(open)?.strip_suffix(close).map(str::trim_ascii);
    value == "null"
        || value == "\"\""
        || [('[', ']'), ('{', '}')].into_iter().any(|(open, close)| inside(open, close) == Some(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(limit: usize, pieces: &[&[u8]]) -> String {
        let mut filter = Filter::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&filter.feed(piece));
            assert!(filter.held_bytes() <= limit.max(KEPT_BYTES));
        }
        out.extend(filter.finish());
        String::from_utf8(out).expect("text went in")
    }

    /// Asserts the filtered result of a stream, wherever it is split.
    fn check(stream: &str, left: &str) {
        let bytes = stream.as_bytes();
        assert_eq!(filtered(1000, &[bytes]), left, "of {stream:?}");
        for at in 0..bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(filtered(1000, &[head, tail]), left, "of {stream:?}, cut at {at}");
        }
        let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(filtered(1000, &bytewise), left, "of {stream:?}, in single bytes");
    }

    #[test]
    fn usage_goes_with_one_comma() {
        for (frame, left) in [
            (r#"{"choices":[1],"usage":null}"#, r#"{"choices":[1]}"#),
            (r#"{"usage":null,"choices":[1]}"#, r#"{"choices":[1]}"#),
            (r#"{ "a":1 , "usage" : null , "c":2 }"#, r#"{ "a":1 , "c":2 }"#),
            (r#"{ "a":1 , "usage" : null }"#, r#"{ "a":1  }"#),
            (r#"{"a":1,"usage":null,"usage":null}"#, r#"{"a":1}"#),
            (r#"{"usage":null,"usage":null,"a":1,"usage":null}"#, r#"{"a":1}"#),
            (r#"{"us\u0061ge":null,"a":"\"usage\""}"#, r#"{"a":"\"usage\""}"#),
            (r#"{"a\"":1,"usage":null}"#, r#"{"a\"":1}"#),
            (r#"{"a":1,"usage":{}}"#, r#"{"a":1,"usage":{}}"#),
            (r#"{"a":{"usage":{}},"b":"\ud800"}"#, r#"{"a":{"usage":{}},"b":"\ud800"}"#),
            (r#"{"a":1,"usage":{}"#, r#"{"a":1,"usage":{}"#),
            (r#"{"a":1,"usage":{}} x"#, r#"{"a":1,"usage":{}} x"#),
            (r#"[{"a":1,"usage":{}}]"#, r#"[{"a":1,"usage":{}}]"#),
            ("[DONE]", "[DONE]"),
        ] {
            for end in ["\n", "\r\n", "\r"] {
                let event = |frame| format!("data: {frame}{end}{end}");
                check(&event(frame), &event(left));
            }
        }
    }

    #[test]
    fn only_what_weir_s_own_request_adds_goes() {
        const AS_IS: &str = "as it is";
        let usage = r#""usage":{"prompt_tokens":1}"#;
        for (frame, left) in [
            (r#"{"choices":[],USAGE}"#, None),
            (
                r#"{"id":"x","object":"o","created":1,"model":"m","choices":[ ],USAGE,"service_tier":null,"obfuscation":"abc"}"#,
                None,
            ),
            (
                r#"{"choices":null,USAGE,"error":null,"prompt_filter_results":[],"more":{},"text":""}"#,
                None,
            ),
            (r#"{USAGE}"#, None),
            (r#"{"choices":[],USAGE,"timings":{"prompt_n":1}}"#, Some(AS_IS)),
            (r#"{"choices":[],"usage":{"prompt_tokens":1,"cost":0.01}}"#, Some(AS_IS)),
            // Azure's first frame, as it is if usage is requested.
            (
                r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}],"usage":null}"#,
                Some(r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#),
            ),
            (r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}],USAGE}"#, Some(AS_IS)),
            (r#"{"choices":[],"usage":null}"#, Some(r#"{"choices":[]}"#)),
            // Mistral's last chunk.
            (r#"{"choices":[{"delta":{}}],USAGE}"#, Some(AS_IS)),
            (r#"{"choices":[],"choices":[1],USAGE}"#, Some(AS_IS)),
            (r#"{"choices":[],USAGE,"error":"e"}"#, Some(AS_IS)),
            (r#"{"choices":[],"x_groq":{"id":"r"},USAGE}"#, Some(AS_IS)),
        ] {
            let frame = frame.replace("USAGE", usage);
            for end in ["\n", "\r\n", "\r"] {
                let stream =
                    |event: &str| format!("data: 1{end}{end}{event}data: [DONE]{end}{end}");
                let event = |frame: &str| format!("data: {frame}{end}{end}");
                let left = left.map(|left| if left == AS_IS { &frame } else { left });
                let left = left.map(event).unwrap_or_default();
                check(&stream(&event(&frame)), &stream(&left));
            }
        }
    }

    #[test]
    fn lines_of_every_kind_are_seen() {
        for (stream, left) in [
            (": ping\n\n:\ndata: {\"usage\":1}\n\n: ping\n", ": ping\n\n:\n: ping\n"),
            ("event: e\ndata: {\"usage\":1}\n\nx", "x"),
            ("id: 1\ndata: {\"usage\":1}\n: c\n\n", "id: 1\n: c\n\n"),
            ("data:{\"a\":1,\ndata: \"usage\":null}\n\n", "data:{\"a\":1}\n\n"),
            (
                "data: {\"usage\":null,\r\ndata:\r\ndata:  \"a\":1}\r\n\r\n",
                "data: {\"a\":1}\r\n\r\n",
            ),
            ("data: {\"a\":1,\"usage\":\rdata: null\rdata: }\r\r", "data: {\"a\":1\rdata: }\r\r"),
            ("\u{feff}data: {\"a\":1,\"usage\":null}\n\n", "\u{feff}data: {\"a\":1}\n\n"),
            (
                "\u{feff}\n\u{feff}data: {\"a\":1,\"usage\":null}\n\n",
                "\u{feff}\n\u{feff}data: {\"a\":1,\"usage\":null}\n\n",
            ),
            ("data: {\"a\":1,\"usage\":null}", "data: {\"a\":1}"),
            ("data: {\"usage\":1}\n", ""),
            ("data: {\"usage\":1}\r\n\r\n\r\ndata: b\n\n", "\r\ndata: b\n\n"),
            ("datum: {\"a\":1,\"usage\":1}\n\n", "datum: {\"a\":1,\"usage\":1}\n\n"),
            ("", ""),
        ] {
            check(stream, left);
        }
    }

    #[test]
    fn an_event_past_the_limit_passes() {
        let exact = "data: {\"usage\":1}\n\n";
        let stream = format!("{exact}data: {{\"usage\":12}}\n\n{exact}");
        let bytes = stream.as_bytes();
        let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
        for pieces in [&[bytes][..], &bytewise] {
            assert_eq!(filtered(exact.len(), pieces), "data: {\"usage\":12}\n\n");
        }
    }

    #[test]
    fn nothing_waits_that_need_not() {
        let mut filter = Filter::new(1000);
        for (fed, given) in [
            ("data: {\"a\":1}\n\n", "data: {\"a\":1}\n\n"),
            (": pi", ": pi"),
            ("ng\n", "ng\n"),
            ("\n", "\n"),
            ("data: b\n\r", "data: b\n\r"),
            ("\nda", "\n"),
            ("ta: c\n", ""),
            ("\ndata: d", "data: c\n\n"),
            ("\r\r: ping\n", "data: d\r\r: ping\n"),
        ] {
            assert_eq!(filter.feed(fed.as_bytes()), given.as_bytes(), "after {fed:?}");
        }
        assert!(!filter.is_holding());
        let plain = b"data: {\"a\":1}\n\ndata: {\"b\":1}\n\n";
        assert!(matches!(filter.feed(plain), Cow::Borrowed(_)), "what stays is not copied");
        let last = b"data: {\"a\":1}\n\ndata: {\"usage\":1}\n\n";
        assert!(matches!(filter.feed(last), Cow::Borrowed(_)), "nor what stands before the end");
    }
}
