//! What became of single requests, by their ids: asked by whoever settles in the place of an instance
//! that has ended. And which requests are open, of all processes.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::super::{Backend, Store, StoreError};
use super::facts::{self, moment};
use super::{Intent, Ledger, RequestId, moved};

/// What the journal knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// Nothing: it was never written down, or was not sent after all.
    Unknown,
    /// It was about to be sent, and has not ended. Once its process has, it is settled by rule.
    Open,
    /// It has come to this.
    Ended { nano_usd: u64, tokens: u64 },
}

impl Store {
    /// What became of each of these requests, in their order, whichever process they are of.
    pub async fn request_ends(&self, ids: Vec<RequestId>) -> Result<Vec<RequestEnd>, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.request_ends(ids).await,
        };
        // Before what has ended is moved into the tables: so none is overlooked that ends or whose
        // log is finished in between.
        let (ledger, asked) = (Arc::clone(sqlite.ledger()), ids.clone());
        let open = tokio::task::spawn_blocking(move || open_in_logs(&ledger, &asked));
        let open = open.await.map_err(|_| StoreError::Closed)?;
        self.gather().await;
        sqlite
            .read(move |connection| ids.iter().map(|id| end(connection, *id, &open)).collect())
            .await
    }
}

/// Which of these requests are open in somebody's log.
fn open_in_logs(ledger: &Ledger, ids: &[RequestId]) -> HashSet<RequestId> {
    let mut open: HashSet<RequestId> = ledger.log.open_of(ids).collect();
    let logs = ledger.instance.logs();
    for files in logs.chunk_by(|one, next| one.instance == next.instance) {
        // A log that is gone by now was moved.
        let in_log = moved::open_in(files).unwrap_or_default();
        open.extend(ids.iter().filter(|id| in_log.contains_key(*id)));
    }
    open
}

/// Requests that began at `from_ms` or later and that a log has open, of all processes. To be read
/// before what has ended is moved into the tables.
pub fn open_since(ledger: &Ledger, from_ms: u64) -> Vec<Intent> {
    let logs = ledger.instance.logs();
    let mut open = Vec::new();
    for files in logs.chunk_by(|one, next| one.instance == next.instance) {
        // A log that is gone by now was moved.
        for (id, content) in moved::open_in(files).unwrap_or_default() {
            let (begun_ms, told) = facts::of_frame(id, &content);
            open.push(facts::intent(id.0, begun_ms, told.as_bytes()));
        }
    }
    open.retain(|intent| intent.begun_ms >= from_ms);
    open
}

/// The same with those that the tables have open, without those that have ended meanwhile.
pub fn still_open(
    connection: &Connection,
    in_logs: Vec<Intent>,
    from_ms: u64,
) -> rusqlite::Result<Vec<Intent>> {
    let mut ended =
        connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM request WHERE id = ?1)")?;
    let mut open = Vec::new();
    for intent in in_logs {
        if !ended.query_row([intent.id.0], |row| row.get(0))? {
            open.push(intent);
        }
    }
    let mut statement = connection.prepare_cached(
        "SELECT id, begun_ms, facts FROM intent WHERE begun_ms >= ?1
         AND NOT EXISTS (SELECT 1 FROM request WHERE request.id = intent.id)",
    )?;
    let in_tables = statement.query_map(params![moment(from_ms)], |row| {
        let told = row.get_ref(2)?.as_bytes().unwrap_or_default();
        Ok(facts::intent(row.get(0)?, row.get(1)?, told))
    })?;
    for intent in in_tables {
        let intent = intent?;
        if open.iter().all(|other| other.id != intent.id) {
            open.push(intent);
        }
    }
    Ok(open)
}

fn end(
    connection: &Connection,
    id: RequestId,
    open: &HashSet<RequestId>,
) -> rusqlite::Result<RequestEnd> {
    let row = connection
        .prepare_cached(
            "SELECT coalesce(cost_nano_usd, 0),
                    coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)
             FROM request WHERE id = ?1",
        )?
        .query_row([id.0], |row| {
            let figure = |number: i64| u64::try_from(number).unwrap_or(0);
            Ok(RequestEnd::Ended { nano_usd: figure(row.get(0)?), tokens: figure(row.get(1)?) })
        })
        .optional()?;
    if let Some(ended) = row {
        return Ok(ended);
    }
    let is_intent: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM intent WHERE id = ?1)")?
        .query_row([id.0], |row| row.get(0))?;
    Ok(if is_intent || open.contains(&id) { RequestEnd::Open } else { RequestEnd::Unknown })
}
