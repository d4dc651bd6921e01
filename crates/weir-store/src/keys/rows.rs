//! Rows of virtual keys, and the steps of their operations. Knows secrets only as hashes.

use async_trait::async_trait;

use super::{
    DEFAULT_NAME, FoundKey, KeyChange, KeyError, KeyFacts, MAX_KEYS, MAX_PAGE, SecretFacts,
    TeamFacts, VirtualKey, change,
};
use crate::backend::{Keys, Secrets};
use crate::sql::{Exclusive, Reads, Sql, SqlRow, Steps, values};
use crate::{StoreError, Stored};

/// Columns of a key, including its team.
const COLUMNS: &str = "k.id, k.name, t.organisation, k.team, k.\"user\", k.settings, k.created_ms,
                       k.expires_ms, k.revoked_ms";
const TABLES: &str = "weir_virtual_key k JOIN weir_team t ON t.name = k.team";

/// Result of a change: a refusal is not a store failure. Nothing is changed before it.
type Outcome<T> = Stored<Result<T, KeyError>>;

#[async_trait]
impl<B: Steps> Keys for B {
    async fn show_key(&self, id: &str) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let found = self.select(Reads::Few, move |sql| by_id(sql, &id)).await?;
        found.ok_or(KeyError::Unknown)
    }

    async fn list_keys(&self, team: Option<&str>, after: &str) -> Result<Vec<KeyFacts>, KeyError> {
        let (team, after) = (team.map(str::to_owned), after.to_owned());
        let list = move |sql: &dyn Sql| {
            let rows = sql.rows(
                &format!(
                    "SELECT {COLUMNS} FROM {TABLES} WHERE k.id > $1
                     AND (k.team = $2 OR CAST($2 AS text) IS NULL) ORDER BY k.id LIMIT $3"
                ),
                values![after, team.as_deref(), MAX_PAGE as u64],
            )?;
            with_secrets(sql, &rows)
        };
        Ok(self.select(Reads::Few, list).await?)
    }

    async fn list_teams(&self, after: &str) -> Result<Vec<TeamFacts>, KeyError> {
        let after = after.to_owned();
        let list = move |sql: &dyn Sql| {
            let rows = sql.rows(
                "SELECT name, organisation, created_ms, (SELECT count(*) FROM weir_virtual_key k
                  WHERE k.team = t.name AND revoked_ms IS NULL)
                 FROM weir_team t WHERE name > $1 ORDER BY name LIMIT $2",
                values![after, MAX_PAGE as u64],
            )?;
            let team = |row: &SqlRow| TeamFacts {
                name: row.text(0),
                organisation: row.text(1),
                created_ms: row.figure(2),
                keys: row.figure(3),
            };
            Ok(rows.iter().map(team).collect())
        };
        Ok(self.select(Reads::Few, list).await?)
    }

    async fn change_key(&self, id: &str, wanted: KeyChange) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let steps = move |sql: &dyn Sql| {
            with_live(sql, &id, |mut key| {
                if let Err(refused) = change(&mut key, &wanted) {
                    return Ok(Err(refused));
                }
                put(sql, &key)?;
                changed(sql, &id)
            })
        };
        self.change(Exclusive::Keys, steps).await?
    }

    async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let steps = move |sql: &dyn Sql| {
            let Some(found) = by_id(sql, &id)? else { return Ok(Err(KeyError::Unknown)) };
            if found.key.revoked_ms.is_some() {
                return Ok(Ok(found));
            }
            put(sql, &VirtualKey { revoked_ms: Some(now_ms), ..found.key })?;
            changed(sql, &id)
        };
        self.change(Exclusive::Keys, steps).await?
    }
}

#[async_trait]
impl<B: Steps> Secrets for B {
    async fn insert_key(
        &self,
        mut key: VirtualKey,
        hash: [u8; 32],
        secret: SecretFacts,
    ) -> Result<KeyFacts, KeyError> {
        let steps = move |sql: &dyn Sql| {
            let count = sql.row("SELECT count(*) FROM weir_virtual_key", &[])?;
            if count.is_some_and(|row| row.figure(0) >= MAX_KEYS) {
                return Ok(Err(KeyError::TooMany));
            }
            let found = "SELECT organisation FROM weir_team WHERE name = $1";
            match sql.row(found, values![&*key.team])?.map(|row| row.text(0)) {
                Some(found) if !key.organisation.is_empty() && key.organisation != found => {
                    return Ok(Err(KeyError::TeamElsewhere { organisation: found }));
                }
                Some(found) => key.organisation = found,
                None => {
                    if key.organisation.is_empty() {
                        key.organisation = DEFAULT_NAME.to_owned();
                    }
                    insert_team(sql, &key)?;
                }
            }
            put(sql, &key)?;
            insert_secret(sql, &hash, &key.id, &secret)?;
            changed(sql, &key.id)
        };
        self.change(Exclusive::Keys, steps).await?
    }

    async fn insert_secret(
        &self,
        id: &str,
        hash: [u8; 32],
        secret: SecretFacts,
        end_ms: u64,
    ) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let steps = move |sql: &dyn Sql| {
            with_live(sql, &id, |key| {
                let which =
                    if end_ms <= secret.created_ms { "" } else { "AND expires_ms IS NOT NULL" };
                let delete = format!("DELETE FROM weir_key_secret WHERE key = $1 {which}");
                sql.execute(&delete, values![&*key.id])?;
                let end = "UPDATE weir_key_secret SET expires_ms = $2 WHERE key = $1";
                sql.execute(end, values![&*key.id, end_ms])?;
                insert_secret(sql, &hash, &key.id, &secret)?;
                changed(sql, &key.id)
            })
        };
        self.change(Exclusive::Keys, steps).await?
    }

    async fn key_by_hash(&self, hash: [u8; 32]) -> Stored<(u64, Option<FoundKey>)> {
        let steps = move |sql: &dyn Sql| {
            // A change may fall between the two statements: then the count is the older one, and the key is
            // read again next time.
            let count = sql.changes()?;
            let row = sql.row(
                &format!(
                    "SELECT {COLUMNS}, s.expires_ms, s.hash FROM {TABLES}
                     JOIN weir_key_secret s ON s.key = k.id WHERE s.hash = $1"
                ),
                values![&hash[..]],
            )?;
            let Some(row) = row else { return Ok((count, None)) };
            let hash = row.bytes(10).try_into().unwrap_or_default();
            let found = FoundKey { hash, key: key(&row)?, secret_expires_ms: row.some_figure(9) };
            Ok((count, Some(found)))
        };
        self.select(Reads::Few, steps).await
    }
}

/// Runs `work` with the key of this id, if it exists and is not revoked.
fn with_live<T>(
    sql: &dyn Sql,
    id: &str,
    work: impl FnOnce(VirtualKey) -> Outcome<T>,
) -> Outcome<T> {
    match by_id(sql, id)? {
        None => Ok(Err(KeyError::Unknown)),
        Some(found) if found.key.revoked_ms.is_some() => Ok(Err(KeyError::Revoked)),
        Some(found) => work(found.key),
    }
}

/// Returns a key just written in its current state, and publishes the change to all caches.
fn changed(sql: &dyn Sql, id: &str) -> Outcome<KeyFacts> {
    sql.count_change()?;
    Ok(by_id(sql, id)?.ok_or(KeyError::Unknown))
}

fn by_id(sql: &dyn Sql, id: &str) -> Stored<Option<KeyFacts>> {
    let rows = sql.rows(&format!("SELECT {COLUMNS} FROM {TABLES} WHERE k.id = $1"), values![id])?;
    Ok(with_secrets(sql, &rows)?.pop())
}

fn insert_team(sql: &dyn Sql, key: &VirtualKey) -> Stored<()> {
    let insert = "INSERT INTO weir_organisation VALUES ($1, $2) ON CONFLICT DO NOTHING";
    sql.execute(insert, values![&*key.organisation, key.created_ms])?;
    let insert = "INSERT INTO weir_team VALUES ($1, $2, $3)";
    sql.execute(insert, values![&*key.team, &*key.organisation, key.created_ms])?;
    Ok(())
}

/// Inserts a key, or replaces the one with its id.
fn put(sql: &dyn Sql, key: &VirtualKey) -> Stored<()> {
    let settings = serde_json::to_string(&key.settings)
        .map_err(|error| StoreError::Failed(format!("a key's settings are not JSON: {error}")))?;
    sql.execute(
        "INSERT INTO weir_virtual_key VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, \"user\" = excluded.\"user\",
         settings = excluded.settings, expires_ms = excluded.expires_ms,
         revoked_ms = excluded.revoked_ms",
        values![
            &*key.id,
            &*key.name,
            &*key.team,
            &*key.user,
            settings,
            key.created_ms,
            key.expires_ms,
            key.revoked_ms,
        ],
    )?;
    Ok(())
}

fn insert_secret(sql: &dyn Sql, hash: &[u8; 32], key: &str, secret: &SecretFacts) -> Stored<()> {
    let insert = "INSERT INTO weir_key_secret VALUES ($1, $2, $3, $4, $5)";
    let values = values![&hash[..], key, &*secret.hint, secret.created_ms, secret.expires_ms];
    sql.execute(insert, values).map(drop)
}

/// Reads keys from rows in the order of their ids, each with its secrets.
fn with_secrets(sql: &dyn Sql, rows: &[SqlRow]) -> Stored<Vec<KeyFacts>> {
    let facts = |row| Ok(KeyFacts { key: key(row)?, secrets: Vec::new() });
    let mut found = rows.iter().map(facts).collect::<Stored<Vec<KeyFacts>>>()?;
    let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(found) };
    let secrets = sql.rows(
        "SELECT key, hint, created_ms, expires_ms FROM weir_key_secret
         WHERE key >= $1 AND key <= $2 ORDER BY created_ms, hint",
        values![&*first.key.id, &*last.key.id],
    )?;
    for secret in &secrets {
        let of = secret.text(0);
        // Between the keys of one team are those of others.
        if let Ok(place) = found.binary_search_by(|facts| facts.key.id.cmp(&of)) {
            found[place].secrets.push(SecretFacts {
                hint: secret.text(1),
                created_ms: secret.figure(2),
                expires_ms: secret.some_figure(3),
            });
        }
    }
    Ok(found)
}

fn key(row: &SqlRow) -> Stored<VirtualKey> {
    Ok(VirtualKey {
        id: row.text(0),
        name: row.text(1),
        organisation: row.text(2),
        team: row.text(3),
        user: row.text(4),
        // A key with unreadable permissions has none.
        settings: serde_json::from_str(&row.text(5)).map_err(|error| {
            StoreError::Failed(format!("the settings of a key cannot be read: {error}"))
        })?,
        created_ms: row.figure(6),
        expires_ms: row.some_figure(7),
        revoked_ms: row.some_figure(8),
    })
}
