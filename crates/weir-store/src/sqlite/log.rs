//! Moves of recorded requests from the logs into the tables.

use std::sync::Arc;

use rusqlite::Connection;

use super::Sqlite;
use crate::Stored;
use crate::wal::checkpoint::{self, CheckpointProgress};
use crate::wal::record::Remainder;

/// Maximum transactions to catch up with other processes' records: more than a log can require.
const MAX_ROUNDS: usize = 1000;

/// Schedules a move of recorded requests into the tables.
pub(super) fn note_written(sqlite: &Sqlite) {
    sqlite.note_written();
    if sqlite.session.log.should_checkpoint()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        let sqlite = sqlite.clone();
        runtime.spawn(async move { checkpoint_all(&sqlite).await });
    }
}

/// Moves all processes' records into the tables. If that fails, the tables lag slightly, which is
/// better than no answer; the writer has logged it.
pub(super) async fn checkpoint_all(sqlite: &Sqlite) {
    let session = &sqlite.session;
    for _ in 0..MAX_ROUNDS {
        let own = Arc::clone(session);
        let is_pending =
            sqlite.read(move |connection| checkpoint::is_pending(connection, &own)).await;
        if is_pending == Ok(false) {
            break;
        }
        let own = Arc::clone(session);
        let progress = sqlite.writer.run(move |connection| checkpoint::all(connection, &own)).await;
        let Ok(CheckpointProgress { own, has_more }) = progress else { break };
        session.log.advance_checkpoint(own);
        if !has_more {
            break;
        }
    }
    session.log.note_checkpoint_tried();
}

/// Writes the row of a request that was not opened here: an ended process's, one that could not be
/// recorded, or one that is already settled. After all records are moved, the tables decide.
pub(super) async fn settle_directly(sqlite: &Sqlite, record: Vec<u8>) -> Stored<bool> {
    let session = Arc::clone(&sqlite.session);
    let settle = move |connection: &Connection| {
        let mut progress = checkpoint::all(connection, &session)?;
        while progress.has_more {
            progress = checkpoint::all(connection, &session)?;
        }
        let applied =
            checkpoint::apply(connection, &session.day_rows, &record, Remainder::Nothing, true)?;
        Ok((progress.own, applied.new_rows > 0))
    };
    let (own, is_new) = sqlite.writer.run(settle).await?;
    sqlite.session.log.advance_checkpoint(own);
    Ok(is_new)
}
