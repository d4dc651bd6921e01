//! Errors of a store.

use std::fmt;

use crate::secret::NoRandom;

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

impl From<NoRandom> for StoreError {
    fn from(error: NoRandom) -> Self {
        Self::Failed(error.to_string())
    }
}

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

impl From<NoRandom> for OpenError {
    fn from(error: NoRandom) -> Self {
        Self::System { message: error.to_string() }
    }
}
