//! Leader lock: whether this process counts budgets for a store. It holds the lock of a file next
//! to the store, or a lease on its server. Two separate counters would admit twice the budget.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::super::files::{beside, make_private};
use super::super::{Store, StoreError, Stored};

/// Suffix of the lock file's name, after the store's.
const SUFFIX: &str = ".budgets";

/// The leader lock of a store.
pub(crate) struct LeaderLock {
    store: Store,
    /// `None` for an in-memory store, which no other process sees, and for one on a server.
    path: Option<PathBuf>,
    file: OnceLock<File>,
    /// Lets one thread at a time try: another handle of this process would block it.
    trying: Mutex<()>,
}

impl LeaderLock {
    /// Creates the lock of `store`, not acquired yet.
    pub(crate) fn new(store: &Store) -> Self {
        let path = store.file().map(|path| beside(path, SUFFIX));
        Self { store: store.clone(), path, file: OnceLock::new(), trying: Mutex::default() }
    }

    /// Acquires the lock for the life of the process; `false` if another process holds it.
    pub(crate) async fn acquire(&self) -> Stored<bool> {
        if !self.store.backend.hold_leader_lease().await? {
            return Ok(false);
        }
        let Some(path) = &self.path else { return Ok(true) };
        if self.file.get().is_some() {
            return Ok(true);
        }
        let _guard = self.trying.lock();
        if self.file.get().is_some() {
            return Ok(true);
        }
        let failed = |error: std::io::Error| {
            StoreError::Failed(format!("cannot create a lock file next to the store: {error}"))
        };
        make_private(path).map_err(failed)?;
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                // No other thread has set it since the check.
                let _ = self.file.set(file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn threads_of_one_process_share_the_lock() {
        let name = format!("weir-leader-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("the temporary directory can be written");
        for round in 0..50 {
            let store = Store::open(&folder.join(format!("{round}.db"))).expect("a new file");
            let lock = Arc::new(LeaderLock::new(&store));
            let together = Arc::new(Barrier::new(8));
            let threads = (0..8).map(|_| {
                let (lock, together) = (Arc::clone(&lock), Arc::clone(&together));
                std::thread::spawn(move || {
                    together.wait();
                    let runtime = tokio::runtime::Builder::new_current_thread().build();
                    runtime.expect("a runtime").block_on(lock.acquire())
                })
            });
            let threads: Vec<_> = threads.collect();
            for thread in threads {
                assert_eq!(thread.join().expect("it does not panic"), Ok(true), "round {round}");
            }
            let other = LeaderLock::new(&store);
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let refused = runtime.expect("a runtime").block_on(other.acquire());
            assert_eq!(refused, Ok(false));
        }
        // If removal fails, the system cleans up.
        let _ = std::fs::remove_dir_all(&folder);
    }
}
