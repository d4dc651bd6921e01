//! Database rows of virtual keys. Contains SQL; knows secrets only as hashes.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::keys::{FoundKey, KeyFacts, SecretFacts, TeamFacts, VirtualKey};

/// Columns of a key, including its team.
const COLUMNS: &str = "k.id, k.name, t.organisation, k.team, k.user, k.settings, k.created_ms,
                       k.expires_ms, k.revoked_ms";
/// Name of the change counter.
const VERSION: &str = "keys_version";

/// Returns the change counter.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u64> {
    let found: Option<[u8; 8]> = connection
        .prepare_cached("SELECT value FROM meta WHERE name = ?1")?
        .query_row([VERSION], |row| row.get(0))
        .optional()?;
    Ok(found.map_or(0, u64::from_be_bytes))
}

/// Increments the change counter and returns it.
pub(super) fn raise_version(connection: &Connection) -> rusqlite::Result<u64> {
    let next = version(connection)?.wrapping_add(1);
    connection
        .prepare_cached(
            "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        )?
        .execute(params![VERSION, next.to_be_bytes()])?;
    Ok(next)
}

pub(super) fn by_hash(
    connection: &Connection,
    hash: &[u8; 32],
) -> rusqlite::Result<Option<FoundKey>> {
    let sql = format!(
        "SELECT {COLUMNS}, s.hash, s.expires_ms FROM key_secret s
         JOIN virtual_key k ON k.id = s.key JOIN team t ON t.name = k.team WHERE s.hash = ?1"
    );
    let found = |row: &Row<'_>| {
        Ok(FoundKey { key: key(row)?, hash: row.get(9)?, secret_expires_ms: moment(row, 10)? })
    };
    connection.prepare_cached(&sql)?.query_row([hash], found).optional()
}

pub(super) fn by_id(connection: &Connection, id: &str) -> rusqlite::Result<Option<KeyFacts>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM virtual_key k JOIN team t ON t.name = k.team WHERE k.id = ?1"
    );
    let found = connection.prepare_cached(&sql)?.query_row([id], key).optional()?;
    found.map(|key| with_secrets(connection, key)).transpose()
}

/// Returns at most `limit` keys after `after`, by id.
pub(super) fn list(
    connection: &Connection,
    team: Option<&str>,
    after: &str,
    limit: usize,
) -> rusqlite::Result<Vec<KeyFacts>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM virtual_key k JOIN team t ON t.name = k.team
         WHERE k.id > ?1 AND (?2 IS NULL OR k.team = ?2) ORDER BY k.id LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map(params![after, team, limit as i64], key)?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    found.into_iter().map(|key| with_secrets(connection, key)).collect()
}

/// Returns at most `limit` teams after `after`, by name, with the number of their keys that are not
/// revoked.
pub(super) fn teams(
    connection: &Connection,
    after: &str,
    limit: usize,
) -> rusqlite::Result<Vec<TeamFacts>> {
    let mut statement = connection.prepare_cached(
        "SELECT name, organisation, created_ms,
                (SELECT count(*) FROM virtual_key k WHERE k.team = t.name AND revoked_ms IS NULL)
         FROM team t WHERE name > ?1 ORDER BY name LIMIT ?2",
    )?;
    let team = |row: &Row<'_>| {
        Ok(TeamFacts {
            name: row.get(0)?,
            organisation: row.get(1)?,
            created_ms: unsigned(row.get(2)?),
            keys: unsigned(row.get(3)?),
        })
    };
    statement.query_map(params![after, limit as i64], team)?.collect()
}

/// Returns the number of keys, including revoked ones.
pub(super) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT count(*) FROM virtual_key", [], |row| row.get(0).map(unsigned))
}

/// Returns the organisation of a team, if the team exists.
pub(super) fn organisation(
    connection: &Connection,
    team: &str,
) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT organisation FROM team WHERE name = ?1")?
        .query_row([team], |row| row.get(0))
        .optional()
}

pub(super) fn insert_team(
    connection: &Connection,
    team: &str,
    organisation: &str,
    now_ms: u64,
) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO organisation VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        params![organisation, signed(now_ms)],
    )?;
    connection.execute(
        "INSERT INTO team VALUES (?1, ?2, ?3)",
        params![team, organisation, signed(now_ms)],
    )?;
    Ok(())
}

/// Inserts a key, or replaces the one with its id.
pub(super) fn put(connection: &Connection, key: &VirtualKey) -> rusqlite::Result<()> {
    let settings = serde_json::to_string(&key.settings)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    connection
        .prepare_cached(
            "INSERT INTO virtual_key VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT DO UPDATE SET name = excluded.name, user = excluded.user,
             settings = excluded.settings, expires_ms = excluded.expires_ms,
             revoked_ms = excluded.revoked_ms",
        )?
        .execute(params![
            key.id,
            key.name,
            key.team,
            key.user,
            settings,
            signed(key.created_ms),
            key.expires_ms.map(signed),
            key.revoked_ms.map(signed),
        ])?;
    Ok(())
}

pub(super) fn insert_secret(
    connection: &Connection,
    hash: &[u8; 32],
    key: &str,
    secret: &SecretFacts,
) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO key_secret VALUES (?1, ?2, ?3, ?4, ?5)",
        params![hash, key, secret.hint, signed(secret.created_ms), secret.expires_ms.map(signed)],
    )?;
    Ok(())
}

/// Ends a key's secrets at `end_ms`. One with an end already set ends at once, so that at most two
/// are ever valid.
pub(super) fn end_secrets(
    connection: &Connection,
    key: &str,
    now_ms: u64,
    end_ms: u64,
) -> rusqlite::Result<()> {
    connection.execute(
        "DELETE FROM key_secret WHERE key = ?1 AND (expires_ms IS NOT NULL OR ?2 <= ?3)",
        params![key, signed(end_ms), signed(now_ms)],
    )?;
    connection.execute(
        "UPDATE key_secret SET expires_ms = ?2 WHERE key = ?1",
        params![key, signed(end_ms)],
    )?;
    Ok(())
}

fn with_secrets(connection: &Connection, key: VirtualKey) -> rusqlite::Result<KeyFacts> {
    let mut statement = connection.prepare_cached(
        "SELECT hint, created_ms, expires_ms FROM key_secret WHERE key = ?1
         ORDER BY created_ms, hint",
    )?;
    let secret = |row: &Row<'_>| {
        Ok(SecretFacts {
            hint: row.get(0)?,
            created_ms: unsigned(row.get(1)?),
            expires_ms: moment(row, 2)?,
        })
    };
    let secrets = statement.query_map([&key.id], secret)?.collect::<rusqlite::Result<_>>()?;
    Ok(KeyFacts { key, secrets })
}

fn key(row: &Row<'_>) -> rusqlite::Result<VirtualKey> {
    let settings: String = row.get(5)?;
    Ok(VirtualKey {
        id: row.get(0)?,
        name: row.get(1)?,
        organisation: row.get(2)?,
        team: row.get(3)?,
        user: row.get(4)?,
        // A key with unreadable permissions has none.
        settings: serde_json::from_str(&settings).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(5, Type::Text, error.into())
        })?,
        created_ms: unsigned(row.get(6)?),
        expires_ms: moment(row, 7)?,
        revoked_ms: moment(row, 8)?,
    })
}

fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(column).map(|moment| moment.map(unsigned))
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
