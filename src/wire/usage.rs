//! What a provider says it counted, read from its answers. Reads, and never changes a byte; what
//! cannot be read is absent, never an error.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json::Key;
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
        let mut metered = Metered::default();
        note_body(&mut metered, body)?;
        metered.usage
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

impl<'de> Reader<'de> for Named {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "prompt_tokens" => self.prompt = count(map.next_value()?),
            "completion_tokens" => self.completion = count(map.next_value()?),
            "input_tokens" => self.input = count(map.next_value()?),
            "output_tokens" => self.output = count(map.next_value()?),
            "cached_tokens" => self.cached = self.cached.or(count(map.next_value()?)),
            "prompt_cache_hit_tokens" => self.cache_hit = count(map.next_value()?),
            "cache_read_input_tokens" => self.cache_read = count(map.next_value()?),
            "cache_creation_input_tokens" => self.cache_creation = count(map.next_value()?),
            "prompt_tokens_details"
            | "input_tokens_details"
            | "completion_tokens_details"
            | "output_tokens_details" => {
                // Details that are null or no object tell nothing.
                map.next_value_seed(Object(&mut Details(self)))?;
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The details in a `usage` object.
struct Details<'n>(&'n mut Named);

impl<'de> Reader<'de> for Details<'_> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let named = &mut *self.0;
        match key {
            "cached_tokens" => named.cached = count(map.next_value()?).or(named.cached),
            "cache_write_tokens" => named.cache_write = count(map.next_value()?),
            "reasoning_tokens" => named.reasoning = count(map.next_value()?),
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl Named {
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

/// What takes an object's members one by one.
trait Reader<'de> {
    /// Takes the member called `key`; its value has to be read off `map`.
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// One value: an object's members are given to the reader, anything else is passed over. Tells
/// whether it was an object.
struct Object<'r, R>(&'r mut R);

/// One value: of an array, the first element is read like [`Object`].
struct First<'r, R>(&'r mut R);

macro_rules! pass_over {
    ($($visit:ident: $scalar:ty),*) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }

        fn visit_unit<E>(self) -> Result<bool, E> {
            Ok(false)
        }

        $(fn $visit<E>(self, _: $scalar) -> Result<bool, E> { Ok(false) })*
    };
}

impl<'de, R: Reader<'de>> DeserializeSeed<'de> for Object<'_, R> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Reader<'de>> Visitor<'de> for Object<'_, R> {
    type Value = bool;

    pass_over!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            self.0.member(&key, &mut map)?;
        }
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<bool, A::Error> {
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

impl<'de, R: Reader<'de>> DeserializeSeed<'de> for First<'_, R> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Reader<'de>> Visitor<'de> for First<'_, R> {
    type Value = bool;

    pass_over!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<bool, A::Error> {
        let first = sequence.next_element_seed(Object(self.0))?;
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first == Some(true))
    }
}

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
        Self { kind, metered: Metered::default() }
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
    // One check of the whole: its members are then known to be text.
    let mut deserializer = serde_json::Deserializer::from_str(std::str::from_utf8(body).ok()?);
    let mut answer = Answer::default();
    let is_object = Object(&mut answer).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    if let Some(usage) = answer.usage {
        metered.usage = Some(metered.usage.unwrap_or_default().updated(usage));
    }
    if answer.reason.is_some() {
        metered.finish_reason = answer.reason;
    }
    is_object.then_some(())
}

/// What one body tells.
#[derive(Default)]
struct Answer {
    usage: Option<Usage>,
    /// The last reason of the first choice.
    reason: Option<String>,
}

impl<'de> Reader<'de> for Answer {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "usage" => {
                let mut named = Named::default();
                if map.next_value_seed(Object(&mut named))? {
                    self.usage = Some(self.usage.unwrap_or_default().updated(named.settle()));
                }
            }
            "choices" => {
                let mut choice = Choice::default();
                map.next_value_seed(First(&mut choice))?;
                self.reason = choice.reason.or(self.reason.take());
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// A choice, of which only its end is read.
#[derive(Default)]
struct Choice {
    reason: Option<String>,
}

impl<'de> Reader<'de> for Choice {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        if key != "finish_reason" {
            map.next_value::<IgnoredAny>()?;
            return Ok(());
        }
        let raw = map.next_value::<&RawValue>()?.get();
        let text: Option<String> =
            raw.starts_with('"').then(|| serde_json::from_str(raw).ok()).flatten();
        self.reason = text.filter(|text| text.len() <= MAX_REASON_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(figures: [Option<u64>; 5]) -> Usage {
        let [prompt, completion, cached, cache_write, reasoning] = figures;
        Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: cached,
            cache_write_tokens: cache_write,
            reasoning_tokens: reasoning,
        }
    }

    #[test]
    fn usage_is_read_under_every_provider_s_names() {
        for (json, expected) in [
            (
                r#"{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25,
                    "prompt_tokens_details":{"cached_tokens":16,"audio_tokens":0},
                    "completion_tokens_details":{"reasoning_tokens":3}}"#,
                [Some(20), Some(5), Some(16), None, Some(3)],
            ),
            (
                r#"{"prompt_tokens":20,"completion_tokens":5,"prompt_cache_hit_tokens":12,
                    "prompt_cache_miss_tokens":8}"#,
                [Some(20), Some(5), Some(12), None, None],
            ),
            (
                r#"{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":7,
                    "output_tokens":4}"#,
                [Some(117), Some(4), Some(100), Some(7), None],
            ),
            (
                r#"{"input_tokens":10,"input_tokens_details":{"cached_tokens":8},"output_tokens":4,
                    "output_tokens_details":{"reasoning_tokens":2}}"#,
                [Some(10), Some(4), Some(8), None, Some(2)],
            ),
            (
                r#"{"prompt_tokens":9,"cached_tokens":5,"prompt_tokens_details":null}"#,
                [Some(9), None, Some(5), None, None],
            ),
            (
                r#"{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0,
                    "cache_write_tokens":6},"cached_tokens":5}"#,
                [Some(9), None, Some(0), Some(6), None],
            ),
            (r#"{"prompt_tokens":0,"completion_tokens":0}"#, [Some(0), Some(0), None, None, None]),
            ("{}", [None; 5]),
        ] {
            let body = format!(r#"{{"id":"x","usage":{json},"choices":[]}}"#);
            assert_eq!(Usage::of(body.as_bytes()), Some(usage(expected)), "{json}");
        }
    }

    #[test]
    fn what_is_no_usage_is_none() {
        for body in [
            "",
            "[]",
            "null",
            "{",
            r#"{"id":1}"#,
            r#"{"usage":null}"#,
            r#"{"usage":5}"#,
            r#"{"usage":"5"}"#,
            r#"{"usage":[{"prompt_tokens":1}]}"#,
            r#"{"nested":{"usage":{"prompt_tokens":1}}}"#,
            r#"{"usage":{"prompt_tokens":1}"#,
            r#"{"usage":{"prompt_tokens":1}} x"#,
        ] {
            assert_eq!(Usage::of(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn an_absurd_figure_is_missing_and_spoils_no_other() {
        for figure in [
            "-1",
            "1.5",
            "1.0",
            "1e3",
            "1e999",
            "9007199254740993",
            "99999999999999999999999",
            "null",
            "\"7\"",
            "true",
            "[1]",
            "{}",
        ] {
            let body = format!(r#"{{"usage":{{"prompt_tokens":{figure},"completion_tokens":3}}}}"#);
            let expected = usage([None, Some(3), None, None, None]);
            assert_eq!(Usage::of(body.as_bytes()), Some(expected), "{figure}");
        }
        let body = r#"{"usage":{"prompt_tokens":9007199254740992}}"#;
        assert_eq!(Usage::of(body.as_bytes()).and_then(|u| u.prompt_tokens), Some(MAX_COUNT));
        let huge = r#"{"usage":{"input_tokens":9007199254740992,
            "cache_read_input_tokens":9007199254740992,"cache_creation_input_tokens":9007199254740992}}"#;
        assert_eq!(Usage::of(huge.as_bytes()).and_then(|u| u.prompt_tokens), Some(3 * MAX_COUNT));
    }

    #[test]
    fn the_last_of_equal_keys_counts_and_escapes_are_read() {
        let body = r#"{"usage":{"prompt_tokens":1},"us\u0061ge":{"prompt_tokens":2}}"#;
        assert_eq!(Usage::of(body.as_bytes()).and_then(|u| u.prompt_tokens), Some(2));
    }

    fn metered(content_type: &str, parts: &[&[u8]]) -> Metered {
        let mut meter = Meter::new(Some(content_type));
        for part in parts {
            meter.feed(part);
        }
        meter.finish()
    }

    const STREAM: &str = "data: {\"choices\":[],\"usage\":null}\n\n\
        : heartbeat\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\" grüße\"},\"finish_reason\":null}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n\
        data: [DONE]\n\n";

    #[test]
    fn a_stream_is_metered_whatever_its_cuts() {
        let expected = Metered {
            usage: Some(usage([Some(7), Some(2), None, None, None])),
            finish_reason: Some("tool_calls".to_owned()),
            done: true,
            events: 5,
            overlong: false,
        };
        let bytes = STREAM.as_bytes();
        assert_eq!(metered("text/event-stream; charset=utf-8", &[bytes]), expected);
        let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(metered("Text/Event-Stream", &bytewise), expected);
    }

    #[test]
    fn a_cut_stream_is_not_done() {
        let end = STREAM.find("data: [DONE]").expect("it is there");
        let cut = metered("text/event-stream", &[&STREAM.as_bytes()[..end]]);
        assert!(!cut.done);
        assert_eq!(cut.usage.and_then(|usage| usage.completion_tokens), Some(2));
        let nothing = metered("text/event-stream", &[b"data: oops\n\ndata: {\"choices\":7}\n\n"]);
        assert_eq!(nothing, Metered { events: 2, ..Metered::default() });
    }

    #[test]
    fn a_complete_answer_is_read_at_its_end() {
        let body = br#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}],
            "usage":{"prompt_tokens":3}}"#;
        let expected = Metered {
            usage: Some(usage([Some(3), None, None, None, None])),
            finish_reason: Some("stop".to_owned()),
            done: true,
            ..Metered::default()
        };
        assert_eq!(metered("application/json", &[&body[..20], &body[20..]]), expected);
        assert_eq!(metered("application/problem+json;v=1", &[body]), expected);
        assert_eq!(metered("text/plain", &[body]), Metered::default());
        assert!(!metered("application/json", &[&body[..20]]).done);
    }

    #[test]
    fn what_is_too_large_is_told() {
        let piece = vec![b' '; MAX_ANSWER_BYTES / 2];
        let body = br#"{"usage":{"prompt_tokens":3}}"#;
        let fits: &[&[u8]] = &[&piece, &piece[body.len()..], body];
        assert!(metered("application/json", fits).usage.is_some());
        let past = metered("application/json", &[&piece, &piece, body]);
        assert_eq!(past, Metered { overlong: true, ..Metered::default() });
        let event = [b"data: ".to_vec(), vec![b'x'; MAX_EVENT_BYTES], b"\n\ndata: [DONE]".to_vec()];
        let past = metered("text/event-stream", &[&event.concat()]);
        assert_eq!(past, Metered { overlong: true, done: true, events: 2, ..Metered::default() });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Usage::of(&bytes);
            metered("application/json", &[&bytes]);
            metered("text/event-stream", &[b"data: ", &bytes, b"\n\n"]);
        }

        #[test]
        fn any_cut_of_a_stream_is_read_without_panic(cut in 0..STREAM.len()) {
            let part = &STREAM.as_bytes()[cut..];
            metered("text/event-stream", &[part]);
            let _ = Usage::of(part);
        }
    }
}
