//! `weir models import`: makes `config/models.toml` out of a price list. Decides what the list's
//! numbers mean; looks nothing up and changes no file.
//!
//! A price list says `max_input_tokens` and means, by the maker, either the window that input and
//! output share or the most input that is taken beside the output. What the makers publish:
//!
//! - **OpenAI, GPT-5 and later**: the model pages give a context window and a maximum output, and
//!   input may not pass their difference. 400,000 with 128,000 out leaves 272,000; 1,050,000 leaves
//!   922,000; Azure's chat models take 111,616 of 128,000. Lists give either figure.
//! - **OpenAI before** (GPT-4o, GPT-4.1, the o series, GPT-4, GPT-3.5): one shared window.
//! - **Google Gemini**: an "input token limit" and an "output token limit", each for itself.
//! - **Alibaba's Qwen on its own platform**: a context window, and a "maximum input" some
//!   thousands below it; lists give the latter.
//! - **All others** (Anthropic, DeepSeek, Mistral, Meta, xAI, Moonshot, Z.ai, MiniMax, Cohere,
//!   Amazon, …): one context window, shared. This is also the careful reading, and so the one for
//!   whatever is not named here.
//!
//! Prices are read as texts, never as floats, and rounded to the nearest nano-dollar for a million
//! tokens: lists carry figures such as 2.0000000000000002e-07. What costs nothing by a list is free
//! there or not known, and so gets no price; nor does what has no price for output, embeddings apart.
//! A host's price says nothing of other hosts: a bare name gets its own price or its maker's, and
//! that of hosts only where all agree.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::learned::{self, ForgetArgs, LearnedArgs};
use crate::budget::price::{KINDS, MAX_TIERS, RATE_END_NANO_USD_PER_MTOK};
use crate::budget::{Price, Rates, Tier, money};
use crate::config::models::UNKNOWN_PRICE;
use crate::config::names;

const EXAMPLES: &str = "\
Examples:
  weir models learned
      windows and token ratios that upstreams' answers have taught weir
  weir models import PRICES.json > config/models.toml
      makes the catalogue of models again, from a price list";

/// Looks after the catalogue of models.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Writes a catalogue (TOML) to standard output, made from a JSON price list.
    #[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
    Import {
        /// An object of names, each with `mode`, `provider`, `max_input_tokens`,
        /// `max_output_tokens`, `input_cost_per_token` and other costs in dollars.
        file: PathBuf,
    },
    Learned(LearnedArgs),
    Forget(ForgetArgs),
}

/// Runs `weir models …`.
pub fn run(args: &ModelsArgs) -> Result<(), String> {
    let file = match &args.command {
        Command::Import { file } => file,
        Command::Learned(args) => return learned::run(args),
        Command::Forget(args) => return learned::forget(args),
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let catalogue = import(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    std::io::stdout()
        .write_all(catalogue.as_bytes())
        .map_err(|error| format!("cannot write to standard output: {error}"))
}

const HEAD: &str = "\
# What models accept, in tokens, and what they cost; one line each, sorted. Made by
#
#     weir models import PRICES.json > config/models.toml
#
# so change the importer (src/cli/models.rs tells its rules) and not this file. For a model of your
# own, or other numbers, write [models.\"NAME\"] in your configuration.
#
#   window_tokens        input and output together
#   max_input_tokens     a separate cap on input, where the provider has one
#   max_output_tokens    where it is less than the window
#   strict_alternation   the model refuses two user or two assistant messages in a row
#   usd_per_mtok         dollars for a million tokens: in(put), cached input, cache write, write1h
#                        (entries that live an hour), out(put), reasoning where it is priced apart;
#                        then the same for prompts above a size
#
# A name with a provider's prefix is listed only where its numbers differ from the bare name's; where
# its price alone does, with that alone.

";

/// The platforms of models' makers, whose word on a model goes before other hosts'.
const MAKERS: &[&str] = &[
    "ai21",
    "amazon_nova",
    "anthropic",
    "codestral",
    "cohere_chat",
    "dashscope",
    "deepseek",
    "gemini",
    "meta",
    "meta_llama",
    "minimax",
    "mistral",
    "moonshot",
    "openai",
    "perplexity",
    "tencent",
    "vertex_ai-language-models",
    "xai",
    "xiaomi_mimo",
    "zai",
];

/// Alibaba's platforms, by the names that lists give them.
const ALIBABA: &[&str] = &["dashscope", "qwen_ai_platform", "qwencloud"];

/// The sizes that Qwen's context windows come in.
const QWEN_WINDOWS: &[u64] = &[8_192, 32_768, 131_072, 262_144, 1_000_000];

/// One model of a price list; whatever else it says is left aside.
#[derive(Deserialize)]
struct Listed {
    mode: Option<String>,
    #[serde(alias = "litellm_provider")]
    provider: Option<String>,
    #[serde(default)]
    max_input_tokens: Value,
    #[serde(default)]
    max_output_tokens: Value,
}

/// What a list's numbers of a model mean.
struct Model {
    limits: Limits,
    price: Option<Price>,
    provider: String,
}

/// What a model accepts, in the catalogue's three fields. Ordered so that the least is the most
/// careful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Limits {
    window_tokens: u64,
    max_input_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
}

/// The catalogue made of the price list `json`.
fn import(json: &str) -> Result<String, String> {
    let listed: BTreeMap<String, &RawValue> =
        serde_json::from_str(json).map_err(|error| error.to_string())?;
    let mut models: BTreeMap<String, Model> = BTreeMap::new();
    for (name, value) in listed {
        let name = name.to_ascii_lowercase();
        let Some(model) = read(&name, value.get()) else {
            continue;
        };
        match models.entry(name) {
            Entry::Vacant(place) => {
                place.insert(model);
            }
            // The same name in other letters: the more careful limits, and a price if they agree.
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.limits = known.limits.min(model.limits);
                known.price =
                    known.price.take().filter(|price| model.price.as_ref() == Some(price));
            }
        }
    }
    if models.is_empty() {
        return Err("lists no model with a `max_input_tokens`".to_owned());
    }
    Ok(write(&lean(&models), &lean_prices(&models)))
}

/// What the list says of `name`; `None` where it is no model that answers in tokens or has no
/// numbers.
fn read(name: &str, json: &str) -> Option<Model> {
    let listed: Listed = serde_json::from_str(json).ok()?;
    let mode = listed.mode.as_deref()?;
    let is_embedding = mode == "embedding";
    let is_used = is_embedding || matches!(mode, "chat" | "completion" | "responses");
    // Quotes in a name would need escapes, and no model has them.
    let plain = |c: char| !c.is_control() && c != '"' && c != '\\';
    let named = name.len() <= names::MAX_NAME_BYTES && name.chars().all(plain);
    let input_tokens = listed.max_input_tokens.as_u64().filter(|&tokens| tokens > 0)?;
    let output_tokens = listed.max_output_tokens.as_u64().filter(|&tokens| tokens > 0);
    let provider = listed.provider.unwrap_or_default();
    let limits = limits(&names::bare(name), &provider, input_tokens, output_tokens);
    let price = price(json, is_embedding);
    (is_used && named).then_some(Model { limits, price, provider })
}

/// The members of a list that hold rates, in the order of [`KINDS`]; of tiers, with `_above_200k_tokens`
/// and the like behind them.
const COSTS: [&str; KINDS.len()] = [
    "input_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
    "cache_creation_input_token_cost_above_1hr",
    "output_cost_per_token",
    "output_cost_per_reasoning_token",
    "input_cost_per_audio_token",
    "output_cost_per_audio_token",
];

/// The price of one model of a list; `None` where it is not known.
fn price(json: &str, is_embedding: bool) -> Option<Price> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(json).ok()?;
    let rates = |suffix: &str| {
        let mut parts = COSTS.map(|key| nano_usd_per_mtok(members.get(&format!("{key}{suffix}"))?));
        if is_embedding {
            parts[OUTPUT] = parts[OUTPUT].or(Some(0));
        }
        // Parts of the input that a list gives for nothing are those that it has no price for.
        for part in [1, 2, 3] {
            parts[part] = parts[part].filter(|&rate| rate > 0);
        }
        Rates::from_parts(parts)
    };
    let base = rates("").filter(|rates| rates.input_nano_usd_per_mtok > 0)?;
    let mut tiers: Vec<Tier> = members
        .keys()
        .filter_map(|key| key.strip_prefix("input_cost_per_token_above_")?.strip_suffix("k_tokens"))
        .filter_map(|thousands| {
            let above_prompt_tokens = thousands.parse::<u64>().ok()?.checked_mul(1000)?;
            let rates = rates(&format!("_above_{thousands}k_tokens"))?;
            Some(Tier { above_prompt_tokens, rates })
        })
        .collect();
    tiers.sort_by_key(|tier| tier.above_prompt_tokens);
    tiers.dedup_by_key(|tier| tier.above_prompt_tokens);
    tiers.truncate(MAX_TIERS);
    Some(Price { tiers, ..Price::flat(base) })
}

/// The place of output among [`KINDS`].
const OUTPUT: usize = 4;

/// Dollars for a token as nano-dollars for a million tokens.
fn nano_usd_per_mtok(value: &RawValue) -> Option<u64> {
    let (rate, _) = money::scaled(value.get(), 9 + 6)?;
    (rate < RATE_END_NANO_USD_PER_MTOK).then_some(rate)
}

/// What a list's two numbers mean for the model called `name` (bare).
fn limits(name: &str, provider: &str, input_tokens: u64, output_tokens: Option<u64>) -> Limits {
    let output = output_tokens.unwrap_or(0);
    let (window_tokens, max_input_tokens) = if names::is_recent_openai(name) {
        openai_window(input_tokens, output)
    } else if is_gemini(name) && output < input_tokens {
        (input_tokens + output, Some(input_tokens))
    } else if ALIBABA.contains(&provider) && (name.starts_with("qwen") || name.starts_with("qwq")) {
        let window = QWEN_WINDOWS.iter().find(|&&window| window >= input_tokens);
        (*window.unwrap_or(&input_tokens), Some(input_tokens))
    } else {
        (input_tokens, None)
    };
    Limits {
        window_tokens,
        max_input_tokens: max_input_tokens.filter(|&tokens| tokens < window_tokens),
        max_output_tokens: output_tokens.filter(|&tokens| tokens < window_tokens),
    }
}

/// The window and the cap on input of one of OpenAI's models, of which a list gives either.
fn openai_window(input_tokens: u64, output_tokens: u64) -> (u64, Option<u64>) {
    match (input_tokens, output_tokens) {
        (111_616, 16_384) => (128_000, Some(111_616)),
        (272_000, 128_000) | (400_000, _) => (400_000, Some(272_000)),
        (922_000, 128_000) | (1_050_000, _) => (1_050_000, Some(922_000)),
        _ => (input_tokens, None),
    }
}

fn is_gemini(name: &str) -> bool {
    (name.starts_with("gemini-") && !name.starts_with("gemini-gemma-"))
        || name.starts_with("learnlm-")
}

/// The limits worth a line: each bare name's, and those of a longer one that has its own.
fn lean(models: &BTreeMap<String, Model>) -> BTreeMap<String, Limits> {
    let mut kept = BTreeMap::new();
    for name in bare_names(models) {
        let limits = of_bare(&name, models);
        kept.insert(name, limits);
    }
    add_longer(&mut kept, models, |model, _| Some(model.limits));
    kept
}

/// The prices worth a line: that of each bare name which has one, and that of a longer one where it
/// differs; `None` where a longer one has none.
fn lean_prices(models: &BTreeMap<String, Model>) -> BTreeMap<String, Option<Price>> {
    let mut kept = BTreeMap::new();
    for name in bare_names(models) {
        if let Some(price) = price_of_bare(&name, models) {
            kept.insert(name, Some(price));
        }
    }
    add_longer(&mut kept, models, |model, known| match (&model.price, known) {
        // A name whose shorter ones have no price either needs no line that says so.
        (None, None) => None,
        (price, _) => Some(price.clone()),
    });
    kept
}

fn bare_names(models: &BTreeMap<String, Model>) -> BTreeSet<String> {
    models.keys().map(|name| names::bare(name).into_owned()).collect()
}

/// Adds each longer name to `kept` whose value is not the one that it would be found by.
fn add_longer<T: PartialEq>(
    kept: &mut BTreeMap<String, T>,
    models: &BTreeMap<String, Model>,
    value: impl Fn(&Model, Option<&T>) -> Option<T>,
) {
    let mut longer: Vec<_> = models
        .iter()
        .map(|(name, model)| (names::candidates(name), model))
        .filter(|(candidates, _)| candidates.len() > 1)
        .collect();
    longer.sort_by_key(|(candidates, _)| candidates.len());
    for (candidates, model) in longer {
        let known = candidates.iter().skip(1).find_map(|name| kept.get(name.as_ref()));
        let own = value(model, known);
        if known != own.as_ref()
            && let Some(own) = own
        {
            kept.insert(candidates[0].clone().into_owned(), own);
        }
    }
}

/// The limits of a bare name: its own in the list, else its maker's, else those that most hosts
/// give; the smaller of two that are as good.
fn of_bare(name: &str, models: &BTreeMap<String, Model>) -> Limits {
    if let Some(model) = models.get(name) {
        return model.limits;
    }
    let hosts = || hosts(name, models);
    let by_maker =
        hosts().filter(|model| MAKERS.contains(&model.provider.as_str())).map(|model| model.limits);
    by_maker
        .min()
        .or_else(|| {
            let mut votes: BTreeMap<Limits, usize> = BTreeMap::new();
            for model in hosts() {
                *votes.entry(model.limits).or_default() += 1;
            }
            let (limits, _) = votes.into_iter().rev().max_by_key(|&(_, count)| count)?;
            Some(limits)
        })
        .expect("a bare name comes from a model in the list")
}

/// The price of a bare name: its own in the list, else the one on which its maker's platforms agree,
/// else the one on which all hosts that have one agree.
fn price_of_bare(name: &str, models: &BTreeMap<String, Model>) -> Option<Price> {
    if let Some(model) = models.get(name) {
        return model.price.clone();
    }
    let is_maker = |model: &&Model| MAKERS.contains(&model.provider.as_str());
    let made = hosts(name, models).filter(is_maker).filter_map(|model| model.price.as_ref());
    agreed(made).or_else(|| {
        let made_by_none = !hosts(name, models).any(|model| is_maker(&model));
        let hosted = hosts(name, models).filter_map(|model| model.price.as_ref());
        agreed(hosted.filter(|_| made_by_none))
    })
}

/// The one price in `prices`, if they are all the same.
fn agreed<'a>(mut prices: impl Iterator<Item = &'a Price>) -> Option<Price> {
    let first = prices.next()?;
    prices.all(|price| price == first).then(|| first.clone())
}

/// The models that are known as `name` without what stands before it.
fn hosts<'a>(name: &str, models: &'a BTreeMap<String, Model>) -> impl Iterator<Item = &'a Model> {
    models.iter().filter(move |(full, _)| names::bare(full) == name).map(|(_, model)| model)
}

fn write(models: &BTreeMap<String, Limits>, prices: &BTreeMap<String, Option<Price>>) -> String {
    let mut text = HEAD.to_owned();
    let names: BTreeSet<&String> = models.keys().chain(prices.keys()).collect();
    for name in names {
        let mut fields = Vec::new();
        if let Some(limits) = models.get(name) {
            fields.push(format!("window_tokens = {}", limits.window_tokens));
            let optional = [
                ("max_input_tokens", limits.max_input_tokens),
                ("max_output_tokens", limits.max_output_tokens),
            ];
            let known = optional.into_iter().filter_map(|(key, value)| Some((key, value?)));
            fields.extend(known.map(|(key, value)| format!("{key} = {value}")));
            if names::strict_alternation(name) {
                fields.push("strict_alternation = true".to_owned());
            }
        }
        if let Some(price) = prices.get(name) {
            let price = price.as_ref().map_or(UNKNOWN_PRICE.to_owned(), Price::to_string);
            fields.push(format!("usd_per_mtok = \"{price}\""));
        }
        writeln!(text, "\"{name}\" = {{ {} }}", fields.join(", ")).expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: &str = include_str!("../../tests/data/models/prices.json");
    const CATALOGUE: &str = include_str!("../../tests/data/models/catalogue.toml");

    #[test]
    fn a_price_list_becomes_a_catalogue() {
        let imported = import(PRICES).expect("it lists models");
        let (head, models) = imported.split_at(HEAD.len());
        assert_eq!(head, HEAD);
        assert_eq!(models, CATALOGUE);
    }

    #[test]
    fn what_is_written_can_be_read_and_finds_every_listed_model() {
        let imported = import(PRICES).expect("it lists models");
        let models = crate::config::models::parse(&imported).expect("it has the catalogue's form");
        let listed: BTreeMap<String, Value> = serde_json::from_str(PRICES).expect("JSON");
        for (name, value) in listed {
            if let Some(Model { limits, price, .. }) =
                read(&name.to_ascii_lowercase(), &value.to_string())
            {
                let candidates = names::candidates(&name);
                let found = candidates.iter().find_map(|name| models.entries.get(name.as_ref()));
                let known = candidates.iter().find_map(|name| models.prices.get(name.as_ref()));
                assert_eq!(known.and_then(|listed| listed.price()), price.as_ref(), "{name}");
                let entry = found.expect("every model is found by some name");
                let found = Limits {
                    window_tokens: entry.window_tokens,
                    max_input_tokens: entry.max_input_tokens,
                    max_output_tokens: entry.max_output_tokens,
                };
                assert_eq!(found, limits, "{name}");
            }
        }
    }

    #[test]
    fn what_is_no_price_list_is_refused() {
        assert!(import("[]").is_err());
        assert!(import("{").is_err());
        let error = import("{\"a\": {\"mode\": \"chat\"}}").expect_err("there are no numbers");
        assert_eq!(error, "lists no model with a `max_input_tokens`");
    }
}
