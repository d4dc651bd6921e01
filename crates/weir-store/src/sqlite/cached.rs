//! Cached statements, each in one call.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Result, Row};

use crate::sql::{SqlRow, SqlValue};

/// Runs a statement; returns the number of changed rows.
pub(crate) fn run(connection: &Connection, sql: &str, params: impl Params) -> Result<usize> {
    connection.prepare_cached(sql)?.execute(params)
}

/// Reads the first row of a statement, if there is one.
pub(crate) fn first<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    connection.prepare_cached(sql)?.query_row(params, read).optional()
}

/// Reads all rows of a statement.
pub(crate) fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    connection.prepare_cached(sql)?.query_map(params, read)?.collect()
}

/// Returns the value of a statement that always has one.
pub(crate) fn value<T: FromSql>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<T> {
    connection.prepare_cached(sql)?.query_row(params, |row| row.get(0))
}

/// Reads a whole row.
pub(super) fn sql_row(row: &Row<'_>) -> Result<SqlRow> {
    let columns = 0..row.as_ref().column_count();
    let values = columns.map(|column| row.get_ref(column).map(SqlValue::from));
    values.collect::<Result<_>>().map(SqlRow)
}
