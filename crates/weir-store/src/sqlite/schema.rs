//! SQLite tables and their migrations. Forward only: a file of a later version is left alone.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::secret::random;
use crate::{OpenError, SECRET_BYTES};

/// Identifies weir's files: "weir" in ASCII.
const APPLICATION_ID: i64 = 0x7765_6972;

/// Migrations between versions; the first starts from an empty file.
const MIGRATIONS: &[&str] = &[
    include_str!("entry.sql"),
    include_str!("ledger.sql"),
    include_str!("moved.sql"),
    include_str!("budget.sql"),
    include_str!("attribution.sql"),
    include_str!("conversation.sql"),
    include_str!("mark.sql"),
    include_str!("planned.sql"),
    include_str!("tag.sql"),
];

/// Rejects files that are not weir's, or of a later version. Changes nothing.
pub(super) fn recognise(connection: &Connection) -> Result<(), OpenError> {
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let has_tables = "SELECT EXISTS (SELECT 1 FROM sqlite_schema)";
    let has_tables: bool = connection.query_row(has_tables, [], |row| row.get(0))?;
    if has_tables && number("application_id")? != APPLICATION_ID {
        return Err(OpenError::Foreign);
    }
    let (version, known) = (number("user_version")?, MIGRATIONS.len() as i64);
    if version > known {
        return Err(OpenError::Newer { version, known });
    }
    Ok(())
}

/// Migrates the tables to the current version, and returns the store's secret.
pub(super) fn prepare(connection: &mut Connection) -> Result<[u8; SECRET_BYTES], OpenError> {
    // One process at a time: another may be starting on the same file.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    recognise(&transaction)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let done = usize::try_from(version).unwrap_or(0);
    for migration in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    let secret = secret(&transaction)?;
    transaction.commit()?;
    Ok(secret)
}

/// Returns the file's secret; creates it if missing.
fn secret(connection: &Connection) -> Result<[u8; SECRET_BYTES], OpenError> {
    let found = connection
        .query_row("SELECT value FROM meta WHERE name = 'secret'", [], |row| row.get(0))
        .optional()?;
    if let Some(secret) = found {
        return Ok(secret);
    }
    let secret = random()?;
    connection.execute("INSERT INTO meta VALUES ('secret', ?1)", [secret])?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared() -> Connection {
        let mut connection = Connection::open_in_memory().expect("memory");
        prepare(&mut connection).expect("an empty database");
        connection
    }

    #[test]
    fn preparing_again_changes_nothing() {
        let mut connection = prepared();
        let first = secret(&connection).expect("it is there");
        assert_eq!(prepare(&mut connection), Ok(first));
        assert_ne!(prepare(&mut prepared()), Ok(first));
    }

    #[test]
    fn foreign_and_newer_files_are_refused() {
        let mut foreign = Connection::open_in_memory().expect("memory");
        foreign.execute_batch("CREATE TABLE songs (name TEXT)").expect("a table");
        assert_eq!(prepare(&mut foreign), Err(OpenError::Foreign));
        let mut later = prepared();
        let known = MIGRATIONS.len() as i64;
        later.pragma_update(None, "user_version", known + 1).expect("a number");
        assert_eq!(prepare(&mut later), Err(OpenError::Newer { version: known + 1, known }));
    }

    #[test]
    fn an_earlier_version_keeps_its_rows() {
        let mut connection = Connection::open_in_memory().expect("memory");
        let earlier = MIGRATIONS.len() - 1;
        for migration in &MIGRATIONS[..earlier] {
            connection.execute_batch(migration).expect("SQL");
        }
        connection.pragma_update(None, "application_id", APPLICATION_ID).expect("a number");
        connection.pragma_update(None, "user_version", earlier as i64).expect("a number");
        let row =
            "INSERT INTO request (id, begun_ms, tenant, route, model, upstream, stream, outcome,
                   action, zone, flags) VALUES (x'01', 5, x'02', '', 'm', '', 0, '', '', '', 0)";
        connection.execute(row, []).expect("SQL");
        prepare(&mut connection).expect("it is migrated");
        let read = "SELECT model, conversation, class FROM request";
        let found = connection.query_row(read, [], |row| {
            Ok((row.get(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<String>>(2)?))
        });
        assert_eq!(found, Ok(("m".to_owned(), None, None)));
    }

    #[test]
    fn weights_are_those_of_the_entries() {
        let connection = prepared();
        let weights = || -> [i64; 3] {
            let sum = "SELECT (SELECT coalesce(sum(weight_bytes), 0) FROM entry),
                              (SELECT coalesce(sum(bytes), 0) FROM weight),
                              (SELECT coalesce(sum(bytes), 0) FROM total)";
            let read = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
            connection.query_row(sum, [], read).expect("three sums")
        };
        for (change, expected) in [
            ("INSERT INTO entry VALUES (1, x'01', 'a', x'01', x'', 5, 10)", 10),
            ("INSERT INTO entry VALUES (2, x'01', 'a', x'02', x'', 5, 20)", 30),
            ("INSERT INTO entry VALUES (3, x'02', 'b', x'01', x'', 5, 40)", 70),
            ("UPDATE entry SET weight_bytes = 5 WHERE id = 2", 55),
            ("DELETE FROM entry WHERE tenant = x'01'", 40),
            ("DELETE FROM entry", 0),
        ] {
            connection.execute_batch(change).expect("SQL");
            assert_eq!(weights(), [expected; 3], "{change}");
        }
    }
}
