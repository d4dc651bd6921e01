//! Places to keep a store in while a test runs, and short ways to ask it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use weir::store::{Entry, Kind, Life, Store, StoreError, Tenant};

pub const ALICE: Tenant = Tenant([1; 16]);
pub const BOB: Tenant = Tenant([2; 16]);

/// A folder of its own that is gone when this is.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-store-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clear.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A kind with room for anything that a test stores.
pub const fn kind(name: &'static str) -> Kind {
    Kind { name, max_bytes: 1 << 30 }
}

pub fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

pub fn entry(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expires_ms: u64) -> Entry {
    Entry { key: bytes(key), value: bytes(value), expires_ms }
}

/// The value of one key, its life left as it is.
pub async fn value(
    store: &Store,
    tenant: Tenant,
    kind: Kind,
    key: impl AsRef<[u8]>,
    now_ms: u64,
) -> Option<Bytes> {
    let found = fetch(store, tenant, kind, &[key.as_ref()], now_ms, Life::Left).await;
    found.expect("it can be read").pop().expect("one key, one answer")
}

pub async fn fetch(
    store: &Store,
    tenant: Tenant,
    kind: Kind,
    keys: &[&[u8]],
    now_ms: u64,
    life: Life,
) -> Result<Vec<Option<Bytes>>, StoreError> {
    let keys = keys.iter().map(bytes).collect();
    store.fetch(tenant, kind, keys, now_ms, life).await
}
