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
            self.window_tokens = self
                .window_tokens
                .min(UNKNOWN_INPUT_TOKENS + UNKNOWN_OUTPUT_TOKENS);
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
        Self {
            own: BTreeMap::new(),
            shipped: &SHIPPED,
        }
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
            return Found {
                entry,
                known: Known::Exact,
                name: Some(name),
            };
        }
        if model.len() <= names::MAX_NAME_BYTES
            && let Some(found) = candidates.iter().find_map(|name| self.by_beginning(name))
        {
            return found;
        }
        Found {
            entry: ModelEntry::unknown(model),
            known: Known::Unknown,
            name: None,
        }
    }

    fn by_beginning(&self, name: &str) -> Option<Found<'_>> {
        names::beginnings(name).find_map(|(beginning, rest)| {
            let (known_name, entry) = self.entry(beginning)?;
            let entry = if names::is_same_model(rest) {
                entry
            } else {
                entry.in_doubt()
            };
            Some(Found {
                entry,
                known: Known::Prefix,
                name: Some(known_name),
            })
        })
    }

    fn entry(&self, name: &str) -> Option<(&str, ModelEntry)> {
        let (name, entry) = self
            .own
            .get_key_value(name)
            .or_else(|| self.shipped.get_key_value(name))?;
        Some((name, *entry))
    }

    /// Whether `wanted` holds for any name in the catalogue.
    pub fn any_name(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.own
            .keys()
            .chain(self.shipped.keys())
            .any(|name| wanted(name))
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
