//! Figures of a `usage` object, under the names that providers use. Reads numbers; knows no prices.

use serde::de::{IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use super::reader::{Object, Reader};
use crate::wire::json;

/// Largest integer that every JSON reader keeps exactly; a larger token count is invalid.
pub(super) const MAX_COUNT: u64 = 1 << 53;
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
    /// Duration of the audio, if that is billed.
    pub audio_ms: Option<u64>,
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
            audio_ms: sum(self.audio_ms, other.audio_ms),
        }
    }
}

/// Figures under their original names; later reports about an answer override earlier ones.
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
    /// DeepSeek.
    cache_hit: Option<u64>,
    /// Anthropic.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    /// `cache_write_tokens` in the details of the prompt.
    cache_write: Option<u64>,
    reasoning: Option<u64>,
    /// Gemini's own API, which counts them separately from the completion.
    thoughts: Option<u64>,
    tool_use_prompt: Option<u64>,
    audio_input: Option<u64>,
    audio_output: Option<u64>,
    image_input: Option<u64>,
    audio_ms: Option<u64>,
}

impl Named {
    /// Normalises the figures.
    pub(super) fn settle(self) -> Usage {
        let apart = self.cache_read.unwrap_or(0) + self.cache_creation.unwrap_or(0);
        let prompt = self.prompt.map(|prompt| prompt + self.tool_use_prompt.unwrap_or(0));
        let prompt = prompt.or(self.input.map(|input| input + apart));
        let mut completion = self.completion.or(self.output);
        let mut reasoning = self.reasoning.or(self.thoughts);
        if let Some(thoughts) = self.thoughts {
            completion = Some(completion.unwrap_or(0) + thoughts);
        } else if let (Some(total), Some(prompt)) = (self.total, prompt) {
            let spare = total.saturating_sub(prompt + completion.unwrap_or(0));
            // xAI counts reasoning in the total alone, and so does Gemini, without a name for it,
            // behind OpenAI's names. A difference that may come from the cache is left alone.
            let is_reasoning = reasoning.map_or(apart == 0, |reasoning| reasoning == spare);
            if spare > 0 && is_reasoning {
                completion = Some(completion.unwrap_or(0) + spare);
                reasoning = Some(spare);
            }
        }
        Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: self
                .cached
                .or(self.cached_beside)
                .or(self.cache_hit)
                .or(self.cache_read),
            cache_write_tokens: self.cache_write.or(self.cache_creation),
            reasoning_tokens: reasoning,
            audio_input_tokens: self.audio_input,
            audio_output_tokens: self.audio_output,
            image_input_tokens: self.image_input,
            audio_ms: self.audio_ms,
        }
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
            "prompt_cache_hit_tokens" => &mut self.cache_hit,
            "cache_read_input_tokens" => &mut self.cache_read,
            "cache_creation_input_tokens" => &mut self.cache_creation,
            "thoughtsTokenCount" => &mut self.thoughts,
            "toolUsePromptTokenCount" => &mut self.tool_use_prompt,
            _ => return None,
        })
    }
}

/// Reader of a `usage` object, which overrides earlier reports figure by figure.
pub(super) struct Figures<'n, 'de> {
    pub(super) named: &'n mut Named,
    /// Anthropic reports the tier here, as a JSON text.
    pub(super) service_tier: &'n mut Option<&'de RawValue>,
}

impl<'de> Reader<'de> for Figures<'_, 'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        if let Some(place) = self.named.place(key) {
            *place = count(map.next_value()?).or(*place);
            return Ok(());
        }
        let side = match key {
            "prompt_tokens_details" | "input_tokens_details" | "input_token_details" => Side::Input,
            "completion_tokens_details" | "output_tokens_details" | "output_token_details" => {
                Side::Output
            }
            "seconds" | "prompt_audio_seconds" => {
                let length = milliseconds(map.next_value()?);
                self.named.audio_ms = length.or(self.named.audio_ms);
                return Ok(());
            }
            "service_tier" => {
                *self.service_tier = Some(map.next_value()?);
                return Ok(());
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
                return Ok(());
            }
        };
        // Details that are null or not an object contain nothing.
        map.next_value_seed(Object(&mut Details { named: self.named, side }))?;
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

/// Reader of the details in a `usage` object.
struct Details<'n> {
    named: &'n mut Named,
    side: Side,
}

impl<'de> Reader<'de> for Details<'_> {
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let named = &mut *self.named;
        let place = match (key, self.side) {
            ("cached_tokens", _) => &mut named.cached,
            ("cache_write_tokens", _) => &mut named.cache_write,
            ("reasoning_tokens", _) => &mut named.reasoning,
            ("audio_tokens", Side::Input) => &mut named.audio_input,
            ("audio_tokens", Side::Output) => &mut named.audio_output,
            ("image_tokens", Side::Input) => &mut named.image_input,
            _ => {
                map.next_value::<IgnoredAny>()?;
                return Ok(());
            }
        };
        *place = count(map.next_value()?).or(*place);
        Ok(())
    }
}

/// Parses `value` as a count: a whole number in a plausible range.
fn count(value: &RawValue) -> Option<u64> {
    json::count(value.get()).filter(|&count| count <= MAX_COUNT)
}

/// Converts `value`, a number of seconds, to whole milliseconds.
fn milliseconds(value: &RawValue) -> Option<u64> {
    let seconds: f64 = value.get().parse().ok()?;
    (0.0..=MAX_SECONDS).contains(&seconds).then(|| (seconds * 1000.0).round() as u64)
}
