//! Values in SQLite: a file that several processes may share, or memory. There is one connection that
//! writes; reading has connections of its own. No caller's thread ever waits for the disk: what it
//! writes itself is brief, goes to the system's memory, and is synced by a thread.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use tokio::time::Instant;

use super::files::{close_to_others, make_private};
use super::keys::mark::Mark;
use super::ledger::Ledger;
use super::readers::{Readers, connect};
use super::sync::{self, Dirty};
use super::writer::Writer;
use super::{
    Activity, Entry, Kind, Life, OpenError, SECRET_BYTES, State, StoreError, StoreOptions, Tenant,
    schema,
};

/// How long others who make the same file are waited for.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// How large the log of writes stays after its content has gone into the file.
const MAX_LOG_BYTES: i64 = 16 << 20;
/// How many statements a connection keeps compiled.
const STATEMENTS: usize = 64;
/// How many ended entries one transaction deletes, so that others are not kept waiting.
const DELETED_AT_ONCE: i64 = 1000;

/// A database.
#[derive(Clone)]
pub struct Sqlite {
    writer: Writer,
    /// `None` where there is but one connection: memory.
    readers: Option<Readers>,
    secret: [u8; SECRET_BYTES],
    /// `None` where there is no disk.
    dirty: Option<Dirty>,
    ledger: Arc<Ledger>,
    mark: Mark,
}

impl Sqlite {
    /// Opens the file at `path`, and makes it and its folder where they are missing.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        loop {
            match Self::open_once(path, options) {
                // Where two make a file at once, SQLite refuses some steps without waiting.
                Err(OpenError::Busy) if Instant::now() < deadline => std::thread::yield_now(),
                opened => return opened,
            }
        }
    }

    fn open_once(path: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        let unusable = |error: io::Error| OpenError::Unusable { said: error.to_string() };
        make_private(path).map_err(unusable)?;
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        schema::recognise(&connection)?;
        close_to_others(path).map_err(unusable)?;
        let wal: String =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        // Where the file system cannot do it, SQLite keeps its older journal, which is only slower.
        let is_wal = wal == "wal";
        // A commit in the log of writes survives the process; a thread syncs that log.
        let synchronous = if is_wal { "normal" } else { "full" };
        connection.pragma_update(None, "synchronous", synchronous)?;
        if is_wal {
            // The thread that syncs does it.
            connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
        }
        connection.pragma_update_and_check(
            None,
            "journal_size_limit",
            MAX_LOG_BYTES,
            |_| Ok(()),
        )?;
        let (readers, dirty) = (Some(Readers::new(path)), Some(Dirty::default()));
        let sqlite = Self::start(connection, readers, dirty, options)?;
        if let Some(dirty) = &sqlite.dirty {
            let shared = Arc::clone(sqlite.writer.shared());
            let ledger = Arc::clone(&sqlite.ledger);
            sync::start(path, options.sync_interval, dirty.clone(), shared, ledger)?;
        }
        Ok(sqlite)
    }

    /// A database in memory.
    pub fn in_memory() -> Result<Self, OpenError> {
        Self::start(Connection::open_in_memory()?, None, None, StoreOptions::default())
    }

    fn start(
        mut connection: Connection,
        readers: Option<Readers>,
        dirty: Option<Dirty>,
        options: StoreOptions,
    ) -> Result<Self, OpenError> {
        // What has ended or was pushed out is overwritten and not only forgotten.
        connection.pragma_update_and_check(None, "secure_delete", "on", |_| Ok(()))?;
        let secret = schema::prepare(&mut connection)?;
        let mark = Mark::new(readers.as_ref().map(Readers::path));
        mark.agree(&mut connection)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let ledger = Ledger::new(readers.as_ref().map(Readers::path), options)?;
        let writer = Writer::start(connection, dirty.clone())?;
        Ok(Self { writer, readers, secret, dirty, ledger, mark })
    }

    #[cfg(test)]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    #[cfg(test)]
    pub fn dirty(&self) -> Option<&Dirty> {
        self.dirty.as_ref()
    }

    /// What the journal keeps in the process.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// What tells of changes to keys.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Tells the thread that syncs that a request was written down.
    pub fn note_written(&self) {
        if let Some(dirty) = &self.dirty {
            dirty.note();
        }
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.readers.as_ref().map(Readers::path)
    }

    /// Whether there is a file.
    pub fn is_file(&self) -> bool {
        self.readers.is_some()
    }

    /// Does `work` in a transaction, and gives what it gave once that is committed.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.run(work).await
    }

    /// Does `work`, which only reads, beside those who write.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.readers {
            Some(readers) => readers.run(work).await,
            None => self.writer.run(work).await,
        }
    }

    /// Waits until all that is committed is on the disk.
    pub async fn sync(&self) -> Result<(), StoreError> {
        let (Some(readers), Some(_)) = (&self.readers, &self.dirty) else { return Ok(()) };
        let (path, ledger) = (readers.path().to_owned(), Arc::clone(&self.ledger));
        let synced = tokio::task::spawn_blocking(move || {
            ledger.sync()?;
            sync::sync_now(&path)
        });
        synced.await.map_err(|_| StoreError::Closed)?
    }

    pub fn secret(&self) -> [u8; SECRET_BYTES] {
        self.secret
    }

    /// Whether the last write failed.
    pub fn is_failing(&self) -> bool {
        self.writer.is_failing()
    }

    /// What was written so far, and what waits.
    pub fn activity(&self) -> Activity {
        let (writer, log) = (self.writer.activity(), self.ledger.log().activity());
        Activity {
            writes: writer.writes + log.writes,
            failed_writes: writer.failed_writes + log.failed_writes,
            queued: writer.queued,
            log_bytes: log.log_bytes,
        }
    }

    pub fn state(&self) -> State {
        match &self.readers {
            None => State::Memory,
            Some(_) if self.is_failing() || self.ledger.is_failing() => State::Failing,
            Some(_) if self.dirty.as_ref().is_some_and(Dirty::is_failing) => State::Failing,
            Some(_) => State::File,
        }
    }

    /// Does `work`, which reads a page or two, on the caller's own thread; `None` where that fails
    /// or would have to wait for another process.
    pub fn glance<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Option<T> {
        self.readers.as_ref()?.glance(work)
    }

    pub async fn put(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let work = move |connection: &Connection| {
            for entry in &entries {
                insert(connection, tenant, kind, entry, OnConflict::Replace)?;
            }
            evict(connection, kind, now_ms)
        };
        self.writer.run(work).await
    }

    pub async fn put_if_absent(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Result<Vec<Bytes>, StoreError> {
        let work = move |connection: &Connection| {
            let mut stand = Vec::with_capacity(entries.len());
            for entry in &entries {
                delete_if_ended(connection, tenant, kind, &entry.key, now_ms)?;
                insert(connection, tenant, kind, entry, OnConflict::Keep)?;
                let found = find(connection, tenant, kind, &entry.key, now_ms)?;
                stand.push(found.map_or_else(|| entry.value.clone(), |found| found.value));
            }
            evict(connection, kind, now_ms)?;
            Ok(stand)
        };
        self.writer.run(work).await
    }

    pub async fn fetch(
        &self,
        tenant: Tenant,
        kind: Kind,
        keys: Vec<Bytes>,
        now_ms: u64,
        life: Life,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let keys = Arc::new(keys);
        let wanted = Arc::clone(&keys);
        let work = move |connection: &Connection| {
            let found = wanted.iter().map(|key| find(connection, tenant, kind, key, now_ms));
            found.collect::<rusqlite::Result<Vec<_>>>()
        };
        let found = self.read(work).await?;
        if let Life::Renewed { lifetime_ms } = life {
            let due_ms = now_ms.saturating_add(lifetime_ms / 2);
            let is_due =
                |found: &Option<Found>| found.as_ref().is_some_and(|it| it.ends_by(due_ms));
            if found.iter().any(is_due) {
                let expires_ms = now_ms.saturating_add(lifetime_ms);
                let renewed = self.writer.run(move |connection| {
                    renew(connection, tenant, kind, &keys, now_ms, expires_ms)
                });
                // What was read is right all the same; the writer has told of its failure.
                let _ = renewed.await;
            }
        }
        Ok(found.into_iter().map(|found| found.map(|found| found.value)).collect())
    }

    pub async fn delete_expired(&self, now_ms: u64) -> Result<u64, StoreError> {
        let mut deleted = 0;
        loop {
            let work = move |connection: &Connection| {
                connection
                    .prepare_cached(
                        "DELETE FROM entry WHERE id IN
                         (SELECT id FROM entry WHERE expires_ms <= ?1 LIMIT ?2)",
                    )?
                    .execute(params![stored(now_ms), DELETED_AT_ONCE])
            };
            let more = self.writer.run(work).await? as u64;
            deleted += more;
            if more < DELETED_AT_ONCE as u64 {
                return Ok(deleted);
            }
        }
    }
}

/// What an insert does to a key that has a value.
#[derive(Clone, Copy)]
enum OnConflict {
    Replace,
    Keep,
}

fn insert(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    entry: &Entry,
    on_conflict: OnConflict,
) -> rusqlite::Result<()> {
    let sql = match on_conflict {
        OnConflict::Replace => {
            "INSERT INTO entry (tenant, kind, key, value, expires_ms, weight_bytes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (tenant, kind, key) DO UPDATE SET
             value = excluded.value, expires_ms = excluded.expires_ms,
             weight_bytes = excluded.weight_bytes"
        }
        OnConflict::Keep => {
            "INSERT INTO entry (tenant, kind, key, value, expires_ms, weight_bytes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (tenant, kind, key) DO NOTHING"
        }
    };
    connection.prepare_cached(sql)?.execute(params![
        tenant.0,
        kind.name,
        &entry.key[..],
        &entry.value[..],
        stored(entry.expires_ms),
        stored(entry.weight_bytes()),
    ])?;
    Ok(())
}

/// A value, and when it ends.
pub(super) struct Found {
    pub(super) value: Bytes,
    pub(super) expires_ms: i64,
}

impl Found {
    fn ends_by(&self, moment_ms: u64) -> bool {
        self.expires_ms <= stored(moment_ms)
    }
}

pub(super) fn find(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    key: &[u8],
    now_ms: u64,
) -> rusqlite::Result<Option<Found>> {
    connection
        .prepare_cached(
            "SELECT value, expires_ms FROM entry
             WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND expires_ms > ?4",
        )?
        .query_row(params![tenant.0, kind.name, key, stored(now_ms)], |row| {
            let value: Vec<u8> = row.get(0)?;
            Ok(Found { value: value.into(), expires_ms: row.get(1)? })
        })
        .optional()
}

fn renew(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    keys: &[Bytes],
    now_ms: u64,
    expires_ms: u64,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "UPDATE entry SET expires_ms = max(expires_ms, ?1)
         WHERE tenant = ?2 AND kind = ?3 AND key = ?4 AND expires_ms > ?5",
    )?;
    for key in keys {
        let (expires_ms, now_ms) = (stored(expires_ms), stored(now_ms));
        statement.execute(params![expires_ms, tenant.0, kind.name, &key[..], now_ms])?;
    }
    Ok(())
}

fn delete_if_ended(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    key: &[u8],
    now_ms: u64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM entry WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND expires_ms <= ?4",
        )?
        .execute(params![tenant.0, kind.name, key, stored(now_ms)])?;
    Ok(())
}

/// Deletes what is too much of a kind: what has ended, then the oldest of whoever holds most.
fn evict(connection: &Connection, kind: Kind, now_ms: u64) -> rusqlite::Result<()> {
    let mut total = connection
        .prepare_cached("SELECT coalesce((SELECT bytes FROM total WHERE kind = ?1), 0)")?;
    let mut is_above = || {
        let bytes: i64 = total.query_row([kind.name], |row| row.get(0))?;
        Ok::<_, rusqlite::Error>(bytes > stored(kind.max_bytes))
    };
    if !is_above()? {
        return Ok(());
    }
    connection
        .prepare_cached("DELETE FROM entry WHERE expires_ms <= ?1 AND kind = ?2")?
        .execute(params![stored(now_ms), kind.name])?;
    let mut oldest = connection.prepare_cached(
        "DELETE FROM entry WHERE id =
         (SELECT id FROM entry WHERE kind = ?1 AND tenant =
          (SELECT tenant FROM weight WHERE kind = ?1 ORDER BY bytes DESC, tenant DESC LIMIT 1)
          ORDER BY expires_ms, id LIMIT 1)",
    )?;
    while is_above()? {
        if oldest.execute([kind.name])? == 0 {
            break;
        }
    }
    Ok(())
}

/// A number as SQLite keeps it; what it cannot keep is further away than anything is.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::DiskFull) => Self::Full,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::Foreign,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            _ => Self::Unusable { said: error.to_string() },
        }
    }
}
