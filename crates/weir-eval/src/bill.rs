//! Bill of a conversation's requests by the rules of providers' caches: which tokens are read from the cache,
//! which are written to it, and for how long it holds them. The one place that decides this for recorded
//! conversations; the prices and the steps above a size are those of `weir_store::budget`. Pure.

use weir_engine::wire::usage::{InnerUsage, Metered, Usage};
use weir_store::budget::price::{Kind, Pieces, ServiceTier};
use weir_store::budget::{Billed, Price, cost, part};

const MINUTE_MS: u64 = 60_000;
/// Maximum tokens of one kind in a request; more is no report.
pub(crate) const MOST_TOKENS: u64 = 1 << 48;

/// Families of models by the beginning of a part of their name, with the smallest prefix that the cache of
/// their provider holds, and how long it holds it after its last use. The first match counts. From the
/// providers' pages on prompt caching, November 2026.
const FAMILIES: [(&str, u64, u64); 14] = [
    ("claude-opus-4-5", 4096, 5),
    ("claude-opus-4-6", 4096, 5),
    ("claude-opus-4-7", 2048, 5),
    ("claude-haiku-4-5", 4096, 5),
    ("claude-3-haiku", 2048, 5),
    ("claude-3-5-haiku", 2048, 5),
    ("claude-opus-5", 512, 5),
    ("claude-fable-5", 512, 5),
    ("claude-mythos-5", 512, 5),
    ("claude", 1024, 5),
    ("gpt-5.6", 1024, 30),
    ("gpt-5.7", 1024, 30),
    ("gpt-6", 1024, 30),
    ("gpt", 1024, 10),
];

/// Whether a model belongs to a family, by the beginning of a part of its name.
fn is_of(model: &str, family: &str) -> bool {
    let name = model.to_ascii_lowercase();
    name.match_indices(family).any(|(at, _)| at == 0 || "/.-_".contains(&name[at - 1..at]))
}

/// Returns the smallest prefix that the cache of a model's provider holds, in tokens, and its lifetime, in
/// milliseconds.
fn family(model: &str) -> (u64, u64) {
    let family = FAMILIES.iter().find(|(family, _, _)| is_of(model, family));
    family.map_or((1024, 5 * MINUTE_MS), |(_, least, minutes)| (*least, minutes * MINUTE_MS))
}

/// Time after a pause has outlived a cache for which it may still hold what it held, in milliseconds.
pub const MARGIN_MS: u64 = MINUTE_MS;

/// Returns the time, in milliseconds, after which a provider's cache has certainly dropped what a request to a
/// model with this body left there: the model's own lifetime, or one that the body asks for.
pub fn cold_after_ms(model: &str, body: &str) -> u64 {
    let asked = [("\"24h\"", 24 * 60), ("\"1h\"", 60)];
    let asked = asked.iter().find(|(word, _)| body.contains(word));
    let lifetime_ms = asked.map_or(family(model).1, |(_, minutes)| minutes * MINUTE_MS);
    lifetime_ms + MARGIN_MS
}

/// What a provider's cache does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRules {
    /// Size in tokens of the smallest prefix that is cached.
    pub least_tokens: u64,
    /// Time that an entry is kept after its last use, in milliseconds; `None` if it is never dropped.
    pub lifetime_ms: Option<u64>,
    /// Whether writing to the cache has a price of its own. If so, all that is not read is written.
    pub is_write_priced: bool,
}

impl CacheRules {
    /// Rules of no provider in particular: an entry of 1,024 tokens or more is never dropped.
    pub const LASTING: Self =
        Self { least_tokens: 1024, lifetime_ms: None, is_write_priced: false };

    /// Returns the rules for a model at a price. Of a request without marks (`is_unmarked`) Anthropic caches
    /// nothing; others cache all requests.
    pub fn of(model: &str, price: &Price, is_unmarked: bool) -> Self {
        if is_unmarked && is_of(model, "claude") {
            return Self { least_tokens: u64::MAX, ..Self::LASTING };
        }
        let (least_tokens, lifetime_ms) = family(model);
        Self {
            least_tokens,
            lifetime_ms: Some(lifetime_ms),
            is_write_priced: price.rates.get(Kind::CacheWrite).is_some(),
        }
    }

    /// Returns how many of `shared_tokens`, with which the request before began too, are read from the cache
    /// after a pause. An unknown pause counts as none.
    pub fn read_tokens(&self, shared_tokens: u64, pause_ms: Option<u64>) -> u64 {
        let is_held = shared_tokens >= self.least_tokens && !self.is_cold(pause_ms);
        if is_held { shared_tokens } else { 0 }
    }

    /// Returns how many of the tokens that are not read are written to the cache.
    pub fn written_tokens(&self, prompt_tokens: u64, read_tokens: u64) -> u64 {
        let is_written = self.is_write_priced && prompt_tokens >= self.least_tokens;
        if is_written { prompt_tokens.saturating_sub(read_tokens) } else { 0 }
    }

    /// Whether the cache has dropped what was there before a pause.
    pub fn is_cold(&self, pause_ms: Option<u64>) -> bool {
        matches!((pause_ms, self.lifetime_ms), (Some(pause), Some(lifetime)) if pause > lifetime)
    }
}

/// Tokens of one request as they are billed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BilledTokens {
    /// The whole prompt, with the next two.
    pub prompt_tokens: u64,
    pub read_tokens: u64,
    pub written_tokens: u64,
    /// Of the written ones, those that are kept for an hour.
    pub written_1h_tokens: u64,
    pub output_tokens: u64,
    pub service_tier: ServiceTier,
    /// Cost of what the size of the prompt does not change, in nano-dollars: searches, calls of the provider's
    /// tools, and inferences within the answer.
    pub fees_nano_usd: u64,
}

impl BilledTokens {
    /// Returns the tokens that a provider reported; `None` if it left out the prompt, or what was cached.
    pub fn reported(metered: &Metered, price: &Price) -> Option<Self> {
        let usage = metered.usage.as_ref()?;
        let service_tier = service_tier(metered);
        let pieces = Pieces {
            web_searches: usage.web_searches.unwrap_or(0),
            tool_calls: usage.tool_calls.unwrap_or(0),
            ..Pieces::default()
        };
        let fees = cost(price, &Billed { pieces, ..Billed::default() }).nano_usd;
        let inner = metered.apart.iter().filter_map(|InnerUsage { usage, .. }| {
            let usage = Usage { cached_tokens: usage.cached_tokens.or(Some(0)), ..*usage };
            Self::of(&usage, service_tier)
        });
        let fees_nano_usd = inner.fold(fees, |all, own| all.saturating_add(own.nano_usd(price)));
        Some(Self { fees_nano_usd, ..Self::of(usage, service_tier)? })
    }

    fn of(usage: &Usage, service_tier: ServiceTier) -> Option<Self> {
        let all = [usage.cache_write_tokens, usage.cache_write_1h_tokens, usage.completion_tokens];
        let [written, written_1h, output] = all.map(|own| own.unwrap_or(0).min(MOST_TOKENS));
        let (read, written) = (usage.cached_tokens?.min(MOST_TOKENS), written.max(written_1h));
        Some(Self {
            prompt_tokens: reported_prompt(usage)?.max(read + written),
            read_tokens: read,
            written_tokens: written,
            written_1h_tokens: written_1h,
            output_tokens: output,
            service_tier,
            fees_nano_usd: 0,
        })
    }

    /// Returns the tokens of the same request if it had `prompt_tokens` instead, whose first
    /// `shared_tokens` were sent before. `base_tokens` is the size of what was sent before in this one. The
    /// same share of it is read, and the same share of the rest is written: a cold cache stays cold.
    #[must_use]
    pub fn resized(self, prompt_tokens: u64, shared_tokens: u64, base_tokens: u64) -> Self {
        let shared_tokens = shared_tokens.min(prompt_tokens);
        let read_tokens = part(shared_tokens, self.read_tokens, base_tokens.max(self.read_tokens));
        let (rest, rest_before) =
            (prompt_tokens - read_tokens, self.prompt_tokens.saturating_sub(self.read_tokens));
        let written_tokens = part(rest, self.written_tokens, rest_before).min(rest);
        Self {
            prompt_tokens,
            read_tokens,
            written_tokens,
            written_1h_tokens: part(written_tokens, self.written_1h_tokens, self.written_tokens),
            ..self
        }
    }

    /// Returns the cost in nano-dollars.
    pub fn nano_usd(&self, price: &Price) -> u64 {
        let billed = Billed {
            prompt_tokens: Some(self.prompt_tokens),
            completion_tokens: Some(self.output_tokens),
            cached_tokens: Some(self.read_tokens),
            cache_write_tokens: Some(self.written_tokens),
            cache_write_1h_tokens: Some(self.written_1h_tokens),
            service_tier: self.service_tier,
            ..Billed::default()
        };
        cost(price, &billed).nano_usd.saturating_add(self.fees_nano_usd)
    }
}

/// Returns the tier that a request is billed by.
pub(crate) fn service_tier(metered: &Metered) -> ServiceTier {
    let is_fast = metered.speed.as_deref() == Some("fast");
    let tier = if is_fast { Some("fast") } else { metered.service_tier.as_deref() };
    ServiceTier::from_name(tier.unwrap_or_default())
}

/// Returns the size of the prompt that a provider reported.
pub(crate) fn reported_prompt(usage: &Usage) -> Option<u64> {
    usage.prompt_tokens.map(|tokens| tokens.min(MOST_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Price {
        Price::parse(text).expect("a price")
    }

    #[test]
    fn families_have_rules_of_their_own() {
        let (plain, priced) = (price("in 1 out 1"), price("in 1 write 2 out 1"));
        for (model, price, least_tokens, minutes, is_write_priced) in [
            ("claude-opus-4-6", &priced, 4096, 5, true),
            ("us.anthropic.claude-opus-4-6-v1", &priced, 4096, 5, true),
            ("claude-opus-5-20260901", &priced, 512, 5, true),
            ("anthropic/claude-sonnet-4-5", &priced, 1024, 5, true),
            ("gpt-5.6-terra", &priced, 1024, 30, true),
            ("openai/gpt-4o", &plain, 1024, 10, false),
            ("notgpt-4", &plain, 1024, 5, false),
            ("", &plain, 1024, 5, false),
        ] {
            let lifetime_ms = Some(minutes * MINUTE_MS);
            let expected = CacheRules { least_tokens, lifetime_ms, is_write_priced };
            assert_eq!(CacheRules::of(model, price, false), expected, "{model}");
            let unmarked = CacheRules::of(model, price, true);
            let is_cached = unmarked.read_tokens(1 << 20, None) > 0;
            assert_eq!(is_cached, !model.contains("claude"), "{model} without marks");
        }
    }

    #[test]
    fn a_cache_holds_what_is_large_enough_until_it_is_cold() {
        let rules =
            CacheRules { lifetime_ms: Some(1000), is_write_priced: true, ..CacheRules::LASTING };
        for (shared, pause_ms, read) in [
            (1023, Some(0), 0),
            (1024, Some(0), 1024),
            (1024, Some(1000), 1024),
            (1024, Some(1001), 0),
            (1024, None, 1024),
        ] {
            assert_eq!(rules.read_tokens(shared, pause_ms), read, "{shared} after {pause_ms:?}");
        }
        assert_eq!((rules.written_tokens(1023, 0), rules.written_tokens(3000, 1024)), (0, 1976));
        assert_eq!(CacheRules::LASTING.written_tokens(3000, 0), 0);
        assert_eq!(CacheRules::LASTING.read_tokens(5000, Some(u64::MAX)), 5000);
    }

    #[test]
    fn another_size_is_read_and_written_in_the_same_shares() {
        let own = BilledTokens {
            prompt_tokens: 10_000,
            read_tokens: 8000,
            written_tokens: 1500,
            written_1h_tokens: 500,
            output_tokens: 7,
            ..BilledTokens::default()
        };
        assert_eq!(own.resized(10_000, 8000, 8000), own, "the same size is the same bill");
        let half = own.resized(5000, 4000, 8000);
        assert_eq!(
            (half.read_tokens, half.written_tokens, half.written_1h_tokens),
            (4000, 750, 250)
        );
        let moved = own.resized(5000, 1000, 8000);
        assert_eq!((moved.read_tokens, moved.written_tokens), (1000, 3000));
        let cold = BilledTokens { read_tokens: 0, written_tokens: 10_000, ..own };
        assert_eq!(cold.resized(5000, 4000, 8000).read_tokens, 0);
        for odd in [BilledTokens::default(), BilledTokens { prompt_tokens: u64::MAX, ..own }] {
            let resized = odd.resized(u64::MAX, u64::MAX, 0);
            assert!(resized.read_tokens <= resized.prompt_tokens, "{odd:?}");
        }
    }

    #[test]
    fn steps_and_lifetimes_have_their_prices() {
        let price = price(
            "in 4 cached 0.4 write 5 write1h 8 out 20 above 200000 in 8 cached 0.8 write 10 out 30",
        );
        let own = BilledTokens {
            prompt_tokens: 100_000,
            read_tokens: 80_000,
            written_tokens: 20_000,
            written_1h_tokens: 10_000,
            output_tokens: 1000,
            ..BilledTokens::default()
        };
        // 80,000 read at 0.4, 10,000 written at 5 and 10,000 at 8, 1,000 of output at 20.
        assert_eq!(own.nano_usd(&price), 32_000_000 + 50_000_000 + 80_000_000 + 20_000_000);
        let above = BilledTokens {
            prompt_tokens: 200_001,
            read_tokens: 200_001,
            ..BilledTokens::default()
        };
        assert_eq!(above.nano_usd(&price), 160_000_800);
    }
}
