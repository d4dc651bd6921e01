//! Limits on output and thinking, wherever a request may state them.

use std::borrow::Cow;

use crate::wire::json::{self, all};
use crate::wire::{Protocol, Request};

/// Names of output limits: OpenAI's, then those of llama.cpp, Text Generation Inference, Ollama, Hugging
/// Face, Google and older servers.
const LIMITS: [&str; 13] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "max_new_tokens",
    "num_predict",
    "max_tokens_to_sample",
    "max_length",
    "max_gen_len",
    "max_gen_toks",
    "maxOutputTokens",
    "maxTokens",
    "max_generated_tokens",
];
/// Members that may hold settings of their own.
const SETTING_GROUPS: [&str; 11] = [
    "options",
    "parameters",
    "extra_body",
    "generation_config",
    "generationConfig",
    "google",
    "sequential_image_generation_options",
    // Vercel's gateway; Venice.
    "providerOptions",
    "provider_options",
    "gateway",
    "venice_parameters",
];
/// Smallest thinking budget: Anthropic's, and that of gateways in front of it.
pub const LEAST_THINKING_TOKENS: u64 = 1024;

pub(super) type Members<'a> = [(Cow<'a, str>, &'a str)];

/// Returns the numbers that limit the output of `request`, as they stand in its text, with those that no
/// protocol knows.
pub fn limits<'a>(request: &Request<'a>) -> Vec<&'a str> {
    limits_of(&json::members(request.text).unwrap_or_default())
}

/// Returns the numbers that limit thinking in `request`, as they stand in its text.
pub fn thinking<'a>(request: &Request<'a>) -> Vec<&'a str> {
    thinking_of(&json::members(request.text).unwrap_or_default())
}

pub(super) fn limits_of<'a>(members: &Members<'a>) -> Vec<&'a str> {
    let is_limit = |name: &str| LIMITS.iter().any(|own| own.eq_ignore_ascii_case(name));
    let mut limits = Vec::new();
    for_each_setting(members, MAX_GROUPS, &mut |name, raw| {
        if is_limit(name) && raw != "null" {
            limits.push(raw);
        }
    });
    limits
}

pub(super) fn thinking_of<'a>(members: &Members<'a>) -> Vec<&'a str> {
    let mut limits = Vec::new();
    for_each_setting(members, MAX_GROUPS, &mut |name, raw| {
        let own = match name {
            "thinking" => all(raw, "budget_tokens"),
            "reasoning" => all(raw, "max_tokens"),
            "thinking_budget" => vec![raw],
            "thinkingConfig" | "thinking_config" => {
                [all(raw, "thinkingBudget"), all(raw, "thinking_budget")].concat()
            }
            _ => Vec::new(),
        };
        limits.extend(own.into_iter().filter(|raw| *raw != "null"));
    });
    limits
}

/// Maximum depth of groups in groups, and of lists of models.
pub const MAX_GROUPS: u32 = 3;

/// Passes the members on to `see`, and those of groups of settings among them.
pub(super) fn for_each_setting<'a>(
    members: &Members<'a>,
    depth: u32,
    see: &mut impl FnMut(&str, &'a str),
) {
    for (name, raw) in members {
        see(name, raw);
        let groups = match name.as_ref() {
            // Fallbacks of Anthropic and LiteLLM have settings of their own.
            "fallbacks" => json::elements(raw).unwrap_or_default(),
            name if SETTING_GROUPS.contains(&name) => vec![*raw],
            _ => continue,
        };
        let Some(depth) = depth.checked_sub(1) else { continue };
        for group in groups.into_iter().filter(|raw| raw.starts_with('{')) {
            for_each_setting(&json::members(group).unwrap_or_default(), depth, see);
        }
    }
}

/// Reads an output limit. Outside Messages 0 is none, as -1 is: Ollama stops only at a limit above it.
pub fn output_limit(raw: &str, protocol: Option<Protocol>) -> Option<u64> {
    let is_counted = |tokens: &u64| *tokens > 0 || protocol == Some(Protocol::Messages);
    json::count(raw).filter(is_counted)
}

/// Whether a limit that every provider of the protocol obeys is given, and none is unreadable.
pub(super) fn is_limited(members: &Members<'_>, protocol: Option<Protocol>) -> bool {
    let own: &[&str] = match protocol {
        Some(Protocol::Responses) => &["max_output_tokens"],
        Some(Protocol::Messages) => &["max_tokens"],
        Some(Protocol::Chat) | None => &["max_tokens", "max_completion_tokens"],
    };
    let given = members.iter().filter(|(name, raw)| own.contains(&name.as_ref()) && *raw != "null");
    let mut counts = given.map(|(_, raw)| output_limit(raw, protocol)).peekable();
    counts.peek().is_some() && counts.all(|count| count.is_some())
}

/// Returns the most tokens that a model thinks beyond `max_tokens` without being asked to; `u64::MAX` without a
/// limit. Qwen thinks up to its budget unless that is switched off (Model Studio's guide to deep thinking), and so
/// does Doubao Seed, where `max_completion_tokens` covers it (Volcengine's reference of chat completions). A name
/// with a number of parameters is that of open weights: other servers count their thinking as output.
pub(super) fn unasked_thinking(model: &str, members: &Members<'_>) -> u64 {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let is_number = |text: &str| !text.is_empty() && text.parse::<f64>().is_ok();
    let is_size = |part: &str| part.strip_suffix('b').is_some_and(is_number);
    let of = |name: &'static str| {
        members.iter().filter(move |(own, _)| own == name).map(|(_, raw)| *raw)
    };
    // Of two members of one name the provider may read either.
    let says = |name: &'static str, is_meant: fn(&str) -> bool| {
        of(name).next().is_some() && of(name).all(is_meant)
    };
    let is_counted = |raw: &str| json::count(raw).is_some_and(|tokens| tokens > 0);
    if name.split(['-', '_', ':']).any(is_size) {
        0
    } else if ["qwen3.", "qwq", "qvq"].iter().any(|start| name.starts_with(start)) {
        let budgets = of("thinking_budget").map(|raw| json::count(raw).filter(|own| *own > 0));
        let budget = budgets.map(|own| own.unwrap_or(u64::MAX)).max().unwrap_or(u64::MAX);
        if says("enable_thinking", |raw| raw == "false") { 0 } else { budget }
    } else if name.contains("doubao-seed") {
        let is_covered = says("max_completion_tokens", is_counted) || says("thinking", is_off);
        if is_covered { 0 } else { u64::MAX }
    } else {
        0
    }
}

/// Whether a setting says that what it names is not to be used.
pub(super) fn is_off(raw: &str) -> bool {
    let is_no = |raw: &str| matches!(raw, "false" | "\"off\"" | "\"none\"" | "\"disabled\"" | "0");
    let switches = ["enable", "enabled", "mode", "type"].map(|name| all(raw, name));
    is_no(raw) || switches.into_iter().any(|own| !own.is_empty() && own.into_iter().all(is_no))
}
