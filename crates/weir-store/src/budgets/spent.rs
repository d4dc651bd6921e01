//! Statement for the spending of a scope since a time: whole days from daily totals, the rest from rows. A single
//! statement, so that its result is consistent.

use super::SpentQuery;
use crate::budget::{Measure, ScopeKind};
use crate::ledger::query::large;
use crate::ledger::{DAY_MS, RequestId};
use crate::sql::{SqlRow, SqlValue};

/// Words of a back end in the statement.
pub(crate) struct Dialect {
    /// The tenant in hexadecimal digits.
    pub tenant: &'static str,
    /// The part of the first value after its first slash.
    pub label: &'static str,
    /// The first value, a text.
    pub scope: &'static str,
    /// Whether a row is one of the requests to leave out.
    pub is_open: String,
}

/// Returns the statement, with rows of a bucket and the halves of its amount, and its values.
pub(crate) fn statement(query: &SpentQuery, dialect: &Dialect) -> (String, [SqlValue<'static>; 5]) {
    let kind = query.scope.kind;
    let is_by_day = query.bucket_ms.is_none_or(|length_ms| length_ms % DAY_MS == 0);
    // Buckets shorter than a day, and labels, use rows only.
    let first_day = query.from_ms.div_ceil(DAY_MS);
    let (rows_until_ms, sums_from_day) = match is_by_day && !kind.is_label() {
        true => (first_day.saturating_mul(DAY_MS), first_day.min(u64::MAX / DAY_MS / 4)),
        false => (u64::MAX, u64::MAX / DAY_MS / 4),
    };
    let Dialect { tenant, label, scope, is_open } = dialect;
    let column = match kind {
        ScopeKind::All => (*scope).to_owned(),
        kind => format!("\"{}\"", kind.word()),
    };
    let (by_day, by_row) = match kind.is_label() {
        // The label is compared first, since few rows have it; then its caller.
        true => {
            let owner = format!("coalesce(nullif(key, ''), {tenant})");
            let is_own = format!("{owner} || '/' || {column} = {scope}");
            ("FALSE".to_owned(), format!("{column} = {label} AND {is_own}"))
        }
        false => (format!("{column} = {scope}"), format!("coalesce({column}, '') = {scope}")),
    };
    let amount = match query.measure {
        Measure::NanoUsd => "coalesce(cost_nano_usd, 0)",
        Measure::Tokens => "coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)",
    };
    let sum = large("amount");
    let sql = format!(
        "SELECT bucket, {sum} FROM (
             SELECT (day * {DAY_MS}) / $2 * $2 AS bucket, {amount} AS amount FROM weir_usage_day
             WHERE day >= $3 AND {by_day}
             UNION ALL
             SELECT begun_ms / $2 * $2, {amount} FROM weir_request
             WHERE id >= $4 AND id < $5 AND {by_row} AND NOT {is_open}
             UNION ALL
             SELECT begun_ms / $2 * $2, -({amount}) FROM weir_request
             WHERE {is_open} AND begun_ms >= $3 * {DAY_MS} AND {by_row}
         ) AS amounts GROUP BY bucket"
    );
    let first_of = |moment_ms: u64| SqlValue::from(RequestId::first_of(moment_ms).0.to_vec());
    let length_ms = query.bucket_ms.unwrap_or(u64::MAX);
    let values = [
        query.scope.name.clone().into(),
        length_ms.into(),
        sums_from_day.into(),
        first_of(query.from_ms),
        first_of(rows_until_ms),
    ];
    (sql, values)
}

/// Returns the bucket and the amount of a row; one below zero is none.
pub(crate) fn bucket(row: &SqlRow) -> (u64, u64) {
    (row.figure(0), u64::try_from(row.sum(1).max(0)).unwrap_or(u64::MAX))
}
