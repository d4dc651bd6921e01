//! Text that no log or error shows, and random bytes.

use std::fmt;

/// A text whose `Debug` shows `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Error of the system's source of random bytes.
#[derive(Debug, thiserror::Error)]
#[error("no random bytes: {0}")]
pub(crate) struct NoRandom(getrandom::Error);

/// Returns random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(NoRandom)?;
    Ok(bytes)
}

/// Returns a text that no other is equal to.
pub(crate) fn random_name() -> Result<String, NoRandom> {
    Ok(hex(&random::<16>()?))
}

/// Formats bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
