//! Spending of a scope since a time: whole days from daily totals, the rest from rows. A single
//! statement, so the result is consistent.

use std::fmt::Write as _;

use rusqlite::{Connection, params};

use crate::budget::{Measure, ScopeKind};
use crate::budgets::SpentQuery;
use crate::ledger::{DAY_MS, RequestId};

/// Returns the total per bucket, oldest first.
pub(super) fn spent(
    connection: &Connection,
    query: &SpentQuery,
) -> rusqlite::Result<Vec<(u64, u64)>> {
    let first_day = query.from_ms.div_ceil(DAY_MS);
    let kind = query.scope.kind;
    let is_by_day = query.bucket_ms.is_none_or(|length_ms| length_ms % DAY_MS == 0);
    let is_by_day = is_by_day && !kind.is_label();
    // Buckets shorter than a day, and labels, use rows only.
    let rows_until_ms = if is_by_day { first_day.saturating_mul(DAY_MS) } else { u64::MAX };
    let sums_from_day = if is_by_day { first_day } else { u64::MAX };
    let column = match kind {
        ScopeKind::All => "?1".to_owned(),
        kind => kind.word().to_owned(),
    };
    let (by_day, by_row) = match kind.is_label() {
        // An index finds the label; then its caller is compared.
        true => {
            let owner = "coalesce(nullif(key, ''), lower(hex(tenant)))";
            let label = format!("{column} = substr(?1, instr(?1, '/') + 1)");
            ("FALSE".to_owned(), format!("{label} AND {owner} || '/' || {column} = ?1"))
        }
        false => (format!("{column} = ?1"), format!("coalesce({column}, '') = ?1")),
    };
    let amount = match query.measure {
        Measure::NanoUsd => "coalesce(cost_nano_usd, 0)",
        Measure::Tokens => "coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)",
    };
    let mut open = String::new();
    for RequestId(id) in &query.open {
        let separator = if open.is_empty() { "" } else { "," };
        write!(open, "{separator}x'{:032x}'", u128::from_be_bytes(*id))
            .expect("writing to a string cannot fail");
    }
    // Summed as floating point, which cannot overflow; exact up to 2^53.
    let sql = format!(
        "SELECT bucket, total(amount) FROM (
             SELECT (day * {DAY_MS}) / ?2 * ?2 AS bucket, {amount} AS amount FROM usage_day
             WHERE day >= ?3 AND {by_day}
             UNION ALL
             SELECT begun_ms / ?2 * ?2, {amount} FROM request
             WHERE id >= ?4 AND id < ?5 AND {by_row} AND id NOT IN ({open})
             UNION ALL
             SELECT begun_ms / ?2 * ?2, -({amount}) FROM request
             WHERE id IN ({open}) AND begun_ms >= ?3 * {DAY_MS} AND {by_row}
         ) GROUP BY bucket ORDER BY bucket"
    );
    let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let length = stored(query.bucket_ms.unwrap_or(u64::MAX));
    let sums_from_day = stored(sums_from_day.min(u64::MAX / DAY_MS / 4));
    let first = RequestId::first_of(query.from_ms).0;
    let until = RequestId::first_of(rows_until_ms).0;
    let mut statement = connection.prepare(&sql)?;
    let buckets = statement.query_map(
        params![query.scope.name, length, sums_from_day, first, until],
        |row| {
            let (bucket, amount): (i64, f64) = (row.get(0)?, row.get(1)?);
            Ok((u64::try_from(bucket).unwrap_or(0), amount.max(0.0) as u64))
        },
    )?;
    buckets.collect()
}
