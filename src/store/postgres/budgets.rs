//! Budgets in PostgreSQL, what was spent of one before anybody counted, and which of the weirs that
//! share the server is the one that counts. What a budget is is told in `store::budgets`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::super::StoreError;
use super::super::budgets::{BudgetError, MAX_BUDGETS, Spent, SpentQuery, understood};
use super::super::counters::sole::ANOTHER;
use super::super::ledger::{DAY_MS, RequestId, facts};
use super::super::sqlite::stored;
use super::connection::LONG_PATIENCE;
use super::instances::LIFE;
use super::{Postgres, instances, keys, schema};
use crate::budget::{Budget, Measure, ScopeKind};

/// How long the right to count holds without being renewed. Nobody else takes it within twice that.
const RIGHT: Duration = Duration::from_secs(5);
/// Under which name of `weir_meta` the one that counts is.
const COUNTING: &str = "counting";

/// When this weir last obtained the right to count; `None` if it never has.
#[derive(Default)]
pub struct Counting(Mutex<Option<Instant>>);

impl Counting {
    fn obtained(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obtain(&self, asked: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked);
    }
}

impl Postgres {
    pub async fn set_budget(
        &self,
        budget: Budget,
        now_ms: u64,
    ) -> Result<Result<(), BudgetError>, StoreError> {
        self.run(move |shared| async move {
            let connection = keys::begin(&shared).await?;
            let (id, settings) = (budget.id.to_string(), budget.to_json());
            let others = "SELECT count(*) FROM weir_budget WHERE id <> $1";
            let others = connection.row(others, &[&id]).await?;
            if others.is_some_and(|row| row.get::<_, i64>(0) >= MAX_BUDGETS) {
                connection.roll_back().await?;
                return Ok(Err(BudgetError::TooMany));
            }
            let sql = "INSERT INTO weir_budget VALUES ($1, $2, $3)
                       ON CONFLICT (id) DO UPDATE SET settings = excluded.settings";
            connection.execute(sql, &[&id, &settings, &stored(now_ms)]).await?;
            keys::commit(&shared, &connection).await?;
            Ok(Ok(()))
        })
        .await
    }

    pub async fn remove_budget(&self, id: String) -> Result<bool, StoreError> {
        self.run(move |shared| async move {
            let connection = keys::begin(&shared).await?;
            let removed =
                connection.execute("DELETE FROM weir_budget WHERE id = $1", &[&id]).await?;
            if removed > 0 {
                keys::commit(&shared, &connection).await?;
            } else {
                connection.roll_back().await?;
            }
            Ok(removed > 0)
        })
        .await
    }

    pub async fn budgets(&self) -> Result<(u64, Vec<Budget>), StoreError> {
        self.read(|shared| async move {
            let connection = shared.pool.lease().await?;
            // Asked first: what changes between the two is read again.
            let asked = Instant::now();
            let version = schema::number(&connection, keys::VERSION).await?.unwrap_or(0);
            shared.keys.note(version, asked);
            let rows =
                connection.rows("SELECT id, settings FROM weir_budget ORDER BY id", &[]).await?;
            let budgets = rows.iter().filter_map(|row| understood(row.get(0), row.get(1)));
            Ok((version, budgets.collect()))
        })
        .await
    }

    /// What requests of a scope came to since a moment, whole days by their sums, the rest by its rows,
    /// and those that are open. One statement, so that both are true of one moment.
    pub async fn spent(&self, query: SpentQuery) -> Result<Spent, StoreError> {
        let first_day = query.from_ms.div_ceil(DAY_MS);
        let is_by_day = query.bucket_ms.is_none_or(|length_ms| length_ms % DAY_MS == 0);
        // Shorter buckets than days are told by rows alone.
        let rows_until_ms = if is_by_day { first_day.saturating_mul(DAY_MS) } else { u64::MAX };
        let sums_from_day = if is_by_day { first_day } else { u64::MAX };
        let column = match query.scope.kind {
            ScopeKind::All => "$1::text".to_owned(),
            kind => format!("\"{}\"", kind.word()),
        };
        let amount = match query.measure {
            Measure::NanoUsd => "coalesce(cost_nano_usd, 0)",
            Measure::Tokens => "coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)",
        };
        let sql = format!(
            "SELECT bucket, greatest(sum(amount), 0)::text, NULL::bytea, NULL::text FROM (
                 SELECT (day * {DAY_MS}) / $2 * $2 AS bucket, {amount} AS amount
                 FROM weir_usage_day WHERE day >= $3 AND {column} = $1
                 UNION ALL
                 SELECT begun_ms / $2 * $2, {amount} FROM weir_request WHERE id >= $4 AND id < $5
                 AND coalesce({column}, '') = $1 AND NOT id = ANY ($6)
                 UNION ALL
                 SELECT begun_ms / $2 * $2, -({amount}) FROM weir_request WHERE id = ANY ($6)
                 AND begun_ms >= $3 * {DAY_MS} AND coalesce({column}, '') = $1
             ) AS amounts GROUP BY bucket
             UNION ALL
             SELECT begun_ms, '0', i.id, facts FROM weir_intent i WHERE begun_ms >= $7
             AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)
             ORDER BY 1"
        );
        self.read(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            let length = stored(query.bucket_ms.unwrap_or(u64::MAX));
            let from_day = stored(sums_from_day.min(u64::MAX / DAY_MS / 4));
            let (first, until) =
                (RequestId::first_of(query.from_ms).0, RequestId::first_of(rows_until_ms).0);
            let open: Vec<&[u8]> = query.open.iter().map(|id| &id.0[..]).collect();
            let (first, until) = (&first[..], &until[..]);
            let from_ms = stored(query.from_ms);
            let given: [&(dyn ToSql + Sync); 7] =
                [&query.scope.name, &length, &from_day, &first, &until, &open, &from_ms];
            let rows = connection.rows_within(LONG_PATIENCE, &sql, &given).await?;
            let mut spent = Spent::default();
            for row in &rows {
                let moment_ms = row.get::<_, i64>(0);
                if let Some(id) = row.get::<_, Option<&[u8]>>(2) {
                    let told = row.get::<_, Option<&str>>(3).unwrap_or_default();
                    let id = id.try_into().unwrap_or_default();
                    spent.open.push(facts::intent(id, moment_ms, told.as_bytes()));
                    continue;
                }
                let amount: i128 = row.get::<_, &str>(1).parse().unwrap_or(0);
                let bucket_ms = u64::try_from(moment_ms).unwrap_or(0);
                spent.ended.push((bucket_ms, u64::try_from(amount).unwrap_or(u64::MAX)));
            }
            Ok(spent)
        })
        .await
    }

    /// Takes the right to count for the budgets of this store, or says that another weir has it. One
    /// that has ended no longer has it once it is not believed to live. Whoever has lost it to another
    /// does not take it up again: its counts are of another time.
    pub async fn count_alone(&self) -> Result<(), StoreError> {
        let obtained = self.0.shared.counting.obtained();
        if obtained.is_some_and(|obtained| obtained.elapsed() < RIGHT) {
            return Ok(());
        }
        self.begin().await?;
        let is_obtained = self
            .run(move |shared| async move {
                let asked = Instant::now();
                let connection = shared.pool.lease().await?;
                connection.begin().await?;
                instances::beat(&connection, &shared.instance).await?;
                let add = "INSERT INTO weir_meta VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
                let own = &shared.instance[..];
                connection.execute(add, &[&COUNTING, &own]).await?;
                let sql = format!(
                    "SELECT value = $2, EXISTS (SELECT 1 FROM weir_instance n
                      WHERE n.id = m.value AND n.seen >= clock_timestamp() - {LIFE})
                     FROM weir_meta m WHERE name = $1 FOR UPDATE"
                );
                let row = connection.row(&sql, &[&COUNTING, &own]).await?;
                let (is_own, lives) = row.map_or((false, true), |row| (row.get(0), row.get(1)));
                let may_take = is_own || (!lives && shared.counting.obtained().is_none());
                if may_take {
                    schema::put(&connection, COUNTING, own).await?;
                    shared.counting.obtain(asked);
                }
                connection.commit().await?;
                Ok(may_take)
            })
            .await?;
        if is_obtained { Ok(()) } else { Err(StoreError::Failed(ANOTHER.to_owned())) }
    }
}
