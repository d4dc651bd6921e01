//! What became of single requests, by their ids: asked by whoever settles in the place of an instance
//! that has ended.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::super::{Backend, Store, StoreError};
use super::{Ledger, RequestId, moved};

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
