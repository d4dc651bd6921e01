//! Whether this process is the one that counts for a store: it holds the lock of a file beside it, or
//! the right on its server. Two that counted apart would let through twice what a budget says.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::sync::OnceLock;

use super::super::files::make_private;
use super::super::{Backend, Store, StoreError};

/// What the lock's name is, behind the store's.
const ENDING: &str = ".budgets";

/// What is said where another has the right.
pub const ANOTHER: &str = "another weir counts for the budgets of this store until it ends; several at once \
                           need a store that they share (redis.url)";

/// The right to count, once it was obtained.
pub struct Sole {
    store: Store,
    /// `None` beside a store in memory, which no other process sees, and one on a server.
    path: Option<PathBuf>,
    lock: OnceLock<File>,
}

impl Sole {
    /// Of `store`. Locks nothing yet.
    pub fn new(store: &Store) -> Self {
        let path = store.file().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(ENDING);
            name.into()
        });
        Self { store: store.clone(), path, lock: OnceLock::new() }
    }

    /// Takes the right, which lasts as long as the process, or says who has it.
    pub async fn obtain(&self) -> Result<(), StoreError> {
        if let Backend::Postgres(postgres) = &self.store.backend {
            return postgres.count_alone().await;
        }
        let Some(path) = &self.path else { return Ok(()) };
        if self.lock.get().is_some() {
            return Ok(());
        }
        let failed = |error: std::io::Error| {
            StoreError::Failed(format!("no lock can be made beside the store: {error}"))
        };
        make_private(path).map_err(failed)?;
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                // Where another thread was faster, this handle's lock is what is not obtained.
                let _ = self.lock.set(file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) if self.lock.get().is_some() => Ok(()),
            Err(TryLockError::WouldBlock) => Err(StoreError::Failed(ANOTHER.to_owned())),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}
