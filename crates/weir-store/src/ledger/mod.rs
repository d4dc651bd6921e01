//! Request journal, independent of the back end: intents before sending, settlements, daily totals,
//! and queries. All texts and numbers are sanitised before writing, so that no request can block
//! another's row. Knows no prices or rules: callers pass the costs.

mod attribution;
pub(super) mod codec;
mod json;
pub(super) mod query;
pub(super) mod rollup;
mod rows;
pub mod series;
pub(super) mod text;

use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Tenant;

pub use attribution::Attribution;
pub use json::signed_usd;
pub use query::{
    Column, Filter, MAX_ROWS, RequestEnd, RequestQuery, RequestRow, UsageQuery, UsageRow,
};
pub use rollup::{
    FAILED, MAX_LEARNED_MODELS, MAX_ROWS_A_DAY, MAX_ROWS_A_TENANT_DAY, OTHER, Totals,
};
pub use series::{SeriesQuery, SeriesRow};
pub use text::{MAX_TEXT_BYTES, sanitise};

/// Milliseconds per day; days are UTC, counted from 1970.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum figure of one request, in tokens or nano-dollars: the largest integer that every JSON
/// reader represents exactly, and above any real request.
pub const MAX_FIGURE: u64 = 1 << 53;

/// Identifier of a request, from before it is sent until its row is pruned. Ids sort by creation
/// time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

impl RequestId {
    /// Creates an id: 48 bits of milliseconds since 1970, the rest `random`.
    pub fn new(now_ms: u64, random: [u8; 10]) -> Self {
        let mut id = [0; 16];
        id[..6].copy_from_slice(&now_ms.to_be_bytes()[2..]);
        id[6..].copy_from_slice(&random);
        Self(id)
    }

    /// Returns the creation time.
    pub fn begun_ms(self) -> u64 {
        let [a, b, c, d, e, f, ..] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Returns the lowest id for `moment_ms`.
    pub(super) fn first_of(moment_ms: u64) -> Self {
        const MAX_MS: u64 = (1 << 48) - 1;
        Self::new(moment_ms.min(MAX_MS), [0; 10])
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each request's id is written several times; formatting byte by byte takes many times as
        // long.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// The party that a request counts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub tenant: Tenant,
    /// Names of its virtual key, if any.
    pub key: Option<Arc<KeyNames>>,
}

/// A virtual key with its team, organisation and user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyNames<Text = String> {
    /// Id of the key.
    pub key: Text,
    pub team: Text,
    pub organisation: Text,
    pub user: Text,
}

/// Intent: a request that is about to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub id: RequestId,
    /// Arrival time, in milliseconds since 1970; selects the day it counts for.
    pub begun_ms: u64,
    pub caller: Caller,
    pub route: String,
    pub model: String,
    pub upstream: String,
    pub stream: bool,
    /// Action taken by weir, as in `x-weir-action`.
    pub action: String,
    /// Fill level of its context.
    pub zone: String,
    pub attribution: Attribution,
    /// Prompt tokens as received, by weir's count.
    pub received_tokens: Option<u64>,
    /// Prompt tokens as sent, by weir's count.
    pub sent_tokens: Option<u64>,
    /// Output limit set by the caller.
    pub max_output_tokens: Option<u64>,
    /// Duration of planning.
    pub plan_ms: Option<u64>,
    /// Worst-case cost in nano-dollars and in tokens, as held in its budgets. `None` without
    /// budgets.
    pub held_nano_usd: Option<u64>,
    pub held_tokens: Option<u64>,
}

/// Flags that qualify a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub(super) u32);

impl Flags {
    /// Tokens and money are estimated by rule: the end of the request was not seen.
    pub const ESTIMATED: Self = Self(1);
    /// The caller left before the end.
    pub const CALLER_LEFT: Self = Self(1 << 1);
    /// The answer ended without usage.
    pub const USAGE_MISSING: Self = Self(1 << 2);
    /// Nothing reached the upstream.
    pub const NOT_SENT: Self = Self(1 << 3);
    /// Part of the usage has no price; the rest is priced.
    pub const PARTLY_PRICED: Self = Self(1 << 4);
    /// The model has no price.
    pub const UNPRICED: Self = Self(1 << 5);
    /// Another attempt followed for the same request of the caller, which counts once.
    pub const REPLACED: Self = Self(1 << 6);

    /// It brings results that its agent asked for again because compaction had left them out.
    pub const REREAD: Self = Self(1 << 7);

    /// All flags with their displayed names.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::ESTIMATED, "estimated"),
        (Self::CALLER_LEFT, "caller_left"),
        (Self::USAGE_MISSING, "usage_missing"),
        (Self::NOT_SENT, "not_sent"),
        (Self::PARTLY_PRICED, "partly_priced"),
        (Self::UNPRICED, "unpriced"),
        (Self::REPLACED, "replaced"),
        (Self::REREAD, "reread"),
    ];

    /// Rare flags, found through an index.
    pub(super) const RARE: Self = Self(0b1111);
    pub(super) const IS_RARE_SQL: &str = "flags & 15 <> 0";

    /// Returns whether all flags of `other` are set.
    pub(super) fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any flag of `other` is set.
    pub fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the names of the set flags.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.any(*flag)).map(|(_, name)| name)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Settlement: the end of a request. An unknown figure is `None`; zero is a figure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settlement<Text = String> {
    /// `complete`, `caller_left`, `upstream_cut`, `upstream_failed`, `idle_timeout`, `killed`,
    /// `not_sent`, or an error
    /// code.
    pub outcome: Text,
    /// Status of the upstream's answer.
    pub status: Option<u16>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    pub cost_nano_usd: Option<u64>,
    pub saved_nano_usd: Option<i64>,
    /// What the compaction that observe mode leaves out would have saved.
    pub planned_saved_nano_usd: Option<i64>,
    pub flags: Flags,
    pub first_byte_ms: Option<u64>,
    pub total_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_are_shown_in_full() {
        let id = RequestId::new(0x0123_4567_89ab, [0xff; 10]);
        assert_eq!(id.to_string(), "0123456789abffffffffffffffffffff");
        assert_eq!(id.begun_ms(), 0x0123_4567_89ab);
        assert!(id < RequestId::new(0x0123_4567_89ac, [0; 10]));
        assert!(RequestId::first_of(0x0123_4567_89ab) < id);
        assert_eq!(RequestId::first_of(u64::MAX).0[..6], [0xff; 6]);
    }

    #[test]
    fn flags_have_names() {
        let mut flags = Flags::ESTIMATED | Flags::UNPRICED;
        flags |= Flags::CALLER_LEFT;
        assert_eq!(flags.names().collect::<Vec<_>>(), ["estimated", "caller_left", "unpriced"]);
        assert!(flags.any(Flags::UNPRICED | Flags::NOT_SENT) && !flags.any(Flags::NOT_SENT));
        assert!(Flags::default().is_empty() && !flags.is_empty());
        assert!(!Flags::RARE.covers(flags) && Flags::RARE.covers(Flags::ESTIMATED));
        assert_eq!(Flags::IS_RARE_SQL, format!("flags & {} <> 0", Flags::RARE.0));
    }
}
