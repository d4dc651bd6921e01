//! Declarations of all configuration keys: type and range, default, effect of a change and
//! description. `config/default.toml`, the reference page, range errors and the effects of
//! changes are generated from them. Reads no value.

mod context;
mod models;
#[cfg(test)]
pub mod pages;
mod server;
mod stored;
mod telemetry;
mod upstreams;

use super::words::worded;
use weir_store::budget::NanoUsd;

pub(super) use context::{
    CONTEXT, CONTEXT_ADVANCED, LEARNING, POLICIES, POLICIES_ADVANCED, SUMMARIES,
};
pub(super) use models::{DEFAULT_PRICE, LIMITS, MODELS, PRICE, PRICES, ROUTE_PRICE};
pub(super) use server::{ADMIN, AUTH, CORS, LOG, SERVER};
pub(super) use stored::{BUDGETS, CACHE, CONVERSATIONS, LEDGER, REDIS, STORE};
pub(super) use telemetry::{EVENTS, TRACES};
pub(super) use upstreams::{ROUTES, UPSTREAM, UPSTREAMS};

/// Sections and keys that are often looked for, and where those settings are.
pub(super) const SET_ELSEWHERE: [(&str, &str); 3] = [
    ("budgets", "budgets are in the store, and `weir budgets set` sets one"),
    (
        "context.max_input_tokens",
        "[[limits]] has model and max_input_tokens of some models, such as model = \"*\"",
    ),
    (
        "prices",
        "prices of a model are in [models.\"NAME\"], such as input_usd_per_mtok and \
         output_usd_per_mtok",
    ),
];

/// All sections, in the order of the generated files.
pub(super) const SECTIONS: &[&Section] = &[
    &SERVER,
    &CORS,
    &AUTH,
    &ADMIN,
    &UPSTREAM,
    &CONTEXT,
    &CONTEXT_ADVANCED,
    &SUMMARIES,
    &LEARNING,
    &PRICES,
    &CACHE,
    &STORE,
    &REDIS,
    &CONVERSATIONS,
    &LEDGER,
    &BUDGETS,
    &EVENTS,
    &TRACES,
    &LOG,
    &UPSTREAMS,
    &ROUTES,
    &ROUTE_PRICE,
    &LIMITS,
    &MODELS,
    &PRICE,
    &DEFAULT_PRICE,
    &POLICIES,
    &POLICIES_ADVANCED,
];

/// Nano-dollars in a dollar.
const NANO: u64 = 1_000_000_000;
const HOUR_MS: u64 = 60 * 60 * 1000;
const DAY_MS: u64 = 24 * HOUR_MS;
const YEAR_MS: u64 = 366 * DAY_MS;
const GIB: u64 = 1 << 30;
/// Above any model's window, and low enough that token arithmetic cannot overflow.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000_000;

/// A configuration key.
#[derive(Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "the pages show the descriptions"))]
pub(super) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// Default as TOML; an example in sections whose keys have none.
    pub value: &'static str,
    pub effect: Effect,
    /// Description, in lines.
    pub doc: &'static [&'static str],
}

/// Declares keys: a description, then name, default, kind and effect of a change.
macro_rules! keys {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident = $value:tt, $kind:expr, $effect:ident;
    )*) => {
        &[$($crate::config::keys::Key {
            name: stringify!($name),
            kind: $kind,
            value: stringify!($value),
            effect: $crate::config::keys::Effect::$effect,
            doc: &[$($doc),+],
        }),*]
    };
}
use keys;

/// Type and range of a key's value.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "the pages show the nouns"))]
pub(super) enum Kind {
    /// A whole number in a range.
    Whole(u64, u64),
    /// A share in a range, in thousandths; written as a decimal.
    Share(u32, u32),
    /// Dollars from 0 to below an amount, for `unit`.
    Dollars { end: NanoUsd, unit: &'static str },
    /// `true` or `false`.
    Switch,
    /// One of a few words.
    Choice(fn() -> Vec<&'static str>),
    /// Text, described by a noun.
    Text(&'static str),
    /// Text or a whole number.
    TextOrWhole(&'static str),
    /// A list of texts, described by a noun.
    List(&'static str),
    /// A table of texts by name.
    Table,
    /// A table with these members, which a key's default has, too.
    Members(&'static [(&'static str, Kind)]),
    /// A table, or a list of tables, with a section of its own.
    Inner(&'static str),
}

impl Kind {
    /// Describes the accepted values, for errors.
    pub(super) fn wanted(self) -> String {
        match self {
            Self::Whole(from, to) => format!("a whole number from {from} to {to}"),
            Self::Share(from, to) => {
                let [from, to] = [from, to].map(decimal);
                format!("a share from {from} to {to} with at most three decimals, like 0.625")
            }
            Self::Dollars { end, unit } => format!(
                "dollars{unit} from 0 to below {} with at most nine decimals, like \"2.50\"",
                end.0 / NANO
            ),
            Self::Switch => "true or false".to_owned(),
            Self::Choice(words) => format!("one of {}", quoted(&words()).join(", ")),
            Self::Text(_) => "text in quotes".to_owned(),
            Self::TextOrWhole(_) => "text in quotes, or a whole number".to_owned(),
            Self::List(_) => "a list of texts, such as [\"one\", \"two\"]".to_owned(),
            Self::Table => {
                "a table of texts, such as { \"http-referer\" = \"https://example.com\" }"
                    .to_owned()
            }
            Self::Members(_) | Self::Inner(_) => "a table".to_owned(),
        }
    }
}

/// Returns members of one kind.
const fn each<const N: usize>(names: [&'static str; N], kind: Kind) -> [(&'static str, Kind); N] {
    let mut members = [("", kind); N];
    let mut place = 0;
    while place < N {
        members[place].0 = names[place];
        place += 1;
    }
    members
}

/// Converts thousandths to a decimal.
pub(super) fn decimal(permille: u32) -> f64 {
    f64::from(permille) / 1000.0
}

fn quoted(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| format!("{word:?}")).collect()
}

worded! {
    /// Effect of a changed key.
    #[derive(PartialOrd, Ord)]
    Effect {
        /// Compaction points of live conversations may move: one rewrite of the provider's cache per
        /// conversation.
        MovesCompactions = "moves_cuts",
        /// Applies from the next request on; no compaction point moves.
        NextRequest = "next_request",
        /// Applies after a restart.
        Restart = "restart",
    }
}

/// A section of keys.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the pages show headings, descriptions and samples")
)]
pub(super) struct Section {
    /// Path; `*` stands for a name or a row.
    pub path: &'static str,
    /// Heading in the reference, if it is another than the path.
    pub heading: &'static str,
    /// Description; may be empty.
    pub doc: &'static str,
    /// Keys described in this section.
    pub keys: &'static [&'static [Key]],
    /// Further keys, described in another section.
    pub shared: &'static [Key],
    /// Effect of an added, removed or moved row.
    pub rows: Effect,
    pub sample: Sample,
}

/// Form of a section in `config/default.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    /// All keys with their defaults.
    Defaults,
    /// All keys with example values under this header, commented out.
    Examples(&'static str),
    /// This text, commented out.
    Text(&'static str),
    /// Left out.
    Nothing,
}

/// A section without description, the base of the others.
const EMPTY: Section = Section {
    path: "",
    heading: "",
    doc: "",
    keys: &[],
    shared: &[],
    rows: Effect::Restart,
    sample: Sample::Defaults,
};

impl Section {
    /// Returns all keys, including those described in another section.
    pub(super) fn all_keys(&self) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().copied().flatten().chain(self.shared)
    }

    /// Returns the declaration of `name`, and the type of its value; `a.b` is the member `b` of `a`.
    pub(super) fn find(&self, name: &str) -> Option<(&'static Key, Kind)> {
        let (name, member) = name.split_once('.').unwrap_or((name, ""));
        let key = self.all_keys().find(|key| key.name == name)?;
        let kind = match (key.kind, member) {
            (kind, "") => Some(kind),
            (Kind::Members(members), member) => {
                members.iter().find(|(name, _)| *name == member).map(|(_, kind)| *kind)
            }
            _ => None,
        };
        Some((key, kind?))
    }
}

/// Returns whether `path` begins with the parts of a pattern; `*` stands for any one part.
pub(super) fn fits(pattern: &[&str], path: &[&str]) -> bool {
    let is_one = |(part, own): (&&str, &&str)| *part == "*" || part == own;
    pattern.len() <= path.len() && pattern.iter().zip(path).all(is_one)
}

/// Returns the effect of a change at `path`.
pub(super) fn effect(path: &[&str]) -> Effect {
    let mut found = (0, Effect::Restart);
    let mut look = |pattern: &[&str], effect| {
        if fits(pattern, path) && pattern.len() > found.0 {
            found = (pattern.len(), effect);
        }
    };
    for section in SECTIONS {
        let pattern: Vec<&str> = section.path.split('.').collect();
        for key in section.all_keys() {
            look(&[&pattern[..], &[key.name]].concat(), key.effect);
        }
        look(pattern.strip_suffix(&["*"]).unwrap_or(&pattern), section.rows);
    }
    found.1
}
