//! Secrets of virtual keys: made here, returned once, and kept as hashes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{
    DEFAULT_NAME, Issued, KeyError, KeySettings, NewKey, SecretFacts, VirtualKey, change, settings,
};
use crate::secret::{hex, random};
use crate::{Secret, Store, StoreError, Tenant};

/// Prefix of every secret.
pub const PREFIX: &str = "sk-weir-";
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Characters of a secret after [`PREFIX`].
const SECRET_CHARACTERS: usize = 43;
/// Visible characters of a secret, to distinguish it from others.
const HINT_CHARACTERS: usize = 4;
/// Random bytes of an id.
const ID_BYTES: usize = 6;
impl Store {
    /// Creates a key, with its team and organisation if they do not exist.
    pub async fn create_key(&self, new: NewKey, now_ms: u64) -> Result<Issued, KeyError> {
        let mut key = VirtualKey {
            id: random_id()?,
            name: String::new(),
            organisation: new.organisation.clone().unwrap_or_default(),
            team: new.team.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            user: String::new(),
            settings: KeySettings::default(),
            created_ms: now_ms,
            expires_ms: None,
            revoked_ms: None,
        };
        if new.change.name.is_none() {
            return Err(KeyError::invalid("name", "is missing"));
        }
        change(&mut key, &new.change)?;
        settings::check_name("team", &key.team)?;
        if let Some(organisation) = &new.organisation {
            settings::check_name("organisation", organisation)?;
        }
        let secret = random_secret()?;
        let (hash, hint) = (self.hash(&secret), hint(&secret));
        let facts = SecretFacts { hint, created_ms: now_ms, expires_ms: None };
        let facts = self.backend.insert_key(key, hash, facts).await?;
        Ok(Issued { facts, secret: Secret::new(secret) })
    }

    /// Gives a key a new secret. Its current secrets stay valid for `overlap_ms`; if it has two,
    /// the older ends at once.
    pub async fn rotate_key(
        &self,
        id: &str,
        overlap_ms: u64,
        now_ms: u64,
    ) -> Result<Issued, KeyError> {
        let secret = random_secret()?;
        let (hash, hint) = (self.hash(&secret), hint(&secret));
        let facts = SecretFacts { hint, created_ms: now_ms, expires_ms: None };
        let end_ms = now_ms.saturating_add(overlap_ms);
        let facts = self.backend.insert_secret(id, hash, facts, end_ms).await?;
        Ok(Issued { facts, secret: Secret::new(secret) })
    }

    /// Returns the tenant of a team.
    pub fn team_tenant(&self, team: &str) -> Tenant {
        let key = blake3::derive_key("weir 1 the tenant that is a team", &self.secret());
        let mut tenant = Tenant([0; 16]);
        blake3::Hasher::new_keyed(&key).update(team.as_bytes()).finalize_xof().fill(&mut tenant.0);
        tenant
    }

    /// Returns the hash that identifies a secret. It is useless without the store's own secret.
    fn hash(&self, secret: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.hash_key(), secret.as_bytes()).as_bytes()
    }

    /// Returns the key of the hash.
    pub(super) fn hash_key(&self) -> [u8; 32] {
        blake3::derive_key("weir 1 the hash of a virtual key", &self.secret())
    }
}

/// Returns whether `text` has the form of a secret. Other texts match no key and are not looked up.
pub(super) fn is_secret(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|rest| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        rest.len() == SECRET_CHARACTERS && rest.bytes().all(plain)
    })
}

fn random_secret() -> Result<String, KeyError> {
    let bytes = random::<SECRET_BYTES>().map_err(StoreError::from)?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

fn random_id() -> Result<String, KeyError> {
    let bytes = random::<ID_BYTES>().map_err(StoreError::from)?;
    Ok(format!("key_{}", hex(&bytes)))
}

fn hint(secret: &str) -> String {
    let end = secret.len().saturating_sub(HINT_CHARACTERS);
    format!("{PREFIX}…{}", secret.get(end..).unwrap_or_default())
}
