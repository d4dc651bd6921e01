//! The leader lease as this weir knows it, and its rival. Asks no server.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Stored;

/// Validity of the leader lease without renewal. No other weir takes it within twice that time.
const LEASE: Duration = Duration::from_secs(5);
/// A living weir is seen more often than this.
const MAX_SILENCE_MS: i64 = 4000;
/// The leader lease as this weir knows it.
#[derive(Default)]
pub(super) struct LeaderLease {
    /// When this weir last obtained it; `None` if never.
    obtained: Mutex<Option<Instant>>,
    /// Lets one request at a time ask for it. Others take over its outcome.
    pub rival: tokio::sync::Mutex<Rival>,
}

/// Another weir that has the lease.
#[derive(Default)]
pub(super) struct Rival {
    id: Vec<u8>,
    /// When it was last seen at the first look.
    first_seen_us: i64,
    /// Last outcome of asking for the lease.
    pub last: Option<(Instant, Stored<bool>)>,
}

/// A look at the holder of the lease, by the server's clock.
pub(super) struct Sight {
    pub holder: Vec<u8>,
    pub seen_us: i64,
    pub silent_ms: i64,
}

impl Rival {
    /// Whether the holder lives: it was seen again since the first look at it, and a moment ago.
    pub(super) fn lives(&mut self, sight: Sight) -> bool {
        if self.id != sight.holder {
            (self.id, self.first_seen_us) = (sight.holder, sight.seen_us);
        }
        sight.seen_us > self.first_seen_us && sight.silent_ms < MAX_SILENCE_MS
    }
}

impl LeaderLease {
    pub(super) fn obtained(&self) -> Option<Instant> {
        *self.obtained.lock()
    }

    pub(super) fn obtain(&self, asked_at: Instant) {
        *self.obtained.lock() = Some(asked_at);
    }

    /// Whether this weir has it without asking again.
    pub(super) fn is_fresh(&self) -> bool {
        self.obtained().is_some_and(|obtained| obtained.elapsed() < LEASE)
    }
}
