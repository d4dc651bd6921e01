//! One request's way through the journal: its intent before it is sent, its row when it has ended.

use std::sync::Arc;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::instances::Instance;
use super::text::{figure, harmless, signed_figure};
use super::{Caller, Intent, KeyNames, RequestId, Settlement, Tenant};

/// An intent as it is stored.
pub struct IntentRow {
    id: RequestId,
    begun_ms: i64,
    facts: String,
}

/// What an intent's column `facts` holds, as JSON.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Facts {
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

impl IntentRow {
    pub fn new(intent: &Intent) -> Self {
        let text = |text: &str| harmless(text).into_owned();
        let facts = Facts {
            tenant: intent.caller.tenant.0,
            key: intent.caller.key.as_deref().map(|names| KeyFacts {
                key: text(&names.key),
                team: text(&names.team),
                organisation: text(&names.organisation),
                user: text(&names.user),
            }),
            route: text(&intent.route),
            model: text(&intent.model),
            upstream: text(&intent.upstream),
            stream: intent.stream,
            action: text(&intent.action),
            zone: text(&intent.zone),
            received_tokens: intent.received_tokens,
            sent_tokens: intent.sent_tokens,
            max_output_tokens: intent.max_output_tokens,
            plan_ms: intent.plan_ms,
        };
        // Texts, numbers and flags: there is nothing that JSON could not hold.
        let facts = serde_json::to_string(&facts).unwrap_or_default();
        Self { id: intent.id, begun_ms: moment(intent.begun_ms), facts }
    }

    /// Writes it down as `instance`'s.
    pub fn insert(&self, connection: &Connection, instance: &Instance) -> rusqlite::Result<()> {
        connection
            .prepare_cached("INSERT OR REPLACE INTO intent VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![self.id.0, instance.id(), self.begun_ms, self.facts])?;
        Ok(())
    }
}

/// A moment as it is stored.
pub fn moment(moment_ms: u64) -> i64 {
    figure(Some(moment_ms)).unwrap_or(0)
}

pub fn release(connection: &Connection, id: RequestId) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM intent WHERE id = ?1
             AND NOT EXISTS (SELECT 1 FROM request WHERE id = ?1)",
        )?
        .execute([id.0])?;
    Ok(())
}

/// Writes the row of a request that has ended; `false` if it has one. The intent stays, or is made,
/// until the row is in the sums.
pub fn settle(
    connection: &Connection,
    instance: &Instance,
    intent: &Intent,
    settlement: &Settlement,
) -> rusqlite::Result<bool> {
    let is_new = insert(connection, intent, settlement)?;
    if is_new {
        connection
            .prepare_cached("INSERT OR IGNORE INTO intent VALUES (?1, ?2, ?3, '')")?
            .execute(params![intent.id.0, instance.id(), moment(intent.begun_ms)])?;
    }
    Ok(is_new)
}

fn insert(
    connection: &Connection,
    intent: &Intent,
    settlement: &Settlement,
) -> rusqlite::Result<bool> {
    let names = intent.caller.key.as_deref();
    let name = |of: fn(&KeyNames) -> &String| names.map(|names| harmless(of(names)));
    let inserted = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO request VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
             ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28)",
        )?
        .execute(params![
            intent.id.0,
            moment(intent.begun_ms),
            intent.caller.tenant.0,
            name(|names| &names.key),
            name(|names| &names.team),
            name(|names| &names.organisation),
            name(|names| &names.user),
            harmless(&intent.route),
            harmless(&intent.model),
            harmless(&intent.upstream),
            intent.stream,
            settlement.status,
            harmless(&settlement.outcome),
            harmless(&intent.action),
            harmless(&intent.zone),
            figure(intent.received_tokens),
            figure(intent.sent_tokens),
            figure(settlement.prompt_tokens),
            figure(settlement.completion_tokens),
            figure(settlement.cached_tokens),
            figure(settlement.cache_write_tokens),
            figure(settlement.reasoning_tokens),
            figure(settlement.cost_nano_usd),
            signed_figure(settlement.saved_nano_usd),
            settlement.flags.0,
            figure(intent.plan_ms),
            figure(settlement.first_byte_ms),
            figure(settlement.total_ms),
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
    let facts: Facts = serde_json::from_slice(facts).unwrap_or_default();
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
