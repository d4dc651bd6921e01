//! Local replica of small kinds of values, which planning reads without waiting for the server.
//! Changes by other processes arrive within a moment. Evicted entries stay here until they expire.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::{Entry, Kind, Tenant};
use super::connection::{Connection, Served, TIMEOUT};
use super::{Postgres, ServerState};
use crate::sql::stored;

/// Rows per read.
const ROWS_AT_ONCE: i64 = 1000;

/// Replicas, by kind.
#[derive(Default)]
pub(super) struct Replicas(Mutex<HashMap<&'static str, Replica>>);

/// Replica of a kind, as of the last read.
#[derive(Default)]
struct Replica {
    /// Number of the last change included.
    change: i64,
    entries: HashMap<(Tenant, Bytes), (Bytes, i64)>,
}

impl Replicas {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<&'static str, Replica>) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Removes expired entries.
    pub(super) fn forget_ended(&self, now_ms: u64) {
        let now = stored(now_ms);
        self.with(|replicas| {
            for replica in replicas.values_mut() {
                replica.entries.retain(|_, (_, expires_ms)| *expires_ms > now);
            }
        });
    }

    /// Returns a value of a replicated kind; `None` if the kind is not replicated.
    pub(super) fn get(
        &self,
        tenant: Tenant,
        kind: Kind,
        key: &[u8],
        now_ms: u64,
    ) -> Option<Option<Entry>> {
        let key = Bytes::copy_from_slice(key);
        self.with(|replicas| {
            let replica = replicas.get(kind.name)?;
            let found = replica.entries.get(&(tenant, key.clone()));
            let live = found.filter(|(_, expires_ms)| *expires_ms > stored(now_ms));
            Some(live.map(|(value, expires_ms)| Entry {
                key,
                value: value.clone(),
                expires_ms: u64::try_from(*expires_ms).unwrap_or(0),
            }))
        })
    }

    /// Reads changes from the server.
    pub(super) async fn refresh(&self, connection: &Connection) -> Served<()> {
        let kinds: Vec<&'static str> = self.with(|replicas| replicas.keys().copied().collect());
        for kind in kinds {
            while self.read_changes(connection, kind).await? == ROWS_AT_ONCE as usize {}
        }
        Ok(())
    }

    async fn read_changes(&self, connection: &Connection, kind: &'static str) -> Served<usize> {
        // Changes of a kind are committed in the order of their numbers, under a lock.
        let sql = "SELECT tenant, key, value, expires_ms, change FROM weir_entry
                   WHERE kind = $1 AND change > $2 ORDER BY change LIMIT $3";
        let from = self.with(|replicas| replicas.get(kind).map_or(0, |replica| replica.change));
        let rows = connection.rows(sql, &[&kind, &from, &ROWS_AT_ONCE]).await?;
        self.with(|replicas| {
            let replica = replicas.entry(kind).or_default();
            for row in &rows {
                let tenant = Tenant(row.get::<_, &[u8]>(0).try_into().unwrap_or_default());
                let key = Bytes::copy_from_slice(row.get(1));
                let value = Bytes::copy_from_slice(row.get(2));
                replica.entries.insert((tenant, key), (value, row.get(3)));
                replica.change = replica.change.max(row.get(4));
            }
        });
        Ok(rows.len())
    }
}

impl Postgres {
    /// Starts replicating a kind. Blocks during the first read.
    pub(super) fn start_replica(&self, kind: Kind) {
        let is_new = self.0.shared.replicas.with(|replicas| {
            let is_new = !replicas.contains_key(kind.name);
            replicas.entry(kind.name).or_default();
            is_new
        });
        if !is_new {
            return;
        }
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let shared = Arc::clone(&self.0.shared);
        self.0.runtime.spawn(async move {
            read_first(&shared).await;
            // The replica is filled even if the caller no longer waits.
            let _ = reply.send(());
        });
        // If the read fails now, it is repeated with the next one.
        let _ = answer.recv_timeout(TIMEOUT);
        self.watch();
    }
}

async fn read_first(shared: &ServerState) {
    if let Ok(connection) = shared.pool.lease().await {
        // Retried later.
        let _ = shared.replicas.refresh(&connection).await;
    }
}
