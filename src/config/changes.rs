//! Differences between two configurations, by key, with their effect: new compaction points in live
//! conversations, from the next request on, or only after a restart. Shows no values.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

pub use super::keys::Effect;
use super::keys::{effect, fits};
use super::reader::{digits, label, merged};
use Effect::Restart;

/// A key, split into its parts.
type Path = Vec<String>;

/// A changed key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Full key, such as `context.low`.
    pub key: String,
    pub effect: Effect,
}

/// Lists of tables, the key that identifies their rows, and whether the order of rows matters. Rows
/// of other lists are identified by position.
const ROWS: &[(&str, &str, bool)] = &[
    ("routes", "models", true),
    ("limits", "model", false),
    ("models.*.tiers", "above_prompt_tokens", false),
    ("routes.*.price.tiers", "above_prompt_tokens", false),
];

/// Lists the keys that differ between `old` and `new`, both as merged from their sources. An added
/// or removed row is one change.
pub fn changes(old: &Figment, new: &Figment) -> Vec<Change> {
    let (Ok(old), Ok(new)) = (merged(old), merged(new)) else { return Vec::new() };
    differing(&old, &new)
        .into_iter()
        .map(|(path, said, effect)| Change { key: label(&parts(&path)) + said, effect })
        .collect()
}

/// Paths that differ, each with what is said behind it.
type Found = BTreeSet<(Path, &'static str)>;

/// The value differs.
const VALUE: &str = "";
/// A row was removed; the path ends with its identifier.
const REMOVED: &str = " (removed)";
/// The order of the rows differs.
const ORDER: &str = " (the order of its rows)";

/// Returns the paths that differ, with their effects.
fn differing(old: &Dict, new: &Dict) -> Vec<(Path, &'static str, Effect)> {
    let mut found = Found::new();
    for name in old.keys().chain(new.keys()) {
        compare(&mut vec![name.clone()], old.get(name), new.get(name), &mut found);
    }
    let effect = |path: &Path| match parts(path)[..] {
        // A listener keeps TLS on or off until a restart.
        [section, "tls", _] if has_tls(old, section) != has_tls(new, section) => Restart,
        ref parts => effect(parts),
    };
    let with_effect = |(path, said)| {
        let effect = effect(&path);
        (path, said, effect)
    };
    found.into_iter().map(with_effect).collect()
}

/// Collects the paths below `path` at which two values differ.
fn compare(path: &mut Path, old: Option<&Value>, new: Option<&Value>, found: &mut Found) {
    let is_each = |is: fn(&Value) -> bool| [old, new].into_iter().flatten().all(is);
    if is_each(|value| value.as_dict().is_some()) {
        let [old, new] = [old, new].map(|value| value.and_then(Value::as_dict));
        let names: BTreeSet<_> = [old, new].into_iter().flatten().flat_map(Dict::keys).collect();
        for name in names {
            path.push(name.clone());
            compare(
                path,
                old.and_then(|old| old.get(name)),
                new.and_then(|new| new.get(name)),
                found,
            );
            path.pop();
        }
    } else if is_each(is_rows) {
        compare_rows(path, [rows(old), rows(new)], found);
    } else if old.map(plain) != new.map(plain) {
        found.insert((path.clone(), VALUE));
    }
}

/// Returns whether a value is a list of tables.
fn is_rows(value: &Value) -> bool {
    value.as_array().is_some_and(|rows| rows.iter().all(|row| row.as_dict().is_some()))
}

fn rows(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).unwrap_or_default()
}

/// Compares two lists of tables.
fn compare_rows(path: &mut Path, [old, new]: [&[Value]; 2], found: &mut Found) {
    let is_own = |(pattern, ..): &&(&str, &str, bool)| {
        let pattern: Vec<&str> = pattern.split('.').collect();
        pattern.len() == path.len() && fits(&pattern, &parts(path))
    };
    let own = ROWS.iter().find(is_own);
    let names = |rows: &[Value]| -> Vec<Option<String>> {
        let key = own.map(|(_, key, _)| *key);
        rows.iter().map(|row| row.as_dict()?.get(key?).map(plain)).collect()
    };
    let (old_names, new_names) = (names(old), names(new));
    let places = places(&old_names, &new_names);
    let known: Vec<usize> = places.iter().copied().flatten().collect();
    if own.is_some_and(|(_, _, has_order)| *has_order) && !known.is_sorted() {
        found.insert((path.clone(), ORDER));
    }
    for (number, place) in places.iter().enumerate() {
        let name = old_names[number].clone().unwrap_or_else(|| number.to_string());
        path.push(place.map_or(name, |place| place.to_string()));
        match place {
            Some(place) => compare(path, Some(&old[number]), Some(&new[*place]), found),
            None => drop(found.insert((path.clone(), REMOVED))),
        }
        path.pop();
    }
    for place in (0..new.len()).filter(|place| !known.contains(place)) {
        path.push(place.to_string());
        found.insert((path.clone(), VALUE));
        path.pop();
    }
}

/// Maps each old row to its new position: by identifier, or by position if neither identifier
/// exists on the other side.
fn places(old: &[Option<String>], new: &[Option<String>]) -> Vec<Option<usize>> {
    let mut free: BTreeMap<&str, VecDeque<usize>> = BTreeMap::new();
    for (place, name) in new.iter().enumerate() {
        free.entry(name.as_deref().unwrap_or_default()).or_default().push_back(place);
    }
    let named =
        |name: &Option<String>| name.as_deref().and_then(|name| free.get_mut(name)?.pop_front());
    let mut places: Vec<Option<usize>> = old.iter().map(named).collect();
    let taken: BTreeSet<usize> = places.iter().copied().flatten().collect();
    for (number, place) in places.iter_mut().enumerate() {
        if place.is_none() && number < new.len() && !taken.contains(&number) {
            *place = Some(number);
        }
    }
    places
}

fn parts(path: &Path) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

fn has_tls(dict: &Dict, section: &str) -> bool {
    find(dict, &[section, "tls", "cert_file"]).is_some_and(|file| !plain(file).is_empty())
}

/// Returns `new` with the values of `old` for all keys that only a restart can change. Both are
/// merged configurations.
pub fn without_restarts(old: &Figment, new: &Figment) -> Figment {
    let (old, mut merged) = (dict(old), dict(new));
    let differing = differing(&old, &merged);
    for (path, ..) in differing.iter().filter(|(_, _, effect)| *effect == Restart) {
        put(&mut merged, &parts(path), find(&old, &parts(path)).cloned());
    }
    Figment::from(Merged(merged))
}

/// The merged configuration in force, as a configuration source.
struct Merged(Dict);

impl Provider for Merged {
    fn metadata(&self) -> Metadata {
        Metadata::named("the configuration in force")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.0.clone()))
    }
}

fn dict(figment: &Figment) -> Dict {
    merged(figment).unwrap_or_default()
}

/// Returns the value at `path`.
fn find<'a>(dict: &'a Dict, path: &[&str]) -> Option<&'a Value> {
    let (last, tables) = path.split_last()?;
    tables.iter().try_fold(dict, |dict, part| dict.get(*part)?.as_dict())?.get(*last)
}

/// Sets or removes the value at `path`, if its tables are tables.
fn put(mut dict: &mut Dict, path: &[&str], value: Option<Value>) {
    let Some((last, tables)) = path.split_last() else { return };
    for part in tables {
        let table = dict.entry((*part).to_owned()).or_insert_with(|| Dict::new().into());
        let Value::Dict(_, table) = table else { return };
        dict = table;
    }
    match value {
        Some(value) => _ = dict.insert((*last).to_owned(), value),
        None => _ = dict.remove(*last),
    }
}

/// Formats a value independent of its source: `9` from a variable equals 9 from a file.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(_, text) => text.trim().to_owned(),
        Value::Char(_, text) => text.to_string(),
        Value::Bool(_, switch) => switch.to_string(),
        Value::Num(_, number) => digits(number).unwrap_or_default(),
        Value::Array(_, items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Empty(..) | Value::Dict(..) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use figment::providers::{Format, Toml};

    use super::*;
    use crate::config::DEFAULT_TOML;

    fn listed(old: &str, new: &str) -> Vec<(String, &'static str)> {
        let figment =
            |text: &str| Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(text));
        let changes = changes(&figment(old), &figment(new));
        changes.into_iter().map(|change| (change.key, change.effect.word())).collect()
    }

    /// Routes for these models, each sent under its own name or another.
    fn rows(models: &str) -> String {
        let row = |model: &str| match model.split_once('=') {
            Some((model, sent)) => {
                format!("[[routes]]\nmodels = [\"{model}\"]\nsend_as = \"{sent}\"\n")
            }
            None => format!("[[routes]]\nmodels = [\"{model}\"]\n"),
        };
        models.split(' ').map(row).collect()
    }

    #[test]
    fn a_changed_key_says_what_follows() {
        for (old, new, expected) in [
            ("", "", &[][..]),
            ("[context]\nlow = 0.75", "", &[]),
            ("", "[context]\nlow = 0.5", &[("context.low", "moves_cuts")]),
            ("[log]\nlevel = \"debug\"", "", &[("log.level", "next_request")]),
            ("", "[server]\nlisten = \"[::1]:1\"", &[("server.listen", "restart")]),
            ("", "[server.tls]\ncert_file = \"a\"", &[("server.tls.cert_file", "restart")]),
            (
                "[server.tls]\ncert_file = \"a\"",
                "[server.tls]\ncert_file = \"b\"",
                &[("server.tls.cert_file", "next_request")],
            ),
            (
                "[models.\"a/b.c\"]\nwindow_tokens = 5\ninput_usd_per_mtok = \"1\"",
                "[models.\"a/b.c\"]\nwindow_tokens = 6\ninput_usd_per_mtok = \"2\"",
                &[
                    ("models.\"a/b.c\".input_usd_per_mtok", "moves_cuts"),
                    ("models.\"a/b.c\".window_tokens", "moves_cuts"),
                ],
            ),
            (
                "[[limits]]\nmodel = \"a\"\nmax_input_tokens = 1",
                "[[limits]]\nmodel = \"a\"\nmax_input_tokens = 2",
                &[("limits[0].max_input_tokens", "moves_cuts")],
            ),
            (
                "",
                "[policies.mine]\nlow = 0.5\nadvanced.breakpoints.tier_requests = 1",
                &[
                    ("policies.mine.advanced.breakpoints.tier_requests", "next_request"),
                    ("policies.mine.low", "moves_cuts"),
                ],
            ),
            ("", "[store]\nurl = \"postgres://u:p@h/d\"", &[("store.url", "restart")]),
            (&rows("a b"), &rows("c a b"), &[("routes[0]", "moves_cuts")]),
            (&rows("a b"), &rows("b"), &[("routes.a (removed)", "moves_cuts")]),
            (&rows("a b c"), &rows("a c b"), &[("routes (the order of its rows)", "moves_cuts")]),
            (
                &rows("a b"),
                &rows("c b=x"),
                &[("routes[0].models", "moves_cuts"), ("routes[1].send_as", "moves_cuts")],
            ),
            (
                &rows("a a=x"),
                &rows("b a a=y"),
                &[("routes[0]", "moves_cuts"), ("routes[2].send_as", "moves_cuts")],
            ),
            ("", &rows("a b"), &[("routes[0]", "moves_cuts"), ("routes[1]", "moves_cuts")]),
            (
                "[[limits]]\nmodel = \"a\"\n[[limits]]\nmodel = \"b\"",
                "[[limits]]\nmodel = \"b\"\n[[limits]]\nmodel = \"a\"",
                &[],
            ),
            (
                &format!("{}[[routes.price.tiers]]\nabove_prompt_tokens = 5", rows("a")),
                &format!(
                    "{}[[routes.price.tiers]]\nabove_prompt_tokens = 3\n\
                     [[routes.price.tiers]]\nabove_prompt_tokens = 5",
                    rows("b a")
                ),
                &[("routes[0]", "moves_cuts"), ("routes[1].price.tiers[0]", "next_request")],
            ),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(key, effect)| ((*key).to_owned(), *effect)).collect();
            assert_eq!(listed(old, new), expected, "{old} -> {new}");
        }
    }

    #[test]
    fn what_needs_a_restart_stays_and_the_rest_holds() {
        let figment = |text: &str| {
            let text = text.to_owned();
            Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(&text))
        };
        let old = figment("[server]\nmax_connections = 7\n[redis]\nurl = \"redis://h:1\"");
        let new = figment(
            "[server]\nlisten = \"[::1]:9\"\nmax_body_bytes = 2048\n[context]\nlow = 0.5\n\
             [admin.tls]\ncert_file = \"a\"\nkey_file = \"b\"\n[cors]\nallow_origins = [\"http://a\"]",
        );
        let merged = without_restarts(&old, &new);
        let rest: Vec<_> = changes(&merged, &new).into_iter().map(|change| change.key).collect();
        let expected = [
            "admin.tls.cert_file",
            "admin.tls.key_file",
            "redis.url",
            "server.listen",
            "server.max_connections",
        ];
        assert_eq!(rest, expected);
        assert!(changes(&old, &merged).iter().all(|change| change.effect != Restart));
        let (config, _) = crate::config::load(merged).expect("both were right");
        assert_eq!(config.server.max_connections, 7);
        assert_eq!(config.server.max_body_bytes, 2048);
        assert_eq!(config.context.policy.low_permille, 500);
        assert_eq!(config.cors.allow_origins, ["http://a"]);
        assert_eq!(config.redis.url.expose(), "redis://h:1");
        assert_eq!(config.server.listen.port(), 8400);
    }
}
