//! What outlives a request: values by tenant, kind and key, each with the moment it ends. One seam,
//! whatever keeps them; knows nothing of what the values mean, and reads no clock but in [`now_ms`].
//!
//! Every kind has a limit on its weight. Where it is passed, the tenant that holds most of the kind
//! loses what is oldest, so that nobody can push out the little that another keeps.

pub mod budgets;
pub mod counters;
mod files;
pub mod keys;
pub mod ledger;
mod looking;
mod postgres;
pub mod rates;
mod readers;
pub mod redis;
mod schema;
mod sqlite;
mod sync;
mod writer;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use postgres::Postgres;
use sqlite::Sqlite;

/// Bytes of the secret that an instance keeps for itself.
pub const SECRET_BYTES: usize = 32;
/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 256;
/// What one entry weighs beside its key and value: its row and its places in the indexes.
pub const ENTRY_BYTES: u64 = 256;

/// How a store is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// How long what is committed may wait until it survives a loss of power as well. It survives
    /// the end of the process at once.
    pub sync_interval: Duration,
    /// The most bytes of a process's log of requests that wait to be moved into the store.
    pub max_log_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { sync_interval: Duration::from_millis(100), max_log_bytes: 64 << 20 }
    }
}

/// Whose something is: a keyed fingerprint of the whole credential, never the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant(pub [u8; 16]);

impl Tenant {
    /// All who bring no credential. They cannot be told apart, so nothing is stored for them.
    pub const ANONYMOUS: Self = Self([0; 16]);
}

/// A kind of values, with the most that all tenants together may keep of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// What its rows are called in the store.
    pub name: &'static str,
    /// The most that its keys and values weigh together, [`ENTRY_BYTES`] included for each.
    pub max_bytes: u64,
}

/// One value and what it is found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// At most [`MAX_KEY_BYTES`].
    pub key: Bytes,
    pub value: Bytes,
    /// From when on it is no longer there, in milliseconds since 1970.
    pub expires_ms: u64,
}

impl Entry {
    /// What the entry counts against its kind's limit.
    pub fn weight_bytes(&self) -> u64 {
        self.key.len() as u64 + self.value.len() as u64 + ENTRY_BYTES
    }
}

/// What reading does to the life of what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Nothing.
    Left,
    /// It lasts from now on for as long as this, or at least for half of it: one with more than
    /// half before it is not written again.
    Renewed { lifetime_ms: u64 },
}

/// Where a store keeps its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// In a file.
    File,
    /// In a database server.
    Server,
    /// In memory; all is gone when the process ends.
    Memory,
    /// In a file that the last write did not reach, or that does not reach the disk; in a server that
    /// did not do what it was asked last.
    Failing,
}

/// How much a store was written to since the process began, and what waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Writes that succeeded: frames of the log of requests and transactions.
    pub writes: u64,
    pub failed_writes: u64,
    /// Pieces of work that wait to be written.
    pub queued: u64,
    /// Bytes of this process's log of requests that wait to be moved into the tables.
    pub log_bytes: u64,
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// A key or an entry above its limit; nothing of the batch was stored.
    TooLarge { bytes: u64, max_bytes: u64 },
    /// Others have held the store for longer than is waited.
    Busy,
    /// There is no room on the disk.
    Full,
    /// So many bytes are written down of requests and could not be moved into the store that there
    /// are to be no more.
    Behind { bytes: u64 },
    /// What the back end said.
    Failed(String),
    /// The store has ended.
    Closed,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max_bytes } => {
                write!(f, "{bytes} bytes are more than the {max_bytes} there may be")
            }
            Self::Busy => f.write_str("another process holds the store"),
            Self::Full => f.write_str("the disk is full"),
            Self::Behind { bytes } => write!(
                f,
                "{bytes} bytes of requests wait to be moved into the store, which cannot be written"
            ),
            Self::Failed(said) => f.write_str(said),
            Self::Closed => f.write_str("the store has ended"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Why a store cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// The file's folder or the file itself cannot be made or written.
    Unusable { said: String },
    /// Others have held the file for longer than is waited.
    Busy,
    /// Something else's file.
    Foreign,
    /// A later weir has written the file.
    Newer { version: i64, known: i64 },
    /// No random bytes for a secret, or no thread.
    System { said: String },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable { said } | Self::System { said } => f.write_str(said),
            Self::Busy => f.write_str("another process holds the file"),
            Self::Foreign => f.write_str("the file is not weir's"),
            Self::Newer { version, known } => write!(
                f,
                "the file is of a later weir (version {version} of its tables; this one knows {known})"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

/// A store. Clones are handles on the same one.
#[derive(Clone)]
pub struct Store {
    backend: Backend,
}

/// What keeps the values. A further one is an arm here and passes the same conformance suite.
#[derive(Clone)]
enum Backend {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens the file at `path`, and makes it and its folder where they are missing. Several
    /// processes may use one file. Blocks while the file is opened.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, StoreOptions::default())
    }

    /// As [`Self::open`], kept as `options` say.
    pub fn open_with(path: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        Ok(Self { backend: Backend::Sqlite(Sqlite::open(path, options)?) })
    }

    /// Opens the PostgreSQL database that `url` names, and makes its tables where they are missing.
    /// Blocks while it is opened.
    pub fn connect(url: &str) -> Result<Self, OpenError> {
        Ok(Self { backend: Backend::Postgres(Postgres::open(url)?) })
    }

    /// Refuses a URL that [`Self::connect`] could not read. Opens no connection.
    pub fn check_url(url: &str) -> Result<(), OpenError> {
        Postgres::check_url(url)
    }

    /// A store that is gone with its last handle.
    pub fn in_memory() -> Result<Self, OpenError> {
        Ok(Self { backend: Backend::Sqlite(Sqlite::in_memory()?) })
    }

    /// A secret that was made with the store and stays with it.
    pub fn secret(&self) -> [u8; SECRET_BYTES] {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.secret(),
            Backend::Postgres(postgres) => postgres.secret(),
        }
    }

    /// The file that it is in, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.path(),
            Backend::Postgres(_) => None,
        }
    }

    /// Where values are kept at the moment.
    pub fn state(&self) -> State {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.state(),
            Backend::Postgres(postgres) => postgres.state(),
        }
    }

    /// What was written so far, and what waits.
    pub fn activity(&self) -> Activity {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.activity(),
            Backend::Postgres(postgres) => postgres.activity(),
        }
    }

    /// Waits until all that was written survives a loss of power, requests in the store's own file
    /// where that can be written.
    pub async fn sync(&self) -> Result<(), StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => {
                self.gather().await;
                sqlite.sync().await
            }
            Backend::Postgres(postgres) => postgres.sync().await,
        }
    }

    /// Stores all of `entries` or, on an error, none; each takes the place of what its key had.
    pub async fn put(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        check(kind, &entries)?;
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.put(tenant, kind, entries, now_ms).await,
            Backend::Postgres(postgres) => postgres.put(tenant, kind, entries, now_ms).await,
        }
    }

    /// Stores those of `entries` whose key has no value yet, and gives the value that each key has
    /// now: the first writer's, over all processes. On an error none is stored.
    pub async fn put_if_absent(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Result<Vec<Bytes>, StoreError> {
        check(kind, &entries)?;
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.put_if_absent(tenant, kind, entries, now_ms).await,
            Backend::Postgres(postgres) => {
                postgres.put_if_absent(tenant, kind, entries, now_ms).await
            }
        }
    }

    /// The values of `keys` in their order, `None` for those that are not there or have ended.
    pub async fn fetch(
        &self,
        tenant: Tenant,
        kind: Kind,
        keys: Vec<Bytes>,
        now_ms: u64,
        life: Life,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.fetch(tenant, kind, keys, now_ms, life).await,
            Backend::Postgres(postgres) => postgres.fetch(tenant, kind, keys, now_ms, life).await,
        }
    }

    /// One value, read on the caller's own thread: `None` where that would have to wait, as it has to
    /// for a store in memory, or in a server for kinds that are not [kept at hand](Self::keep_at_hand). The inner `None` is a key that has no value.
    pub fn peek(
        &self,
        tenant: Tenant,
        kind: Kind,
        key: &[u8],
        now_ms: u64,
    ) -> Option<Option<Entry>> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.peek(tenant, kind, key, now_ms),
            Backend::Postgres(postgres) => postgres.peek(tenant, kind, key, now_ms),
        }
    }

    /// Has [`Self::peek`] answer for a kind where it would have to wait, from what is kept at hand of
    /// it: for small kinds. What another process changes comes within a moment.
    pub fn keep_at_hand(&self, kind: Kind) {
        if let Backend::Postgres(postgres) = &self.backend {
            postgres.keep_at_hand(kind);
        }
    }

    /// All that there is of a kind, of all tenants and in order of key, but no more than `most`.
    pub async fn list(
        &self,
        kind: Kind,
        now_ms: u64,
        most: usize,
    ) -> Result<Vec<(Tenant, Entry)>, StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.list(kind, now_ms, most).await,
            Backend::Postgres(postgres) => postgres.list(kind, now_ms, most).await,
        }
    }

    /// Deletes what has ended by now, of all tenants; how many entries that were. Reading does not
    /// depend on it: what has ended is not found.
    pub async fn delete_expired(&self, now_ms: u64) -> Result<u64, StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.delete_expired(now_ms).await,
            Backend::Postgres(postgres) => postgres.delete_expired(now_ms).await,
        }
    }
}

/// Refuses what no limit would hold.
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

/// Now, in milliseconds since 1970, for what is stored and for nothing that is sent.
#[expect(clippy::disallowed_methods, reason = "a lifetime that outlives the process needs the day")]
pub fn now_ms() -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 is one that nobody has set yet.
    since_1970.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
