//! What requests add up to, in SQLite's tables.
//!
//! A request is added up in the transaction that inserts its row. What an earlier weir has left to be
//! added up later has its intent still beside its row.

use std::borrow::Cow;
use std::sync::Mutex;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::added::{
    Added, MAX_ADDED, MAX_LEARNED_MODELS, MAX_ROWS_A_TENANT_DAY, Place, Sums, stored_sum,
};
use super::text::given;
use super::{DAY_MS, Flags};

/// How many rows the day that is written to has, so that they are not counted again and again.
#[derive(Default)]
pub struct RowsOfDay(Mutex<Option<(i64, u64)>>);

impl RowsOfDay {
    /// The rows of `day`, one more included. Other processes' are seen once a day; what a rollback
    /// takes back stays counted. Both only move the limit a little.
    fn with_one_more(&self, connection: &Connection, day: i64) -> rusqlite::Result<u64> {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let rows = match *known {
            Some((of, rows)) if of == day => rows,
            _ => connection
                .prepare_cached("SELECT count(*) FROM usage_day WHERE day = ?1")?
                .query_row([day], |row| row.get(0).map(given))?,
        };
        *known = Some((day, rows + 1));
        Ok(rows + 1)
    }
}

/// Counts a request by its row.
fn note_row(added: &mut Added<'_>, row: &Row<'_>) -> rusqlite::Result<()> {
    let figure = |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(index)?.map(given));
    let name = |index| {
        row.get::<_, Option<String>>(index).map(|name| Cow::Owned(name.unwrap_or_default()))
    };
    let place = Place {
        day: row.get::<_, i64>(0)? / DAY_MS as i64,
        tenant: row.get(1)?,
        key: name(2)?,
        team: name(3)?,
        organisation: name(4)?,
        user: name(5)?,
        model: name(6)?,
    };
    let sums = Sums {
        received_tokens: figure(9)?.unwrap_or(0),
        sent_tokens: figure(10)?.unwrap_or(0),
        prompt_tokens: figure(11)?.unwrap_or(0),
        cached_tokens: figure(13)?.unwrap_or(0),
        cache_write_tokens: figure(14)?.unwrap_or(0),
        reasoning_tokens: figure(15)?.unwrap_or(0),
        cost_nano_usd: figure(16)?.unwrap_or(0),
        saved_nano_usd: row.get::<_, Option<i64>>(17)?.unwrap_or(0),
        ..Sums::default()
    };
    added.add(place, row.get(7)?, Flags(row.get(8)?), figure(12)?, sums);
    Ok(())
}

/// Adds all of `added` to the sums in the store.
pub fn write(added: Added<'_>, connection: &Connection, rows: &RowsOfDay) -> rusqlite::Result<()> {
    for (place, sums) in added.places {
        add(connection, rows, place, &sums)?;
    }
    for (model, (answers, tokens)) in added.outputs {
        learn(connection, &model, answers, tokens)?;
    }
    Ok(())
}

/// Requests that an earlier weir left to be added up, up to `limit`: they still have their intent.
pub fn uncounted(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<[u8; 16]>> {
    connection
        .prepare_cached(
            "SELECT id FROM intent
             WHERE EXISTS (SELECT 1 FROM request WHERE request.id = intent.id) LIMIT ?1",
        )?
        .query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| row.get(0))?
        .collect()
}

/// Adds up those of the requests `ids` that nobody else has, and forgets their intents.
pub fn count(connection: &Connection, rows: &RowsOfDay, ids: &[[u8; 16]]) -> rusqlite::Result<()> {
    let mut added = Added::default();
    {
        let mut claim = connection.prepare_cached(
            "DELETE FROM intent WHERE id = ?1 AND EXISTS (SELECT 1 FROM request WHERE id = ?1)",
        )?;
        let mut request = connection.prepare_cached(
            "SELECT begun_ms, tenant, key, team, organisation, user, model, status, flags,
             received_tokens, sent_tokens, prompt_tokens, completion_tokens, cached_tokens,
             cache_write_tokens, reasoning_tokens, cost_nano_usd, saved_nano_usd
             FROM request WHERE id = ?1",
        )?;
        for id in ids {
            if claim.execute([id])? > 0 {
                request.query_row([id], |row| note_row(&mut added, row))?;
            }
        }
    }
    write(added, connection, rows)
}

fn add(
    connection: &Connection,
    rows: &RowsOfDay,
    mut place: Place<'_>,
    sums: &Sums,
) -> rusqlite::Result<()> {
    if update(connection, &place, sums)? {
        return Ok(());
    }
    bound(connection, rows, &mut place)?;
    if update(connection, &place, sums)? {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO usage_day VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
        )?
        .execute(params![
            place.day,
            place.tenant,
            place.key,
            place.team,
            place.organisation,
            place.user,
            place.model
        ])?;
    update(connection, &place, sums)?;
    Ok(())
}

/// Moves a place that has no row yet to one of those that gather, where there are rows enough.
fn bound(connection: &Connection, rows: &RowsOfDay, place: &mut Place<'_>) -> rusqlite::Result<()> {
    let of_tenant = connection
        .prepare_cached(
            "SELECT count(*) FROM
             (SELECT 1 FROM usage_day WHERE day = ?1 AND tenant = ?2 LIMIT ?3)",
        )?
        .query_row(params![place.day, place.tenant, MAX_ROWS_A_TENANT_DAY as i64], |row| {
            row.get(0).map(given)
        })?;
    place.bound_by_tenant(of_tenant);
    if place.is_open() {
        place.bound_by_day(rows.with_one_more(connection, place.day)?);
    }
    Ok(())
}

/// Adds to the row at `place`, if there is one. No sum grows past what can be added to once more.
fn update(connection: &Connection, place: &Place<'_>, sums: &Sums) -> rusqlite::Result<bool> {
    let [requests, failed, estimated, partly_priced, unpriced, figures @ ..] =
        sums.figures().map(stored_sum);
    let [received, sent, prompt, completion, cached, cache_write, reasoning, cost] = figures;
    let changed = connection
        .prepare_cached(
            "UPDATE usage_day SET
             requests = requests + ?8,
             failed = failed + ?9,
             estimated = estimated + ?10,
             partly_priced = partly_priced + ?11,
             unpriced = unpriced + ?12,
             received_tokens = min(received_tokens + ?13, 1 << 62),
             sent_tokens = min(sent_tokens + ?14, 1 << 62),
             prompt_tokens = min(prompt_tokens + ?15, 1 << 62),
             completion_tokens = min(completion_tokens + ?16, 1 << 62),
             cached_tokens = min(cached_tokens + ?17, 1 << 62),
             cache_write_tokens = min(cache_write_tokens + ?18, 1 << 62),
             reasoning_tokens = min(reasoning_tokens + ?19, 1 << 62),
             cost_nano_usd = min(cost_nano_usd + ?20, 1 << 62),
             saved_nano_usd = max(min(saved_nano_usd + ?21, 1 << 62), -(1 << 62))
             WHERE day = ?1 AND tenant = ?2 AND key = ?3 AND team = ?4 AND organisation = ?5
             AND user = ?6 AND model = ?7",
        )?
        .execute(params![
            place.day,
            place.tenant,
            place.key,
            place.team,
            place.organisation,
            place.user,
            place.model,
            requests,
            failed,
            estimated,
            partly_priced,
            unpriced,
            received,
            sent,
            prompt,
            completion,
            cached,
            cache_write,
            reasoning,
            cost,
            sums.saved_nano_usd.clamp(-MAX_ADDED, MAX_ADDED),
        ])?;
    Ok(changed > 0)
}

/// Learns from `answers` that took `tokens` what answers of their model take. Old ones count for
/// less and less.
fn learn(connection: &Connection, model: &str, answers: u64, tokens: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO learned_output SELECT ?1, ?2, ?3
             WHERE EXISTS (SELECT 1 FROM learned_output WHERE model = ?1)
             OR (SELECT count(*) FROM learned_output) < ?4
             ON CONFLICT DO UPDATE SET
             requests = excluded.requests + iif(requests < 512, requests, requests / 2),
             completion_tokens = excluded.completion_tokens
                 + iif(requests < 512, completion_tokens, completion_tokens / 2)",
        )?
        .execute(params![
            model,
            stored_sum(answers),
            stored_sum(tokens),
            MAX_LEARNED_MODELS as i64
        ])?;
    Ok(())
}

/// The mean of what was learned of `model`, rounded up.
pub fn learned_output_tokens(
    connection: &Connection,
    model: &str,
) -> rusqlite::Result<Option<u64>> {
    connection
        .prepare_cached("SELECT requests, completion_tokens FROM learned_output WHERE model = ?1")?
        .query_row([model], |row| Ok((given(row.get(0)?), given(row.get(1)?))))
        .optional()
        .map(|found| found.map(|(requests, tokens)| tokens.div_ceil(requests.max(1))))
}
