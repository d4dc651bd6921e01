//! Rows of budgets, and the steps of their operations.

use async_trait::async_trait;

use super::{BudgetError, MAX_BUDGETS, parse_row};
use crate::Stored;
use crate::backend::Budgets;
use crate::budget::{Budget, BudgetId, ScopeKind};
use crate::sql::{Exclusive, Reads, Sql, Steps, values};

#[async_trait]
impl<B: Steps> Budgets for B {
    async fn set_budget(&self, budget: Budget, now_ms: u64) -> Result<(), BudgetError> {
        budget.check().map_err(BudgetError::Invalid)?;
        let steps = move |sql: &dyn Sql| {
            let id = budget.id.to_string();
            let others = "SELECT count(*) FROM weir_budget WHERE id <> $1";
            let others = sql.row(others, values![&*id])?;
            if others.is_some_and(|row| row.number(0) >= MAX_BUDGETS) {
                return Ok(Err(BudgetError::TooMany));
            }
            sql.execute(
                "INSERT INTO weir_budget VALUES ($1, $2, $3)
                 ON CONFLICT (id) DO UPDATE SET settings = excluded.settings",
                values![id, budget.to_json(), now_ms],
            )?;
            if budget.id.scope.kind == ScopeKind::Conversation {
                // Without such a budget, no request has to keep an index.
                sql.execute(
                    "CREATE INDEX IF NOT EXISTS weir_request_by_conversation
                     ON weir_request (conversation)",
                    &[],
                )?;
            }
            sql.count_change()?;
            Ok(Ok(()))
        };
        self.change(Exclusive::Keys, steps).await?
    }

    async fn remove_budget(&self, id: &BudgetId) -> Stored<bool> {
        let id = id.to_string();
        let steps = move |sql: &dyn Sql| {
            let is_removed = sql.execute("DELETE FROM weir_budget WHERE id = $1", values![id])? > 0;
            if is_removed {
                sql.count_change()?;
            }
            Ok(is_removed)
        };
        self.change(Exclusive::Keys, steps).await
    }

    async fn budgets(&self) -> Stored<(u64, Vec<Budget>)> {
        let steps = |sql: &dyn Sql| {
            // Read first: a change between the two reads causes another read.
            let count = sql.changes()?;
            let rows = sql.rows("SELECT id, settings FROM weir_budget ORDER BY id", &[])?;
            let budgets = rows.iter().filter_map(|row| parse_row(&row.text(0), &row.text(1)));
            Ok((count, budgets.collect()))
        };
        self.select(Reads::Few, steps).await
    }
}
