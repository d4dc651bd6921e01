//! Statements of both back ends in one dialect, with their values and rows, so that the steps of an operation
//! stand once. Statements are PostgreSQL's: `$1` for a value, `weir_` in front of a table. SQLite reads `?1`
//! and no prefix.

use std::borrow::Cow;
use std::future::Future;

use crate::ledger::text::from_stored;
use crate::{Stored, Tenant};

/// Value of a statement or of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SqlValue<'a> {
    Null,
    Flag(bool),
    Number(i64),
    Bytes(Cow<'a, [u8]>),
    Text(Cow<'a, str>),
}

/// Lists the values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::SqlValue::from($value)),*] };
}
pub(crate) use values;

/// Row of a result.
#[derive(Debug)]
pub(crate) struct SqlRow(pub Vec<SqlValue<'static>>);

/// Runs statements, inside a transaction if the operation changes something.
pub(crate) trait Sql {
    /// Returns the rows of a statement.
    fn rows(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<Vec<SqlRow>>;

    /// Runs a statement; returns the number of changed rows.
    fn execute(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<u64>;

    /// Returns the first row of a statement.
    fn row(&self, sql: &str, values: &[SqlValue<'_>]) -> Stored<Option<SqlRow>> {
        Ok(self.rows(sql, values)?.into_iter().next())
    }

    /// Returns the number of changes to keys and budgets so far.
    fn changes(&self) -> Stored<u64>;

    /// Counts a change of keys or budgets, and notifies all caches.
    fn count_change(&self) -> Stored<()>;

    /// Deletes conversations above `max_bytes`: expired ones, then the oldest of the tenant with the most
    /// data. Its marks go last: without one, an exchange could undo a change.
    fn evict_conversations(&self, max_bytes: u64, now_ms: u64) -> Stored<()>;

    /// Deletes expired conversations, then marks that no exchange needs any more: at most `most` of each.
    /// Returns their number.
    fn delete_ended_conversations(&self, now_ms: u64, most: u64) -> Stored<u64>;
}

/// What a transaction changes. Others that change the same wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exclusive {
    /// Keys, teams and budgets.
    Keys,
    Conversations,
    /// Rows that any number may delete at once.
    Nothing,
}

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// A few rows.
    Few,
    /// A few rows, with all requests that have ended.
    Ended,
    /// Much of the journal, with all requests that have ended.
    Journal,
}

/// A back end that runs steps on its tables.
pub(crate) trait Steps: Send + Sync + 'static {
    /// Prepares a deletion of requests: those that have ended are in the tables, and nowhere else.
    fn prepare_pruning(&self) -> impl Future<Output = Stored<()>> + Send;

    /// Runs `steps` completely or not at all, and returns their result after the commit.
    fn change<T: Send + 'static>(
        &self,
        what: Exclusive,
        steps: impl FnOnce(&dyn Sql) -> Stored<T> + Send + 'static,
    ) -> impl Future<Output = Stored<T>> + Send;

    /// Runs read-only `steps`.
    fn select<T: Send + 'static>(
        &self,
        what: Reads,
        steps: impl FnOnce(&dyn Sql) -> Stored<T> + Send + 'static,
    ) -> impl Future<Output = Stored<T>> + Send;
}

/// Converts a number for storage; larger ones are capped at a value beyond any real time.
pub(crate) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl SqlRow {
    /// Returns a number; 0 for none.
    pub(crate) fn number(&self, column: usize) -> i64 {
        match self.0.get(column) {
            Some(SqlValue::Number(number)) => *number,
            Some(SqlValue::Flag(flag)) => i64::from(*flag),
            _ => 0,
        }
    }

    /// Returns a figure; 0 for none and for a negative one, which was not written by weir.
    pub(crate) fn figure(&self, column: usize) -> u64 {
        from_stored(self.number(column))
    }

    /// Returns a figure, if there is one.
    pub(crate) fn some_figure(&self, column: usize) -> Option<u64> {
        let is_none = matches!(self.0.get(column), None | Some(SqlValue::Null));
        (!is_none).then(|| self.figure(column))
    }

    /// Returns the sum whose halves are in the columns from `first` on.
    pub(crate) fn sum(&self, first: usize) -> i128 {
        (i128::from(self.number(first)) << 32) + i128::from(self.number(first + 1))
    }

    /// Returns a text, if there is one.
    pub(crate) fn some_text(&self, column: usize) -> Option<String> {
        match self.0.get(column) {
            Some(SqlValue::Text(text)) => Some(text.to_string()),
            _ => None,
        }
    }

    /// Returns a text; empty for none.
    pub(crate) fn text(&self, column: usize) -> String {
        self.some_text(column).unwrap_or_default()
    }

    /// Returns a tenant. An invalid one counts as anonymous.
    pub(crate) fn tenant(&self, column: usize) -> Tenant {
        Tenant(self.bytes(column).try_into().unwrap_or_default())
    }

    /// Returns bytes; empty for none.
    pub(crate) fn bytes(&self, column: usize) -> &[u8] {
        match self.0.get(column) {
            Some(SqlValue::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }
}

/// Lists types that are values of a statement, with their form.
macro_rules! from {
    ($($from:ty => $form:expr;)*) => {
        $(impl<'a> From<$from> for SqlValue<'a> {
            fn from(value: $from) -> Self {
                $form(value)
            }
        })*
    };
}

from! {
    bool => SqlValue::Flag;
    i64 => SqlValue::Number;
    u64 => |number| SqlValue::Number(stored(number));
    &'a [u8] => |bytes| SqlValue::Bytes(Cow::Borrowed(bytes));
    Vec<u8> => |bytes| SqlValue::Bytes(Cow::Owned(bytes));
    &'a str => |text| SqlValue::Text(Cow::Borrowed(text));
    String => |text| SqlValue::Text(Cow::Owned(text));
}

impl<T: Into<Self>> From<Option<T>> for SqlValue<'_> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
