//! `[learning]`: what upstreams teach of their models.

use super::reader::Reader;
use super::set;

const HOUR_MS: u64 = 60 * 60 * 1000;
const YEAR_MS: u64 = 366 * 24 * HOUR_MS;

/// `[learning]`: what is learned from upstreams' answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learning {
    /// Whether a request that the upstream refuses as too long is planned anew and sent again, and
    /// the limit remembered.
    pub heal: bool,
    /// How long a limit that was learned is believed.
    pub limit_lifetime_ms: u64,
    /// Whether the ratio between a model's own count of tokens and weir's estimate is learned.
    pub calibrate: bool,
}

impl Default for Learning {
    fn default() -> Self {
        Self { heal: true, limit_lifetime_ms: 24 * HOUR_MS, calibrate: true }
    }
}

/// Reads `[learning]`.
pub(super) fn read(reader: &mut Reader, learning: &mut Learning) {
    set(&mut learning.heal, reader.switch(&["learning", "heal"]));
    let lifetime = reader.whole(&["learning", "limit_lifetime_ms"], 1000..=YEAR_MS);
    set(&mut learning.limit_lifetime_ms, lifetime);
    set(&mut learning.calibrate, reader.switch(&["learning", "calibrate"]));
}
