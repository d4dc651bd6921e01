//! Key cache: maps secrets to their holders until any key changes. A change by any process applies
//! from the next request on, through the change counter.

use std::sync::Arc;

use moka::sync::Cache;

use super::VirtualKey;
use super::secrets::is_secret;
use crate::{Store, Stored, Tenant};

/// Maximum number of cached keys.
const MAX_CACHED: u64 = 10_000;

/// Status of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStatus {
    Live,
    Expired,
    Revoked,
}

/// Holder of a secret.
#[derive(Debug, Clone)]
pub struct Holder {
    pub key: Arc<VirtualKey>,
    /// Tenant of the key's team.
    pub tenant: Tenant,
    secret_expires_ms: Option<u64>,
}

impl Holder {
    /// Returns the status of the secret and its key at `now_ms`.
    pub fn status(&self, now_ms: u64) -> KeyStatus {
        match self.key.status(now_ms) {
            KeyStatus::Live if self.secret_expires_ms.is_some_and(|end_ms| end_ms <= now_ms) => {
                KeyStatus::Expired
            }
            status => status,
        }
    }
}

/// Cache that looks up keys by secret.
///
/// Secrets are looked up and compared by their keyed hashes, which an attacker cannot compute:
/// timing reveals nothing about a secret.
pub struct KeyCache {
    store: Store,
    hash_key: [u8; 32],
    /// By hash: the holder, and the change counter when it was read.
    cached: Cache<[u8; 32], (u64, Arc<Holder>)>,
}

impl KeyCache {
    /// Creates a cache of the keys in `store`.
    pub fn new(store: Store) -> Self {
        store.backend.watch_changes();
        Self { hash_key: store.hash_key(), store, cached: Cache::new(MAX_CACHED) }
    }

    /// Returns the holder of `secret`, valid or not, and the change counter of keys and budgets at
    /// that time; `None` if there is none.
    pub async fn find(&self, secret: &str) -> Stored<Option<(Arc<Holder>, u64)>> {
        if !is_secret(secret) {
            return Ok(None);
        }
        let hash = *blake3::keyed_hash(&self.hash_key, secret.as_bytes()).as_bytes();
        if let Some((read_at, holder)) = self.cached.get(&hash)
            && self.store.backend.is_current(read_at)
        {
            return Ok(Some((holder, read_at)));
        }
        let (version, found) = self.store.backend.key_by_hash(hash).await?;
        let Some(found) = found else { return Ok(None) };
        if blake3::Hash::from(found.hash) != blake3::Hash::from(hash) {
            return Ok(None);
        }
        let holder = Arc::new(Holder {
            tenant: self.store.team_tenant(&found.key.team),
            key: Arc::new(found.key),
            secret_expires_ms: found.secret_expires_ms,
        });
        self.cached.insert(hash, (version, Arc::clone(&holder)));
        Ok(Some((holder, version)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::super::{KeyChange, NewKey};
    use super::*;
    use crate::StoreOptions;
    use crate::sqlite::Sqlite;

    /// An event that affects a file.
    type Step = fn(&Path);

    /// A folder with a store's file, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            fs::create_dir(&folder).expect("the temporary directory can be written");
            Self(folder)
        }

        /// Opens a handle that shares only files with others, as another process would.
        fn open(&self) -> Store {
            Store::new(self.open_sqlite())
        }

        fn open_sqlite(&self) -> Sqlite {
            let path = self.0.join("weir.db");
            Sqlite::open(&path, StoreOptions::default()).expect("it can be made")
        }

        fn counter(&self) -> PathBuf {
            self.0.join("weir.db.keys")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // If removal fails, the system cleans up.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    async fn make(store: &Store) -> (String, String) {
        let change = KeyChange { name: Some("a key".to_owned()), ..KeyChange::default() };
        let new = NewKey { change, ..NewKey::default() };
        let issued = store.create_key(new, 1).await.expect("it can be made");
        (issued.facts.key.id, issued.secret.expose().to_owned())
    }

    async fn status(cache: &KeyCache, secret: &str) -> KeyStatus {
        let found = cache.find(secret).await.expect("it can be read");
        found.expect("the secret is somebody's").0.status(2)
    }

    #[tokio::test]
    async fn a_key_that_another_process_revokes_is_revoked_at_once_whatever_happens_to_the_counter()
    {
        let remove = |path: &Path| fs::remove_file(path).expect("it is there");
        let spoil = |path: &Path| fs::write(path, "x").expect("it can be written");
        let replace = |path: &Path| {
            let old = fs::read(path).expect("it is there");
            fs::remove_file(path).expect("it is there");
            fs::write(path, old).expect("it can be written");
        };
        let exaggerate = |path: &Path| fs::write(path, [0x7f; 8]).expect("it can be written");
        let steps: [(&str, Step); 5] = [
            ("left alone", |_| {}),
            ("removed", remove),
            ("spoilt", spoil),
            ("replaced", replace),
            ("too high", exaggerate),
        ];
        for (name, step) in steps {
            let folder = Folder::new(&format!("counter-{}", name.replace(' ', "-")));
            let (own, other) = (folder.open(), folder.open());
            let cache = KeyCache::new(own);
            let (id, secret) = make(&other).await;
            for _ in 0..3 {
                assert_eq!(status(&cache, &secret).await, KeyStatus::Live, "{name}");
            }
            step(&folder.counter());
            for _ in 0..3 {
                assert_eq!(status(&cache, &secret).await, KeyStatus::Live, "{name}");
            }
            other.revoke_key(&id, 1).await.expect("it is live");
            assert_eq!(status(&cache, &secret).await, KeyStatus::Revoked, "{name}");
        }
    }

    #[tokio::test]
    async fn an_outdated_counter_is_detected_and_not_trusted_again() {
        let folder = Folder::new("counter-behind");
        let (own, other) = (folder.open_sqlite(), folder.open());
        let cache = KeyCache::new(Store::new(own.clone()));
        let (id, secret) = make(&other).await;
        assert_eq!(status(&cache, &secret).await, KeyStatus::Live);
        let before = fs::read(folder.counter()).expect("it is there");
        other.revoke_key(&id, 1).await.expect("it is live");
        // As if the other process ended before it could publish.
        fs::write(folder.counter(), before).expect("it can be written");
        // The interval until the next read of the store has passed.
        own.changes().check_now();
        for _ in 0..3 {
            assert_eq!(status(&cache, &secret).await, KeyStatus::Revoked);
        }
        assert_eq!(own.counted_changes(), None, "it is known to be behind");
        drop(folder.open());
        assert_eq!(own.counted_changes(), own.stored_changes(), "opening the store repairs it");
    }

    #[tokio::test]
    async fn in_memory_a_change_counts_at_once() {
        let own = Sqlite::in_memory().expect("there is memory");
        let store = Store::new(own.clone());
        let cache = KeyCache::new(store.clone());
        let (id, secret) = make(&store).await;
        assert_eq!(status(&cache, &secret).await, KeyStatus::Live);
        assert_eq!(own.counted_changes(), Some(1));
        store.revoke_key(&id, 1).await.expect("it is live");
        assert_eq!(status(&cache, &secret).await, KeyStatus::Revoked);
    }

    #[cfg(unix)]
    #[test]
    fn the_counter_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("counter-private");
        let mode = || fs::metadata(folder.counter()).expect("it is there").permissions().mode();
        drop(folder.open());
        assert_eq!(mode() & 0o777, 0o600);
        let open_to_all = fs::Permissions::from_mode(0o666);
        fs::set_permissions(folder.counter(), open_to_all).expect("it is ours");
        drop(folder.open());
        assert_eq!(mode() & 0o777, 0o600);
    }
}
