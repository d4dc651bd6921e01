//! Reads a merged configuration leaf by leaf: keeps every problem, with where each value came from,
//! and tells at the end which keys nobody asked for. Knows no key itself.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};

use super::checks::edit_distance;
use crate::budget::NanoUsd;

/// Something in the configuration that is wrong, with its cure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, such as `server.listen`; empty where a whole source cannot be read.
    pub key: String,
    /// The file, environment variable or flag that the value came from.
    pub origin: String,
    /// The line of that file, where somebody has looked for it.
    pub line: Option<usize>,
    /// What is wrong and what would be right.
    pub message: String,
    /// What would be right, where it is one of a few.
    pub suggestion: Option<String>,
}

impl Problem {
    /// A problem with the value of `key`, wherever that comes from.
    pub fn with(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            origin: String::new(),
            line: None,
            message: message.into(),
            suggestion: None,
        }
    }

    /// The file or variable, with the line where that is known.
    fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}", self.origin)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        one_line(f, &self.key, &self.place(), &self.message)
    }
}

/// Something in the configuration that is allowed and probably not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    pub key: String,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        one_line(f, &self.key, "", &self.message)
    }
}

fn one_line(f: &mut fmt::Formatter<'_>, key: &str, origin: &str, message: &str) -> fmt::Result {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match (key, origin) {
        ("", "") => write!(f, "{message}"),
        ("", origin) => write!(f, "{origin}: {message}"),
        (key, "") => write!(f, "{key}: {message}"),
        (key, origin) => write!(f, "{key} ({origin}): {message}"),
    }
}

/// A value as written, and by whom.
struct Written {
    value: Value,
    origin: String,
    /// Whether it came as text, from the environment or a flag: then numbers, switches and lists
    /// are read out of the text.
    as_text: bool,
}

impl Written {
    fn text(&self) -> Option<&str> {
        self.value.as_str().filter(|_| self.as_text)
    }

    fn whole(&self) -> Option<i128> {
        match (&self.value, self.text()) {
            (_, Some(text)) => text.trim().replace('_', "").parse().ok(),
            (Value::Num(_, number), None) => number
                .to_i128()
                .or_else(|| number.to_u128().and_then(|number| number.try_into().ok())),
            _ => None,
        }
    }

    fn decimal(&self) -> Option<f64> {
        match (&self.value, self.text()) {
            (_, Some(text)) => text.trim().parse().ok(),
            (Value::Num(_, number), None) => number
                .to_f64()
                // Shares are small: a whole number that a float cannot hold is none.
                .or_else(|| i32::try_from(self.whole()?).ok().map(f64::from)),
            _ => None,
        }
    }

    /// Dollars, exactly: from text in quotes, or from a number. TOML gives the latter as a float,
    /// whose shortest decimal is what was written wherever that has at most 15 digits.
    fn dollars(&self) -> Option<NanoUsd> {
        match (&self.value, self.whole()) {
            (Value::String(_, text), _) => NanoUsd::parse(text.trim()),
            (Value::Num(..), Some(whole)) => NanoUsd::parse(&whole.to_string()),
            (Value::Num(_, number), None) => NanoUsd::parse(&number.to_f64()?.to_string()),
            _ => None,
        }
    }

    fn switch(&self) -> Option<bool> {
        match (&self.value, self.text()) {
            (_, Some(text)) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Some(true),
                "false" | "0" | "no" | "off" => Some(false),
                _ => None,
            },
            (Value::Bool(_, switch), None) => Some(*switch),
            _ => None,
        }
    }

    fn list(&self) -> Option<Vec<String>> {
        match (&self.value, self.text()) {
            (_, Some(text)) => {
                let items = text.split(',').map(str::trim);
                Some(items.filter(|item| !item.is_empty()).map(str::to_owned).collect())
            }
            (Value::Array(_, items), None) => {
                items.iter().map(|item| item.as_str().map(str::to_owned)).collect()
            }
            _ => None,
        }
    }

    /// The value as it may be shown in a message.
    fn shown(&self) -> String {
        const MAX_CHARS: usize = 80;
        match &self.value {
            Value::String(_, text) if text.chars().count() <= MAX_CHARS => format!("{text:?}"),
            Value::String(_, text) => {
                format!("{:?}…", text.chars().take(MAX_CHARS).collect::<String>())
            }
            Value::Char(_, text) => format!("{text:?}"),
            Value::Bool(_, switch) => switch.to_string(),
            Value::Num(_, number) => number
                .to_i128()
                .map(|number| number.to_string())
                .or_else(|| number.to_u128().map(|number| number.to_string()))
                .or_else(|| number.to_f64().map(|number| number.to_string()))
                .unwrap_or_else(|| "this number".to_owned()),
            Value::Empty(..) => "nothing".to_owned(),
            Value::Dict(..) => "a table".to_owned(),
            Value::Array(..) => "a list".to_owned(),
        }
    }
}

/// An amount of money that a key takes.
#[derive(Clone, Copy)]
pub struct Decimal {
    /// All amounts lie below this.
    pub end: NanoUsd,
    /// What is said to be right where another value stands.
    pub wanted: &'static str,
}

/// A merged configuration being read.
pub struct Reader {
    figment: Figment,
    root: Dict,
    /// The keys of values asked for so far.
    keys: BTreeSet<String>,
    /// The tables and lists that these are in.
    groups: BTreeSet<String>,
    /// What should be lists of tables and is not: of what stands in it nothing is said.
    misshapen: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl Reader {
    /// A reader of what `figment` holds; the problem where it could not even be gathered.
    pub fn new(figment: Figment) -> Result<Self, Vec<Problem>> {
        let mut data = figment.data().map_err(|errors| {
            let problem = |error: figment::Error| Problem {
                origin: error.metadata.as_ref().map(origin_name).unwrap_or_default(),
                ..Problem::with(error.path.join("."), error.kind.to_string())
            };
            errors.into_iter().map(problem).collect::<Vec<_>>()
        })?;
        Ok(Self {
            root: data.remove(&Profile::Default).unwrap_or_default(),
            figment,
            keys: BTreeSet::new(),
            groups: BTreeSet::new(),
            misshapen: BTreeSet::new(),
            problems: Vec::new(),
        })
    }

    /// A whole number in `range`.
    pub fn whole(&mut self, path: &[&str], range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(path, &wanted, |written| {
            u64::try_from(written.whole()?).ok().filter(|number| range.contains(number))
        })
    }

    /// A share in `range` (in thousandths), written as a decimal.
    pub fn share_permille(&mut self, path: &[&str], range: RangeInclusive<u32>) -> Option<u32> {
        let [from, to] = [*range.start(), *range.end()].map(|share| f64::from(share) / 1000.0);
        let wanted = format!("a share from {from} to {to} with at most three decimals, like 0.625");
        self.read(path, &wanted, |written| {
            let thousandths = written.decimal()? * 1000.0;
            range.clone().find(|&share| (f64::from(share) - thousandths).abs() < 1e-6)
        })
    }

    /// An amount of dollars, as a number or as a decimal in quotes.
    pub fn decimal(&mut self, path: &[&str], decimal: Decimal) -> Option<NanoUsd> {
        self.read(path, decimal.wanted, |written| {
            written.dollars().filter(|&amount| amount < decimal.end)
        })
    }

    /// `true` or `false`.
    pub fn switch(&mut self, path: &[&str]) -> Option<bool> {
        self.read(path, "true or false", Written::switch)
    }

    /// One of the words in `choices`.
    pub fn choice<T: Copy>(&mut self, path: &[&str], choices: &[(&str, T)]) -> Option<T> {
        let words: Vec<_> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        self.read(path, &format!("one of {}", words.join(", ")), |written| {
            let text = written.value.as_str()?;
            choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice)
        })
    }

    /// Text that `check` accepts; `check` says what is wrong with other text.
    pub fn text<T>(
        &mut self,
        path: &[&str],
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text =
            self.read(path, "text in quotes", |written| written.value.as_str().map(str::to_owned))?;
        self.checked(path, check(&text))
    }

    /// The same, of a whole number as well, which `check` sees as its digits.
    pub fn text_or_whole<T>(
        &mut self,
        path: &[&str],
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.read(path, "text in quotes, or a whole number", |written| {
            let text = written.value.as_str().map(str::to_owned);
            text.or_else(|| written.whole().map(|number| number.to_string()))
        })?;
        self.checked(path, check(&text))
    }

    /// A list of texts that `check` accepts, each problem reported.
    pub fn list<T>(
        &mut self,
        path: &[&str],
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let items =
            self.read(path, "a list of texts, such as [\"one\", \"two\"]", Written::list)?;
        let items: Vec<_> = items.iter().map(|item| self.checked(path, check(item))).collect();
        items.into_iter().collect()
    }

    /// A table of texts that `check` accepts with their names, each problem reported.
    pub fn texts<T>(
        &mut self,
        path: &[&str],
        check: impl Fn(&str, &str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let wanted = "a table of texts, such as { \"http-referer\" = \"https://example.com\" }";
        let pairs = self.read(path, wanted, |written| {
            let pair = |(name, value): (&String, &Value)| {
                value.as_str().map(|value| (name.clone(), value.to_owned()))
            };
            written.value.as_dict()?.iter().map(pair).collect::<Option<Vec<_>>>()
        })?;
        let checked = pairs.iter().map(|(name, value)| self.checked(path, check(name, value)));
        let checked: Vec<_> = checked.collect();
        checked.into_iter().collect()
    }

    /// How many tables stand under `[[key]]`.
    pub fn rows(&mut self, key: &str) -> usize {
        self.rows_at(&[key])
    }

    /// How many tables stand in the list at `path`.
    pub fn rows_at(&mut self, path: &[&str]) -> usize {
        let key = label(path);
        let rows = match self.value(path) {
            None => 0,
            Some(Value::Array(_, rows)) => rows.len(),
            Some(_) => {
                self.refuse(path, format!("is a list: write each of its rows under [[{key}]]"));
                self.misshapen.insert(key.clone());
                0
            }
        };
        self.groups.insert(key);
        rows
    }

    /// The names of the tables under `[key."name"]`.
    pub fn names(&mut self, key: &str) -> Vec<String> {
        self.groups.insert(key.to_owned());
        let names = self.root.get(key).and_then(Value::as_dict).map(Dict::keys);
        names.into_iter().flatten().cloned().collect()
    }

    /// Whether nothing was written at `path`.
    pub fn is_absent(&self, path: &[&str]) -> bool {
        self.value(path).is_none()
    }

    /// Adds a problem with the value at `path`.
    pub fn refuse(&mut self, path: &[&str], message: impl Into<String>) {
        let origin = self.value(path).map(|value| self.origin(value)).unwrap_or_default();
        self.problems.push(Problem { origin, ..Problem::with(label(path), message) });
    }

    /// All keys asked for.
    #[cfg(test)]
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// Ends reading: all problems, those of keys that nobody asked for last.
    pub fn finish(mut self) -> Vec<Problem> {
        let root = std::mem::take(&mut self.root);
        for (key, value) in &root {
            self.look_for_unknown(&[key], value);
        }
        self.problems
    }

    fn read<T>(
        &mut self,
        path: &[&str],
        wanted: &str,
        parse: impl FnOnce(&Written) -> Option<T>,
    ) -> Option<T> {
        self.keys.insert(label(path));
        for end in 1..path.len() {
            self.groups.insert(label(&path[..end]));
        }
        let value = self.value(path)?;
        let metadata = self.figment.get_metadata(value.tag());
        let written = Written {
            value: value.clone(),
            origin: self.origin(value),
            as_text: !matches!(metadata, Some(Metadata { source: Some(Source::File(_)), .. })),
        };
        let parsed = parse(&written);
        if parsed.is_none() {
            let message = format!("{} is not {wanted}", written.shown());
            self.problems.push(Problem {
                origin: written.origin,
                suggestion: Some(wanted.to_owned()),
                ..Problem::with(label(path), message)
            });
        }
        parsed
    }

    fn checked<T>(&mut self, path: &[&str], result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.refuse(path, message)).ok()
    }

    fn value(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.root.get(*first)?, |value, part| match value {
            Value::Dict(_, dict) => dict.get(*part),
            Value::Array(_, items) => items.get(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    fn origin(&self, value: &Value) -> String {
        let metadata = self.figment.get_metadata(value.tag());
        metadata.map(origin_name).unwrap_or_default()
    }

    fn look_for_unknown(&mut self, path: &[&str], value: &Value) {
        let key = label(path);
        if self.keys.contains(&key) || self.misshapen.contains(&key) {
            return;
        }
        let mut suggestion = None;
        let message = if path.len() > 1 && path.ends_with(&[""]) {
            "is a section and has no value of its own".to_owned()
        } else if !self.groups.contains(&key) {
            let (message, near) = self.unknown(&key);
            suggestion = near;
            message
        } else if let Some(dict) = value.as_dict() {
            for (name, value) in dict {
                self.look_for_unknown(&[path, &[name]].concat(), value);
            }
            return;
        } else if let Some(items) = value.as_array() {
            for (row, value) in items.iter().enumerate() {
                self.look_for_unknown(&[path, &[&row.to_string()]].concat(), value);
            }
            return;
        } else {
            format!("is a section: write its keys under [{key}]")
        };
        let origin = self.origin(value);
        self.problems.push(Problem { origin, suggestion, ..Problem::with(key, message) });
    }

    /// What to say of `key`, which does not exist, and what may have been meant.
    fn unknown(&self, key: &str) -> (String, Option<String>) {
        let known = || self.keys.iter().chain(&self.groups);
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let distances = known().map(|known| {
            // The right name in the wrong section is nearer than any misspelling.
            let moved = usize::from(last(known) != last(key));
            (moved * edit_distance(known, key), known)
        });
        let mut near: Vec<_> =
            distances.filter(|&(distance, _)| distance <= 1 + key.len() / 4).collect();
        near.sort();
        if let Some(&(least, _)) = near.first() {
            let nearest = near.iter().take_while(|&&(distance, _)| distance == least);
            let nearest: Vec<_> = nearest.map(|(_, known)| known.as_str()).collect();
            let nearest = nearest.join(" or ");
            let message = format!("there is no such key; did you mean {nearest}?");
            return (message, Some(nearest));
        }
        let section = key.rsplit_once('.').map_or("", |(section, _)| section);
        let beside: Vec<_> = known()
            .filter_map(|known| match known.rsplit_once('.') {
                Some((other, name)) => (other == section).then_some(name),
                None => section.is_empty().then_some(known.as_str()),
            })
            .collect();
        let place = if section.is_empty() { "the sections are" } else { "its section has" };
        (format!("there is no such key; {place} {}", beside.join(", ")), None)
    }
}

/// `path` as it is written in TOML; the rows of a list are counted from 0, empty parts left out.
pub(super) fn label(path: &[&str]) -> String {
    let mut label = String::new();
    for part in path.iter().filter(|part| !part.is_empty()) {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if !label.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            label.push_str(&format!("[{part}]"));
            continue;
        }
        if !label.is_empty() {
            label.push('.');
        }
        if part.chars().all(plain) {
            label.push_str(part);
        } else {
            label.push_str(&format!("{part:?}"));
        }
    }
    label
}

/// The file's path, or the name of the variable or flag.
fn origin_name(metadata: &Metadata) -> String {
    match &metadata.source {
        Some(Source::File(path)) => path.display().to_string(),
        _ => metadata.name.to_string(),
    }
}
