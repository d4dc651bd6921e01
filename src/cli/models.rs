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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::config::names;

/// Looks after the catalogue of models.
#[derive(Debug, clap::Args)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Writes a catalogue (TOML) to standard output, made from a JSON price list.
    Import {
        /// An object of names, each with `mode`, `provider`, `max_input_tokens` and
        /// `max_output_tokens`.
        file: PathBuf,
    },
}

/// Runs `weir models …`.
pub fn run(args: &ModelsArgs) -> Result<(), String> {
    let Command::Import { file } = &args.command;
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let catalogue = import(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    std::io::stdout()
        .write_all(catalogue.as_bytes())
        .map_err(|error| format!("cannot write to standard output: {error}"))
}

const HEAD: &str = "\
# What models accept, in tokens; one line each, sorted. Made by
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
#
# A name with a provider's prefix is listed only where its numbers differ from the bare name's.

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
    let listed: BTreeMap<String, Value> =
        serde_json::from_str(json).map_err(|error| error.to_string())?;
    let mut models: BTreeMap<String, (Limits, String)> = BTreeMap::new();
    for (name, value) in listed {
        let name = name.to_ascii_lowercase();
        let Some((limits, provider)) = read(&name, value) else {
            continue;
        };
        let model = models.entry(name).or_insert((limits, provider));
        model.0 = model.0.min(limits);
    }
    if models.is_empty() {
        return Err("lists no chat model with a `max_input_tokens`".to_owned());
    }
    Ok(write(&lean(&models)))
}

/// What the list says of `name`; `None` where it is no model to chat with or has no numbers.
fn read(name: &str, value: Value) -> Option<(Limits, String)> {
    let listed: Listed = serde_json::from_value(value).ok()?;
    let chats = matches!(listed.mode.as_deref(), Some("chat" | "completion" | "responses"));
    // Quotes in a name would need escapes, and no model has them.
    let plain = |c: char| !c.is_control() && c != '"' && c != '\\';
    let named = name.len() <= names::MAX_NAME_BYTES && name.chars().all(plain);
    let input_tokens = listed.max_input_tokens.as_u64().filter(|&tokens| tokens > 0)?;
    let output_tokens = listed.max_output_tokens.as_u64().filter(|&tokens| tokens > 0);
    let provider = listed.provider.unwrap_or_default();
    let limits = limits(&names::bare(name), &provider, input_tokens, output_tokens);
    (chats && named).then_some((limits, provider))
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

/// The models worth a line: each bare name, and a longer one where its numbers are its own.
fn lean(models: &BTreeMap<String, (Limits, String)>) -> BTreeMap<String, Limits> {
    let mut kept = BTreeMap::new();
    let bare_names: BTreeSet<String> =
        models.keys().map(|name| names::bare(name).into_owned()).collect();
    for name in bare_names {
        let limits = of_bare(&name, models);
        kept.insert(name, limits);
    }
    let mut longer: Vec<_> = models
        .iter()
        .map(|(name, (limits, _))| (names::candidates(name), limits))
        .filter(|(candidates, _)| candidates.len() > 1)
        .collect();
    longer.sort_by_key(|(candidates, _)| candidates.len());
    for (candidates, limits) in longer {
        let known = candidates.iter().skip(1).find_map(|name| kept.get(name.as_ref()));
        if known != Some(limits) {
            kept.insert(candidates[0].clone().into_owned(), *limits);
        }
    }
    kept
}

/// The numbers of a bare name: its own in the list, else its maker's, else those that most hosts
/// give; the smaller of two that are as good.
fn of_bare(name: &str, models: &BTreeMap<String, (Limits, String)>) -> Limits {
    if let Some((limits, _)) = models.get(name) {
        return *limits;
    }
    let hosts = || models.iter().filter(|(full, _)| names::bare(full) == name);
    let by_maker = hosts()
        .filter(|(_, (_, provider))| MAKERS.contains(&provider.as_str()))
        .map(|(_, (limits, _))| *limits)
        .min();
    by_maker
        .or_else(|| {
            let mut votes: BTreeMap<Limits, usize> = BTreeMap::new();
            for (_, (limits, _)) in hosts() {
                *votes.entry(*limits).or_default() += 1;
            }
            let (limits, _) = votes.into_iter().rev().max_by_key(|&(_, count)| count)?;
            Some(limits)
        })
        .expect("a bare name comes from a model in the list")
}

fn write(models: &BTreeMap<String, Limits>) -> String {
    let mut text = HEAD.to_owned();
    for (name, limits) in models {
        let mut line = format!("\"{name}\" = {{ window_tokens = {}", limits.window_tokens);
        let optional = [
            ("max_input_tokens", limits.max_input_tokens),
            ("max_output_tokens", limits.max_output_tokens),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                write!(line, ", {key} = {value}").expect("a string takes all");
            }
        }
        if names::strict_alternation(name) {
            line.push_str(", strict_alternation = true");
        }
        text.push_str(&line);
        text.push_str(" }\n");
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
            if let Some((limits, _)) = read(&name.to_ascii_lowercase(), value) {
                let candidates = names::candidates(&name);
                let found = candidates.iter().find_map(|name| models.get(name.as_ref()));
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
        assert_eq!(error, "lists no chat model with a `max_input_tokens`");
    }
}
