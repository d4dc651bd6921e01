//! Virtual keys in PostgreSQL: their rows, and the change counter with its notifications.
//! `store::keys` decides which changes are allowed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::super::StoreError;
use super::super::keys::{
    DEFAULT_NAME, FoundKey, KeyChange, KeyError, KeyFacts, MAX_KEYS, MAX_PAGE, SecretFacts,
    TeamFacts, VirtualKey, change,
};
use super::super::sqlite::stored;
use super::connection::Connection;
use super::{Postgres, Shared, schema};
use crate::backend::{Internal, Keys};

/// Columns of a key, including its team.
const COLUMNS: &str = "k.id, k.name, t.organisation, k.team, k.\"user\", k.settings, k.created_ms,
                       k.expires_ms, k.revoked_ms";
/// Name of the change counter.
pub(super) const VERSION: &str = "keys_version";
/// How long cached keys are trusted after the server last confirmed the change counter.
const TRUSTED: Duration = Duration::from_secs(1);

/// The change counter as known to this weir.
#[derive(Default)]
pub(super) struct ChangeCount(std::sync::Mutex<Option<(u64, Instant)>>);

impl ChangeCount {
    /// Records the counter that the server returned to a query sent at `asked`. Older answers than
    /// the known one are ignored.
    pub(super) fn note(&self, version: u64, asked_at: Instant) {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if known.is_none_or(|(_, before)| before <= asked_at) {
            *known = Some((version, asked_at));
        }
    }

    /// Returns the change counter; `None` if it is too old to trust.
    fn version(&self) -> Option<u64> {
        let known = *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.filter(|(_, asked_at)| asked_at.elapsed() < TRUSTED).map(|(version, _)| version)
    }
}

/// Result of a change: a refusal is not a store failure.
type Outcome<T> = Result<Result<T, KeyError>, StoreError>;

#[async_trait]
impl Keys for Postgres {
    async fn show_key(&self, id: &str) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let found = self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            by_id(&connection, &id).await
        });
        found.await?.ok_or(KeyError::Unknown)
    }

    async fn list_keys(&self, team: Option<&str>, after: &str) -> Result<Vec<KeyFacts>, KeyError> {
        let (team, after) = (team.map(str::to_owned), after.to_owned());
        let listed = self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql = format!(
                "SELECT {COLUMNS} FROM weir_virtual_key k JOIN weir_team t ON t.name = k.team
                 WHERE k.id > $1 AND ($2::text IS NULL OR k.team = $2) ORDER BY k.id LIMIT $3"
            );
            let rows = connection.rows(&sql, &[&after, &team, &stored(MAX_PAGE as u64)]).await?;
            with_secrets(&connection, &rows).await
        });
        Ok(listed.await?)
    }

    async fn list_teams(&self, after: &str) -> Result<Vec<TeamFacts>, KeyError> {
        let after = after.to_owned();
        let listed = self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql =
                "SELECT name, organisation, created_ms, (SELECT count(*) FROM weir_virtual_key k
                        WHERE k.team = t.name AND revoked_ms IS NULL)
                       FROM weir_team t WHERE name > $1 ORDER BY name LIMIT $2";
            let rows = connection.rows(sql, &[&after, &stored(MAX_PAGE as u64)]).await?;
            let team = |row: &Row| TeamFacts {
                name: row.get(0),
                organisation: row.get(1),
                created_ms: unsigned(row.get(2)),
                keys: unsigned(row.get(3)),
            };
            Ok(rows.iter().map(team).collect())
        });
        Ok(listed.await?)
    }

    async fn change_key(&self, id: &str, wanted: KeyChange) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            let mut key = match by_id(&connection, &id).await? {
                None => return refuse(&connection, KeyError::Unknown).await,
                Some(found) if found.key.revoked_ms.is_some() => {
                    return refuse(&connection, KeyError::Revoked).await;
                }
                Some(found) => found.key,
            };
            if let Err(refusal) = change(&mut key, &wanted) {
                return refuse(&connection, refusal).await;
            }
            put(&connection, &key).await?;
            changed(&shared, &connection, &id).await
        })
        .await?
    }

    async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            let found = match by_id(&connection, &id).await? {
                None => return refuse(&connection, KeyError::Unknown).await,
                Some(found) if found.key.revoked_ms.is_some() => {
                    connection.roll_back().await?;
                    return Ok(Ok(found));
                }
                Some(found) => found,
            };
            put(&connection, &VirtualKey { revoked_ms: Some(now_ms), ..found.key }).await?;
            changed(&shared, &connection, &id).await
        })
        .await?
    }
}

#[async_trait]
impl Internal for Postgres {
    async fn insert_key(
        &self,
        mut key: VirtualKey,
        hash: [u8; 32],
        secret: SecretFacts,
    ) -> Result<KeyFacts, KeyError> {
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            let count = connection.row("SELECT count(*) FROM weir_virtual_key", &[]).await?;
            if count.is_some_and(|row| unsigned(row.get(0)) >= MAX_KEYS) {
                return refuse(&connection, KeyError::TooMany).await;
            }
            let found = "SELECT organisation FROM weir_team WHERE name = $1";
            let found: Option<String> =
                connection.row(found, &[&key.team]).await?.map(|row| row.get(0));
            match found {
                Some(found) if !key.organisation.is_empty() && key.organisation != found => {
                    let refusal = KeyError::TeamElsewhere { organisation: found };
                    return refuse(&connection, refusal).await;
                }
                Some(found) => key.organisation = found,
                None => {
                    if key.organisation.is_empty() {
                        key.organisation = DEFAULT_NAME.to_owned();
                    }
                    insert_team(&connection, &key).await?;
                }
            }
            put(&connection, &key).await?;
            insert_secret(&connection, &hash, &key.id, &secret).await?;
            changed(&shared, &connection, &key.id).await
        })
        .await?
    }

    async fn insert_secret(
        &self,
        id: &str,
        hash: [u8; 32],
        secret: SecretFacts,
        end_ms: u64,
    ) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            match by_id(&connection, &id).await? {
                None => return refuse(&connection, KeyError::Unknown).await,
                Some(found) if found.key.revoked_ms.is_some() => {
                    return refuse(&connection, KeyError::Revoked).await;
                }
                Some(_) => {}
            }
            let (now, end) = (stored(secret.created_ms), stored(end_ms));
            let delete = "DELETE FROM weir_key_secret
                          WHERE key = $1 AND (expires_ms IS NOT NULL OR $2::bigint <= $3)";
            connection.execute(delete, &[&id, &end, &now]).await?;
            let bound = "UPDATE weir_key_secret SET expires_ms = $2 WHERE key = $1";
            connection.execute(bound, &[&id, &end]).await?;
            insert_secret(&connection, &hash, &id, &secret).await?;
            changed(&shared, &connection, &id).await
        })
        .await?
    }

    async fn key_by_hash(&self, hash: [u8; 32]) -> Result<(u64, Option<FoundKey>), StoreError> {
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql = format!(
                "SELECT {COLUMNS}, s.hash, s.expires_ms, m.value FROM (SELECT 1) one
                 LEFT JOIN weir_meta m ON m.name = '{VERSION}'
                 LEFT JOIN weir_key_secret s ON s.hash = $1
                 LEFT JOIN weir_virtual_key k ON k.id = s.key LEFT JOIN weir_team t ON t.name = k.team"
            );
            let asked_at = Instant::now();
            let Some(row) = connection.row(&sql, &[&&hash[..]]).await? else {
                return Ok((0, None));
            };
            let version = row.get::<_, Option<Vec<u8>>>(11).and_then(|bytes| bytes.try_into().ok());
            let version = version.map_or(0, u64::from_be_bytes);
            shared.keys.note(version, asked_at);
            let held = match row.get::<_, Option<Vec<u8>>>(9).map(TryInto::try_into) {
                Some(Ok(hash)) if row.get::<_, Option<&str>>(2).is_some() => {
                    Some(FoundKey { hash, key: key(&row)?, secret_expires_ms: moment(&row, 10) })
                }
                _ => None,
            };
            Ok((version, held))
        })
        .await
    }

    fn is_current(&self, count: u64) -> bool {
        self.0.shared.keys.version() == Some(count)
    }

    fn watch_changes(&self) {
        self.watch();
    }

    async fn hold_leader_lease(&self) -> Result<bool, StoreError> {
        self.renew_leader_lease().await
    }
}

/// Begins a transaction with the exclusive lock on keys and budgets.
pub(super) async fn begin(shared: &Shared) -> Result<super::pool::Lease<'_>, StoreError> {
    let connection = shared.pool.lease().await?;
    connection.begin().await?;
    let lock =
        "SELECT pg_advisory_xact_lock(hashtextextended('weir keys ' || current_schema(), 0))";
    connection.rows(lock, &[]).await?;
    Ok(connection)
}

/// Rolls back and returns the refusal.
async fn refuse<T>(connection: &Connection, refusal: KeyError) -> Outcome<T> {
    connection.roll_back().await?;
    Ok(Err(refusal))
}

/// Commits the change of a key, and returns the key in its new state.
async fn changed(shared: &Arc<Shared>, connection: &Connection, id: &str) -> Outcome<KeyFacts> {
    let facts = by_id(connection, id).await?;
    commit(shared, connection).await?;
    Ok(facts.ok_or(KeyError::Unknown))
}

/// Commits a change of keys or budgets, and notifies all caches.
pub(super) async fn commit(shared: &Shared, connection: &Connection) -> Result<(), StoreError> {
    let version = schema::number(connection, VERSION).await?.unwrap_or(0).wrapping_add(1);
    schema::put(connection, VERSION, &version.to_be_bytes()).await?;
    connection.rows("SELECT pg_notify('weir_keys', $1)", &[&shared.pool.schema()]).await?;
    connection.commit().await?;
    shared.keys.note(version, Instant::now());
    Ok(())
}

async fn by_id(connection: &Connection, id: &str) -> Result<Option<KeyFacts>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM weir_virtual_key k JOIN weir_team t ON t.name = k.team
         WHERE k.id = $1"
    );
    let rows = connection.rows(&sql, &[&id]).await?;
    Ok(with_secrets(connection, &rows).await?.pop())
}

async fn insert_team(connection: &Connection, key: &VirtualKey) -> Result<(), StoreError> {
    let (team, organisation, now) = (&key.team, &key.organisation, stored(key.created_ms));
    let sql = "INSERT INTO weir_organisation VALUES ($1, $2) ON CONFLICT DO NOTHING";
    connection.execute(sql, &[organisation, &now]).await?;
    let sql = "INSERT INTO weir_team VALUES ($1, $2, $3)";
    connection.execute(sql, &[team, organisation, &now]).await?;
    Ok(())
}

/// Inserts a key, or replaces the one with its id.
async fn put(connection: &Connection, key: &VirtualKey) -> Result<(), StoreError> {
    let settings = serde_json::to_string(&key.settings)
        .map_err(|error| StoreError::Failed(format!("a key's settings are not JSON: {error}")))?;
    let sql = "INSERT INTO weir_virtual_key VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
               ON CONFLICT (id) DO UPDATE SET name = excluded.name, \"user\" = excluded.\"user\",
               settings = excluded.settings, expires_ms = excluded.expires_ms,
               revoked_ms = excluded.revoked_ms";
    let moments = (stored(key.created_ms), key.expires_ms.map(stored), key.revoked_ms.map(stored));
    connection
        .execute(
            sql,
            &[
                &key.id, &key.name, &key.team, &key.user, &settings, &moments.0, &moments.1,
                &moments.2,
            ],
        )
        .await?;
    Ok(())
}

async fn insert_secret(
    connection: &Connection,
    hash: &[u8; 32],
    key: &str,
    secret: &SecretFacts,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO weir_key_secret VALUES ($1, $2, $3, $4, $5)";
    let (created, end) = (stored(secret.created_ms), secret.expires_ms.map(stored));
    connection.execute(sql, &[&&hash[..], &key, &secret.hint, &created, &end]).await?;
    Ok(())
}

/// Reads keys from rows, each with its secrets.
async fn with_secrets(connection: &Connection, rows: &[Row]) -> Result<Vec<KeyFacts>, StoreError> {
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        found.push(KeyFacts { key: key(row)?, secrets: Vec::new() });
    }
    let ids: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    let sql = "SELECT key, hint, created_ms, expires_ms FROM weir_key_secret WHERE key = ANY ($1)
               ORDER BY created_ms, hint";
    for secret in connection.rows(sql, &[&ids]).await? {
        let of: &str = secret.get(0);
        if let Some(facts) = found.iter_mut().find(|facts| facts.key.id == of) {
            facts.secrets.push(SecretFacts {
                hint: secret.get(1),
                created_ms: unsigned(secret.get(2)),
                expires_ms: moment(&secret, 3),
            });
        }
    }
    Ok(found)
}

fn key(row: &Row) -> Result<VirtualKey, StoreError> {
    let settings: &str = row.get(5);
    Ok(VirtualKey {
        id: row.get(0),
        name: row.get(1),
        organisation: row.get(2),
        team: row.get(3),
        user: row.get(4),
        // A key with unreadable permissions has none.
        settings: serde_json::from_str(settings).map_err(|error| {
            StoreError::Failed(format!("the settings of a key cannot be read: {error}"))
        })?,
        created_ms: unsigned(row.get(6)),
        expires_ms: moment(row, 7),
        revoked_ms: moment(row, 8),
    })
}

fn moment(row: &Row, column: usize) -> Option<u64> {
    row.get::<_, Option<i64>>(column).map(unsigned)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
