//! Reading of price keys into exact figures.

use super::keys::{PRICE, PRICES};
use super::reader::{Keys, Reader};
use super::{Prices, UnknownPrice};
use weir_store::budget::price::{KINDS, MAX_TIERS};
use weir_store::budget::{NanoUsd, Price, Rates, ServiceTier, Tier};

/// Reads `[prices]`.
pub(super) fn read(reader: &mut Reader) -> Prices {
    let mut keys = reader.section(&PRICES);
    let (unknown, stated) = (keys.get("unknown"), keys.get("stated"));
    let path = ["prices", "default"];
    let default = match reader.is_absent(&path) {
        true => None,
        false => price(reader, &path, true),
    };
    if reader.is_absent(&path) && unknown == UnknownPrice::Default {
        let message = "is missing: prices.unknown is \"default\", so write [prices.default] with \
                       input_usd_per_mtok and output_usd_per_mtok";
        reader.refuse(&path, message);
    }
    Prices { unknown, stated, default }
}

/// Reads the price under `path`, if any of it is written or `is_needed`. It is not merged with
/// another price.
pub(super) fn price(reader: &mut Reader, path: &[&str], is_needed: bool) -> Option<Price> {
    let inside = |name| [path, &[name]].concat();
    let has_more = !reader.is_absent(&inside("tiers"))
        || ServiceTier::NAMED.iter().any(|(name, _)| !reader.is_absent(&inside(name)));
    let mut keys = reader.at(&PRICE, path);
    let rates = rates(&mut keys, is_needed || has_more);
    let regions = keys.texts("regions", region).unwrap_or_default();
    let tiers = tiers(reader, &inside("tiers"));
    let mut service_tiers = Vec::new();
    for (name, service_tier) in ServiceTier::NAMED {
        let path = inside(name);
        if !reader.is_absent(&path) {
            let rates = self::rates(&mut reader.at(&PRICE, &path), true);
            service_tiers.extend(rates.map(|rates| (service_tier, rates)));
        }
    }
    Some(Price { rates: rates?, tiers, service_tiers, regions, factors: Vec::new() })
}

/// Reads the factor of a region, as thousandths.
fn region(name: &str, factor: &str) -> Result<(String, u64), String> {
    let parsed = weir_store::budget::money::scaled(factor.trim(), 3);
    match parsed {
        Some((permille, true)) if (1..=MAX_REGION_PERMILLE).contains(&permille) => {
            Ok((name.to_owned(), permille))
        }
        _ => Err("must be a factor with at most three decimals, such as \"1.1\"".to_owned()),
    }
}

/// Highest factor of a region.
const MAX_REGION_PERMILLE: u64 = 100_000;

/// Reads rates. Rejects rates without both input and output if any is written or `is_needed`.
fn rates(keys: &mut Keys<'_, '_>, is_needed: bool) -> Option<Rates> {
    let parts = KINDS.map(|row| keys.written(row.key).map(|NanoUsd(rate)| rate));
    if is_needed || KINDS.iter().any(|row| !keys.is_absent(row.key)) {
        for name in ["input_usd_per_mtok", "output_usd_per_mtok"] {
            if keys.is_absent(name) {
                let message = "is missing: a price needs at least input_usd_per_mtok and \
                               output_usd_per_mtok; write 0 if it is free";
                keys.refuse(name, message);
            }
        }
    }
    Rates::from_parts(parts)
}

/// Reads the list of tiers at `path`.
fn tiers(reader: &mut Reader, path: &[&str]) -> Vec<Tier> {
    let rows = reader.rows_at(path);
    let mut tiers: Vec<Tier> = Vec::new();
    for row in 0..rows {
        let row = row.to_string();
        let mut keys = reader.at(&PRICE, &[path, &[&row]].concat());
        let above = "above_prompt_tokens";
        let tokens = keys.written(above);
        if keys.is_absent(above) {
            keys.refuse(above, "is missing: a tier needs the prompt size that it begins above");
        }
        let rates = rates(&mut keys, true);
        let last = tiers.last().map(|last| last.above_prompt_tokens);
        if tokens.is_some() && tokens <= last {
            keys.refuse(above, "must be above that of the previous tier");
        } else if let (Some(above_prompt_tokens), Some(rates)) = (tokens, rates) {
            tiers.push(Tier { above_prompt_tokens, rates });
        }
    }
    if rows > MAX_TIERS {
        reader.refuse(path, format!("has {rows} tiers, more than {MAX_TIERS}"));
    }
    tiers
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};
    use proptest::prelude::*;

    use crate::config::{Config, Priced, load};
    use weir_store::budget::Price;

    fn loaded(text: &str) -> Config {
        load(Figment::from(Toml::string(text))).expect("this configuration is right").0
    }

    fn problems(text: &str) -> Vec<String> {
        let problems = load(Figment::from(Toml::string(text))).expect_err("it is wrong");
        let lines = problems.iter().map(ToString::to_string);
        lines.map(|line| line.replace(" (TOML source string)", "")).collect()
    }

    const ALL: &str = r#"
        [models."gpt-4o"]
        input_usd_per_mtok = "2.000000001"
        cached_input_usd_per_mtok = 0.075
        cache_write_usd_per_mtok = 3
        cache_write_1h_usd_per_mtok = "4"
        output_usd_per_mtok = 1_000
        reasoning_usd_per_mtok = "999999.999999999"
        audio_input_usd_per_mtok = 0
        audio_output_usd_per_mtok = 0.1
        [models."gpt-4o".flex]
        input_usd_per_mtok = "1"
        output_usd_per_mtok = "5"
        [[models."gpt-4o".tiers]]
        above_prompt_tokens = 1000
        input_usd_per_mtok = "6"
        output_usd_per_mtok = "7"
        [[models."gpt-4o".tiers]]
        above_prompt_tokens = 2000
        input_usd_per_mtok = "8"
        output_usd_per_mtok = "9"
    "#;

    #[test]
    fn every_part_of_a_price_can_be_set() {
        let config = loaded(ALL);
        let price = config.models.price("azure/gpt-4o").expect("it was set");
        assert_eq!(
            price.to_string(),
            "in 2.000000001 cached 0.075 write 3 write1h 4 out 1000 reasoning 999999.999999999 \
             audio_in 0 audio_out 0.1 above 1000 in 6 out 7 above 2000 in 8 out 9"
        );
        let [(tier, rates)] = price.service_tiers[..] else { panic!("one service tier") };
        assert_eq!(tier, weir_store::budget::ServiceTier::Flex);
        assert_eq!(Price::flat(rates).to_string(), "in 1 out 5");
    }

    #[test]
    fn a_price_that_is_set_takes_nothing_from_the_shipped_one() {
        let config = loaded("[models.gpt-4o]\ninput_usd_per_mtok = 2\noutput_usd_per_mtok = 8");
        let price = config.models.price("gpt-4o").map(ToString::to_string);
        assert_eq!(price.as_deref(), Some("in 2 out 8"));
        let config = loaded("[models.gpt-4o]\nmax_output_tokens = 5");
        let price = config.models.price("gpt-4o").map(ToString::to_string);
        assert_eq!(
            price.as_deref(),
            Some("in 2.5 cached 1.25 out 10 search 25 call 2.5 tier batch 0.5")
        );
    }

    #[test]
    fn what_has_no_price_is_a_policy() {
        let unknown = "nobody/knows-me";
        let config = loaded("");
        assert!(matches!(config.price("gpt-4o"), Priced::Known(_)));
        assert_eq!(config.price(unknown), Priced::Unpriced);
        let config = loaded("[prices]\nunknown = \"reject\"");
        assert_eq!(config.price(unknown), Priced::Refused);
        let config = loaded(
            "[prices]\nunknown = \"default\"\n\
             default = { input_usd_per_mtok = \"3\", output_usd_per_mtok = \"15\" }",
        );
        let price = Price::parse("in 3 out 15").expect("a price");
        assert_eq!(config.price(unknown), Priced::Default(&price));
        assert!(matches!(config.price("gpt-4o"), Priced::Known(_)));
        // A name that may be another model's does not match by its beginning.
        assert_eq!(config.price("gpt-4o-unheard"), Priced::Default(&price));
    }

    const WANTED: &str = "is not dollars per million tokens, from 0 to below 1000000 with at most \
                          nine decimals, like \"2.50\"";
    const MISSING: &str = "is missing: a price needs at least input_usd_per_mtok and \
                           output_usd_per_mtok; write 0 if it is free";

    #[test]
    fn hostile_figures_are_refused() {
        for (figure, shown) in [
            ("-1", "-1"),
            ("-0.5", "-0.5"),
            ("1000000", "1000000"),
            ("999999.9999999999", "999999.9999999999"),
            ("0.0000000001", "0.0000000001"),
            ("1e300", &format!("1{}", "0".repeat(300))),
            ("9223372036854775807", "9223372036854775807"),
            ("inf", "inf"),
            ("nan", "NaN"),
            ("true", "true"),
            ("[1]", "a list"),
            ("\"\"", "\"\""),
            ("\"2,50\"", "\"2,50\""),
            ("\"$2\"", "\"$2\""),
            ("\"1e-6\"", "\"1e-6\""),
            ("\"-2\"", "\"-2\""),
            ("\"NaN\"", "\"NaN\""),
            ("\"0.0000000001\"", "\"0.0000000001\""),
            ("\"18446744074\"", "\"18446744074\""),
            ("\"99999999999999999999999999999\"", "\"99999999999999999999999999999\""),
        ] {
            let text =
                format!("[models.gpt-4o]\ninput_usd_per_mtok = {figure}\noutput_usd_per_mtok = 1");
            let expected = format!("models.gpt-4o.input_usd_per_mtok: {shown} {WANTED}");
            assert_eq!(problems(&text), [expected], "{figure}");
        }
    }

    #[test]
    fn what_does_not_make_a_price_is_refused() {
        let both = "input_usd_per_mtok = 1\noutput_usd_per_mtok = 1\n";
        let tier = |above: &str| format!("[[models.o1.tiers]]\n{above}\n{both}");
        let above = "above_prompt_tokens = 5";
        for (text, expected) in [
            (
                "[models.o1]\ninput_usd_per_mtok = 1".to_owned(),
                vec![format!("models.o1.output_usd_per_mtok: {MISSING}")],
            ),
            (
                "[models.o1]\nreasoning_usd_per_mtok = 1".to_owned(),
                vec![
                    format!("models.o1.input_usd_per_mtok: {MISSING}"),
                    format!("models.o1.output_usd_per_mtok: {MISSING}"),
                ],
            ),
            (
                format!("[models.o1.batch]\n{both}"),
                vec![
                    format!("models.o1.input_usd_per_mtok: {MISSING}"),
                    format!("models.o1.output_usd_per_mtok: {MISSING}"),
                ],
            ),
            (
                format!("[models.o1]\n{both}{}", tier("")),
                vec![
                    "models.o1.tiers[0].above_prompt_tokens: is missing: a tier needs the prompt \
                     size that it begins above"
                        .to_owned(),
                ],
            ),
            (
                format!("[models.o1]\n{both}{}{}", tier(above), tier(above)),
                vec![
                    "models.o1.tiers[1].above_prompt_tokens: must be above that of the previous \
                     tier"
                        .to_owned(),
                ],
            ),
            (
                format!(
                    "[models.o1]\n{both}{}",
                    (1..10)
                        .map(|n| tier(&format!("above_prompt_tokens = {n}")))
                        .collect::<String>()
                ),
                vec!["models.o1.tiers: has 9 tiers, more than 8".to_owned()],
            ),
            (
                format!("[models.o1]\n{both}price = 1"),
                vec![
                    "models.o1.price: there is no such key; did you mean models.o1.policy?"
                        .to_owned(),
                ],
            ),
        ] {
            assert_eq!(problems(&text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_policy_for_unknown_prices_is_refused() {
        for (text, expected) in [
            (
                "[prices]\nunknown = \"free\"",
                vec![
                    "prices.unknown: \"free\" is not one of \"zero\", \"reject\", \"default\""
                        .to_owned(),
                ],
            ),
            (
                "[prices]\nunknown = \"default\"",
                vec![
                    "prices.default: is missing: prices.unknown is \"default\", so write \
                     [prices.default] with input_usd_per_mtok and output_usd_per_mtok"
                        .to_owned(),
                ],
            ),
            (
                "[prices.default]\ninput_usd_per_mtok = 1",
                vec![format!("prices.default.output_usd_per_mtok: {MISSING}")],
            ),
        ] {
            assert_eq!(problems(text), expected, "{text}");
        }
    }

    proptest! {
        /// TOML parses a number as a float. Every valid price survives that exactly.
        #[test]
        fn a_price_written_as_a_number_is_that_price(
            nanos in 0..weir_store::budget::price::RATE_END_NANO_USD,
        ) {
            let text = weir_store::budget::NanoUsd(nanos).to_decimal();
            let config = loaded(&format!(
                "[models.o1]\ninput_usd_per_mtok = {text}\noutput_usd_per_mtok = \"{text}\""
            ));
            let rates = config.models.price("o1").expect("it was set").rates;
            prop_assert_eq!(rates.input_nano_usd_per_mtok(), nanos);
            prop_assert_eq!(rates.output_nano_usd_per_mtok(), nanos);
        }
    }
}
