//! How much a tool had better say, by how full the context is. Pure arithmetic.

use serde::Serialize;

/// From this much of the limit on, tools had better be brief.
const NORMAL_PERCENT: u64 = 70;
/// From this much on, they had better say the least there is to say.
const MINIMAL_PERCENT: u64 = 90;

/// How much a tool had better say.
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
    /// The level where `used_tokens` of `limit_tokens` are used.
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

    /// The word for it in headers and reports.
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
