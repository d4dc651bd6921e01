//! Virtual keys: what they are and how they change. `secrets` creates and rotates them, `cache` looks them up
//! by secret.

mod cache;
mod rows;
mod secrets;
mod settings;

use serde::Serialize;

pub use cache::{Holder, KeyCache, KeyStatus};
pub use secrets::PREFIX;
pub use settings::{KeyChange, KeySettings, MAX_NAME_BYTES, MAX_PROFILE_BYTES, check_profile};

use crate::{Secret, StoreError};

/// Maximum number of keys in a store, including revoked ones.
pub(crate) const MAX_KEYS: u64 = 100_000;
/// Maximum size of a page.
pub const MAX_PAGE: usize = 1000;
/// Team and organisation of keys that name none.
pub const DEFAULT_NAME: &str = "default";

/// A virtual key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VirtualKey {
    /// `key_` and twelve hexadecimal digits.
    pub id: String,
    pub name: String,
    pub organisation: String,
    pub team: String,
    /// Empty for no particular user.
    pub user: String,
    #[serde(flatten)]
    pub settings: KeySettings,
    /// Milliseconds since 1970, as are the times below.
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
    pub revoked_ms: Option<u64>,
}

impl VirtualKey {
    /// Returns the key's status at `now_ms`.
    pub fn status(&self, now_ms: u64) -> KeyStatus {
        match (self.revoked_ms, self.expires_ms) {
            (Some(_), _) => KeyStatus::Revoked,
            (None, Some(end_ms)) if end_ms <= now_ms => KeyStatus::Expired,
            _ => KeyStatus::Live,
        }
    }
}

/// Public data of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SecretFacts {
    /// Its first and last characters.
    pub hint: String,
    pub created_ms: u64,
    /// Expiry, if earlier than the key's.
    pub expires_ms: Option<u64>,
}

/// A key and its secrets: two during a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyFacts {
    #[serde(flatten)]
    pub key: VirtualKey,
    pub secrets: Vec<SecretFacts>,
}

/// Key that was found by the hash of its secret.
#[derive(Debug)]
pub(crate) struct FoundKey {
    /// The stored hash, for a second comparison.
    pub hash: [u8; 32],
    pub key: VirtualKey,
    /// Expiry of the secret, independent of the key's.
    pub secret_expires_ms: Option<u64>,
}

/// A team.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TeamFacts {
    pub name: String,
    pub organisation: String,
    pub created_ms: u64,
    /// Number of its keys that are not revoked.
    pub keys: u64,
}

/// A key to create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewKey {
    /// [`DEFAULT_NAME`] if `None`; created if it does not exist.
    pub team: Option<String>,
    /// Organisation of a new team; for an existing team it must match, if given.
    pub organisation: Option<String>,
    /// Its name, which is required, and its permissions.
    pub change: KeyChange,
}

/// A key with a secret that is shown only now.
#[derive(Debug, Clone)]
pub struct Issued {
    pub facts: KeyFacts,
    pub secret: Secret,
}

impl Issued {
    /// Formats it as JSON, including the secret.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct IssuedJson<'a> {
            #[serde(flatten)]
            facts: &'a KeyFacts,
            secret: &'a str,
        }
        let shown = IssuedJson { facts: &self.facts, secret: self.secret.expose() };
        serde_json::to_string(&shown).expect("texts and numbers under fixed keys are JSON")
    }
}

/// Error of a key operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No key has this id.
    #[error("no key has this id")]
    Unknown,
    /// The key is revoked, permanently.
    #[error("the key is revoked permanently; create a new one")]
    Revoked,
    /// An invalid value.
    #[error("{field} {message}")]
    Invalid { field: &'static str, message: String },
    /// The team belongs to another organisation.
    #[error(
        "the team belongs to the organisation {organisation:?}; give that one or none, or another team"
    )]
    TeamElsewhere { organisation: String },
    /// The store holds the maximum number of keys.
    #[error("there are {MAX_KEYS} keys already, the maximum")]
    TooMany,
    #[error("the store: {0}")]
    Store(#[from] StoreError),
}

impl KeyError {
    fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }
}

/// Applies `change` to `key`; a refused change may leave it half changed.
pub(crate) fn change(key: &mut VirtualKey, change: &KeyChange) -> Result<(), KeyError> {
    if let Some(name) = &change.name {
        settings::check_name("name", name)?;
        key.name.clone_from(name);
    }
    if let Some(user) = &change.user {
        if !user.is_empty() {
            settings::check_name("user", user)?;
        }
        key.user.clone_from(user);
    }
    if let Some(expires_ms) = change.expires_ms {
        key.expires_ms = expires_ms;
    }
    change.apply(&mut key.settings)
}
