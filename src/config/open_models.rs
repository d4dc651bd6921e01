//! Vocabularies of open models, by name. Lists only unambiguous names: a count with the wrong
//! vocabulary is not corrected by the upstream's reports.

use weir_engine::tokens::open::Open;

/// Words in names of closed models within otherwise open families.
const CLOSED: &[&str] = &["flash", "max", "plus", "turbo"];

/// Prefixes of Mistral models that use the Tekken vocabulary. Other models, and names that move
/// from one model to the next, use older or undocumented vocabularies.
const TEKKEN: &[&str] = &[
    "devstral-small",
    "magistral-small",
    "ministral-14b",
    "ministral-3b",
    "ministral-8b",
    "mistral-nemo",
    "mistral-small-24b",
    "mistral-small-2501",
    "mistral-small-2503",
    "mistral-small-2506",
    "mistral-small-3",
    "open-mistral-nemo",
    "pixtral-12b",
    "voxtral-mini",
    "voxtral-small",
];

/// Returns the vocabulary of the model `name` (bare, in lower case), if weir includes it.
pub(super) fn vocabulary(name: &str) -> Option<Open> {
    llama(name).or_else(|| deepseek(name)).or_else(|| qwen(name)).or_else(|| mistral(name))
}

/// Llama 3.0 to 3.3, any size; Llama 4 differs.
fn llama(name: &str) -> Option<Open> {
    let own = name.strip_prefix("meta-").unwrap_or(name);
    version(own, "llama").filter(|version| version.major == 3).map(|_| Open::Llama3)
}

/// DeepSeek since V3. Models distilled from R1 keep their own base's vocabulary; Ollama names those
/// `deepseek-r1` with a size.
fn deepseek(name: &str) -> Option<Open> {
    let rest = name.strip_prefix("deepseek-")?;
    if rest.contains("llama") {
        return rest.contains("distill").then_some(Open::Llama3);
    }
    if rest.contains("qwen") {
        return (rest.contains("distill") || rest.contains("qwen3")).then_some(Open::Qwen2);
    }
    let (model, tag) = rest.split_once(':').unwrap_or((rest, ""));
    let is_small = tag == "latest" || is_size(tag) && !tag.starts_with("671b");
    let is_alias = matches!(model, "chat" | "reasoner");
    let is_whole = is_alias
        || version(model, "r").is_some_and(|version| version.major == 1 && !is_small)
        || version(model, "v").is_some_and(|version| matches!(version.major, 3 | 4));
    (is_whole && !model.contains("distill")).then_some(Open::DeepseekV3)
}

/// Qwen 2, 2.5 and 3, and QwQ; Qwen 3.5 differs.
fn qwen(name: &str) -> Option<Open> {
    if name.starts_with("qwq-32b") {
        return Some(Open::Qwen2);
    }
    let version = version(name, "qwen")?;
    let is_known = match version.major {
        2 => matches!(version.minor, None | Some(5)),
        3 => version.minor.is_none(),
        _ => false,
    };
    let mut parts = version.rest.split(['-', ':', '@']);
    let is_closed = parts.clone().any(|part| CLOSED.contains(&part)) && !parts.any(is_size);
    (is_known && !is_closed).then_some(Open::Qwen2)
}

fn mistral(name: &str) -> Option<Open> {
    let is_tekken = TEKKEN.iter().any(|beginning| name.starts_with(beginning));
    is_tekken.then_some(Open::MistralV3)
}

/// The part of a name after its family.
struct Version<'a> {
    major: u32,
    minor: Option<u32>,
    rest: &'a str,
}

/// Parses the version in `name` after `family`: `3.1`, `-3.1`, `3-1`, `-v3p1`. Sizes (`-8b`) and
/// dates are not versions.
fn version<'a>(name: &'a str, family: &str) -> Option<Version<'a>> {
    let rest = name.strip_prefix(family)?;
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    let rest = rest.strip_prefix('v').unwrap_or(rest);
    let (major, rest) = number(rest)?;
    let ends = |rest: &str| rest.is_empty() || rest.starts_with(['-', '.', ':', '@', '_', 'p']);
    if !ends(rest) {
        return None;
    }
    let minor = rest.strip_prefix(['.', 'p', '-']).and_then(number);
    match minor.filter(|(_, rest)| ends(rest)) {
        Some((minor, rest)) => Some(Version { major, minor: Some(minor), rest }),
        None => Some(Version { major, minor: None, rest }),
    }
}

/// Parses a number of one or two digits at the start of `text`; also returns the rest.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (digits.len() <= 2).then(|| digits.parse().ok()).flatten().map(|number| (number, rest))
}

/// Returns whether a part of a name is a model size, such as `70b`, `a22b` or `0.6b`.
fn is_size(part: &str) -> bool {
    let part = part.strip_prefix('a').unwrap_or(part);
    part.strip_suffix('b').is_some_and(|digits| {
        digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_their_vocabularies() {
        for (names, expected) in [
            (
                "llama-3.3-70b-instruct llama3.1:8b llama3 llama-3-8b llama3-70b-8192 \
                 meta-llama-3.1-405b-instruct-turbo llama-v3p1-70b-instruct \
                 llama3-3-70b-instruct-v1:0 llama-3.1-nemotron-70b-instruct \
                 deepseek-r1-distill-llama-70b",
                Some(Open::Llama3),
            ),
            (
                "deepseek-chat deepseek-reasoner deepseek-v3 deepseek-v3.2-exp deepseek-v3p1 \
                 deepseek-v3-0324 deepseek-r1 deepseek-r1-0528 deepseek-r1:671b deepseek-r1:free \
                 deepseek-chat:free deepseek-v4-pro deepseek-v4-flash deepseek-v3.1:671b",
                Some(Open::DeepseekV3),
            ),
            (
                "qwen2-7b-instruct qwen2.5:7b qwen2.5-coder-32b-instruct qwen2p5-72b-instruct \
                 qwen3-235b-a22b qwen3:0.6b qwen-3-32b qwen3-coder qwen3-32b qwq-32b \
                 qwen2.5-72b-instruct-turbo deepseek-r1-distill-qwen-32b \
                 deepseek-r1-0528-qwen3-8b qwen3-next-80b-a3b-instruct",
                Some(Open::Qwen2),
            ),
            (
                "open-mistral-nemo mistral-nemo:12b ministral-8b-latest pixtral-12b-2409 \
                 mistral-small-24b-instruct-2501 mistral-small-3.1-24b-instruct devstral-small-2507",
                Some(Open::MistralV3),
            ),
            (
                "llama-2-70b llama2 llama llama-4-scout llama4 llama-guard llamaindex \
                 deepseek-coder deepseek-v2.5 deepseek-r1:7b deepseek-r1:latest deepseek-r1:1.5b \
                 deepseek-vl2 deepseek-ocr deepseek-r1-zero-llama qwen-max qwen-plus qwen3-max \
                 qwen3-coder-plus qwen3.5-397b qwen3p5-27b qwen1.5-7b qwen2.6-7b qwen4-8b qwen \
                 mistral-large-2411 mistral-small-latest mistral-small-2409 mistral-7b-instruct \
                 codestral-22b mixtral-8x7b gpt-4o gemma-3-27b llama-30b llama-33b-chat",
                None,
            ),
        ] {
            for name in names.split_whitespace() {
                assert_eq!(vocabulary(name), expected, "{name}");
            }
        }
    }
}
