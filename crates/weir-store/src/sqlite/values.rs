//! Values in SQLite.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::log::checkpoint_all;
use super::readers::Readers;
use super::sync::Dirty;
use super::{Sqlite, stored, sync};
use crate::backend::Values;
use crate::conversations;
use crate::values::check;
use crate::{Activity, Entry, Kind, Life, SECRET_BYTES, State, StoreError, Tenant};

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
            Some(_) if self.is_failing() || self.session.is_failing() => State::Failing,
            Some(_) if self.dirty.as_ref().is_some_and(Dirty::is_failing) => State::Failing,
            Some(_) => State::File,
        }
    }

    async fn sync(&self) -> Result<(), StoreError> {
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
    ) -> Result<(), StoreError> {
        check(kind, &entries)?;
        let work = move |connection: &Connection| {
            for entry in &entries {
                insert(connection, tenant, kind, entry, OnConflict::Replace)?;
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
    ) -> Result<Vec<Bytes>, StoreError> {
        check(kind, &entries)?;
        let work = move |connection: &Connection| {
            let mut current = Vec::with_capacity(entries.len());
            for entry in &entries {
                delete_if_ended(connection, tenant, kind, &entry.key, now_ms)?;
                insert(connection, tenant, kind, entry, OnConflict::Keep)?;
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
                |found: &Option<StoredEntry>| found.as_ref().is_some_and(|it| it.ends_by(due_ms));
            if found.iter().any(is_due) {
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

    async fn delete_expired(&self, now_ms: u64) -> Result<u64, StoreError> {
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
                return Ok(deleted + conversations::delete_expired(self, now_ms).await?);
            }
        }
    }

    fn peek(&self, tenant: Tenant, kind: Kind, key: &[u8], now_ms: u64) -> Option<Option<Entry>> {
        let found = self.read_now(|connection| find(connection, tenant, kind, key, now_ms))?;
        Some(found.map(|found| Entry {
            key: Bytes::copy_from_slice(key),
            value: found.value,
            expires_ms: u64::try_from(found.expires_ms).unwrap_or(0),
        }))
    }

    async fn list(
        &self,
        kind: Kind,
        now_ms: u64,
        limit: usize,
    ) -> Result<Vec<(Tenant, Entry)>, StoreError> {
        let work = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(
                "SELECT tenant, key, value, expires_ms FROM entry
                 WHERE kind = ?1 AND expires_ms > ?2 ORDER BY key, tenant LIMIT ?3",
            )?;
            let limit = stored(limit as u64);
            let rows = statement.query_map(params![kind.name, stored(now_ms), limit], |row| {
                let entry = Entry {
                    key: row.get::<_, Vec<u8>>(1)?.into(),
                    value: row.get::<_, Vec<u8>>(2)?.into(),
                    expires_ms: u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
                };
                Ok((Tenant(row.get(0)?), entry))
            })?;
            rows.collect()
        };
        self.read(work).await
    }
}

/// Behaviour of an insert if the key has a value.
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

/// A value with its expiry.
struct StoredEntry {
    value: Bytes,
    expires_ms: i64,
}

impl StoredEntry {
    fn ends_by(&self, moment_ms: u64) -> bool {
        self.expires_ms <= stored(moment_ms)
    }
}

fn find(
    connection: &Connection,
    tenant: Tenant,
    kind: Kind,
    key: &[u8],
    now_ms: u64,
) -> rusqlite::Result<Option<StoredEntry>> {
    connection
        .prepare_cached(
            "SELECT value, expires_ms FROM entry
             WHERE tenant = ?1 AND kind = ?2 AND key = ?3 AND expires_ms > ?4",
        )?
        .query_row(params![tenant.0, kind.name, key, stored(now_ms)], |row| {
            let value: Vec<u8> = row.get(0)?;
            Ok(StoredEntry { value: value.into(), expires_ms: row.get(1)? })
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

/// Deletes the excess of a kind: expired entries, then the oldest of the tenant with the most.
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
