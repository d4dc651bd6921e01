//! Settings, location, health and activity of a store.

use std::time::Duration;

use crate::latency::Latencies;

/// Size of the secret that an instance keeps for itself.
pub const SECRET_BYTES: usize = 32;
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

impl State {
    /// All states by their words.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("file", Self::File),
        ("server", Self::Server),
        ("memory", Self::Memory),
        ("failing", Self::Failing),
    ];

    /// Returns its word.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, own)| *own == self).map_or("", |(word, _)| word)
    }
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
