//! Usage that a provider reports in its answers, and the size of the content. Never changes a byte;
//! anything unreadable is absent, never an error.

mod answer;
mod figures;
mod opening;
mod reader;
mod skim;
#[cfg(test)]
mod tests;

use serde_json::value::RawValue;

use super::json;
use super::sse::{Event, Part, Splitter};
pub use answer::SESSION_CALLS;
use answer::{Answer, ToolCalls};
use figures::Named;
pub use figures::{InnerUsage, Usage};
pub(super) use opening::is_announcement;
pub use opening::{Failure, MAX_OPENING_BYTES, Opening, Verdict};
use skim::Skim;

/// Maximum size of an event that is held to be read; a longer one is skimmed.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// Maximum length of a finish reason or tier name.
const MAX_WORD_BYTES: usize = 64;
/// Maximum length of a model name.
const MAX_MODEL_BYTES: usize = 200;
/// Maximum size of an answer that is held to be read; a longer one is skimmed.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// Events that end a stream, in addition to `[DONE]`: those of OpenAI's Responses, of Anthropic's
/// messages and of OpenAI's audio.
const LAST_EVENTS: [&str; 6] = [
    "\"response.completed\"",
    "\"response.incomplete\"",
    "\"response.failed\"",
    "\"message_stop\"",
    "\"transcript.text.done\"",
    "\"speech.audio.done\"",
];

/// Events at the end of a stream that failed, of OpenAI's Responses and of Anthropic's messages.
const FAILED_EVENTS: [&str; 2] = ["\"response.failed\"", "\"error\""];

impl Usage {
    /// Reads the usage in `body`: a complete answer, or one chunk of a streamed one. `None` if the
    /// body is not a JSON object, or its `usage` is missing, null or not an object.
    pub fn of(body: &[u8]) -> Option<Self> {
        let mut notes = Notes::default();
        notes.body(body)?;
        notes.metered.usage
    }
}

/// Facts metered from an answer's bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metered {
    /// Reported usage; for each figure the larger report.
    pub usage: Option<Usage>,
    /// Usage of inferences within the answer that `usage` leaves out.
    pub apart: Vec<InnerUsage>,
    /// Last finish reason of the first choice, such as `stop` or `tool_calls`.
    pub finish_reason: Option<String>,
    /// Model that answered, as the answer names it.
    pub model: Option<String>,
    /// Service tier that the answer reports.
    pub service_tier: Option<String>,
    /// Speed and region that it was served with.
    pub speed: Option<String>,
    pub region: Option<String>,
    /// Bytes of text in all deltas so far, including calls and reasoning: the basis for estimating
    /// the output if no usage is reported.
    pub said_bytes: u64,
    /// Whether a stream has content, which need not be text: a call, reasoning that is not shown.
    pub has_content: bool,
    /// Whether a stream reached its end, or an answer was complete JSON.
    pub done: bool,
    /// Whether an event of a stream reported that the answer failed.
    pub failed: bool,
    /// Number of events of a stream, `[DONE]` included.
    pub events: u64,
    /// Name of a response that is finished in the background: its usage comes in the answer to a later request.
    pub pending: Option<String>,
    /// Whether something was too large to be read, and could not be skimmed; the other fields then cover
    /// the rest.
    pub overlong: bool,
}

/// Reads along with an answer while it is relayed.
#[derive(Debug)]
pub struct Meter {
    kind: Kind,
    notes: Notes,
}

#[derive(Debug)]
enum Kind {
    /// Events, and the scanner of one that is too large.
    Stream(Splitter, Option<Box<Skim>>),
    Json(Vec<u8>),
    /// An answer that is too large to be held.
    Large(Box<Skim>),
    /// Nothing that could contain usage.
    Unread,
}

/// Form of an answer, by its `content-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answering {
    Stream,
    Json,
    /// A page for browsers.
    Page,
    Other,
}

impl Answering {
    fn of(content_type: Option<&str>) -> Self {
        let media_type = content_type.unwrap_or_default().split(';').next();
        let media_type = media_type.unwrap_or_default().trim().to_ascii_lowercase();
        match media_type.as_str() {
            "text/event-stream" => Self::Stream,
            "text/html" | "application/xhtml+xml" => Self::Page,
            json if json == "application/json" || json.ends_with("+json") => Self::Json,
            _ => Self::Other,
        }
    }
}

impl Meter {
    /// Creates a meter for an uncompressed answer of this `content-type`.
    pub fn new(content_type: Option<&str>) -> Self {
        let kind = match Answering::of(content_type) {
            Answering::Stream => Kind::Stream(Splitter::new(MAX_EVENT_BYTES), None),
            Answering::Json => Kind::Json(Vec::new()),
            Answering::Page | Answering::Other => Kind::Unread,
        };
        Self { kind, notes: Notes::default() }
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        match &mut self.kind {
            Kind::Stream(splitter, large) => {
                splitter.feed_parts(bytes, |part| self.notes.part(part, large));
            }
            Kind::Json(held) if held.len() + bytes.len() <= MAX_ANSWER_BYTES => {
                held.extend_from_slice(bytes);
            }
            Kind::Json(held) => {
                let mut skim = Box::<Skim>::default();
                skim.feed(held);
                skim.feed(bytes);
                self.kind = Kind::Large(skim);
            }
            Kind::Large(skim) => skim.feed(bytes),
            Kind::Unread => {}
        }
    }

    /// Whether more of the answer may add facts.
    pub fn is_reading(&self) -> bool {
        !matches!(self.kind, Kind::Unread) && !self.notes.metered.done
    }

    /// Facts known so far for a stream; a JSON answer has none before its end.
    pub fn so_far(&self) -> &Metered {
        &self.notes.metered
    }

    /// Ends the answer.
    pub fn finish(self) -> Metered {
        let mut notes = self.notes;
        match self.kind {
            Kind::Stream(splitter, mut large) => {
                splitter.finish_parts(|part| notes.part(part, &mut large));
                notes.drop_early_report();
            }
            Kind::Json(body) => notes.whole(&body),
            Kind::Large(skim) => {
                notes.metered.overlong = skim.kept().is_none();
                notes.whole(skim.kept().unwrap_or_default());
                notes.metered.said_bytes += skim.said_bytes();
            }
            Kind::Unread => {}
        }
        notes.metered
    }
}

/// Facts read so far.
#[derive(Debug, Default)]
struct Notes {
    metered: Metered,
    named: Named,
    /// Calls of the provider's tools in the events so far.
    calls: ToolCalls,
    /// Content so far when usage was last reported: its text, and whether there was any.
    reported: (u64, bool),
    /// Whether the event that is being read reports usage.
    is_report: bool,
}

impl Notes {
    /// Records the facts of a complete answer.
    fn whole(&mut self, body: &[u8]) {
        let read = self.body(body);
        let read = read.map(|read| read.has_failed() || read.lacks_choices || read.has_no_choice);
        (self.metered.done, self.metered.failed) = (read.is_some(), read.unwrap_or(false));
    }

    /// Records the facts of a part of a stream; `large` is the scanner of an event that is too large.
    fn part(&mut self, part: Part<'_>, large: &mut Option<Box<Skim>>) {
        match part {
            Part::Event(event) => self.event(event),
            Part::Large(data) => large.get_or_insert_with(Box::<Skim>::default).feed(data),
            Part::LargeEnd => {
                let skim = large.take();
                // Before its usage is read, which covers it.
                self.metered.said_bytes += skim.as_ref().map_or(0, |skim| skim.said_bytes());
                match skim.as_ref().and_then(|skim| skim.kept()) {
                    Some(data) => self.event(Event { name: b"", data, id: b"" }),
                    None => {
                        self.metered.overlong = true;
                        self.metered.events += 1;
                    }
                }
            }
        }
    }

    /// Drops the output of a report that content followed: it is that of the beginning alone.
    fn drop_early_report(&mut self) {
        let content = (self.metered.said_bytes, self.metered.has_content);
        if let Some(usage) = &mut self.metered.usage
            && content != self.reported
        {
            usage.completion_tokens = None;
        }
    }

    fn event(&mut self, event: Event<'_>) {
        self.metered.events += 1;
        if event.data.trim_ascii() == b"[DONE]" {
            self.metered.done = true;
            return;
        }
        // An event that is not JSON is ignored.
        if let Some(read) = self.body(event.data) {
            let (is_last, has_failed) = (read.is(&LAST_EVENTS), read.has_failed());
            self.metered.done |= is_last;
            self.metered.failed |= has_failed;
            let metered = &mut self.metered;
            metered.has_content |= metered.said_bytes > 0 || opening::is_content(event);
        }
        let metered = &self.metered;
        if std::mem::take(&mut self.is_report) {
            self.reported = (metered.said_bytes, metered.has_content);
        }
    }

    /// Records the facts of an answer or of one chunk, and returns its type. `None` if it is not a JSON
    /// object, which leaves no trace.
    fn body<'b>(&mut self, body: &'b [u8]) -> Option<Read<'b>> {
        // One check of the whole: its members are then known to be text.
        let text = std::str::from_utf8(body).ok()?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut answer = Answer { named: self.named, ..Answer::default() };
        let is_object = reader::read(text, &mut answer)?;
        answer.measure();
        let Answer { mut named, has_usage, error, kind, model, stated, apart, .. } = answer;
        let Answer { reason, said_bytes, .. } = answer;
        let (lacks_choices, has_no_choice) =
            (answer.lacks_choices, answer.has_no_choice && !has_usage);
        let (item, background) = (answer.item, answer.background);
        let metered = &mut self.metered;
        const ITEMS: [&str; 2] = [r#""response.output_item.done""#, r#""content_block_start""#];
        let is_item = kind.is_some_and(|kind| ITEMS.contains(&kind.get()));
        // Chunks of a chat have no type.
        if is_item || kind.is_none() || item.has_images {
            self.calls.add(&item);
        }
        if has_usage {
            named.has_calls(&self.calls);
            self.named = named;
            metered.usage = Some(named.settle());
            self.is_report = true;
        }
        if apart.len() >= metered.apart.len() {
            metered.apart = apart;
        }
        metered.said_bytes += said_bytes;
        if background.is_stated() {
            let id = background.pending(kind.is_some());
            metered.pending = id.and_then(|id| word(id, MAX_MODEL_BYTES));
        }
        note_text(&mut metered.model, stated.model.or(model), MAX_MODEL_BYTES);
        note_text(&mut metered.service_tier, stated.service_tier, MAX_WORD_BYTES);
        note_text(&mut metered.speed, stated.speed, MAX_WORD_BYTES);
        note_text(&mut metered.region, stated.region, MAX_WORD_BYTES);
        if let Some(reason) = reason.and_then(|raw| word(raw, MAX_WORD_BYTES)) {
            metered.finish_reason = Some(reason);
        }
        // A chunk of a chat that failed has an error instead of choices; others may have a null.
        let has_error = error.is_some_and(|error| error.get().starts_with(['{', '"']));
        is_object.then_some(Read { kind, has_error, lacks_choices, has_no_choice })
    }
}

/// Type of an answer or an event, and whether it reports an error.
struct Read<'b> {
    kind: Option<&'b RawValue>,
    has_error: bool,
    /// Whether it has a null in place of its choices.
    lacks_choices: bool,
    /// Whether it has neither a choice nor usage.
    has_no_choice: bool,
}

impl Read<'_> {
    /// Whether its type is one of these JSON texts.
    fn is(&self, kinds: &[&str]) -> bool {
        self.kind.is_some_and(|kind| kinds.contains(&kind.get()))
    }

    /// Whether it says that the answer has failed.
    fn has_failed(&self) -> bool {
        self.has_error || self.is(&FAILED_EVENTS)
    }
}

/// Replaces `known` by the string `raw`. Nearly every chunk repeats the value of the one before,
/// which costs only a comparison.
fn note_text(known: &mut Option<String>, raw: Option<&RawValue>, max_bytes: usize) {
    let Some(raw) = raw else { return };
    let quoted = raw.get().strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    if known.is_some() && known.as_deref() == quoted {
        return;
    }
    if let Some(text) = word(raw, max_bytes) {
        *known = Some(text);
    }
}

/// Unescapes the string `raw`; `None` if it is not a string or too long.
fn word(raw: &RawValue, max_bytes: usize) -> Option<String> {
    json::string(raw.get()).filter(|text| text.len() <= max_bytes).map(Into::into)
}
