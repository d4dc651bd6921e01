//! Reader of a merged configuration, value by value. Collects every problem with the value's
//! origin, and at the end reports keys that nothing has read. Contains no key itself.

use std::collections::BTreeSet;
use std::fmt;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Num, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};

use super::checks::edit_distance;
use super::keys::{Key, Kind, SET_ELSEWHERE, Section};
use super::words::Worded;
use weir_store::budget::NanoUsd;

/// Name of the source that holds the defaults.
pub const DEFAULTS: &str = "defaults";

/// An error in the configuration, with its fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, such as `server.listen`; empty if a whole source cannot be read.
    pub key: String,
    /// The file, environment variable or flag of the value.
    pub origin: String,
    /// The line in that file, if known.
    pub line: Option<usize>,
    /// The error and the fix.
    pub message: String,
    /// The right value, if it is one of a few.
    pub suggestion: Option<String>,
}

impl Problem {
    /// Creates a problem with the value of `key`, of any origin.
    pub fn with(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            origin: String::new(),
            line: None,
            message: message.into(),
            suggestion: None,
        }
    }

    /// Returns the file or variable, with the line if known.
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

/// A valid setting that is probably unintended.
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

/// A value with its origin.
pub(super) struct Written {
    value: Value,
    origin: String,
    /// Whether it was given as text by the environment or a flag, so that numbers, switches and
    /// lists are parsed from text.
    as_text: bool,
}

impl Written {
    /// Returns the declared default of `key`, or of the member that `name` ends with.
    fn default_of(key: &Key, name: &str) -> Option<Self> {
        let mut dict = Toml::from_str::<Dict>(&format!("value = {}", key.value)).ok()?;
        let mut value = dict.remove("value")?;
        if let Some((_, member)) = name.split_once('.') {
            value = value.into_dict()?.remove(member)?;
        }
        Some(Self { value, origin: String::new(), as_text: false })
    }

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
                // Shares are small: a whole number beyond `i32` is not a share.
                .or_else(|| i32::try_from(self.whole()?).ok().map(f64::from)),
            _ => None,
        }
    }

    /// Returns exact dollars: from quoted text or from a number. TOML parses a number as a float;
    /// its shortest decimal equals the written one up to 15 digits.
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

    /// Returns the value as shown in messages.
    fn shown(&self) -> String {
        const MAX_CHARS: usize = 80;
        match &self.value {
            Value::String(_, text) if text.chars().count() <= MAX_CHARS => format!("{text:?}"),
            Value::String(_, text) => {
                format!("{:?}…", text.chars().take(MAX_CHARS).collect::<String>())
            }
            Value::Char(_, text) => format!("{text:?}"),
            Value::Bool(_, switch) => switch.to_string(),
            Value::Num(_, number) => digits(number).unwrap_or_else(|| "this number".to_owned()),
            Value::Empty(..) => "nothing".to_owned(),
            Value::Dict(..) => "a table".to_owned(),
            Value::Array(..) => "a list".to_owned(),
        }
    }
}

/// Formats a number.
pub(super) fn digits(number: &Num) -> Option<String> {
    let whole = number.to_i128().map(|number| number.to_string());
    let whole = whole.or_else(|| number.to_u128().map(|number| number.to_string()));
    whole.or_else(|| number.to_f64().map(|number| number.to_string()))
}

/// A type of values that a declared key can have.
pub(super) trait Readable: Sized {
    /// Parses a value; `None` if `kind` does not accept it.
    fn read(written: &Written, kind: Kind) -> Option<Self>;
}

impl Readable for u64 {
    fn read(written: &Written, kind: Kind) -> Option<Self> {
        let Kind::Whole(from, to) = kind else { return None };
        Self::try_from(written.whole()?).ok().filter(|number| (from..=to).contains(number))
    }
}

impl Readable for usize {
    fn read(written: &Written, kind: Kind) -> Option<Self> {
        Self::try_from(u64::read(written, kind)?).ok()
    }
}

/// A whole number, or a share in thousandths.
impl Readable for u32 {
    fn read(written: &Written, kind: Kind) -> Option<Self> {
        let Kind::Share(from, to) = kind else { return u64::read(written, kind)?.try_into().ok() };
        let thousandths = written.decimal()? * 1000.0;
        (from..=to).find(|&share| (f64::from(share) - thousandths).abs() < 1e-6)
    }
}

/// A switch, or a choice of two words; the second is `true`.
impl Readable for bool {
    fn read(written: &Written, kind: Kind) -> Option<Self> {
        let Kind::Choice(words) = kind else { return written.switch() };
        Some(words().iter().position(|word| written.value.as_str() == Some(word))? == 1)
    }
}

impl Readable for NanoUsd {
    fn read(written: &Written, kind: Kind) -> Option<Self> {
        let Kind::Dollars { end, .. } = kind else { return None };
        written.dollars().filter(|&amount| amount < end)
    }
}

impl Readable for String {
    fn read(written: &Written, kind: Kind) -> Option<Self> {
        match kind {
            Kind::Choice(words) => words()
                .into_iter()
                .find(|word| written.value.as_str() == Some(word))
                .map(str::to_owned),
            Kind::TextOrWhole(_) => {
                let text = written.value.as_str().map(str::to_owned);
                text.or_else(|| written.whole().map(|number| number.to_string()))
            }
            _ => written.value.as_str().map(str::to_owned),
        }
    }
}

impl Readable for Vec<String> {
    fn read(written: &Written, _: Kind) -> Option<Self> {
        written.list()
    }
}

/// Texts by name.
impl Readable for Vec<(String, String)> {
    fn read(written: &Written, _: Kind) -> Option<Self> {
        let pair = |(name, value): (&String, &Value)| {
            value.as_str().map(|value| (name.clone(), value.to_owned()))
        };
        written.value.as_dict()?.iter().map(pair).collect()
    }
}

impl<T: Worded> Readable for T {
    fn read(written: &Written, _: Kind) -> Option<Self> {
        let text = written.value.as_str()?;
        Self::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
    }
}

/// Merges the sources of `figment`, or returns the problems that prevent it.
pub(super) fn merged(figment: &Figment) -> Result<Dict, Vec<Problem>> {
    let mut data = figment.data().map_err(|errors| {
        let problem = |error: figment::Error| Problem {
            origin: error.metadata.as_ref().map(origin_name).unwrap_or_default(),
            ..Problem::with(error.path.join("."), error.kind.to_string())
        };
        errors.into_iter().map(problem).collect::<Vec<_>>()
    })?;
    Ok(data.remove(&Profile::Default).unwrap_or_default())
}

/// Reader of a merged configuration.
pub(super) struct Reader {
    figment: Figment,
    root: Dict,
    /// Keys read so far.
    keys: BTreeSet<String>,
    /// Tables and lists that contain these keys.
    groups: BTreeSet<String>,
    /// Values that should be lists of tables but are not; their contents are not reported again.
    misshapen: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl Reader {
    /// Creates a reader of `figment`, or returns the problem that prevented merging.
    pub(super) fn new(figment: Figment) -> Result<Self, Vec<Problem>> {
        Ok(Self {
            problems: Vec::new(),
            root: merged(&figment)?,
            figment,
            keys: BTreeSet::new(),
            groups: BTreeSet::new(),
            misshapen: BTreeSet::new(),
        })
    }

    /// Returns the keys of a section without names or rows.
    pub(super) fn section(&mut self, section: &'static Section) -> Keys<'_, 'static> {
        Keys { reader: self, section, path: section.path.split('.').collect() }
    }

    /// Returns the keys of a section at `path`.
    pub(super) fn at<'p>(&mut self, section: &'static Section, path: &[&'p str]) -> Keys<'_, 'p> {
        Keys { reader: self, section, path: path.to_vec() }
    }

    /// Returns the number of tables under `[[key]]`.
    pub(super) fn rows(&mut self, key: &str) -> usize {
        self.rows_at(&[key])
    }

    /// Returns the number of tables in the list at `path`.
    pub(super) fn rows_at(&mut self, path: &[&str]) -> usize {
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

    /// Returns the names of the tables under `[key."name"]`.
    pub(super) fn names(&mut self, key: &str) -> Vec<String> {
        self.groups.insert(key.to_owned());
        let names = self.root.get(key).and_then(Value::as_dict).map(Dict::keys);
        names.into_iter().flatten().cloned().collect()
    }

    /// Returns whether nothing is written at `path`.
    pub(super) fn is_absent(&self, path: &[&str]) -> bool {
        self.value(path).is_none()
    }

    /// Adds a problem with the value at `path`.
    pub(super) fn refuse(&mut self, path: &[&str], message: impl Into<String>) {
        let origin = self.value(path).map(|value| self.origin(value)).unwrap_or_default();
        self.problems.push(Problem { origin, ..Problem::with(label(path), message) });
    }

    /// Returns all keys read so far.
    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// Finishes reading and returns all problems; unknown keys come last.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        let root = std::mem::take(&mut self.root);
        for (key, value) in &root {
            self.look_for_unknown(&[key], value);
        }
        self.problems
    }

    fn read<T: Readable>(&mut self, path: &[&str], kind: Kind) -> Option<T> {
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
        let parsed = T::read(&written, kind);
        if parsed.is_none() {
            let wanted = kind.wanted();
            let message = format!("{} is not {wanted}", written.shown());
            self.problems.push(Problem {
                origin: written.origin,
                suggestion: Some(wanted),
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
            let (message, near) = self.unknown(&key, value);
            suggestion = near;
            message
        } else if let Some(dict) = value.as_dict() {
            for (name, value) in dict {
                self.look_for_unknown(&[path, &[name]].concat(), value);
            }
            return;
        } else if let Some(items) = value.as_array().filter(|_| self.is_list(&key)) {
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

    /// Returns the key of the same section that a misspelled or shortened name probably means.
    fn near_in_section(&self, key: &str) -> Option<String> {
        let (section, name) = in_section(key);
        let known = self.keys.iter().filter(|known| in_section(known).0 == section);
        let distances = known.filter_map(|known| {
            let (_, other) = in_section(known);
            let distance = edit_distance(other, name);
            // Such as `window` instead of `window_tokens`, and `url` instead of `webhook_url`.
            let is_part = other.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'))
                || other.strip_suffix(name).is_some_and(|rest| rest.ends_with('_'));
            (distance <= 1 + name.len() / 5 || is_part).then_some((distance, known))
        });
        distances.min().filter(|_| !section.is_empty()).map(|(_, known)| known.clone())
    }

    /// Whether rows of the group `key` have been read.
    fn is_list(&self, key: &str) -> bool {
        self.groups
            .iter()
            .any(|group| group.strip_prefix(key).is_some_and(|row| row.starts_with('[')))
    }

    /// Returns the message for the unknown `key` of this value, and the probably intended key.
    fn unknown(&self, key: &str, value: &Value) -> (String, Option<String>) {
        if let Some(nearest) = self.near_in_section(key) {
            return (format!("there is no such key; did you mean {nearest}?"), Some(nearest));
        }
        let is_below = |section: &str| {
            key.strip_prefix(section)
                .is_some_and(|below| below.is_empty() || below.starts_with('.'))
        };
        if let Some((_, place)) = SET_ELSEWHERE.iter().find(|(section, _)| is_below(section)) {
            return (format!("there is no such key; {place}"), None);
        }
        let known = || self.keys.iter().chain(&self.groups);
        // Only a table may be a misplaced section.
        let is_table = value.as_dict().is_some() || value.as_array().is_some();
        let fits = |known: &&String| is_table || self.keys.contains(*known);
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let alike = known().filter(fits);
        let distances = alike.map(|known| {
            // The right name in the wrong section is closer than any misspelling.
            let moved = usize::from(last(known) != last(key));
            (moved * edit_distance(known, key), known)
        });
        let mut near: Vec<_> =
            distances.filter(|&(distance, _)| distance <= 1 + key.len() / 4).collect();
        near.sort();
        near.dedup();
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

/// Returns the section of a key, and its name there.
fn in_section(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

/// Declares the settings of a section, each with the value that it has by the section's keys.
macro_rules! settings {
    ($($(#[$of:meta])+ $type:ident from $keys:ident {
        $($(#[$meta:meta])* $field:ident: $kind:ty = $value:expr,)+
    })+) => {
        $(
            $(#[$of])+
            pub struct $type { $($(#[$meta])* pub $field: $kind,)+ }

            impl $type {
                /// Reads the settings from the keys of their section.
                pub(in crate::config) fn read(
                    $keys: &mut $crate::config::reader::Keys<'_, '_>,
                ) -> Self {
                    Self { $($field: $value,)+ }
                }
            }
        )+
    };
}

pub(super) use settings;

/// Reader of the keys of one section.
pub(super) struct Keys<'r, 'p> {
    pub reader: &'r mut Reader,
    section: &'static Section,
    path: Vec<&'p str>,
}

impl<'p> Keys<'_, 'p> {
    /// Reads `name`, or returns its default.
    pub(super) fn get<T: Readable>(&mut self, name: &'static str) -> T {
        let (key, kind) = self.key(name);
        let read = self.written(name).or_else(|| T::read(&Written::default_of(key, name)?, kind));
        read.expect("a test reads every default")
    }

    /// Reads `name`, if it is written.
    pub(super) fn written<T: Readable>(&mut self, name: &'static str) -> Option<T> {
        let (path, (_, kind)) = (self.path(name), self.key(name));
        self.reader.read(&path, kind)
    }

    /// Reads text that `check` accepts, or returns the default; `check` returns the error for other
    /// text.
    pub(super) fn text<T>(
        &mut self,
        name: &'static str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        let default = Written::default_of(self.key(name).0, name);
        let default = default.and_then(|written| check(written.value.as_str()?).ok());
        self.written_text(name, check).or(default).expect("a test reads every default")
    }

    /// Reads text that `check` accepts, if it is written.
    pub(super) fn written_text<T>(
        &mut self,
        name: &'static str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text: String = self.written(name)?;
        let path = self.path(name);
        self.reader.checked(&path, check(&text))
    }

    /// Reads a list of texts that `check` accepts, if it is written; reports each problem.
    pub(super) fn list<T>(
        &mut self,
        name: &'static str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let items: Vec<String> = self.written(name)?;
        let path = self.path(name);
        let checked = items.iter().map(|item| self.reader.checked(&path, check(item)));
        let checked: Vec<_> = checked.collect();
        checked.into_iter().collect()
    }

    /// Reads a table of texts that `check` accepts with their names, if it is written; reports each
    /// problem.
    pub(super) fn texts<T>(
        &mut self,
        name: &'static str,
        check: impl Fn(&str, &str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let pairs: Vec<(String, String)> = self.written(name)?;
        let path = self.path(name);
        let checked =
            pairs.iter().map(|(name, value)| self.reader.checked(&path, check(name, value)));
        let checked: Vec<_> = checked.collect();
        checked.into_iter().collect()
    }

    /// Returns whether `name` is not written.
    pub(super) fn is_absent(&self, name: &'static str) -> bool {
        self.reader.is_absent(&self.path(name))
    }

    /// Adds a problem with `name`.
    pub(super) fn refuse(&mut self, name: &'static str, message: impl Into<String>) {
        let path = self.path(name);
        self.reader.refuse(&path, message);
    }

    /// Returns the full name of `name`.
    pub(super) fn name(&self, name: &'static str) -> String {
        label(&self.path(name))
    }

    /// Returns the path of `name`.
    pub(super) fn path(&self, name: &'static str) -> Vec<&'p str> {
        self.path.iter().copied().chain(name.split('.')).collect()
    }

    fn key(&self, name: &str) -> (&'static Key, Kind) {
        self.section.find(name).expect("a test reads every key")
    }
}

/// Formats `path` as in TOML, counting rows from 0 and omitting empty parts.
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

/// Returns the file's path, or the name of the variable or flag.
pub(super) fn origin_name(metadata: &Metadata) -> String {
    match &metadata.source {
        Some(Source::File(path)) => path.display().to_string(),
        _ => metadata.name.to_string(),
    }
}
