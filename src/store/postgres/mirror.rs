//! Kinds of values that are at hand without asking the server: small ones, which planning looks at and
//! must not wait for. What others change of them comes within a moment. What is pushed out for want of
//! room stays here until it ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::super::sqlite::stored;
use super::super::{Entry, Kind, Tenant};
use super::connection::{Connection, Failure, PATIENCE};
use super::{Postgres, Shared};

/// How many rows are taken at once.
const ROWS_AT_ONCE: i64 = 1000;

/// What is at hand, by kind.
#[derive(Default)]
pub struct Mirrors(Mutex<HashMap<&'static str, Mirror>>);

/// A kind as it was when the server was last asked.
#[derive(Default)]
struct Mirror {
    /// The last change that is in it.
    change: i64,
    entries: HashMap<(Tenant, Bytes), (Bytes, i64)>,
}

impl Mirrors {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<&'static str, Mirror>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets what has ended.
    pub fn forget_ended(&self, now_ms: u64) {
        let now = stored(now_ms);
        self.with(|mirrors| {
            for mirror in mirrors.values_mut() {
                mirror.entries.retain(|_, (_, expires_ms)| *expires_ms > now);
            }
        });
    }

    /// Takes what has changed.
    pub async fn refresh(&self, connection: &Connection) -> Result<(), Failure> {
        let kinds: Vec<&'static str> = self.with(|mirrors| mirrors.keys().copied().collect());
        for kind in kinds {
            while self.take_some(connection, kind).await? == ROWS_AT_ONCE as usize {}
        }
        Ok(())
    }

    async fn take_some(
        &self,
        connection: &Connection,
        kind: &'static str,
    ) -> Result<usize, Failure> {
        // Changes of a kind are committed in the order of their numbers: they hold a lock.
        let sql = "SELECT tenant, key, value, expires_ms, change FROM weir_entry
                   WHERE kind = $1 AND change > $2 ORDER BY change LIMIT $3";
        let from = self.with(|mirrors| mirrors.get(kind).map_or(0, |mirror| mirror.change));
        let rows = connection.rows(sql, &[&kind, &from, &ROWS_AT_ONCE]).await?;
        self.with(|mirrors| {
            let mirror = mirrors.entry(kind).or_default();
            for row in &rows {
                let tenant = Tenant(row.get::<_, &[u8]>(0).try_into().unwrap_or_default());
                let key = Bytes::copy_from_slice(row.get(1));
                let value = Bytes::copy_from_slice(row.get(2));
                mirror.entries.insert((tenant, key), (value, row.get(3)));
                mirror.change = mirror.change.max(row.get(4));
            }
        });
        Ok(rows.len())
    }
}

impl Postgres {
    /// Has all of a kind at hand from now on. Blocks while it is read for the first time.
    pub fn keep_at_hand(&self, kind: Kind) {
        let is_new = self.0.shared.mirrors.with(|mirrors| {
            let is_new = !mirrors.contains_key(kind.name);
            mirrors.entry(kind.name).or_default();
            is_new
        });
        if !is_new {
            return;
        }
        let (told, heard) = std::sync::mpsc::sync_channel(1);
        let shared = Arc::clone(&self.0.shared);
        self.0.runtime.spawn(async move {
            read_first(&shared).await;
            // Where it is no longer waited for, it is at hand all the same.
            let _ = told.send(());
        });
        // What cannot be read now is read when the server is asked again.
        let _ = heard.recv_timeout(PATIENCE);
        self.watch();
    }

    /// One value of a kind that is at hand; `None` where the kind is not.
    pub fn peek(
        &self,
        tenant: Tenant,
        kind: Kind,
        key: &[u8],
        now_ms: u64,
    ) -> Option<Option<Entry>> {
        let key = Bytes::copy_from_slice(key);
        self.0.shared.mirrors.with(|mirrors| {
            let mirror = mirrors.get(kind.name)?;
            let found = mirror.entries.get(&(tenant, key.clone()));
            let lives = found.filter(|(_, expires_ms)| *expires_ms > stored(now_ms));
            Some(lives.map(|(value, expires_ms)| Entry {
                key,
                value: value.clone(),
                expires_ms: u64::try_from(*expires_ms).unwrap_or(0),
            }))
        })
    }
}

async fn read_first(shared: &Shared) {
    if let Ok(connection) = shared.pool.lease().await {
        // It is asked again.
        let _ = shared.mirrors.refresh(&connection).await;
    }
}
