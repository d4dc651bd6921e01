//! The rows of requests: one for each that has ended, and intents of those whose log is gone.

use std::sync::Arc;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::frame::{self, Ending, Facts, Said};
use super::instances::Instance;
use super::text::{figure, signed_figure};
use super::{Caller, Intent, KeyNames, RequestId, Tenant};

/// What an intent's column `facts` holds, as JSON.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Told {
    tenant: [u8; 16],
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<KeyFacts>,
    route: String,
    model: String,
    upstream: String,
    stream: bool,
    action: String,
    zone: String,
    received_tokens: Option<u64>,
    sent_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    plan_ms: Option<u64>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct KeyFacts {
    key: String,
    team: String,
    organisation: String,
    user: String,
}

/// Writes down the request that the frame with this content has opened as `instance`'s, unless it
/// has ended. Of one that cannot be read there is the id.
pub fn insert_intent(
    connection: &Connection,
    instance: [u8; 16],
    id: RequestId,
    content: &[u8],
) -> rusqlite::Result<()> {
    let (begun_ms, told) = match frame::read(content) {
        Some(Said::Opened(facts)) => (facts.begun_ms, Told::new(&facts)),
        _ => (id.begun_ms(), Told::default()),
    };
    // Texts, numbers and flags: there is nothing that JSON could not hold.
    let told = serde_json::to_string(&told).unwrap_or_default();
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO intent SELECT ?1, ?2, ?3, ?4
             WHERE NOT EXISTS (SELECT 1 FROM request WHERE id = ?1)",
        )?
        .execute(params![id.0, instance, moment(begun_ms), told])?;
    Ok(())
}

impl Told {
    fn new(facts: &Facts<'_>) -> Self {
        Self {
            tenant: facts.tenant,
            key: facts.key.map(|names| {
                let [key, team, organisation, user] = names.map(str::to_owned);
                KeyFacts { key, team, organisation, user }
            }),
            route: facts.route.to_owned(),
            model: facts.model.to_owned(),
            upstream: facts.upstream.to_owned(),
            stream: facts.stream,
            action: facts.action.to_owned(),
            zone: facts.zone.to_owned(),
            received_tokens: facts.received_tokens,
            sent_tokens: facts.sent_tokens,
            max_output_tokens: facts.max_output_tokens,
            plan_ms: facts.plan_ms,
        }
    }
}

/// Forgets the intent of a request whose row was written just now.
pub fn end(connection: &Connection, id: RequestId) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM intent WHERE id = ?1")?.execute([id.0])?;
    Ok(())
}

/// A moment as it is stored.
pub fn moment(moment_ms: u64) -> i64 {
    figure(Some(moment_ms)).unwrap_or(0)
}

/// Forgets an intent that has not ended.
pub fn release(connection: &Connection, id: RequestId) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM intent WHERE id = ?1
             AND NOT EXISTS (SELECT 1 FROM request WHERE id = ?1)",
        )?
        .execute([id.0])?;
    Ok(())
}

/// Writes the row of a request that has ended; `false` if it has one.
pub fn insert(
    connection: &Connection,
    facts: &Facts<'_>,
    ending: &Ending<'_>,
) -> rusqlite::Result<bool> {
    let [key, team, organisation, user] = match facts.key {
        Some(names) => names.map(Some),
        None => [None; 4],
    };
    let figure = |number: Option<u64>| number.map(moment);
    let inserted = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO request VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
             ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28)",
        )?
        .execute(params![
            facts.id.0,
            moment(facts.begun_ms),
            facts.tenant,
            key,
            team,
            organisation,
            user,
            facts.route,
            facts.model,
            facts.upstream,
            facts.stream,
            ending.status,
            ending.outcome,
            facts.action,
            facts.zone,
            figure(facts.received_tokens),
            figure(facts.sent_tokens),
            figure(ending.prompt_tokens),
            figure(ending.completion_tokens),
            figure(ending.cached_tokens),
            figure(ending.cache_write_tokens),
            figure(ending.reasoning_tokens),
            figure(ending.cost_nano_usd),
            signed_figure(ending.saved_nano_usd),
            ending.flags.0,
            figure(facts.plan_ms),
            figure(ending.first_byte_ms),
            figure(ending.total_ms),
        ])?;
    Ok(inserted > 0)
}

/// Intents whose instance has ended, oldest first.
pub fn orphans(
    connection: &Connection,
    instance: &Instance,
    limit: usize,
) -> rusqlite::Result<Vec<Intent>> {
    let mut known: Vec<(Vec<u8>, bool)> = Vec::new();
    let mut found = Vec::new();
    let mut statement = connection.prepare_cached(
        "SELECT id, instance, begun_ms, facts FROM intent
         WHERE NOT EXISTS (SELECT 1 FROM request WHERE request.id = intent.id) ORDER BY id",
    )?;
    let mut rows = statement.query([])?;
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let owner = row.get_ref(1)?.as_bytes().unwrap_or_default();
        let is_dead = match known.iter().find(|(id, _)| id == owner) {
            Some((_, is_dead)) => *is_dead,
            None => {
                let is_dead = instance.is_dead(owner);
                known.push((owner.to_owned(), is_dead));
                is_dead
            }
        };
        if is_dead {
            let facts = row.get_ref(3)?.as_bytes().unwrap_or_default();
            found.push(intent(row.get(0)?, row.get(2)?, facts));
        }
    }
    Ok(found)
}

/// The intent that a row holds. One that cannot be read is settled all the same, so that it does
/// not stand in the way of others.
fn intent(id: [u8; 16], begun_ms: i64, facts: &[u8]) -> Intent {
    let facts: Told = serde_json::from_slice(facts).unwrap_or_default();
    let key = facts.key.map(|names| {
        let KeyFacts { key, team, organisation, user } = names;
        Arc::new(KeyNames { key, team, organisation, user })
    });
    Intent {
        id: RequestId(id),
        begun_ms: u64::try_from(begun_ms).unwrap_or(0),
        caller: Caller { tenant: Tenant(facts.tenant), key },
        route: facts.route,
        model: facts.model,
        upstream: facts.upstream,
        stream: facts.stream,
        action: facts.action,
        zone: facts.zone,
        received_tokens: facts.received_tokens,
        sent_tokens: facts.sent_tokens,
        max_output_tokens: facts.max_output_tokens,
        plan_ms: facts.plan_ms,
    }
}
