//! Places to keep a store in while a test runs, and short ways to ask it.

use std::path::PathBuf;

use bytes::Bytes;
use weir::store::{Entry, Kind, Life, Store, StoreError, Tenant};

pub use super::postgres::Postgres;
use crate::folder::Folder;

pub const ALICE: Tenant = Tenant([1; 16]);
pub const BOB: Tenant = Tenant([2; 16]);

/// Something that a store is kept in. An implementation is one of these and a line in
/// `in_every_place`.
pub trait Place {
    /// Whether there is such a place here; where there is none its tests are left out.
    fn is_there() -> bool {
        true
    }

    fn new() -> Self;

    /// One more handle on the store, as a further process would open it where it can.
    fn handle(&self) -> Store;
}

pub struct SqliteFile {
    path: PathBuf,
    _folder: Folder,
}

impl Place for SqliteFile {
    fn new() -> Self {
        let folder = Folder::new();
        Self { path: folder.file("weir.db"), _folder: folder }
    }

    fn handle(&self) -> Store {
        Store::open(&self.path).expect("the file can be written")
    }
}

pub struct SqliteMemory(Store);

impl Place for SqliteMemory {
    fn new() -> Self {
        Self(Store::in_memory().expect("there is memory"))
    }

    fn handle(&self) -> Store {
        self.0.clone()
    }
}

/// Where tests that are about no place keep their store: in a file, or on a server where
/// `WEIR_TEST_STORE` is `postgres`.
pub enum Somewhere {
    File(SqliteFile),
    Server(Postgres),
}

impl Somewhere {
    pub fn new() -> Self {
        match std::env::var("WEIR_TEST_STORE").as_deref() {
            Ok("postgres") => Self::Server(<Postgres as Place>::new()),
            _ => Self::File(SqliteFile::new()),
        }
    }

    pub fn handle(&self) -> Store {
        match self {
            Self::File(file) => file.handle(),
            Self::Server(server) => server.handle(),
        }
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
