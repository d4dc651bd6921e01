//! `[learning]`: values learned from upstreams' answers.

use super::Config;
use super::reader::settings;

settings! {
    /// `[learning]`: values learned from upstreams' answers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Learning from keys {
        /// Whether a request refused as too long is planned and sent again, and the limit remembered.
        heal: bool = keys.get("overflow_retry"),
        /// Whether the ratio between a model's own token count and weir's estimate is learned.
        calibrate: bool = keys.get("calibrate"),
    }
}

impl Default for Learning {
    fn default() -> Self {
        Config::default().learning
    }
}
