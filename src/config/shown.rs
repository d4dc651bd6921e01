//! The configuration in force for display: each key with its value and source, without secrets. Text
//! that may hold a credential is shortened or left out; keys that are not declared are left out.

use figment::Figment;
use figment::value::Value;
use serde::Serialize;

use super::changes::plain;
use super::keys::{Kind, SECTIONS, fits};
use super::reader::{DEFAULTS, label, merged, origin_name};

/// Replacement for text that is not shown.
const HIDDEN: &str = "…";
/// Maximum number of keys, and of characters of a value, that are shown.
const MAX_KEYS: usize = 5000;
const MAX_VALUE: usize = 300;

/// A key of the configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub key: String,
    /// As text; text of secrets is left out.
    pub value: String,
    /// The file's path, or the name of the variable or flag; `defaults` for defaults.
    pub source: String,
    pub is_default: bool,
}

/// Lists the keys of `figment`, as merged from its sources.
pub fn shown(figment: &Figment) -> Vec<Setting> {
    let Ok(root) = merged(figment) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, value) in &root {
        collect(figment, &mut vec![name.clone()], value, &mut found);
    }
    found
}

/// Adds the keys at and below `path`.
fn collect(figment: &Figment, path: &mut Vec<String>, value: &Value, found: &mut Vec<Setting>) {
    let owned = path.clone();
    let parts: Vec<&str> = owned.iter().map(String::as_str).collect();
    let is_table = matches!(declared(&parts), Some(Kind::Table));
    match value {
        Value::Dict(_, dict) if !is_table => {
            for (name, value) in dict {
                path.push(name.clone());
                collect(figment, path, value, found);
                path.pop();
            }
        }
        Value::Array(_, rows)
            if !rows.is_empty() && rows.iter().all(|row| row.as_dict().is_some()) =>
        {
            for (number, row) in rows.iter().enumerate() {
                path.push(number.to_string());
                collect(figment, path, row, found);
                path.pop();
            }
        }
        _ => {
            let Some(text) = text(&parts, value).filter(|_| found.len() < MAX_KEYS) else { return };
            let metadata = figment.get_metadata(value.tag());
            let source = metadata.map(origin_name).unwrap_or_default();
            let is_default = metadata.is_none_or(|metadata| metadata.name == DEFAULTS);
            let value = match text.char_indices().nth(MAX_VALUE) {
                Some((end, _)) => format!("{}{HIDDEN}", &text[..end]),
                None => text,
            };
            found.push(Setting { key: label(&parts), value, source, is_default });
        }
    }
}

/// Formats a value for display; `None` for text of an undeclared key.
fn text(path: &[&str], value: &Value) -> Option<String> {
    if matches!(value, Value::Num(..) | Value::Bool(..)) {
        return Some(plain(value));
    }
    let text = plain(value);
    Some(match (declared(path)?, value) {
        // Values of headers may be credentials, so only the names are shown.
        (Kind::Table, Value::Dict(_, dict)) => {
            let names: Vec<&str> = dict.keys().map(String::as_str).collect();
            names.join(", ")
        }
        (Kind::Table, _) => HIDDEN.to_owned(),
        (Kind::Text("URL"), _) => url(&text, matches!(path, ["upstream" | "upstreams", ..])),
        _ => text,
    })
}

/// Removes user names, passwords and queries from a URL. The path of an upstream is needed to
/// understand it; that of others, such as a webhook's, may be a secret.
fn url(text: &str, has_path: bool) -> String {
    if text.is_empty() {
        return String::new();
    }
    let Some((scheme, rest)) = text.split_once("://") else { return HIDDEN.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path_end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (path, hidden) = rest.split_at(path_end);
    let is_plain = path.is_empty() || path == "/";
    let (path, is_cut) = match has_path || is_plain {
        true => (path, !hidden.is_empty()),
        false => ("/", true),
    };
    format!("{scheme}://{host}{path}{}", if is_cut { HIDDEN } else { "" })
}

/// Returns the type of the key, or of the member of a key, at `path`.
fn declared(path: &[&str]) -> Option<Kind> {
    SECTIONS.iter().find_map(|section| {
        let parts: Vec<&str> = section.path.split('.').collect();
        let (parents, name) = path.split_at_checked(parts.len())?;
        Some(section.find(&name.join(".")).filter(|_| fits(&parts, parents))?.1)
    })
}

#[cfg(test)]
mod tests {
    use figment::providers::{Format, Toml};

    use super::*;
    use crate::config::DEFAULT_TOML;

    fn values(text: &str) -> Vec<Setting> {
        let figment = Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(text));
        shown(&figment)
    }

    fn value(settings: &[Setting], key: &str) -> String {
        let found = settings.iter().find(|setting| setting.key == key);
        found.unwrap_or_else(|| panic!("{key} is listed")).value.clone()
    }

    #[test]
    fn no_secret_is_shown() {
        let settings = values(
            "store.url = \"postgres://weir:hunter2@db:5432/weir?password=hunter2\"\n\
             redis.url = \"rediss://:hunter2@cache:6379/0\"\n\
             events.webhook_url = \"https://hooks.example/services/hunter2\"\n\
             [upstream]\nurl = \"https://me:hunter2@api.example/v1?key=hunter2\"\n\
             headers = { \"x-api-version\" = \"hunter2\" }\n\
             [upstreams.other]\nurl = \"https://other.example/openai/v1\"\n\
             headers = { \"x-token\" = \"env:hunter2\" }\n\
             [unknown]\nkey = \"hunter2\"\n[[routes]]\nmodels = [\"a*\"]\nupstream = \"other\"\n",
        );
        let all = format!("{settings:?}");
        assert!(!all.contains("hunter2"), "{all}");
        for (key, expected) in [
            ("store.url", "postgres://db:5432/…"),
            ("redis.url", "rediss://cache:6379/…"),
            ("events.webhook_url", "https://hooks.example/…"),
            ("upstream.url", "https://api.example/v1…"),
            ("upstream.headers", "x-api-version"),
            ("upstreams.other.url", "https://other.example/openai/v1"),
            ("upstreams.other.headers", "x-token"),
            ("routes[0].models", "a*"),
            ("routes[0].upstream", "other"),
        ] {
            assert_eq!(value(&settings, key), expected, "{key}");
        }
    }

    #[test]
    fn urls_lose_their_secrets() {
        for (text, has_path, expected) in [
            ("", true, ""),
            ("http://127.0.0.1:8401/v1", true, "http://127.0.0.1:8401/v1"),
            ("https://a@b@host/x", true, "https://host/x"),
            ("https://host/x#y", true, "https://host/x…"),
            ("https://host", false, "https://host"),
            ("https://host/x", false, "https://host/…"),
            ("https://host?x", false, "https://host…"),
            ("host=db password=x", false, "…"),
        ] {
            assert_eq!(url(text, has_path), expected, "{text}");
        }
    }
}
