//! Values in SQLite.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, params};

use super::log::checkpoint_all;
use super::readers::Readers;
use super::sync::Dirty;
use super::{Sqlite, cached, stored, sync};
use crate::backend::Values;
use crate::conversations;
use crate::ledger::text::from_stored;
use crate::values::check;
use crate::{Activity, Entry, Kind, Life, SECRET_BYTES, State, StoreError, Stored, Tenant};

/// Maximum expired entries deleted per transaction, so that others do not wait long.
const DELETED_AT_ONCE: i64 = 1000;

/// Returns the size of a file and of SQLite's own log next to it.
fn size_bytes(path: &Path) -> u64 {
    // A file that cannot be examined counts as empty.
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    size(path) + size(&sync::log_path(path))
}

#[async_trait]
impl Values for Sqlite {
    fn secret(&self) -> [u8; SECRET_BYTES] {
        self.secret
    }

    fn file(&self) -> Option<&Path> {
        self.readers.as_ref().map(Readers::path)
    }

    fn activity(&self) -> Activity {
        let (writer, log) = (self.writer.activity(), self.session.log.activity());
        Activity {
            writes: writer.writes + log.writes,
            failed_writes: writer.failed_writes + log.failed_writes,
            queued: writer.queued,
            transactions: writer.transactions,
            file_bytes: self.file().map_or(0, size_bytes),
            ..log
        }
    }

    fn state(&self) -> State {
        match &self.readers {
            None => State::Memory,
            Some(_) if self.writer.is_failing() || self.session.log.is_failing() => State::Failing,
            Some(_) if self.dirty.as_ref().is_some_and(Dirty::is_failing) => State::Failing,
            Some(_) => State::File,
        }
    }

    async fn sync(&self) -> Stored<()> {
        checkpoint_all(self).await;
        let (Some(readers), Some(_)) = (&self.readers, &self.dirty) else { return Ok(()) };
        let (path, session) = (readers.path().to_owned(), Arc::clone(&self.session));
        let synced = tokio::task::spawn_blocking(move || {
            session.sync()?;
            sync::sync_now(&path)
        });
        synced.await.map_err(|_| StoreError::Closed)?
    }

    async fn put(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Stored<()> {
        check(kind, &entries)?;
        let work = move |connection: &Connection| {
            for entry in &entries {
                insert(connection, tenant, kind, entry, PUT)?;
            }
            evict(connection, kind, now_ms)
        };
        self.writer.run(work).await
    }

    async fn put_if_absent(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Stored<Vec<Bytes>> {
        check(kind, &entries)?;
        let work = move |connection: &Connection| {
            let mut current = Vec::with_capacity(entries.len());
            for entry in &entries {
                delete_if_ended(connection, tenant, kind, &entry.key, now_ms)?;
                insert(connection, tenant, kind, entry, PUT_IF_ABSENT)?;
                let found = find(connection, tenant, kind, &entry.key, now_ms)?;
                current.push(found.map_or_else(|| entry.value.clone(), |found| found.value));
            }
            evict(connection, kind, now_ms)?;
            Ok(current)
        };
        self.writer.run(work).await
    }

    async fn fetch(
        &self,
        tenant: Tenant,
        kind: Kind,
        keys: Vec<Bytes>,
        now_ms: u64,
        life: Life,
    ) -> Stored<Vec<Option<Bytes>>> {
        let keys = Arc::new(keys);
        let wanted = Arc::clone(&keys);
        let work = move |connection: &Connection| {
            let found = wanted.iter().map(|key| find(connection, tenant, kind, key, now_ms));
            found.collect::<rusqlite::Result<Vec<_>>>()
        };
        let found = self.read(work).await?;
        if let Life::Renewed { lifetime_ms } = life {
            let due_ms = now_ms.saturating_add(lifetime_ms / 2);
            if found.iter().flatten().any(|entry| entry.expires_ms <= due_ms) {
                let expires_ms = now_ms.saturating_add(lifetime_ms);
                let renewed = self.writer.run(move |connection| {
                    renew(connection, tenant, kind, &keys, now_ms, expires_ms)
                });
                // The values read are still valid; the writer has logged the failure.
                let _ = renewed.await;
            }
        }
        Ok(found.into_iter().map(|found| found.map(|found| found.value)).collect())
    }

    async fn delete_expired(&self, now_ms: u64) -> Stored<u64> {
        let mut deleted = 0;
        loop {
            let work = move |connection: &Connection| {
                let delete = "DELETE FROM entry WHERE id IN
                              (SELECT id FROM entry WHERE expires_ms <= ?1 LIMIT ?2)";
                cached::run(connection, delete, params![stored(now_ms), DELETED_AT_ONCE])
            };
            let more = self.writer.run(work).await? as u64;
            deleted += more;
            if more < DELETED_AT_ONCE as u64 {
                return Ok(deleted + conversations::delete_expired(self, now_ms).await?);
            }
        }
    }

    fn peek(&self, tenant: Tenant, kind: Kind, key: &[u8], now_ms: u64) -> Option<Option<Entry>> {
        self.read_now(|connection| find(connection, tenant, kind, key, now_ms))
    }
}

/// Inserts an entry, and replaces the one that has its key.
const PUT: &str = "INSERT INTO entry (tenant, kind, key, value, expires_ms, weight_bytes)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (tenant, kind, key) DO UPDATE SET
    value = excluded.value, expires_ms = excluded.expires_ms, weight_bytes = excluded.weight_bytes";
/// Inserts an entry, unless another has its key.
const PUT_IF_ABSENT: &str = "INSERT INTO entry (tenant, kind, key, value, expires_ms, weight_bytes)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (tenant, kind, key) DO NOTHING";

fn insert(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    entry: &Entry,
    insert: &str,
) -> rusqlite::Result<()> {
    let (key, value) = (&entry.key[..], &entry.value[..]);
    let (expires_ms, weight_bytes) = (stored(entry.expires_ms), stored(entry.weight_bytes()));
    let values = params![tenant.0, kind.name, key, value, expires_ms, weight_bytes];
    cached::run(connection, insert, values).map(drop)
}

fn find(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    key: &[u8],
    now_ms: u64,
) -> rusqlite::Result<Option<Entry>> {
    let select = "SELECT value, expires_ms FROM entry
                  WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND expires_ms > ?4";
    cached::first(connection, select, params![tenant.0, kind.name, key, stored(now_ms)], |row| {
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::from(row.get::<_, Vec<u8>>(0)?));
        Ok(Entry { key, value, expires_ms: from_stored(row.get(1)?) })
    })
}

fn renew(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    keys: &[Bytes],
    now_ms: u64,
    expires_ms: u64,
) -> rusqlite::Result<()> {
    let renew = "UPDATE entry SET expires_ms = max(expires_ms, ?1)
                 WHERE tenant = ?2 AND kind = ?3 AND key = ?4 AND expires_ms > ?5";
    let (expires_ms, now_ms) = (stored(expires_ms), stored(now_ms));
    for key in keys {
        let values = params![expires_ms, tenant.0, kind.name, &key[..], now_ms];
        cached::run(connection, renew, values)?;
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
    let delete =
        "DELETE FROM entry WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND expires_ms <= ?4";
    cached::run(connection, delete, params![tenant.0, kind.name, key, stored(now_ms)]).map(drop)
}

/// Deletes the excess of a kind: expired entries, then the oldest of the tenant with the most.
fn evict(connection: &Connection, kind: Kind, now_ms: u64) -> rusqlite::Result<()> {
    if !is_above(connection, kind)? {
        return Ok(());
    }
    let ended = "DELETE FROM entry WHERE expires_ms <= ?1 AND kind = ?2";
    cached::run(connection, ended, params![stored(now_ms), kind.name])?;
    let oldest = "DELETE FROM entry WHERE id =
         (SELECT id FROM entry WHERE kind = ?1 AND tenant =
          (SELECT tenant FROM weight WHERE kind = ?1 ORDER BY bytes DESC, tenant DESC LIMIT 1)
          ORDER BY expires_ms, id LIMIT 1)";
    while is_above(connection, kind)? && cached::run(connection, oldest, [kind.name])? > 0 {}
    Ok(())
}

/// Whether a kind has more data than it may have.
pub(super) fn is_above(connection: &Connection, kind: Kind) -> rusqlite::Result<bool> {
    let total = "SELECT coalesce((SELECT bytes FROM total WHERE kind = ?1), 0)";
    let bytes: i64 = cached::value(connection, total, [kind.name])?;
    Ok(bytes > stored(kind.max_bytes))
}
