//! Figures of a `usage` object, under the names that providers use. Reads numbers; knows no prices.

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use super::reader::{Each, Elements, Object, Reader};
use crate::wire::json;

/// Largest integer that every JSON reader keeps exactly; a larger token count is invalid.
pub(super) const MAX_COUNT: u64 = 1 << 53;
/// xAI's unit of cost.
const TICKS_A_NANO_USD: u64 = 10;
/// Longest plausible audio: a year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

/// Usage as the provider reported it. Zero is a report, `None` is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input, cached or not.
    pub prompt_tokens: Option<u64>,
    /// All output, including reasoning.
    pub completion_tokens: Option<u64>,
    /// Input read from the provider's cache.
    pub cached_tokens: Option<u64>,
    /// Input written to the provider's cache.
    pub cache_write_tokens: Option<u64>,
    /// Output spent on reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Audio input; part of `prompt_tokens`.
    pub audio_input_tokens: Option<u64>,
    /// Audio output; part of `completion_tokens`.
    pub audio_output_tokens: Option<u64>,
    /// Image input; part of `prompt_tokens`.
    pub image_input_tokens: Option<u64>,
    /// Image output; part of `completion_tokens`.
    pub image_output_tokens: Option<u64>,
    /// Input written to the provider's cache for an hour; part of `cache_write_tokens`.
    pub cache_write_1h_tokens: Option<u64>,
    /// Duration of the audio, if that is billed.
    pub audio_ms: Option<u64>,
    /// Web searches that the provider made.
    pub web_searches: Option<u64>,
    /// Calls of the provider's other tools.
    pub tool_calls: Option<u64>,
    /// Cost as the provider states it, in nano-dollars.
    pub stated_nano_usd: Option<u64>,
    /// Whether a member above zero is not known: the bill may have more.
    pub has_unknown: bool,
    /// Images by a tool of the provider, which the figures leave out.
    pub pictures: u64,
    /// Whether the answer has other images that the figures leave out.
    pub has_images: bool,
}

impl Usage {
    /// Returns the usage of two answers together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |own: Option<u64>, other: Option<u64>| match (own, other) {
            (None, None) => None,
            (own, other) => Some(own.unwrap_or(0).saturating_add(other.unwrap_or(0))),
        };
        Self {
            prompt_tokens: sum(self.prompt_tokens, other.prompt_tokens),
            completion_tokens: sum(self.completion_tokens, other.completion_tokens),
            cached_tokens: sum(self.cached_tokens, other.cached_tokens),
            cache_write_tokens: sum(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: sum(self.reasoning_tokens, other.reasoning_tokens),
            audio_input_tokens: sum(self.audio_input_tokens, other.audio_input_tokens),
            audio_output_tokens: sum(self.audio_output_tokens, other.audio_output_tokens),
            image_input_tokens: sum(self.image_input_tokens, other.image_input_tokens),
            image_output_tokens: sum(self.image_output_tokens, other.image_output_tokens),
            cache_write_1h_tokens: sum(self.cache_write_1h_tokens, other.cache_write_1h_tokens),
            audio_ms: sum(self.audio_ms, other.audio_ms),
            web_searches: sum(self.web_searches, other.web_searches),
            tool_calls: sum(self.tool_calls, other.tool_calls),
            stated_nano_usd: sum(self.stated_nano_usd, other.stated_nano_usd),
            has_unknown: self.has_unknown || other.has_unknown,
            pictures: self.pictures.saturating_add(other.pictures),
            has_images: self.has_images || other.has_images,
        }
    }
}

/// Figures under their original names; of two reports about an answer the larger one counts, since some
/// providers end a stream with zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// OpenAI's chat completions and all who copy them; Gemini's own API.
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    /// OpenAI's Responses, which include the cache, and Anthropic, which counts it separately.
    input: Option<u64>,
    output: Option<u64>,
    /// `cached_tokens` in the details of the prompt.
    cached: Option<u64>,
    /// The same, next to the prompt.
    cached_beside: Option<u64>,
    /// DeepSeek; Mistral.
    cache_hit: Option<u64>,
    /// Anthropic.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    cache_creation_5m: Option<u64>,
    cache_creation_1h: Option<u64>,
    /// `cache_write_tokens` in the details of the prompt.
    cache_write: Option<u64>,
    reasoning: Option<u64>,
    /// Gemini's own API, which counts them separately from the completion.
    thoughts: Option<u64>,
    tool_use_prompt: Option<u64>,
    audio_input: Option<u64>,
    audio_output: Option<u64>,
    image_input: Option<u64>,
    image_output: Option<u64>,
    pub(super) audio_ms: Option<u64>,
    pub(super) web_searches: Option<u64>,
    pub(super) tool_calls: Option<u64>,
    stated_nano_usd: Option<u64>,
    /// What the caller's own provider bills for it.
    apart_nano_usd: Option<u64>,
    is_byok: bool,
    pub(super) pictures: u64,
    pub(super) searched: u64,
    pub(super) has_images: bool,
    has_unknown: bool,
}

impl Named {
    /// Normalises the figures.
    pub(super) fn settle(self) -> Usage {
        // The total of the writes, or their parts by lifetime if there are more of these.
        let by_lifetime = match (self.cache_creation_5m, self.cache_creation_1h) {
            (None, None) => None,
            (short, long) => Some(short.unwrap_or(0) + long.unwrap_or(0)),
        };
        let cache_creation = self.cache_creation.max(by_lifetime);
        let apart = self.cache_read.unwrap_or(0) + cache_creation.unwrap_or(0);
        let prompt = self.prompt.map(|prompt| prompt + self.tool_use_prompt.unwrap_or(0));
        // Some gateways leave zeros under the names that they do not use.
        let first =
            |own: Option<u64>, other: Option<u64>| own.filter(|own| *own > 0).or(other).or(own);
        let prompt = first(prompt, self.input.map(|input| input + apart));
        let mut completion = first(self.completion, self.output);
        // Voyage reports the total of its embeddings alone.
        let mut prompt = prompt.or(self.total.filter(|_| completion.is_none()));
        let mut reasoning = self.reasoning.or(self.thoughts);
        let mut is_guessed = false;
        if let Some(thoughts) = self.thoughts {
            completion = Some(completion.unwrap_or(0) + thoughts);
        } else if let (Some(total), Some(own)) = (self.total, prompt) {
            let spare = total.saturating_sub(own + completion.unwrap_or(0));
            let stated = reasoning.filter(|own| *own > 0);
            if spare > 0 && spare == apart && stated != Some(spare) {
                // The prompt leaves out the cache.
                prompt = Some(own + spare);
            } else if spare > 0 {
                // xAI counts reasoning in the total alone, and so does Gemini, without a name for it, behind OpenAI's
                // names. Of other differences output is the dearest reading.
                completion = Some(completion.unwrap_or(0) + spare);
                is_guessed = apart > 0 || stated.is_some_and(|own| own != spare);
                reasoning = stated.or(Some(spare));
            }
        }
        Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: self
                .cached
                .or(self.cached_beside)
                .max(self.cache_hit)
                .max(self.cache_read),
            cache_write_tokens: self.cache_write.max(cache_creation),
            cache_write_1h_tokens: self.cache_creation_1h,
            reasoning_tokens: reasoning,
            audio_input_tokens: self.audio_input,
            audio_output_tokens: self.audio_output,
            image_input_tokens: self.image_input,
            image_output_tokens: self.image_output,
            audio_ms: self.audio_ms,
            web_searches: self.web_searches.or(Some(self.searched).filter(|own| *own > 0)),
            tool_calls: self.tool_calls,
            stated_nano_usd: match self.apart_nano_usd.filter(|_| self.is_byok) {
                Some(apart) => self.stated_nano_usd.map(|own| own.saturating_add(apart)),
                None => self.stated_nano_usd,
            },
            has_unknown: self.has_unknown || self.has_images || self.pictures > 0 || is_guessed,
            pictures: self.pictures,
            has_images: self.has_images,
        }
    }

    /// Figures of Anthropic's messages.
    fn messages(&mut self) -> [&mut Option<u64>; 6] {
        [
            &mut self.input,
            &mut self.output,
            &mut self.cache_read,
            &mut self.cache_creation,
            &mut self.cache_creation_5m,
            &mut self.cache_creation_1h,
        ]
    }

    fn add_messages(&mut self, mut other: Self) {
        for (own, other) in self.messages().into_iter().zip(other.messages()) {
            *own = other.map(|other| own.unwrap_or(0).saturating_add(other)).or(*own);
        }
    }

    fn raise_messages(&mut self, mut other: Self) {
        for (own, other) in self.messages().into_iter().zip(other.messages()) {
            *own = (*own).max(*other);
        }
    }

    /// Reads a member that states the cost.
    fn stated_cost(&mut self, key: &str, raw: &RawValue) {
        let (place, found) = match key {
            // OpenRouter, in dollars; Perplexity with its parts.
            "cost" => {
                let found = json::member(raw.get(), "total_cost").unwrap_or(raw.get());
                (&mut self.stated_nano_usd, dollars(found))
            }
            // xAI, in ten thousand millionths of a dollar.
            "cost_in_usd_ticks" => {
                let ticks = count(raw).map(|ticks| ticks.div_ceil(TICKS_A_NANO_USD));
                (&mut self.stated_nano_usd, ticks)
            }
            // OpenRouter: with a key of the caller's own, its provider bills this apart.
            "cost_details" => {
                let apart = json::member(raw.get(), "upstream_inference_cost");
                (&mut self.apart_nano_usd, apart.and_then(dollars))
            }
            _ => {
                self.is_byok |= raw.get() == "true";
                return;
            }
        };
        *place = found.max(*place);
    }

    /// Returns the field for the figure called `key`, if weir reads it.
    fn place(&mut self, key: &str) -> Option<&mut Option<u64>> {
        Some(match key {
            "prompt_tokens" | "promptTokenCount" => &mut self.prompt,
            "completion_tokens" | "candidatesTokenCount" => &mut self.completion,
            // Gemini's own total includes more than the parts read here.
            "total_tokens" => &mut self.total,
            "input_tokens" => &mut self.input,
            "output_tokens" => &mut self.output,
            "cached_tokens" | "cachedContentTokenCount" => &mut self.cached_beside,
            "prompt_cache_hit_tokens" | "num_cached_tokens" => &mut self.cache_hit,
            "cache_read_input_tokens" => &mut self.cache_read,
            "cache_creation_input_tokens" => &mut self.cache_creation,
            "thoughtsTokenCount" => &mut self.thoughts,
            // SGLang and Perplexity.
            "reasoning_tokens" => &mut self.reasoning,
            // Perplexity; xAI, which charges each source.
            "num_search_queries" | "num_sources_used" => &mut self.web_searches,
            "toolUsePromptTokenCount" => &mut self.tool_use_prompt,
            _ => return None,
        })
    }
}

/// Members of a `usage` object, and of the objects in it, that repeat others or are not billed.
const REPEATED: [&str; 19] = [
    "acceptance_rate",
    "accepted_prediction_tokens",
    "cached_tokens_details",
    "cacheTokensDetails",
    "estimated_cost",
    "extra_properties",
    "inference_geo",
    "input_length",
    "output_length",
    "prompt_cache_miss_tokens",
    "rejected_prediction_tokens",
    "service_tier",
    "speed",
    "text_tokens",
    "thoughtsTokenCount",
    "time_to_first_token",
    "totalTokenCount",
    "total_tokens",
    "type",
];
/// Ends of such members that state times and speeds.
const TIMES: [&str; 4] = ["_time", "_latency", "_per_sec", "_first_ten"];

fn is_repeated(key: &str) -> bool {
    REPEATED.contains(&key) || TIMES.iter().any(|end| key.ends_with(end))
}

/// Reader of a `usage` object. Of two reports about a figure the larger one counts.
pub(super) struct Figures<'n, 'de> {
    pub(super) named: &'n mut Named,
    pub(super) stated: &'n mut Stated<'de>,
    /// Inferences that the figures leave out.
    pub(super) apart: &'n mut Vec<InnerUsage>,
}

/// What a `usage` object says in addition to figures, as JSON texts. Anthropic reports these here.
#[derive(Default)]
pub(super) struct Stated<'de> {
    pub(super) service_tier: Option<&'de RawValue>,
    pub(super) speed: Option<&'de RawValue>,
    pub(super) region: Option<&'de RawValue>,
    /// Model that answered as a fallback.
    pub(super) model: Option<&'de RawValue>,
}

impl<'de> Reader<'de> for Figures<'_, 'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        if let Some(place) = self.named.place(key) {
            *place = count(map.next_value()?).max(*place);
            return Ok(());
        }
        let side = match key {
            // Mistral has the second next to the first.
            "prompt_tokens_details"
            | "prompt_token_details"
            | "input_tokens_details"
            | "input_token_details" => Side::Input,
            "completion_tokens_details" | "output_tokens_details" | "output_token_details" => {
                Side::Output
            }
            // Gemini's own API.
            "promptTokensDetails" | "candidatesTokensDetails" => {
                let side = if key.starts_with('p') { Side::Input } else { Side::Output };
                let mut parts = Modalities { named: self.named, side };
                return map.next_value_seed(Each(&mut parts)).map(drop);
            }
            "cache_creation" => Side::Written,
            "server_tool_use" | "server_side_tool_usage_details" => Side::Tools,
            "iterations" => {
                let mut iterations = Iterations::default();
                map.next_value_seed(Each(&mut iterations))?;
                self.stated.model = iterations.answering().or(self.stated.model);
                let apart = iterations.settle(self.named);
                // Each report has all of them.
                if apart.len() >= self.apart.len() {
                    *self.apart = apart;
                }
                return Ok(());
            }
            "seconds" | "prompt_audio_seconds" | "duration" => {
                let length = milliseconds(map.next_value()?);
                self.named.audio_ms = length.max(self.named.audio_ms);
                return Ok(());
            }
            "cost" | "cost_in_usd_ticks" | "is_byok" | "cost_details" => {
                self.named.stated_cost(key, map.next_value()?);
                return Ok(());
            }
            "service_tier" => return keep(&mut self.stated.service_tier, map),
            "speed" => return keep(&mut self.stated.speed, map),
            "inference_geo" => return keep(&mut self.stated.region, map),
            _ => {
                let value: &RawValue = map.next_value()?;
                self.named.has_unknown |= !is_repeated(key) && is_billed(value.get());
                return Ok(());
            }
        };
        // Details that are null or not an object contain nothing.
        let mut details = Details { named: self.named, side, calls: None };
        map.next_value_seed(Object(&mut details))?;
        let calls = details.calls;
        // Each report has all of them.
        self.named.tool_calls = calls.max(self.named.tool_calls);
        Ok(())
    }
}

fn keep<'de, A: MapAccess<'de>>(
    place: &mut Option<&'de RawValue>,
    map: &mut A,
) -> Result<(), A::Error> {
    *place = Some(map.next_value()?);
    Ok(())
}

/// Inference within an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InnerUsage {
    pub usage: Usage,
    /// Its model, if that is named: an advisor has prices of its own.
    pub model: Option<String>,
}

/// Inferences within one answer. Anthropic's figures leave out those of other types than `message`, such
/// as `compaction`, and bills include them. After a fallback they are those of the model that answers, and bills
/// include each attempt that has output (its guide to refusals and fallback).
#[derive(Default)]
struct Iterations<'de> {
    all: Vec<Iteration<'de>>,
}

/// Maximum number of inferences that are billed one by one; the others are billed together.
const MAX_ITERATIONS: usize = 32;
/// Maximum number of inferences that are read one by one.
const MOST_READ: usize = 1000;

#[derive(Default)]
struct Iteration<'de> {
    named: Named,
    kind: Option<&'de RawValue>,
    model: Option<&'de RawValue>,
}

impl Iteration<'_> {
    fn is(&self, kind: &str) -> bool {
        self.kind.is_some_and(|own| own.get().trim_matches('"') == kind)
    }

    fn model(&self) -> Option<Cow<'_, str>> {
        self.model.and_then(|raw| json::string(raw.get()))
    }
}

/// Type of the inferences of a fallback.
const FALLBACK: &str = "fallback_message";

impl<'de> Iterations<'de> {
    /// Returns the model of the last fallback.
    fn answering(&self) -> Option<&'de RawValue> {
        self.all.iter().rev().find(|own| own.is(FALLBACK))?.model
    }

    /// Returns those that are billed besides `named`, which gets the figures of the model that answers.
    fn settle(self, named: &mut Named) -> Vec<InnerUsage> {
        let answering = self.answering().and_then(|raw| json::string(raw.get()));
        let (mut apart, mut answered): (Vec<InnerUsage>, _) = (Vec::new(), Named::default());
        for own in &self.all {
            let is_message = own.is("message") || own.is(FALLBACK);
            let is_free = is_message && own.named.output.unwrap_or(0) == 0;
            let model = own.model();
            if is_free || is_message && answering.is_none() {
                continue;
            }
            if is_message && model == answering {
                answered.add_messages(own.named);
                continue;
            }
            let (usage, model) = (own.named.settle(), model.map(Cow::into_owned));
            match apart.get_mut(MAX_ITERATIONS - 1) {
                Some(last) => last.usage = last.usage.plus(usage),
                None => apart.push(InnerUsage { usage, model }),
            }
        }
        named.raise_messages(answered);
        apart
    }
}

impl<'de> Elements<'de> for Iterations<'de> {
    type Element = Iteration<'de>;

    fn next(&mut self) -> Iteration<'de> {
        Iteration::default()
    }

    fn done(&mut self, done: Iteration<'de>) {
        match self.all.get_mut(MOST_READ - 1) {
            Some(last) => last.named.add_messages(done.named),
            None => self.all.push(done),
        }
    }
}

impl<'de> Reader<'de> for Iteration<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "type" => keep(&mut self.kind, map),
            "model" => keep(&mut self.model, map),
            _ => {
                let (mut stated, mut apart) = (Stated::default(), Vec::new());
                let (named, stated, apart) = (&mut self.named, &mut stated, &mut apart);
                match key {
                    // Nothing has iterations of its own.
                    "iterations" => map.next_value::<IgnoredAny>().map(drop),
                    _ => Figures { named, stated, apart }.member(key, map),
                }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
    /// Writes to the cache, by lifetime.
    Written,
    /// Calls of the provider's own tools.
    Tools,
}

/// Reader of the details in a `usage` object.
struct Details<'n> {
    named: &'n mut Named,
    side: Side,
    /// Calls of tools other than the search.
    calls: Option<u64>,
}

impl<'de> Reader<'de> for Details<'_> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let named = &mut *self.named;
        let place = match (key, self.side) {
            ("cached_tokens", _) => &mut named.cached,
            ("cache_write_tokens" | "cache_creation_tokens" | "cache_creation_input_tokens", _) => {
                &mut named.cache_write
            }
            ("reasoning_tokens" | "thinking_tokens", _) => &mut named.reasoning,
            ("audio_tokens", Side::Input) => &mut named.audio_input,
            ("audio_tokens", Side::Output) => &mut named.audio_output,
            ("image_tokens", Side::Input) => &mut named.image_input,
            ("image_tokens", Side::Output) => &mut named.image_output,
            ("ephemeral_5m_input_tokens", Side::Written) => &mut named.cache_creation_5m,
            ("ephemeral_1h_input_tokens", Side::Written) => &mut named.cache_creation_1h,
            ("web_search_requests" | "web_search_calls", Side::Tools) => &mut named.web_searches,
            // Anthropic bills fetches and searches for tools by their tokens alone.
            ("web_fetch_requests" | "tool_search_requests", Side::Tools) => {
                map.next_value::<IgnoredAny>()?;
                return Ok(());
            }
            // LiteLLM; Qwen.
            ("cache_creation_token_details" | "cache_creation", Side::Input) => {
                let mut written = Details { named, side: Side::Written, calls: None };
                return map.next_value_seed(Object(&mut written)).map(drop);
            }
            (_, Side::Tools) => {
                if let Some(calls) = count(map.next_value()?) {
                    self.calls = Some(self.calls.unwrap_or(0).saturating_add(calls));
                }
                return Ok(());
            }
            _ => {
                let value: &RawValue = map.next_value()?;
                named.has_unknown |= !is_repeated(key) && is_billed(value.get());
                return Ok(());
            }
        };
        *place = count(map.next_value()?).max(*place);
        Ok(())
    }
}

/// Tokens by their kind, as lists of Gemini's own API have them.
struct Modalities<'n> {
    named: &'n mut Named,
    side: Side,
}

#[derive(Default)]
struct Modality<'de> {
    kind: Option<&'de RawValue>,
    tokens: Option<&'de RawValue>,
}

impl<'de> Elements<'de> for Modalities<'_> {
    type Element = Modality<'de>;

    fn next(&mut self) -> Modality<'de> {
        Modality::default()
    }

    fn done(&mut self, part: Modality<'de>) {
        let place = match (part.kind.map_or("", RawValue::get), self.side) {
            (r#""AUDIO""#, Side::Input) => &mut self.named.audio_input,
            (r#""AUDIO""#, _) => &mut self.named.audio_output,
            (r#""IMAGE""#, Side::Input) => &mut self.named.image_input,
            (r#""IMAGE""#, _) => &mut self.named.image_output,
            _ => return,
        };
        *place = part.tokens.and_then(count).max(*place);
    }
}

impl<'de> Reader<'de> for Modality<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "modality" => keep(&mut self.kind, map),
            "tokenCount" => keep(&mut self.tokens, map),
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

/// Whether a member that is not known may be billed: a number above zero, or an object or list with one.
fn is_billed(raw: &str) -> bool {
    let is_above_zero = |text: &str| text.parse::<f64>().is_ok_and(|number| number > 0.0);
    match raw.as_bytes().first() {
        Some(b'{') => json::members(raw).is_some_and(|members| {
            members.iter().any(|(name, raw)| !REPEATED.contains(&&**name) && is_flat_billed(raw))
        }),
        Some(b'[') => json::elements(raw).is_some_and(|list| list.into_iter().any(is_flat_billed)),
        _ => is_above_zero(raw),
    }
}

/// The same without a look into objects in it: those that hold anything may be billed.
fn is_flat_billed(raw: &str) -> bool {
    match raw.as_bytes().first() {
        Some(b'{') => raw.bytes().any(|byte| (b'1'..=b'9').contains(&byte)),
        _ => raw.parse::<f64>().is_ok_and(|number| number > 0.0),
    }
}

/// Parses `value` as a count in a plausible range: a number, rounded up, or a text of one, such as "1,000".
fn count(value: &RawValue) -> Option<u64> {
    let raw = value.get();
    let count = json::count(raw).or_else(|| {
        let text = raw.trim_matches('"');
        let is_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b',');
        let is_plain = text.starts_with(|first: char| first.is_ascii_digit());
        let plain = (is_plain && text.bytes().all(is_number)).then(|| text.replace(',', ""))?;
        plain.parse::<f64>().ok().map(|number| number.ceil() as u64)
    });
    count.filter(|&count| count <= MAX_COUNT)
}

/// Converts a number of dollars to nano-dollars, rounded up.
fn dollars(raw: &str) -> Option<u64> {
    let usd: f64 = raw.trim_matches('"').parse().ok()?;
    // Binary fractions of decimal amounts are off by less than a thousandth of a nano-dollar.
    (0.0..=MAX_STATED_USD).contains(&usd).then(|| (usd * 1e9 - 1e-3).ceil().max(0.0) as u64)
}

/// Highest plausible cost of a request.
const MAX_STATED_USD: f64 = 1e6;

/// Converts `value`, a number of seconds, to whole milliseconds.
pub(super) fn milliseconds(value: &RawValue) -> Option<u64> {
    let seconds: f64 = value.get().trim_matches('"').parse().ok()?;
    (0.0..=MAX_SECONDS).contains(&seconds).then(|| (seconds * 1000.0).round() as u64)
}
