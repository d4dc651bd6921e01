//! What rows of requests add up to: usage by day, and what models usually write. Bounded in rows,
//! whatever names callers choose, and in numbers, whatever upstreams report.

use std::sync::Mutex;

use rusqlite::{Connection, OptionalExtension, params};

use super::journal::moment;
use super::text::{figure, given, harmless, signed_figure};
use super::{DAY_MS, Flags, Intent, Settlement, Tenant};

/// The model that requests count under which no upstream took: callers may have made up its name.
pub const FAILED: &str = "(failed)";
/// What is counted under where a day or a tenant has as many rows as it may.
pub const OTHER: &str = "(other)";
/// The most rows of one tenant a day, beside those that gather the rest: one for each key.
pub const MAX_ROWS_A_TENANT_DAY: u64 = 1000;
/// The most rows a day for callers without a virtual key; further callers are nobody in particular.
pub const MAX_ROWS_A_DAY: u64 = 100_000;
/// The most models whose output is learned.
pub const MAX_LEARNED_MODELS: u64 = 10_000;

/// Figures over requests. Those that were not known count as zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub requests: u64,
    /// Without an answer of a status from 200 to 299.
    pub failed: u64,
    /// Flagged [`Flags::ESTIMATED`].
    pub estimated: u64,
    pub partly_priced: u64,
    pub unpriced: u64,
    pub received_tokens: u64,
    pub sent_tokens: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
    pub cache_write_tokens: u64,
    pub reasoning_tokens: u64,
    pub cost_nano_usd: u64,
    pub saved_nano_usd: i64,
}

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

/// Where a request is counted.
struct Place<'a> {
    day: i64,
    tenant: Tenant,
    key: &'a str,
    team: &'a str,
    organisation: &'a str,
    user: &'a str,
    model: &'a str,
}

/// Adds a request to the sums of its day.
pub fn add(
    connection: &Connection,
    rows: &RowsOfDay,
    intent: &Intent,
    settlement: &Settlement,
) -> rusqlite::Result<()> {
    let names = intent.caller.key.as_deref();
    let [key, team, organisation, user] = match names {
        Some(names) => {
            [&names.key, &names.team, &names.organisation, &names.user].map(|name| harmless(name))
        }
        None => Default::default(),
    };
    let model = harmless(&intent.model);
    // Where the end was not seen the upstream may have taken it.
    let is_named = settlement.is_success() || settlement.flags.any(Flags::ESTIMATED);
    let mut place = Place {
        day: moment(intent.begun_ms) / DAY_MS as i64,
        tenant: intent.caller.tenant,
        key: &key,
        team: &team,
        organisation: &organisation,
        user: &user,
        model: if is_named { &model } else { FAILED },
    };
    if update(connection, &place, intent, settlement)? {
        return Ok(());
    }
    bound(connection, rows, &mut place, names.is_none())?;
    if update(connection, &place, intent, settlement)? {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO usage_day VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
        )?
        .execute(params![
            place.day,
            place.tenant.0,
            place.key,
            place.team,
            place.organisation,
            place.user,
            place.model
        ])?;
    update(connection, &place, intent, settlement)?;
    Ok(())
}

/// Moves a place that has no row yet to one of those that gather, where there are rows enough.
fn bound(
    connection: &Connection,
    rows: &RowsOfDay,
    place: &mut Place<'_>,
    is_open: bool,
) -> rusqlite::Result<()> {
    let of_tenant: u64 = connection
        .prepare_cached(
            "SELECT count(*) FROM
             (SELECT 1 FROM usage_day WHERE day = ?1 AND tenant = ?2 LIMIT ?3)",
        )?
        .query_row(params![place.day, place.tenant.0, MAX_ROWS_A_TENANT_DAY as i64], |row| {
            row.get(0).map(given)
        })?;
    if is_open && of_tenant == 0 && place.model == FAILED {
        // A credential that no upstream has taken yet may be made up.
        place.tenant = Tenant::ANONYMOUS;
    } else if of_tenant >= MAX_ROWS_A_TENANT_DAY && place.model != FAILED {
        place.model = OTHER;
    }
    if is_open && rows.with_one_more(connection, place.day)? > MAX_ROWS_A_DAY {
        place.tenant = Tenant::ANONYMOUS;
        place.model = OTHER;
    }
    Ok(())
}

/// Adds to the row at `place`, if there is one. No sum grows past what can be added to once more.
fn update(
    connection: &Connection,
    place: &Place<'_>,
    intent: &Intent,
    settlement: &Settlement,
) -> rusqlite::Result<bool> {
    let flags = settlement.flags;
    let counted = |number: Option<u64>| figure(number).unwrap_or(0);
    let changed = connection
        .prepare_cached(
            "UPDATE usage_day SET
             requests = requests + 1,
             failed = failed + ?8,
             estimated = estimated + ?9,
             partly_priced = partly_priced + ?10,
             unpriced = unpriced + ?11,
             received_tokens = min(received_tokens + ?12, 1 << 62),
             sent_tokens = min(sent_tokens + ?13, 1 << 62),
             prompt_tokens = min(prompt_tokens + ?14, 1 << 62),
             completion_tokens = min(completion_tokens + ?15, 1 << 62),
             cached_tokens = min(cached_tokens + ?16, 1 << 62),
             cache_write_tokens = min(cache_write_tokens + ?17, 1 << 62),
             reasoning_tokens = min(reasoning_tokens + ?18, 1 << 62),
             cost_nano_usd = min(cost_nano_usd + ?19, 1 << 62),
             saved_nano_usd = max(min(saved_nano_usd + ?20, 1 << 62), -(1 << 62))
             WHERE day = ?1 AND tenant = ?2 AND key = ?3 AND team = ?4 AND organisation = ?5
             AND user = ?6 AND model = ?7",
        )?
        .execute(params![
            place.day,
            place.tenant.0,
            place.key,
            place.team,
            place.organisation,
            place.user,
            place.model,
            !settlement.is_success(),
            flags.any(Flags::ESTIMATED),
            flags.any(Flags::PARTLY_PRICED),
            flags.any(Flags::UNPRICED),
            counted(intent.received_tokens),
            counted(intent.sent_tokens),
            counted(settlement.prompt_tokens),
            counted(settlement.completion_tokens),
            counted(settlement.cached_tokens),
            counted(settlement.cache_write_tokens),
            counted(settlement.reasoning_tokens),
            counted(settlement.cost_nano_usd),
            signed_figure(settlement.saved_nano_usd).unwrap_or(0),
        ])?;
    Ok(changed > 0)
}

/// Learns from an answer that was seen to its end what answers of its model take. Old ones count
/// for less and less. Of a model that is known well every eighth is enough.
pub fn learn(
    connection: &Connection,
    intent: &Intent,
    settlement: &Settlement,
) -> rusqlite::Result<()> {
    let is_whole = settlement.is_success() && !settlement.flags.any(Flags::ESTIMATED);
    let Some(tokens) = settlement.completion_tokens.filter(|_| is_whole) else { return Ok(()) };
    // Sums of so many stay far from what SQLite's numbers hold.
    let tokens = figure(Some(tokens)).unwrap_or(0).min(1 << 40);
    connection
        .prepare_cached(
            "INSERT INTO learned_output SELECT ?1, 1, ?2
             WHERE EXISTS (SELECT 1 FROM learned_output WHERE model = ?1)
             OR (SELECT count(*) FROM learned_output) < ?4
             ON CONFLICT DO UPDATE SET
             requests = CASE WHEN requests < 512 THEN requests + 1 ELSE 257 END,
             completion_tokens = CASE WHEN requests < 512 THEN completion_tokens
                                 ELSE completion_tokens / 2 END + excluded.completion_tokens
             WHERE requests < 64 OR ?3",
        )?
        .execute(params![
            harmless(&intent.model),
            tokens,
            intent.id.0[15] % 8 == 0,
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
