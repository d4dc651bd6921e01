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
mod files;
pub mod keys;
pub mod latency;
pub mod ledger;
mod postgres;
pub mod rates;
pub mod redis;
mod secret;
mod sqlite;
mod wal;

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use backend::Backend;
pub use secret::Secret;

use backend::Internal;
use latency::Latencies;
use postgres::Postgres;
use sqlite::Sqlite;

/// Size of the secret that an instance keeps for itself.
pub const SECRET_BYTES: usize = 32;
/// Maximum size of a key.
pub const MAX_KEY_BYTES: usize = 256;
/// Overhead of an entry in addition to its key and value: its row and index entries.
pub const ENTRY_BYTES: u64 = 256;

/// Store settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// How long a commit may wait until it survives a power loss. It survives the end of the
    /// process at once.
    pub sync_interval: Duration,
    /// Maximum bytes in a process's write-ahead log that wait to be moved into the store.
    pub max_log_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { sync_interval: Duration::from_millis(100), max_log_bytes: 64 << 20 }
    }
}

/// Owner of data: a keyed fingerprint of the whole credential, never the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant(pub [u8; 16]);

impl Tenant {
    /// Callers without a credential. They cannot be distinguished, so nothing is stored for them.
    pub const ANONYMOUS: Self = Self([0; 16]);
}

/// Kind of values, with its size limit over all tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Name of its rows in the store.
    pub name: &'static str,
    /// Maximum total size of its keys and values, including [`ENTRY_BYTES`] for each.
    pub max_bytes: u64,
}

/// A value with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// At most [`MAX_KEY_BYTES`].
    pub key: Bytes,
    pub value: Bytes,
    /// Expiry, in milliseconds since 1970.
    pub expires_ms: u64,
}

impl Entry {
    /// Returns the entry's size as counted against its kind's limit.
    pub fn weight_bytes(&self) -> u64 {
        self.key.len() as u64 + self.value.len() as u64 + ENTRY_BYTES
    }
}

/// Effect of a read on an entry's expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// None.
    Left,
    /// Extends it to `lifetime_ms` from now, or at least half of that: an entry with more than half
    /// left is not rewritten.
    Renewed { lifetime_ms: u64 },
}

/// Location and health of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// In a file.
    File,
    /// In a database server.
    Server,
    /// In memory; lost when the process ends.
    Memory,
    /// Failing: the last write or sync of the file failed, or the server's last operation did.
    Failing,
}

/// Write activity of a store since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Successful writes: records of the write-ahead log, and transactions.
    pub writes: u64,
    pub failed_writes: u64,
    /// Queued writes.
    pub queued: u64,
    /// Bytes in this process's write-ahead log that wait to be moved into the tables.
    pub log_bytes: u64,
    /// Checkpoints that moved records of this process's log into the tables.
    pub checkpoints: u64,
    /// Size of the store's file, with SQLite's own log; 0 if it has none.
    pub file_bytes: u64,
    /// Durations of transactions; of statements on a server.
    pub transactions: Latencies,
    /// Durations of appending a record to the write-ahead log.
    pub appends: Latencies,
}

/// Error of a store operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// A key or an entry exceeds its limit; nothing of the batch was stored.
    TooLarge { bytes: u64, max_bytes: u64 },
    /// Others held the store for longer than the timeout.
    Busy,
    /// The disk is full.
    Full,
    /// Too many bytes of requests wait to be moved into the store; no more are accepted.
    Behind { bytes: u64 },
    /// Error of the back end.
    Failed(String),
    /// The store is closed.
    Closed,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max_bytes } => {
                write!(f, "{bytes} bytes exceed the maximum of {max_bytes}")
            }
            Self::Busy => f.write_str("another process holds the store"),
            Self::Full => f.write_str("the disk is full"),
            Self::Behind { bytes } => write!(
                f,
                "{bytes} bytes of requests wait to be moved into the store, which cannot be written"
            ),
            Self::Failed(message) => f.write_str(message),
            Self::Closed => f.write_str("the store is closed"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Error of opening a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// The file or its folder cannot be created or written.
    Unusable { message: String },
    /// Others held the file for longer than the timeout.
    Busy,
    /// The file belongs to another program.
    Foreign,
    /// A later version of weir wrote the file.
    Newer { version: i64, known: i64 },
    /// No random bytes for a secret, or no thread.
    System { message: String },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable { message } | Self::System { message } => f.write_str(message),
            Self::Busy => f.write_str("another process holds the file"),
            Self::Foreign => f.write_str("the file is not weir's"),
            Self::Newer { version, known } => write!(
                f,
                "the file is from a later version of weir (tables of version {version}; this one \
                 knows {known})"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

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

/// Rejects keys and entries above the limits.
fn check(kind: Kind, entries: &[Entry]) -> Result<(), StoreError> {
    for entry in entries {
        let limits = [
            (entry.key.len() as u64, MAX_KEY_BYTES as u64),
            (entry.weight_bytes(), kind.max_bytes),
        ];
        for (bytes, max_bytes) in limits {
            if bytes > max_bytes {
                return Err(StoreError::TooLarge { bytes, max_bytes });
            }
        }
    }
    Ok(())
}

/// Returns the time in milliseconds since 1970, for stored data only, never for sent data.
#[expect(
    clippy::disallowed_methods,
    reason = "an expiry that outlives the process needs wall-clock time"
)]
pub fn now_ms() -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 was never set.
    since_1970.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
