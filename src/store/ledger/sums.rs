//! What rows of requests add up to: usage by day, and what models usually write. Bounded in rows,
//! whatever names callers choose, and in numbers, whatever upstreams report.
//!
//! A request is added up in the transaction that inserts its row. What an earlier weir has left to be
//! added up later has its intent still beside its row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::frame::{Ending, Facts};
use super::text::given;
use super::{DAY_MS, Flags, Tenant};

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

/// The most tokens of an answer that are learned from: sums of them stay far from what SQLite's
/// numbers hold.
const MAX_LEARNED_TOKENS: u64 = 1 << 40;

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

impl Sums {
    fn add(&mut self, other: &Self) {
        for (sum, more) in self.figures_mut().into_iter().zip(other.figures()) {
            *sum = sum.saturating_add(more);
        }
        self.saved_nano_usd = self.saved_nano_usd.saturating_add(other.saved_nano_usd);
    }

    fn figures_mut(&mut self) -> [&mut u64; 13] {
        [
            &mut self.requests,
            &mut self.failed,
            &mut self.estimated,
            &mut self.partly_priced,
            &mut self.unpriced,
            &mut self.received_tokens,
            &mut self.sent_tokens,
            &mut self.prompt_tokens,
            &mut self.completion_tokens,
            &mut self.cached_tokens,
            &mut self.cache_write_tokens,
            &mut self.reasoning_tokens,
            &mut self.cost_nano_usd,
        ]
    }

    fn figures(mut self) -> [u64; 13] {
        self.figures_mut().map(|figure| *figure)
    }
}

/// Where a request is counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    day: i64,
    tenant: [u8; 16],
    /// Empty for callers without a virtual key.
    key: Cow<'a, str>,
    team: Cow<'a, str>,
    organisation: Cow<'a, str>,
    user: Cow<'a, str>,
    model: Cow<'a, str>,
}

/// What several requests add, written to each place once.
#[derive(Default)]
pub struct Added<'a> {
    places: BTreeMap<Place<'a>, Sums>,
    /// Answers that were seen to their end, and their tokens, by model.
    outputs: BTreeMap<Cow<'a, str>, (u64, u64)>,
}

impl<'a> Added<'a> {
    /// Counts a request that has ended.
    pub fn note(&mut self, facts: &Facts<'a>, ending: &Ending<'a>) {
        let [key, team, organisation, user] = facts.key.unwrap_or_default().map(Cow::Borrowed);
        let place = Place {
            day: i64::try_from(facts.begun_ms / DAY_MS).unwrap_or(i64::MAX),
            tenant: facts.tenant,
            key,
            team,
            organisation,
            user,
            model: facts.model.into(),
        };
        let sums = Sums {
            received_tokens: facts.received_tokens.unwrap_or(0),
            sent_tokens: facts.sent_tokens.unwrap_or(0),
            prompt_tokens: ending.prompt_tokens.unwrap_or(0),
            cached_tokens: ending.cached_tokens.unwrap_or(0),
            cache_write_tokens: ending.cache_write_tokens.unwrap_or(0),
            reasoning_tokens: ending.reasoning_tokens.unwrap_or(0),
            cost_nano_usd: ending.cost_nano_usd.unwrap_or(0),
            saved_nano_usd: ending.saved_nano_usd.unwrap_or(0),
            ..Sums::default()
        };
        self.add(place, ending.status, ending.flags, ending.completion_tokens, sums);
    }

    /// The same by its row.
    fn note_row(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
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
        self.add(place, row.get(7)?, Flags(row.get(8)?), figure(12)?, sums);
        Ok(())
    }

    fn add(
        &mut self,
        mut place: Place<'a>,
        status: Option<u16>,
        flags: Flags,
        completion_tokens: Option<u64>,
        figures: Sums,
    ) {
        let is_success = status.is_some_and(|status| (200..300).contains(&status));
        let is_estimated = flags.any(Flags::ESTIMATED);
        if let Some(tokens) = completion_tokens.filter(|_| is_success && !is_estimated) {
            let (answers, sum) = self.outputs.entry(place.model.clone()).or_default();
            *answers += 1;
            *sum += tokens.min(MAX_LEARNED_TOKENS);
        }
        // Where the end was not seen the upstream may have taken it.
        if !is_success && !is_estimated {
            place.model = FAILED.into();
        }
        let sums = Sums {
            requests: 1,
            failed: u64::from(!is_success),
            estimated: u64::from(is_estimated),
            partly_priced: u64::from(flags.any(Flags::PARTLY_PRICED)),
            unpriced: u64::from(flags.any(Flags::UNPRICED)),
            completion_tokens: completion_tokens.unwrap_or(0),
            ..figures
        };
        self.places.entry(place).or_default().add(&sums);
    }

    /// Adds all of it to the sums in the store.
    pub fn write(self, connection: &Connection, rows: &RowsOfDay) -> rusqlite::Result<()> {
        for (place, sums) in self.places {
            add(connection, rows, place, &sums)?;
        }
        for (model, (answers, tokens)) in self.outputs {
            learn(connection, &model, answers, tokens)?;
        }
        Ok(())
    }
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
                request.query_row([id], |row| added.note_row(row))?;
            }
        }
    }
    added.write(connection, rows)
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
    let is_open = place.key.is_empty();
    if is_open && of_tenant == 0 && place.model == FAILED {
        // A credential that no upstream has taken yet may be made up.
        place.tenant = Tenant::ANONYMOUS.0;
    } else if of_tenant >= MAX_ROWS_A_TENANT_DAY && place.model != FAILED {
        place.model = OTHER.into();
    }
    if is_open && rows.with_one_more(connection, place.day)? > MAX_ROWS_A_DAY {
        place.tenant = Tenant::ANONYMOUS.0;
        place.model = OTHER.into();
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

/// The most that is added at once: with it the largest sum is still a number of SQLite's.
const MAX_ADDED: i64 = 1 << 61;

fn stored_sum(sum: u64) -> i64 {
    i64::try_from(sum).unwrap_or(i64::MAX).min(MAX_ADDED)
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
