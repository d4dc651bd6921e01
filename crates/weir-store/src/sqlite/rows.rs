//! Rows of requests: one per ended request, and intents of requests whose log is gone.

use std::sync::LazyLock;

use rusqlite::{Connection, params, params_from_iter};

use super::cached;
use crate::ledger::codec;
use crate::ledger::{Intent, RequestId};
use crate::wal::instances::Instance;
use crate::wal::record::{IntentRecord, SettlementRecord};

/// Inserts the request that this record opened as an intent of `instance`, unless it has ended. An
/// unreadable record is inserted by its id.
pub(crate) fn insert_intent(
    connection: &Connection,
    instance: [u8; 16],
    id: RequestId,
    content: &[u8],
) -> rusqlite::Result<()> {
    let (begun_ms, json) = codec::from_record(id, content);
    let insert = "INSERT OR REPLACE INTO intent SELECT ?1, ?2, ?3, ?4
                  WHERE NOT EXISTS (SELECT 1 FROM request WHERE id = ?1)";
    cached::run(connection, insert, params![id.0, instance, begun_ms, json]).map(drop)
}

/// Deletes the intent of a request whose row was just written.
pub(crate) fn end(connection: &Connection, id: RequestId) -> rusqlite::Result<()> {
    cached::run(connection, "DELETE FROM intent WHERE id = ?1", [id.0]).map(drop)
}

/// Deletes an intent that has not ended.
pub(crate) fn release(connection: &Connection, id: RequestId) -> rusqlite::Result<()> {
    let delete = "DELETE FROM intent WHERE id = ?1
                  AND NOT EXISTS (SELECT 1 FROM request WHERE id = ?1)";
    cached::run(connection, delete, [id.0]).map(drop)
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let places: Vec<String> = (1..=34).map(|place| format!("?{place}")).collect();
    format!("INSERT OR IGNORE INTO request VALUES ({})", places.join(", "))
});

/// Inserts the row of an ended request; `false` if it exists.
pub(crate) fn insert(
    connection: &Connection,
    intent: &IntentRecord<'_>,
    settlement: &SettlementRecord<'_>,
) -> rusqlite::Result<bool> {
    let values = codec::request_values(intent, settlement);
    Ok(cached::run(connection, &INSERT, params_from_iter(&values))? > 0)
}

/// Returns intents whose instance has ended, oldest first.
pub(crate) fn orphans(
    connection: &Connection,
    instance: &Instance,
    limit: usize,
) -> rusqlite::Result<Vec<Intent>> {
    let mut known: Vec<(Vec<u8>, bool)> = Vec::new();
    let mut found = Vec::new();
    let mut statement = connection.prepare_cached(
        "SELECT id, instance, begun_ms, facts FROM intent
         WHERE NOT EXISTS (SELECT 1 FROM request WHERE request.id = intent.id) ORDER BY id",
    )?;
    let mut rows = statement.query([])?;
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let owner = row.get_ref(1)?.as_bytes().unwrap_or_default();
        let is_dead = match known.iter().find(|(id, _)| id == owner) {
            Some((_, is_dead)) => *is_dead,
            None => {
                let is_dead = instance.is_dead(owner);
                known.push((owner.to_owned(), is_dead));
                is_dead
            }
        };
        if is_dead {
            let json = row.get_ref(3)?.as_bytes().unwrap_or_default();
            found.push(codec::intent(row.get(0)?, row.get(2)?, json));
        }
    }
    Ok(found)
}
