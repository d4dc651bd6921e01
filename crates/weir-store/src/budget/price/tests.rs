//! Tests of price parsing and formatting, and of bills against providers' published rules.

use proptest::prelude::*;

use super::*;

fn price(text: &str) -> Price {
    Price::parse(text).unwrap_or_else(|| panic!("{text} is a price"))
}

/// Figures in the order prompt, completion, cached, cache write, reasoning; -1 means missing.
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

/// Bills computed by hand, in dollars.
#[test]
fn bills_of_the_main_vendors() {
    for (name, text, figures, dollars) in [
        // 1,000 × 2.50 + 500 × 10, by the million.
        ("plain", GPT_4O, [1000, 500, -1, -1, -1], "0.0075"),
        // 976 × 2.50 + 1,024 × 1.25 + 100 × 10 = 2,440 + 1,280 + 1,000.
        ("cached", GPT_4O, [2000, 100, 1024, -1, -1], "0.00472"),
        // Reasoning is output: 100 × 1.25 + 900 × 10, including 800 for reasoning.
        ("reasoning is output", GPT_5, [100, 900, 0, -1, 800], "0.009125"),
        // At the border, the lower tier: 272,000 × 2.50 + 10 × 15.
        ("at the border", GPT_5_4, [272_000, 10, 0, -1, 0], "0.68015"),
        // One above: all tokens at the upper tier: 272,001 × 5 + 10 × 22.50.
        ("above the border", GPT_5_4, [272_001, 10, 0, -1, 0], "1.36023"),
        // The size includes cached tokens: 22,000 × 5 + 278,000 × .50 + 1,000 × 22.50.
        ("cached above the border", GPT_5_4, [300_000, 1000, 278_000, -1, 0], "0.2715"),
        // 10 × 3 + 100,000 × .30 + 2,000 × 3.75 + 400 × 15 = 30 + 30,000 + 7,500 + 6,000.
        ("cache read and write", SONNET, [102_010, 400, 100_000, 2000, -1], "0.04353"),
        // All tokens written: 5,000 × 3.75 + 1 × 15.
        ("cache write alone", SONNET, [5000, 1, 0, 5000, -1], "0.018765"),
        // 8 missed × .28 + 12 hit × .028 + 5 × .42 = 2.24 + .336 + 2.1 millionths.
        ("hits and misses", DEEPSEEK, [20, 5, 12, -1, -1], "0.000004676"),
        // 200,000 × 1.25 + 100 × 10.
        ("long context, not yet", GEMINI, [200_000, 100, -1, -1, -1], "0.251"),
        // 50,000 × 2.50 + 200,000 × .25 + 100 × 15.
        ("long context", GEMINI, [250_000, 100, 200_000, -1, -1], "0.1765"),
        // 1,000 × .40 + 300 × 1.20 + 700 × 4.
        ("reasoning priced apart", QWEN, [1000, 1000, -1, -1, 700], "0.00356"),
        // Four choices of 50 tokens each: usage reports their sum.
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
    // Three parts of .4 nano-dollars sum to 1.2, rounded up to 2; one alone rounds up to 1.
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
    // Embeddings have no output and no output price.
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
        // Two and a half times, by rule.
        ("priority", 1000, 6_250_000, true),
        ("fast", 1000, 15_000_000, true),
        // Half, by rule.
        ("batch", 1000, 1_250_000, true),
        ("scale", 1000, 2_500_000, true),
        ("batch", 300_000, 750_000_000, true),
        ("flex", 300_000, 375_000_000, true),
    ] {
        let service_tier = ServiceTier::from_name(name);
        let billed = Billed { service_tier, ..billed([prompt, 0, 0, -1, -1]) };
        let expected = Cost { nano_usd: nanos, partly };
        assert_eq!(cost(&priced, &billed), expected, "{name} {prompt}");
    }
}

#[test]
fn the_factor_of_a_service_tier_is_exact_if_it_is_known() {
    let text = "in 5 out 25 region us 1.1 tier priority 1 tier batch 0.5 tier fast 2";
    let priced = price(text);
    assert_eq!(priced.to_string(), text);
    for (name, nanos, partly) in [
        ("standard", 5_000_000, false),
        ("priority", 5_000_000, false),
        ("batch", 2_500_000, false),
        ("fast", 10_000_000, false),
        ("flex", 5_000_000, true),
    ] {
        let service_tier = ServiceTier::from_name(name);
        let billed = Billed { service_tier, ..billed([1000, 0, 0, -1, -1]) };
        assert_eq!(cost(&priced, &billed), Cost { nano_usd: nanos, partly }, "{name}");
    }
    let most = Most { prompt_tokens: 1000, region: Some("global"), ..Most::default() };
    for (service_tier, may_be_priority, nanos) in [
        (Some(ServiceTier::Fast), false, 10_000_000),
        (Some(ServiceTier::Batch), false, 5_000_000),
        (None, true, 5_000_000),
    ] {
        let most = Most { service_tier, may_be_priority, ..most };
        assert_eq!(priced.bound(&most).nano_usd(0), nanos, "{service_tier:?}");
    }
    let mut own = priced;
    own.service_tiers.push((ServiceTier::Fast, Rates::of_tokens(7_000_000_000, 1)));
    let billed = Billed { service_tier: ServiceTier::Fast, ..billed([1000, 0, 0, -1, -1]) };
    assert_eq!(cost(&own, &billed), Cost { nano_usd: 7_000_000, partly: false });
    for wrong in
        ["in 1 out 1 tier", "in 1 out 1 tier slow 2", "in 1 out 1 tier fast", "tier fast 2"]
    {
        assert_eq!(Price::parse(wrong), None, "{wrong}");
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
        // 900 × 3 + 100 × 2 × 3, then 100 × 15.
        ("an hour by Anthropic's rule", SONNET, (0, 0), 100, 0, 4_800_000, false),
        // 900 × 2.5 + 100 × 2.5, then the output.
        ("an hour where writes have no price", GPT_4O, (0, 0), 100, 0, 3_500_000, true),
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
        image_input_tokens: most,
        image_output_tokens: most,
        pieces: Pieces { web_searches: u64::MAX, audio_ms: u64::MAX, ..Pieces::default() },
        service_tier: ServiceTier::Other,
        region_permille: u64::MAX,
    };
    let rates = Rates::of_tokens(u64::MAX, u64::MAX).with(Kind::CachedInput, u64::MAX);
    let expected = Cost { nano_usd: u64::MAX, partly: true };
    assert_eq!(cost(&Price::flat(rates), &absurd), expected);
    assert_eq!(cost(&Price::default(), &absurd).nano_usd, 0);
}

#[test]
fn prices_are_read_as_they_are_written_and_nothing_else_is() {
    let all = "in 1 cached 2 write 3 write1h 4 out 5 reasoning 6 audio_in 7 audio_out 8.25 \
               image_in 9 image_out 10 search 11 call 12 image 0.04 minute 0.006 character 15 request 1";
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
    let tiers: String = (0..=MAX_TIERS).map(|tier| format!(" above {tier} in 1 out 1")).collect();
    assert_eq!(Price::parse(&format!("in 1 out 1{tiers}")), None);
}

/// Computes the bill in another way: whole dollars and remainders separately, by kind.
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
    /// Consistent figures: uncached, cached, written, output, reasoning.
    fn figures()(parts in prop::array::uniform5(0_u64..10_000_000)) -> [u64; 5] { parts }
}

prop_compose! {
    /// Rising rates for cached input, input, cache writes, output and reasoning.
    fn rising()(mut rates in prop::array::uniform5(0_u64..100_000_000_000)) -> [u64; 5] {
        rates.sort_unstable();
        rates
    }
}

fn rates([cached, input, write, output, reasoning]: [u64; 5]) -> Rates {
    let rates = Rates::of_tokens(input, output).with(Kind::CachedInput, cached);
    rates.with(Kind::CacheWrite, write).with(Kind::Reasoning, reasoning)
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

/// A price of every kind, with steps, tiers and a region.
fn whole_price() -> Price {
    let mut price = Price::parse(
        "in 1.25 cached 0.125 write 1.6 write1h 2.5 out 10 reasoning 12 audio_in 40 audio_out 80 \
         image_in 5 image_out 20 search 10 call 2.5 image 0.04 minute 0.006 character 15 request 0.001 \
         above 200000 in 2.5 out 15",
    )
    .expect("a price");
    for (tier, rates) in [
        (ServiceTier::Flex, "in 0.6 out 5"),
        (ServiceTier::Priority, "in 2.5 write1h 6 out 20"),
        (ServiceTier::Fast, "in 6 write 7.5 out 60"),
    ] {
        price.service_tiers.push((tier, Price::parse(rates).expect("a price").rates));
    }
    price.regions.push(("us".to_owned(), 1100));
    price
}

const TIERS: [ServiceTier; 4] =
    [ServiceTier::Standard, ServiceTier::Flex, ServiceTier::Priority, ServiceTier::Fast];

/// Reduces parts so that together they are at most the whole.
fn within<const N: usize>(whole: u64, parts: [u64; N]) -> [u64; N] {
    let mut left = whole;
    parts.map(|part| {
        let part = part.min(left);
        left -= part;
        part
    })
}

proptest! {
    #[test]
    fn no_request_costs_more_than_its_bound(
        prompt in 0u64..400_000,
        parts in prop::array::uniform5(0u64..400_000),
        output in 0u64..100_000,
        of_output in prop::array::uniform3(0u64..100_000),
        counts in prop::array::uniform5(0u64..1000),
        asked in prop::option::of(prop::sample::select(TIERS.to_vec())),
        served in prop::sample::select(TIERS.to_vec()),
        is_global: bool,
    ) {
        let price = whole_price();
        let served = match asked {
            None if served == ServiceTier::Fast => ServiceTier::Standard,
            Some(asked) if asked != served && asked != ServiceTier::Fast => ServiceTier::Standard,
            _ => served,
        };
        let [cached, write, write_1h, audio, image] = within(prompt, parts);
        let [reasoning, audio_output, image_output] = within(output, of_output);
        let [web_searches, tool_calls, images, audio_ms, characters] = counts;
        let pieces = Pieces { web_searches, tool_calls, images, audio_ms, characters, requests: 1 };
        let billed = Billed {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(output),
            cached_tokens: Some(cached),
            cache_write_tokens: Some(write + write_1h),
            cache_write_1h_tokens: Some(write_1h),
            reasoning_tokens: Some(reasoning),
            audio_input_tokens: Some(audio),
            audio_output_tokens: Some(audio_output),
            image_input_tokens: Some(image),
            image_output_tokens: Some(image_output),
            pieces,
            service_tier: served,
            region_permille: if is_global { 0 } else { 1100 },
        };
        let kinds = [
            Kind::CacheWrite1h,
            Kind::AudioInput,
            Kind::ImageInput,
            Kind::AudioOutput,
            Kind::ImageOutput,
        ];
        let region = is_global.then_some("global");
        let most = Most {
            prompt_tokens: prompt,
            service_tier: asked,
            region,
            kinds: &kinds,
            pieces,
            ..Most::default()
        };
        prop_assert!(cost(&price, &billed).nano_usd <= price.bound(&most).nano_usd(output));
        let fixed = Most { fixed_output_tokens: output, ..most };
        prop_assert!(cost(&price, &billed).nano_usd <= price.bound(&fixed).nano_usd(0));
    }
}

#[test]
fn each_inference_may_read_the_whole_prompt() {
    let price = Price::parse("in 1 out 10").expect("a price");
    let most = Most { prompt_tokens: 1000, inferences: 3, ..Most::default() };
    assert_eq!(price.bound(&most).nano_usd(0), 3_000_000);
}

#[test]
fn a_project_may_have_priority_as_its_own_tier() {
    let mut price = Price::parse("in 1 out 10").expect("a price");
    let most = Most { prompt_tokens: 1000, may_be_priority: true, ..Most::default() };
    assert_eq!(price.bound(&most).nano_usd(100), 5_000_000);
    let flex = Most { service_tier: Some(ServiceTier::Flex), ..most };
    assert_eq!(price.bound(&flex).nano_usd(100), 2_000_000);
    price.service_tiers.push((ServiceTier::Priority, Rates::of_tokens(1_500_000_000, 1)));
    assert_eq!(price.bound(&most).nano_usd(100), 2_500_000);
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

    /// A larger prompt or completion never costs less, nor does a larger part whose rate exceeds
    /// that of its whole, even if figures contradict each other.
    #[test]
    fn more_tokens_never_cost_less(
        figures in prop::array::uniform8(prop::option::of(0_u64..600_000)),
        which in 0_usize..6,
        more in 0_u64..600_000,
        rising in rising(),
        factor in 1_u64..4,
    ) {
        let mut price = Price::flat(rates(rising));
        price.rates = price.rates.with(Kind::AudioInput, rising[2]).with(Kind::AudioOutput, rising[4]);
        let upper = Rates::from_parts(price.rates.0.map(|rate| rate.map(|r| r * factor)));
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
            ..Billed::default()
        }).nano_usd;
        let mut larger = figures;
        larger[which] = Some(figures[which].unwrap_or(0) + more);
        prop_assert!(bill(figures) <= bill(larger));
    }

    /// Reading from the cache never raises the cost.
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
        let rates = Rates::of_tokens(parts[0], parts[3]).with(Kind::CachedInput, parts[1]);
        let rates = rates.with(Kind::CacheWrite, parts[2]).with(Kind::Reasoning, parts[4]);
        let rates = rates.with(Kind::AudioInput, parts[5]).with(Kind::Image, parts[6]);
        let price = Price::flat(rates.with(Kind::Audio, parts[7]));
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
            image_input_tokens: parts[0].into(),
            image_output_tokens: None,
            pieces: Pieces { images: parts[1], audio_ms: parts[2], ..Pieces::default() },
            region_permille: parts[3],
            service_tier: ServiceTier::Priority,
        });
    }

    #[test]
    fn any_price_is_read_as_it_is_written(
        parts in prop::array::uniform16(prop::option::of(0..RATE_END_NANO_USD)),
        above in any::<u64>(),
    ) {
        let mut parts = parts;
        parts[0] = parts[0].or(Some(1));
        parts[4] = parts[4].or(Some(1));
        let rates = Rates::from_parts(parts).expect("all below the end");
        let tiers = vec![Tier { above_prompt_tokens: above, rates }];
        let factors = vec![(ServiceTier::Batch, above % 100_000), (ServiceTier::Fast, 6000)];
        let price = Price { tiers, factors, ..Price::flat(rates) };
        prop_assert_eq!(Price::parse(&price.to_string()), Some(price));
    }
}
