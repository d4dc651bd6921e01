//! Totals in SQLite's tables.
//!
//! A request is added in the transaction that inserts its row. Requests that an earlier version
//! left for later still have their intent.

use std::borrow::Cow;
use std::sync::LazyLock;

use parking_lot::Mutex;
use rusqlite::{Connection, Row, params, params_from_iter};

use crate::ledger::query::{COUNT_COLUMNS, SUM_COLUMNS};
use crate::ledger::rollup::{
    MAX_LEARNED_MODELS, MAX_ROWS_A_TENANT_DAY, Rollup, Totals, UsageKey, stored_total,
};
use crate::ledger::text::from_stored;
use crate::ledger::{DAY_MS, Flags};

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
            _ => connection
                .prepare_cached("SELECT count(*) FROM usage_day WHERE day = ?1")?
                .query_row([day], |row| row.get(0).map(from_stored))?,
        };
        *known = Some((day, rows + 1));
        Ok(rows + 1)
    }
}

/// Adds a request by its row.
fn add_row(rollup: &mut Rollup<'_>, row: &Row<'_>) -> rusqlite::Result<()> {
    let figure =
        |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(index)?.map(from_stored));
    let name = |index| {
        row.get::<_, Option<String>>(index).map(|name| Cow::Owned(name.unwrap_or_default()))
    };
    let key = UsageKey {
        day: row.get::<_, i64>(0)? / DAY_MS as i64,
        tenant: row.get(1)?,
        key: name(2)?,
        team: name(3)?,
        organisation: name(4)?,
        user: name(5)?,
        model: name(6)?,
    };
    let totals = Totals {
        received_tokens: figure(9)?.unwrap_or(0),
        sent_tokens: figure(10)?.unwrap_or(0),
        prompt_tokens: figure(11)?.unwrap_or(0),
        cached_tokens: figure(13)?.unwrap_or(0),
        cache_write_tokens: figure(14)?.unwrap_or(0),
        reasoning_tokens: figure(15)?.unwrap_or(0),
        cost_nano_usd: figure(16)?.unwrap_or(0),
        saved_nano_usd: row.get::<_, Option<i64>>(17)?.unwrap_or(0),
        planned_saved_nano_usd: row.get::<_, Option<i64>>(18)?.unwrap_or(0),
        ..Totals::default()
    };
    rollup.add_at(key, row.get(7)?, Flags(row.get(8)?), figure(12)?, totals);
    Ok(())
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
    connection
        .prepare_cached(
            "SELECT id FROM intent
             WHERE EXISTS (SELECT 1 FROM request WHERE request.id = intent.id) LIMIT ?1",
        )?
        .query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| row.get(0))?
        .collect()
}

/// Adds those of the requests `ids` that no other process has added, and deletes their intents.
pub(crate) fn count(
    connection: &Connection,
    day_rows: &DayRows,
    ids: &[[u8; 16]],
) -> rusqlite::Result<()> {
    let mut rollup = Rollup::default();
    {
        let mut claim = connection.prepare_cached(
            "DELETE FROM intent WHERE id = ?1 AND EXISTS (SELECT 1 FROM request WHERE id = ?1)",
        )?;
        let mut request = connection.prepare_cached(
            "SELECT begun_ms, tenant, key, team, organisation, user, model, status, flags,
             received_tokens, sent_tokens, prompt_tokens, completion_tokens, cached_tokens,
             cache_write_tokens, reasoning_tokens, cost_nano_usd, saved_nano_usd,
             planned_saved_nano_usd
             FROM request WHERE id = ?1",
        )?;
        for id in ids {
            if claim.execute([id])? > 0 {
                request.query_row([id], |row| add_row(&mut rollup, row))?;
            }
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
    connection.prepare_cached(insert)?.execute(params_from_iter(&key.values()))?;
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
    let of_tenant = connection
        .prepare_cached(
            "SELECT count(*) FROM
             (SELECT 1 FROM usage_day WHERE day = ?1 AND tenant = ?2 LIMIT ?3)",
        )?
        .query_row(params![key.day, key.tenant, MAX_ROWS_A_TENANT_DAY as i64], |row| {
            row.get(0).map(from_stored)
        })?;
    if of_tenant >= MAX_ROWS_A_TENANT_DAY {
        let has_budget: bool = connection
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM budget WHERE substr(id, 1, length(?1)) = ?1)",
            )?
            .query_row([key.budgets_of_model()], |row| row.get(0))?;
        if has_budget {
            return Ok(());
        }
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
    Ok(connection.prepare_cached(&UPDATE)?.execute(params_from_iter(values))? > 0)
}

/// Updates a model's typical output size with `answers` that took `tokens` in total. Old answers
/// lose weight.
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
            stored_total(answers),
            stored_total(tokens),
            MAX_LEARNED_MODELS as i64
        ])?;
    Ok(())
}
