//! Parsing of model names: shorter alternatives, boundaries between name and version, and model
//! families. Contains no numbers and no catalogue.

use std::borrow::Cow;

use tiktoken_rs::tokenizer::{Tokenizer, get_tokenizer};

use super::open_models;
use weir_engine::tokens::Encoding;

/// Longer names match nothing; a lookup would let callers cause unbounded work.
pub const MAX_NAME_BYTES: usize = 256;

/// Regions and makers before a model's name, separated by a dot, as in Amazon Bedrock.
const DOTTED_PREFIXES: &[&str] = &[
    "ai21",
    "amazon",
    "anthropic",
    "ap",
    "apac",
    "au",
    "ca",
    "cohere",
    "deepseek",
    "eu",
    "global",
    "google",
    "jp",
    "meta",
    "minimax",
    "mistral",
    "moonshot",
    "moonshotai",
    "nvidia",
    "openai",
    "qwen",
    "twelvelabs",
    "us",
    "us-gov",
    "writer",
    "xai",
    "zai",
];

/// OpenAI's prefix of fine-tuned models.
const TUNED: &str = "ft:";

/// Suffixes that do not make it another model.
const TAGS: &[&str] = &["beta", "default", "exp", "latest", "preview", "stable"];

/// Returns the names to look up for `name`, most specific first. They are in lower case, without blanks
/// around them, and successively without provider prefixes, fine-tuning wrapper, region and maker.
pub fn candidates(name: &str) -> Vec<Cow<'_, str>> {
    let name = name.trim();
    let lower: Cow<'_, str> = if name.chars().any(|c| c.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    };
    let mut found = vec![lower];
    if name.len() > MAX_NAME_BYTES {
        return found;
    }
    while let Some(shorter) = found.last().and_then(|name| shorten(name)) {
        found.push(Cow::Owned(shorter));
    }
    found
}

/// Removes the outermost wrapping from `name`.
fn shorten(name: &str) -> Option<String> {
    let shorter = if let Some((_, rest)) = name.split_once('/') {
        rest.to_owned()
    } else if let Some(rest) = name.strip_prefix(TUNED) {
        match rest.split_once(':') {
            Some((base, _)) => format!("{TUNED}{base}"),
            None => rest.to_owned(),
        }
    } else if let Some((prefix, rest)) = name.split_once('.')
        && DOTTED_PREFIXES.contains(&prefix)
    {
        rest.to_owned()
    } else if name.starts_with("claude-") && name.contains('.') {
        // Gateways write `claude-sonnet-4.5`, its maker `claude-sonnet-4-5`.
        name.replace('.', "-")
    } else {
        return None;
    };
    (!shorter.is_empty()).then_some(shorter)
}

/// Returns the shortest candidate for `name`.
pub fn bare(name: &str) -> Cow<'_, str> {
    candidates(name).pop().unwrap_or(Cow::Borrowed(name))
}

/// Returns whether a name stands for a service that chooses a model for each request, such as `openrouter/auto` or
/// Azure's `model-router`.
pub fn is_router(name: &str) -> bool {
    let bare = bare(name);
    &*bare == "auto" || bare.contains("router")
}

/// Returns whether `plain` is `name` without some of its wrapping, or without its speed.
pub fn is_plainer(plain: &str, name: &str) -> bool {
    let all = candidates(plain);
    let slow = name.strip_suffix("-fast").map(candidates).unwrap_or_default();
    let mut plainer = candidates(name).into_iter().skip(1).chain(slow);
    candidates(name).first() != all.first() && plainer.any(|own| own == all[0])
}

/// Returns the beginnings of `name` that end at a boundary, longest first, each with the rest. A
/// dot between digits is part of a version: `gpt-4` is not a beginning of `gpt-4.5`.
pub fn beginnings(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let bytes = name.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    (1..bytes.len())
        .rev()
        .filter(move |&at| match bytes[at] {
            b'-' | b':' | b'@' => true,
            b'.' => !(digit(at - 1) && digit(at + 1)),
            _ => false,
        })
        .map(|at| name.split_at(at))
}

/// Returns whether the rest after a known name (`-2030-01-01`, `-latest`, `:free`) leaves the model
/// the same. A word such as `-mini`, or the next small number, may mean another model.
pub fn is_same_model(rest: &str) -> bool {
    if rest.starts_with([':', '@']) {
        return true;
    }
    let mut parts = rest[1..].split(['-', '.', ':', '@']);
    let first = parts.next().unwrap_or_default();
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let tag = |part: &str| TAGS.contains(&part) || part.strip_prefix('v').is_some_and(number);
    (tag(first) || (first.len() > 2 && number(first)))
        && parts.all(|part| number(part) || tag(part))
}

/// Returns whether the rest after a known name is the date of a snapshot: `-2030-01-01`, `-20300101`, `-0101`.
pub fn is_date(rest: &str) -> bool {
    let digits = rest.bytes().filter(u8::is_ascii_digit).count();
    let is_plain = rest[1..]
        .split('-')
        .all(|part| part.len() >= 2 && part.bytes().all(|byte| byte.is_ascii_digit()));
    rest.starts_with(['-', '@']) && digits >= 4 && is_plain
}

/// Returns whether the rest after a known name is its revision at a host: `-v1:0`, `-v2`, `:0`.
pub fn is_revision(rest: &str) -> bool {
    let number = rest.strip_prefix("-v").or_else(|| rest.strip_prefix(':'));
    number.is_some_and(|own| {
        own.starts_with(|own: char| own.is_ascii_digit())
            && own.bytes().all(|byte| byte.is_ascii_digit() || byte == b':')
    })
}

/// Returns whether the rest after a known name is an effort of reasoning, which hosts put into names.
pub fn is_effort(rest: &str) -> bool {
    matches!(rest, "-none" | "-minimal" | "-low" | "-medium" | "-high" | "-xhigh" | "-max")
}

/// Returns whether the model `name`, matched as `known`, has the same price. A fine-tuned model
/// costs more than its base; a free offer costs nothing.
pub fn is_same_price(name: &str, known: &str) -> bool {
    let tuned = |name: &str| name.starts_with(TUNED) || name.contains("/ft:");
    tuned(name) == tuned(known) && name.ends_with(":free") == known.ends_with(":free")
}

/// Returns the encoding of the model `name`, by family.
pub fn encoding(name: &str) -> Encoding {
    let name = bare(name);
    match get_tokenizer(&name) {
        Some(Tokenizer::O200kBase | Tokenizer::O200kHarmony) => Encoding::O200kBase,
        Some(Tokenizer::Cl100kBase) => Encoding::Cl100kBase,
        Some(Tokenizer::P50kBase) => Encoding::P50kBase,
        Some(Tokenizer::P50kEdit) => Encoding::P50kEdit,
        Some(Tokenizer::R50kBase | Tokenizer::Gpt2) => Encoding::R50kBase,
        None if is_recent_openai(&name) => Encoding::O200kBase,
        None => open_models::vocabulary(&name).map_or(Encoding::Estimate, Encoding::Open),
    }
}

/// Returns whether `name` (bare) is an OpenAI model since GPT-4o that tiktoken's list does not
/// cover.
pub fn is_recent_openai(name: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "chat-latest",
        "chatgpt-",
        "codex-",
        "computer-use-preview",
        "daybreak-",
        "gpt-4o",
        "gpt-4.1",
        "gpt-audio",
        "gpt-chat-",
        "gpt-daybreak-",
        "gpt-realtime",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || generation(name, "gpt-").is_some_and(|number| number >= 5)
        || generation(name, "o").is_some_and(|number| number >= 1)
}

/// Returns the number directly after `family` in `name`, if a version may end there.
fn generation(name: &str, family: &str) -> Option<u32> {
    let rest = name.strip_prefix(family)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, after) = rest.split_at(end);
    (after.is_empty() || after.starts_with(['-', '.', ':', '@']))
        .then(|| number.parse().ok())
        .flatten()
}

/// Returns whether the model's template refuses two user or two assistant messages in a row:
/// Mistral's models, Gemma, Perplexity's and DeepSeek's reasoner, from any provider.
pub fn strict_alternation(name: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "codestral",
        "deepseek-reasoner",
        "devstral",
        "gemini-gemma-",
        "gemma",
        "magistral",
        "ministral",
        "mistral",
        "mixtral",
        "open-mistral",
        "open-mixtral",
        "pixtral",
        "sonar",
        "voxtral",
    ];
    let name = bare(name);
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether `name` matches `pattern`; `*` stands for any run of characters.
pub fn fits_pattern(name: &str, pattern: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return name == pattern;
    };
    let Some(mut name) = name.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        // The earliest match leaves the most for the rest.
        let Some(at) = name.find(part) else {
            return false;
        };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

/// Returns whether `host` is a local name or address.
pub fn is_local_host(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_are_known_by_their_names() {
        for (name, expected) in [
            ("openrouter/auto", true),
            ("azure/Model-Router-2025", true),
            ("openrouter/openai/gpt-4o", false),
            ("my-deployment", false),
        ] {
            assert_eq!(is_router(name), expected, "{name}");
        }
    }

    #[test]
    fn a_plainer_name_is_found_in_the_other() {
        for (plain, name) in [
            ("claude-opus-4-8", "us.anthropic.claude-opus-4-8"),
            ("claude-opus-4-8", "anthropic/claude-opus-4.8-fast"),
            ("anthropic/claude-opus-4.8", "anthropic/claude-opus-4.8-fast"),
            ("gpt-5.5", "azure/eu/gpt-5.5"),
            ("openai.gpt-5.6-terra", "bedrock_mantle/us-gov-west-1/openai.gpt-5.6-terra"),
        ] {
            assert!(is_plainer(plain, name), "{plain} {name}");
            assert!(!is_plainer(name, name), "{name}");
        }
        for (other, name) in [
            ("gpt-4o", "gpt-4o-mini"),
            ("gpt-4o-2024-08-06", "gpt-4o"),
            ("gpt-4o-mini", "azure/gpt-4o"),
            ("us.anthropic.claude-opus-4-8", "claude-opus-4-8"),
        ] {
            assert!(!is_plainer(other, name), "{other} {name}");
        }
    }

    #[test]
    fn a_name_is_unwrapped_from_the_outside() {
        for (name, expected) in [
            (" gpt-4o\t", "gpt-4o"),
            ("OpenRouter/OpenAI/GPT-4o", "openrouter/openai/gpt-4o openai/gpt-4o gpt-4o"),
            ("ft:gpt-4o-mini:org::id", "ft:gpt-4o-mini:org::id ft:gpt-4o-mini gpt-4o-mini"),
            (
                "us.anthropic.claude-3-5-haiku-20241022-v1:0",
                "us.anthropic.claude-3-5-haiku-20241022-v1:0 \
                 anthropic.claude-3-5-haiku-20241022-v1:0 claude-3-5-haiku-20241022-v1:0",
            ),
            (
                "anthropic/claude-sonnet-4.5",
                "anthropic/claude-sonnet-4.5 claude-sonnet-4.5 claude-sonnet-4-5",
            ),
            ("gpt-4.1", "gpt-4.1"),
            ("ft:", "ft:"),
            ("ft::", "ft:: ft:"),
            ("openai/", "openai/"),
            ("", ""),
        ] {
            assert_eq!(candidates(name).join(" "), expected, "{name}");
        }
        assert_eq!(candidates(&"a/".repeat(1000)).len(), 1);
    }

    #[test]
    fn a_version_is_not_cut_in_two() {
        let of = |name| beginnings(name).map(|(head, _)| head).collect::<Vec<_>>().join(" ");
        assert_eq!(of("gpt-4.5-x"), "gpt-4.5 gpt");
        assert_eq!(of("gpt-4o-new"), "gpt-4o gpt");
        assert_eq!(of("claude-v2:1"), "claude-v2 claude");
        assert_eq!(of("größe-1"), "größe");
        assert_eq!(of(""), "");
        assert_eq!(of("-"), "");
    }

    #[test]
    fn a_date_or_tag_leaves_the_model_the_same() {
        for rest in ["-2030-01-01", "-0613", "-latest", "-20250929-v1:0", ":free", "@default"] {
            assert!(is_same_model(rest), "{rest}");
        }
        for rest in ["-mini", "-5", "-audio-preview", "-2030-mini", "-", "."] {
            assert!(!is_same_model(rest), "{rest}");
        }
    }

    #[test]
    fn a_date_is_that_of_a_snapshot() {
        for rest in ["-2030-01-01", "-0613", "-20250929", "@20250929"] {
            assert!(is_date(rest), "{rest}");
        }
        for rest in ["-latest", "-20250929-v1:0", ":free", "-5", "-001", "-4-5", "-32k", "-"] {
            assert!(!is_date(rest), "{rest}");
        }
    }

    #[test]
    fn what_is_tuned_or_free_has_not_the_price_of_its_base() {
        for (name, known, expected) in [
            ("gpt-4o", "gpt-4o", true),
            ("a/gpt-4o:nitro", "gpt-4o", true),
            ("ft:gpt-4o:org::id", "ft:gpt-4o", true),
            ("openai/ft:gpt-4o", "gpt-4o", false),
            ("ft:gpt-4o:org::id", "gpt-4o", false),
            ("a/b:free", "a/b", false),
            ("a/b:free", "b:free", true),
        ] {
            assert_eq!(is_same_price(name, known), expected, "{name}");
        }
    }

    #[test]
    fn encodings_go_by_family() {
        for (name, expected) in [
            ("gpt-4o", Encoding::O200kBase),
            ("openai/gpt-4.1-nano", Encoding::O200kBase),
            ("gpt-4.5-preview", Encoding::O200kBase),
            ("gpt-5.4-mini", Encoding::O200kBase),
            ("gpt-6.1-sol", Encoding::O200kBase),
            ("us.openai.gpt-6-sol", Encoding::O200kBase),
            ("gpt-6", Encoding::O200kBase),
            ("o3-pro", Encoding::O200kBase),
            ("o4", Encoding::O200kBase),
            ("chatgpt-4o-latest", Encoding::O200kBase),
            ("groq/openai/gpt-oss-120b", Encoding::O200kBase),
            ("ft:gpt-4o-mini:org::id", Encoding::O200kBase),
            ("gpt-4", Encoding::Cl100kBase),
            ("gpt-4-turbo-2024-04-09", Encoding::Cl100kBase),
            ("azure/gpt-35-turbo-16k", Encoding::Cl100kBase),
            ("text-davinci-003", Encoding::P50kBase),
            ("gpt-j-6b", Encoding::Estimate),
            ("olmo-2", Encoding::Estimate),
            ("claude-sonnet-4-5", Encoding::Estimate),
            ("", Encoding::Estimate),
        ] {
            assert_eq!(encoding(name), expected, "{name}");
        }
    }

    #[test]
    fn mistral_and_gemma_want_alternation() {
        for name in ["mistral/mistral-large-latest", "open-mixtral-8x7b", "google/Gemma-3-27b-it"] {
            assert!(strict_alternation(name), "{name}");
        }
        for name in ["gpt-4o", "gemini-2.5-pro", "deepseek-chat", "zai/glm-5"] {
            assert!(!strict_alternation(name), "{name}");
        }
    }

    #[test]
    fn patterns_have_stars() {
        for (name, pattern, expected) in [
            ("gpt-4o", "gpt-4o", true),
            ("gpt-4o", "gpt-4", false),
            ("gpt-4o-mini", "gpt-4o*", true),
            ("gpt-4o", "*", true),
            ("", "*", true),
            ("abcabc", "a*c*c", true),
            ("abc", "a*bc*c", false),
            ("aa", "a*a*a", false),
            ("ab", "*a*b*", true),
        ] {
            assert_eq!(fits_pattern(name, pattern), expected, "{name} {pattern}");
        }
    }
}
