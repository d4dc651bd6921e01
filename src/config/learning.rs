//! `[learning]`: values learned from upstreams' answers.

use super::Config;
use super::keys::LEARNING;
use super::reader::Reader;

/// `[learning]`: values learned from upstreams' answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learning {
    /// Whether a request refused as too long is planned and sent again, and the limit remembered.
    pub heal: bool,
    /// Whether the ratio between a model's own token count and weir's estimate is learned.
    pub calibrate: bool,
}

impl Default for Learning {
    fn default() -> Self {
        Config::default().learning
    }
}

/// Reads `[learning]`.
pub(super) fn read(reader: &mut Reader) -> Learning {
    let mut keys = reader.section(&LEARNING);
    Learning { heal: keys.get("overflow_retry"), calibrate: keys.get("calibrate") }
}
