//! What a model's tokens cost, and what one request's came to. Bills what was reported, with one
//! rounding, up, per request; where a figure or a price is missing it bills what it can and says
//! that it did.
//!
//! The rules that providers publish, as they are applied here:
//!
//! - Cached input, cache writes and audio are parts of the prompt, reasoning and audio parts of the
//!   completion, each with a price of its own where the provider has one.
//! - A tier above a size of prompt (OpenAI above 272,000 tokens, Gemini and Anthropic above 200,000)
//!   holds for all tokens of that request, output too. The size is that of the whole prompt, cached
//!   or not.
//! - `service_tier` (`flex`, `priority`, `batch`) changes all prices of a request.
//! - Usage covers all choices of a request with `n`; nothing is multiplied.

use std::fmt;
use std::fmt::Write as _;

use super::money::NanoUsd;

const TOKENS_PER_MTOK: u128 = 1_000_000;
/// A rate lies below this: a million dollars for a million tokens. So every rate has at most 15
/// digits.
pub const RATE_END_NANO_USD_PER_MTOK: u64 = 1_000_000_000_000_000;
/// A price has at most so many tiers.
pub const MAX_TIERS: usize = 8;

/// The kinds of tokens that have rates, in the order of [`Rates::from_parts`]: the word of each in a
/// catalogue, and its key in the configuration.
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

/// What a million tokens cost, in nano-dollars, by kind. `None` where there is no price apart: then
/// the kind is billed as plain input or output. Reasoning has none at most providers and is simply
/// output; of the others a bill says that it is partial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    pub input_nano_usd_per_mtok: u64,
    pub cached_input_nano_usd_per_mtok: Option<u64>,
    pub cache_write_nano_usd_per_mtok: Option<u64>,
    /// Of cache entries that live an hour, where they cost more than others.
    pub cache_write_1h_nano_usd_per_mtok: Option<u64>,
    pub output_nano_usd_per_mtok: u64,
    pub reasoning_nano_usd_per_mtok: Option<u64>,
    pub audio_input_nano_usd_per_mtok: Option<u64>,
    pub audio_output_nano_usd_per_mtok: Option<u64>,
}

impl Rates {
    /// The rates given in the order of [`KINDS`]; `None` where input or output is missing, or one
    /// does not lie below [`RATE_END_NANO_USD_PER_MTOK`].
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

    /// The rates in the order of [`KINDS`].
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

/// Rates of requests whose prompt is larger than a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The largest prompt that the tier does not hold for.
    pub above_prompt_tokens: u64,
    pub rates: Rates,
}

/// What a model costs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Price {
    pub rates: Rates,
    /// By size, the smallest first.
    pub tiers: Vec<Tier>,
    /// Rates of other service tiers than the standard one. They have no tiers by size.
    pub service_tiers: Vec<(ServiceTier, Rates)>,
}

impl Price {
    /// A price that is the same whatever the prompt's size and the service tier.
    pub fn flat(rates: Rates) -> Self {
        Self { rates, ..Self::default() }
    }

    /// Reads a price as catalogues write it: rates in dollars for a million tokens, each behind its
    /// word of [`KINDS`], then tiers, each behind `above` and a number of tokens, in rising order.
    /// Such as `in 1.25 cached 0.125 out 10 above 200000 in 2.5 cached 0.25 out 15`.
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

    /// The most that a request of so many prompt tokens may cost, whatever of them is cached and
    /// however it is served, by its output.
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

    /// The rates of a request of so many prompt tokens, and whether the price does not hold for a
    /// request like this one.
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

/// What a request may cost at most, by its output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBound {
    /// Without any.
    pub base_nano_usd: u64,
    pub output_nano_usd_per_mtok: u64,
}

impl OutputBound {
    /// With so many tokens of it, rounded up.
    pub fn nano_usd(&self, output_tokens: u64) -> u64 {
        let output = u128::from(output_tokens) * u128::from(self.output_nano_usd_per_mtok);
        let all = u128::from(self.base_nano_usd) + output.div_ceil(TOKENS_PER_MTOK);
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// The rates that `words` begin with, and the size that the tier behind them begins above.
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

/// As [`Price::parse`] reads it; rates of service tiers are left out.
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
            write!(text, "{space}{word} {}", NanoUsd(rate).digits(0)).expect("a string takes all");
            space = " ";
        }
    }
}

/// How a request was served, which may change its price.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceTier {
    #[default]
    Standard,
    Flex,
    Priority,
    Batch,
    /// One that weir knows no price for.
    Other,
}

impl ServiceTier {
    /// The tier that an answer calls `name`. OpenAI says `default` of its standard one, Anthropic
    /// `standard`, Groq `on_demand`; `auto` is what a request asks and leaves the tier open.
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

/// The figures that a request is billed by. `None` is a figure that nobody reported; zero is a
/// report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Billed {
    /// All input, cached or not.
    pub prompt_tokens: Option<u64>,
    /// All output of all choices, reasoning too.
    pub completion_tokens: Option<u64>,
    /// The part of the prompt that was read from the provider's cache.
    pub cached_tokens: Option<u64>,
    /// The part of the prompt that was written to it.
    pub cache_write_tokens: Option<u64>,
    /// The part of that which is to live an hour.
    pub cache_write_1h_tokens: Option<u64>,
    /// The part of the completion that was reasoning.
    pub reasoning_tokens: Option<u64>,
    /// The part of the prompt that was sound.
    pub audio_input_tokens: Option<u64>,
    /// The part of the completion that was sound.
    pub audio_output_tokens: Option<u64>,
    pub service_tier: ServiceTier,
}

/// What a request came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub nano_usd: u64,
    /// Whether a figure or a price was missing, or figures contradicted each other, so that the true
    /// cost may be another.
    pub partly: bool,
}

/// What `billed` comes to at `price`, rounded up once to a nano-dollar; the largest amount where that
/// is passed.
///
/// A part that is larger than its whole (cached input above the prompt) makes the whole as large as
/// its parts: some gateways report the prompt without them, and a bill must not shrink by that.
pub fn cost(price: &Price, billed: &Billed) -> Cost {
    let bill = bill(price, billed);
    let nano_usd = bill.nano_usd_mtok.div_ceil(TOKENS_PER_MTOK);
    Cost { nano_usd: u64::try_from(nano_usd).unwrap_or(u64::MAX), partly: bill.is_partial }
}

/// A bill before it is rounded.
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

    /// Adds tokens that may have a rate of their own, at `else_rate` if not.
    fn add_apart(&mut self, tokens: u64, rate: Option<u64>, else_rate: u64) {
        self.is_partial |= tokens > 0 && rate.is_none() && else_rate > 0;
        self.add(tokens, rate.unwrap_or(else_rate));
    }

    /// Notes what is missing of a whole that was `reported` and is at least the `least` of its parts.
    fn whole(&mut self, reported: Option<u64>, least: u64, rate: u64) -> u64 {
        self.is_partial |= match reported {
            Some(tokens) => tokens < least,
            None => rate > 0 || least > 0,
        };
        reported.unwrap_or(0).max(least)
    }
}

/// The exact bill.
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
    // Nobody tells how much of the sound was cached. What is billed as cached is not billed as sound.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn price(text: &str) -> Price {
        Price::parse(text).unwrap_or_else(|| panic!("{text} is a price"))
    }

    /// Figures in the order prompt, completion, cached, cache write, reasoning; -1 is missing.
    fn billed(figures: [i64; 5]) -> Billed {
        let [prompt, completion, cached, write, reasoning] =
            figures.map(|figure| u64::try_from(figure).ok());
        Billed {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: cached,
            cache_write_tokens: write,
            reasoning_tokens: reasoning,
            ..Billed::default()
        }
    }

    const GPT_4O: &str = "in 2.5 cached 1.25 out 10";
    const GPT_5: &str = "in 1.25 cached 0.125 out 10";
    const GPT_5_4: &str = "in 2.5 cached 0.25 out 15 above 272000 in 5 cached 0.5 out 22.5";
    const SONNET: &str = "in 3 cached 0.3 write 3.75 out 15";
    const DEEPSEEK: &str = "in 0.28 cached 0.028 out 0.42";
    const GEMINI: &str = "in 1.25 cached 0.125 out 10 above 200000 in 2.5 cached 0.25 out 15";
    const QWEN: &str = "in 0.4 out 1.2 reasoning 4";

    /// Bills worked out by hand, in dollars.
    #[test]
    fn bills_of_the_main_vendors() {
        for (name, text, figures, dollars) in [
            // 1,000 × 2.50 + 500 × 10, by the million.
            ("plain", GPT_4O, [1000, 500, -1, -1, -1], "0.0075"),
            // 976 × 2.50 + 1,024 × 1.25 + 100 × 10 = 2,440 + 1,280 + 1,000.
            ("cached", GPT_4O, [2000, 100, 1024, -1, -1], "0.00472"),
            // Reasoning is output: 100 × 1.25 + 900 × 10, of which 800 are reasoning.
            ("reasoning is output", GPT_5, [100, 900, 0, -1, 800], "0.009125"),
            // At the border, the lower tier: 272,000 × 2.50 + 10 × 15.
            ("at the border", GPT_5_4, [272_000, 10, 0, -1, 0], "0.68015"),
            // One above, all at the upper: 272,001 × 5 + 10 × 22.50.
            ("above the border", GPT_5_4, [272_001, 10, 0, -1, 0], "1.36023"),
            // The size counts what is cached: 22,000 × 5 + 278,000 × .50 + 1,000 × 22.50.
            ("cached above the border", GPT_5_4, [300_000, 1000, 278_000, -1, 0], "0.2715"),
            // 10 × 3 + 100,000 × .30 + 2,000 × 3.75 + 400 × 15 = 30 + 30,000 + 7,500 + 6,000.
            ("cache read and write", SONNET, [102_010, 400, 100_000, 2000, -1], "0.04353"),
            // All of it written: 5,000 × 3.75 + 1 × 15.
            ("cache write alone", SONNET, [5000, 1, 0, 5000, -1], "0.018765"),
            // 8 missed × .28 + 12 hit × .028 + 5 × .42 = 2.24 + .336 + 2.1 millionths.
            ("hits and misses", DEEPSEEK, [20, 5, 12, -1, -1], "0.000004676"),
            // 200,000 × 1.25 + 100 × 10.
            ("long context, not yet", GEMINI, [200_000, 100, -1, -1, -1], "0.251"),
            // 50,000 × 2.50 + 200,000 × .25 + 100 × 15.
            ("long context", GEMINI, [250_000, 100, 200_000, -1, -1], "0.1765"),
            // 1,000 × .40 + 300 × 1.20 + 700 × 4.
            ("reasoning priced apart", QWEN, [1000, 1000, -1, -1, 700], "0.00356"),
            // Four choices of 50 tokens each: usage has their sum.
            ("n choices", GPT_4O, [100, 200, -1, -1, -1], "0.00225"),
            ("zero is a figure", GPT_4O, [0, 0, 0, 0, 0], "0"),
        ] {
            let expected = NanoUsd::parse(dollars).expect("dollars");
            let cost = cost(&price(text), &billed(figures));
            assert_eq!((NanoUsd(cost.nano_usd), cost.partly), (expected, false), "{name}");
        }
    }

    #[test]
    fn a_request_is_rounded_once_and_up() {
        // Three parts of .4 nano-dollars each come to 1.2, so to 2; one of them to 1.
        let price = price("in 0.0004 cached 0.0004 out 0.0004");
        let nanos = |figures| cost(&price, &billed(figures)).nano_usd;
        assert_eq!(nanos([2, 1, 1, -1, -1]), 2);
        assert_eq!(nanos([1, 0, 0, -1, -1]), 1);
        assert_eq!(nanos([5, 0, 0, -1, -1]), 2);
        assert_eq!(nanos([0, 0, 0, -1, -1]), 0);
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_billed_in_part() {
        for (name, text, figures, dollars) in [
            ("no prompt", GPT_4O, [-1, 100, -1, -1, -1], "0.001"),
            ("no completion", GPT_4O, [100, -1, -1, -1, -1], "0.00025"),
            ("nothing", GPT_4O, [-1; 5], "0"),
            ("parts without their wholes", GPT_4O, [-1, -1, 100, -1, 10], "0.000225"),
            ("cached above the prompt", GPT_4O, [10, 0, 1000, -1, -1], "0.00125"),
            ("cached and written above it", SONNET, [10, 0, 1000, 1000, -1], "0.00405"),
            ("reasoning above the completion", GPT_4O, [0, 9, 0, -1, 94], "0.00094"),
            ("no price for cached input", QWEN, [1000, 0, 500, -1, -1], "0.0004"),
            ("no price for cache writes", GPT_4O, [1000, 0, 0, 500, -1], "0.0025"),
        ] {
            let expected = NanoUsd::parse(dollars).expect("dollars");
            let cost = cost(&price(text), &billed(figures));
            assert_eq!((NanoUsd(cost.nano_usd), cost.partly), (expected, true), "{name}");
        }
        // Embeddings have no output, and no price for it.
        let embedding = cost(&price("in 0.02 out 0"), &billed([1000, -1, -1, -1, -1]));
        assert_eq!(embedding, Cost { nano_usd: 20_000, partly: false });
    }

    #[test]
    fn service_tiers_have_their_own_rates_or_are_billed_in_part() {
        let mut priced = price(GPT_5_4);
        let flex = price("in 1.25 cached 0.125 out 7.5").rates;
        priced.service_tiers.push((ServiceTier::Flex, flex));
        for (name, prompt, nanos, partly) in [
            ("default", 1000, 2_500_000, false),
            ("standard", 1000, 2_500_000, false),
            ("flex", 1000, 1_250_000, false),
            ("priority", 1000, 2_500_000, true),
            ("batch", 1000, 2_500_000, true),
            ("scale", 1000, 2_500_000, true),
            ("batch", 300_000, 1_500_000_000, true),
            ("flex", 300_000, 375_000_000, true),
        ] {
            let service_tier = ServiceTier::from_name(name);
            let billed = Billed { service_tier, ..billed([prompt, 0, 0, -1, -1]) };
            let expected = Cost { nano_usd: nanos, partly };
            assert_eq!(cost(&priced, &billed), expected, "{name} {prompt}");
        }
    }

    #[test]
    fn sound_and_long_lived_cache_entries_have_their_own_rates_or_are_billed_in_part() {
        let apart = "in 2.5 cached 1.25 write 3 write1h 5 out 10 audio_in 40 audio_out 80";
        for (name, text, audio, hour, cached, expected, partly) in [
            // 900 × 2.50 + 100 × 40, then 80 × 10 + 20 × 80.
            ("sound", apart, (100, 20), 0, 0, 8_650_000, false),
            ("sound at no price of its own", GPT_4O, (100, 20), 0, 0, 3_500_000, true),
            // 500 × 2.50 + 400 × 1.25 + 100 × 40, then the output.
            ("sound and a cache", apart, (100, 0), 0, 400, 6_750_000, true),
            // 900 × 2.50 + 100 × 5, then the output.
            ("an hour", apart, (0, 0), 100, 0, 3_750_000, false),
            // 900 × 3 + 100 × 3.75, then 100 × 15.
            ("an hour at no price of its own", SONNET, (0, 0), 100, 0, 4_575_000, true),
        ] {
            let billed = Billed {
                audio_input_tokens: Some(audio.0),
                audio_output_tokens: Some(audio.1),
                cache_write_1h_tokens: Some(hour),
                ..billed([1000, 100, cached, -1, -1])
            };
            let expected = Cost { nano_usd: expected, partly };
            assert_eq!(cost(&price(text), &billed), expected, "{name}");
        }
    }

    #[test]
    fn absurd_figures_cost_the_most_there_is() {
        let most = Some(u64::MAX);
        let absurd = Billed {
            prompt_tokens: most,
            completion_tokens: most,
            cached_tokens: most,
            cache_write_tokens: most,
            cache_write_1h_tokens: most,
            reasoning_tokens: most,
            audio_input_tokens: most,
            audio_output_tokens: most,
            service_tier: ServiceTier::Other,
        };
        let rates = Rates {
            input_nano_usd_per_mtok: u64::MAX,
            output_nano_usd_per_mtok: u64::MAX,
            cached_input_nano_usd_per_mtok: most,
            ..Rates::default()
        };
        let expected = Cost { nano_usd: u64::MAX, partly: true };
        assert_eq!(cost(&Price::flat(rates), &absurd), expected);
        assert_eq!(cost(&Price::default(), &absurd).nano_usd, 0);
    }

    #[test]
    fn prices_are_read_as_they_are_written_and_nothing_else_is() {
        let all = "in 1 cached 2 write 3 write1h 4 out 5 reasoning 6 audio_in 7 audio_out 8.25";
        for text in [GPT_4O, GPT_5_4, SONNET, QWEN, all, "in 0 out 0"] {
            assert_eq!(price(text).to_string(), text);
        }
        for wrong in [
            "",
            "in 1",
            "out 1",
            "in 1 out",
            "in 1 out -1",
            "in 1 out 1e3",
            "in 1 out 0.0000000001",
            "in 1 out 1000000",
            "in 1 out 1 colour 2",
            "in 1 out 1 in 1",
            "in 1  out 1",
            " in 1 out 1",
            "in 1 out 1 above 5",
            "in 1 out 1 above",
            "above 5 in 1 out 1",
            "in 1 out 1 above x in 1 out 1",
            "in 1 out 1 above 5 in 1",
            "in 1 out 1 above 5 in 1 out 1 above 5 in 1 out 1",
            "in 1 out 1 above 6 in 1 out 1 above 5 in 1 out 1",
        ] {
            assert_eq!(Price::parse(wrong), None, "{wrong}");
        }
        let tiers: String =
            (0..=MAX_TIERS).map(|tier| format!(" above {tier} in 1 out 1")).collect();
        assert_eq!(Price::parse(&format!("in 1 out 1{tiers}")), None);
    }

    /// The bill added up another way: whole dollars' worth and the rest apart, by kind.
    fn reference(parts: &[(u64, u64)]) -> u64 {
        const MTOK: u64 = 1_000_000;
        let (mut whole, mut rest) = (0_u64, 0_u64);
        for &(tokens, rate) in parts {
            let (millions, tokens) = (tokens / MTOK, tokens % MTOK);
            let (nanos, finer) = (rate / MTOK, rate % MTOK);
            whole += millions * rate + tokens * nanos + tokens * finer / MTOK;
            rest += tokens * finer % MTOK;
        }
        whole + rest.div_ceil(MTOK)
    }

    prop_compose! {
        /// Figures that agree with each other: fresh, cached, written, said, reasoned.
        fn figures()(parts in prop::array::uniform5(0_u64..10_000_000)) -> [u64; 5] { parts }
    }

    prop_compose! {
        /// Rates that rise: of cached input, input, cache writes, output and reasoning.
        fn rising()(mut rates in prop::array::uniform5(0_u64..100_000_000_000)) -> [u64; 5] {
            rates.sort_unstable();
            rates
        }
    }

    fn rates([cached, input, write, output, reasoning]: [u64; 5]) -> Rates {
        Rates::from_parts([
            Some(input),
            Some(cached),
            Some(write),
            None,
            Some(output),
            Some(reasoning),
            None,
            None,
        ])
        .expect("all below the end")
    }

    fn reported([fresh, cached, write, said, reasoned]: [u64; 5]) -> Billed {
        Billed {
            prompt_tokens: Some(fresh + cached + write),
            completion_tokens: Some(said + reasoned),
            cached_tokens: Some(cached),
            cache_write_tokens: Some(write),
            reasoning_tokens: Some(reasoned),
            ..Billed::default()
        }
    }

    proptest! {
        #[test]
        fn no_request_costs_more_than_its_bound(
            prompt in 0u64..400_000,
            cached in 0u64..400_000,
            written in 0u64..400_000,
            output in 0u64..100_000,
            tier in prop::sample::select(vec![ServiceTier::Standard, ServiceTier::Priority]),
        ) {
            let mut price = Price::parse("in 1.25 cached 0.125 write 1.6 out 10 above 200000 in 2.5 out 15")
                .expect("a price");
            let priority = Price::parse("in 2.5 out 20").expect("a price").rates;
            price.service_tiers.push((ServiceTier::Priority, priority));
            let billed = Billed {
                prompt_tokens: Some(prompt),
                completion_tokens: Some(output),
                cached_tokens: Some(cached.min(prompt)),
                cache_write_tokens: Some(written.min(prompt - cached.min(prompt))),
                service_tier: tier,
                ..Billed::default()
            };
            let known = price.bound(prompt, Some(tier)).nano_usd(output);
            prop_assert!(cost(&price, &billed).nano_usd <= known);
            prop_assert!(known <= price.bound(prompt, None).nano_usd(output));
        }
    }

    proptest! {
        #[test]
        fn a_bill_is_the_exact_sum_rounded_up(figures in figures(), rising in rising()) {
            let cost = cost(&Price::flat(rates(rising)), &reported(figures));
            let [fresh, cached, write, said, reasoned] = figures;
            let [cached_rate, input, write_rate, output, reasoning] = rising;
            let expected = reference(&[
                (fresh, input),
                (cached, cached_rate),
                (write, write_rate),
                (said, output),
                (reasoned, reasoning),
            ]);
            prop_assert_eq!(cost, Cost { nano_usd: expected, partly: false });
        }

        /// A prompt or completion that is larger never costs less, nor does a part that is dearer
        /// than its whole; whatever the figures and however they contradict each other.
        #[test]
        fn more_tokens_never_cost_less(
            figures in prop::array::uniform8(prop::option::of(0_u64..600_000)),
            which in 0_usize..6,
            more in 0_u64..600_000,
            rising in rising(),
            factor in 1_u64..4,
        ) {
            let mut price = Price::flat(rates(rising));
            price.rates.audio_input_nano_usd_per_mtok = Some(rising[2]);
            price.rates.audio_output_nano_usd_per_mtok = Some(rising[4]);
            let upper = Rates::from_parts(price.rates.parts().map(|rate| rate.map(|r| r * factor)));
            let rates = upper.expect("all below the end");
            price.tiers.push(Tier { above_prompt_tokens: 300_000, rates });
            let bill = |figures: [Option<u64>; 8]| cost(&price, &Billed {
                prompt_tokens: figures[0],
                completion_tokens: figures[1],
                cache_write_tokens: figures[2],
                reasoning_tokens: figures[3],
                audio_input_tokens: figures[4],
                audio_output_tokens: figures[5],
                cached_tokens: figures[6],
                cache_write_1h_tokens: figures[7],
                service_tier: ServiceTier::Standard,
            }).nano_usd;
            let mut larger = figures;
            larger[which] = Some(figures[which].unwrap_or(0) + more);
            prop_assert!(bill(figures) <= bill(larger));
        }

        /// Reading from the cache never costs more than not doing so.
        #[test]
        fn a_cache_never_costs_more(figures in figures(), rising in rising(), share in 0_u64..=100) {
            let price = Price::flat(rates(rising));
            let billed = reported(figures);
            let cached = Billed {
                cached_tokens: Some(figures[1] + figures[0] * share / 100),
                ..billed
            };
            prop_assert!(cost(&price, &cached).nano_usd <= cost(&price, &billed).nano_usd);
        }

        #[test]
        fn no_figure_makes_it_panic(
            figures in prop::array::uniform8(any::<Option<u64>>()),
            parts in prop::array::uniform8(any::<u64>()),
        ) {
            let price = Price::flat(Rates {
                input_nano_usd_per_mtok: parts[0],
                cached_input_nano_usd_per_mtok: Some(parts[1]),
                cache_write_nano_usd_per_mtok: Some(parts[2]),
                cache_write_1h_nano_usd_per_mtok: None,
                output_nano_usd_per_mtok: parts[3],
                reasoning_nano_usd_per_mtok: Some(parts[4]),
                audio_input_nano_usd_per_mtok: Some(parts[5]),
                audio_output_nano_usd_per_mtok: None,
            });
            let [prompt, completion, cached, write, hour, reasoning, audio_in, audio_out] = figures;
            cost(&price, &Billed {
                prompt_tokens: prompt,
                completion_tokens: completion,
                cached_tokens: cached,
                cache_write_tokens: write,
                cache_write_1h_tokens: hour,
                reasoning_tokens: reasoning,
                audio_input_tokens: audio_in,
                audio_output_tokens: audio_out,
                service_tier: ServiceTier::Priority,
            });
        }

        #[test]
        fn any_price_is_read_as_it_is_written(
            parts in prop::array::uniform8(prop::option::of(0..RATE_END_NANO_USD_PER_MTOK)),
            above in any::<u64>(),
        ) {
            let mut parts = parts;
            parts[0] = parts[0].or(Some(1));
            parts[4] = parts[4].or(Some(1));
            let rates = Rates::from_parts(parts).expect("all below the end");
            let tiers = vec![Tier { above_prompt_tokens: above, rates }];
            let price = Price { rates, tiers, service_tiers: Vec::new() };
            prop_assert_eq!(Price::parse(&price.to_string()), Some(price));
        }
    }
}
