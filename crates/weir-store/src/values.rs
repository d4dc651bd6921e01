//! Values of a store: owners, kinds, entries and their limits.

mod rows;

use bytes::Bytes;

use crate::{StoreError, Stored};

/// Maximum size of a key.
pub const MAX_KEY_BYTES: usize = 256;
/// Overhead of an entry in addition to its key and value: its row and index entries.
pub const ENTRY_BYTES: u64 = 256;

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

/// Rejects keys and entries above the limits.
pub(crate) fn check(kind: Kind, entries: &[Entry]) -> Stored<()> {
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
