//! Sync thread: syncs commits to disk in groups, checkpoints SQLite's WAL, and moves requests into
//! the tables, so that no request waits for any of these.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::time::Instant;

use super::readers;
use super::writer::WriterState;
use crate::files::{beside, sync_folder};
use crate::wal::Session;
use crate::{OpenError, StoreError, Stored};

/// Pages in the WAL that trigger a checkpoint.
const CHECKPOINT_PAGES: i64 = 1000;
/// Pages in the WAL above which writing stops until the last is copied, so that the WAL can
/// restart. A long-running reader can prevent that restart.
const MAX_LOG_PAGES: i64 = 8000;

/// Minimum interval between moves of requests into the tables: larger groups cost less per request.
/// Queries have them moved first.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Signals commits to the sync thread. Clones signal the same thread.
#[derive(Clone, Default)]
pub(crate) struct Dirty(Arc<State>);

#[derive(Default)]
struct State {
    is_dirty: AtomicBool,
    is_ended: AtomicBool,
    is_failing: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Dirty {
    /// Signals a commit.
    pub(crate) fn note(&self) {
        // A thread that was already notified is not woken: waking costs more than a commit.
        if !self.0.is_dirty.load(Ordering::Acquire) && !self.0.is_dirty.swap(true, Ordering::AcqRel)
        {
            self.wake();
        }
    }

    /// Signals the end of all commits.
    pub(crate) fn end(&self) {
        self.0.is_ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns whether the last commits failed to reach the disk.
    pub(crate) fn is_failing(&self) -> bool {
        self.0.is_failing.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(thread) = self.0.thread.get() {
            thread.unpark();
        }
    }
}

/// Starts the thread for the store in the file at `path`, with the writer `shared`.
pub(super) fn start(
    path: &Path,
    interval: Duration,
    dirty: Dirty,
    shared: Arc<WriterState>,
    session: Arc<Session>,
) -> Result<(), OpenError> {
    let path = path.to_owned();
    let file_id = FileId::of(&path);
    let syncer = Syncer { path, file_id, shared, session, connection: None, is_name_synced: false };
    // An earlier process may have left logs to delete.
    dirty.note();
    let state = Arc::clone(&dirty.0);
    let thread = std::thread::Builder::new()
        .name("weir-sync".to_owned())
        .spawn(move || run(syncer, &state, interval))
        .map_err(|error| OpenError::System {
            message: format!("cannot start a thread: {error}"),
        })?;
    // Nothing else sets it.
    let _ = dirty.0.thread.set(thread.thread().clone());
    // A commit may have been signalled before the thread existed.
    thread.thread().unpark();
    Ok(())
}

/// Syncs all commits of the store in the file at `path`, and waits for it.
pub(super) fn sync_now(path: &Path) -> Stored<()> {
    sync_log(path).map_err(|error| StoreError::Failed(error.to_string()))
}

fn sync_log(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(log_path(path)) {
        Ok(log) => log.sync_data(),
        // The process that closed the store last has copied and removed the WAL.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the path of SQLite's WAL.
pub(super) fn log_path(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

fn run(mut syncer: Syncer, state: &State, interval: Duration) {
    let (mut checkpointed_at, mut is_pending) = (Instant::now(), false);
    while !state.is_ended.load(Ordering::Acquire) {
        let left = CHECKPOINT_INTERVAL.saturating_sub(checkpointed_at.elapsed());
        match (state.is_dirty.load(Ordering::Acquire), is_pending) {
            (true, _) => wait(interval, state),
            (false, true) if left.is_zero() => {}
            (false, true) => {
                std::thread::park_timeout(left);
                continue;
            }
            (false, false) => {
                std::thread::park();
                continue;
            }
        }
        state.is_dirty.store(false, Ordering::Release);
        let is_due = checkpointed_at.elapsed() >= CHECKPOINT_INTERVAL;
        if is_due {
            // Requests that were not moved stay pending. The writer logs the reason.
            let _ = syncer.checkpoint_requests();
            checkpointed_at = Instant::now();
        }
        is_pending = syncer.session.log.is_checkpoint_pending();
        let synced = syncer.sync_all(state.is_failing.load(Ordering::Relaxed));
        if synced.is_err() {
            // Retried at the next interval, even without new writes.
            state.is_dirty.store(true, Ordering::Release);
        }
        report(&synced, &state.is_failing);
    }
    // The process may continue long after it closes a store. Unfinished work is left to the next
    // process that opens it.
    syncer.session.log.close();
    let _ = syncer.checkpoint_requests();
    let _ = syncer.sync_all(false);
}

/// Waits for `interval`, or until the end.
fn wait(interval: Duration, state: &State) {
    let deadline = Instant::now() + interval;
    while !state.is_ended.load(Ordering::Acquire) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left);
    }
}

fn report(synced: &Stored<()>, is_failing: &AtomicBool) {
    match synced {
        Ok(()) if is_failing.swap(false, Ordering::Relaxed) => {
            tracing::info!(target: "weir::store", "the store can be synced to disk again");
        }
        Err(error) if !is_failing.swap(true, Ordering::Relaxed) => tracing::warn!(
            target: "weir::store",
            %error,
            "the store cannot be synced to disk; current writes would not survive a power loss"
        ),
        _ => {}
    }
}

/// Identity of a store's file, to detect that it was replaced or removed.
struct FileId(Option<(u64, u64)>);

impl FileId {
    #[cfg(unix)]
    fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(fs::metadata(path).ok().map(|file| (file.dev(), file.ino())))
    }

    /// On other systems an open file cannot be removed.
    #[cfg(not(unix))]
    fn of(_path: &Path) -> Self {
        Self(None)
    }

    fn check(&self, path: &Path) -> Stored<()> {
        if Self::of(path).0 == self.0 {
            return Ok(());
        }
        Err(StoreError::Failed(
            "its file was removed or replaced while weir was running; restart weir".to_owned(),
        ))
    }
}

struct Syncer {
    path: PathBuf,
    file_id: FileId,
    shared: Arc<WriterState>,
    session: Arc<Session>,
    connection: Option<Connection>,
    /// Whether the WAL's folder entry is on disk.
    is_name_synced: bool,
}

impl Syncer {
    /// Moves recorded requests into the tables. The writer logs failures.
    fn checkpoint_requests(&self) -> Stored<()> {
        self.session.checkpoint_own(&self.shared)
    }

    /// Syncs everything to disk, and then deletes finished logs.
    fn sync_all(&mut self, must_copy: bool) -> Stored<()> {
        let logged = self.session.sync();
        let connection = connection(&mut self.connection, &self.path)?;
        let finished = self.session.finished_segments(connection)?;
        let synced = self.sync(must_copy);
        if synced.is_err() && !finished.is_empty() {
            self.session.retry_finished();
        }
        synced.and(logged)?;
        for log in finished {
            // If deletion fails, the next process deletes it.
            let _ = fs::remove_file(log);
        }
        self.file_id.check(&self.path)
    }

    /// Syncs the WAL, and checkpoints it if it has grown or if `must_copy`. After a failed sync the
    /// system may treat unwritten pages as written; a synced copy does not depend on them.
    fn sync(&mut self, must_copy: bool) -> Stored<()> {
        let failed = |error: io::Error| StoreError::Failed(error.to_string());
        sync_log(&self.path).map_err(failed)?;
        if !self.is_name_synced {
            sync_folder(&self.path).map_err(failed)?;
            self.is_name_synced = true;
        }
        let connection = connection(&mut self.connection, &self.path)?;
        let log = checkpoint(connection, "NOOP")?;
        if log.waiting_pages() < CHECKPOINT_PAGES && !must_copy {
            return Ok(());
        }
        let mut log = checkpoint(connection, "PASSIVE")?;
        if log.waiting_pages() > 0 && (must_copy || log.pages >= MAX_LOG_PAGES) {
            // Others wrote meanwhile. With the write lock held, the rest is short.
            log = checkpoint(&self.shared.connection(), "PASSIVE")?;
        }
        if must_copy && log.waiting_pages() > 0 {
            return Err(StoreError::Busy);
        }
        Ok(())
    }
}

/// Returns the connection at `place`, opened if missing.
fn connection<'a>(
    place: &'a mut Option<Connection>,
    path: &Path,
) -> rusqlite::Result<&'a mut Connection> {
    match place {
        Some(connection) => Ok(connection),
        none => Ok(none.insert(connect(path)?)),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = readers::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    Ok(connection)
}

/// Pages of the WAL, and how many of them are checkpointed.
struct Log {
    pages: i64,
    copied_pages: i64,
}

impl Log {
    fn waiting_pages(&self) -> i64 {
        self.pages - self.copied_pages
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> Stored<Log> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let read = |row: &rusqlite::Row<'_>| Ok(Log { pages: row.get(1)?, copied_pages: row.get(2)? });
    Ok(connection.prepare_cached(&sql)?.query_row([], read)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Sqlite;
    use super::*;
    use crate::backend::Values;
    use crate::{State as StoreState, StoreOptions};

    /// A folder with a store that tests sync themselves, removed on drop.
    struct Opened {
        folder: PathBuf,
        path: PathBuf,
        sqlite: Sqlite,
    }

    impl Opened {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            fs::create_dir(&folder).expect("the temporary directory can be written");
            let path = folder.join("weir.db");
            let sync_interval = Duration::from_secs(3600);
            let never = StoreOptions { sync_interval, ..StoreOptions::default() };
            let sqlite = Sqlite::open(&path, never).expect("it is made");
            Self { folder, path, sqlite }
        }

        fn syncer(&self, path: &Path) -> Syncer {
            let shared = Arc::clone(&self.sqlite.writer.shared);
            let session = Arc::clone(&self.sqlite.session);
            let (file_id, path) = (FileId::of(path), path.to_owned());
            Syncer { path, file_id, shared, session, connection: None, is_name_synced: false }
        }

        async fn write(&self, pages: i64) {
            let work = move |connection: &Connection| {
                connection.execute_batch("CREATE TABLE IF NOT EXISTS filler (value BLOB)")?;
                connection.execute("INSERT INTO filler VALUES (zeroblob(?1))", [pages * 4096])
            };
            self.sqlite.writer.run(work).await.expect("there is room");
        }

        fn log(&self) -> Log {
            let connection = connect(&self.path).expect("it is there");
            checkpoint(&connection, "NOOP").expect("it can be read")
        }
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            // If removal fails, the system cleans up.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[tokio::test]
    async fn the_wal_is_copied_once_it_has_grown_and_restarts() {
        let place = Opened::new("copied");
        let mut syncer = place.syncer(&place.path);
        place.write(CHECKPOINT_PAGES / 2).await;
        syncer.sync(false).expect("it can be synced");
        assert!(place.log().waiting_pages() >= CHECKPOINT_PAGES / 2, "it is short");
        place.write(CHECKPOINT_PAGES).await;
        syncer.sync(false).expect("it can be synced");
        assert_eq!(place.log().waiting_pages(), 0);
        place.write(1).await;
        assert!(place.log().pages < CHECKPOINT_PAGES, "the log restarted");
        syncer.sync(true).expect("it can be synced");
        assert_eq!(place.log().waiting_pages(), 0, "all of it, on request");
    }

    #[tokio::test]
    async fn a_long_reader_keeps_the_wal_and_blocks_nobody() {
        let place = Opened::new("read");
        let mut syncer = place.syncer(&place.path);
        place.write(1).await;
        let reader = connect(&place.path).expect("it is there");
        reader.execute_batch("BEGIN; SELECT count(*) FROM filler").expect("a table");
        place.write(MAX_LOG_PAGES).await;
        syncer.sync(false).expect("it can be synced");
        assert!(place.log().waiting_pages() > 0);
        assert_eq!(syncer.sync(true), Err(StoreError::Busy), "not all can be copied");
        reader.execute_batch("COMMIT").expect("it was begun");
        place.write(1).await;
        syncer.sync(true).expect("it can be synced");
        assert_eq!(place.log().waiting_pages(), 0);
    }

    #[tokio::test]
    async fn a_failed_sync_is_reported_until_one_succeeds() {
        let place = Opened::new("failing");
        place.write(1).await;
        // A folder in the WAL's place cannot be synced.
        let elsewhere = place.folder.join("other.db");
        fs::create_dir(log_path(&elsewhere)).expect("the folder can be written");
        let state = &place.sqlite.dirty.as_ref().expect("it is a file").0;
        let failed = place.syncer(&elsewhere).sync(false);
        assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
        report(&failed, &state.is_failing);
        assert_eq!(place.sqlite.state(), StoreState::Failing);
        report(&place.syncer(&place.path).sync(true), &state.is_failing);
        assert_eq!(place.sqlite.state(), StoreState::File);
    }
}
