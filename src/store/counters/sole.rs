//! Whether this process is the one that counts for a store: it holds the lock of a file beside it, or
//! the right on its server. Two that counted apart would let through twice what a budget says.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

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
    /// One thread at a time tries: another's handle of this process would stand in its way.
    trying: Mutex<()>,
}

impl Sole {
    /// Of `store`. Locks nothing yet.
    pub fn new(store: &Store) -> Self {
        let path = store.file().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(ENDING);
            name.into()
        });
        Self { store: store.clone(), path, lock: OnceLock::new(), trying: Mutex::default() }
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
        let _alone = self.trying.lock().unwrap_or_else(PoisonError::into_inner);
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
                // Nobody else has set it since it was looked at.
                let _ = self.lock.set(file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(StoreError::Failed(ANOTHER.to_owned())),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn many_threads_of_one_process_have_the_right_at_once() {
        let name = format!("weir-sole-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("the temporary directory can be written");
        for round in 0..50 {
            let store = Store::open(&folder.join(format!("{round}.db"))).expect("a new file");
            let sole = Arc::new(Sole::new(&store));
            let together = Arc::new(Barrier::new(8));
            let threads = (0..8).map(|_| {
                let (sole, together) = (Arc::clone(&sole), Arc::clone(&together));
                std::thread::spawn(move || {
                    together.wait();
                    let runtime = tokio::runtime::Builder::new_current_thread().build();
                    runtime.expect("a runtime").block_on(sole.obtain())
                })
            });
            let threads: Vec<_> = threads.collect();
            for thread in threads {
                assert_eq!(thread.join().expect("it does not panic"), Ok(()), "round {round}");
            }
            let other = Sole::new(&store);
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let refused = runtime.expect("a runtime").block_on(other.obtain());
            assert_eq!(refused, Err(StoreError::Failed(ANOTHER.to_owned())));
        }
        // What cannot be removed is the system's to clear.
        let _ = std::fs::remove_dir_all(&folder);
    }
}
