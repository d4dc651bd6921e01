//! Virtual keys: made, shown, changed, replaced, revoked and found by their secret. The secret
//! itself is given away once and kept nowhere; what is stored is its hash under a key of the store's.

pub(super) mod changes;
pub(super) mod mark;
mod ring;
pub(super) mod rows;
mod settings;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rusqlite::Connection;
use serde::Serialize;

use mark::Mark;
pub use ring::{Holder, KeyRing, Standing};
pub use settings::{KeyChange, KeySettings, MAX_NAME_BYTES};

use super::{Backend, Store, StoreError, Tenant};
use crate::config::Secret;

/// What every secret begins with.
pub const PREFIX: &str = "sk-weir-";
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Characters of a secret behind [`PREFIX`].
const SECRET_CHARACTERS: usize = 43;
/// Characters of a secret that are shown to tell it from others.
const HINT_CHARACTERS: usize = 4;
/// Random bytes of an id.
const ID_BYTES: usize = 6;
/// The most keys of a store, revoked ones included.
pub(super) const MAX_KEYS: u64 = 100_000;
/// The most that one page of a list holds.
pub const MAX_PAGE: usize = 1000;
/// The team and the organisation of keys that name none.
pub const DEFAULT_NAME: &str = "default";

/// A virtual key, as weir knows it: everything but its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VirtualKey {
    /// `key_` and twelve hexadecimal digits.
    pub id: String,
    pub name: String,
    pub organisation: String,
    pub team: String,
    /// Empty where it is nobody's in particular.
    pub user: String,
    #[serde(flatten)]
    pub settings: KeySettings,
    /// This and the others below: milliseconds since 1970.
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
    pub revoked_ms: Option<u64>,
}

impl VirtualKey {
    /// Whether it is good at `now_ms`.
    pub fn standing(&self, now_ms: u64) -> Standing {
        match (self.revoked_ms, self.expires_ms) {
            (Some(_), _) => Standing::Revoked,
            (None, Some(end_ms)) if end_ms <= now_ms => Standing::Expired,
            _ => Standing::Live,
        }
    }
}

/// What is known of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SecretFacts {
    /// Its beginning and end.
    pub hint: String,
    pub created_ms: u64,
    /// When it ends before its key does.
    pub expires_ms: Option<u64>,
}

/// A key and its secrets: two while it is being replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyFacts {
    #[serde(flatten)]
    pub key: VirtualKey,
    pub secrets: Vec<SecretFacts>,
}

/// A team.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TeamFacts {
    pub name: String,
    pub organisation: String,
    pub created_ms: u64,
    /// How many keys it has that are not revoked.
    pub keys: u64,
}

/// A key to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewKey {
    /// [`DEFAULT_NAME`] where none is named; made where there is none of this name.
    pub team: Option<String>,
    /// The organisation of a team that is made; that of an existing one if named at all.
    pub organisation: Option<String>,
    /// Its name, which it must have, and what it may do.
    pub change: KeyChange,
}

/// A key with a secret that is shown this once.
#[derive(Debug, Clone)]
pub struct Issued {
    pub facts: KeyFacts,
    pub secret: Secret,
}

impl Issued {
    /// All of it as JSON, for the one time that it is shown.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Shown<'a> {
            #[serde(flatten)]
            facts: &'a KeyFacts,
            secret: &'a str,
        }
        let shown = Shown { facts: &self.facts, secret: self.secret.expose() };
        serde_json::to_string(&shown).expect("texts and numbers under fixed keys are JSON")
    }
}

/// Why a key was not made, changed or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyError {
    /// There is no key of this id.
    Unknown,
    /// The key is revoked, which is for good.
    Revoked,
    /// A value that no key may have.
    Invalid {
        field: &'static str,
        message: String,
    },
    /// The team belongs to another organisation.
    TeamElsewhere {
        organisation: String,
    },
    /// There are as many keys as a store may hold.
    TooMany,
    Store(StoreError),
}

impl KeyError {
    fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no key of this id"),
            Self::Revoked => f.write_str("the key is revoked, which is for good; make a new one"),
            Self::Invalid { field, message } => write!(f, "{field} {message}"),
            Self::TeamElsewhere { organisation } => write!(
                f,
                "the team belongs to the organisation {organisation:?}; name that one or none, or \
                 another team"
            ),
            Self::TooMany => write!(f, "there are {MAX_KEYS} keys already, and no more may be"),
            Self::Store(error) => write!(f, "the store: {error}"),
        }
    }
}

impl std::error::Error for KeyError {}

impl From<StoreError> for KeyError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What a step of the writer's comes to: a refusal is no failure of the store's.
type Outcome<T> = rusqlite::Result<Result<T, KeyError>>;

impl Store {
    /// Makes a key, and its team and organisation where they are missing.
    pub async fn create_key(&self, new: NewKey, now_ms: u64) -> Result<Issued, KeyError> {
        let mut key = VirtualKey {
            id: random_id()?,
            name: String::new(),
            organisation: new.organisation.clone().unwrap_or_default(),
            team: new.team.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            user: String::new(),
            settings: KeySettings::default(),
            created_ms: now_ms,
            expires_ms: None,
            revoked_ms: None,
        };
        if new.change.name.is_none() {
            return Err(KeyError::invalid("name", "is missing"));
        }
        change(&mut key, &new.change)?;
        settings::check_name("team", &key.team)?;
        if let Some(organisation) = &new.organisation {
            settings::check_name("organisation", organisation)?;
        }
        let secret = random_secret()?;
        let (hash, hint) = (self.hash(&secret), hint(&secret));
        let facts = SecretFacts { hint, created_ms: now_ms, expires_ms: None };
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => {
                let facts = postgres.create_key(key, hash, facts).await??;
                return Ok(Issued { facts, secret: Secret::new(secret) });
            }
        };
        let mark = sqlite.mark().clone();
        let made = sqlite.write(move |connection| {
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
                    rows::insert_team(connection, &key.team, &key.organisation, now_ms)?;
                }
            }
            rows::put(connection, &key)?;
            rows::insert_secret(connection, &hash, &key.id, &facts)?;
            changed(connection, &mark, &key.id)
        });
        Ok(Issued { facts: made.await??, secret: Secret::new(secret) })
    }

    /// The key of this id.
    pub async fn show_key(&self, id: &str) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let found = match &self.backend {
            Backend::Sqlite(sqlite) => {
                sqlite.read(move |connection| rows::by_id(connection, &id)).await?
            }
            Backend::Postgres(postgres) => postgres.show_key(id).await?,
        };
        found.ok_or(KeyError::Unknown)
    }

    /// A page of the keys, of all teams or one, in the order of their ids: those after `after`, at
    /// most [`MAX_PAGE`].
    pub async fn list_keys(
        &self,
        team: Option<&str>,
        after: &str,
    ) -> Result<Vec<KeyFacts>, KeyError> {
        let (team, after) = (team.map(str::to_owned), after.to_owned());
        Ok(match &self.backend {
            Backend::Sqlite(sqlite) => {
                let work = move |connection: &Connection| {
                    rows::list(connection, team.as_deref(), &after, MAX_PAGE)
                };
                sqlite.read(work).await?
            }
            Backend::Postgres(postgres) => postgres.list_keys(team, after, MAX_PAGE).await?,
        })
    }

    /// A page of the teams in the order of their names: those after `after`, at most [`MAX_PAGE`].
    pub async fn list_teams(&self, after: &str) -> Result<Vec<TeamFacts>, KeyError> {
        let after = after.to_owned();
        Ok(match &self.backend {
            Backend::Sqlite(sqlite) => {
                sqlite.read(move |connection| rows::teams(connection, &after, MAX_PAGE)).await?
            }
            Backend::Postgres(postgres) => postgres.list_teams(after, MAX_PAGE).await?,
        })
    }

    /// Changes what a key may do, from its next request on.
    pub async fn change_key(&self, id: &str, wanted: KeyChange) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => {
                return postgres.change_key(id, move |key| change(key, &wanted)).await?;
            }
        };
        let mark = sqlite.mark().clone();
        let work = move |connection: &Connection| {
            with_live(connection, &id, |mut key| {
                if let Err(refused) = change(&mut key, &wanted) {
                    return Ok(Err(refused));
                }
                rows::put(connection, &key)?;
                changed(connection, &mark, &id)
            })
        };
        sqlite.write(work).await?
    }

    /// Gives a key a new secret. Those it had are good for `overlap_ms` longer; of two that it had
    /// the older ends at once.
    pub async fn rotate_key(
        &self,
        id: &str,
        overlap_ms: u64,
        now_ms: u64,
    ) -> Result<Issued, KeyError> {
        let id = id.to_owned();
        let secret = random_secret()?;
        let (hash, hint) = (self.hash(&secret), hint(&secret));
        let facts = SecretFacts { hint, created_ms: now_ms, expires_ms: None };
        let end_ms = now_ms.saturating_add(overlap_ms);
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => {
                let facts = postgres.rotate_key(id, hash, facts, end_ms).await??;
                return Ok(Issued { facts, secret: Secret::new(secret) });
            }
        };
        let mark = sqlite.mark().clone();
        let work = move |connection: &Connection| {
            with_live(connection, &id, |key| {
                rows::end_secrets(connection, &key.id, now_ms, end_ms)?;
                rows::insert_secret(connection, &hash, &key.id, &facts)?;
                changed(connection, &mark, &key.id)
            })
        };
        Ok(Issued { facts: sqlite.write(work).await??, secret: Secret::new(secret) })
    }

    /// Ends a key for good, from its next request on. Once revoked it stays as it is.
    pub async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<KeyFacts, KeyError> {
        let id = id.to_owned();
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.revoke_key(id, now_ms).await?,
        };
        let mark = sqlite.mark().clone();
        let work = move |connection: &Connection| {
            let Some(found) = rows::by_id(connection, &id)? else {
                return Ok(Err(KeyError::Unknown));
            };
            if found.key.revoked_ms.is_some() {
                return Ok(Ok(found));
            }
            rows::put(connection, &VirtualKey { revoked_ms: Some(now_ms), ..found.key })?;
            changed(connection, &mark, &id)
        };
        sqlite.write(work).await?
    }

    /// Whose a team's things are.
    pub fn team_tenant(&self, team: &str) -> Tenant {
        let key = blake3::derive_key("weir 1 the tenant that is a team", &self.secret());
        let mut tenant = Tenant([0; 16]);
        blake3::Hasher::new_keyed(&key).update(team.as_bytes()).finalize_xof().fill(&mut tenant.0);
        tenant
    }

    /// What a secret is found by. It means nothing to those who do not know the store's own.
    fn hash(&self, secret: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.hash_key(), secret.as_bytes()).as_bytes()
    }

    /// What secrets are hashed under.
    fn hash_key(&self) -> [u8; 32] {
        blake3::derive_key("weir 1 the hash of a virtual key", &self.secret())
    }
}

/// Does `work` with the key of this id, if there is one and it is not revoked.
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

/// A key that was just written, as it is now; all who remember keys hear of it.
fn changed(connection: &Connection, mark: &Mark, id: &str) -> Outcome<KeyFacts> {
    mark.write(rows::raise_version(connection)?);
    Ok(rows::by_id(connection, id)?.ok_or(KeyError::Unknown))
}

fn change(key: &mut VirtualKey, change: &KeyChange) -> Result<(), KeyError> {
    if let Some(name) = &change.name {
        settings::check_name("name", name)?;
        key.name.clone_from(name);
    }
    if let Some(user) = &change.user {
        if !user.is_empty() {
            settings::check_name("user", user)?;
        }
        key.user.clone_from(user);
    }
    if let Some(expires_ms) = change.expires_ms {
        key.expires_ms = expires_ms;
    }
    change.apply(&mut key.settings)
}

/// Whether `text` has the shape of a secret. One that has not is nobody's, and is not looked for.
fn is_secret(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|rest| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        rest.len() == SECRET_CHARACTERS && rest.bytes().all(plain)
    })
}

fn random_secret() -> Result<String, KeyError> {
    let mut bytes = [0; SECRET_BYTES];
    fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

fn random_id() -> Result<String, KeyError> {
    let mut bytes = [0; ID_BYTES];
    fill(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("key_{digits}"))
}

fn fill(bytes: &mut [u8]) -> Result<(), KeyError> {
    getrandom::fill(bytes)
        .map_err(|error| KeyError::Store(StoreError::Failed(format!("no random bytes: {error}"))))
}

fn hint(secret: &str) -> String {
    let end = secret.len().saturating_sub(HINT_CHARACTERS);
    format!("{PREFIX}…{}", secret.get(end..).unwrap_or_default())
}
