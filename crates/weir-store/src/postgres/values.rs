//! Values in PostgreSQL. Size limits are enforced in the database, shared by all weirs: see
//! `1.sql`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::values::check;
use super::super::{Activity, Entry, Kind, Life, SECRET_BYTES, State, Stored, Tenant};
use super::columns::Columns;
use super::connection::Param;
use super::{Postgres, ServerState, schema};
use crate::backend::Values;
use crate::conversations;
use crate::sql::stored;

/// Maximum expired entries deleted per transaction, so that others do not wait long.
const DELETED_AT_ONCE: i64 = 1000;

/// Returns entries as parameters: keys, values, expiries and sizes.
fn columns<'a>(entries: impl Iterator<Item = &'a Entry>) -> Columns<'static> {
    Columns::new(entries.map(|entry| {
        [
            entry.key.to_vec().into(),
            entry.value.to_vec().into(),
            entry.expires_ms.into(),
            entry.weight_bytes().into(),
        ]
    }))
}

#[async_trait]
impl Values for Postgres {
    fn secret(&self) -> [u8; SECRET_BYTES] {
        self.0.shared.secret
    }

    fn file(&self) -> Option<&Path> {
        None
    }

    fn state(&self) -> State {
        if self.0.shared.pool.health.is_failing() { State::Failing } else { State::Server }
    }

    fn activity(&self) -> Activity {
        let shared = &self.0.shared;
        let (writes, failed_writes) = shared.pool.health.counts();
        let (queued, transactions) = (shared.queues.waiting(), shared.pool.health.latency.read());
        Activity { writes, failed_writes, queued, transactions, ..Activity::default() }
    }

    async fn sync(&self) -> Stored<()> {
        self.run(|shared| async move {
            let connection = shared.pool.lease().await?;
            connection.begin().await?;
            // A commit that waits for the disk flushes all earlier ones.
            connection.batch("SET LOCAL synchronous_commit = on").await?;
            schema::put(&connection, "synced", &[]).await?;
            Ok(connection.commit().await?)
        })
        .await
    }

    fn peek(&self, tenant: Tenant, kind: Kind, key: &[u8], now_ms: u64) -> Option<Option<Entry>> {
        self.0.shared.replicas.get(tenant, kind, key, now_ms)
    }

    fn replicate(&self, kind: Kind) {
        self.start_replica(kind);
    }

    async fn put(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Stored<()> {
        check(kind, &entries)?;
        // One statement may write a key only once: the last entry wins.
        let mut last = HashMap::new();
        for (place, entry) in entries.iter().enumerate() {
            last.insert(entry.key.clone(), place);
        }
        let is_last = |(place, entry): &(usize, &Entry)| last.get(&entry.key) == Some(place);
        let kept = entries.iter().enumerate().filter(is_last);
        let columns = columns(kept.map(|(_, entry)| entry));
        self.run(move |shared| write(shared, "weir_put", tenant, kind, columns, now_ms)).await?;
        Ok(())
    }

    async fn put_if_absent(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Stored<Vec<Bytes>> {
        check(kind, &entries)?;
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let columns = columns(entries.iter());
        let current = self
            .run(move |shared| write(shared, "weir_put_if_absent", tenant, kind, columns, now_ms))
            .await?;
        Ok(current.into_iter().map(Bytes::from).collect())
    }

    async fn fetch(
        &self,
        tenant: Tenant,
        kind: Kind,
        keys: Vec<Bytes>,
        now_ms: u64,
        life: Life,
    ) -> Stored<Vec<Option<Bytes>>> {
        let wanted: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        let found =
            self.read(move |shared| fetch(shared, tenant, kind, wanted, now_ms, life)).await?;
        Ok(keys.iter().map(|key| found.get(&key[..]).cloned()).collect())
    }

    async fn delete_expired(&self, now_ms: u64) -> Stored<u64> {
        self.0.shared.replicas.forget_ended(now_ms);
        let of_conversations = conversations::delete_expired(self, now_ms).await?;
        self.run(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let kinds = connection.rows("SELECT kind FROM weir_total ORDER BY kind", &[]).await?;
            let mut deleted = 0;
            for kind in &kinds {
                let kind: &str = kind.get(0);
                loop {
                    let sql = "SELECT weir_delete_ended($1, $2, $3)";
                    let params = (stored(now_ms), DELETED_AT_ONCE);
                    let row = connection.row(sql, &[&kind, &params.0, &params.1]).await?;
                    let more: i64 = row.map_or(0, |row| row.get(0));
                    deleted += u64::try_from(more).unwrap_or(0);
                    if more < DELETED_AT_ONCE {
                        break;
                    }
                }
            }
            Ok(deleted)
        })
        .await
        .map(|deleted| deleted + of_conversations)
    }
}

/// Writes entries with one of the two SQL functions; returns its result.
async fn write(
    shared: Arc<ServerState>,
    function: &'static str,
    tenant: Tenant,
    kind: Kind,
    columns: Columns<'static>,
    now_ms: u64,
) -> Stored<Vec<Vec<u8>>> {
    let connection = shared.pool.lease().await?;
    let (now, most) = (stored(now_ms), stored(kind.max_bytes));
    // One of them returns nothing.
    let sql = match function {
        "weir_put" => "SELECT NULL::bytea[] FROM weir_put($1, $2, $3, $4, $5, $6, $7, $8)",
        _ => "SELECT weir_put_if_absent($1, $2, $3, $4, $5, $6, $7, $8)",
    };
    let owner = &tenant.0[..];
    let params = [&[&kind.name as Param<'_>, &owner], &*columns.params(), &[&now, &most]].concat();
    let row = connection.row(sql, &params).await?;
    Ok(row.and_then(|row| row.get(0)).unwrap_or_default())
}

/// Returns live entries by key, and renews those that are due.
async fn fetch(
    shared: Arc<ServerState>,
    tenant: Tenant,
    kind: Kind,
    keys: Vec<Vec<u8>>,
    now_ms: u64,
    life: Life,
) -> Stored<HashMap<Vec<u8>, Bytes>> {
    let connection = shared.pool.lease().await?;
    let sql = "SELECT key, value, expires_ms FROM weir_entry
               WHERE kind = $1 AND tenant = $2 AND key = ANY ($3) AND expires_ms > $4";
    let now = stored(now_ms);
    let rows = connection.rows(sql, &[&kind.name, &&tenant.0[..], &keys, &now]).await?;
    if let Life::Renewed { lifetime_ms } = life {
        let due = stored(now_ms.saturating_add(lifetime_ms / 2));
        let ends = |row: &tokio_postgres::Row| row.get::<_, i64>(2);
        if rows.iter().any(|row| ends(row) <= due) {
            // Rows locked by others are skipped: they are being rewritten anyway.
            let sql = "UPDATE weir_entry SET expires_ms = greatest(expires_ms, $5) WHERE id IN
                       (SELECT id FROM weir_entry WHERE kind = $1 AND tenant = $2
                        AND key = ANY ($3) AND expires_ms > $4 FOR UPDATE SKIP LOCKED)";
            let end = stored(now_ms.saturating_add(lifetime_ms));
            let renewed =
                connection.execute(sql, &[&kind.name, &&tenant.0[..], &keys, &now, &end]).await;
            // The values read are still valid.
            if let Err(failure) = renewed {
                shared.pool.health.report(Err(&failure.into()));
            }
        }
    }
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, Vec<u8>>(1).into())).collect())
}
