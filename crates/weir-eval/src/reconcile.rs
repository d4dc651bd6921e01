//! Comparison of a journal with a provider's own exports of usage and cost: by day, model and kind, what is
//! missing on one side, counted twice, or charged at another price. Reads no file and no store.

mod exports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use serde::{Serialize, Serializer};

pub use exports::{Export, read};
use weir_engine::compact::report::shown::first_words;
use weir_store::budget::NanoUsd;
use weir_store::budget::calendar::shown_day;
use weir_store::budget::money::grouped;

/// Name of all models together, if an export does not name them.
const ALL_MODELS: &str = "all models";
/// Columns of a model's name.
const MODEL_WIDTH: usize = 24;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    Requests,
    /// Prompt tokens that were neither read from the cache nor written to it.
    Input,
    Cached,
    Written,
    Output,
    /// Cost in nano-dollars.
    Cost,
}

impl Measured {
    const ALL: [Self; 6] =
        [Self::Requests, Self::Input, Self::Cached, Self::Written, Self::Output, Self::Cost];

    /// Returns its name in tables, as in JSON.
    pub fn name(self) -> &'static str {
        ["requests", "input", "cached", "written", "output", "cost"][self as usize]
    }

    fn shown(self, amount: u64) -> String {
        match self {
            Self::Cost => NanoUsd(amount).shown(),
            _ => grouped(amount),
        }
    }
}

/// Amounts by kind; `None` for what is not known.
pub type Amounts = [Option<u64>; Measured::ALL.len()];

/// Amounts of one model on one day, counted from 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDay {
    pub day: u64,
    pub model: String,
    pub amounts: Amounts,
}

/// What a comparison of two amounts shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    Agrees,
    /// Requests went past weir, or were not settled.
    MissingHere,
    /// The provider has not billed it, or not yet.
    MissingThere,
    TwiceHere,
    TwiceThere,
    /// The tokens agree, and the cost does not.
    PriceMoved,
    /// No export names the model: another provider's, or a kind of requests that this one lists elsewhere.
    NotInExport,
}

impl Difference {
    /// Whether two amounts were compared.
    pub fn is_compared(self) -> bool {
        self != Self::NotInExport
    }

    /// Whether two amounts were compared and do not agree.
    pub fn differs(self) -> bool {
        self.is_compared() && self != Self::Agrees
    }

    fn words(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::MissingHere => "missing in the ledger",
            Self::MissingThere => "missing at the provider",
            Self::TwiceHere => "twice in the ledger",
            Self::TwiceThere => "twice at the provider",
            Self::PriceMoved => "price moved",
            Self::NotInExport => "not in these exports",
        }
    }
}

/// Two amounts that were compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compared {
    #[serde(serialize_with = "as_day")]
    pub day: u64,
    pub model: String,
    pub kind: Measured,
    /// In tokens, requests or nano-dollars.
    pub ledger: u64,
    pub provider: u64,
    pub verdict: Difference,
}

fn as_day<S: Serializer>(day: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&shown_day(*day))
}

/// Compares a ledger with exports: amounts within `tolerance_permille` of the larger one agree. Of each model the
/// kinds that the exports have of it are compared, and all models as one if the exports name none. `one_name` gives
/// all spellings of a model one name.
pub fn compare(
    ledger: &[ModelDay],
    exports: &[Export],
    tolerance_permille: u64,
    one_name: &dyn Fn(&str) -> String,
) -> Vec<Compared> {
    let counted = || exports.iter().flat_map(|export| &export.counted);
    let has_models = counted().any(|own| !own.model.is_empty());
    let name = |own: &ModelDay| match has_models {
        true => one_name(&own.model),
        false => ALL_MODELS.to_owned(),
    };
    let days = days(exports);
    let here = sums(ledger.iter().filter(|own| days.contains(&own.day)), &name);
    let there = sums(counted(), &name);
    let mut held = BTreeMap::<String, BTreeSet<Measured>>::new();
    for own in counted() {
        let kinds = Measured::ALL.into_iter().filter(|kind| own.amounts[*kind as usize].is_some());
        held.entry(name(own)).or_default().extend(kinds);
    }
    let all_kinds = BTreeSet::from(Measured::ALL);
    let groups: BTreeSet<_> = here.keys().chain(there.keys()).collect();
    let mut all = Vec::new();
    for group in groups {
        let first = all.len();
        let amount = |side: &BTreeMap<(u64, String), Amounts>, kind: Measured| {
            side.get(group).and_then(|own| own[kind as usize]).unwrap_or(0)
        };
        let held = held.get(&group.1);
        for kind in held.unwrap_or(&all_kinds) {
            let (ledger, provider) = (amount(&here, *kind), amount(&there, *kind));
            let of_tokens = &all[first..];
            let has_same_tokens = *kind == Measured::Cost
                && of_tokens.iter().any(|own: &Compared| own.ledger > 0)
                && of_tokens.iter().all(|own| own.verdict == Difference::Agrees);
            let verdict = match verdict(ledger, provider, tolerance_permille) {
                _ if held.is_none() => Difference::NotInExport,
                own if own != Difference::Agrees && has_same_tokens => Difference::PriceMoved,
                own => own,
            };
            let (day, model) = group.clone();
            all.push(Compared { day, model, kind: *kind, ledger, provider, verdict });
        }
    }
    all.retain(|own| own.ledger > 0 || own.provider > 0);
    all
}

/// Returns the days that exports cover, counted from 1970.
pub fn days(exports: &[Export]) -> Range<u64> {
    let starts = exports.iter().map(|export| export.days.start).min();
    let ends = exports.iter().map(|export| export.days.end).max();
    starts.unwrap_or(0)..ends.unwrap_or(0)
}

fn sums<'c>(
    all: impl Iterator<Item = &'c ModelDay>,
    name: &impl Fn(&ModelDay) -> String,
) -> BTreeMap<(u64, String), Amounts> {
    let mut sums: BTreeMap<(u64, String), Amounts> = BTreeMap::new();
    for own in all {
        let group = sums.entry((own.day, name(own))).or_default();
        for (sum, more) in group.iter_mut().zip(own.amounts) {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0).saturating_add(more));
            }
        }
    }
    sums
}

fn verdict(ledger: u64, provider: u64, tolerance_permille: u64) -> Difference {
    let is_near = |left: u64, right: u64| {
        let most = u128::from(left.max(right)) * u128::from(tolerance_permille);
        u128::from(left.abs_diff(right)) * 1000 <= most
    };
    match ledger.cmp(&provider) {
        _ if is_near(ledger, provider) => Difference::Agrees,
        std::cmp::Ordering::Less if ledger > 0 && is_near(ledger.saturating_mul(2), provider) => {
            Difference::TwiceThere
        }
        std::cmp::Ordering::Greater
            if provider > 0 && is_near(provider.saturating_mul(2), ledger) =>
        {
            Difference::TwiceHere
        }
        std::cmp::Ordering::Less => Difference::MissingHere,
        _ => Difference::MissingThere,
    }
}

/// Formats what does not agree, or all, as a table of 80 columns, with the models that no export names and a last
/// line that sums up.
pub fn text(compared: &[Compared], is_all: bool) -> String {
    let mut text = String::new();
    let (compared, outside): (Vec<_>, Vec<_>) =
        compared.iter().partition(|own| own.verdict.is_compared());
    let differs = |own: &&&Compared| own.verdict.differs();
    for own in compared.iter().filter(|own| is_all || differs(own)) {
        if text.is_empty() {
            let _ = writeln!(
                text,
                "{:10}  {:MODEL_WIDTH$}  {:8}{:>12}{:>12}",
                "day", "model", "kind", "ledger", "provider"
            );
        }
        let amount = |amount| own.kind.shown(amount);
        let _ = writeln!(
            text,
            "{:10}  {:MODEL_WIDTH$}  {:8}{:>12}{:>12}",
            shown_day(own.day),
            first_words(&own.model, MODEL_WIDTH),
            own.kind.name(),
            amount(own.ledger),
            amount(own.provider),
        );
        if differs(&own) {
            let _ = writeln!(text, "{:12}{} ({})", "", own.verdict.words(), share(own));
        }
    }
    let names: BTreeSet<&str> = outside.iter().map(|own| own.model.as_str()).collect();
    for name in names {
        let _ = writeln!(text, "{}: {name}", Difference::NotInExport.words());
    }
    let agreeing = compared.len() - compared.iter().filter(differs).count();
    let _ = writeln!(text, "{agreeing} of {} figures agree.", compared.len());
    text
}

/// Returns by how much the provider's amount differs, in percent of the ledger's.
fn share(own: &Compared) -> String {
    if own.ledger == 0 {
        return "none here".to_owned();
    }
    let percent = (own.provider as f64 - own.ledger as f64) / own.ledger as f64 * 100.0;
    format!("{percent:+.1} %")
}
