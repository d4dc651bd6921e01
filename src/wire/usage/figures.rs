//! The figures of a `usage` object, under the names that providers give them. Reads numbers; says
//! nothing of what they cost.

use serde::de::{IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use super::reader::{Object, Reader};

/// The largest integer that every JSON reader keeps exactly; more tokens than this is nonsense.
pub(super) const MAX_COUNT: u64 = 1 << 53;
/// The longest sound that is believed: a year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

/// What the provider reported. Zero is a report, `None` is none.
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
    /// Input that is sound; part of `prompt_tokens`.
    pub audio_input_tokens: Option<u64>,
    /// Output that is sound; part of `completion_tokens`.
    pub audio_output_tokens: Option<u64>,
    /// Input that is pictures; part of `prompt_tokens`.
    pub image_input_tokens: Option<u64>,
    /// How long the sound was, where that is what is billed.
    pub audio_ms: Option<u64>,
}

/// The figures as they are named; those of several reports about one answer lie over each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// OpenAI's chat completions and all who copy them; Gemini's own API.
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    /// OpenAI's Responses, which count the cache in, and Anthropic, who count it apart.
    input: Option<u64>,
    output: Option<u64>,
    /// `cached_tokens` in the details of the prompt.
    cached: Option<u64>,
    /// The same, beside the prompt.
    cached_beside: Option<u64>,
    /// DeepSeek.
    cache_hit: Option<u64>,
    /// Anthropic.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    /// `cache_write_tokens` in the details of the prompt.
    cache_write: Option<u64>,
    reasoning: Option<u64>,
    /// Gemini's own API, which counts them apart from the completion.
    thoughts: Option<u64>,
    tool_use_prompt: Option<u64>,
    audio_input: Option<u64>,
    audio_output: Option<u64>,
    image_input: Option<u64>,
    audio_ms: Option<u64>,
}

impl Named {
    /// The figures as they are meant.
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
            // behind OpenAI's names. A difference that may be the cache's is left alone.
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

    /// Where the figure called `key` is kept, if it is one that is read.
    fn place(&mut self, key: &str) -> Option<&mut Option<u64>> {
        Some(match key {
            "prompt_tokens" | "promptTokenCount" => &mut self.prompt,
            "completion_tokens" | "candidatesTokenCount" => &mut self.completion,
            // Gemini's own total takes in more than its parts that are read here.
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

/// A `usage` object, which goes over what was reported before, figure by figure.
pub(super) struct Figures<'n, 'de> {
    pub(super) named: &'n mut Named,
    /// Anthropic tells the tier here, as a JSON text.
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
        // Details that are null or no object tell nothing.
        map.next_value_seed(Object(&mut Details { named: self.named, side }))?;
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

/// The details in a `usage` object.
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

/// `value` as a count: a whole number that is not absurd.
fn count(value: &RawValue) -> Option<u64> {
    let text = value.get();
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&count| count <= MAX_COUNT)
}

/// `value`, a number of seconds, in whole milliseconds.
fn milliseconds(value: &RawValue) -> Option<u64> {
    let seconds: f64 = value.get().parse().ok()?;
    (0.0..=MAX_SECONDS).contains(&seconds).then(|| (seconds * 1000.0).round() as u64)
}
