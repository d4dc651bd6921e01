//! Steps of operations on PostgreSQL's tables. They run on a thread that waits for each answer.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::connection::{LONG_TIMEOUT, Param, Served};
use super::pool::LeasedConnection;
use super::watch::VERSION;
use super::{Postgres, ServerState, schema};
use crate::conversations::{KIND, MARK, marks_end_ms};
use crate::sql::{Exclusive, Reads, Sql, SqlRow, SqlValue, Steps, values};
use crate::{StoreError, Stored};

/// Lock of changes to keys and budgets.
const LOCK_KEYS: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('weir keys ' || current_schema(), 0))";

/// A leased connection on which steps run.
struct OnServer<'a> {
    runtime: &'a Handle,
    shared: &'a ServerState,
    connection: LeasedConnection<'a>,
    /// Whether a statement may read much.
    is_long: bool,
    /// Number of changes to keys and budgets, if the transaction counts one.
    counted: Cell<Option<u64>>,
}

impl OnServer<'_> {
    fn wait<T>(&self, answer: impl Future<Output = Served<T>>) -> Stored<T> {
        Ok(self.runtime.block_on(answer)?)
    }

    /// Runs `steps` in a transaction that alone changes `what`.
    fn change<T>(&self, what: Exclusive, steps: impl FnOnce(&dyn Sql) -> Stored<T>) -> Stored<T> {
        self.wait(self.connection.begin())?;
        match what {
            Exclusive::Keys => drop(self.rows(LOCK_KEYS, &[])?),
            Exclusive::Conversations => drop(self.rows("SELECT weir_hold($1)", values![KIND])?),
            Exclusive::Nothing => {}
        }
        // Without a commit, the connection is closed.
        let done = steps(self)?;
        self.wait(self.connection.commit())?;
        if let Some(count) = self.counted.get() {
            self.shared.keys.note(count, Instant::now());
        }
        Ok(done)
    }
}

impl Sql for OnServer<'_> {
    fn rows(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<Vec<SqlRow>> {
        let params: Vec<Param<'_>> = values.iter().map(|value| value as Param<'_>).collect();
        let rows = match self.is_long {
            true => self.wait(self.connection.rows_within(LONG_TIMEOUT, sql, &params)),
            false => self.wait(self.connection.rows(sql, &params)),
        };
        Ok(rows?.iter().map(SqlRow::from).collect())
    }

    fn execute(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<u64> {
        let params: Vec<Param<'_>> = values.iter().map(|value| value as Param<'_>).collect();
        self.wait(self.connection.execute(sql, &params))
    }

    fn changes(&self) -> Stored<u64> {
        let asked_at = Instant::now();
        let count = self.wait(schema::number(&self.connection, VERSION))?.unwrap_or(0);
        self.shared.keys.note(count, asked_at);
        Ok(count)
    }

    fn count_change(&self) -> Stored<()> {
        let count = self.wait(schema::number(&self.connection, VERSION))?.unwrap_or(0);
        let count = count.wrapping_add(1);
        self.wait(schema::put(&self.connection, VERSION, &count.to_be_bytes()))?;
        self.rows("SELECT pg_notify('weir_keys', $1)", values![self.shared.pool.schema()])?;
        self.counted.set(Some(count));
        Ok(())
    }

    fn evict_conversations(&self, max_bytes: u64, now_ms: u64) -> Stored<()> {
        let evict = "SELECT weir_evict_conversations($1, $2, $3)";
        self.rows(evict, values![now_ms, marks_end_ms(now_ms), max_bytes]).map(drop)
    }

    fn delete_ended_conversations(&self, now_ms: u64, most: u64) -> Stored<u64> {
        let mut deleted = 0;
        // Marks that must stay may be many, so the search for conversations passes them by.
        let ended =
            [(format!("name < '{MARK}' AND"), now_ms), (String::new(), marks_end_ms(now_ms))];
        for (which, end_ms) in ended {
            let delete = format!(
                "DELETE FROM weir_conversation WHERE id IN
                 (SELECT id FROM weir_conversation WHERE {which} expires_ms <= $1 LIMIT $2)"
            );
            deleted += self.execute(&delete, values![end_ms, most])?;
        }
        Ok(deleted)
    }
}

impl Steps for Postgres {
    async fn prepare_pruning(&self) -> Stored<()> {
        // An intent committed after its caller gave up, and after its end.
        let settled = "DELETE FROM weir_intent i
                       WHERE EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)";
        self.change(Exclusive::Nothing, |sql| sql.execute(settled, &[])).await.map(drop)
    }

    async fn change<T: Send + 'static>(
        &self,
        what: Exclusive,
        steps: impl FnOnce(&dyn Sql) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        let work = |shared| on_server(shared, false, move |sql| sql.change(what, steps));
        self.run(work).await
    }

    async fn select<T: Send + 'static>(
        &self,
        what: Reads,
        steps: impl FnOnce(&dyn Sql) -> Stored<T> + Send + 'static,
    ) -> Stored<T> {
        let is_long = what == Reads::Journal;
        self.read(move |shared| on_server(shared, is_long, move |sql| steps(sql))).await
    }
}

/// Runs `work` on a thread that may wait, with a leased connection.
async fn on_server<T: Send + 'static>(
    shared: Arc<ServerState>,
    is_long: bool,
    work: impl FnOnce(&OnServer<'_>) -> Stored<T> + Send + 'static,
) -> Stored<T> {
    let runtime = Handle::current();
    let done = tokio::task::spawn_blocking(move || {
        let pool = &shared.pool;
        let connection = match is_long {
            true => runtime.block_on(pool.long_lease())?,
            false => runtime.block_on(pool.lease())?,
        };
        let (runtime, shared) = (&runtime, &*shared);
        work(&OnServer { runtime, shared, connection, is_long, counted: Cell::new(None) })
    });
    done.await.map_err(|_| StoreError::Closed)?
}

impl ToSql for SqlValue<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Flag(flag) => flag.to_sql(of, out),
            Self::Number(number) => number.to_sql(of, out),
            Self::Bytes(bytes) => bytes.as_ref().to_sql(of, out),
            Self::Text(text) => text.to_sql(of, out),
        }
    }

    fn accepts(of: &Type) -> bool {
        [Type::BOOL, Type::INT8, Type::BYTEA, Type::TEXT].contains(of)
    }

    to_sql_checked!();
}

impl From<&Row> for SqlRow {
    fn from(row: &Row) -> Self {
        let value = |column: usize| match *row.columns()[column].type_() {
            Type::BOOL => row.get::<_, Option<bool>>(column).into(),
            Type::INT4 => row.get::<_, Option<i32>>(column).map(i64::from).into(),
            Type::INT8 => row.get::<_, Option<i64>>(column).into(),
            Type::BYTEA => row.get::<_, Option<Vec<u8>>>(column).into(),
            Type::TEXT => row.get::<_, Option<String>>(column).into(),
            // Of functions that return nothing.
            _ => SqlValue::Null,
        };
        Self((0..row.len()).map(value).collect())
    }
}
