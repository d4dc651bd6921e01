//! Values looked at without being asked for one by one with a place among the readers: one at once, or
//! all of a kind.

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::sqlite::{Sqlite, find, stored};
use super::{Entry, Kind, StoreError, Tenant};

impl Sqlite {
    pub fn peek(
        &self,
        tenant: Tenant,
        kind: Kind,
        key: &[u8],
        now_ms: u64,
    ) -> Option<Option<Entry>> {
        let found = self.glance(|connection| find(connection, tenant, kind, key, now_ms))?;
        Some(found.map(|found| Entry {
            key: Bytes::copy_from_slice(key),
            value: found.value,
            expires_ms: u64::try_from(found.expires_ms).unwrap_or(0),
        }))
    }

    pub async fn list(
        &self,
        kind: Kind,
        now_ms: u64,
        most: usize,
    ) -> Result<Vec<(Tenant, Entry)>, StoreError> {
        let work = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(
                "SELECT tenant, key, value, expires_ms FROM entry
                 WHERE kind = ?1 AND expires_ms > ?2 ORDER BY key, tenant LIMIT ?3",
            )?;
            let most = stored(most as u64);
            let rows = statement.query_map(params![kind.name, stored(now_ms), most], |row| {
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
