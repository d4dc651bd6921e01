//! Steps of operations on SQLite's tables.

use std::sync::Arc;

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, params_from_iter};

use super::change_counter::{ChangeCounter, count_change, version};
use super::log::checkpoint_all;
use super::{Sqlite, conversations};
use crate::StoreError;
use crate::sql::{Exclusive, Reads, Sql, SqlRow, SqlValue, Steps};

/// A connection on which steps run.
pub(super) struct OnConnection<'a> {
    pub connection: &'a Connection,
    pub counter: &'a ChangeCounter,
}

impl Sql for OnConnection<'_> {
    fn rows(&self, sql: &str, values: &[SqlValue<'_>]) -> Result<Vec<SqlRow>, StoreError> {
        let mut statement = self.connection.prepare_cached(&own(sql))?;
        let rows = statement.query_map(params_from_iter(values), sql_row)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn execute(&self, sql: &str, values: &[SqlValue<'_>]) -> Result<u64, StoreError> {
        let mut statement = self.connection.prepare_cached(&own(sql))?;
        Ok(statement.execute(params_from_iter(values))? as u64)
    }

    fn changes(&self) -> Result<u64, StoreError> {
        Ok(version(self.connection)?)
    }

    fn count_change(&self) -> Result<(), StoreError> {
        Ok(count_change(self.connection, self.counter)?)
    }

    fn evict_conversations(&self, max_bytes: u64, now_ms: u64) -> Result<(), StoreError> {
        Ok(conversations::evict(self.connection, max_bytes, now_ms)?)
    }

    fn delete_ended_conversations(&self, now_ms: u64, most: u64) -> Result<u64, StoreError> {
        Ok(conversations::delete_ended(self.connection, now_ms, most)?)
    }
}

pub(super) fn sql_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<SqlRow> {
    let columns = 0..row.as_ref().column_count();
    let values = columns.map(|column| row.get_ref(column).map(SqlValue::from));
    values.collect::<rusqlite::Result<_>>().map(SqlRow)
}

/// Returns a statement as SQLite reads it.
pub(super) fn own(sql: &str) -> String {
    sql.replace("weir_", "").replace('$', "?")
}

impl Steps for Sqlite {
    async fn change<T: Send + 'static>(
        &self,
        _: Exclusive,
        steps: impl FnOnce(&dyn Sql) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let changes = Arc::clone(&self.changes);
        let steps = move |connection: &Connection| {
            steps(&OnConnection { connection, counter: &changes.counter })
        };
        self.writer.run_steps(steps).await
    }

    async fn select<T: Send + 'static>(
        &self,
        what: Reads,
        steps: impl FnOnce(&dyn Sql) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if what != Reads::Few {
            checkpoint_all(self).await;
        }
        let changes = Arc::clone(&self.changes);
        let steps = move |connection: &Connection| {
            steps(&OnConnection { connection, counter: &changes.counter })
        };
        match &self.readers {
            Some(readers) => readers.run_steps(steps).await,
            None => self.writer.run_steps(steps).await,
        }
    }
}

impl ToSql for SqlValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Flag(flag) => ValueRef::Integer(i64::from(*flag)),
            Self::Number(number) => ValueRef::Integer(*number),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

impl From<ValueRef<'_>> for SqlValue<'static> {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Number(number),
            ValueRef::Real(number) => Self::Number(number as i64),
            ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
            ValueRef::Blob(bytes) => bytes.to_vec().into(),
        }
    }
}
