//! Places to keep a store in during a test, and helpers to read it.

use std::path::PathBuf;

use bytes::Bytes;
use weir_store::{Entry, Kind, Life, Store, StoreError, Tenant};

pub use super::postgres::Postgres;
use crate::folder::Folder;

pub const ALICE: Tenant = Tenant([1; 16]);
pub const BOB: Tenant = Tenant([2; 16]);

/// Place that keeps a store. An implementation needs this trait and a line in `in_every_place`.
pub trait Place {
    fn new() -> Self;

    /// Opens another handle on the store, as another process would if possible.
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

/// Place of the store for tests that do not depend on it: a file, or a server if `WEIR_TEST_STORE`
/// is `postgres`.
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

/// Returns a kind with room for everything that a test stores.
pub const fn kind(name: &'static str) -> Kind {
    Kind { name, max_bytes: 1 << 30 }
}

pub fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

pub fn entry(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expires_ms: u64) -> Entry {
    Entry { key: bytes(key), value: bytes(value), expires_ms }
}

/// Reads the value of one key without extending its life.
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
