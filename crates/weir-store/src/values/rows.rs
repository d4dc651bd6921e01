//! Rows of values, as both back ends read them.

use async_trait::async_trait;
use bytes::Bytes;

use crate::backend::Kinds;
use crate::sql::{Reads, Sql, SqlRow, Steps, values};
use crate::{Entry, Kind, Stored, Tenant};

#[async_trait]
impl<B: Steps> Kinds for B {
    async fn list(&self, kind: Kind, now_ms: u64, limit: usize) -> Stored<Vec<(Tenant, Entry)>> {
        let steps = move |sql: &dyn Sql| {
            let select = "SELECT tenant, key, value, expires_ms FROM weir_entry
                          WHERE kind = $1 AND expires_ms > $2 ORDER BY key, tenant LIMIT $3";
            let entry = |row: &SqlRow| {
                let [key, value] = [1, 2].map(|column| Bytes::copy_from_slice(row.bytes(column)));
                (row.tenant(0), Entry { key, value, expires_ms: row.figure(3) })
            };
            let rows = sql.rows(select, values![kind.name, now_ms, limit as u64])?;
            Ok(rows.iter().map(entry).collect())
        };
        self.select(Reads::Few, steps).await
    }
}
