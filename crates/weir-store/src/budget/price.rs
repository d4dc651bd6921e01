//! Prices of models, and the cost of one request. Bills the reported usage and rounds up once per
//! request. If a figure or a price is missing, it bills the rest and marks the cost as partial.
//!
//! Providers' published rules, as applied here:
//!
//! - Cached input, cache writes and audio are parts of the prompt; reasoning and audio are parts of
//!   the completion. Each has its own price if the provider publishes one.
//! - A tier above a prompt size (OpenAI above 272,000 tokens, Gemini and Anthropic above 200,000)
//!   applies to all tokens of the request, output included. The size counts the whole prompt,
//!   cached or not.
//! - `service_tier` (`flex`, `priority`, `batch`) changes all prices of a request.
//! - Usage covers all choices of a request with `n`; nothing is multiplied.

use std::fmt;
use std::fmt::Write as _;

use super::money::NanoUsd;

const TOKENS_PER_MTOK: u128 = 1_000_000;
/// Exclusive upper bound of a rate: a million dollars per million tokens, so a rate has at most 15
/// digits.
pub const RATE_END_NANO_USD_PER_MTOK: u64 = 1_000_000_000_000_000;
/// Maximum number of tiers per price.
pub const MAX_TIERS: usize = 8;

/// Token kinds with rates, in the order of [`Rates::from_parts`]: the word in a catalogue and the
/// configuration key of each.
pub const KINDS: [(&str, &str); 8] = [
    ("in", "input_usd_per_mtok"),
    ("cached", "cached_input_usd_per_mtok"),
    ("write", "cache_write_usd_per_mtok"),
    ("write1h", "cache_write_1h_usd_per_mtok"),
    ("out", "output_usd_per_mtok"),
    ("reasoning", "reasoning_usd_per_mtok"),
    ("audio_in", "audio_input_usd_per_mtok"),
    ("audio_out", "audio_output_usd_per_mtok"),
];

/// Price per million tokens in nano-dollars, by kind. A kind with `None` is billed as plain input
/// or output. That is normal for reasoning, which most providers bill as output; for other kinds
/// the bill is marked partial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    pub input_nano_usd_per_mtok: u64,
    pub cached_input_nano_usd_per_mtok: Option<u64>,
    pub cache_write_nano_usd_per_mtok: Option<u64>,
    /// Cache entries that live one hour, if they cost more than others.
    pub cache_write_1h_nano_usd_per_mtok: Option<u64>,
    pub output_nano_usd_per_mtok: u64,
    pub reasoning_nano_usd_per_mtok: Option<u64>,
    pub audio_input_nano_usd_per_mtok: Option<u64>,
    pub audio_output_nano_usd_per_mtok: Option<u64>,
}

impl Rates {
    /// Builds rates from parts in the order of [`KINDS`]. Returns `None` if input or output is
    /// missing, or if a rate is not below [`RATE_END_NANO_USD_PER_MTOK`].
    pub fn from_parts(parts: [Option<u64>; KINDS.len()]) -> Option<Self> {
        if parts.iter().flatten().any(|&rate| rate >= RATE_END_NANO_USD_PER_MTOK) {
            return None;
        }
        let [input, cached, write, write_1h, output, reasoning, audio_input, audio_output] = parts;
        Some(Self {
            input_nano_usd_per_mtok: input?,
            cached_input_nano_usd_per_mtok: cached,
            cache_write_nano_usd_per_mtok: write,
            cache_write_1h_nano_usd_per_mtok: write_1h,
            output_nano_usd_per_mtok: output?,
            reasoning_nano_usd_per_mtok: reasoning,
            audio_input_nano_usd_per_mtok: audio_input,
            audio_output_nano_usd_per_mtok: audio_output,
        })
    }

    /// Returns the rates in the order of [`KINDS`].
    fn parts(&self) -> [Option<u64>; KINDS.len()] {
        [
            Some(self.input_nano_usd_per_mtok),
            self.cached_input_nano_usd_per_mtok,
            self.cache_write_nano_usd_per_mtok,
            self.cache_write_1h_nano_usd_per_mtok,
            Some(self.output_nano_usd_per_mtok),
            self.reasoning_nano_usd_per_mtok,
            self.audio_input_nano_usd_per_mtok,
            self.audio_output_nano_usd_per_mtok,
        ]
    }
}

/// Rates for prompts above a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The tier applies to prompts larger than this.
    pub above_prompt_tokens: u64,
    pub rates: Rates,
}

/// Price of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Price {
    pub rates: Rates,
    /// Tiers by size, smallest first.
    pub tiers: Vec<Tier>,
    /// Rates of non-standard service tiers. They have no size tiers.
    pub service_tiers: Vec<(ServiceTier, Rates)>,
}

impl Price {
    /// Creates a price without size tiers or service tiers.
    pub fn flat(rates: Rates) -> Self {
        Self { rates, ..Self::default() }
    }

    /// Parses a price in catalogue form. It lists rates in dollars per million tokens, each after
    /// its word from [`KINDS`], then tiers in rising order, each as `above` and a token count.
    /// Example: `in 1.25 cached 0.125 out 10 above 200000 in 2.5 cached 0.25 out 15`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (rates, mut above) = parse_rates(&mut words)?;
        let mut tiers: Vec<Tier> = Vec::new();
        while let Some(above_prompt_tokens) = above {
            let last = tiers.last().map(|last| last.above_prompt_tokens);
            if last >= Some(above_prompt_tokens) || tiers.len() == MAX_TIERS {
                return None;
            }
            let (rates, next) = parse_rates(&mut words)?;
            tiers.push(Tier { above_prompt_tokens, rates });
            above = next;
        }
        Some(Self { rates, tiers, service_tiers: Vec::new() })
    }

    /// Returns the maximum cost of a request with this prompt size as a function of its output, for
    /// any cache use and any service tier.
    pub fn bound(&self, prompt_tokens: u64, service_tier: Option<ServiceTier>) -> OutputBound {
        let of_tiers = self.service_tiers.iter();
        let served = of_tiers.filter(|(tier, _)| service_tier.is_none_or(|asked| asked == *tier));
        let by_size = self.rates(prompt_tokens, ServiceTier::Standard).0;
        let mut most = OutputBound::default();
        let mut input_nano_usd_per_mtok = 0;
        for rates in served.map(|(_, rates)| rates).chain([by_size]) {
            let inputs = [
                Some(rates.input_nano_usd_per_mtok),
                rates.cache_write_nano_usd_per_mtok,
                rates.cache_write_1h_nano_usd_per_mtok,
            ];
            let outputs = [Some(rates.output_nano_usd_per_mtok), rates.reasoning_nano_usd_per_mtok];
            for rate in inputs.into_iter().flatten() {
                input_nano_usd_per_mtok = input_nano_usd_per_mtok.max(rate);
            }
            for rate in outputs.into_iter().flatten() {
                most.output_nano_usd_per_mtok = most.output_nano_usd_per_mtok.max(rate);
            }
        }
        let base = u128::from(prompt_tokens) * u128::from(input_nano_usd_per_mtok);
        most.base_nano_usd = u64::try_from(base.div_ceil(TOKENS_PER_MTOK)).unwrap_or(u64::MAX);
        most
    }

    /// Returns the rates for a prompt size, and whether they do not apply exactly to this request.
    fn rates(&self, prompt_tokens: u64, service_tier: ServiceTier) -> (&Rates, bool) {
        let tier = self.tiers.iter().rev().find(|tier| prompt_tokens > tier.above_prompt_tokens);
        let by_size = tier.map_or(&self.rates, |tier| &tier.rates);
        if service_tier == ServiceTier::Standard {
            return (by_size, false);
        }
        match self.service_tiers.iter().find(|(priced, _)| *priced == service_tier) {
            Some((_, rates)) => (rates, tier.is_some()),
            None => (by_size, true),
        }
    }
}

/// Maximum cost of a request as a function of its output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBound {
    /// Cost without output.
    pub base_nano_usd: u64,
    pub output_nano_usd_per_mtok: u64,
}

impl OutputBound {
    /// Returns the cost with `output_tokens` of output, rounded up.
    pub fn nano_usd(&self, output_tokens: u64) -> u64 {
        let output = u128::from(output_tokens) * u128::from(self.output_nano_usd_per_mtok);
        let all = u128::from(self.base_nano_usd) + output.div_ceil(TOKENS_PER_MTOK);
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// Parses the rates at the start of `words`, and the size of the tier that follows them.
fn parse_rates<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<(Rates, Option<u64>)> {
    let mut parts = [None; KINDS.len()];
    let mut above = None;
    while let Some(word) = words.next() {
        if word == "above" {
            above = Some(words.next()?.parse().ok()?);
            break;
        }
        let kind = KINDS.iter().position(|(kind, _)| *kind == word)?;
        let NanoUsd(rate) = NanoUsd::parse(words.next()?)?;
        if parts[kind].replace(rate).is_some() {
            return None;
        }
    }
    Some((Rates::from_parts(parts)?, above))
}

/// Formats for [`Price::parse`], without the rates of service tiers.
impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write_rates(&mut text, &self.rates);
        for tier in &self.tiers {
            write!(text, " above {} ", tier.above_prompt_tokens)?;
            write_rates(&mut text, &tier.rates);
        }
        f.pad(&text)
    }
}

fn write_rates(text: &mut String, rates: &Rates) {
    let mut space = "";
    for ((word, _), rate) in KINDS.iter().zip(rates.parts()) {
        if let Some(rate) = rate {
            write!(text, "{space}{word} {}", NanoUsd(rate).digits(0))
                .expect("writing to a string cannot fail");
            space = " ";
        }
    }
}

/// Service tier of a request, which may change its price.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceTier {
    #[default]
    Standard,
    Flex,
    Priority,
    Batch,
    /// A tier without a known price.
    Other,
}

impl ServiceTier {
    /// Maps an answer's `service_tier` value. The standard tier is `default` at OpenAI, `standard`
    /// at Anthropic and `on_demand` at Groq. `auto` appears only in requests and leaves the tier
    /// open.
    pub fn from_name(name: &str) -> Self {
        match name {
            "" | "default" | "standard" | "on_demand" | "auto" => Self::Standard,
            "flex" => Self::Flex,
            "priority" => Self::Priority,
            "batch" => Self::Batch,
            _ => Self::Other,
        }
    }
}

/// Usage figures of a request. `None` means not reported; zero is a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Billed {
    /// All input, cached or not.
    pub prompt_tokens: Option<u64>,
    /// All output of all choices, including reasoning.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens read from the provider's cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens written to the cache.
    pub cache_write_tokens: Option<u64>,
    /// Cache writes with a lifetime of one hour.
    pub cache_write_1h_tokens: Option<u64>,
    /// Completion tokens used for reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Audio tokens of the prompt.
    pub audio_input_tokens: Option<u64>,
    /// Audio tokens of the completion.
    pub audio_output_tokens: Option<u64>,
    pub service_tier: ServiceTier,
}

/// Cost of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub nano_usd: u64,
    /// Whether the true cost may differ: a figure or a price was missing, or figures contradicted
    /// each other.
    pub partly: bool,
}

/// Computes the cost of `billed` at `price`, rounded up once to a nano-dollar and capped at the
/// largest amount.
///
/// A part larger than its whole (cached input above the prompt) raises the whole to the sum of its
/// parts. Some gateways report the prompt without them, and that must not reduce the bill.
pub fn cost(price: &Price, billed: &Billed) -> Cost {
    let bill = bill(price, billed);
    let nano_usd = bill.nano_usd_mtok.div_ceil(TOKENS_PER_MTOK);
    Cost { nano_usd: u64::try_from(nano_usd).unwrap_or(u64::MAX), partly: bill.is_partial }
}

/// A bill before rounding.
pub(super) struct Bill {
    /// In nano-dollars times a million.
    pub nano_usd_mtok: u128,
    is_partial: bool,
}

impl Bill {
    fn add(&mut self, tokens: u64, rate_nano_usd_per_mtok: u64) {
        let amount = u128::from(tokens) * u128::from(rate_nano_usd_per_mtok);
        self.nano_usd_mtok = self.nano_usd_mtok.saturating_add(amount);
    }

    /// Adds tokens at their own rate, or at `else_rate` if there is none.
    fn add_apart(&mut self, tokens: u64, rate: Option<u64>, else_rate: u64) {
        self.is_partial |= tokens > 0 && rate.is_none() && else_rate > 0;
        self.add(tokens, rate.unwrap_or(else_rate));
    }

    /// Returns the whole, but at least `least`, the sum of its parts.  Marks the bill as partial if
    /// the whole is missing or too small.
    fn whole(&mut self, reported: Option<u64>, least: u64, rate: u64) -> u64 {
        self.is_partial |= match reported {
            Some(tokens) => tokens < least,
            None => rate > 0 || least > 0,
        };
        reported.unwrap_or(0).max(least)
    }
}

/// Computes the exact bill.
pub(super) fn bill(price: &Price, billed: &Billed) -> Bill {
    let cached = billed.cached_tokens.unwrap_or(0);
    let write_1h = billed.cache_write_1h_tokens.unwrap_or(0);
    let write = billed.cache_write_tokens.unwrap_or(0).max(write_1h);
    let audio_input = billed.audio_input_tokens.unwrap_or(0);
    let input_parts = cached.saturating_add(write).max(audio_input);
    let size = billed.prompt_tokens.unwrap_or(0).max(input_parts);
    let (rates, is_unlike) = price.rates(size, billed.service_tier);
    let mut bill = Bill { nano_usd_mtok: 0, is_partial: is_unlike };

    let input_rate = rates.input_nano_usd_per_mtok;
    let prompt = bill.whole(billed.prompt_tokens, input_parts, input_rate);
    let fresh = prompt - cached.saturating_add(write);
    // Providers do not report how much of the audio was cached. Tokens billed as cached are not
    // billed as audio.
    let fresh_audio = audio_input.min(fresh);
    bill.is_partial |= audio_input > 0 && cached.saturating_add(write) > 0;
    bill.add(fresh - fresh_audio, input_rate);
    bill.add_apart(fresh_audio, rates.audio_input_nano_usd_per_mtok, input_rate);
    bill.add_apart(cached, rates.cached_input_nano_usd_per_mtok, input_rate);
    let write_rate = rates.cache_write_nano_usd_per_mtok;
    bill.add_apart(write - write_1h, write_rate, input_rate);
    let write_1h_else = write_rate.unwrap_or(input_rate);
    bill.add_apart(write_1h, rates.cache_write_1h_nano_usd_per_mtok, write_1h_else);

    let output_rate = rates.output_nano_usd_per_mtok;
    let reasoning = billed.reasoning_tokens.unwrap_or(0);
    let audio_output = billed.audio_output_tokens.unwrap_or(0);
    let output_parts = reasoning.saturating_add(audio_output);
    let completion = bill.whole(billed.completion_tokens, output_parts, output_rate);
    let audio_output = audio_output.min(completion - reasoning);
    bill.add(completion - reasoning - audio_output, output_rate);
    bill.add(reasoning, rates.reasoning_nano_usd_per_mtok.unwrap_or(output_rate));
    bill.add_apart(audio_output, rates.audio_output_nano_usd_per_mtok, output_rate);
    bill
}

#[cfg(test)]
mod tests;
