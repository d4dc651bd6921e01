//! How often keys and budgets were changed, asked with each request: by the mark that all changes leave
//! beside the store, and now and then by the store itself. On a server there is no mark: what the server
//! told a moment ago is as good.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::rows;
use crate::store::{Backend, Store};

/// How long the mark is trusted without asking the store itself: a process that was killed between
/// the two, or an older weir, may have changed one alone.
const TRUSTED_MS: u64 = 250;

/// Tells whether what was read of a store is still so.
pub struct Changes {
    store: Store,
    began: Instant,
    /// From when on the store is asked again, in milliseconds since `began`.
    ask_at_ms: AtomicU64,
    /// The highest count that the store has told. A mark below it was left behind.
    told: AtomicU64,
}

impl Changes {
    /// Of the keys and budgets in `store`.
    pub fn new(store: Store) -> Self {
        if let Backend::Postgres(postgres) = &store.backend {
            postgres.watch();
        }
        Self { store, began: Instant::now(), ask_at_ms: AtomicU64::new(0), told: AtomicU64::new(0) }
    }

    /// Whether nothing has changed since there were so many changes. `false` where nobody can tell.
    pub fn is_last(&self, count: u64) -> bool {
        match &self.store.backend {
            Backend::Sqlite(_) => self.marked() == Some(count) || self.version() == Some(count),
            Backend::Postgres(postgres) => postgres.keys_version() == Some(count),
        }
    }

    /// How often keys were changed, by the mark; `None` where it is not to be trusted.
    pub(super) fn marked(&self) -> Option<u64> {
        let Backend::Sqlite(sqlite) = &self.store.backend else { return None };
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now_ms >= self.ask_at_ms.load(Ordering::Relaxed) && sqlite.is_file() {
            sqlite.mark().reopen();
            self.version()?;
            self.ask_at_ms.store(now_ms.saturating_add(TRUSTED_MS), Ordering::Relaxed);
        }
        let told = self.told.load(Ordering::Acquire);
        sqlite.mark().read().filter(|marked| *marked >= told)
    }

    /// How often keys were changed, by the store; `None` where that would have to be waited for.
    pub(super) fn version(&self) -> Option<u64> {
        let Backend::Sqlite(sqlite) = &self.store.backend else { return None };
        let version = sqlite.glance(rows::version)?;
        self.told.fetch_max(version, Ordering::AcqRel);
        Some(version)
    }

    /// Has the store asked next time.
    #[cfg(test)]
    pub(super) fn ask_now(&self) {
        self.ask_at_ms.store(0, Ordering::Relaxed);
    }
}
