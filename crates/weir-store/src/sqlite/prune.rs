//! Pruning: deletes rows of requests and daily totals beyond their retention.

use rusqlite::{Connection, params};

use super::Sqlite;
use crate::StoreError;
use crate::ledger::codec::stored_ms;
use crate::ledger::{DAY_MS, RequestId};

/// Maximum rows deleted per transaction, so that requests do not wait long.
const DELETED_AT_ONCE: i64 = 200;

pub(super) async fn prune(
    sqlite: &Sqlite,
    before_ms: u64,
    totals_before_ms: u64,
) -> Result<u64, StoreError> {
    let first_kept = RequestId::first_of(before_ms);
    let requests = move |connection: &Connection| {
        connection
            .prepare_cached(
                "DELETE FROM request WHERE id IN
                 (SELECT id FROM request WHERE id < ?1 ORDER BY id LIMIT ?2)",
            )?
            .execute(params![first_kept.0, DELETED_AT_ONCE])
    };
    let first_day = stored_ms(totals_before_ms) / DAY_MS as i64;
    let totals = move |connection: &Connection| {
        connection
            .prepare_cached(
                "DELETE FROM usage_day WHERE (day, tenant, key, team, organisation, user, model) IN
                 (SELECT day, tenant, key, team, organisation, user, model FROM usage_day
                  WHERE day < ?1 LIMIT ?2)",
            )?
            .execute(params![first_day, DELETED_AT_ONCE])
    };
    Ok(in_batches(sqlite, requests).await? + in_batches(sqlite, totals).await?)
}

async fn in_batches(
    sqlite: &Sqlite,
    delete: impl Fn(&Connection) -> rusqlite::Result<usize> + Copy + Send + 'static,
) -> Result<u64, StoreError> {
    let mut deleted = 0;
    loop {
        let more = sqlite.write(delete).await?;
        deleted += more as u64;
        if more < DELETED_AT_ONCE as usize {
            return Ok(deleted);
        }
    }
}
