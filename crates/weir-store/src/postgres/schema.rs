//! PostgreSQL tables and their migrations. Forward only: a database of a later version is left
//! alone.

use super::super::{OpenError, SECRET_BYTES};
use super::connection::{Connection, LONG_TIMEOUT, Served};
use crate::secret::random;

/// Migrations between versions; the first starts from an empty schema.
const MIGRATIONS: &[&str] = &[
    include_str!("1.sql"),
    include_str!("2.sql"),
    include_str!("3.sql"),
    include_str!("4.sql"),
    include_str!("5.sql"),
    include_str!("6.sql"),
];

/// Advisory lock for creating and changing tables in a schema.
const LOCK: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('weir tables ' || current_schema(), 0))";

/// Result of preparing the tables.
pub(super) struct Prepared {
    pub secret: [u8; SECRET_BYTES],
    /// Schema of the tables, as a quoted identifier.
    pub schema: String,
}

/// Migrates the tables to the current version, and returns the store's secret.
pub(super) async fn prepare(connection: &Connection) -> Result<Prepared, OpenError> {
    let unusable = |message: &str| OpenError::Unusable { message: message.to_owned() };
    let facts = "SELECT current_schema() IS NOT NULL, current_setting('server_encoding') = 'UTF8',
                        current_setting('server_version_num')::int >= 120000";
    let facts = connection.row(facts, &[]).await?;
    let facts = facts.ok_or_else(|| unusable("PostgreSQL returned no settings"))?;
    for (place, message) in [
        "the role's search_path names no existing schema",
        "the database encoding is not UTF8, so it cannot store every text",
        "PostgreSQL must be version 12 or newer",
    ]
    .into_iter()
    .enumerate()
    {
        if !facts.get::<_, bool>(place) {
            return Err(unusable(message));
        }
    }
    connection.begin().await?;
    // Another weir may be starting with a long migration.
    connection.batch("SET LOCAL lock_timeout = '30s'").await?;
    connection.rows_within(LONG_TIMEOUT, LOCK, &[]).await?;
    match prepare_alone(connection).await {
        Ok(prepared) => connection.commit().await.map(|()| prepared).map_err(OpenError::from),
        Err(error) => {
            // If rollback fails, the connection is closed anyway.
            let _ = connection.roll_back().await;
            Err(error)
        }
    }
}

/// Prepares the tables under the lock.
async fn prepare_alone(connection: &Connection) -> Result<Prepared, OpenError> {
    let exists = connection.row("SELECT to_regclass('weir_meta') IS NOT NULL", &[]).await?;
    let version = match exists.is_some_and(|row| row.get(0)) {
        true => number(connection, "version").await?.unwrap_or(0),
        false => 0,
    };
    let known = MIGRATIONS.len() as u64;
    if version > known {
        let [version, known] = [version, known].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        return Err(OpenError::Newer { version, known });
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
        connection.batch(migration).await?;
    }
    if version < known {
        put(connection, "version", &known.to_be_bytes()).await?;
    }
    let schema = "SELECT quote_ident(n.nspname) FROM pg_class c
                  JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE c.oid = to_regclass('weir_meta')";
    let schema = connection.row(schema, &[]).await?.map(|row| row.get(0)).unwrap_or_default();
    Ok(Prepared { secret: secret(connection).await?, schema })
}

/// Returns the database's secret; creates it if missing.
async fn secret(connection: &Connection) -> Result<[u8; SECRET_BYTES], OpenError> {
    if let Some(found) = value(connection, "secret").await? {
        let message = "the secret in weir_meta was not written by weir".to_owned();
        return found.try_into().map_err(|_| OpenError::Unusable { message });
    }
    let secret = random()?;
    put(connection, "secret", &secret).await?;
    Ok(secret)
}

/// Reads a value of `weir_meta`.
pub(super) async fn value(connection: &Connection, name: &str) -> Served<Option<Vec<u8>>> {
    let found = connection.row("SELECT value FROM weir_meta WHERE name = $1", &[&name]).await?;
    Ok(found.map(|row| row.get(0)))
}

/// Reads a value of `weir_meta` as a number.
pub(super) async fn number(connection: &Connection, name: &str) -> Served<Option<u64>> {
    let found = value(connection, name).await?;
    Ok(found.map(|bytes| bytes.try_into().map_or(u64::MAX, u64::from_be_bytes)))
}

/// Writes a value of `weir_meta`.
pub(super) async fn put(connection: &Connection, name: &str, value: &[u8]) -> Served<()> {
    let sql = "INSERT INTO weir_meta VALUES ($1, $2)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    connection.execute(sql, &[&name, &value]).await.map(drop)
}
