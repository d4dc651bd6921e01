//! Change detection for keys and budgets, on each request: by the change counter file next to the
//! store, and now and then by the store itself.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tokio::time::Instant;

use super::Sqlite;
use super::change_counter::{ChangeCounter, version};
use crate::backend::Internal;

/// How long the file is trusted without reading the store: a process killed between the two
/// updates, or an older weir, may have changed only one.
const TRUSTED_MS: u64 = 250;

/// State of change detection, shared by all handles.
pub(crate) struct ChangeState {
    pub(super) counter: ChangeCounter,
    started: Instant,
    /// When to read the store again, in milliseconds since `started`.
    check_at_ms: AtomicU64,
    /// Highest count read from the store. A lower count in the file is outdated.
    confirmed: AtomicU64,
}

impl ChangeState {
    pub(crate) fn new(counter: ChangeCounter) -> Self {
        Self {
            counter,
            started: Instant::now(),
            check_at_ms: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
        }
    }

    /// Forces a read of the store next time.
    #[cfg(test)]
    pub(crate) fn check_now(&self) {
        self.check_at_ms.store(0, Ordering::Relaxed);
    }
}

impl Sqlite {
    #[cfg(test)]
    pub(crate) fn changes(&self) -> &ChangeState {
        &self.changes
    }

    /// Returns the number of changes according to the file; `None` if it is not trusted.
    pub(crate) fn counted_changes(&self) -> Option<u64> {
        let changes = &self.changes;
        let now_ms = u64::try_from(changes.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now_ms >= changes.check_at_ms.load(Ordering::Relaxed) && self.is_file() {
            changes.counter.reopen();
            self.stored_changes()?;
            changes.check_at_ms.store(now_ms.saturating_add(TRUSTED_MS), Ordering::Relaxed);
        }
        let confirmed = changes.confirmed.load(Ordering::Acquire);
        changes.counter.read().filter(|count| *count >= confirmed)
    }

    /// Returns the number of changes according to the store; `None` if that would block.
    pub(crate) fn stored_changes(&self) -> Option<u64> {
        let version = self.read_now(version)?;
        self.changes.confirmed.fetch_max(version, Ordering::AcqRel);
        Some(version)
    }
}

#[async_trait]
impl Internal for Sqlite {
    fn is_current(&self, count: u64) -> bool {
        self.counted_changes() == Some(count) || self.stored_changes() == Some(count)
    }
}
