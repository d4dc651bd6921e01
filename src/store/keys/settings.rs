//! What a virtual key may do, how it is changed, and what of it is refused. Pure; stores nothing.

use serde::{Deserialize, Deserializer, Serialize};

use super::KeyError;
use crate::budget::scope::EACH;
use crate::config::Policies;

/// The most bytes of a name: a key's, a team's, an organisation's, a user's, a policy's.
pub const MAX_NAME_BYTES: usize = 100;
/// The most bytes of a pattern of models.
const MAX_PATTERN_BYTES: usize = 256;
/// The most patterns, and the most policies, of one key.
const MAX_LISTED: usize = 100;
/// The most that a limit may say; arithmetic on it cannot overflow.
const MAX_LIMIT: u64 = 1_000_000_000_000;

/// What a virtual key may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeySettings {
    /// Models it may use; `*` stands for any characters. Empty: all.
    pub models: Vec<String>,
    /// Policies its callers may choose by header. Empty: those of `context.allowed_policies`.
    pub policies: Vec<String>,
    /// The policy of its requests that choose none.
    pub policy: Option<String>,
    /// Whether it may use routes that weir does not meter, and what is stored at the provider.
    pub passthrough: bool,
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    /// Requests at once.
    pub max_concurrent: Option<u64>,
}

/// What is to be changed of a key: `None` leaves it, `Some(None)` takes it away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyChange {
    pub name: Option<String>,
    pub user: Option<String>,
    pub models: Option<Vec<String>>,
    pub policies: Option<Vec<String>>,
    #[serde(deserialize_with = "given")]
    pub policy: Option<Option<String>>,
    pub passthrough: Option<bool>,
    #[serde(deserialize_with = "given")]
    pub requests_per_minute: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    pub tokens_per_minute: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    pub max_concurrent: Option<Option<u64>>,
    /// When the key ends, in milliseconds since 1970.
    #[serde(deserialize_with = "given")]
    pub expires_ms: Option<Option<u64>>,
}

/// A member that is there, perhaps as `null`.
fn given<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

impl KeyChange {
    /// Refuses policies that the configuration does not have.
    pub fn check_policies(&self, known: &Policies) -> Result<(), KeyError> {
        let chosen = self.policy.iter().flatten().map(|name| ("policy", name));
        let allowed = self.policies.iter().flatten().map(|name| ("policies", name));
        for (field, name) in chosen.chain(allowed) {
            known.read_name(name).map_err(|message| KeyError::Invalid {
                field,
                message: format!("names no policy: {message}"),
            })?;
        }
        Ok(())
    }

    /// Changes `settings`. Refuses what no key may have; then nothing is changed.
    pub fn apply(&self, settings: &mut KeySettings) -> Result<(), KeyError> {
        let mut changed = settings.clone();
        set(&mut changed.models, &self.models);
        set(&mut changed.policies, &self.policies);
        set(&mut changed.policy, &self.policy);
        set(&mut changed.passthrough, &self.passthrough);
        set(&mut changed.requests_per_minute, &self.requests_per_minute);
        set(&mut changed.tokens_per_minute, &self.tokens_per_minute);
        set(&mut changed.max_concurrent, &self.max_concurrent);
        check(&changed)?;
        *settings = changed;
        Ok(())
    }
}

fn set<T: Clone>(place: &mut T, change: &Option<T>) {
    if let Some(value) = change {
        place.clone_from(value);
    }
}

fn check(settings: &KeySettings) -> Result<(), KeyError> {
    for (field, list, max_bytes) in [
        ("models", &settings.models, MAX_PATTERN_BYTES),
        ("policies", &settings.policies, MAX_NAME_BYTES),
    ] {
        if list.len() > MAX_LISTED {
            return Err(KeyError::invalid(field, format!("lists more than {MAX_LISTED}")));
        }
        list.iter().try_for_each(|text| check_text(field, text, max_bytes))?;
    }
    if let Some(policy) = &settings.policy {
        check_text("policy", policy, MAX_NAME_BYTES)?;
    }
    for (field, limit) in [
        ("requests_per_minute", settings.requests_per_minute),
        ("tokens_per_minute", settings.tokens_per_minute),
        ("max_concurrent", settings.max_concurrent),
    ] {
        if limit.is_some_and(|limit| !(1..=MAX_LIMIT).contains(&limit)) {
            let message = format!("is not from 1 to {MAX_LIMIT}; none is no limit");
            return Err(KeyError::invalid(field, message));
        }
    }
    Ok(())
}

/// Refuses names that a table, a log or a header could not show as they are.
pub fn check_name(field: &'static str, name: &str) -> Result<(), KeyError> {
    if name == EACH {
        return Err(KeyError::invalid(field, "is *, which stands for each by itself in budgets"));
    }
    check_text(field, name, MAX_NAME_BYTES)
}

fn check_text(field: &'static str, text: &str, max_bytes: usize) -> Result<(), KeyError> {
    let message = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > max_bytes {
        format!("has more than {max_bytes} bytes")
    } else if text.trim() != text || text.chars().any(char::is_control) {
        "has control characters, or spaces at an end".to_owned()
    } else {
        return Ok(());
    };
    Err(KeyError::invalid(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays_and_null_takes_away() {
        let mut settings = KeySettings {
            requests_per_minute: Some(5),
            max_concurrent: Some(2),
            passthrough: true,
            ..KeySettings::default()
        };
        let change = r#"{"requests_per_minute":null,"tokens_per_minute":7,"models":["gpt-4o*"]}"#;
        let change: KeyChange = serde_json::from_str(change).expect("a change");
        change.apply(&mut settings).expect("it is allowed");
        let expected = KeySettings {
            models: vec!["gpt-4o*".to_owned()],
            tokens_per_minute: Some(7),
            max_concurrent: Some(2),
            passthrough: true,
            ..KeySettings::default()
        };
        assert_eq!(settings, expected);
        assert!(serde_json::from_str::<KeyChange>(r#"{"model":["a"]}"#).is_err());
    }

    #[test]
    fn what_no_key_may_have_is_refused_and_changes_nothing() {
        let long = "a".repeat(MAX_PATTERN_BYTES + 1);
        for (change, field) in [
            (r#"{"requests_per_minute":0}"#.to_owned(), "requests_per_minute"),
            (r#"{"tokens_per_minute":1000000000001}"#.to_owned(), "tokens_per_minute"),
            (r#"{"max_concurrent":18446744073709551615}"#.to_owned(), "max_concurrent"),
            (r#"{"models":[""]}"#.to_owned(), "models"),
            (format!(r#"{{"models":["{long}"]}}"#), "models"),
            (format!(r#"{{"models":{:?}}}"#, ["a"; MAX_LISTED + 1]), "models"),
            (r#"{"policies":[" a"]}"#.to_owned(), "policies"),
            (r#"{"policy":"a\nb"}"#.to_owned(), "policy"),
        ] {
            let read: KeyChange = serde_json::from_str(&change).expect("a change");
            let mut settings = KeySettings::default();
            let refused = read.apply(&mut settings);
            let found = matches!(&refused, Err(KeyError::Invalid { field: f, .. }) if *f == field);
            assert!(found, "{change}: {refused:?}");
            assert_eq!(settings, KeySettings::default());
        }
    }
}
