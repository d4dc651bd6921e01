//! Column arrays for PostgreSQL: statements take one list per column. No I/O.

use super::connection::Param;
use crate::sql::SqlValue;

/// Rows as parameters of a statement: one list per column.
pub(super) struct Columns<'a>(Vec<Vec<SqlValue<'a>>>);

impl<'a> Columns<'a> {
    pub(super) fn new<const N: usize>(rows: impl Iterator<Item = [SqlValue<'a>; N]>) -> Self {
        let mut columns = vec![Vec::new(); N];
        for row in rows {
            for (column, value) in columns.iter_mut().zip(row) {
                column.push(value);
            }
        }
        Self(columns)
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        self.0.iter().map(|column| column as Param<'_>).collect()
    }
}
