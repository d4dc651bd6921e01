//! `weir models show`: what weir assumes of a model, and where each figure comes from. Decides nothing.

use std::path::PathBuf;

use super::explain;
use super::table::aligned;
use crate::config::{Catalogue, Known};
use crate::config::{Config, Priced};
use weir_engine::compact::policy::Goal;
use weir_eval::bill::CacheRules;
use weir_store::budget::money::grouped;
use weir_store::budget::price::{KINDS, Kind};
use weir_store::budget::{NanoUsd, Price, Rates};

/// Growth of conversations a request, in tokens, for which the cheapest size is shown.
const GROWTHS: [u64; 3] = [500, 1500, 5000];

/// Prints what weir assumes of a model: window, answer, prices, cache, and the limits by price
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The model, as requests name it
    name: String,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

/// Runs `weir models show`.
pub(super) fn run(args: &ShowArgs) -> Result<(), String> {
    let config = explain::configuration(args.config.as_deref())?;
    super::print(&shown(&config, &args.name))
}

fn shown(config: &Config, name: &str) -> String {
    let found = config.models.find(name);
    let listed = found.name.unwrap_or_default();
    let source = match (found.known, config.models.is_own(listed)) {
        (Known::Unknown, _) => "assumed: weir does not know the name".to_owned(),
        (_, true) => format!("configuration, models.{listed:?}"),
        (Known::Exact, false) => format!("catalogue, {listed:?}"),
        (Known::Prefix, false) => format!("catalogue, {listed:?}, the beginning of the name"),
    };
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut row = |name: &str, value: String, source: &str| {
        rows.push([name.to_owned(), value, source.to_owned()]);
    };
    let entry = found.entry;
    row("window", tokens(entry.window_tokens), &source);
    if let Some(most) = entry.max_input_tokens {
        row("prompt", format!("at most {}", tokens(most)), &source);
    }
    if let Some(most) = entry.max_output_tokens {
        row("answer", format!("at most {}", tokens(most)), &source);
    }
    for limit in config.limits.iter().filter(|limit| limit.matches(name)) {
        let source = format!("configuration, [[limits]] {:?}", limit.model);
        row("limit", tokens(limit.max_input_tokens), &source);
    }
    let (price, source) = match config.price(name) {
        Priced::Known(price) if Catalogue::default().price(name) == Some(price) => {
            (Some(price), "catalogue")
        }
        Priced::Known(price) => (Some(price), "configuration"),
        Priced::Default(price) => (Some(price), "configuration, [prices.default]"),
        Priced::Unpriced | Priced::Refused => (None, "neither catalogue nor configuration"),
    };
    match price {
        None => row("price", "not known".to_owned(), source),
        Some(price) => prices(price, source, &mut row),
    }
    let rules = CacheRules::of(name, price.unwrap_or(&Price::default()), false);
    let minutes = rules.lifetime_ms.unwrap_or(0) / 60_000;
    let family = "by the family of the name";
    row("cache", format!("kept {minutes} minutes after its last use"), family);
    row("", format!("from {} on", tokens(rules.least_tokens)), family);
    if let Some(price) = price {
        limits(price, &mut row);
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    format!("{name}\n{}", aligned(&rows, 2))
}

/// Adds the prices, and those above each step.
fn prices(price: &Price, source: &str, row: &mut impl FnMut(&str, String, &str)) {
    row("price", rates(&price.rates), source);
    for tier in &price.tiers {
        let above = format!("{} above {}", rates(&tier.rates), tokens(tier.above_prompt_tokens));
        row("", above, source);
    }
}

/// Adds the values of `context.limit`.
fn limits(price: &Price, row: &mut impl FnMut(&str, String, &str)) {
    let rates = [Kind::CachedInput, Kind::CacheWrite].map(|kind| price.permille_of_input(kind));
    let priced = |goal: Goal| goal.priced(rates, price.step_tokens());
    let formula = "by the prices";
    for (word, goal) in Goal::WORDS {
        match priced(goal) {
            Goal::Step(step) if step < u64::MAX => {
                row(&format!("limit {word:?}"), tokens(step), formula)
            }
            Goal::Economic(own) => {
                for growth in GROWTHS {
                    let cheapest = tokens(own.cheapest_tokens(0, growth));
                    let size =
                        format!("{cheapest} of history, if {} come a request", grouped(growth));
                    row(&format!("limit {word:?}"), size, formula);
                }
            }
            // "cold" has the sizes of "economic".
            Goal::Limit | Goal::Step(_) | Goal::Tokens(_) | Goal::Cold(_) => {}
        }
    }
}

fn tokens(number: u64) -> String {
    format!("{} tokens", grouped(number))
}

/// Formats rates of tokens, in dollars per million.
fn rates(rates: &Rates) -> String {
    let of_tokens = [Kind::Input, Kind::CachedInput, Kind::CacheWrite, Kind::Output];
    let rate = |kind: Kind| {
        let usd = NanoUsd(rates.get(kind)?).to_decimal();
        Some(format!("{} ${usd}", KINDS[kind as usize].word))
    };
    of_tokens.into_iter().filter_map(rate).collect::<Vec<_>>().join(", ")
}
