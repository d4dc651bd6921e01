//! Spending of a scope since a time.

use rusqlite::{Connection, params_from_iter};

use super::cached::sql_row;
use super::steps::own;
use crate::budgets::SpentQuery;
use crate::budgets::spent::{self, Dialect};

/// Returns the total per bucket, oldest first.
pub(super) fn spent(
    connection: &Connection,
    query: &SpentQuery,
) -> rusqlite::Result<Vec<(u64, u64)>> {
    let open = query.open.iter().map(|id| format!("x'{id}'"));
    let dialect = Dialect {
        tenant: "lower(hex(tenant))",
        label: "substr($1, instr($1, '/') + 1)",
        scope: "$1",
        is_open: format!("id IN ({})", open.collect::<Vec<_>>().join(", ")),
    };
    let (sql, values) = spent::statement(query, &dialect);
    let mut statement = connection.prepare(&(own(&sql) + " ORDER BY bucket"))?;
    let buckets =
        statement.query_map(params_from_iter(&values), |row| Ok(spent::bucket(&sql_row(row)?)))?;
    buckets.collect()
}
