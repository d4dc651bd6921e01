//! Parser for one answer, or one chunk of a streamed one: usage, finish reasons, model, and size of
//! the content. Keeps none of the content.

use serde::de::{IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use super::super::json;
use super::figures::{Figures, InnerUsage, Named, Stated, milliseconds};
use super::reader::{self, Each, Elements, Object, Reader};

/// Facts from one body. Texts are unparsed JSON texts.
#[derive(Default)]
pub(super) struct Answer<'de> {
    /// Figures so far, which those of this body override.
    pub(super) named: Named,
    /// Whether this body reports usage.
    pub(super) has_usage: bool,
    /// The answer's own error.
    pub(super) error: Option<&'de RawValue>,
    /// The event's own type.
    pub(super) kind: Option<&'de RawValue>,
    pub(super) model: Option<&'de RawValue>,
    /// What the usage says in addition to figures.
    pub(super) stated: Stated<'de>,
    /// Inferences that the figures leave out.
    pub(super) apart: Vec<InnerUsage>,
    /// Last finish reason of the first choice.
    pub(super) reason: Option<&'de RawValue>,
    /// Bytes of text in the deltas, or in the messages, of all choices.
    pub(super) said_bytes: u64,
    /// Whether there is something else in place of the choices.
    pub(super) lacks_choices: bool,
    pub(super) has_text: bool,
    pub(super) duration: Option<&'de RawValue>,
    /// Whether the choices are none at all.
    pub(super) has_no_choice: bool,
    /// Calls of the provider's tools in an item that is done.
    pub(super) item: ToolCalls,
    /// State of a response.
    pub(super) background: Background<'de>,
    /// Whether this is an object inside the answer, whose own parts are not searched.
    pub(super) is_inner: bool,
}

/// State of a response, as an answer of OpenAI's Responses or one of its events has it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Background<'de> {
    id: Option<&'de RawValue>,
    status: Option<&'de RawValue>,
    is_asked: bool,
}

impl<'de> Background<'de> {
    /// Whether the answer has a state.
    pub(super) fn is_stated(&self) -> bool {
        self.status.is_some()
    }

    /// Returns the name of the response if it is not finished, and goes on without its caller: as any other
    /// than a stream does.
    pub(super) fn pending(&self, is_event: bool) -> Option<&'de RawValue> {
        let status = self.status.map(RawValue::get);
        let is_open = matches!(status, Some(r#""queued""# | r#""in_progress""#));
        self.id.filter(|_| is_open && (self.is_asked || !is_event))
    }
}

impl<'de> Reader<'de> for Answer<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "usage" | "usageMetadata" => {
                self.has_usage |= map.next_value_seed(Object(&mut self.figures()))?;
            }
            "model" => self.model = Some(map.next_value()?),
            "id" => self.background.id = Some(map.next_value()?),
            "status" => self.background.status = Some(map.next_value()?),
            "background" => {
                let raw: &RawValue = map.next_value()?;
                self.background.is_asked = raw.get() == "true";
            }
            "service_tier" => self.stated.service_tier = Some(map.next_value()?),
            "output" | "content" => {
                let mut calls = ToolCalls::default();
                map.next_value_seed(Each(&mut calls))?;
                self.named.has_calls(&calls);
            }
            // A transcription's, which may have its length in place of usage.
            "text" => {
                self.has_text = true;
                map.next_value::<IgnoredAny>()?;
            }
            "duration" => self.duration = Some(map.next_value()?),
            // A block is Anthropic's.
            "item" | "content_block" if !self.is_inner => {
                let mut item = Item::default();
                map.next_value_seed(Object(&mut item))?;
                self.item.done(item);
            }
            "choices" if !self.is_inner => self.choices(map)?,
            "candidates" | "web_search" if !self.is_inner => self.searches(key, map)?,
            "error" if !self.is_inner => self.error = Some(map.next_value()?),
            "type" if !self.is_inner => self.kind = Some(map.next_value()?),
            // Anthropic's events and those of OpenAI's Responses.
            "delta" if !self.is_inner => {
                let delta: &RawValue = map.next_value()?;
                self.said_bytes += delta_bytes(delta);
                self.reason = stop_reason(delta.get()).or(self.reason);
            }
            // Anthropic's complete answers, and the reason for which a response is incomplete.
            "stop_reason" => self.reason = Some(map.next_value()?),
            "incomplete_details" => {
                let details: &RawValue = map.next_value()?;
                self.reason = member(details.get(), "reason").or(self.reason);
            }
            // Responses, Anthropic and Groq nest these members one level deeper in some events.
            "response" | "message" | "x_groq" if !self.is_inner => {
                self.is_inner = true;
                let read = map.next_value_seed(Object(self));
                self.is_inner = false;
                read?;
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'de> Answer<'de> {
    fn figures(&mut self) -> Figures<'_, 'de> {
        let Self { named, stated, apart, .. } = self;
        Figures { named, stated, apart }
    }

    /// Takes the length of a transcription that reports no usage.
    pub(super) fn measure(&mut self) {
        let duration = self.duration.filter(|_| self.has_text && !self.has_usage);
        if let Some(length) = duration.and_then(milliseconds) {
            (self.named.audio_ms, self.has_usage) = (Some(length), true);
        }
    }

    /// Reads the searches outside the choices: of Gemini's own API, and Zhipu's list of what was found.
    fn searches<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        if key == "candidates" {
            let mut choices = Choices::default();
            map.next_value_seed(Each(&mut choices))?;
            self.item.add(&choices.calls);
            return Ok(());
        }
        let found: &RawValue = map.next_value()?;
        if json::elements(found.get()).is_some_and(|found| !found.is_empty()) {
            keep(&mut self.item.searches, 0);
        }
        Ok(())
    }

    fn choices<A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let mut choices = Choices::default();
        self.lacks_choices = !map.next_value_seed(Each(&mut choices))?;
        self.has_no_choice = !choices.is_first_done;
        self.said_bytes += choices.said_bytes;
        self.reason = choices.reason.or(self.reason);
        self.item.add(&choices.calls);
        // Moonshot's streams.
        if let Some(usage) = choices.usage {
            self.has_usage |= reader::read(usage.get(), &mut self.figures()).unwrap_or(false);
        }
        Ok(())
    }
}

/// Calls of OpenAI's own tools among the items of a response: usage does not count them.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    pub(super) web_searches: Option<u64>,
    pub(super) others: Option<u64>,
    /// Hashes of the containers that code ran in: each is one session, however often it is used.
    containers: Vec<u64>,
    /// Hashes of what stands for a search of the web in a chat, and for a call of another tool: a stream may repeat it.
    searches: Vec<u64>,
    executed: Vec<u64>,
    /// Generated images, which usage does not have either.
    pictures: u64,
    /// Results of searches among the blocks of a message.
    searched: u64,
    /// Whether a choice has an image.
    pub(super) has_images: bool,
}

impl ToolCalls {
    /// Adds the calls of another event.
    pub(super) fn add(&mut self, other: &Self) {
        let add = |own: &mut Option<u64>, other: Option<u64>| {
            if let Some(other) = other {
                *own = Some(own.unwrap_or(0).saturating_add(other));
            }
        };
        add(&mut self.web_searches, other.web_searches);
        add(&mut self.others, other.others);
        for (own, other) in [
            (&mut self.containers, &other.containers),
            (&mut self.searches, &other.searches),
            (&mut self.executed, &other.executed),
        ] {
            other.iter().for_each(|hash| keep(own, *hash));
        }
        self.pictures = self.pictures.saturating_add(other.pictures);
        self.searched = self.searched.saturating_add(other.searched);
        self.has_images |= other.has_images;
    }

    /// Adds a session of code in a container, by the JSON text of its name.
    fn run_in(&mut self, container: &str) {
        keep(&mut self.containers, xxhash_rust::xxh3::xxh3_64(container.as_bytes()));
    }

    /// Returns the searches that are charged.
    fn searched_web(&self) -> Option<u64> {
        plus(self.web_searches, self.searches.len() as u64)
    }

    /// Returns the calls of other tools that are charged.
    fn charged(&self) -> Option<u64> {
        let (sessions, executed) = (self.containers.len() as u64, self.executed.len() as u64);
        plus(self.others, sessions * SESSION_CALLS + executed)
    }
}

/// Adds a hash. Those beyond a maximum do not count.
fn keep(own: &mut Vec<u64>, hash: u64) {
    if own.len() < MAX_KEPT && !own.contains(&hash) {
        own.push(hash);
    }
}

fn plus(own: Option<u64>, more: u64) -> Option<u64> {
    let more = Some(more).filter(|more| *more > 0);
    own.map(|own| own.saturating_add(more.unwrap_or(0))).or(more)
}

/// Calls that a session of code costs as much as: OpenAI's fees are $0.03 a session and $0.0025 a search in files (its
/// page on pricing).
pub const SESSION_CALLS: u64 = 12;
/// Maximum number of different containers, searches or calls in one answer.
const MAX_KEPT: usize = 256;

impl Named {
    /// Takes calls that are items of the answer.
    pub(super) fn has_calls(&mut self, calls: &ToolCalls) {
        self.web_searches = calls.searched_web().max(self.web_searches);
        self.tool_calls = calls.charged().max(self.tool_calls);
        self.pictures = self.pictures.max(calls.pictures);
        self.searched = self.searched.max(calls.searched);
        self.has_images |= calls.has_images;
    }
}

/// Type of an item, and the members on which its fee depends.
#[derive(Default)]
pub(super) struct Item<'de> {
    kind: Option<&'de RawValue>,
    action: Option<&'de RawValue>,
    container: Option<&'de RawValue>,
    environment: Option<&'de RawValue>,
}

impl<'de> Reader<'de> for Item<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "type" => self.kind = Some(map.next_value()?),
            "action" => self.action = Some(map.next_value()?),
            "container_id" => self.container = Some(map.next_value()?),
            "environment" => self.environment = Some(map.next_value()?),
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'de> Elements<'de> for ToolCalls {
    type Element = Item<'de>;

    fn next(&mut self) -> Item<'de> {
        Item::default()
    }

    fn done(&mut self, item: Item<'de>) {
        let action = item.action.and_then(|raw| json::member(raw.get(), "type"));
        // A shell that runs at the caller's has no container.
        let environment = item.environment.map_or("", RawValue::get);
        let place = match item.kind.map(RawValue::get) {
            // Pages that are opened or searched in cost their tokens alone.
            Some(r#""web_search_call""#) if action.is_some_and(|own| own != r#""search""#) => {
                return;
            }
            Some(r#""web_search_call""#) => &mut self.web_searches,
            Some(r#""code_interpreter_call""#) if item.container.is_some() => {
                return self.run_in(item.container.map_or("", RawValue::get));
            }
            Some(r#""shell_call""#) if environment.contains("\"container_") => {
                return self.run_in(json::member(environment, "container_id").unwrap_or_default());
            }
            Some(r#""code_interpreter_call""#) => {
                self.others = Some(self.others.unwrap_or(0) + SESSION_CALLS);
                return;
            }
            Some(r#""file_search_call""#) => &mut self.others,
            Some(r#""image_generation_call""#) => {
                self.pictures += 1;
                return;
            }
            Some(r#""web_search_tool_result""#) => {
                self.searched += 1;
                return;
            }
            _ => return,
        };
        *place = Some(place.unwrap_or(0) + 1);
    }
}

/// Choices of a body, together.
#[derive(Default)]
struct Choices<'de> {
    calls: ToolCalls,
    reason: Option<&'de RawValue>,
    usage: Option<&'de RawValue>,
    said_bytes: u64,
    is_first_done: bool,
}

impl<'de> Elements<'de> for Choices<'de> {
    type Element = Choice<'de>;

    fn next(&mut self) -> Choice<'de> {
        Choice::default()
    }

    fn done(&mut self, mut choice: Choice<'de>) {
        self.said_bytes += choice.said_bytes;
        self.usage = choice.usage.or(self.usage);
        let index = choice.index.map_or("", RawValue::get).as_bytes();
        for hashes in [&mut choice.calls.searches, &mut choice.calls.executed] {
            for hash in hashes.iter_mut() {
                *hash = xxhash_rust::xxh3::xxh3_64_with_seed(index, *hash);
            }
        }
        if choice.is_grounded {
            keep(&mut choice.calls.searches, 1);
        }
        self.calls.add(&choice.calls);
        if !self.is_first_done {
            self.is_first_done = true;
            self.reason = choice.reason;
        }
    }
}

#[derive(Default)]
struct Choice<'de> {
    calls: ToolCalls,
    index: Option<&'de RawValue>,
    /// Whether Gemini has searched for it.
    is_grounded: bool,
    reason: Option<&'de RawValue>,
    usage: Option<&'de RawValue>,
    said_bytes: u64,
}

impl<'de> Reader<'de> for Choice<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "delta" | "message" => {
                let mut said = Said::default();
                map.next_value_seed(Object(&mut said))?;
                self.said_bytes += said.bytes();
                self.calls.add(&said.calls);
            }
            "index" => self.index = Some(map.next_value()?),
            "grounding_metadata" | "groundingMetadata" => {
                let found: &RawValue = map.next_value()?;
                self.is_grounded |= json::members(found.get()).is_some_and(|own| !own.is_empty());
            }
            "text" => self.said_bytes += text_bytes(map.next_value()?),
            "finish_reason" => self.reason = Some(map.next_value()?),
            "usage" => self.usage = Some(map.next_value()?),
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Sizes of the texts in a delta or message.
#[derive(Default)]
struct Said {
    bytes: u64,
    /// Two names exist, and some providers send the same text under both.
    reasoning_bytes: u64,
    calls: ToolCalls,
}

impl Said {
    fn bytes(&self) -> u64 {
        self.bytes + self.reasoning_bytes
    }
}

impl<'de> Reader<'de> for Said {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "content" => self.bytes += content_bytes(map.next_value()?),
            "reasoning_content" | "reasoning" => {
                self.reasoning_bytes = self.reasoning_bytes.max(text_bytes(map.next_value()?));
            }
            "refusal" | "text" | "thinking" | "partial_json" => {
                self.bytes += text_bytes(map.next_value()?);
            }
            // OpenRouter's.
            "images" => {
                let raw: &RawValue = map.next_value()?;
                self.calls.has_images |= raw.get().contains('{');
            }
            "tool_calls" => {
                let mut calls = Parts::default();
                map.next_value_seed(Each(&mut calls))?;
                self.bytes += calls.bytes;
                self.calls.searches.append(&mut calls.searches);
            }
            // Groq's, made by itself.
            "executed_tools" => {
                let mut calls = Executed(&mut self.calls);
                map.next_value_seed(Each(&mut calls))?;
            }
            "function_call" | "audio" => {
                let mut part = Part::default();
                map.next_value_seed(Object(&mut part))?;
                self.bytes += part.bytes;
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Total size of the texts in a list of parts or calls, and Moonshot's calls of its search among them.
#[derive(Default)]
struct Parts {
    bytes: u64,
    searches: Vec<u64>,
}

impl<'de> Elements<'de> for Parts {
    type Element = Part<'de>;

    fn next(&mut self) -> Part<'de> {
        Part::default()
    }

    fn done(&mut self, part: Part<'de>) {
        self.bytes += part.bytes;
        if part.name.is_some_and(|name| name.get() == r#""$web_search""#) {
            let hash = part.hash(self.searches.len());
            keep(&mut self.searches, hash);
        }
    }
}

/// Calls that a provider has made.
struct Executed<'c>(&'c mut ToolCalls);

impl<'de> Elements<'de> for Executed<'_> {
    type Element = Part<'de>;

    fn next(&mut self) -> Part<'de> {
        Part::default()
    }

    fn done(&mut self, part: Part<'de>) {
        let kind = part.kind.map_or("", RawValue::get);
        let is_search = ["search", "browser"].iter().any(|word| kind.contains(word));
        let hashes = if is_search { &mut self.0.searches } else { &mut self.0.executed };
        let hash = part.hash(hashes.len());
        keep(hashes, hash);
    }
}

/// Size of one part or call, and what it is known by.
#[derive(Default)]
struct Part<'de> {
    bytes: u64,
    name: Option<&'de RawValue>,
    kind: Option<&'de RawValue>,
    index: Option<&'de RawValue>,
    id: Option<&'de RawValue>,
}

impl Part<'_> {
    /// Returns the hash of its place in the list, its ID or, without both, its number.
    fn hash(&self, number: usize) -> u64 {
        let place = self.index.or(self.id).map(|raw| raw.get().as_bytes());
        place.map_or(number as u64, xxhash_rust::xxh3::xxh3_64)
    }
}

impl<'de> Reader<'de> for Part<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "name" => {
                let name = map.next_value()?;
                self.name = Some(name);
                self.bytes += text_bytes(name);
            }
            "text" | "thinking" | "arguments" | "input" | "transcript" => {
                self.bytes += text_bytes(map.next_value()?);
            }
            "type" => self.kind = Some(map.next_value()?),
            "index" => self.index = Some(map.next_value()?),
            "id" => self.id = Some(map.next_value()?),
            "function" | "custom" => {
                map.next_value_seed(Object(self))?;
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Returns the reason for which Anthropic's stream stops, if this is its last `delta`.
fn stop_reason(delta: &str) -> Option<&RawValue> {
    delta.contains("\"stop_reason\"").then(|| member(delta, "stop_reason"))?
}

/// Returns the value of a member of the object `raw`.
fn member<'a>(raw: &'a str, name: &str) -> Option<&'a RawValue> {
    let (_, value) = json::members(raw)?.into_iter().find(|(own, _)| own == name)?;
    serde_json::from_str(value).ok()
}

/// Returns the size of a `delta` outside the choices: a text, or an object that contains one.
fn delta_bytes(value: &RawValue) -> u64 {
    let mut said = Said::default();
    match value.get().starts_with('{') {
        // Parsed as JSON just before; a value nested too deep to be parsed again counts as empty.
        true => reader::read(value.get(), &mut said).map_or(0, |_| said.bytes()),
        false => text_bytes(value),
    }
}

/// Returns the size of a content: a text, or a list of parts.
fn content_bytes(value: &RawValue) -> u64 {
    if !value.get().starts_with('[') {
        return text_bytes(value);
    }
    let mut parts = Parts::default();
    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    let read = serde::de::DeserializeSeed::deserialize(Each(&mut parts), &mut deserializer);
    read.map_or(0, |_| parts.bytes)
}

/// Returns the length of a string in UTF-8; 0 for anything else. An escaped half of a character,
/// which providers send if they split one, counts as half of it.
fn text_bytes(value: &RawValue) -> u64 {
    let raw = value.get().as_bytes();
    let [b'"', inner @ .., b'"'] = raw else { return 0 };
    let mut bytes = inner.len() as u64;
    let mut rest = inner;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        match rest.get(at + 1) {
            Some(b'u') => {
                let digits = rest.get(at + 2..at + 6).and_then(|hex| std::str::from_utf8(hex).ok());
                let code = digits.and_then(|hex| u32::from_str_radix(hex, 16).ok());
                bytes -= match code.unwrap_or_default() {
                    0..0x80 => 5,
                    0x80..0x800 | 0xd800..0xe000 => 4,
                    _ => 3,
                };
                rest = rest.get(at + 6..).unwrap_or_default();
            }
            _ => {
                bytes -= 1;
                rest = rest.get(at + 2..).unwrap_or_default();
            }
        }
    }
    bytes
}
