//! Totals in SQLite's tables.
//!
//! A request is added in the transaction that inserts its row. Requests that an earlier version
//! left for later still have their intent.

use std::sync::LazyLock;

use parking_lot::Mutex;
use rusqlite::{Connection, params, params_from_iter};

use super::{cached, stored};
use crate::ledger::query::{COUNT_COLUMNS, SUM_COLUMNS};
use crate::ledger::rollup::{
    MAX_LEARNED_MODELS, MAX_ROWS_A_TENANT_DAY, Rollup, Totals, UsageKey, stored_total,
};
use crate::ledger::text::from_stored;
use crate::ledger::{DAY_MS, Flags};
use crate::sql::SqlRow;

/// Cached row count of the current day.
#[derive(Default)]
pub(crate) struct DayRows(Mutex<Option<(i64, u64)>>);

impl DayRows {
    /// Returns the row count of `day` including one new row. Rows of other processes are read once
    /// per day, and rows of a rollback stay counted. Both shift the limit only slightly.
    fn with_one_more(&self, connection: &Connection, day: i64) -> rusqlite::Result<u64> {
        let mut known = self.0.lock();
        let rows = match *known {
            Some((of, rows)) if of == day => rows,
            _ => {
                let count = "SELECT count(*) FROM usage_day WHERE day = ?1";
                from_stored(cached::value(connection, count, [day])?)
            }
        };
        *known = Some((day, rows + 1));
        Ok(rows + 1)
    }
}

/// Adds a request by its row.
fn add_row(rollup: &mut Rollup<'_>, row: &SqlRow) {
    let key = UsageKey {
        day: row.number(0) / DAY_MS as i64,
        tenant: row.bytes(1).try_into().unwrap_or_default(),
        key: row.text(2).into(),
        team: row.text(3).into(),
        organisation: row.text(4).into(),
        user: row.text(5).into(),
        model: row.text(6).into(),
    };
    let totals = Totals {
        received_tokens: row.figure(9),
        sent_tokens: row.figure(10),
        prompt_tokens: row.figure(11),
        cached_tokens: row.figure(13),
        cache_write_tokens: row.figure(14),
        reasoning_tokens: row.figure(15),
        cost_nano_usd: row.figure(16),
        saved_nano_usd: row.number(17),
        planned_saved_nano_usd: row.number(18),
        ..Totals::default()
    };
    let status = row.some_figure(7).and_then(|status| u16::try_from(status).ok());
    let flags = Flags(u32::try_from(row.number(8)).unwrap_or(0));
    rollup.add_at(key, status, flags, row.some_figure(12), totals);
}

/// Adds `added` to the stored totals.
pub(crate) fn write(
    rollup: Rollup<'_>,
    connection: &Connection,
    day_rows: &DayRows,
) -> rusqlite::Result<()> {
    for (key, totals) in rollup.usage {
        add(connection, day_rows, key, &totals)?;
    }
    for (model, (answers, tokens)) in rollup.outputs {
        learn(connection, &model, answers, tokens)?;
    }
    Ok(())
}

/// Returns up to `limit` requests that an earlier version left uncounted: they still have their
/// intent.
pub(crate) fn uncounted(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<[u8; 16]>> {
    let select = "SELECT id FROM intent
                  WHERE EXISTS (SELECT 1 FROM request WHERE request.id = intent.id) LIMIT ?1";
    cached::all(connection, select, [stored(limit as u64)], |row| row.get(0))
}

/// Adds those of the requests `ids` that no other process has added, and deletes their intents.
pub(crate) fn count(
    connection: &Connection,
    day_rows: &DayRows,
    ids: &[[u8; 16]],
) -> rusqlite::Result<()> {
    let claim = "DELETE FROM intent WHERE id = ?1 AND EXISTS (SELECT 1 FROM request WHERE id = ?1)";
    let request = "SELECT begun_ms, tenant, key, team, organisation, user, model, status, flags,
                   received_tokens, sent_tokens, prompt_tokens, completion_tokens, cached_tokens,
                   cache_write_tokens, reasoning_tokens, cost_nano_usd, saved_nano_usd,
                   planned_saved_nano_usd
                   FROM request WHERE id = ?1";
    let mut rollup = Rollup::default();
    for id in ids {
        if cached::run(connection, claim, [id])? > 0 {
            let row = cached::first(connection, request, [id], cached::sql_row)?;
            row.iter().for_each(|row| add_row(&mut rollup, row));
        }
    }
    write(rollup, connection, day_rows)
}

fn add(
    connection: &Connection,
    day_rows: &DayRows,
    mut key: UsageKey<'_>,
    totals: &Totals,
) -> rusqlite::Result<()> {
    if update(connection, &key, totals)? {
        return Ok(());
    }
    bound(connection, day_rows, &mut key, totals)?;
    if update(connection, &key, totals)? {
        return Ok(());
    }
    let insert = "INSERT INTO usage_day VALUES
                  (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)";
    cached::run(connection, insert, params_from_iter(&key.values()))?;
    update(connection, &key, totals)?;
    Ok(())
}

/// Replaces a new row by a remainder row if there are too many rows.
fn bound(
    connection: &Connection,
    day_rows: &DayRows,
    key: &mut UsageKey<'_>,
    totals: &Totals,
) -> rusqlite::Result<()> {
    let count = "SELECT count(*) FROM
                 (SELECT 1 FROM usage_day WHERE day = ?1 AND tenant = ?2 LIMIT ?3)";
    let most = params![key.day, key.tenant, MAX_ROWS_A_TENANT_DAY as i64];
    let of_tenant = from_stored(cached::value(connection, count, most)?);
    let budgets = "SELECT EXISTS (SELECT 1 FROM budget WHERE substr(id, 1, length(?1)) = ?1)";
    if of_tenant >= MAX_ROWS_A_TENANT_DAY
        && cached::value(connection, budgets, [key.budgets_of_model()])?
    {
        return Ok(());
    }
    key.bound_by_tenant(of_tenant, totals);
    if key.is_open() {
        key.bound_by_day(day_rows.with_one_more(connection, key.day)?);
    }
    Ok(())
}

/// Adds to the row of a key. No sum grows beyond one that still allows an addition.
static UPDATE: LazyLock<String> = LazyLock::new(|| {
    let columns = COUNT_COLUMNS.iter().chain(&SUM_COLUMNS).zip(8..);
    let sums = columns
        .map(|(name, place)| format!("{name} = max(min({name} + ?{place}, 1 << 62), -(1 << 62))"));
    format!(
        "UPDATE usage_day SET {} WHERE day = ?1 AND tenant = ?2 AND key = ?3 AND team = ?4
         AND organisation = ?5 AND user = ?6 AND model = ?7",
        sums.collect::<Vec<_>>().join(", ")
    )
});

/// Adds to an existing row; returns whether it exists.
fn update(connection: &Connection, key: &UsageKey<'_>, totals: &Totals) -> rusqlite::Result<bool> {
    let values = key.values().into_iter().chain(totals.values());
    Ok(cached::run(connection, &UPDATE, params_from_iter(values))? > 0)
}

/// Updates a model's typical output size with `answers` that took `tokens` in total. Old answers
/// lose weight.
fn learn(connection: &Connection, model: &str, answers: u64, tokens: u64) -> rusqlite::Result<()> {
    let learn = "INSERT INTO learned_output SELECT ?1, ?2, ?3
         WHERE EXISTS (SELECT 1 FROM learned_output WHERE model = ?1)
         OR (SELECT count(*) FROM learned_output) < ?4
         ON CONFLICT DO UPDATE SET
         requests = excluded.requests + iif(requests < 512, requests, requests / 2),
         completion_tokens = excluded.completion_tokens
             + iif(requests < 512, completion_tokens, completion_tokens / 2)";
    let (answers, tokens) = (stored_total(answers), stored_total(tokens));
    cached::run(connection, learn, params![model, answers, tokens, MAX_LEARNED_MODELS as i64])
        .map(drop)
}
