//! Steps of operations on SQLite's tables.

use std::sync::Arc;

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, params_from_iter};

use super::change_counter::{ChangeCounter, count_change, version};
use super::log::checkpoint_all;
use super::{Sqlite, cached, conversations};
use crate::Stored;
use crate::sql::{Exclusive, Reads, Sql, SqlRow, SqlValue, Steps};

/// A connection on which steps run.
pub(super) struct OnConnection<'a> {
    pub connection: &'a Connection,
    pub counter: &'a ChangeCounter,
}

impl Sql for OnConnection<'_> {
    fn rows(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<Vec<SqlRow>> {
        Ok(cached::all(self.connection, &own(sql), params_from_iter(values), cached::sql_row)?)
    }

    fn execute(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<u64> {
        Ok(cached::run(self.connection, &own(sql), params_from_iter(values))? as u64)
    }

    fn changes(&self) -> Stored<u64> {
        Ok(version(self.connection)?)
    }

    fn count_change(&self) -> Stored<()> {
        Ok(count_change(self.connection, self.counter)?)
    }

    fn evict_conversations(&self, max_bytes: u64, now_ms: u64) -> Stored<()> {
        Ok(conversations::evict(self.connection, max_bytes, now_ms)?)
    }

    fn delete_ended_conversations(&self, now_ms: u64, most: u64) -> Stored<u64> {
        Ok(conversations::delete_ended(self.connection, now_ms, most)?)
    }
}

/// Returns a statement as SQLite reads it.
pub(super) fn own(sql: &str) -> String {
    sql.replace("weir_", "").replace('$', "?")
}

impl Steps for Sqlite {
    async fn prepare_pruning(&self) -> Stored<()> {
        checkpoint_all(self).await;
        // Data deleted from rows should leave the log as well.
        self.session.log.request_rotation();
        Ok(())
    }

    async fn change<T: Send + 'static>(
        &self,
        _: Exclusive,
        steps: impl FnOnce(&dyn Sql) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        let changes = Arc::clone(&self.changes);
        let steps = move |connection: &Connection| {
            steps(&OnConnection { connection, counter: &changes.counter })
        };
        self.writer.run_steps(steps).await
    }

    async fn select<T: Send + 'static>(
        &self,
        what: Reads,
        steps: impl FnOnce(&dyn Sql) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        if what != Reads::Few {
            checkpoint_all(self).await;
        }
        let changes = Arc::clone(&self.changes);
        let steps = move |connection: &Connection| {
            steps(&OnConnection { connection, counter: &changes.counter })
        };
        self.read_steps(steps).await
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
