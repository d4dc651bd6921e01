//! The catalogue of models: windows and encodings by name. Looks names up; what a name's parts
//! mean is `names`'s.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use super::names;
use crate::tokens::Encoding;

/// What an unknown model is taken to accept.
const UNKNOWN_INPUT_TOKENS: u64 = 128_000;
/// What an unknown model is taken to write at most.
const UNKNOWN_OUTPUT_TOKENS: u64 = 4_096;

static SHIPPED: LazyLock<BTreeMap<String, ModelEntry>> = LazyLock::new(|| {
    parse(include_str!("../../config/models.toml")).expect("a test parses the shipped catalogue")
});

/// What is known of one model. Tokens throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelEntry {
    /// Input and output together.
    pub window_tokens: u64,
    /// A separate cap on input, where the provider has one.
    pub max_input_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub encoding: Encoding,
    /// Whether the model refuses two user or two assistant messages in a row.
    pub strict_alternation: bool,
}

impl ModelEntry {
    /// What is assumed of a model that nothing is known of but its name.
    fn unknown(name: &str) -> Self {
        Self {
            window_tokens: UNKNOWN_INPUT_TOKENS + UNKNOWN_OUTPUT_TOKENS,
            max_input_tokens: Some(UNKNOWN_INPUT_TOKENS),
            max_output_tokens: Some(UNKNOWN_OUTPUT_TOKENS),
            encoding: names::encoding(name),
            strict_alternation: names::strict_alternation(name),
        }
    }

    /// The same with no more input than an unknown model's.
    fn in_doubt(mut self) -> Self {
        if self.max_input_tokens.unwrap_or(self.window_tokens) > UNKNOWN_INPUT_TOKENS {
            self.window_tokens =
                self.window_tokens.min(UNKNOWN_INPUT_TOKENS + UNKNOWN_OUTPUT_TOKENS);
            self.max_input_tokens = Some(UNKNOWN_INPUT_TOKENS);
        }
        self
    }
}

/// How well a model is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// By this very name, but for case and the prefixes of providers.
    Exact,
    /// By the beginning of its name.
    Prefix,
    /// Not at all: the entry is an assumption, worth a warning.
    Unknown,
}

/// What the catalogue says to a name.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    pub entry: ModelEntry,
    pub known: Known,
    /// The catalogue's name for it; `None` if unknown.
    pub name: Option<&'a str>,
}

/// Windows by model name.
#[derive(Clone)]
pub struct Catalogue {
    /// The configuration's own entries, which come first.
    own: BTreeMap<String, ModelEntry>,
    shipped: &'static BTreeMap<String, ModelEntry>,
}

impl Catalogue {
    /// The catalogue that comes with the program.
    pub fn shipped() -> Self {
        Self { own: BTreeMap::new(), shipped: &SHIPPED }
    }

    /// Adds `entry`, or puts it in the place of what was known of `name`.
    pub fn insert(&mut self, name: &str, entry: ModelEntry) {
        self.own.insert(name.to_ascii_lowercase(), entry);
    }

    /// What is known of `model`: by its name, then by its name without the provider's prefixes,
    /// then by the longest beginning that ends where a part of the name ends. What is known by
    /// its beginning alone gets the whole of that entry when only a date or a tag follows, and
    /// else no more than an unknown model.
    pub fn find(&self, model: &str) -> Found<'_> {
        let candidates = names::candidates(model);
        let exact = candidates.iter().find_map(|name| self.entry(name));
        if let Some((name, entry)) = exact {
            return Found { entry, known: Known::Exact, name: Some(name) };
        }
        if model.len() <= names::MAX_NAME_BYTES
            && let Some(found) = candidates.iter().find_map(|name| self.by_beginning(name))
        {
            return found;
        }
        Found { entry: ModelEntry::unknown(model), known: Known::Unknown, name: None }
    }

    fn by_beginning(&self, name: &str) -> Option<Found<'_>> {
        names::beginnings(name).find_map(|(beginning, rest)| {
            let (known_name, entry) = self.entry(beginning)?;
            let entry = if names::is_same_model(rest) { entry } else { entry.in_doubt() };
            Some(Found { entry, known: Known::Prefix, name: Some(known_name) })
        })
    }

    fn entry(&self, name: &str) -> Option<(&str, ModelEntry)> {
        let (name, entry) =
            self.own.get_key_value(name).or_else(|| self.shipped.get_key_value(name))?;
        Some((name, *entry))
    }

    /// Whether `wanted` holds for any name in the catalogue.
    pub fn any_name(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.own.keys().chain(self.shipped.keys()).any(|name| wanted(name))
    }
}

impl Default for Catalogue {
    fn default() -> Self {
        Self::shipped()
    }
}

/// The shipped entries are too many to print with a configuration.
impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalogue")
            .field("own", &self.own)
            .field("shipped", &self.shipped.len())
            .finish()
    }
}

/// Reads a catalogue as `config/models.toml` is written: comments, and one model a line,
/// `"name" = { key = value, … }`. That is TOML, and a test reads the file as TOML too; a TOML reader
/// takes tens of milliseconds for it, at every start.
pub fn parse(text: &str) -> Result<BTreeMap<String, ModelEntry>, String> {
    let lines = text.lines().enumerate();
    let models = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    models
        .map(|(number, line)| {
            parse_line(line).ok_or_else(|| format!("line {} is no model: {line}", number + 1))
        })
        .collect()
}

fn parse_line(line: &str) -> Option<(String, ModelEntry)> {
    let (name, fields) = line.strip_prefix('"')?.split_once("\" = { ")?;
    let mut window_tokens = None;
    let mut max_input_tokens = None;
    let mut max_output_tokens = None;
    let mut encoding = None;
    let mut strict_alternation = false;
    for field in fields.strip_suffix(" }")?.split(", ") {
        let (key, value) = field.split_once(" = ")?;
        match key {
            "window_tokens" => window_tokens = Some(value.parse().ok()?),
            "max_input_tokens" => max_input_tokens = Some(value.parse().ok()?),
            "max_output_tokens" => max_output_tokens = Some(value.parse().ok()?),
            "encoding" => {
                let name = value.strip_prefix('"')?.strip_suffix('"')?;
                encoding = Some(Encoding::from_name(name)?);
            }
            "strict_alternation" => strict_alternation = value.parse().ok()?,
            _ => return None,
        }
    }
    let entry = ModelEntry {
        window_tokens: window_tokens?,
        max_input_tokens,
        max_output_tokens,
        encoding: encoding.unwrap_or_else(|| names::encoding(name)),
        strict_alternation,
    };
    Some((name.to_owned(), entry))
}

#[cfg(test)]
mod tests {
    use figment::providers::{Format, Toml};
    use serde::Deserialize;

    use super::*;

    /// A line as TOML sees it.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        window_tokens: u64,
        max_input_tokens: Option<u64>,
        max_output_tokens: Option<u64>,
        encoding: Option<String>,
        #[serde(default)]
        strict_alternation: bool,
    }

    const SHIPPED_TOML: &str = include_str!("../../config/models.toml");

    #[test]
    fn the_shipped_catalogue_is_toml_in_order_and_read_as_such() {
        let as_toml: BTreeMap<String, Line> = Toml::from_str(SHIPPED_TOML).expect("it is TOML");
        let read = parse(SHIPPED_TOML).expect("it has the form");
        assert_eq!(read.len(), as_toml.len());
        for (name, line) in as_toml {
            let encoding = line.encoding.map(|name| Encoding::from_name(&name).expect("exists"));
            let expected = ModelEntry {
                window_tokens: line.window_tokens,
                max_input_tokens: line.max_input_tokens,
                max_output_tokens: line.max_output_tokens,
                encoding: encoding.unwrap_or_else(|| names::encoding(&name)),
                strict_alternation: line.strict_alternation,
            };
            assert_eq!(read.get(&name), Some(&expected), "{name}");
        }
        let lines: Vec<&str> = SHIPPED_TOML.lines().filter(|line| line.starts_with('"')).collect();
        assert!(lines.is_sorted());
    }

    #[test]
    fn every_field_is_read_and_other_lines_are_refused() {
        let line = "\"a\" = { window_tokens = 3, max_input_tokens = 2, max_output_tokens = 1, \
                    encoding = \"cl100k_base\", strict_alternation = true }";
        let expected = ModelEntry {
            window_tokens: 3,
            max_input_tokens: Some(2),
            max_output_tokens: Some(1),
            encoding: Encoding::Cl100kBase,
            strict_alternation: true,
        };
        assert_eq!(parse(line), Ok(BTreeMap::from([("a".to_owned(), expected)])));
        for wrong in [
            "a = 1",
            "\"a\" = { }",
            "\"a\" = { window_tokens = -1 }",
            "\"a\" = { window_tokens = 1, colour = 2 }",
            "\"a\" = { window_tokens = 1, encoding = \"none\" }",
        ] {
            assert_eq!(parse(wrong), Err(format!("line 1 is no model: {wrong}")));
        }
    }

    /// What the makers publish: window, cap on input, cap on output.
    #[test]
    fn the_families_that_matter_have_their_published_limits() {
        let none = None;
        for (name, window, input, output) in [
            ("gpt-3.5-turbo", 16_385, none, Some(4_096)),
            ("gpt-4", 8_192, none, Some(4_096)),
            ("gpt-4-turbo", 128_000, none, Some(4_096)),
            ("gpt-4o", 128_000, none, Some(16_384)),
            ("gpt-4o-mini-2024-07-18", 128_000, none, Some(16_384)),
            ("gpt-4.1", 1_047_576, none, Some(32_768)),
            ("o1", 200_000, none, Some(100_000)),
            ("o3-mini", 200_000, none, Some(100_000)),
            ("o4-mini", 200_000, none, Some(100_000)),
            ("gpt-5", 400_000, Some(272_000), Some(128_000)),
            ("gpt-5-mini", 400_000, Some(272_000), Some(128_000)),
            ("gpt-5.1-codex", 400_000, Some(272_000), Some(128_000)),
            ("gpt-5-chat-latest", 128_000, none, Some(16_384)),
            ("azure/gpt-5.1-chat", 128_000, Some(111_616), Some(16_384)),
            ("gpt-5.4", 1_050_000, Some(922_000), Some(128_000)),
            ("gpt-6-sol", 1_050_000, Some(922_000), Some(128_000)),
            ("gpt-oss-120b", 131_072, none, none),
            ("claude-3-5-sonnet-20241022", 200_000, none, Some(8_192)),
            ("claude-haiku-4-5", 200_000, none, Some(64_000)),
            ("anthropic/claude-sonnet-4.5", 200_000, none, Some(64_000)),
            ("claude-opus-5", 1_000_000, none, Some(128_000)),
            ("gemini-2.5-pro", 1_114_111, Some(1_048_576), Some(65_535)),
            ("gemini/gemini-2.5-flash", 1_114_112, Some(1_048_576), Some(65_536)),
            ("deepseek-chat", 131_072, none, Some(8_192)),
            ("deepseek-v4-pro", 1_000_000, none, Some(393_216)),
            ("qwen-max", 32_768, Some(30_720), Some(8_192)),
            ("qwen3-max", 262_144, Some(258_048), Some(65_536)),
            ("qwen3-coder-plus", 1_000_000, Some(997_952), Some(65_536)),
            ("mistral-large-latest", 262_144, none, none),
            ("grok-4.5", 500_000, none, none),
            ("kimi-k2.6", 262_144, none, none),
            ("zai/glm-4.6", 200_000, none, Some(128_000)),
            ("command-a-03-2025", 256_000, none, Some(8_000)),
            ("amazon.nova-pro-v1:0", 300_000, none, Some(10_000)),
            ("meta-llama/Llama-3.3-70B-Instruct", 128_000, none, Some(4_028)),
        ] {
            let catalogue = Catalogue::shipped();
            let found = catalogue.find(name);
            let entry = found.entry;
            assert_eq!(
                (entry.window_tokens, entry.max_input_tokens, entry.max_output_tokens),
                (window, input, output),
                "{name}"
            );
            assert_eq!(found.known, Known::Exact, "{name}");
        }
    }

    fn check(name: &str, known_as: Option<&str>, known: Known, input_tokens: u64) {
        let catalogue = Catalogue::shipped();
        let found = catalogue.find(name);
        assert_eq!((found.name, found.known), (known_as, known), "{name}");
        let entry = found.entry;
        let most = entry.max_input_tokens.unwrap_or(entry.window_tokens);
        assert_eq!(most, input_tokens, "{name}");
    }

    #[test]
    fn names_are_found_by_what_they_have_in_common() {
        check("GPT-4o", Some("gpt-4o"), Known::Exact, 128_000);
        check("openrouter/openai/gpt-4o", Some("gpt-4o"), Known::Exact, 128_000);
        check("ft:gpt-4o-mini:acme::abc", Some("gpt-4o-mini"), Known::Exact, 128_000);
        check("gpt-4.1-2030-01-01", Some("gpt-4.1"), Known::Prefix, 1_047_576);
        check("claude-opus-5@latest", Some("claude-opus-5"), Known::Prefix, 1_000_000);
        check("google/gemini-2.5-pro:free", Some("gemini-2.5-pro"), Known::Prefix, 1_048_576);
    }

    #[test]
    fn what_may_be_another_model_gets_no_more_than_an_unknown_one() {
        check("gpt-4-new", Some("gpt-4"), Known::Prefix, 8_192);
        check("gpt-4.1-audio", Some("gpt-4.1"), Known::Prefix, 128_000);
        check("gpt-5.4-tiny", Some("gpt-5.4"), Known::Prefix, 128_000);
    }

    #[test]
    fn nothing_is_found_across_a_border() {
        for name in ["gpt-4.9-x", "gpt-4omni", "gpt", "", "-", "/", "nobody/knows-me"] {
            check(name, None, Known::Unknown, 128_000);
        }
        check(&format!("gpt-4o-{}", "x".repeat(300)), None, Known::Unknown, 128_000);
        let unknown = Catalogue::shipped().find("gpt-7-omega").entry;
        assert_eq!(unknown.max_output_tokens, Some(4_096));
        assert_eq!(unknown.window_tokens, 132_096);
        assert_eq!(unknown.encoding, Encoding::O200kBase);
        assert!(Catalogue::shipped().find("mistral-unheard").entry.strict_alternation);
    }
}
