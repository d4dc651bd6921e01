//! What a provider says it counted, read from its answers. Reads, and never changes a byte; what
//! cannot be read is absent, never an error.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::sse::{Event, Splitter};

/// The largest integer that every JSON reader keeps exactly; more tokens than this is nonsense.
const MAX_COUNT: u64 = 1 << 53;
/// The longest event whose usage is read; a longer one is relayed and not metered.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// The longest reason for finishing that is believed.
const MAX_REASON_BYTES: usize = 64;
/// The longest answer whose usage is read.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Tokens as the provider reported them. Zero is a report, `None` is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input, cached or not.
    pub prompt_tokens: Option<u64>,
    /// All output, reasoning too.
    pub completion_tokens: Option<u64>,
    /// Input read from the provider's cache.
    pub cached_tokens: Option<u64>,
    /// Input written to the provider's cache.
    pub cache_write_tokens: Option<u64>,
    /// Output spent on reasoning.
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// The usage in `body`: a complete answer, or one chunk of a streamed one. `None` where the
    /// body is not a JSON object, or its `usage` is missing, null or no object.
    pub fn of(body: &[u8]) -> Option<Self> {
        let mut usage = None;
        members(body, |key, value| {
            if key == "usage" {
                usage = Self::read(value);
            }
        })?;
        usage
    }

    /// Reads a `usage` object.
    fn read(usage: &RawValue) -> Option<Self> {
        let mut named = Named::default();
        members(usage.get().as_bytes(), |key, value| named.note(key, value))?;
        Some(named.settle())
    }

    /// `self` with what `later` reports in its place.
    fn updated(self, later: Self) -> Self {
        Self {
            prompt_tokens: later.prompt_tokens.or(self.prompt_tokens),
            completion_tokens: later.completion_tokens.or(self.completion_tokens),
            cached_tokens: later.cached_tokens.or(self.cached_tokens),
            cache_write_tokens: later.cache_write_tokens.or(self.cache_write_tokens),
            reasoning_tokens: later.reasoning_tokens.or(self.reasoning_tokens),
        }
    }
}

/// The figures of a `usage` object under the names that providers give them.
#[derive(Default)]
struct Named {
    /// OpenAI's chat completions, and all who copy them.
    prompt: Option<u64>,
    completion: Option<u64>,
    /// OpenAI's Responses, which count the cache in, and Anthropic, who count it apart.
    input: Option<u64>,
    output: Option<u64>,
    /// `cached_tokens` in the details of the prompt, or beside it.
    cached: Option<u64>,
    /// DeepSeek.
    cache_hit: Option<u64>,
    /// Anthropic.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    /// `cache_write_tokens` in the details of the prompt.
    cache_write: Option<u64>,
    reasoning: Option<u64>,
}

impl Named {
    fn note(&mut self, key: &str, value: &RawValue) {
        match key {
            "prompt_tokens" => self.prompt = count(value),
            "completion_tokens" => self.completion = count(value),
            "input_tokens" => self.input = count(value),
            "output_tokens" => self.output = count(value),
            "cached_tokens" => self.cached = self.cached.or(count(value)),
            "prompt_cache_hit_tokens" => self.cache_hit = count(value),
            "cache_read_input_tokens" => self.cache_read = count(value),
            "cache_creation_input_tokens" => self.cache_creation = count(value),
            "prompt_tokens_details"
            | "input_tokens_details"
            | "completion_tokens_details"
            | "output_tokens_details" => self.note_details(value),
            _ => {}
        }
    }

    fn note_details(&mut self, details: &RawValue) {
        // Details that are null or no object tell nothing.
        let _ = members(details.get().as_bytes(), |key, value| match key {
            "cached_tokens" => self.cached = count(value).or(self.cached),
            "cache_write_tokens" => self.cache_write = count(value),
            "reasoning_tokens" => self.reasoning = count(value),
            _ => {}
        });
    }

    fn settle(self) -> Usage {
        let apart = self.cache_read.unwrap_or(0) + self.cache_creation.unwrap_or(0);
        Usage {
            prompt_tokens: self.prompt.or(self.input.map(|input| input + apart)),
            completion_tokens: self.completion.or(self.output),
            cached_tokens: self.cached.or(self.cache_hit).or(self.cache_read),
            cache_write_tokens: self.cache_write.or(self.cache_creation),
            reasoning_tokens: self.reasoning,
        }
    }
}

/// `value` as a count: a whole number that is not absurd.
fn count(value: &RawValue) -> Option<u64> {
    let text = value.get();
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&count| count <= MAX_COUNT)
}

/// Gives each member of the JSON object `json` to `on_member`, in order; `None` where `json` is no
/// object.
fn members(json: &[u8], on_member: impl FnMut(&str, &RawValue)) -> Option<()> {
    struct Members<F>(F);

    impl<'de, F: FnMut(&str, &RawValue)> Visitor<'de> for Members<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &RawValue>()? {
                (self.0)(&key, value);
            }
            Ok(())
        }
    }

    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.deserialize_map(Members(on_member)).ok()?;
    deserializer.end().ok()
}

/// The first element of the JSON array `json`.
fn first_element(json: &RawValue) -> Option<&RawValue> {
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Option<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let first = sequence.next_element()?;
            while sequence.next_element::<&RawValue>()?.is_some() {}
            Ok(first)
        }
    }

    serde_json::Deserializer::from_str(json.get())
        .deserialize_seq(First)
        .ok()?
}

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// What an answer's bytes told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metered {
    /// The last usage reported.
    pub usage: Option<Usage>,
    /// The last reason of the first choice, such as `stop` or `tool_calls`.
    pub finish_reason: Option<String>,
    /// Whether a stream said `[DONE]`, or an answer was complete JSON.
    pub done: bool,
    /// Events of a stream, `[DONE]` too.
    pub events: u64,
    /// Whether something was too large to be read: then the rest is what could be.
    pub overlong: bool,
}

/// Reads along with an answer while it is relayed.
#[derive(Debug)]
pub struct Meter {
    kind: Kind,
    metered: Metered,
}

#[derive(Debug)]
enum Kind {
    Stream(Splitter),
    Json(Vec<u8>),
    /// Nothing that could hold a usage, or too much of it.
    Unread,
}

impl Meter {
    /// A meter for an uncompressed answer of this `content-type`.
    pub fn new(content_type: Option<&str>) -> Self {
        let media_type = content_type.unwrap_or_default().split(';').next();
        let media_type = media_type.unwrap_or_default().trim().to_ascii_lowercase();
        let kind = match media_type.as_str() {
            "text/event-stream" => Kind::Stream(Splitter::new(MAX_EVENT_BYTES)),
            json if json == "application/json" || json.ends_with("+json") => Kind::Json(Vec::new()),
            _ => Kind::Unread,
        };
        Self {
            kind,
            metered: Metered::default(),
        }
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        match &mut self.kind {
            Kind::Stream(splitter) => {
                splitter.feed(bytes, |event| note_event(&mut self.metered, event));
            }
            Kind::Json(held) if held.len() + bytes.len() <= MAX_ANSWER_BYTES => {
                held.extend_from_slice(bytes);
            }
            Kind::Json(_) => {
                self.metered.overlong = true;
                self.kind = Kind::Unread;
            }
            Kind::Unread => {}
        }
    }

    /// What is known so far of a stream; of a JSON answer nothing is before its end.
    pub fn so_far(&self) -> &Metered {
        &self.metered
    }

    /// Ends the answer.
    pub fn finish(self) -> Metered {
        let mut metered = self.metered;
        match self.kind {
            Kind::Stream(splitter) => {
                let skipped = splitter.finish(|event| note_event(&mut metered, event));
                metered.overlong |= skipped > 0;
                metered.events += skipped;
            }
            Kind::Json(body) => metered.done = note_body(&mut metered, &body).is_some(),
            Kind::Unread => {}
        }
        metered
    }
}

fn note_event(metered: &mut Metered, event: Event<'_>) {
    metered.events += 1;
    if event.data.trim_ascii() == b"[DONE]" {
        metered.done = true;
    } else {
        // An event that is not JSON tells nothing.
        let _ = note_body(metered, event.data);
    }
}

/// Notes what an answer or a chunk of one tells; `None` where it is no JSON object.
fn note_body(metered: &mut Metered, body: &[u8]) -> Option<()> {
    members(body, |key, value| match key {
        "usage" => {
            if let Some(usage) = Usage::read(value) {
                metered.usage = Some(metered.usage.unwrap_or_default().updated(usage));
            }
        }
        "choices" => {
            if let Some(reason) = first_element(value).and_then(finish_reason) {
                metered.finish_reason = Some(reason);
            }
        }
        _ => {}
    })
}

fn finish_reason(choice: &RawValue) -> Option<String> {
    let mut reason = None;
    members(choice.get().as_bytes(), |key, value| {
        if key == "finish_reason" {
            let text = serde_json::from_str(value.get()).ok();
            reason = text.filter(|text: &String| text.len() <= MAX_REASON_BYTES);
        }
    })?;
    reason
}
