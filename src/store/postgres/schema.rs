//! The tables in PostgreSQL and the way from each version of them to the next. Forward only: a
//! database of a later weir is left alone.

use super::super::{OpenError, SECRET_BYTES};
use super::connection::{Connection, Failure, LONG_PATIENCE};

/// What leads from each version to the next; the first begins with nothing.
const MIGRATIONS: &[&str] = &[include_str!("1.sql")];

/// The lock under which tables are made and changed, for those who share a schema.
const LOCK: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('weir tables ' || current_schema(), 0))";

/// What is known once the tables are there.
pub struct Prepared {
    pub secret: [u8; SECRET_BYTES],
    /// Where the tables are, quoted as SQL wants it.
    pub schema: String,
}

/// Brings the tables to the version that this weir knows, and gives the store's secret.
pub async fn prepare(connection: &Connection) -> Result<Prepared, OpenError> {
    let unusable = |said: &str| OpenError::Unusable { said: said.to_owned() };
    let facts = "SELECT current_schema() IS NOT NULL, current_setting('server_encoding') = 'UTF8',
                        current_setting('server_version_num')::int >= 120000";
    let facts = connection.row(facts, &[]).await?;
    let facts = facts.ok_or_else(|| unusable("PostgreSQL tells nothing of itself"))?;
    for (place, said) in [
        "the role's search_path names no schema that is there",
        "the database is not encoded in UTF8, so that not every text could be kept",
        "PostgreSQL must be of version 12 or newer",
    ]
    .into_iter()
    .enumerate()
    {
        if !facts.get::<_, bool>(place) {
            return Err(unusable(said));
        }
    }
    connection.begin().await?;
    // Another weir may be starting, and may have much to change.
    connection.batch("SET LOCAL lock_timeout = '30s'").await?;
    connection.rows_within(LONG_PATIENCE, LOCK, &[]).await?;
    match prepare_alone(connection).await {
        Ok(prepared) => connection.commit().await.map(|()| prepared).map_err(OpenError::from),
        Err(error) => {
            // What is left of it ends with the connection.
            let _ = connection.roll_back().await;
            Err(error)
        }
    }
}

/// The same, while no other weir does it.
async fn prepare_alone(connection: &Connection) -> Result<Prepared, OpenError> {
    let is_there = connection.row("SELECT to_regclass('weir_meta') IS NOT NULL", &[]).await?;
    let version = match is_there.is_some_and(|row| row.get(0)) {
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

/// The secret in the database, made where there is none.
async fn secret(connection: &Connection) -> Result<[u8; SECRET_BYTES], OpenError> {
    if let Some(found) = value(connection, "secret").await? {
        let said = "the secret in weir_meta is not what a weir has written".to_owned();
        return found.try_into().map_err(|_| OpenError::Unusable { said });
    }
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret)
        .map_err(|error| OpenError::System { said: format!("no random bytes: {error}") })?;
    put(connection, "secret", &secret).await?;
    Ok(secret)
}

/// What `weir_meta` holds by this name.
pub async fn value(connection: &Connection, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let found = connection.row("SELECT value FROM weir_meta WHERE name = $1", &[&name]).await?;
    Ok(found.map(|row| row.get(0)))
}

/// The same where it is a number.
pub async fn number(connection: &Connection, name: &str) -> Result<Option<u64>, Failure> {
    let found = value(connection, name).await?;
    Ok(found.map(|bytes| bytes.try_into().map_or(u64::MAX, u64::from_be_bytes)))
}

/// Writes what `weir_meta` holds by this name.
pub async fn put(connection: &Connection, name: &str, value: &[u8]) -> Result<(), Failure> {
    let sql = "INSERT INTO weir_meta VALUES ($1, $2)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    connection.execute(sql, &[&name, &value]).await.map(drop)
}
