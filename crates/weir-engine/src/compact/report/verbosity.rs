//! Output level for tools, by how full the context is. Pure arithmetic.

use serde::Serialize;

/// Share of the limit at which tools should be brief.
const NORMAL_PERCENT: u64 = 70;
/// Share of the limit at which they should reduce output to the minimum.
const MINIMAL_PERCENT: u64 = 90;

/// Output level for a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verbosity {
    /// Less than 70 % of the limit is used.
    Full,
    /// From 70 % on.
    Normal,
    /// From 90 % on.
    Minimal,
}

impl Verbosity {
    /// Returns the level for `used_tokens` of `limit_tokens`.
    pub fn of(used_tokens: u64, limit_tokens: u64) -> Self {
        let reaches = |percent: u64| {
            u128::from(used_tokens) * 100 >= u128::from(limit_tokens) * u128::from(percent)
        };
        if reaches(MINIMAL_PERCENT) {
            Self::Minimal
        } else if reaches(NORMAL_PERCENT) {
            Self::Normal
        } else {
            Self::Full
        }
    }

    /// Returns the word used in headers and reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Normal => "normal",
            Self::Minimal => "minimal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_change_at_their_borders() {
        for (used, limit, expected) in [
            (0, 1000, Verbosity::Full),
            (699, 1000, Verbosity::Full),
            (700, 1000, Verbosity::Normal),
            (899, 1000, Verbosity::Normal),
            (900, 1000, Verbosity::Minimal),
            (2000, 1000, Verbosity::Minimal),
            (0, 0, Verbosity::Minimal),
            (u64::MAX, u64::MAX, Verbosity::Minimal),
        ] {
            assert_eq!(Verbosity::of(used, limit), expected, "{used} of {limit}");
        }
    }
}
