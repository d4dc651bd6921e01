//! Which processes are alive: each holds the lock of a file of its own beside the store for as long
//! as it lives, however it ends. A file that is missing or not locked is a dead one's. Their logs
//! lie beside their locks.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use super::super::{OpenError, StoreError};

/// What the lock files' names end with.
const ENDING: &str = "lock";
/// What the logs' names end with.
const LOG_ENDING: &str = "log";

/// A segment of somebody's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    pub instance: [u8; 16],
    pub segment: u64,
    pub path: PathBuf,
}

impl LogFile {
    pub fn new(folder: &Path, instance: [u8; 16], segment: u64) -> Self {
        Self { instance, segment, path: log_path(folder, &instance, segment) }
    }

    /// What a file in the folder is by its name.
    fn read(path: PathBuf) -> Option<Self> {
        if path.extension()? != LOG_ENDING {
            return None;
        }
        let (instance, segment) = path.file_stem()?.to_str()?.split_once('-')?;
        let instance = u128::from_str_radix(instance, 16).ok()?.to_be_bytes();
        Some(Self { instance, segment: segment.parse().ok()?, path })
    }
}

/// Where a segment of `instance`'s log is.
pub fn log_path(folder: &Path, instance: &[u8], segment: u64) -> PathBuf {
    folder.join(format!("{}-{segment}.{LOG_ENDING}", hex(instance)))
}

/// One handle's life on a store.
pub struct Instance {
    id: [u8; 16],
    /// Where the files are; `None` in memory, which ends with the process.
    folder: Option<PathBuf>,
    lock: OnceCell<Option<Lock>>,
}

impl Instance {
    /// For the store in the file at `path`, or in memory. Makes no file yet.
    pub fn new(path: Option<&Path>) -> Result<Self, OpenError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|error| OpenError::System { said: format!("no random bytes: {error}") })?;
        let folder = path.map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".instances");
            name.into()
        });
        Ok(Self { id, folder, lock: OnceCell::new() })
    }

    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Locks this one's file, which says to others that it lives. To be done before anything is
    /// written in its name.
    pub async fn hold(&self) -> Result<(), StoreError> {
        let lock = || async {
            let Some(folder) = self.folder.clone() else { return Ok(None) };
            let name = file_name(&self.id);
            let made = tokio::task::spawn_blocking(move || {
                clear(&folder);
                Lock::make(&folder, &name)
            });
            let failed = |error: io::Error| {
                StoreError::Failed(format!("no lock file can be made beside the store: {error}"))
            };
            made.await.map_err(|_| StoreError::Closed)?.map(Some).map_err(failed)
        };
        self.lock.get_or_try_init(lock).await.map(drop)
    }

    /// Where the lock files and logs are; `None` in memory.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The logs of all, each one's segments in their order.
    pub fn logs(&self) -> Vec<LogFile> {
        let Some(Ok(files)) = self.folder.as_deref().map(fs::read_dir) else { return Vec::new() };
        let mut logs: Vec<_> =
            files.flatten().filter_map(|file| LogFile::read(file.path())).collect();
        logs.sort_unstable();
        logs
    }

    /// Whether whoever is called `id` has ended.
    pub fn is_dead(&self, id: &[u8]) -> bool {
        // Nobody else can know what is in memory, and a name that is no instance's has no file.
        id != self.id && self.folder.as_deref().is_none_or(|it| is_free(&it.join(file_name(id))))
    }
}

/// A locked file, removed in the end.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn make(folder: &Path, name: &str) -> io::Result<Self> {
        let mut folders = fs::DirBuilder::new();
        folders.recursive(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt;
            folders.mode(0o700);
        }
        folders.create(folder)?;
        // Under its own name it is locked from the first moment on.
        let (new, path) = (folder.join(name).with_extension("new"), folder.join(name));
        let file = File::create_new(&new)?;
        let locked = file.try_lock().map_err(io::Error::from);
        if let Err(error) = locked.and_then(|()| fs::rename(&new, &path)) {
            // What is left behind is empty and means nothing.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        Ok(Self { path, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // One that stays behind is not locked, and is cleared by the next.
        let _ = fs::remove_file(&self.path);
    }
}

fn file_name(id: &[u8]) -> String {
    format!("{}.{ENDING}", hex(id))
}

fn hex(id: &[u8]) -> String {
    id.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether nobody holds the file's lock. One that cannot be asked for is held: to settle what still
/// goes on is worse than to settle late.
fn is_free(path: &Path) -> bool {
    match File::open(path) {
        // A lock that is shared: two who ask at once do not take each other for the owner.
        Ok(file) => file.try_lock_shared().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes the files of the dead.
fn clear(folder: &Path) {
    let Ok(files) = fs::read_dir(folder) else { return };
    for path in files.flatten().map(|file| file.path()) {
        if path.extension().is_some_and(|ending| ending == ENDING) && is_free(&path) {
            // Another may have been faster.
            let _ = fs::remove_file(&path);
        }
    }
}
