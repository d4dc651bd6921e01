//! The thread that brings what was written to the disk, in groups, copies the log of writes into the
//! file and has requests moved into the tables, so that no request waits for any of it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::time::Instant;

use super::files::sync_folder;
use super::ledger::Ledger;
use super::writer::Shared;
use super::{OpenError, StoreError, readers};

/// Pages of the log that wait to be copied into the file before that is done.
const CHECKPOINT_PAGES: i64 = 1000;
/// Pages of the log past which writing stops until the last of them is copied, so that the log can
/// begin anew. A reader that does not end can keep it from that.
const MAX_LOG_PAGES: i64 = 8000;

/// How often requests are moved into the tables, at most: the more go at once, the less each takes.
/// Whoever asks for them has them moved first.
const MOVE_INTERVAL: Duration = Duration::from_secs(1);

/// Says that something was committed. Clones say it to the same thread.
#[derive(Clone, Default)]
pub struct Dirty(Arc<State>);

#[derive(Default)]
struct State {
    is_dirty: AtomicBool,
    is_ended: AtomicBool,
    is_failing: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Dirty {
    /// Something was committed.
    pub fn note(&self) {
        // One that knows already is not woken: waking costs more than a commit.
        if !self.0.is_dirty.load(Ordering::Acquire) && !self.0.is_dirty.swap(true, Ordering::AcqRel)
        {
            self.wake();
        }
    }

    /// Nothing more will be committed.
    pub fn end(&self) {
        self.0.is_ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether what was committed last did not come to the disk.
    pub fn is_failing(&self) -> bool {
        self.0.is_failing.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(thread) = self.0.thread.get() {
            thread.unpark();
        }
    }
}

/// Starts the thread for the store in the file at `path`, whose writer is `shared`.
pub fn start(
    path: &Path,
    interval: Duration,
    dirty: Dirty,
    shared: Arc<Shared>,
    ledger: Arc<Ledger>,
) -> Result<(), OpenError> {
    let path = path.to_owned();
    let place = Place::of(&path);
    let syncer = Syncer { path, place, shared, ledger, connection: None, is_named: false };
    // Logs that an earlier process left to be deleted.
    dirty.note();
    let state = Arc::clone(&dirty.0);
    let thread = std::thread::Builder::new()
        .name("weir-sync".to_owned())
        .spawn(move || run(syncer, &state, interval))
        .map_err(|error| OpenError::System { said: format!("no thread: {error}") })?;
    // Nothing else sets it.
    let _ = dirty.0.thread.set(thread.thread().clone());
    // It was noted before there was a thread to wake.
    thread.thread().unpark();
    Ok(())
}

/// Brings what is committed in the store in the file at `path` to the disk, and waits for it.
pub fn sync_now(path: &Path) -> Result<(), StoreError> {
    sync_log(path).map_err(|error| StoreError::Failed(error.to_string()))
}

fn sync_log(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(log_path(path)) {
        Ok(log) => log.sync_data(),
        // Whoever closed the store last has copied the log into the file and removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// SQLite's name for the log of writes.
fn log_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn run(mut syncer: Syncer, state: &State, interval: Duration) {
    let (mut moved_at, mut is_owed) = (Instant::now(), false);
    while !state.is_ended.load(Ordering::Acquire) {
        let left = MOVE_INTERVAL.saturating_sub(moved_at.elapsed());
        match (state.is_dirty.load(Ordering::Acquire), is_owed) {
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
        let is_due = moved_at.elapsed() >= MOVE_INTERVAL;
        if is_due {
            // What could not be moved is owed still. The writer tells why.
            let _ = syncer.move_requests();
            moved_at = Instant::now();
        }
        is_owed = syncer.ledger.is_unmoved();
        let synced = syncer.bring(state.is_failing.load(Ordering::Relaxed));
        if synced.is_err() {
            // It is tried again with the next interval, whether or not more is written.
            state.is_dirty.store(true, Ordering::Release);
        }
        report(&synced, &state.is_failing);
    }
    // The process may go on for long after it has closed a store. What cannot be done now is left
    // to the next that opens it.
    syncer.ledger.close();
    let _ = syncer.move_requests();
    let _ = syncer.bring(false);
}

/// Lets `interval` pass, but for the end.
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

fn report(synced: &Result<(), StoreError>, is_failing: &AtomicBool) {
    match synced {
        Ok(()) if is_failing.swap(false, Ordering::Relaxed) => {
            tracing::info!(target: "weir::store", "the store reaches the disk again");
        }
        Err(error) if !is_failing.swap(true, Ordering::Relaxed) => tracing::warn!(
            target: "weir::store",
            %error,
            "the store does not reach the disk; what is written now would not survive a loss of power"
        ),
        _ => {}
    }
}

/// Which file is a store's, so that another in its place, or none, is noticed.
struct Place(Option<(u64, u64)>);

impl Place {
    #[cfg(unix)]
    fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(fs::metadata(path).ok().map(|file| (file.dev(), file.ino())))
    }

    /// Elsewhere a file that is open cannot be removed.
    #[cfg(not(unix))]
    fn of(_path: &Path) -> Self {
        Self(None)
    }

    fn check(&self, path: &Path) -> Result<(), StoreError> {
        if Self::of(path).0 == self.0 {
            return Ok(());
        }
        Err(StoreError::Failed(
            "its file was removed or replaced while weir ran; restart weir".to_owned(),
        ))
    }
}

struct Syncer {
    path: PathBuf,
    place: Place,
    shared: Arc<Shared>,
    ledger: Arc<Ledger>,
    connection: Option<Connection>,
    /// Whether the folder's own entry for the log is on the disk.
    is_named: bool,
}

impl Syncer {
    /// Moves what is written down of requests into the tables. The writer tells of a failure.
    fn move_requests(&self) -> Result<(), StoreError> {
        self.ledger.move_own(&self.shared)
    }

    /// Brings everything to the disk, and then deletes logs that nothing is left in.
    fn bring(&mut self, must_copy: bool) -> Result<(), StoreError> {
        let logged = self.ledger.sync();
        let connection = connection(&mut self.connection, &self.path)?;
        let finished = self.ledger.finished(connection)?;
        let synced = self.sync(must_copy);
        if synced.is_err() && !finished.is_empty() {
            self.ledger.keep_finished();
        }
        synced.and(logged)?;
        for log in finished {
            // What cannot be deleted is left to the next process.
            let _ = fs::remove_file(log);
        }
        self.place.check(&self.path)
    }

    /// Syncs the log, and copies it into the file where it has grown or `must_copy` says so: after
    /// a sync that failed the system may hold pages for written that are not, and a copy that is
    /// synced does not depend on them.
    fn sync(&mut self, must_copy: bool) -> Result<(), StoreError> {
        let said = |error: io::Error| StoreError::Failed(error.to_string());
        sync_log(&self.path).map_err(said)?;
        if !self.is_named {
            sync_folder(&self.path).map_err(said)?;
            self.is_named = true;
        }
        let connection = connection(&mut self.connection, &self.path)?;
        let log = checkpoint(connection, "NOOP")?;
        if log.waiting_pages() < CHECKPOINT_PAGES && !must_copy {
            return Ok(());
        }
        let mut log = checkpoint(connection, "PASSIVE")?;
        if log.waiting_pages() > 0 && (must_copy || log.pages >= MAX_LOG_PAGES) {
            // Others have written meanwhile. With nobody writing, what is left is brief.
            log = checkpoint(&self.shared.connection(), "PASSIVE")?;
        }
        if must_copy && log.waiting_pages() > 0 {
            return Err(StoreError::Busy);
        }
        Ok(())
    }
}

/// The connection at `place`, made where there is none.
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

/// Pages of the log, and how many of them are in the file.
struct Log {
    pages: i64,
    copied_pages: i64,
}

impl Log {
    fn waiting_pages(&self) -> i64 {
        self.pages - self.copied_pages
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> Result<Log, StoreError> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let read = |row: &rusqlite::Row<'_>| Ok(Log { pages: row.get(1)?, copied_pages: row.get(2)? });
    Ok(connection.prepare_cached(&sql)?.query_row([], read)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::sqlite::Sqlite;
    use super::super::{State as Kept, StoreOptions};
    use super::*;

    /// A folder with a store that is synced by hand, gone in the end.
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
            let shared = Arc::clone(self.sqlite.writer().shared());
            let ledger = Arc::clone(self.sqlite.ledger());
            let (place, path) = (Place::of(path), path.to_owned());
            Syncer { path, place, shared, ledger, connection: None, is_named: false }
        }

        async fn write(&self, pages: i64) {
            let work = move |connection: &Connection| {
                connection.execute_batch("CREATE TABLE IF NOT EXISTS filler (value BLOB)")?;
                connection.execute("INSERT INTO filler VALUES (zeroblob(?1))", [pages * 4096])
            };
            self.sqlite.write(work).await.expect("there is room");
        }

        fn log(&self) -> Log {
            let connection = connect(&self.path).expect("it is there");
            checkpoint(&connection, "NOOP").expect("it can be read")
        }
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            // What cannot be removed is the system's to clear.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[tokio::test]
    async fn the_log_is_copied_once_it_has_grown_and_begins_anew() {
        let place = Opened::new("copied");
        let mut syncer = place.syncer(&place.path);
        place.write(CHECKPOINT_PAGES / 2).await;
        syncer.sync(false).expect("it can be synced");
        assert!(place.log().waiting_pages() >= CHECKPOINT_PAGES / 2, "it is short");
        place.write(CHECKPOINT_PAGES).await;
        syncer.sync(false).expect("it can be synced");
        assert_eq!(place.log().waiting_pages(), 0);
        place.write(1).await;
        assert!(place.log().pages < CHECKPOINT_PAGES, "it began anew");
        syncer.sync(true).expect("it can be synced");
        assert_eq!(place.log().waiting_pages(), 0, "all of it, when told");
    }

    #[tokio::test]
    async fn a_reader_that_does_not_end_keeps_the_log_and_stops_nobody() {
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
    async fn a_disk_that_is_not_reached_is_told_until_it_is() {
        let place = Opened::new("failing");
        place.write(1).await;
        // A folder in the log's place is what no sync can open.
        let elsewhere = place.folder.join("other.db");
        fs::create_dir(log_path(&elsewhere)).expect("the folder can be written");
        let state = &place.sqlite.dirty().expect("it is a file").0;
        let failed = place.syncer(&elsewhere).sync(false);
        assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
        report(&failed, &state.is_failing);
        assert_eq!(place.sqlite.state(), Kept::Failing);
        report(&place.syncer(&place.path).sync(true), &state.is_failing);
        assert_eq!(place.sqlite.state(), Kept::File);
    }
}
