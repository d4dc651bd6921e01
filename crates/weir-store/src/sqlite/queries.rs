//! Journal queries on SQLite's tables. Results are limited in rows.

use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use crate::Tenant;
use crate::ledger::query::{COUNT_COLUMNS, REQUEST_COLUMNS, SUM_COLUMNS, SqlValue, totals_of};
use crate::ledger::series::{DETAILS, Sums};
use crate::ledger::text::from_stored;
use crate::ledger::{
    Attribution, Caller, Column, Flags, KeyNames, RequestId, RequestQuery, RequestRow, SeriesQuery,
    SeriesRow, Settlement, UsageQuery, UsageRow,
};

impl From<SqlValue> for Value {
    fn from(wanted: SqlValue) -> Self {
        match wanted {
            SqlValue::Number(number) => number.into(),
            SqlValue::Bytes(bytes) => bytes.into(),
            SqlValue::Text(text) => text.into(),
        }
    }
}

pub(super) fn usage(
    connection: &Connection,
    query: &UsageQuery,
) -> rusqlite::Result<Vec<UsageRow>> {
    let (conditions, by) = (query.conditions(), query.by_sql());
    let mut columns: Vec<String> = by.iter().map(|&column| column.to_owned()).collect();
    columns.extend(COUNT_COLUMNS.map(|column| format!("sum({column})")));
    // Summed in halves: a whole sum could overflow SQLite's integers, which would fail the query.
    columns.extend(
        SUM_COLUMNS.map(|column| format!("sum({column} >> 32), sum({column} & 0xffffffff)")),
    );
    let group = if by.is_empty() { String::new() } else { format!("GROUP BY {}", by.join(", ")) };
    let day: &[&str] = if by.contains(&"day") { &["day"] } else { &[] };
    let most: &[&str] = &["total(cost_nano_usd) DESC", "total(requests) DESC"];
    let order = [day, most, &by].concat().join(", ");
    let sql = format!(
        "SELECT {columns} FROM {table} {conditions} {group} HAVING count(*) > 0
         ORDER BY {order} LIMIT {limit}",
        columns = columns.join(", "),
        table = query.table("usage_day", "request", |id| format!("x'{id}'")),
        conditions = conditions.to_sql(),
        limit = query.max_rows(),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement
        .query_map(params_from_iter(conditions.values.into_iter().map(Value::from)), |row| {
            usage_row(row, 0, &query.by)
        })?;
    rows.collect()
}

/// Returns totals of requests by stretches of time.
pub(super) fn series(
    connection: &Connection,
    query: &SeriesQuery,
) -> rusqlite::Result<Vec<SeriesRow>> {
    let conditions = query.conditions();
    let sums = Sums {
        table: "request",
        count: |sql| format!("sum({sql})"),
        // In halves, as in `usage`.
        large: |sql| format!("sum({sql} >> 32), sum({sql} & 0xffffffff)"),
    };
    let mut statement = connection.prepare_cached(&query.sql(&conditions, &sums))?;
    let values = params_from_iter(conditions.values.into_iter().map(Value::from));
    let rows = statement.query_map(values, |row| series_row(row, query))?;
    rows.collect()
}

fn series_row(row: &Row<'_>, query: &SeriesQuery) -> rusqlite::Result<SeriesRow> {
    let first = usize::from(query.every_ms.is_some());
    let start_ms = query.every_ms.map(|_| row.get(0).map(from_stored)).transpose()?;
    let usage = usage_row(row, first, &query.by)?;
    let mut found = SeriesRow { start_ms, usage, ..SeriesRow::default() };
    let mut details = [0; DETAILS];
    let before = first + query.by.len() + COUNT_COLUMNS.len() + 2 * SUM_COLUMNS.len();
    for (index, detail) in details.iter_mut().enumerate() {
        *detail = row.get(before + index).map(from_stored)?;
    }
    found.set_details(&details);
    Ok(found)
}

/// Reads names and totals from the columns from `first` on.
fn usage_row(row: &Row<'_>, first: usize, by: &[Column]) -> rusqlite::Result<UsageRow> {
    let mut usage = UsageRow::default();
    for (index, column) in by.iter().enumerate() {
        let index = first + index;
        match (column, usage.name_mut(*column)) {
            (_, Some(name)) => *name = Some(row.get(index)?),
            (Column::Tenant, None) => usage.tenant = Some(Tenant(row.get(index)?)),
            (_, None) => usage.day = Some(row.get(index).map(from_stored)?),
        }
    }
    let first = first + by.len();
    let count = |index: usize| row.get(first + index).map(from_stored);
    let sum = |index: usize| {
        let first = first + COUNT_COLUMNS.len() + 2 * index;
        let (high, low): (i64, i64) = (row.get(first)?, row.get(first + 1)?);
        Ok::<_, rusqlite::Error>((i128::from(high) << 32) + i128::from(low))
    };
    let (mut counted, mut summed) = ([0; COUNT_COLUMNS.len()], [0; SUM_COLUMNS.len()]);
    for (index, figure) in counted.iter_mut().enumerate() {
        *figure = count(index)?;
    }
    for (index, figure) in summed.iter_mut().enumerate() {
        *figure = sum(index)?;
    }
    usage.totals = totals_of(counted, summed);
    Ok(usage)
}

/// Returns the cost of a tenant's requests of one route since `from_ms`, in nano-dollars.
pub(super) fn spent_on_route(
    connection: &Connection,
    tenant: Tenant,
    route: &str,
    from_ms: u64,
) -> rusqlite::Result<u64> {
    let sql = "SELECT total(cost_nano_usd) FROM request WHERE id >= ? AND tenant = ? AND route = ?";
    let first = RequestId::first_of(from_ms).0;
    // Exact up to nine million dollars, far above the caps it is compared with.
    let spent: f64 =
        connection.prepare_cached(sql)?.query_row((first, tenant.0, route), |row| row.get(0))?;
    Ok(spent as u64)
}

/// Returns single requests, newest first.
pub(super) fn requests(
    connection: &Connection,
    query: &RequestQuery,
) -> rusqlite::Result<Vec<RequestRow>> {
    let conditions = query.conditions();
    let sql = format!(
        "SELECT {REQUEST_COLUMNS}
         FROM request {conditions} ORDER BY id DESC LIMIT {limit}",
        conditions = conditions.to_sql(),
        limit = query.max_rows(),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement
        .query_map(params_from_iter(conditions.values.into_iter().map(Value::from)), request_row)?;
    rows.collect()
}

fn request_row(row: &Row<'_>) -> rusqlite::Result<RequestRow> {
    let key: Option<String> = row.get(3)?;
    let names = |key: String| -> rusqlite::Result<Arc<KeyNames>> {
        let name = |index| row.get::<_, Option<String>>(index).map(Option::unwrap_or_default);
        let names = KeyNames { key, team: name(4)?, organisation: name(5)?, user: name(6)? };
        Ok(Arc::new(names))
    };
    let figure =
        |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(index)?.map(from_stored));
    Ok(RequestRow {
        id: RequestId(row.get(0)?),
        begun_ms: row.get(1).map(from_stored)?,
        caller: Caller { tenant: Tenant(row.get(2)?), key: key.map(names).transpose()? },
        route: row.get(7)?,
        model: row.get(8)?,
        upstream: row.get(9)?,
        stream: row.get(10)?,
        action: row.get(13)?,
        zone: row.get(14)?,
        attribution: Attribution::from_labels([
            row.get(28)?,
            row.get(29)?,
            row.get(30)?,
            row.get(31)?,
        ]),
        received_tokens: figure(15)?,
        sent_tokens: figure(16)?,
        plan_ms: figure(25)?,
        settlement: Settlement {
            outcome: row.get(12)?,
            status: row.get(11)?,
            prompt_tokens: figure(17)?,
            completion_tokens: figure(18)?,
            cached_tokens: figure(19)?,
            cache_write_tokens: figure(20)?,
            reasoning_tokens: figure(21)?,
            cost_nano_usd: figure(22)?,
            saved_nano_usd: row.get(23)?,
            flags: Flags(row.get(24)?),
            first_byte_ms: figure(26)?,
            total_ms: figure(27)?,
        },
    })
}
