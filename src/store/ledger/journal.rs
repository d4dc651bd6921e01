//! The rows of requests: one for each that has ended, and intents of those whose log is gone.

use rusqlite::{Connection, params};

use super::facts::{self, moment};
use super::frame::{Ending, Facts};
use super::instances::Instance;
use super::{Intent, RequestId};

/// Writes down the request that the frame with this content has opened as `instance`'s, unless it
/// has ended. Of one that cannot be read there is the id.
pub fn insert_intent(
    connection: &Connection,
    instance: [u8; 16],
    id: RequestId,
    content: &[u8],
) -> rusqlite::Result<()> {
    let (begun_ms, told) = facts::of_frame(id, content);
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO intent SELECT ?1, ?2, ?3, ?4
             WHERE NOT EXISTS (SELECT 1 FROM request WHERE id = ?1)",
        )?
        .execute(params![id.0, instance, begun_ms, told])?;
    Ok(())
}

/// Forgets the intent of a request whose row was written just now.
pub fn end(connection: &Connection, id: RequestId) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM intent WHERE id = ?1")?.execute([id.0])?;
    Ok(())
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
    let [
        received_tokens,
        sent_tokens,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        cache_write_tokens,
        reasoning_tokens,
        cost_nano_usd,
        saved_nano_usd,
    ] = facts::figures(facts, ending);
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
            received_tokens,
            sent_tokens,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
            cost_nano_usd,
            saved_nano_usd,
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
            let told = row.get_ref(3)?.as_bytes().unwrap_or_default();
            found.push(facts::intent(row.get(0)?, row.get(2)?, told));
        }
    }
    Ok(found)
}
