//! Budgets in PostgreSQL: their rows, past spending, and the leader lease for counting among weirs
//! that share the server. `store::budgets` documents the meaning.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::super::StoreError;
use super::super::budgets::{BudgetError, MAX_BUDGETS, Spent, SpentQuery, parse_row};
use super::super::counters::leader_lock::LED_BY_ANOTHER;
use super::super::ledger::{DAY_MS, RequestId, codec};
use super::super::sqlite::stored;
use super::connection::LONG_TIMEOUT;
use super::instances::LIFETIME;
use super::{Postgres, instances, keys, schema};
use crate::backend::Budgets;
use crate::budget::{Budget, BudgetId, Measure, ScopeKind};

/// Validity of the leader lease without renewal. No other weir takes it within twice that time.
const LEASE: Duration = Duration::from_secs(5);
/// Name of the leader in `weir_meta`.
const LEADER: &str = "counting";

/// When this weir last obtained the leader lease; `None` if never.
#[derive(Default)]
pub(super) struct LeaderLease(Mutex<Option<Instant>>);

impl LeaderLease {
    fn obtained(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obtain(&self, asked_at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked_at);
    }
}

#[async_trait]
impl Budgets for Postgres {
    async fn set_budget(&self, budget: Budget, now_ms: u64) -> Result<(), BudgetError> {
        budget.check().map_err(BudgetError::Invalid)?;
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
        .await?
    }

    async fn remove_budget(&self, id: &BudgetId) -> Result<bool, StoreError> {
        let id = id.to_string();
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

    async fn budgets(&self) -> Result<(u64, Vec<Budget>), StoreError> {
        self.read(|shared| async move {
            let connection = shared.pool.lease().await?;
            // Read first: a change between the two reads causes another read.
            let asked_at = Instant::now();
            let version = schema::number(&connection, keys::VERSION).await?.unwrap_or(0);
            shared.keys.note(version, asked_at);
            let rows =
                connection.rows("SELECT id, settings FROM weir_budget ORDER BY id", &[]).await?;
            let budgets = rows.iter().filter_map(|row| parse_row(row.get(0), row.get(1)));
            Ok((version, budgets.collect()))
        })
        .await
    }

    async fn spent(&self, query: SpentQuery) -> Result<Spent, StoreError> {
        let first_day = query.from_ms.div_ceil(DAY_MS);
        let is_by_day = query.bucket_ms.is_none_or(|length_ms| length_ms % DAY_MS == 0);
        // Buckets shorter than a day use rows only.
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
        // Whole days come from daily totals, the rest from rows. A single statement, so that totals
        // and open requests are consistent.
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
            let params: [&(dyn ToSql + Sync); 7] =
                [&query.scope.name, &length, &from_day, &first, &until, &open, &from_ms];
            let rows = connection.rows_within(LONG_TIMEOUT, &sql, &params).await?;
            let mut spent = Spent::default();
            for row in &rows {
                let moment_ms = row.get::<_, i64>(0);
                if let Some(id) = row.get::<_, Option<&[u8]>>(2) {
                    let json = row.get::<_, Option<&str>>(3).unwrap_or_default();
                    let id = id.try_into().unwrap_or_default();
                    spent.open.push(codec::intent(id, moment_ms, json.as_bytes()));
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
}

impl Postgres {
    /// Acquires the leader lease for this store's budgets, or reports that another weir has it. A
    /// weir loses it once it counts as dead. After another weir has taken the lease, this one does
    /// not resume: its counters are outdated.
    pub(super) async fn renew_leader_lease(&self) -> Result<(), StoreError> {
        let obtained = self.0.shared.leader.obtained();
        if obtained.is_some_and(|obtained| obtained.elapsed() < LEASE) {
            return Ok(());
        }
        self.begin().await?;
        let is_obtained = self
            .run(move |shared| async move {
                let asked_at = Instant::now();
                let connection = shared.pool.lease().await?;
                connection.begin().await?;
                instances::beat(&connection, &shared.instance).await?;
                let add = "INSERT INTO weir_meta VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
                let own = &shared.instance[..];
                connection.execute(add, &[&LEADER, &own]).await?;
                let sql = format!(
                    "SELECT value = $2, EXISTS (SELECT 1 FROM weir_instance n
                      WHERE n.id = m.value AND n.seen >= clock_timestamp() - {LIFETIME})
                     FROM weir_meta m WHERE name = $1 FOR UPDATE"
                );
                let row = connection.row(&sql, &[&LEADER, &own]).await?;
                let (is_own, lives) = row.map_or((false, true), |row| (row.get(0), row.get(1)));
                let may_take = is_own || (!lives && shared.leader.obtained().is_none());
                if may_take {
                    schema::put(&connection, LEADER, own).await?;
                    shared.leader.obtain(asked_at);
                }
                connection.commit().await?;
                Ok(may_take)
            })
            .await?;
        if is_obtained { Ok(()) } else { Err(StoreError::Failed(LED_BY_ANOTHER.to_owned())) }
    }
}
