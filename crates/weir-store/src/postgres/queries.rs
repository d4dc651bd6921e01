//! Journal queries on PostgreSQL's tables, pruning, and orphaned requests. Results are limited in
//! rows.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::super::StoreError;
use super::super::ledger::codec::{self, stored_ms};
use super::super::ledger::query::{
    COUNT_COLUMNS, REQUEST_COLUMNS, SUM_COLUMNS, SqlValue, totals_of,
};
use super::super::ledger::series::Sums;
use super::super::ledger::text::{from_stored, sanitise};
use super::super::ledger::{
    Attribution, Caller, Column, DAY_MS, Flags, Intent, KeyNames, RequestEnd, RequestId,
    RequestQuery, RequestRow, SeriesQuery, SeriesRow, Settlement, UsageQuery, UsageRow,
};
use super::super::wal::record;
use super::super::{Tenant, sqlite::stored};
use super::Postgres;
use super::connection::{LONG_TIMEOUT, Param};
use super::instances::LIFETIME;
use crate::backend::Journal;

/// Maximum rows deleted per statement, so that others do not wait long.
const DELETED_AT_ONCE: u64 = 1000;
/// How long an orphan is reserved for the weir that has claimed it.
const CLAIM: &str = "interval '30 seconds'";

#[async_trait]
impl Journal for Postgres {
    async fn open_request(&self, intent: &Intent) -> Result<(), StoreError> {
        self.begin().await?;
        self.enqueue(&self.0.shared.queues.intents, record::opened(intent)).await.map(drop)
    }

    async fn settle_request(
        &self,
        intent: Arc<Intent>,
        settlement: Settlement,
    ) -> Result<bool, StoreError> {
        let record = record::settled(&intent, &settlement);
        self.enqueue(&self.0.shared.queues.endings, record).await
    }

    async fn release_request(&self, id: RequestId) -> Result<(), StoreError> {
        self.enqueue(&self.0.shared.queues.intents, record::released(id)).await.map(drop)
    }

    /// Claims the requests for this weir alone to settle. Returns none if the server has not seen
    /// this weir for long: it may not have seen others either.
    async fn orphans(&self, limit: usize) -> Result<Vec<Intent>, StoreError> {
        self.begin().await?;
        self.run(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql = format!(
                "UPDATE weir_intent SET claimed_by = $1, claimed_at = statement_timestamp()
                 WHERE id IN (SELECT i.id FROM weir_intent i
                  WHERE EXISTS (SELECT 1 FROM weir_instance own WHERE own.id = $1
                   AND own.since < statement_timestamp() - {LIFETIME}
                   AND own.seen >= statement_timestamp() - {LIFETIME})
                  AND NOT EXISTS (SELECT 1 FROM weir_instance n WHERE n.id = i.instance
                   AND n.seen >= statement_timestamp() - {LIFETIME})
                  AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)
                  AND (i.claimed_at IS NULL OR i.claimed_by = $1
                   OR i.claimed_at < statement_timestamp() - {CLAIM})
                  ORDER BY i.id LIMIT $2 FOR UPDATE SKIP LOCKED)
                 RETURNING id, begun_ms, facts"
            );
            let limit = stored(limit as u64);
            let rows = connection.rows(&sql, &[&&shared.instance[..], &limit]).await?;
            let intent = |row: &Row| {
                let id = row.get::<_, &[u8]>(0).try_into().unwrap_or_default();
                codec::intent(id, row.get(1), row.get::<_, &str>(2).as_bytes())
            };
            let mut intents: Vec<Intent> = rows.iter().map(intent).collect();
            intents.sort_by_key(|intent| intent.id);
            Ok(intents)
        })
        .await
    }

    async fn request_ends(&self, ids: Vec<RequestId>) -> Result<Vec<RequestEnd>, StoreError> {
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let queried: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
            // A single statement, so the result is consistent.
            let sql = "SELECT r.id IS NOT NULL, i.id IS NOT NULL, coalesce(r.cost_nano_usd, 0),
                        coalesce(r.prompt_tokens, 0) + coalesce(r.completion_tokens, 0)
                       FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (id, place)
                       LEFT JOIN weir_request r ON r.id = asked.id
                       LEFT JOIN weir_intent i ON i.id = asked.id ORDER BY asked.place";
            let rows = connection.rows(sql, &[&queried]).await?;
            let end = |row: &Row| match (row.get(0), row.get(1)) {
                (true, _) => RequestEnd::Ended {
                    nano_usd: from_stored(row.get(2)),
                    tokens: from_stored(row.get(3)),
                },
                (false, true) => RequestEnd::Open,
                (false, false) => RequestEnd::Unknown,
            };
            Ok(rows.iter().map(end).collect())
        })
        .await
    }

    async fn learned_output_tokens(&self, model: &str) -> Result<Option<u64>, StoreError> {
        let model = sanitise(model).into_owned();
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql =
                "SELECT requests, completion_tokens FROM weir_learned_output WHERE model = $1";
            let found = connection.row(sql, &[&model]).await?;
            let mean = |row: Row| from_stored(row.get(1)).div_ceil(from_stored(row.get(0)).max(1));
            Ok(found.map(mean))
        })
        .await
    }

    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        let (conditions, by) = (query.conditions(), query.by_sql());
        let mut columns: Vec<String> = by.iter().map(|&column| column.to_owned()).collect();
        columns.extend(COUNT_COLUMNS.map(|column| format!("sum({column})::bigint")));
        // A sum of 64-bit figures may need more than 64 bits.
        columns.extend(SUM_COLUMNS.map(|column| format!("sum({column})::text")));
        let group =
            if by.is_empty() { String::new() } else { format!("GROUP BY {}", by.join(", ")) };
        let day: &[&str] = if by.contains(&"day") { &["day"] } else { &[] };
        let most: &[&str] = &["sum(cost_nano_usd) DESC", "sum(requests) DESC"];
        let sql = format!(
            "SELECT {columns} FROM {table} {conditions} {group} HAVING count(*) > 0
             ORDER BY {order} LIMIT {limit}",
            columns = columns.join(", "),
            table = query.table("weir_usage_day", "weir_request", |id| format!("'\\x{id}'::bytea")),
            conditions = conditions.to_sql(),
            order = [day, most, &by].concat().join(", "),
            limit = query.max_rows(),
        );
        let rows = self.select(sql, conditions.values).await?;
        Ok(rows.iter().map(|row| usage_row(row, 0, &query.by)).collect())
    }

    async fn series(&self, query: SeriesQuery) -> Result<Vec<SeriesRow>, StoreError> {
        let conditions = query.conditions();
        let sums = Sums {
            table: "weir_request",
            count: |sql| format!("sum({sql})::bigint"),
            large: |sql| format!("sum({sql})::text"),
        };
        let sql = query.sql(&conditions, &sums);
        let rows = self.select(sql, conditions.values).await?;
        Ok(rows.iter().map(|row| series_row(row, &query)).collect())
    }

    async fn requests(&self, query: RequestQuery) -> Result<Vec<RequestRow>, StoreError> {
        let conditions = query.conditions();
        let sql = format!(
            "SELECT {REQUEST_COLUMNS} FROM weir_request {conditions} ORDER BY id DESC LIMIT {limit}",
            conditions = conditions.to_sql(),
            limit = query.max_rows(),
        );
        let rows = self.select(sql, conditions.values).await?;
        Ok(rows.iter().map(request_row).collect())
    }

    async fn spent_on_route(
        &self,
        tenant: Tenant,
        route: &'static str,
        from_ms: u64,
    ) -> Result<u64, StoreError> {
        let sql = "SELECT coalesce(sum(cost_nano_usd), 0)::text FROM weir_request
                   WHERE id >= $1 AND tenant = $2 AND route = $3";
        let values = vec![
            SqlValue::Bytes(RequestId::first_of(from_ms).0.to_vec()),
            SqlValue::Bytes(tenant.0.to_vec()),
            SqlValue::Text(route.to_owned()),
        ];
        let rows = self.select(sql.to_owned(), values).await?;
        Ok(rows.first().map_or(0, |row| u64::try_from(sum(row, 0)).unwrap_or(u64::MAX)))
    }

    async fn prune_requests(
        &self,
        before_ms: u64,
        totals_before_ms: u64,
    ) -> Result<u64, StoreError> {
        let first_kept = RequestId::first_of(before_ms).0.to_vec();
        let first_day = stored_ms(totals_before_ms) / DAY_MS as i64;
        self.run(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            // An intent committed after its caller gave up, and after its end.
            let settled = "DELETE FROM weir_intent i
                           WHERE EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)";
            connection.execute(settled, &[]).await?;
            let requests = format!(
                "DELETE FROM weir_request WHERE id IN
                 (SELECT id FROM weir_request WHERE id < $1 ORDER BY id LIMIT {DELETED_AT_ONCE})"
            );
            let totals = format!(
                "DELETE FROM weir_usage_day WHERE ctid = ANY (ARRAY
                 (SELECT ctid FROM weir_usage_day WHERE day < $1 LIMIT {DELETED_AT_ONCE}))"
            );
            let mut deleted = 0;
            for (sql, value) in [(requests, &first_kept as Param<'_>), (totals, &first_day)] {
                loop {
                    let more = connection.execute(&sql, &[value]).await?;
                    deleted += more;
                    if more < DELETED_AT_ONCE {
                        break;
                    }
                }
            }
            Ok(deleted)
        })
        .await
    }

    async fn backup(&self, _path: &Path) -> Result<(), StoreError> {
        let message = "the store is in PostgreSQL; copy the database with pg_dump";
        Err(StoreError::Failed(message.to_owned()))
    }
}

impl Postgres {
    /// Runs a statement that may read much.
    async fn select(&self, sql: String, values: Vec<SqlValue>) -> Result<Vec<Row>, StoreError> {
        self.read(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            let values: Vec<Param<'_>> = values
                .iter()
                .map(|value| match value {
                    SqlValue::Number(number) => number as &(dyn ToSql + Sync),
                    SqlValue::Bytes(bytes) => bytes,
                    SqlValue::Text(text) => text,
                })
                .collect();
            Ok(connection.rows_within(LONG_TIMEOUT, &sql, &values).await?)
        })
        .await
    }
}

/// Parses a sum returned as text.
fn sum(row: &Row, column: usize) -> i128 {
    row.get::<_, &str>(column).parse().unwrap_or(0)
}

fn tenant(row: &Row, column: usize) -> Tenant {
    // An invalid tenant counts as anonymous.
    Tenant(row.get::<_, &[u8]>(column).try_into().unwrap_or_default())
}

fn series_row(row: &Row, query: &SeriesQuery) -> SeriesRow {
    let first = usize::from(query.every_ms.is_some());
    let start_ms = query.every_ms.map(|_| from_stored(row.get(0)));
    let usage = usage_row(row, first, &query.by);
    let mut found = SeriesRow { start_ms, usage, ..SeriesRow::default() };
    let before = first + query.by.len() + COUNT_COLUMNS.len() + SUM_COLUMNS.len();
    found.set_details(&std::array::from_fn(|index| from_stored(row.get(before + index))));
    found
}

/// Reads names and totals from the columns from `first` on.
fn usage_row(row: &Row, first: usize, by: &[Column]) -> UsageRow {
    let mut usage = UsageRow::default();
    for (index, column) in by.iter().enumerate() {
        let index = first + index;
        match (column, usage.name_mut(*column)) {
            (_, Some(name)) => *name = Some(row.get(index)),
            (Column::Tenant, None) => usage.tenant = Some(tenant(row, index)),
            (_, None) => usage.day = Some(from_stored(row.get(index))),
        }
    }
    let first = first + by.len();
    let counted = std::array::from_fn(|index| from_stored(row.get(first + index)));
    let summed = std::array::from_fn(|index| sum(row, first + COUNT_COLUMNS.len() + index));
    usage.totals = totals_of(counted, summed);
    usage
}

fn request_row(row: &Row) -> RequestRow {
    let names = |key: String| {
        let name = |index| row.get::<_, Option<String>>(index).unwrap_or_default();
        Arc::new(KeyNames { key, team: name(4), organisation: name(5), user: name(6) })
    };
    let figure = |index| row.get::<_, Option<i64>>(index).map(from_stored);
    RequestRow {
        id: RequestId(row.get::<_, &[u8]>(0).try_into().unwrap_or_default()),
        begun_ms: from_stored(row.get(1)),
        caller: Caller { tenant: tenant(row, 2), key: row.get::<_, Option<String>>(3).map(names) },
        route: row.get(7),
        model: row.get(8),
        upstream: row.get(9),
        stream: row.get(10),
        action: row.get(13),
        zone: row.get(14),
        attribution: Attribution::from_labels([28, 29, 30, 31].map(|index| row.get(index))),
        received_tokens: figure(15),
        sent_tokens: figure(16),
        plan_ms: figure(25),
        settlement: Settlement {
            outcome: row.get(12),
            status: figure(11).and_then(|status| u16::try_from(status).ok()),
            prompt_tokens: figure(17),
            completion_tokens: figure(18),
            cached_tokens: figure(19),
            cache_write_tokens: figure(20),
            reasoning_tokens: figure(21),
            cost_nano_usd: figure(22),
            saved_nano_usd: row.get(23),
            flags: Flags(u32::try_from(row.get::<_, i64>(24)).unwrap_or(0)),
            first_byte_ms: figure(26),
            total_ms: figure(27),
        },
    }
}
