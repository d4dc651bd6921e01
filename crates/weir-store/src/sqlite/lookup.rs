//! Lookup of requests by id in logs and tables, for settlement after their instance has ended, and
//! of open requests of all processes.

use std::collections::HashSet;

use rusqlite::Connection;

use super::cached;
use crate::ledger::codec::{self, stored_ms};
use crate::ledger::text::from_stored;
use crate::ledger::{Intent, RequestEnd, RequestId};
use crate::wal::{Session, checkpoint};

/// Returns those of the requests that are open in any log.
pub(super) fn open_in_logs(session: &Session, ids: &[RequestId]) -> HashSet<RequestId> {
    let mut open: HashSet<RequestId> = session.log.open_of(ids).collect();
    let logs = session.instance.segments();
    for files in logs.chunk_by(|one, next| one.instance == next.instance) {
        // A missing log was moved into the tables.
        let in_log = checkpoint::open_requests(files).unwrap_or_default();
        open.extend(ids.iter().filter(|id| in_log.contains_key(*id)));
    }
    open
}

/// Returns requests that began at `from_ms` or later and are open in any process's log. Call it
/// before ended requests are moved into the tables.
pub(super) fn open_since(session: &Session, from_ms: u64) -> Vec<Intent> {
    let logs = session.instance.segments();
    let mut open = Vec::new();
    for files in logs.chunk_by(|one, next| one.instance == next.instance) {
        // A missing log was moved into the tables.
        for (id, content) in checkpoint::open_requests(files).unwrap_or_default() {
            let (begun_ms, json) = codec::from_record(id, &content);
            open.push(codec::intent(id.0, begun_ms, json.as_bytes()));
        }
    }
    open.retain(|intent| intent.begun_ms >= from_ms);
    open
}

/// Adds open requests from the tables, and removes those that have ended meanwhile.
pub(super) fn still_open(
    connection: &Connection,
    in_logs: Vec<Intent>,
    from_ms: u64,
) -> rusqlite::Result<Vec<Intent>> {
    let ended = "SELECT EXISTS (SELECT 1 FROM request WHERE id = ?1)";
    let mut open = Vec::new();
    for intent in in_logs {
        if !cached::value::<bool>(connection, ended, [intent.id.0])? {
            open.push(intent);
        }
    }
    let in_tables = "SELECT id, begun_ms, facts FROM intent WHERE begun_ms >= ?1
                     AND NOT EXISTS (SELECT 1 FROM request WHERE request.id = intent.id)";
    let in_tables = cached::all(connection, in_tables, [stored_ms(from_ms)], |row| {
        let json = row.get_ref(2)?.as_bytes().unwrap_or_default();
        Ok(codec::intent(row.get(0)?, row.get(1)?, json))
    })?;
    for intent in in_tables {
        if open.iter().all(|other| other.id != intent.id) {
            open.push(intent);
        }
    }
    Ok(open)
}

/// Returns the state of a request; `open` has those that are open in logs.
pub(super) fn end(
    connection: &Connection,
    id: RequestId,
    open: &HashSet<RequestId>,
) -> rusqlite::Result<RequestEnd> {
    let ended = "SELECT coalesce(cost_nano_usd, 0),
                 coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)
                 FROM request WHERE id = ?1";
    let ended = cached::first(connection, ended, [id.0], |row| {
        let (nano_usd, tokens) = (from_stored(row.get(0)?), from_stored(row.get(1)?));
        Ok(RequestEnd::Ended { nano_usd, tokens })
    })?;
    if let Some(ended) = ended {
        return Ok(ended);
    }
    let intent = "SELECT EXISTS (SELECT 1 FROM intent WHERE id = ?1)";
    let is_intent: bool = cached::value(connection, intent, [id.0])?;
    Ok(if is_intent || open.contains(&id) { RequestEnd::Open } else { RequestEnd::Unknown })
}
