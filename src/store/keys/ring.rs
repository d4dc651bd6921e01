//! Who a secret stands for, remembered for as long as no key changes. A change by any process counts
//! from the next request on: each asks the store how often keys were changed.

use std::sync::Arc;

use moka::sync::Cache;

use super::{VirtualKey, is_secret, rows};
use crate::store::{Backend, Store, StoreError, Tenant};

/// How many keys are remembered.
const MAX_REMEMBERED: u64 = 10_000;

/// Whether a key is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Live,
    Expired,
    Revoked,
}

/// Who a secret stands for.
#[derive(Debug, Clone)]
pub struct Holder {
    pub key: Arc<VirtualKey>,
    /// The key's team.
    pub tenant: Tenant,
    secret_expires_ms: Option<u64>,
}

impl Holder {
    /// Whether the secret and its key are good at `now_ms`.
    pub fn standing(&self, now_ms: u64) -> Standing {
        match self.key.standing(now_ms) {
            Standing::Live if self.secret_expires_ms.is_some_and(|end_ms| end_ms <= now_ms) => {
                Standing::Expired
            }
            standing => standing,
        }
    }
}

/// Finds keys by their secrets.
///
/// Secrets are looked for and compared by their hashes under a key of the store's, which nobody who
/// guesses knows: how long that takes tells nothing about a secret.
pub struct KeyRing {
    store: Store,
    /// By hash: a holder, and how often keys had been changed when it was read.
    remembered: Cache<[u8; 32], (u64, Arc<Holder>)>,
}

impl KeyRing {
    /// A ring of the keys in `store`.
    pub fn new(store: Store) -> Self {
        Self { store, remembered: Cache::new(MAX_REMEMBERED) }
    }

    /// Who `secret` stands for, whether or not that is good; `None` where it is nobody's.
    pub async fn find(&self, secret: &str) -> Result<Option<Arc<Holder>>, StoreError> {
        if !is_secret(secret) {
            return Ok(None);
        }
        let hash = self.store.hash(secret);
        if let Some((read_at, holder)) = self.remembered.get(&hash)
            && self.version() == Some(read_at)
        {
            return Ok(Some(holder));
        }
        let wanted = hash;
        let work = move |connection: &rusqlite::Connection| {
            // One statement after the other may see a change between them: then the version is the
            // older one, and the key is read again next time.
            Ok((rows::version(connection)?, rows::by_hash(connection, &wanted)?))
        };
        let (version, held) = self.store.read(work).await?;
        let Some(held) = held else { return Ok(None) };
        if blake3::Hash::from(held.hash) != blake3::Hash::from(hash) {
            return Ok(None);
        }
        let holder = Arc::new(Holder {
            tenant: self.store.team_tenant(&held.key.team),
            key: Arc::new(held.key),
            secret_expires_ms: held.secret_expires_ms,
        });
        self.remembered.insert(hash, (version, Arc::clone(&holder)));
        Ok(Some(holder))
    }

    /// How often keys were changed; `None` where that would have to be waited for.
    fn version(&self) -> Option<u64> {
        let Backend::Sqlite(sqlite) = &self.store.backend;
        sqlite.glance(rows::version)
    }
}
