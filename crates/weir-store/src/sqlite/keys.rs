//! Virtual keys in SQLite: changes and their publication. `key_rows` has the SQL.

use async_trait::async_trait;
use rusqlite::Connection;

use super::change_counter::ChangeCounter;
use super::{Sqlite, key_rows as rows};
use crate::StoreError;
use crate::backend::{Internal, Keys};
use crate::keys::{
    DEFAULT_NAME, FoundKey, KeyChange, KeyError, KeyFacts, MAX_KEYS, MAX_PAGE, SecretFacts,
    TeamFacts, VirtualKey, change,
};

/// Result of a writer's step: a refusal is not a store failure.
type Outcome<T> = rusqlite::Result<Result<T, KeyError>>;

#[async_trait]
impl Keys for Sqlite {
    async fn show_key(&self, id: &str) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let found = self.read(move |connection| rows::by_id(connection, &id)).await?;
        found.ok_or(KeyError::Unknown)
    }

    async fn list_keys(&self, team: Option<&str>, after: &str) -> Result<Vec<KeyFacts>, KeyError> {
        let (team, after) = (team.map(str::to_owned), after.to_owned());
        let work = move |connection: &Connection| {
            rows::list(connection, team.as_deref(), &after, MAX_PAGE)
        };
        Ok(self.read(work).await?)
    }

    async fn list_teams(&self, after: &str) -> Result<Vec<TeamFacts>, KeyError> {
        let after = after.to_owned();
        Ok(self.read(move |connection| rows::teams(connection, &after, MAX_PAGE)).await?)
    }

    async fn change_key(&self, id: &str, wanted: KeyChange) -> Result<KeyFacts, KeyError> {
        let (id, counter) = (id.to_owned(), self.changes().counter().clone());
        let work = move |connection: &Connection| {
            with_live(connection, &id, |mut key| {
                if let Err(refused) = change(&mut key, &wanted) {
                    return Ok(Err(refused));
                }
                rows::put(connection, &key)?;
                changed(connection, &counter, &id)
            })
        };
        self.write(work).await?
    }

    async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<KeyFacts, KeyError> {
        let (id, counter) = (id.to_owned(), self.changes().counter().clone());
        let work = move |connection: &Connection| {
            let Some(found) = rows::by_id(connection, &id)? else {
                return Ok(Err(KeyError::Unknown));
            };
            if found.key.revoked_ms.is_some() {
                return Ok(Ok(found));
            }
            rows::put(connection, &VirtualKey { revoked_ms: Some(now_ms), ..found.key })?;
            changed(connection, &counter, &id)
        };
        self.write(work).await?
    }
}

#[async_trait]
impl Internal for Sqlite {
    async fn insert_key(
        &self,
        mut key: VirtualKey,
        hash: [u8; 32],
        secret: SecretFacts,
    ) -> Result<KeyFacts, KeyError> {
        let counter = self.changes().counter().clone();
        let work = move |connection: &Connection| {
            if rows::count(connection)? >= MAX_KEYS {
                return Ok(Err(KeyError::TooMany));
            }
            match rows::organisation(connection, &key.team)? {
                Some(found) if !key.organisation.is_empty() && key.organisation != found => {
                    return Ok(Err(KeyError::TeamElsewhere { organisation: found }));
                }
                Some(found) => key.organisation = found,
                None => {
                    if key.organisation.is_empty() {
                        key.organisation = DEFAULT_NAME.to_owned();
                    }
                    rows::insert_team(connection, &key.team, &key.organisation, key.created_ms)?;
                }
            }
            rows::put(connection, &key)?;
            rows::insert_secret(connection, &hash, &key.id, &secret)?;
            changed(connection, &counter, &key.id)
        };
        self.write(work).await?
    }

    async fn insert_secret(
        &self,
        id: &str,
        hash: [u8; 32],
        secret: SecretFacts,
        end_ms: u64,
    ) -> Result<KeyFacts, KeyError> {
        let (id, counter) = (id.to_owned(), self.changes().counter().clone());
        let work = move |connection: &Connection| {
            with_live(connection, &id, |key| {
                rows::end_secrets(connection, &key.id, secret.created_ms, end_ms)?;
                rows::insert_secret(connection, &hash, &key.id, &secret)?;
                changed(connection, &counter, &key.id)
            })
        };
        self.write(work).await?
    }

    async fn key_by_hash(&self, hash: [u8; 32]) -> Result<(u64, Option<FoundKey>), StoreError> {
        // A change may fall between the two statements: then the version is the older one, and the
        // key is read again next time.
        self.read(move |connection| {
            Ok((rows::version(connection)?, rows::by_hash(connection, &hash)?))
        })
        .await
    }

    fn is_current(&self, count: u64) -> bool {
        self.counted_changes() == Some(count) || self.stored_changes() == Some(count)
    }
}

/// Runs `work` with the key of this id, if it exists and is not revoked.
fn with_live<T>(
    connection: &Connection,
    id: &str,
    work: impl FnOnce(VirtualKey) -> Outcome<T>,
) -> Outcome<T> {
    match rows::by_id(connection, id)? {
        None => Ok(Err(KeyError::Unknown)),
        Some(found) if found.key.revoked_ms.is_some() => Ok(Err(KeyError::Revoked)),
        Some(found) => work(found.key),
    }
}

/// Returns a key just written in its current state, and publishes the change to all caches.
fn changed(connection: &Connection, counter: &ChangeCounter, id: &str) -> Outcome<KeyFacts> {
    counter.write(rows::raise_version(connection)?);
    Ok(rows::by_id(connection, id)?.ok_or(KeyError::Unknown))
}
