//! What the journal can be asked, read from PostgreSQL's tables; what is forgotten of it; and whose
//! requests were left open. Never more rows than it says.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::super::StoreError;
use super::super::ledger::asked::{COUNTED, REQUEST_COLUMNS, SUMMED, Wanted, told_sums};
use super::super::ledger::facts::{self, moment};
use super::super::ledger::text::{given, harmless};
use super::super::ledger::{
    Caller, Column, DAY_MS, Flags, Intent, KeyNames, RequestEnd, RequestId, RequestQuery,
    RequestRow, Settlement, UsageQuery, UsageRow,
};
use super::super::{Tenant, sqlite::stored};
use super::Postgres;
use super::connection::{Given, LONG_PATIENCE};
use super::instances::LIFE;

/// How many rows one statement deletes, so that others are not kept waiting.
const DELETED_AT_ONCE: u64 = 1000;
/// How long an orphan is left to whoever has claimed it.
const CLAIM: &str = "interval '30 seconds'";

impl Postgres {
    /// Up to `limit` requests of weirs that have ended, oldest first, for this weir alone to settle. A
    /// weir that the server has not seen for long tells none: nor may the server have seen others.
    pub async fn orphans(&self, limit: usize) -> Result<Vec<Intent>, StoreError> {
        self.begin().await?;
        self.run(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql = format!(
                "UPDATE weir_intent SET claimed_by = $1, claimed_at = statement_timestamp()
                 WHERE id IN (SELECT i.id FROM weir_intent i
                  WHERE EXISTS (SELECT 1 FROM weir_instance own WHERE own.id = $1
                   AND own.since < statement_timestamp() - {LIFE}
                   AND own.seen >= statement_timestamp() - {LIFE})
                  AND NOT EXISTS (SELECT 1 FROM weir_instance n WHERE n.id = i.instance
                   AND n.seen >= statement_timestamp() - {LIFE})
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
                facts::intent(id, row.get(1), row.get::<_, &str>(2).as_bytes())
            };
            let mut intents: Vec<Intent> = rows.iter().map(intent).collect();
            intents.sort_by_key(|intent| intent.id);
            Ok(intents)
        })
        .await
    }

    /// What became of each of these requests, in their order.
    pub async fn request_ends(&self, ids: Vec<RequestId>) -> Result<Vec<RequestEnd>, StoreError> {
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let asked: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
            // One statement: what it tells is true of one moment.
            let sql = "SELECT r.id IS NOT NULL, i.id IS NOT NULL, coalesce(r.cost_nano_usd, 0),
                        coalesce(r.prompt_tokens, 0) + coalesce(r.completion_tokens, 0)
                       FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (id, place)
                       LEFT JOIN weir_request r ON r.id = asked.id
                       LEFT JOIN weir_intent i ON i.id = asked.id ORDER BY asked.place";
            let rows = connection.rows(sql, &[&asked]).await?;
            let end = |row: &Row| match (row.get(0), row.get(1)) {
                (true, _) => {
                    RequestEnd::Ended { nano_usd: given(row.get(2)), tokens: given(row.get(3)) }
                }
                (false, true) => RequestEnd::Open,
                (false, false) => RequestEnd::Unknown,
            };
            Ok(rows.iter().map(end).collect())
        })
        .await
    }

    pub async fn learned_output_tokens(&self, model: &str) -> Result<Option<u64>, StoreError> {
        let model = harmless(model).into_owned();
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql =
                "SELECT requests, completion_tokens FROM weir_learned_output WHERE model = $1";
            let found = connection.row(sql, &[&model]).await?;
            let mean = |row: Row| given(row.get(1)).div_ceil(given(row.get(0)).max(1));
            Ok(found.map(mean))
        })
        .await
    }

    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        let (conditions, by) = (query.conditions(), query.by_sql());
        let mut columns: Vec<String> = by.iter().map(|&column| column.to_owned()).collect();
        columns.extend(COUNTED.map(|column| format!("sum({column})::bigint")));
        // Sums of what is counted by 64 bits have more.
        columns.extend(SUMMED.map(|column| format!("sum({column})::text")));
        let group =
            if by.is_empty() { String::new() } else { format!("GROUP BY {}", by.join(", ")) };
        let day: &[&str] = if by.contains(&"day") { &["day"] } else { &[] };
        let most: &[&str] = &["sum(cost_nano_usd) DESC", "sum(requests) DESC"];
        let sql = format!(
            "SELECT {columns} FROM weir_usage_day {conditions} {group} HAVING count(*) > 0
             ORDER BY {order} LIMIT {limit}",
            columns = columns.join(", "),
            conditions = conditions.written(),
            order = [day, most, &by].concat().join(", "),
            limit = query.most_rows(),
        );
        let rows = self.ask(sql, conditions.values).await?;
        Ok(rows.iter().map(|row| usage_row(row, &query.by)).collect())
    }

    /// Single requests, newest first.
    pub async fn requests(&self, query: RequestQuery) -> Result<Vec<RequestRow>, StoreError> {
        let conditions = query.conditions();
        let sql = format!(
            "SELECT {REQUEST_COLUMNS} FROM weir_request {conditions} ORDER BY id DESC LIMIT {limit}",
            conditions = conditions.written(),
            limit = query.most_rows(),
        );
        let rows = self.ask(sql, conditions.values).await?;
        Ok(rows.iter().map(request_row).collect())
    }

    pub async fn spent_on_route(
        &self,
        tenant: Tenant,
        route: &'static str,
        from_ms: u64,
    ) -> Result<u64, StoreError> {
        let sql = "SELECT coalesce(sum(cost_nano_usd), 0)::text FROM weir_request
                   WHERE id >= $1 AND tenant = $2 AND route = $3";
        let values = vec![
            Wanted::Bytes(RequestId::first_of(from_ms).0.to_vec()),
            Wanted::Bytes(tenant.0.to_vec()),
            Wanted::Text(route.to_owned()),
        ];
        let rows = self.ask(sql.to_owned(), values).await?;
        Ok(rows.first().map_or(0, |row| u64::try_from(sum(row, 0)).unwrap_or(u64::MAX)))
    }

    /// Deletes what is older than it is to be kept; how many rows that were.
    pub async fn prune(&self, before_ms: u64, sums_before_ms: u64) -> Result<u64, StoreError> {
        let first_kept = RequestId::first_of(before_ms).0.to_vec();
        let first_day = moment(sums_before_ms) / DAY_MS as i64;
        self.run(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            // One whose intent was committed after its caller had given it up, and its end before.
            let settled = "DELETE FROM weir_intent i
                           WHERE EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)";
            connection.execute(settled, &[]).await?;
            let requests = format!(
                "DELETE FROM weir_request WHERE id IN
                 (SELECT id FROM weir_request WHERE id < $1 ORDER BY id LIMIT {DELETED_AT_ONCE})"
            );
            let sums = format!(
                "DELETE FROM weir_usage_day WHERE ctid = ANY (ARRAY
                 (SELECT ctid FROM weir_usage_day WHERE day < $1 LIMIT {DELETED_AT_ONCE}))"
            );
            let mut deleted = 0;
            for (sql, value) in [(requests, &first_kept as Given<'_>), (sums, &first_day)] {
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

    /// The rows of a statement that may read much.
    async fn ask(&self, sql: String, values: Vec<Wanted>) -> Result<Vec<Row>, StoreError> {
        self.read(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            let values: Vec<Given<'_>> = values
                .iter()
                .map(|value| match value {
                    Wanted::Number(number) => number as &(dyn ToSql + Sync),
                    Wanted::Bytes(bytes) => bytes,
                    Wanted::Text(text) => text,
                })
                .collect();
            Ok(connection.rows_within(LONG_PATIENCE, &sql, &values).await?)
        })
        .await
    }
}

/// A sum that came as text.
fn sum(row: &Row, column: usize) -> i128 {
    row.get::<_, &str>(column).parse().unwrap_or(0)
}

fn tenant(row: &Row, column: usize) -> Tenant {
    // What is no tenant's is nobody's.
    Tenant(row.get::<_, &[u8]>(column).try_into().unwrap_or_default())
}

fn usage_row(row: &Row, by: &[Column]) -> UsageRow {
    let mut told = UsageRow::default();
    for (index, column) in by.iter().enumerate() {
        match column {
            Column::Day => told.day = Some(given(row.get(index))),
            Column::Organisation => told.organisation = Some(row.get(index)),
            Column::Team => told.team = Some(row.get(index)),
            Column::Key => told.key = Some(row.get(index)),
            Column::User => told.user = Some(row.get(index)),
            Column::Model => told.model = Some(row.get(index)),
            Column::Tenant => told.tenant = Some(tenant(row, index)),
        }
    }
    let counted = std::array::from_fn(|index| given(row.get(by.len() + index)));
    let summed = std::array::from_fn(|index| sum(row, by.len() + COUNTED.len() + index));
    told.sums = told_sums(counted, summed);
    told
}

fn request_row(row: &Row) -> RequestRow {
    let names = |key: String| {
        let name = |index| row.get::<_, Option<String>>(index).unwrap_or_default();
        Arc::new(KeyNames { key, team: name(4), organisation: name(5), user: name(6) })
    };
    let figure = |index| row.get::<_, Option<i64>>(index).map(given);
    RequestRow {
        id: RequestId(row.get::<_, &[u8]>(0).try_into().unwrap_or_default()),
        begun_ms: given(row.get(1)),
        caller: Caller { tenant: tenant(row, 2), key: row.get::<_, Option<String>>(3).map(names) },
        route: row.get(7),
        model: row.get(8),
        upstream: row.get(9),
        stream: row.get(10),
        action: row.get(13),
        zone: row.get(14),
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
