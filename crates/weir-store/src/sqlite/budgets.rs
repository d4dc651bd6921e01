//! Budgets in SQLite: their rows and past spending.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::{Sqlite, key_rows, lookup, spent, stored};
use crate::StoreError;
use crate::backend::Budgets;
use crate::budget::{Budget, BudgetId};
use crate::budgets::{BudgetError, MAX_BUDGETS, Spent, SpentQuery, parse_row};
use crate::wal::checkpoint_all;

#[async_trait]
impl Budgets for Sqlite {
    async fn set_budget(&self, budget: Budget, now_ms: u64) -> Result<(), BudgetError> {
        budget.check().map_err(BudgetError::Invalid)?;
        let counter = self.changes().counter().clone();
        let work = move |connection: &Connection| {
            let id = budget.id.to_string();
            let others = "SELECT count(*) FROM budget WHERE id <> ?1";
            let others: i64 = connection.query_row(others, [&id], |row| row.get(0))?;
            if others >= MAX_BUDGETS {
                return Ok(Err(BudgetError::TooMany));
            }
            connection.execute(
                "INSERT INTO budget VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET settings = excluded.settings",
                params![id, budget.to_json(), stored(now_ms)],
            )?;
            counter.write(key_rows::raise_version(connection)?);
            Ok(Ok(()))
        };
        self.write(work).await?
    }

    async fn remove_budget(&self, id: &BudgetId) -> Result<bool, StoreError> {
        let (id, counter) = (id.to_string(), self.changes().counter().clone());
        let work = move |connection: &Connection| {
            let is_removed = connection.execute("DELETE FROM budget WHERE id = ?1", [id])? > 0;
            if is_removed {
                counter.write(key_rows::raise_version(connection)?);
            }
            Ok(is_removed)
        };
        self.write(work).await
    }

    async fn budgets(&self) -> Result<(u64, Vec<Budget>), StoreError> {
        let work = |connection: &Connection| {
            // Read first: a change between the two reads causes another read.
            let version = key_rows::version(connection)?;
            let mut statement =
                connection.prepare_cached("SELECT id, settings FROM budget ORDER BY id")?;
            let mut rows = statement.query([])?;
            let mut budgets = Vec::new();
            while let Some(row) = rows.next()? {
                let (id, settings): (String, String) = (row.get(0)?, row.get(1)?);
                budgets.extend(parse_row(&id, &settings));
            }
            Ok((version, budgets))
        };
        self.read(work).await
    }

    async fn spent(&self, query: SpentQuery) -> Result<Spent, StoreError> {
        let (session, from_ms) = (Arc::clone(self.session()), query.from_ms);
        let mut in_logs = Vec::new();
        if query.wants_open {
            // Logs are read first, so that a request that ends, or whose log is finished, in
            // between is not missed.
            let read = tokio::task::spawn_blocking(move || lookup::open_since(&session, from_ms));
            in_logs = read.await.map_err(|_| StoreError::Closed)?;
        }
        checkpoint_all(self).await;
        let work = move |connection: &Connection| {
            // An in-memory store reads inside the writer's transaction.
            let begin = || connection.unchecked_transaction();
            let _moment = connection.is_autocommit().then(begin).transpose()?;
            let open = lookup::still_open(connection, in_logs, query.from_ms)?;
            Ok(Spent { ended: spent::spent(connection, &query)?, open })
        };
        self.read(work).await
    }
}
