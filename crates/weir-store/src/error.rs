//! Errors of a store.

use crate::secret::NoRandom;

/// Result of a store operation.
pub type Stored<T> = Result<T, StoreError>;

/// Error of a store operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A key or an entry exceeds its limit; nothing of the batch was stored.
    #[error("{bytes} bytes exceed the maximum of {max_bytes}")]
    TooLarge { bytes: u64, max_bytes: u64 },
    /// Others held the store for longer than the timeout.
    #[error("another process holds the store")]
    Busy,
    /// The disk is full.
    #[error("the disk is full")]
    Full,
    /// Too many bytes of requests wait to be moved into the store; no more are accepted.
    #[error("{bytes} bytes of requests wait to be moved into the store, which cannot be written")]
    Behind { bytes: u64 },
    /// Error of the back end.
    #[error("{0}")]
    Failed(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

impl From<NoRandom> for StoreError {
    fn from(error: NoRandom) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Error of opening a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file or its folder cannot be created or written.
    #[error("{message}")]
    Unusable { message: String },
    /// Others held the file for longer than the timeout.
    #[error("another process holds the file")]
    Busy,
    /// The file belongs to another program.
    #[error("the file is not weir's")]
    Foreign,
    /// A later version of weir wrote the file.
    #[error(
        "the file is from a later version of weir (tables of version {version}; this one knows {known})"
    )]
    Newer { version: i64, known: i64 },
    /// No random bytes for a secret, or no thread.
    #[error("{message}")]
    System { message: String },
}

impl From<NoRandom> for OpenError {
    fn from(error: NoRandom) -> Self {
        Self::System { message: error.to_string() }
    }
}
