//! Old names of keys: moves their values to the current names before anything is read.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};

use super::keys::{SECTIONS, Section};
use super::reader::{Problem, label, origin_name};

/// Name of the source that holds the defaults.
pub const DEFAULTS: &str = "defaults";
/// Beginning of the environment variables that set keys.
const VARIABLES: &str = "WEIR_";

/// A merged configuration under current names.
pub(super) struct Renamed {
    pub root: Dict,
    /// Names as written, by current names, where they differ.
    pub written: BTreeMap<String, String>,
    /// Keys written under both names by one source.
    pub problems: Vec<Problem>,
}

impl Renamed {
    /// Merges the sources of `figment`, or returns the problems that prevent it. A later source
    /// overrides an earlier one by either name.
    pub(super) fn new(figment: &Figment) -> Result<Self, Vec<Problem>> {
        let mut data = figment.data().map_err(|errors| {
            let problem = |error: figment::Error| Problem {
                origin: error.metadata.as_ref().map(origin_name).unwrap_or_default(),
                ..Problem::with(error.path.join("."), error.kind.to_string())
            };
            errors.into_iter().map(problem).collect::<Vec<_>>()
        })?;
        let root = data.remove(&Profile::Default).unwrap_or_default();
        let mut renamed = Self { root, written: BTreeMap::new(), problems: Vec::new() };
        for section in SECTIONS {
            let renames: Vec<_> =
                section.all_keys().filter_map(|key| Some((key.old?, key.name))).collect();
            if renames.is_empty() {
                continue;
            }
            for [old, new] in tables(section, &renamed.root) {
                for (old_name, new_name) in &renames {
                    let [old, new] = [(&old, old_name), (&new, new_name)].map(|(table, name)| {
                        let table = table.iter().map(String::as_str);
                        table.chain([*name]).collect::<Vec<_>>()
                    });
                    renamed.move_value(figment, &old, &new);
                }
            }
        }
        Ok(renamed)
    }

    /// Returns the name under which the key `label` was written.
    pub(super) fn as_written(&self, label: String) -> String {
        self.written.get(&label).cloned().unwrap_or(label)
    }

    fn move_value(&mut self, figment: &Figment, old: &[&str], new: &[&str]) {
        let Some(value) = find(&self.root, old).cloned() else { return };
        let metadata = |value: &Value| figment.get_metadata(value.tag());
        let kept = find(&self.root, new)
            .filter(|kept| metadata(kept).is_none_or(|metadata| metadata.name != DEFAULTS));
        let is_older = kept.is_some_and(|kept| value.tag() < kept.tag());
        if let Some(kept) = kept
            && (value.tag() == kept.tag() || [&value, kept].map(metadata).iter().all(is_variable))
        {
            let (old, new) = (label(old), label(new));
            let message = format!("is the old name of {new}, which is set too; keep one of them");
            let origin = metadata(&value).map(origin_name).unwrap_or_default();
            self.problems.push(Problem { origin, ..Problem::with(old, message) });
        }
        if is_older || put(&mut self.root, new, Some(value)) {
            put(&mut self.root, old, None);
        }
        if !is_older {
            self.written.insert(label(new), label(old));
        }
    }
}

/// Returns whether a source is an environment variable.
fn is_variable(metadata: &Option<&Metadata>) -> bool {
    metadata.is_some_and(|metadata| {
        !matches!(metadata.source, Some(Source::File(_))) && metadata.name.starts_with(VARIABLES)
    })
}

/// Returns the paths of the tables of `section` in `root`: by old names and by current names.
fn tables(section: &Section, root: &Dict) -> Vec<[Vec<String>; 2]> {
    let names: Vec<&str> = match section.path.split_once(".*") {
        Some((table, _)) => {
            let dict = root.get(table).and_then(Value::as_dict);
            dict.into_iter().flat_map(Dict::keys).map(String::as_str).collect()
        }
        None => vec![""],
    };
    let path = |pattern: &str, name: &str| {
        pattern.split('.').map(|part| if part == "*" { name } else { part }.to_owned()).collect()
    };
    let paths =
        names.iter().map(|name| [section.old_path(), section.path].map(|at| path(at, name)));
    paths.collect()
}

/// Returns the value at `path`.
pub(super) fn find<'a>(dict: &'a Dict, path: &[&str]) -> Option<&'a Value> {
    let (last, tables) = path.split_last()?;
    tables.iter().try_fold(dict, |dict, part| dict.get(*part)?.as_dict())?.get(*last)
}

/// Sets or removes the value at `path`; returns whether its tables are tables.
pub(super) fn put(dict: &mut Dict, path: &[&str], value: Option<Value>) -> bool {
    match (path, value) {
        ([], _) => false,
        ([last], Some(value)) => {
            dict.insert((*last).to_owned(), value);
            true
        }
        ([last], None) => {
            dict.remove(*last);
            true
        }
        ([first, rest @ ..], value) => {
            let table = dict.entry((*first).to_owned()).or_insert_with(|| Dict::new().into());
            match table {
                Value::Dict(_, table) => put(table, rest, value),
                _ => false,
            }
        }
    }
}
