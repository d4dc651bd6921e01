//! What differs between two configurations, key by key, and what follows from it: whether it moves cuts
//! in live conversations, holds from the next request on, or only after a restart. Shows no value.

use std::collections::BTreeMap;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::reader::label;

/// A key's parts.
type Path = Vec<String>;

/// A key that says something else than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Such as `context.low`.
    pub key: String,
    pub effect: Effect,
}

/// What follows from a changed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Live conversations may be cut elsewhere than before: one rewrite of the provider's cache for each.
    MovesCuts,
    /// It holds from the next request on, and moves nothing.
    NextRequest,
    /// It holds once weir is started anew.
    Restart,
}

impl Effect {
    /// A word for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::MovesCuts => "moves_cuts",
            Self::NextRequest => "next_request",
            Self::Restart => "restart",
        }
    }
}

use Effect::{MovesCuts, NextRequest, Restart};

/// What follows from a change, by the beginning of the key; the longest that fits holds. `*` stands for one
/// part, whatever it is.
const EFFECTS: &[(&str, Effect)] = &[
    ("server", Restart),
    ("server.allowed_hosts", NextRequest),
    ("server.max_body_bytes", NextRequest),
    ("server.max_messages", NextRequest),
    ("server.tls.*", NextRequest),
    ("cors", NextRequest),
    ("auth", Restart),
    ("auth.allow_anonymous", NextRequest),
    ("admin", Restart),
    ("admin.tls.*", NextRequest),
    ("upstream", NextRequest),
    // What was learned of limits and counts is of an upstream.
    ("upstream.url", MovesCuts),
    ("upstreams", NextRequest),
    ("upstreams.*.url", MovesCuts),
    ("routes", MovesCuts),
    ("routes.*.fallback", NextRequest),
    ("routes.*.price", NextRequest),
    ("context", MovesCuts),
    ("context.allow_bypass", NextRequest),
    ("context.allowed_policies", NextRequest),
    ("context.cache_tier_requests", NextRequest),
    ("context.cache_target_tokens", NextRequest),
    ("context.originals", Restart),
    ("context.originals_lifetime_ms", Restart),
    ("context.originals_max_bytes", Restart),
    ("policies", MovesCuts),
    ("policies.*.cache_tier_requests", NextRequest),
    ("policies.*.cache_target_tokens", NextRequest),
    ("summaries", NextRequest),
    ("summaries.mode", MovesCuts),
    ("summaries.model", MovesCuts),
    ("summaries.lifetime_ms", Restart),
    ("summaries.max_concurrent", Restart),
    ("summaries.cache_bytes", Restart),
    ("summaries.max_bytes", Restart),
    ("learning", MovesCuts),
    ("limits", MovesCuts),
    ("models", NextRequest),
    ("models.*.window_tokens", MovesCuts),
    ("models.*.max_input_tokens", MovesCuts),
    ("models.*.max_output_tokens", MovesCuts),
    ("models.*.encoding", MovesCuts),
    ("models.*.strict_alternation", MovesCuts),
    ("models.*.policy", MovesCuts),
    ("models.*.token_ratio", MovesCuts),
    ("models.*.tokenizer", MovesCuts),
    ("models.*.late_system", MovesCuts),
    ("prices", NextRequest),
    ("cache", Restart),
    ("store", Restart),
    ("redis", Restart),
    ("ledger", Restart),
    ("budgets", Restart),
    ("log", Restart),
    ("log.level", NextRequest),
];

/// What differs from `old` in `new`, both as gathered, by their keys.
pub fn changes(old: &Figment, new: &Figment) -> Vec<Change> {
    let differing = differing(old, new).into_iter();
    differing
        .map(|(path, effect)| {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            Change { key: label(&parts), effect }
        })
        .collect()
}

/// The paths of what differs, and what follows from each.
fn differing(old: &Figment, new: &Figment) -> BTreeMap<Path, Effect> {
    let (old, new) = (leaves(old), leaves(new));
    let paths = old.keys().chain(new.keys());
    let differing = paths.filter(|path| old.get(*path) != new.get(*path));
    differing
        .map(|path| {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let effect = match parts[..] {
                // A listener that speaks TLS or none goes on so.
                [section, "tls", _] if has_tls(&old, section) != has_tls(&new, section) => Restart,
                _ => effect(&parts),
            };
            (path.clone(), effect)
        })
        .collect()
}

fn has_tls(leaves: &BTreeMap<Path, String>, section: &str) -> bool {
    let path = [section, "tls", "cert_file"].map(str::to_owned);
    leaves.get(&path[..]).is_some_and(|file| !file.is_empty())
}

/// What `new` says, but for what only a restart can change: there, what `old` says. Both as gathered.
pub fn without_restarts(old: &Figment, new: &Figment) -> Figment {
    let differing = differing(old, new);
    let (old, mut merged) = (dict(old), dict(new));
    for (path, _) in differing.iter().filter(|(_, effect)| **effect == Restart) {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        put(&mut merged, &parts, find(&old, &parts).cloned());
    }
    Figment::from(Merged(merged))
}

/// The value at `path`.
fn find<'a>(dict: &'a Dict, path: &[&str]) -> Option<&'a Value> {
    let (last, tables) = path.split_last()?;
    tables.iter().try_fold(dict, |dict, part| dict.get(*part)?.as_dict())?.get(*last)
}

/// Puts a value at `path`, or nothing.
fn put(dict: &mut Dict, path: &[&str], value: Option<Value>) {
    match (path, value) {
        ([], _) => {}
        ([last], Some(value)) => {
            dict.insert((*last).to_owned(), value);
        }
        ([last], None) => {
            dict.remove(*last);
        }
        ([first, rest @ ..], value) => {
            let table = dict.entry((*first).to_owned()).or_insert_with(|| Dict::new().into());
            if let Value::Dict(_, table) = table {
                put(table, rest, value);
            }
        }
    }
}

/// What was gathered before, as a source of its own.
struct Merged(Dict);

impl Provider for Merged {
    fn metadata(&self) -> Metadata {
        Metadata::named("what is in force")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.0.clone()))
    }
}

/// What follows where the value at `path` changes.
fn effect(path: &[&str]) -> Effect {
    let fits = |pattern: &str| {
        let parts: Vec<&str> = pattern.split('.').collect();
        let is_one = |(part, own): (&&str, &&str)| *part == "*" || part == own;
        (parts.len() <= path.len() && parts.iter().zip(path).all(is_one)).then_some(parts.len())
    };
    let fitting = EFFECTS.iter().filter_map(|(pattern, effect)| Some((fits(pattern)?, *effect)));
    // What nobody has thought of is safest after a restart.
    fitting.max_by_key(|(parts, _)| *parts).map_or(Restart, |(_, effect)| effect)
}

/// All values, by their paths.
fn leaves(figment: &Figment) -> BTreeMap<Path, String> {
    let mut leaves = BTreeMap::new();
    walk(&mut Vec::new(), &dict(figment), &mut leaves);
    leaves
}

fn dict(figment: &Figment) -> Dict {
    let data = figment.data().ok().and_then(|mut data| data.remove(&Profile::Default));
    data.unwrap_or_default()
}

fn walk(path: &mut Path, dict: &Dict, leaves: &mut BTreeMap<Path, String>) {
    for (name, value) in dict {
        path.push(name.clone());
        value_at(path, value, leaves);
        path.pop();
    }
}

fn value_at(path: &mut Path, value: &Value, leaves: &mut BTreeMap<Path, String>) {
    match value {
        Value::Dict(_, dict) => walk(path, dict, leaves),
        // Rows of a list of tables are told apart by their places; other lists are one value.
        Value::Array(_, rows) if rows.iter().any(|row| row.as_dict().is_some()) => {
            for (row, value) in rows.iter().enumerate() {
                path.push(row.to_string());
                value_at(path, value, leaves);
                path.pop();
            }
        }
        value => {
            leaves.insert(path.clone(), plain(value));
        }
    }
}

/// A value as text, the same whatever source it is from: a variable's `9` is a file's 9.
fn plain(value: &Value) -> String {
    match value {
        Value::String(_, text) => text.trim().to_owned(),
        Value::Char(_, text) => text.to_string(),
        Value::Bool(_, switch) => switch.to_string(),
        Value::Num(_, number) => number
            .to_i128()
            .map(|number| number.to_string())
            .or_else(|| number.to_u128().map(|number| number.to_string()))
            .or_else(|| number.to_f64().map(|number| number.to_string()))
            .unwrap_or_default(),
        Value::Array(_, items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Empty(..) | Value::Dict(..) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use figment::providers::{Format, Toml};

    use super::*;
    use crate::config::DEFAULT_TOML;

    fn told(old: &str, new: &str) -> Vec<(String, &'static str)> {
        let figment =
            |text: &str| Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(text));
        let changes = changes(&figment(old), &figment(new));
        changes.into_iter().map(|change| (change.key, change.effect.name())).collect()
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
                    ("models.\"a/b.c\".input_usd_per_mtok", "next_request"),
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
                "[policies.mine]\nlow = 0.5\ncache_tier_requests = 1",
                &[
                    ("policies.mine.cache_tier_requests", "next_request"),
                    ("policies.mine.low", "moves_cuts"),
                ],
            ),
            ("", "[store]\nurl = \"postgres://u:p@h/d\"", &[("store.url", "restart")]),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(key, effect)| ((*key).to_owned(), *effect)).collect();
            assert_eq!(told(old, new), expected, "{old} -> {new}");
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

    /// A policy's keys are the fold's business but for a few that are named.
    #[test]
    fn every_section_has_an_effect() {
        let figment = Figment::from(Toml::string(DEFAULT_TOML));
        for path in leaves(&figment).keys() {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let has_one = EFFECTS
                .iter()
                .any(|(pattern, _)| pattern.split('.').next() == parts.first().copied());
            assert!(has_one, "{}", label(&parts));
        }
    }
}
