//! Persistent store: values by tenant, kind and key, each with an expiry. One interface over all
//! back ends. Values are opaque here, and only [`now_ms`] reads a clock.
//!
//! Every kind has a size limit. Above it, the tenant with the most data of the kind loses its
//! oldest entries, so that no tenant can evict the few entries of another.

#![warn(unreachable_pub)]

pub mod backend;
pub mod budget;
pub mod budgets;
pub mod conversations;
pub mod counters;
mod error;
pub mod files;
mod health;
pub mod keys;
pub mod latency;
pub mod ledger;
mod postgres;
pub mod rates;
pub mod redis;
mod secret;
mod sql;
mod sqlite;
mod state;
mod values;
mod wal;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

pub use backend::Backend;
pub use error::{OpenError, StoreError, Stored};
pub use secret::{Secret, hex};
pub use state::{Activity, SECRET_BYTES, State, StoreOptions};
pub use values::{ENTRY_BYTES, Entry, Kind, Life, MAX_KEY_BYTES, Tenant, now_ms};

use backend::Internal;
use postgres::Postgres;
use sqlite::Sqlite;

/// A store. Clones share it.
///
/// Its operations are those of [`Backend`], to which it dereferences.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Internal>,
}

impl Store {
    /// Opens the file at `path`; creates it and its folder if missing. Several processes may share
    /// a file. Blocks while opening.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, StoreOptions::default())
    }

    /// As [`Self::open`], with `options`.
    pub fn open_with(path: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        Sqlite::open(path, options).map(Self::new)
    }

    /// Opens the PostgreSQL database at `url`; creates its tables if missing. Blocks while opening.
    pub fn connect(url: &str) -> Result<Self, OpenError> {
        Postgres::open(url).map(Self::new)
    }

    /// Validates a URL for [`Self::connect`] without connecting.
    pub fn check_url(url: &str) -> Result<(), OpenError> {
        Postgres::check_url(url)
    }

    /// Creates a store that is dropped with its last handle.
    pub fn in_memory() -> Result<Self, OpenError> {
        Sqlite::in_memory().map(Self::new)
    }

    fn new(backend: impl Internal + 'static) -> Self {
        Self { backend: Arc::new(backend) }
    }
}

impl Deref for Store {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.backend
    }
}
