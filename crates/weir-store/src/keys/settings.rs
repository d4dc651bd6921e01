//! Permissions of a virtual key, and validation of changes to them. Pure; stores nothing.

use serde::{Deserialize, Deserializer, Serialize};

use super::KeyError;
use crate::budget::scope::EACH;

/// Maximum bytes of a name: of a key, team, organisation, user or policy.
pub const MAX_NAME_BYTES: usize = 100;
/// Maximum bytes of a model pattern.
const MAX_PATTERN_BYTES: usize = 256;
/// Maximum number of patterns, and of policies, per key.
const MAX_LISTED: usize = 100;
/// Maximum size of a profile text.
pub const MAX_PROFILE_BYTES: usize = 16 << 10;
/// Maximum value of a limit; arithmetic on it cannot overflow.
const MAX_LIMIT: u64 = 1_000_000_000_000;

/// Permissions of a virtual key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeySettings {
    /// Allowed models; `*` stands for any characters. Empty: all.
    pub models: Vec<String>,
    /// Policies that its callers may choose by header. Empty: those of `context.allowed_policies`.
    pub policies: Vec<String>,
    /// Policy of its requests that choose none.
    pub policy: Option<String>,
    /// Whether it may use routes that weir does not meter, and data stored at the provider.
    pub passthrough: bool,
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    /// Whether `tokens_per_minute` leaves out tokens that the provider read from its cache. Left out if
    /// not, as earlier versions of weir know no such member.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cached_tokens_free: bool,
    /// Maximum concurrent requests.
    pub max_concurrent: Option<u64>,
    /// Number of equal calls with equal results in a row from which its requests are refused. Left out if there
    /// is none, as earlier versions of weir know no such member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_repeats: Option<u64>,
    /// Whether its callers may keep conversations; `None` as configured. Left out then, as earlier
    /// versions of weir know no such member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversations: Option<bool>,
    /// Text put after the system text of its requests; `None` as configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// Change of a key: `None` keeps a value, `Some(None)` removes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyChange {
    pub name: Option<String>,
    pub user: Option<String>,
    pub models: Option<Vec<String>>,
    pub policies: Option<Vec<String>>,
    #[serde(deserialize_with = "present")]
    pub policy: Option<Option<String>>,
    pub passthrough: Option<bool>,
    #[serde(deserialize_with = "present")]
    pub requests_per_minute: Option<Option<u64>>,
    #[serde(deserialize_with = "present")]
    pub tokens_per_minute: Option<Option<u64>>,
    pub cached_tokens_free: Option<bool>,
    #[serde(deserialize_with = "present")]
    pub max_concurrent: Option<Option<u64>>,
    #[serde(deserialize_with = "present")]
    pub max_repeats: Option<Option<u64>>,
    #[serde(deserialize_with = "present")]
    pub conversations: Option<Option<bool>>,
    #[serde(deserialize_with = "present")]
    pub profile: Option<Option<String>>,
    /// Expiry, in milliseconds since 1970.
    #[serde(deserialize_with = "present")]
    pub expires_ms: Option<Option<u64>>,
}

/// Deserializes a member that is present, possibly as `null`.
fn present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

impl KeyChange {
    /// Refuses policies that the configuration does not have.
    ///
    /// # Errors
    /// `KeyError::Invalid` with the message that `read_name` returns for an unknown name.
    pub fn check_policies(
        &self,
        read_name: impl Fn(&str) -> Result<String, String>,
    ) -> Result<(), KeyError> {
        let chosen = self.policy.iter().flatten().map(|name| ("policy", name));
        let allowed = self.policies.iter().flatten().map(|name| ("policies", name));
        for (field, name) in chosen.chain(allowed) {
            read_name(name).map_err(|message| KeyError::Invalid {
                field,
                message: format!("does not name a policy: {message}"),
            })?;
        }
        Ok(())
    }

    /// Applies the change to `settings`. If a value is invalid, nothing changes.
    pub fn apply(&self, settings: &mut KeySettings) -> Result<(), KeyError> {
        let mut changed = settings.clone();
        set(&mut changed.models, &self.models);
        set(&mut changed.policies, &self.policies);
        set(&mut changed.policy, &self.policy);
        set(&mut changed.passthrough, &self.passthrough);
        set(&mut changed.requests_per_minute, &self.requests_per_minute);
        set(&mut changed.tokens_per_minute, &self.tokens_per_minute);
        set(&mut changed.cached_tokens_free, &self.cached_tokens_free);
        set(&mut changed.max_concurrent, &self.max_concurrent);
        set(&mut changed.max_repeats, &self.max_repeats);
        set(&mut changed.conversations, &self.conversations);
        set(&mut changed.profile, &self.profile);
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
    if let Some(profile) = &settings.profile {
        check_profile(profile).map_err(|message| KeyError::invalid("profile", message))?;
    }
    for (field, limit) in [
        ("requests_per_minute", settings.requests_per_minute),
        ("tokens_per_minute", settings.tokens_per_minute),
        ("max_concurrent", settings.max_concurrent),
        ("max_repeats", settings.max_repeats),
    ] {
        if limit.is_some_and(|limit| !(1..=MAX_LIMIT).contains(&limit)) {
            let message = format!("is not from 1 to {MAX_LIMIT}; omit it for no limit");
            return Err(KeyError::invalid(field, message));
        }
    }
    Ok(())
}

/// Checks a text that is put after the system text of requests.
///
/// # Errors
/// A message if it is blank, too large or holds control characters other than line breaks and tabs.
pub fn check_profile(text: &str) -> Result<(), String> {
    let is_odd = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t');
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > MAX_PROFILE_BYTES {
        let bytes = text.len();
        return Err(format!("has {bytes} bytes; a profile has at most {MAX_PROFILE_BYTES}"));
    }
    match text.chars().any(is_odd) {
        true => Err("has control characters".to_owned()),
        false => Ok(()),
    }
}

/// Rejects names that a table, a log or a header could not show unchanged.
pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), KeyError> {
    if name == EACH {
        return Err(KeyError::invalid(field, "is *, which stands for each member in budgets"));
    }
    check_text(field, name, MAX_NAME_BYTES)
}

fn check_text(field: &'static str, text: &str, max_bytes: usize) -> Result<(), KeyError> {
    let message = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > max_bytes {
        format!("has more than {max_bytes} bytes")
    } else if text.trim() != text || text.chars().any(char::is_control) {
        "has control characters, or spaces at the start or end".to_owned()
    } else {
        return Ok(());
    };
    Err(KeyError::invalid(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_members_stay_and_null_removes() {
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
    fn an_invalid_change_is_refused_and_changes_nothing() {
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
            (r#"{"profile":" \n"}"#.to_owned(), "profile"),
            (r#"{"profile":"a\u0000"}"#.to_owned(), "profile"),
            (format!(r#"{{"profile":"{}"}}"#, "a".repeat(MAX_PROFILE_BYTES + 1)), "profile"),
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
