//! Liveness of processes: each holds a lock on its own file next to the store while it lives,
//! however it ends. A missing or unlocked file means a dead process. Their logs are stored next to
//! the lock files.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use crate::files::{beside, create_folder};
use crate::secret::{hex, random};
use crate::{OpenError, StoreError, Stored};

/// Extension of lock files.
const LOCK_EXTENSION: &str = "lock";
/// Extension of logs.
const LOG_EXTENSION: &str = "log";

/// A segment of an instance's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentFile {
    pub instance: [u8; 16],
    pub segment: u64,
    pub path: PathBuf,
}

impl SegmentFile {
    pub(crate) fn new(folder: &Path, instance: [u8; 16], segment: u64) -> Self {
        Self { instance, segment, path: segment_path(folder, &instance, segment) }
    }

    /// Parses a file name in the folder.
    fn parse(path: PathBuf) -> Option<Self> {
        if path.extension()? != LOG_EXTENSION {
            return None;
        }
        let (instance, segment) = path.file_stem()?.to_str()?.split_once('-')?;
        let instance = u128::from_str_radix(instance, 16).ok()?.to_be_bytes();
        Some(Self { instance, segment: segment.parse().ok()?, path })
    }
}

/// Returns the path of a segment of `instance`'s log.
pub(crate) fn segment_path(folder: &Path, instance: &[u8], segment: u64) -> PathBuf {
    folder.join(format!("{}-{segment}.{LOG_EXTENSION}", hex(instance)))
}

/// Liveness of one handle on a store.
pub(crate) struct Instance {
    pub(crate) id: [u8; 16],
    /// Folder of the files; `None` in memory, which ends with the process.
    folder: Option<PathBuf>,
    lock: OnceCell<Option<Lock>>,
}

impl Instance {
    /// Creates an instance for the store in the file at `path`, or in memory. Creates no file yet.
    pub(crate) fn new(path: Option<&Path>) -> Result<Self, OpenError> {
        let folder = path.map(|path| beside(path, ".instances"));
        Ok(Self { id: random()?, folder, lock: OnceCell::new() })
    }

    /// Locks this instance's file, which marks it as alive. Call it before any write in its name.
    pub(crate) async fn lock_file(&self) -> Stored<()> {
        let lock = || async {
            let Some(folder) = self.folder.clone() else { return Ok(None) };
            let name = file_name(&self.id);
            let made = tokio::task::spawn_blocking(move || {
                remove_dead(&folder);
                Lock::create(&folder, &name)
            });
            let failed = |error: io::Error| {
                StoreError::Failed(format!("cannot create a lock file next to the store: {error}"))
            };
            made.await.map_err(|_| StoreError::Closed)?.map(Some).map_err(failed)
        };
        self.lock.get_or_try_init(lock).await.map(drop)
    }

    /// Returns the folder of lock files and logs; `None` in memory.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the logs of all instances, each one's segments in order.
    pub(crate) fn segments(&self) -> Vec<SegmentFile> {
        let Some(Ok(files)) = self.folder.as_deref().map(fs::read_dir) else { return Vec::new() };
        let mut segments: Vec<_> =
            files.flatten().filter_map(|file| SegmentFile::parse(file.path())).collect();
        segments.sort_unstable();
        segments
    }

    /// Returns whether the instance `id` has ended.
    pub(crate) fn is_dead(&self, id: &[u8]) -> bool {
        // No other process sees an in-memory store, and an invalid name has no file.
        id != self.id
            && self.folder.as_deref().is_none_or(|it| is_unlocked(&it.join(file_name(id))))
    }
}

/// A locked file, removed on drop.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn create(folder: &Path, name: &str) -> io::Result<Self> {
        create_folder(folder)?;
        // It gets its final name only after it is locked.
        let (new, path) = (folder.join(name).with_extension("new"), folder.join(name));
        let file = File::create_new(&new)?;
        let locked = file.try_lock().map_err(io::Error::from);
        if let Err(error) = locked.and_then(|()| fs::rename(&new, &path)) {
            // A leftover file is empty and has no meaning.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        Ok(Self { path, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A leftover file is unlocked, and the next instance removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn file_name(id: &[u8]) -> String {
    format!("{}.{LOCK_EXTENSION}", hex(&id[..id.len().min(16)]))
}

/// Returns whether no process holds the file's lock. If that is unknown, it counts as held:
/// settling a live request is worse than settling late.
fn is_unlocked(path: &Path) -> bool {
    match File::open(path) {
        // A shared lock: two concurrent checks do not mistake each other for the owner.
        Ok(file) => file.try_lock_shared().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes the files of dead instances.
fn remove_dead(folder: &Path) {
    let Ok(files) = fs::read_dir(folder) else { return };
    for path in files.flatten().map(|file| file.path()) {
        if path.extension().is_some_and(|ending| ending == LOCK_EXTENSION) && is_unlocked(&path) {
            // Another process may have been faster.
            let _ = fs::remove_file(&path);
        }
    }
}
