//! Queries of the journal on the tables of any back end. Results are limited in rows.

use std::sync::Arc;

use async_trait::async_trait;

use super::query::{
    COUNT_COLUMNS, REQUEST_COLUMNS, SUM_COLUMNS, count, large, row_limit, totals_of,
};
use super::series::BANDS;
use super::{
    Attribution, Caller, Column, DAY_MS, Flags, KeyNames, RequestId, RequestQuery, RequestRow,
    SeriesQuery, SeriesRow, Settlement, UsageQuery, UsageRow, sanitise,
};
use crate::backend::Reports;
use crate::sql::{Exclusive, Reads, Sql, SqlRow, SqlValue, Steps, values};
use crate::{Stored, Tenant};

/// Maximum rows deleted per transaction, so that requests do not wait long.
const DELETED_AT_ONCE: u64 = 200;

#[async_trait]
impl<B: Steps> Reports for B {
    async fn learned_output_tokens(&self, model: &str) -> Stored<Option<u64>> {
        let model = sanitise(model).into_owned();
        let steps = move |sql: &dyn Sql| {
            let select =
                "SELECT requests, completion_tokens FROM weir_learned_output WHERE model = $1";
            let found = sql.row(select, values![model])?;
            Ok(found.map(|row| row.figure(1).div_ceil(row.figure(0).max(1))))
        };
        self.select(Reads::Ended, steps).await
    }

    async fn usage(&self, query: UsageQuery) -> Stored<Vec<UsageRow>> {
        let conditions = query.conditions();
        let by: Vec<&str> = query.by.iter().map(|column| column.sql()).collect();
        let mut values = conditions.values.clone();
        let mut columns: Vec<String> = by.iter().map(|&column| column.to_owned()).collect();
        columns.extend(COUNT_COLUMNS.map(count));
        columns.extend(SUM_COLUMNS.map(large));
        let group =
            if by.is_empty() { String::new() } else { format!("GROUP BY {}", by.join(", ")) };
        let day: &[&str] = if by.contains(&"day") { &["day"] } else { &[] };
        // Not as integers, whose sum could overflow.
        let most: &[&str] = &["sum(cost_nano_usd * 1.0) DESC", "sum(requests) DESC"];
        let select = format!(
            "SELECT {columns} FROM {table} {conditions} {group} HAVING count(*) > 0
             ORDER BY {order} LIMIT {limit}",
            columns = columns.join(", "),
            table = query.table(|first| {
                values.push(SqlValue::from(first.0.to_vec()));
                format!("${}", values.len())
            }),
            conditions = conditions.to_sql(),
            order = [day, most, &by].concat().join(", "),
            limit = row_limit(query.limit),
        );
        let steps = move |sql: &dyn Sql| {
            let rows = sql.rows(&select, &values)?;
            Ok(rows.iter().map(|row| usage_row(row, 0, &query.by)).collect())
        };
        self.select(Reads::Journal, steps).await
    }

    async fn series(&self, query: SeriesQuery) -> Stored<Vec<SeriesRow>> {
        let steps = move |sql: &dyn Sql| {
            let conditions = query.conditions();
            let rows = sql.rows(&query.sql(&conditions), &conditions.values)?;
            Ok(rows.iter().map(|row| series_row(row, &query)).collect())
        };
        self.select(Reads::Journal, steps).await
    }

    async fn requests(&self, query: RequestQuery) -> Stored<Vec<RequestRow>> {
        let steps = move |sql: &dyn Sql| {
            let conditions = query.conditions();
            let select = format!(
                "SELECT {REQUEST_COLUMNS} FROM weir_request {conditions}
                 ORDER BY id DESC LIMIT {limit}",
                conditions = conditions.to_sql(),
                limit = row_limit(query.limit),
            );
            Ok(sql.rows(&select, &conditions.values)?.iter().map(request_row).collect())
        };
        self.select(Reads::Journal, steps).await
    }

    async fn prune_requests(&self, before_ms: u64, totals_before_ms: u64) -> Stored<u64> {
        self.prepare_pruning().await?;
        const KEY: &str = "day, tenant, key, team, organisation, \"user\", model";
        let requests = format!(
            "DELETE FROM weir_request WHERE id IN
             (SELECT id FROM weir_request WHERE id < $1 ORDER BY id LIMIT {DELETED_AT_ONCE})"
        );
        let totals = format!(
            "DELETE FROM weir_usage_day WHERE ({KEY}) IN
             (SELECT {KEY} FROM weir_usage_day WHERE day < $1 LIMIT {DELETED_AT_ONCE})"
        );
        let first_kept = RequestId::first_of(before_ms).0.to_vec();
        let mut deleted = 0;
        for (delete, first) in [
            (requests, SqlValue::from(first_kept)),
            (totals, SqlValue::from(totals_before_ms / DAY_MS)),
        ] {
            loop {
                let (delete, first) = (delete.clone(), [first.clone()]);
                let steps = move |sql: &dyn Sql| sql.execute(&delete, &first);
                let more = self.change(Exclusive::Nothing, steps).await?;
                deleted += more;
                if more < DELETED_AT_ONCE {
                    break;
                }
            }
        }
        Ok(deleted)
    }

    async fn spent_on_route(
        &self,
        tenant: Tenant,
        route: &'static str,
        from_ms: u64,
    ) -> Stored<u64> {
        let steps = move |sql: &dyn Sql| {
            let select = format!(
                "SELECT {} FROM weir_request WHERE id >= $1 AND tenant = $2 AND route = $3",
                large("coalesce(cost_nano_usd, 0)")
            );
            let first = RequestId::first_of(from_ms).0;
            let row = sql.row(&select, values![&first[..], &tenant.0[..], route])?;
            Ok(row.map_or(0, |row| u64::try_from(row.sum(0)).unwrap_or(u64::MAX)))
        };
        self.select(Reads::Journal, steps).await
    }
}

fn series_row(row: &SqlRow, query: &SeriesQuery) -> SeriesRow {
    let first = usize::from(query.every_ms.is_some());
    let start_ms = query.every_ms.map(|_| row.figure(0));
    let usage = usage_row(row, first, &query.by);
    let details = first + query.by.len() + COUNT_COLUMNS.len() + 2 * SUM_COLUMNS.len();
    let bands = |from: usize| std::array::from_fn(|band| row.figure(from + band));
    let shortened = row.figure(details);
    let (first_byte, total) = (bands(details + 1), bands(details + 1 + BANDS));
    SeriesRow { start_ms, usage, shortened, first_byte, total }
}

/// Reads names and totals from the columns from `first` on.
fn usage_row(row: &SqlRow, first: usize, by: &[Column]) -> UsageRow {
    let mut usage = UsageRow::default();
    for (index, column) in by.iter().enumerate() {
        let index = first + index;
        match column {
            Column::Day => usage.day = Some(row.figure(index)),
            Column::Tenant => usage.tenant = Some(row.tenant(index)),
            name => usage.names.push((*name, row.text(index))),
        }
    }
    let first = first + by.len();
    let counted = std::array::from_fn(|index| row.figure(first + index));
    let summed = std::array::from_fn(|index| row.sum(first + COUNT_COLUMNS.len() + 2 * index));
    usage.totals = totals_of(counted, summed);
    usage
}

fn request_row(row: &SqlRow) -> RequestRow {
    let names = |key: String| {
        Arc::new(KeyNames { key, team: row.text(4), organisation: row.text(5), user: row.text(6) })
    };
    RequestRow {
        id: RequestId(row.bytes(0).try_into().unwrap_or_default()),
        begun_ms: row.figure(1),
        caller: Caller { tenant: row.tenant(2), key: row.some_text(3).map(names) },
        route: row.text(7),
        model: row.text(8),
        upstream: row.text(9),
        stream: row.number(10) != 0,
        action: row.text(13),
        zone: row.text(14),
        attribution: Attribution::from_labels(
            [28, 29, 30, 31].map(|index| row.some_text(index)),
            row.some_text(33),
        ),
        received_tokens: row.some_figure(15),
        sent_tokens: row.some_figure(16),
        plan_ms: row.some_figure(25),
        settlement: Settlement {
            outcome: row.text(12),
            status: row.some_figure(11).and_then(|status| u16::try_from(status).ok()),
            prompt_tokens: row.some_figure(17),
            completion_tokens: row.some_figure(18),
            cached_tokens: row.some_figure(19),
            cache_write_tokens: row.some_figure(20),
            reasoning_tokens: row.some_figure(21),
            cost_nano_usd: row.some_figure(22),
            saved_nano_usd: row.some_figure(23).map(|_| row.number(23)),
            planned_saved_nano_usd: row.some_figure(32).map(|_| row.number(32)),
            flags: Flags(u32::try_from(row.number(24)).unwrap_or(0)),
            first_byte_ms: row.some_figure(26),
            total_ms: row.some_figure(27),
        },
    }
}
