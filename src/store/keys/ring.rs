//! Who a secret stands for, remembered for as long as no key changes. A change by any process counts
//! from the next request on: each looks at the mark that all changes leave.

use std::sync::Arc;

use moka::sync::Cache;

use super::changes::Changes;
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
    hash_key: [u8; 32],
    /// By hash: a holder, and how often keys had been changed when it was read.
    remembered: Cache<[u8; 32], (u64, Arc<Holder>)>,
    changes: Changes,
}

impl KeyRing {
    /// A ring of the keys in `store`.
    pub fn new(store: Store) -> Self {
        Self {
            hash_key: store.hash_key(),
            changes: Changes::new(store.clone()),
            store,
            remembered: Cache::new(MAX_REMEMBERED),
        }
    }

    /// Who `secret` stands for, whether or not that is good, and how many changes of keys and budgets
    /// there had been then; `None` where it is nobody's.
    pub async fn find(&self, secret: &str) -> Result<Option<(Arc<Holder>, u64)>, StoreError> {
        if !is_secret(secret) {
            return Ok(None);
        }
        let hash = *blake3::keyed_hash(&self.hash_key, secret.as_bytes()).as_bytes();
        if let Some((read_at, holder)) = self.remembered.get(&hash)
            && self.changes.is_last(read_at)
        {
            return Ok(Some((holder, read_at)));
        }
        let (version, held) = match &self.store.backend {
            Backend::Sqlite(sqlite) => {
                let work = move |connection: &rusqlite::Connection| {
                    // One statement after the other may see a change between them: then the version
                    // is the older one, and the key is read again next time.
                    Ok((rows::version(connection)?, rows::by_hash(connection, &hash)?))
                };
                sqlite.read(work).await?
            }
            Backend::Postgres(postgres) => postgres.key_by_hash(hash).await?,
        };
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
        Ok(Some((holder, version)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::super::{KeyChange, NewKey};
    use super::*;

    /// Something that may become of a file.
    type Step = fn(&Path);

    /// A folder with a store's file, gone in the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            fs::create_dir(&folder).expect("the temporary directory can be written");
            Self(folder)
        }

        /// A handle that shares nothing but files with others, as another process has.
        fn open(&self) -> Store {
            Store::open(&self.0.join("weir.db")).expect("it can be made")
        }

        fn mark(&self) -> PathBuf {
            self.0.join("weir.db.keys")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // What cannot be removed is the system's to clear.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    async fn make(store: &Store) -> (String, String) {
        let change = KeyChange { name: Some("a key".to_owned()), ..KeyChange::default() };
        let new = NewKey { change, ..NewKey::default() };
        let issued = store.create_key(new, 1).await.expect("it can be made");
        (issued.facts.key.id, issued.secret.expose().to_owned())
    }

    async fn standing(ring: &KeyRing, secret: &str) -> Standing {
        let found = ring.find(secret).await.expect("it can be read");
        found.expect("the secret is somebody's").0.standing(2)
    }

    #[tokio::test]
    async fn what_another_revokes_is_revoked_at_once_whatever_becomes_of_the_mark() {
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
            let folder = Folder::new(&format!("mark-{}", name.replace(' ', "-")));
            let (own, other) = (folder.open(), folder.open());
            let ring = KeyRing::new(own);
            let (id, secret) = make(&other).await;
            for _ in 0..3 {
                assert_eq!(standing(&ring, &secret).await, Standing::Live, "{name}");
            }
            step(&folder.mark());
            for _ in 0..3 {
                assert_eq!(standing(&ring, &secret).await, Standing::Live, "{name}");
            }
            other.revoke_key(&id, 1).await.expect("it is live");
            assert_eq!(standing(&ring, &secret).await, Standing::Revoked, "{name}");
        }
    }

    #[tokio::test]
    async fn a_mark_that_stayed_behind_is_noticed_and_not_trusted_again() {
        let folder = Folder::new("mark-behind");
        let ring = KeyRing::new(folder.open());
        let other = folder.open();
        let (id, secret) = make(&other).await;
        assert_eq!(standing(&ring, &secret).await, Standing::Live);
        let before = fs::read(folder.mark()).expect("it is there");
        other.revoke_key(&id, 1).await.expect("it is live");
        // As if the other had ended before it could tell.
        fs::write(folder.mark(), before).expect("it can be written");
        // The time until the store is asked has passed.
        ring.changes.ask_now();
        for _ in 0..3 {
            assert_eq!(standing(&ring, &secret).await, Standing::Revoked);
        }
        assert_eq!(ring.changes.marked(), None, "it is known to be behind");
        drop(folder.open());
        assert_eq!(
            ring.changes.marked(),
            ring.changes.version(),
            "whoever opens the store mends it"
        );
    }

    #[tokio::test]
    async fn in_memory_a_change_counts_at_once() {
        let store = Store::in_memory().expect("there is memory");
        let ring = KeyRing::new(store.clone());
        let (id, secret) = make(&store).await;
        assert_eq!(standing(&ring, &secret).await, Standing::Live);
        assert_eq!(ring.changes.marked(), Some(1));
        store.revoke_key(&id, 1).await.expect("it is live");
        assert_eq!(standing(&ring, &secret).await, Standing::Revoked);
    }

    #[cfg(unix)]
    #[test]
    fn the_mark_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("mark-private");
        let mode = || fs::metadata(folder.mark()).expect("it is there").permissions().mode();
        drop(folder.open());
        assert_eq!(mode() & 0o777, 0o600);
        let open_to_all = fs::Permissions::from_mode(0o666);
        fs::set_permissions(folder.mark(), open_to_all).expect("it is ours");
        drop(folder.open());
        assert_eq!(mode() & 0o777, 0o600);
    }
}
