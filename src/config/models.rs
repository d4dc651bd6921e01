//! Model catalogue: windows, encodings and prices by name. Looks names up; `names` parses them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{LazyLock, OnceLock};

use super::names;
use weir_engine::tokens::Encoding;
use weir_engine::tokens::own::Vocabulary;
use weir_engine::wire::allowance::{IMAGE_MODEL, IMAGE_TOKENS};
use weir_store::budget::Price;
use weir_store::budget::price::Kind;

/// Assumed input limit of an unknown model.
const UNKNOWN_INPUT_TOKENS: u64 = 128_000;
/// Catalogue word for an unknown price of a model, although a shorter name has a known one.
pub const UNKNOWN_PRICE: &str = "unknown";
/// Assumed output limit of an unknown model.
const UNKNOWN_OUTPUT_TOKENS: u64 = 4_096;

static SHIPPED: LazyLock<Listed<'static>> = LazyLock::new(|| {
    parse(include_str!("../../config/models.toml")).expect("a test parses the shipped catalogue")
});

/// Facts about one model. All sizes in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelEntry {
    /// Input and output together.
    pub window_tokens: u64,
    /// Separate input limit, if the provider has one.
    pub max_input_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub encoding: Encoding,
    /// Whether the model refuses two user or two assistant messages in a row.
    pub strict_alternation: bool,
}

impl ModelEntry {
    /// Returns the assumptions for a model known only by name.
    fn unknown(name: &str) -> Self {
        Self {
            window_tokens: UNKNOWN_INPUT_TOKENS + UNKNOWN_OUTPUT_TOKENS,
            max_input_tokens: Some(UNKNOWN_INPUT_TOKENS),
            max_output_tokens: Some(UNKNOWN_OUTPUT_TOKENS),
            encoding: names::encoding(name),
            strict_alternation: names::strict_alternation(name),
        }
    }

    /// Lowers the input to that of an unknown model.
    fn in_doubt(mut self) -> Self {
        if self.max_input_tokens.unwrap_or(self.window_tokens) > UNKNOWN_INPUT_TOKENS {
            self.window_tokens =
                self.window_tokens.min(UNKNOWN_INPUT_TOKENS + UNKNOWN_OUTPUT_TOKENS);
            self.max_input_tokens = Some(UNKNOWN_INPUT_TOKENS);
        }
        self
    }
}

/// Contents of a catalogue file.
#[derive(Debug, Default)]
pub struct Listed<'a> {
    pub entries: BTreeMap<&'a str, ModelEntry>,
    pub prices: BTreeMap<&'a str, ListedPrice<'a>>,
}

/// A catalogue price, parsed on first use: few of thousands are ever used, and parsing all would
/// slow down each start. A test parses every shipped price.
#[derive(Debug)]
pub struct ListedPrice<'a> {
    text: &'a str,
    read: OnceLock<Option<Box<Price>>>,
}

impl<'a> ListedPrice<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, read: OnceLock::new() }
    }

    /// Returns the price; `None` if it is marked unknown although a shorter name's price is known.
    pub fn price(&self) -> Option<&Price> {
        self.read.get_or_init(|| Price::parse(self.text).map(Box::new)).as_deref()
    }
}

/// Quality of a catalogue match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// By this exact name, except for case and providers' prefixes.
    Exact,
    /// By the beginning of its name.
    Prefix,
    /// No match: the entry is an assumption, worth a warning.
    Unknown,
}

/// Result of a catalogue lookup.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    pub entry: ModelEntry,
    pub known: Known,
    /// The matched catalogue name; `None` if unknown.
    pub name: Option<&'a str>,
}

/// Windows and prices by model name. Without entries of its own it is the catalogue shipped with the program.
#[derive(Clone, Default)]
pub struct Catalogue {
    /// The configuration's entries, which take precedence.
    own: BTreeMap<String, ModelEntry>,
    own_prices: BTreeMap<String, Price>,
    /// Vocabularies loaded from files for entries; they live as long as this catalogue is used.
    vocabularies: Vec<Vocabulary>,
}

impl Catalogue {
    /// Returns whether the configuration gives the limits of the model that the catalogue has as `name`.
    pub fn is_own(&self, name: &str) -> bool {
        self.own.contains_key(name)
    }

    /// Adds or replaces the entry of `name`.
    pub fn insert(&mut self, name: &str, entry: ModelEntry) {
        self.own.insert(name.to_ascii_lowercase(), entry);
    }

    /// Makes `vocabulary` count the tokens of `name`.
    pub fn count_by(&mut self, name: &str, vocabulary: Vocabulary) {
        let entry = self.find(name).entry;
        let encoding = Encoding::Own(vocabulary.own());
        self.vocabularies.push(vocabulary);
        self.insert(name, ModelEntry { encoding, ..entry });
    }

    /// Sets or replaces the price of `name`.
    pub fn insert_price(&mut self, name: &str, price: Price) {
        self.own_prices.insert(name.to_ascii_lowercase(), price);
    }

    /// Returns the price of `model`, if known. Matches as [`Catalogue::find`] does, with three
    /// exceptions. A name that may be another model's, the base of a fine-tuned model and a `:free`
    /// variant never match. A configured price of any of its names takes precedence over the
    /// shipped list.
    pub fn price(&self, model: &str) -> Option<&Price> {
        self.priced(&names::candidates(model))?.1
    }

    /// Returns the most that an image by OpenAI's tool costs: the largest, by the dearest of its models.
    pub fn picture_nano_usd(&self) -> Option<u64> {
        let rate = self.price(IMAGE_MODEL)?.rates.get(Kind::ImageOutput)?;
        let nano_usd = u128::from(rate) * u128::from(IMAGE_TOKENS) / 1_000_000;
        u64::try_from(nano_usd).ok()
    }

    /// Returns the one name under which all spellings of a model count: that of the price they are billed
    /// at, else that of their entry, else the name itself in lower case, without blanks around it.
    pub fn billed_name(&self, model: &str) -> String {
        let candidates = names::candidates(model);
        if let Some((name, Some(_))) = self.priced(&candidates) {
            return self.whole(name).into_owned();
        }
        let exact = candidates.iter().find_map(|name| self.entry(name)).map(|(name, _)| name);
        let exact = exact.filter(|name| names::is_same_price(&candidates[0], name));
        exact.unwrap_or(&candidates[0]).to_owned()
    }

    /// Returns the name under which all forms of a listed model count: without provider and region, and without
    /// the date, the revision or the effort of a form that has a row of its own, if the rest is listed with a
    /// price. A form may have another price.
    fn whole<'n>(&'n self, name: &'n str) -> Cow<'n, str> {
        let price = |own: &str| match self.priced(&[Cow::Borrowed(own)]) {
            Some((found, price)) if found == own => price,
            _ => None,
        };
        let rates = |own: &str| price(own).map(|price| price.rates);
        let mut name = match self.own_prices.contains_key(name) {
            true => Cow::Borrowed(name),
            false => names::bare(name),
        };
        loop {
            let shorter = names::beginnings(&name).find(|(own, rest)| {
                let is_form = names::is_date(rest) || names::is_revision(rest);
                let known = rates(own);
                known.is_some() && (is_form || names::is_effort(rest) && known == rates(&name))
            });
            let Some(bytes) = shorter.map(|(own, _)| own.len()) else { return name };
            name = Cow::Owned(name[..bytes].to_owned());
        }
    }

    /// Returns the price of the first of these names that has one, and the name that it is listed under.
    fn priced(&self, candidates: &[Cow<'_, str>]) -> Option<Priced<'_>> {
        let own = |name: &str| {
            self.own_prices.get_key_value(name).map(|(name, price)| (name.as_str(), Some(price)))
        };
        let shipped = |name: &str| {
            SHIPPED.prices.get_key_value(name).map(|(name, listed)| (*name, listed.price()))
        };
        let has_own = !self.own_prices.is_empty();
        let found = has_own.then(|| price_among(candidates, own)).flatten();
        let found = found.or_else(|| price_among(candidates, shipped));
        let (name, price) = found?;
        Some((name, price.filter(|_| names::is_same_price(&candidates[0], name))))
    }

    /// Looks up `model`: by its name, then without the provider's prefixes, then by the longest
    /// beginning that ends at a boundary between parts. A match by beginning gets the whole entry
    /// if only a date or a tag follows; otherwise its input is capped at that of an unknown model.
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
        let own = self.own.get_key_value(name).map(|(name, entry)| (name.as_str(), *entry));
        let shipped = || SHIPPED.entries.get_key_value(name);
        own.or_else(|| shipped().map(|(name, entry)| (*name, *entry)))
    }

    /// Returns whether any catalogue name satisfies `wanted`.
    pub fn any_name(&self, wanted: impl Fn(&str) -> bool) -> bool {
        let shipped = SHIPPED.entries.keys().copied();
        self.own.keys().map(String::as_str).chain(shipped).any(wanted)
    }
}

/// A listed name, with its price if known.
type Priced<'a> = (&'a str, Option<&'a Price>);

/// Returns the price of the first of these names in a list, else of a beginning that leaves the
/// model the same.
fn price_among<'a>(
    candidates: &[Cow<'_, str>],
    list: impl Fn(&str) -> Option<Priced<'a>>,
) -> Option<Priced<'a>> {
    let exact = candidates.iter().find_map(|name| list(name));
    exact.or_else(|| {
        let names = candidates.iter().filter(|name| name.len() <= names::MAX_NAME_BYTES);
        names
            .flat_map(|name| names::beginnings(name))
            .find_map(|(beginning, rest)| list(beginning).filter(|_| names::is_same_model(rest)))
    })
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalogue")
            .field("own", &self.own)
            .field("own_prices", &self.own_prices)
            .field("shipped", &SHIPPED.entries.len())
            .finish()
    }
}

/// Parses a catalogue in the format of `config/models.toml`: comments, and one model per line,
/// `"name" = { key = value, … }`. A test parses the file as TOML too; a TOML parser would add tens
/// of milliseconds to every start.
pub fn parse(text: &str) -> Result<Listed<'_>, String> {
    let mut listed = Listed::default();
    for (number, line) in text.lines().enumerate() {
        if !line.is_empty() && !line.starts_with('#') && parse_line(line, &mut listed).is_none() {
            return Err(format!("line {} is not a model: {line}", number + 1));
        }
    }
    Ok(listed)
}

/// Parses one line; `None` if it is not a model.
fn parse_line<'a>(line: &'a str, listed: &mut Listed<'a>) -> Option<()> {
    let (name, fields) = line.strip_prefix('"')?.split_once("\" = { ")?;
    let mut window_tokens = None;
    let mut max_input_tokens = None;
    let mut max_output_tokens = None;
    let mut encoding = None;
    let mut strict_alternation = None;
    let mut price = None;
    for field in fields.strip_suffix(" }")?.split(", ") {
        let (key, value) = field.split_once(" = ")?;
        match key {
            "window_tokens" => window_tokens = Some(value.parse().ok()?),
            "max_input_tokens" => max_input_tokens = Some(value.parse().ok()?),
            "max_output_tokens" => max_output_tokens = Some(value.parse().ok()?),
            "encoding" => encoding = Some(Encoding::from_name(quoted(value)?)?),
            "strict_alternation" => strict_alternation = Some(value.parse().ok()?),
            "usd_per_mtok" => price = Some(ListedPrice::new(quoted(value)?)),
            _ => return None,
        }
    }
    let others = [max_input_tokens, max_output_tokens];
    let is_price_alone = price.is_some()
        && others.iter().all(Option::is_none)
        && encoding.is_none()
        && strict_alternation.is_none();
    if window_tokens.is_some() || !is_price_alone {
        let entry = ModelEntry {
            window_tokens: window_tokens?,
            max_input_tokens,
            max_output_tokens,
            encoding: encoding.unwrap_or_else(|| names::encoding(name)),
            strict_alternation: strict_alternation.unwrap_or(false),
        };
        listed.entries.insert(name, entry);
    }
    if let Some(price) = price {
        listed.prices.insert(name, price);
    }
    Some(())
}

fn quoted(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use figment::providers::{Format, Toml};
    use serde::Deserialize;

    use super::*;

    /// A line as TOML parses it.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        window_tokens: Option<u64>,
        max_input_tokens: Option<u64>,
        max_output_tokens: Option<u64>,
        encoding: Option<String>,
        #[serde(default)]
        strict_alternation: bool,
        usd_per_mtok: Option<String>,
    }

    const SHIPPED_TOML: &str = include_str!("../../config/models.toml");

    #[test]
    fn the_shipped_catalogue_is_toml_in_order_and_read_as_such() {
        let as_toml: BTreeMap<String, Line> = Toml::from_str(SHIPPED_TOML).expect("it is TOML");
        let read = parse(SHIPPED_TOML).expect("it has the form");
        let mut expected = BTreeMap::new();
        let mut prices = BTreeMap::new();
        for (name, line) in &as_toml {
            let encoding =
                line.encoding.as_ref().map(|name| Encoding::from_name(name).expect("exists"));
            if let Some(text) = &line.usd_per_mtok {
                let price = Price::parse(text);
                assert_eq!(price.is_none(), text == UNKNOWN_PRICE, "{name}");
                prices.insert(name.as_str(), price);
            }
            if let Some(window_tokens) = line.window_tokens {
                let entry = ModelEntry {
                    window_tokens,
                    max_input_tokens: line.max_input_tokens,
                    max_output_tokens: line.max_output_tokens,
                    encoding: encoding.unwrap_or_else(|| names::encoding(name)),
                    strict_alternation: line.strict_alternation,
                };
                expected.insert(name.as_str(), entry);
            }
        }
        assert_eq!(read.entries, expected);
        let read_prices = read.prices.iter().map(|(name, listed)| (*name, listed.price().cloned()));
        assert_eq!(read_prices.collect::<BTreeMap<_, _>>(), prices);
        assert!(read.entries.len() > 2000 && read.prices.len() > 2000);
        let lines: Vec<&str> = SHIPPED_TOML.lines().filter(|line| line.starts_with('"')).collect();
        assert!(lines.is_sorted());
    }

    #[test]
    fn every_field_is_read_and_other_lines_are_refused() {
        let line = "\"a\" = { window_tokens = 3, max_input_tokens = 2, max_output_tokens = 1, \
                    encoding = \"cl100k_base\", strict_alternation = true, \
                    usd_per_mtok = \"in 1 out 2\" }\n\"a/b\" = { usd_per_mtok = \"unknown\" }";
        let expected = ModelEntry {
            window_tokens: 3,
            max_input_tokens: Some(2),
            max_output_tokens: Some(1),
            encoding: Encoding::Cl100kBase,
            strict_alternation: true,
        };
        let price = Price::parse("in 1 out 2");
        assert!(price.is_some());
        let read = parse(line).expect("it has the form");
        assert_eq!(read.entries, BTreeMap::from([("a", expected)]));
        assert_eq!(read.prices["a"].price(), price.as_ref());
        assert_eq!(read.prices["a/b"].price(), None);
        for wrong in [
            "a = 1",
            "\"a\" = { }",
            "\"a\" = { window_tokens = -1 }",
            "\"a\" = { window_tokens = 1, colour = 2 }",
            "\"a\" = { window_tokens = 1, encoding = \"none\" }",
            "\"a\" = { window_tokens = 1, usd_per_mtok = 1 }",
            "\"a\" = { max_output_tokens = 1, usd_per_mtok = \"in 1 out 1\" }",
            "\"a\" = { strict_alternation = true, usd_per_mtok = \"in 1 out 1\" }",
        ] {
            let error = parse(wrong).map(|_| ()).expect_err("it has not the form");
            assert_eq!(error, format!("line 1 is not a model: {wrong}"));
        }
    }

    /// The makers' published window, input limit and output limit.
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
            let catalogue = Catalogue::default();
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
        let catalogue = Catalogue::default();
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

    /// The makers' published prices, in dollars per million tokens.
    #[test]
    fn the_families_that_matter_have_their_published_prices() {
        for (name, price) in [
            ("gpt-4o", "in 2.5 cached 1.25 out 10 search 25 call 2.5 tier batch 0.5"),
            ("GPT-4o-mini", "in 0.15 cached 0.075 out 0.6 search 25 call 2.5 tier batch 0.5"),
            (
                "gpt-4.1",
                "in 2 cached 0.5 out 8 search 25 call 2.5 tier batch 0.5 tier priority 1.75",
            ),
            ("o3-mini", "in 1.1 cached 0.55 out 4.4 search 10 call 2.5 tier batch 0.5"),
            (
                "openai/gpt-5",
                "in 1.25 cached 0.125 out 10 search 10 call 2.5 tier batch 0.5 tier flex 0.5 tier priority 2",
            ),
            (
                "gpt-5.4",
                "in 2.5 cached 0.25 out 15 search 10 call 2.5 above 272000 in 5 cached 0.5 out 22.5 search 10 call 2.5 tier batch 0.5 tier flex 0.5 tier priority 2",
            ),
            (
                "claude-sonnet-4-5",
                "in 3 cached 0.3 write 3.75 out 15 search 10 tier priority 1 tier batch 0.5",
            ),
            (
                "anthropic/claude-haiku-4.5",
                "in 1 cached 0.1 write 1.25 out 5 search 10 tier priority 1 tier batch 0.5",
            ),
            (
                "gemini/gemini-2.5-pro",
                "in 1.25 cached 0.125 out 10 search 35 above 200000 in 2.5 cached 0.25 out 15 search 35",
            ),
            ("deepseek-chat", "in 0.28 cached 0.028 out 0.42"),
            ("text-embedding-3-small", "in 0.02 out 0"),
        ] {
            let catalogue = Catalogue::default();
            let found = catalogue.price(name).map(ToString::to_string);
            assert_eq!(found.as_deref(), Some(price), "{name}");
        }
    }

    #[test]
    fn all_forms_of_a_model_count_as_it() {
        let catalogue = Catalogue::default();
        for (name, counted) in [
            ("gpt-5.4-2026-03-05", "gpt-5.4"),
            ("openai/gpt-4o-2024-08-06", "gpt-4o"),
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            ("gpt-5.4-2031-01-01", "gpt-5.4"),
            ("anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
            ("bedrock/converse/anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
            ("vertex_ai/claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
            ("azure/eu/gpt-4o-2024-08-06", "gpt-4o"),
            ("gpt-5.4-high", "gpt-5.4"),
            ("gpt-4o-mini", "gpt-4o-mini"),
        ] {
            assert_eq!(catalogue.billed_name(name), counted, "{name}");
        }
        let mut catalogue = Catalogue::default();
        for name in ["ours", "ours-2026-05-13", "ours-large"] {
            catalogue.insert_price(name, Price::parse("in 1 out 2").expect("a price"));
        }
        let counted = |name| catalogue.billed_name(name);
        assert_eq!(["ours-2026-05-13", "ours-large"].map(counted), ["ours", "ours-large"]);
    }

    #[test]
    fn a_price_is_found_for_the_same_model_alone() {
        let catalogue = Catalogue::default();
        let price = |name: &str| catalogue.price(name);
        let known = price("gpt-4.1");
        assert!(known.is_some());
        for same in
            ["gpt-4.1-2030-01-01", "gpt-4.1-latest", "unheard/openai/GPT-4.1", "gpt-4.1:nitro"]
        {
            assert_eq!(price(same), known, "{same}");
        }
        for other in ["gpt-4.1-audio", "gpt-4.1:free", "nobody/knows-me", "gpt-4-new"] {
            assert_eq!(price(other), None, "{other}");
        }
        let tuned = price("ft:gpt-4.1-2025-04-14:acme::abc");
        assert_eq!(tuned, price("ft:gpt-4.1-2025-04-14"));
        assert!(tuned.is_some() && tuned != known);
        assert_eq!(price("ft:o1:acme::abc"), None);
        assert_eq!(catalogue.find("ft:o1:acme::abc").known, Known::Exact);
    }

    #[test]
    fn own_prices_go_before_all_shipped_ones() {
        let mut catalogue = Catalogue::default();
        let own = Price::parse("in 7 out 7").expect("a price");
        catalogue.insert_price("GPT-4o", own.clone());
        for name in ["gpt-4o", "azure/gpt-4o", "openrouter/openai/gpt-4o", "gpt-4o-2030-01-01"] {
            assert_eq!(catalogue.price(name), Some(&own), "{name}");
        }
        assert_ne!(catalogue.price("gpt-4o-mini"), Some(&own));
        assert_ne!(catalogue.price("ft:gpt-4o:acme::abc"), Some(&own));
    }

    #[test]
    fn nothing_is_found_across_a_border() {
        for name in ["gpt-4.9-x", "gpt-4omni", "gpt", "", "-", "/", "nobody/knows-me"] {
            check(name, None, Known::Unknown, 128_000);
        }
        check(&format!("gpt-4o-{}", "x".repeat(300)), None, Known::Unknown, 128_000);
        let unknown = Catalogue::default().find("gpt-7-omega").entry;
        assert_eq!(unknown.max_output_tokens, Some(4_096));
        assert_eq!(unknown.window_tokens, 132_096);
        assert_eq!(unknown.encoding, Encoding::O200kBase);
        assert!(Catalogue::default().find("mistral-unheard").entry.strict_alternation);
    }
}
