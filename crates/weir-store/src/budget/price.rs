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

const UNITS: u128 = 1_000_000;
/// Exclusive upper bound of a rate: a thousand dollars a unit, a million per million tokens.
pub const RATE_END_NANO_USD: u64 = 1_000_000_000_000_000;
/// Maximum number of tiers per price.
pub const MAX_TIERS: usize = 8;

/// Kinds of what providers charge for. Each is a row of [`KINDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Input,
    CachedInput,
    CacheWrite,
    /// Cache entries that live one hour, if they cost more than others.
    CacheWrite1h,
    Output,
    Reasoning,
    AudioInput,
    AudioOutput,
    ImageInput,
    ImageOutput,
    WebSearch,
    /// A call of another tool of the provider's, such as code execution.
    ToolCall,
    /// A generated image.
    Image,
    /// Audio by its length, counted in milliseconds.
    Audio,
    /// Characters of a text that is spoken.
    Character,
    Request,
}

/// Row of the table of kinds.
#[derive(Debug, Clone, Copy)]
pub struct KindRow {
    /// Word in a catalogue.
    pub word: &'static str,
    /// Configuration key.
    pub key: &'static str,
    /// Number of units that the written rate is for.
    pub units: u64,
}

const fn row(word: &'static str, key: &'static str, units: u64) -> KindRow {
    KindRow { word, key, units }
}

/// Kinds in the order of [`Kind`]: their word, configuration key and the units of their rate.
pub const KINDS: [KindRow; 16] = [
    row("in", "input_usd_per_mtok", 1_000_000),
    row("cached", "cached_input_usd_per_mtok", 1_000_000),
    row("write", "cache_write_usd_per_mtok", 1_000_000),
    row("write1h", "cache_write_1h_usd_per_mtok", 1_000_000),
    row("out", "output_usd_per_mtok", 1_000_000),
    row("reasoning", "reasoning_usd_per_mtok", 1_000_000),
    row("audio_in", "audio_input_usd_per_mtok", 1_000_000),
    row("audio_out", "audio_output_usd_per_mtok", 1_000_000),
    row("image_in", "image_input_usd_per_mtok", 1_000_000),
    row("image_out", "image_output_usd_per_mtok", 1_000_000),
    row("search", "web_search_usd_per_1k", 1000),
    row("call", "tool_call_usd_per_1k", 1000),
    row("image", "image_usd_each", 1),
    row("minute", "audio_usd_per_minute", 60_000),
    row("character", "character_usd_per_million", 1_000_000),
    row("request", "request_usd_each", 1),
];

/// Rates in nano-dollars by kind, each for the units of its row of [`KINDS`]. A kind with `None` is
/// billed as plain input or output, or not at all. That is normal for reasoning, which most providers
/// bill as output; for other kinds the bill is marked partial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates(pub(super) [Option<u64>; KINDS.len()]);

impl Rates {
    /// Creates rates of tokens of input and output alone, in nano-dollars per million.
    pub fn of_tokens(input_nano_usd_per_mtok: u64, output_nano_usd_per_mtok: u64) -> Self {
        let rates = Self::default().with(Kind::Input, input_nano_usd_per_mtok);
        rates.with(Kind::Output, output_nano_usd_per_mtok)
    }

    /// Builds rates from parts in the order of [`KINDS`]. Returns `None` if input or output is
    /// missing, or if a rate is not below [`RATE_END_NANO_USD`].
    pub fn from_parts(parts: [Option<u64>; KINDS.len()]) -> Option<Self> {
        let is_whole =
            [Kind::Input, Kind::Output].iter().all(|kind| parts[*kind as usize].is_some());
        let is_sound = parts.iter().flatten().all(|&rate| rate < RATE_END_NANO_USD);
        (is_whole && is_sound).then_some(Self(parts))
    }

    /// Returns the rates with another one for a kind.
    #[must_use]
    pub fn with(mut self, kind: Kind, rate_nano_usd: u64) -> Self {
        self.0[kind as usize] = Some(rate_nano_usd);
        self
    }

    /// Returns the rate of a kind, if it has one.
    ///
    /// Anthropic writes for an hour at twice the price of input (its guide to prompt caching); nobody else reports
    /// such writes.
    pub fn get(&self, kind: Kind) -> Option<u64> {
        let by_rule = || {
            let has_writes = kind == Kind::CacheWrite1h && self.get(Kind::CacheWrite).is_some();
            has_writes.then(|| self.input_nano_usd_per_mtok().saturating_mul(2))
        };
        self.0[kind as usize].or_else(by_rule)
    }

    /// Returns the rate of plain input, in nano-dollars per million tokens.
    pub fn input_nano_usd_per_mtok(&self) -> u64 {
        self.get(Kind::Input).unwrap_or(0)
    }

    /// Returns the rate of plain output, in nano-dollars per million tokens.
    pub fn output_nano_usd_per_mtok(&self) -> u64 {
        self.get(Kind::Output).unwrap_or(0)
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
    /// Factors of regions, in thousandths, on all fees for tokens.
    pub regions: Vec<(String, u64)>,
    /// Factors of service tiers without rates of their own, in thousandths, on all fees for tokens.
    pub factors: Vec<(ServiceTier, u64)>,
}

impl Price {
    /// Creates a price without size tiers or service tiers.
    pub fn flat(rates: Rates) -> Self {
        Self { rates, ..Self::default() }
    }

    /// Parses a price in catalogue form. It lists rates in dollars per million tokens, each after
    /// its word from [`KINDS`], then tiers in rising order, each as `above` and a token count, then regions, each
    /// as `region`, its name and the factor of all tokens, then service tiers as `tier` in the same form.
    /// Example: `in 1.25 cached 0.125 out 10 above 200000 in 2.5 cached 0.25 out 15 region us 1.1 tier batch 0.5`.
    pub fn parse(text: &str) -> Option<Self> {
        let factor = |part: &str| {
            let (name, factor) = part.split_once(' ')?;
            let (permille, _) =
                super::money::scaled(factor, 3).filter(|(_, is_exact)| *is_exact)?;
            Some((name.to_owned(), permille))
        };
        let mut parts = text.split(" tier ");
        let text = parts.next()?;
        let of_tier = |part: &str| {
            let (name, permille) = factor(part)?;
            let tier = ServiceTier::NAMED.iter().find(|(own, _)| *own == name)?;
            Some((tier.1, permille))
        };
        let factors = parts.map(of_tier).collect::<Option<Vec<_>>>()?;
        let mut parts = text.split(" region ");
        let text = parts.next()?;
        let regions = parts.map(factor).collect::<Option<Vec<_>>>()?;
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
        Some(Self { tiers, regions, factors, ..Self::flat(rates) })
    }

    /// Returns the maximum cost of a request as a function of its output, for any cache use and any tier
    /// that it may be served by.
    pub fn bound(&self, most: &Most<'_>) -> OutputBound {
        let may_serve = |tier: ServiceTier| match most.service_tier {
            // Fast answers come to those who ask for them.
            None => tier != ServiceTier::Fast,
            Some(ServiceTier::Fast) => true,
            Some(asked) => asked == tier,
        };
        let of_tiers = self.service_tiers.iter().filter(|(tier, _)| may_serve(*tier));
        // Providers report the prompts of all inferences as one.
        let all_tokens = most.prompt_tokens.saturating_mul(most.inferences.max(1));
        let is_reached = |tier: &&Tier| all_tokens > tier.above_prompt_tokens;
        let of_sizes = self.tiers.iter().filter(is_reached).map(|tier| &tier.rates);
        let all = of_tiers.map(|(_, rates)| rates).chain(of_sizes).chain([&self.rates]);
        let dearest = |always: [Kind; 2], possible: &[Kind]| {
            let possible = possible.iter().filter(|kind| most.kinds.contains(kind));
            let kinds: Vec<Kind> = always.iter().chain(possible).copied().collect();
            let rates =
                all.clone().flat_map(|rates| kinds.iter().filter_map(|kind| rates.get(*kind)));
            rates.max().unwrap_or(0)
        };
        let input = dearest(
            [Kind::Input, Kind::CacheWrite],
            &[Kind::CacheWrite1h, Kind::AudioInput, Kind::ImageInput],
        );
        let output =
            dearest([Kind::Output, Kind::Reasoning], &[Kind::AudioOutput, Kind::ImageOutput]);
        let by_project = most.may_be_priority.then_some(ServiceTier::Priority);
        let asked = most.service_tier.or(by_project).unwrap_or_default();
        let permille = self.factor(asked).0.max(1000);
        let factor = self.region_bound(most.region).saturating_mul(permille);
        let raised = |nano_usd: u128| nano_usd.saturating_mul(factor.into()).div_ceil(UNITS);
        let tokens = |tokens: u64, rate: u64| u128::from(tokens) * u128::from(rate);
        let fixed = tokens(most.fixed_output_tokens, output);
        let base = raised(tokens(all_tokens, input).saturating_add(fixed));
        let mut bill = Bill { nano_usd_mtok: base, is_partial: false };
        bill.add_pieces(self, &most.pieces);
        OutputBound {
            base_nano_usd: u64::try_from(bill.nano_usd_mtok.div_ceil(UNITS)).unwrap_or(u64::MAX),
            output_nano_usd_per_mtok: u64::try_from(raised(output.into())).unwrap_or(u64::MAX),
        }
    }

    /// Returns the factor of a service tier on the rates that apply to it, in thousandths, and whether it is known.
    fn factor(&self, tier: ServiceTier) -> (u64, bool) {
        let has_rates = self.service_tiers.iter().any(|(own, _)| *own == tier);
        let known = self.factors.iter().find(|(own, _)| *own == tier);
        match known {
            _ if has_rates || tier == ServiceTier::Standard => (1000, true),
            Some((_, permille)) => (*permille, true),
            None => (tier.permille_without_price(), false),
        }
    }

    /// Returns the highest factor, in thousandths, for a request that asks for this region, or for none:
    /// then its provider chooses.
    fn region_bound(&self, region: Option<&str>) -> u64 {
        let is_neutral = region.is_some_and(|region| region.eq_ignore_ascii_case("global"));
        let of_regions = self.regions.iter().filter(|_| !is_neutral).map(|(_, permille)| *permille);
        of_regions.max().unwrap_or(0).max(1000)
    }

    /// Returns the rate of a fee that no size changes.
    pub fn fee(&self, kind: Kind) -> Option<u64> {
        self.rates.get(kind)
    }

    /// Returns the base rate of a kind in thousandths of that of input; `None` if it has no rate. Free input is
    /// free from the cache, too.
    pub fn permille_of_input(&self, kind: Kind) -> Option<u32> {
        match u128::from(self.rates.input_nano_usd_per_mtok()) {
            0 => Some(0),
            input => u32::try_from(u128::from(self.rates.get(kind)?) * 1000 / input).ok(),
        }
    }

    /// Returns the lowest prompt size above which input costs more.
    pub fn step_tokens(&self) -> Option<u64> {
        let base = self.rates.input_nano_usd_per_mtok();
        let dearer = self.tiers.iter().find(|tier| tier.rates.input_nano_usd_per_mtok() > base);
        dearer.map(|tier| tier.above_prompt_tokens)
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
            None => (by_size, !self.factor(service_tier).1),
        }
    }
}

/// The most that a request may be billed, apart from its output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Most<'a> {
    /// Prompt of each inference.
    pub prompt_tokens: u64,
    /// Number of times that the prompt may be billed; 0 for one.
    pub inferences: u64,
    /// Output that no limit bounds, such as that of images.
    pub fixed_output_tokens: u64,
    /// Service tier that it asks for; `None` if that leaves several open.
    pub service_tier: Option<ServiceTier>,
    /// Whether that may be priority, if it leaves several open.
    pub may_be_priority: bool,
    /// Region that it asks for.
    pub region: Option<&'a str>,
    /// Kinds of tokens that not every request may be billed by, such as audio.
    pub kinds: &'a [Kind],
    pub pieces: Pieces,
}

/// Maximum cost of a request as a function of its output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBound {
    /// Cost without output.
    pub base_nano_usd: u64,
    pub output_nano_usd_per_mtok: u64,
}

impl OutputBound {
    /// Returns a bound of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let output = self.output_nano_usd_per_mtok.max(other.output_nano_usd_per_mtok);
        Self {
            base_nano_usd: self.base_nano_usd.max(other.base_nano_usd),
            output_nano_usd_per_mtok: output,
        }
    }

    /// Returns the cost with `output_tokens` of output, rounded up.
    pub fn nano_usd(&self, output_tokens: u64) -> u64 {
        let output = u128::from(output_tokens) * u128::from(self.output_nano_usd_per_mtok);
        let all = u128::from(self.base_nano_usd) + output.div_ceil(UNITS);
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
        let kind = KINDS.iter().position(|row| row.word == word)?;
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
        for (name, permille) in &self.regions {
            write!(text, " region {name} {}", *permille as f64 / 1000.0)?;
        }
        for (tier, permille) in &self.factors {
            let name = ServiceTier::NAMED.iter().find(|(_, own)| own == tier);
            let name = name.map_or("standard", |(name, _)| *name);
            write!(text, " tier {name} {}", *permille as f64 / 1000.0)?;
        }
        f.pad(&text)
    }
}

fn write_rates(text: &mut String, rates: &Rates) {
    let mut space = "";
    for (KindRow { word, .. }, rate) in KINDS.iter().zip(rates.0) {
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
    /// Anthropic's `speed: "fast"`.
    Fast,
    /// A tier without a known price.
    Other,
}

impl ServiceTier {
    /// Tiers that may have a price of their own, by their names.
    pub const NAMED: [(&str, Self); 4] = [
        ("flex", Self::Flex),
        ("priority", Self::Priority),
        ("batch", Self::Batch),
        ("fast", Self::Fast),
    ];

    /// Returns the cost of a tier without a known price, in thousandths of the standard one: OpenAI's priority
    /// up to two and a half times, Anthropic's fast answers six times, batches of both half (their pages on pricing).
    fn permille_without_price(self) -> u64 {
        match self {
            Self::Priority => 2500,
            Self::Fast => 6000,
            Self::Batch => 500,
            Self::Standard | Self::Flex | Self::Other => 1000,
        }
    }

    /// Maps an answer's `service_tier` value. The standard tier is `default` at OpenAI, `standard`
    /// at Anthropic and `on_demand` at Groq. `auto` appears only in requests and leaves the tier
    /// open.
    pub fn from_name(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "" | "default" | "standard" | "on_demand" | "auto" => Self::Standard,
            _ => Self::NAMED.iter().find(|(own, _)| *own == name).map_or(Self::Other, |own| own.1),
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
    /// Image tokens of the prompt.
    pub image_input_tokens: Option<u64>,
    /// Image tokens of the completion.
    pub image_output_tokens: Option<u64>,
    /// What is charged by the piece.
    pub pieces: Pieces,
    pub service_tier: ServiceTier,
    /// Factor of the region, in thousandths; 0 for none.
    pub region_permille: u64,
}

/// What is charged by the piece: numbers of calls, images and characters, and the length of audio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pieces {
    pub web_searches: u64,
    pub tool_calls: u64,
    pub images: u64,
    pub audio_ms: u64,
    pub characters: u64,
    /// Whether it is a request of its own, rather than an inference within one.
    pub requests: u64,
}

impl Pieces {
    fn counts(&self) -> [(Kind, u64); 6] {
        [
            (Kind::WebSearch, self.web_searches),
            (Kind::ToolCall, self.tool_calls),
            (Kind::Image, self.images),
            (Kind::Audio, self.audio_ms),
            (Kind::Character, self.characters),
            (Kind::Request, self.requests),
        ]
    }
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
    cost_of_all(price, &[*billed])
}

/// Computes the cost of all inferences of one request, each of its own size, rounded once.
pub fn cost_of_all(price: &Price, billed: &[Billed]) -> Cost {
    let mut all = Bill { nano_usd_mtok: 0, is_partial: false };
    for billed in billed {
        let own = bill(price, billed);
        all.nano_usd_mtok = all.nano_usd_mtok.saturating_add(own.nano_usd_mtok);
        all.is_partial |= own.is_partial;
    }
    let nano_usd = all.nano_usd_mtok.div_ceil(UNITS);
    Cost { nano_usd: u64::try_from(nano_usd).unwrap_or(u64::MAX), partly: all.is_partial }
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

    /// Adds what is charged by the piece.
    fn add_pieces(&mut self, price: &Price, pieces: &Pieces) {
        for (kind, count) in pieces.counts().into_iter().filter(|(_, count)| *count > 0) {
            match price.fee(kind) {
                Some(rate) => {
                    let units = u128::from(KINDS[kind as usize].units);
                    let amount =
                        u128::from(count).saturating_mul(rate.into()).saturating_mul(UNITS);
                    self.nano_usd_mtok = self.nano_usd_mtok.saturating_add(amount.div_ceil(units));
                }
                // Hardly any model charges by the request, and texts are charged by their tokens.
                None => self.is_partial |= !matches!(kind, Kind::Request | Kind::Character),
            }
        }
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
    let [audio_input, image_input] =
        [billed.audio_input_tokens, billed.image_input_tokens].map(Option::unwrap_or_default);
    let input_parts = cached.saturating_add(write).max(audio_input.saturating_add(image_input));
    let size = billed.prompt_tokens.unwrap_or(0).max(input_parts);
    let (rates, is_unlike) = price.rates(size, billed.service_tier);
    let mut bill = Bill { nano_usd_mtok: 0, is_partial: is_unlike };

    let input_rate = rates.input_nano_usd_per_mtok();
    let prompt = bill.whole(billed.prompt_tokens, input_parts, input_rate);
    let fresh = prompt - cached.saturating_add(write);
    // Providers do not report how much of audio and images was cached. Tokens billed as cached are
    // not billed as such.
    let fresh_audio = audio_input.min(fresh);
    let fresh_image = image_input.min(fresh - fresh_audio);
    let is_cached = cached.saturating_add(write) > 0;
    bill.is_partial |= (audio_input > 0 || image_input > 0) && is_cached;
    bill.add(fresh - fresh_audio - fresh_image, input_rate);
    bill.add_apart(fresh_audio, rates.get(Kind::AudioInput), input_rate);
    bill.add_apart(fresh_image, rates.get(Kind::ImageInput), input_rate);
    bill.add_apart(cached, rates.get(Kind::CachedInput), input_rate);
    let write_rate = rates.get(Kind::CacheWrite);
    bill.add_apart(write - write_1h, write_rate, input_rate);
    let write_1h_else = write_rate.unwrap_or(input_rate);
    bill.add_apart(write_1h, rates.get(Kind::CacheWrite1h), write_1h_else);

    let output_rate = rates.output_nano_usd_per_mtok();
    let [reasoning, audio_output, image_output] =
        [billed.reasoning_tokens, billed.audio_output_tokens, billed.image_output_tokens]
            .map(Option::unwrap_or_default);
    let output_parts = reasoning.saturating_add(audio_output).saturating_add(image_output);
    let completion = bill.whole(billed.completion_tokens, output_parts, output_rate);
    let rest = completion - output_parts;
    bill.add(rest, output_rate);
    bill.add(reasoning, rates.get(Kind::Reasoning).unwrap_or(output_rate));
    bill.add_apart(audio_output, rates.get(Kind::AudioOutput), output_rate);
    bill.add_apart(image_output, rates.get(Kind::ImageOutput), output_rate);
    let (permille, _) = price.factor(billed.service_tier);
    bill.nano_usd_mtok = bill.nano_usd_mtok.saturating_mul(permille.into()).div_ceil(1000);
    if billed.region_permille > 0 {
        let raised = bill.nano_usd_mtok.saturating_mul(billed.region_permille.into());
        bill.nano_usd_mtok = raised.div_ceil(1000);
    }
    bill.add_pieces(price, &billed.pieces);
    bill
}

#[cfg(test)]
mod tests;
