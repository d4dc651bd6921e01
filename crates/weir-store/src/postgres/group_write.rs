//! Group writes of requests to PostgreSQL's tables. A settlement's row, the end of its intent and
//! its totals form one transaction, so each request counts once, for any settler. Statements are
//! pipelined. All writers lock rows in the same order, which prevents deadlocks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

use tokio_postgres::error::SqlState;

use super::super::ledger::RequestId;
use super::super::ledger::codec;
use super::super::ledger::query::{COUNT_COLUMNS, REQUEST_COLUMNS, SUM_COLUMNS};
use super::super::ledger::rollup::{
    MAX_LEARNED_MODELS, MAX_ROWS_A_TENANT_DAY, Rollup, Totals, UsageKey, stored_total,
};
use super::super::wal::record::{self, IntentRecord, Record, Remainder, SettlementRecord};
use super::columns::Columns;
use super::connection::{Connection, Param, Served};

const OPEN: &str = "INSERT INTO weir_intent (id, instance, begun_ms, facts)
    SELECT given.id, $1, given.begun_ms, given.facts
    FROM unnest($2::bytea[], $3::bigint[], $4::text[]) AS given (id, begun_ms, facts)
    WHERE NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = given.id)
    ON CONFLICT (id) DO NOTHING";
const RELEASE: &str = "DELETE FROM weir_intent i WHERE i.id = ANY ($1::bytea[])
    AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)";
const FORGET: &str = "DELETE FROM weir_intent WHERE id = ANY ($1::bytea[])";
/// In column order.
const REQUEST_TYPES: [&str; 34] = [
    "bytea", "bigint", "bytea", "text", "text", "text", "text", "text", "text", "text", "boolean",
    "bigint", "text", "text", "text", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint",
    "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "text", "text", "text",
    "text", "bigint", "text",
];
static INSERT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO weir_request ({REQUEST_COLUMNS}) SELECT * FROM {}
         ON CONFLICT (id) DO NOTHING RETURNING id",
        unnested(&REQUEST_TYPES, 1)
    )
});
/// Returns the positions, from one, of those places that have a row.
static KNOWN: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT given.place FROM {} WITH ORDINALITY
         AS given (day, tenant, key, team, organisation, holder, model, place)
         JOIN weir_usage_day u ON u.day = given.day AND u.tenant = given.tenant
         AND u.key = given.key AND u.team = given.team AND u.organisation = given.organisation
         AND u.\"user\" = given.holder AND u.model = given.model",
        unnested(&PLACE_TYPES, 1)
    )
});
const ROWS_OF_TENANT: &str = "SELECT count(*) FROM
    (SELECT 1 FROM weir_usage_day WHERE day = $1 AND tenant = $2 LIMIT $3) AS few";
const ROWS_OF_DAY: &str = "SELECT count(*) FROM weir_usage_day WHERE day = $1";
const BUDGETS_OF_MODEL: &str = "SELECT count(*) FROM weir_budget WHERE starts_with(id, $1)";
static ADD: LazyLock<String> = LazyLock::new(|| add(1));
static LEARN: LazyLock<String> = LazyLock::new(|| learn(1));
/// Settles a group of new requests if all rows of daily usage exist. If a request is not new, it
/// fails with a division by zero and changes nothing.
static SETTLE: LazyLock<String> = LazyLock::new(|| {
    let added = REQUEST_TYPES.len() + 1;
    let learned = added + PLACE_TYPES.len() + COUNT_COLUMNS.len() + SUM_COLUMNS.len();
    format!(
        "WITH written AS ({}), forgotten AS ({FORGET}), added AS ({}), learned AS ({})
         SELECT 1 / (count(*) = ${})::int FROM written",
        *INSERT,
        add(added),
        learn(learned),
        learned + 3
    )
});

/// Builds the SQL that adds to the places in the parameters from `first` on.
fn add(first: usize) -> String {
    let figures = [&COUNT_COLUMNS[..], &SUM_COLUMNS].concat();
    let types = [&PLACE_TYPES[..], &vec!["bigint"; figures.len()]].concat();
    let capped = |name: &&str| match *name {
        // No sum grows beyond one that still allows an addition.
        name if name.ends_with("saved_nano_usd") => format!(
            "{name} = greatest(least(own.{name} + excluded.{name}, 1::bigint << 62),
             -(1::bigint << 62))"
        ),
        name => format!("{name} = least(own.{name} + excluded.{name}, 1::bigint << 62)"),
    };
    format!(
        "INSERT INTO weir_usage_day AS own (day, tenant, key, team, organisation, \"user\", model, {})
         SELECT * FROM {} ON CONFLICT (day, tenant, key, team, organisation, \"user\", model)
         DO UPDATE SET {}",
        figures.join(", "),
        unnested(&types, first),
        figures.iter().map(capped).collect::<Vec<_>>().join(", ")
    )
}

/// Builds the SQL that adds output sizes in the parameters from `first` on. Old answers lose
/// weight.
fn learn(first: usize) -> String {
    format!(
        "INSERT INTO weir_learned_output AS own (model, requests, completion_tokens)
         SELECT * FROM {} AS given (model, requests, tokens)
         WHERE EXISTS (SELECT 1 FROM weir_learned_output l WHERE l.model = given.model)
         OR (SELECT count(*) FROM weir_learned_output) < {MAX_LEARNED_MODELS}
         ON CONFLICT (model) DO UPDATE SET requests = excluded.requests
             + CASE WHEN own.requests < 512 THEN own.requests ELSE own.requests / 2 END,
         completion_tokens = excluded.completion_tokens
             + CASE WHEN own.requests < 512 THEN own.completion_tokens
                    ELSE own.completion_tokens / 2 END",
        unnested(&["text", "bigint", "bigint"], first)
    )
}
const PLACE_TYPES: [&str; 7] = ["bigint", "bytea", "text", "text", "text", "text", "text"];

/// Builds the SQL for parallel lists of these types in the parameters from `first` on.
fn unnested(types: &[&str], first: usize) -> String {
    let columns = types.iter().enumerate().map(|(key, of)| format!("${}::{of}[]", key + first));
    format!("unnest({})", columns.collect::<Vec<_>>().join(", "))
}

/// Prepares the statements that are pipelined.
pub(super) async fn prepare(connection: &Connection) -> Served<()> {
    for sql in [OPEN, RELEASE, FORGET, &INSERT, &KNOWN, &ADD, &LEARN, &SETTLE] {
        connection.prepare(sql).await?;
    }
    Ok(())
}

/// Maximum number of cached places. Above it, the cache is cleared.
const MAX_KNOWN_PLACES: usize = 4096;

/// Cached facts about daily usage, which save queries.
#[derive(Default)]
pub(super) struct UsageCache {
    /// Row count of the current day. Rows added by other weirs are seen on the next day, which
    /// shifts the limit only slightly.
    rows_of_day: Option<(i64, u64)>,
    /// Places that have a row.
    known: HashSet<UsageKey<'static>>,
}

impl UsageCache {
    fn note(&mut self, key: &UsageKey<'_>) {
        if self.known.len() >= MAX_KNOWN_PLACES {
            self.known.clear();
        }
        self.known.insert(key.owned());
    }
}

/// Records of a group.
pub(super) struct WriteGroup<'a> {
    instance: [u8; 16],
    /// Decoded content, by position in the group.
    decoded: Vec<Option<Record<'a>>>,
    opened: Vec<(RequestId, &'a [u8])>,
}

impl<'a> WriteGroup<'a> {
    pub(super) fn decode(instance: [u8; 16], records: &[&'a [u8]]) -> Self {
        let (mut decoded, mut opened) = (Vec::new(), Vec::new());
        for record in records {
            let content = record::Records::new(record, Remainder::Nothing, false).next();
            let content = content.unwrap_or_default();
            let read = record::decode(content);
            if let Some(Record::Opened(intent)) = &read {
                opened.push((intent.id, content));
            }
            decoded.push(read);
        }
        Self { instance, decoded, opened }
    }
}

/// Writes all of `frames`; returns whether each was new.
pub(super) async fn write(
    connection: &Connection,
    usage_cache: &mut UsageCache,
    records: &WriteGroup<'_>,
) -> Served<Vec<bool>> {
    let released: Vec<&[u8]> = records
        .decoded
        .iter()
        .filter_map(|decoded| match decoded {
            Some(Record::Released(id)) => Some(&id.0[..]),
            _ => None,
        })
        .collect();
    tokio::try_join!(open(connection, records), release(connection, &released))?;
    let mut settled: Vec<(&IntentRecord<'_>, &SettlementRecord<'_>)> = records
        .decoded
        .iter()
        .filter_map(|decoded| match decoded {
            Some(Record::Settled(intent, settlement)) => Some((intent, settlement)),
            _ => None,
        })
        .collect();
    // The common lock order of all writers.
    settled.sort_by_key(|(intent, _)| intent.id);
    let mut new = match settled.is_empty() {
        true => HashSet::new(),
        false => settle(connection, usage_cache, &settled).await?,
    };
    let is_new = |decoded: &Option<Record<'_>>| match decoded {
        // The first of two records in one group counts.
        Some(Record::Settled(intent, _)) => new.remove(&intent.id.0),
        _ => true,
    };
    Ok(records.decoded.iter().map(is_new).collect())
}

async fn open(connection: &Connection, records: &WriteGroup<'_>) -> Served<()> {
    if records.opened.is_empty() {
        return Ok(());
    }
    let (mut ids, mut begun_ms, mut facts_json) = (Vec::new(), Vec::new(), Vec::new());
    for (id, content) in &records.opened {
        let (begun, intent) = codec::from_record(*id, content);
        ids.push(&id.0[..]);
        begun_ms.push(begun);
        facts_json.push(intent);
    }
    connection
        .execute(OPEN, &[&&records.instance[..], &ids, &begun_ms, &facts_json])
        .await
        .map(drop)
}

async fn release(connection: &Connection, ids: &[&[u8]]) -> Served<()> {
    if ids.is_empty() {
        return Ok(());
    }
    connection.execute(RELEASE, &[&ids]).await.map(drop)
}

/// Inserts the rows of ended requests and adds them to the totals; returns the ids of new ones.
async fn settle(
    connection: &Connection,
    usage_cache: &mut UsageCache,
    settled: &[(&IntentRecord<'_>, &SettlementRecord<'_>)],
) -> Served<HashSet<[u8; 16]>> {
    let all = rollup_of(settled, |_| true);
    if all.usage.keys().all(|key| usage_cache.known.contains(key)) {
        match settle_new(connection, settled, &all).await {
            Err(failure) if failure.code() == Some(&SqlState::DIVISION_BY_ZERO) => {}
            done => return done,
        }
    }
    settle_in_steps(connection, usage_cache, settled, &all).await
}

/// Settles new requests, the usual case, in one statement, with rows that exist.
async fn settle_new(
    connection: &Connection,
    settled: &[(&IntentRecord<'_>, &SettlementRecord<'_>)],
    all: &Rollup<'_>,
) -> Served<HashSet<[u8; 16]>> {
    let new: HashSet<[u8; 16]> = settled.iter().map(|(intent, _)| intent.id.0).collect();
    let (requests, totals, learned) =
        (requests(settled), totals(&all.usage), learned(&all.outputs));
    let count = stored_total(new.len() as u64);
    let totals = totals.each_ref().map(Columns::params).concat();
    let params = [requests.params(), totals, learned.params(), vec![&count]].concat();
    connection.execute(&SETTLE, &params).await?;
    Ok(new)
}

/// Settles any requests, in a few steps.
async fn settle_in_steps(
    connection: &Connection,
    usage_cache: &mut UsageCache,
    settled: &[(&IntentRecord<'_>, &SettlementRecord<'_>)],
    all: &Rollup<'_>,
) -> Served<HashSet<[u8; 16]>> {
    let requests = requests(settled);
    let candidates = Columns::new(all.usage.keys().map(UsageKey::values));
    let (rows_given, places_given) = (requests.params(), candidates.params());
    let ((), inserted, _, known) = tokio::try_join!(
        connection.begin(),
        connection.rows(&INSERT, &rows_given),
        connection.execute(FORGET, &rows_given[..1]),
        connection.rows(&KNOWN, &places_given),
    )?;
    let new: HashSet<[u8; 16]> =
        inserted.iter().filter_map(|row| row.get::<_, &[u8]>(0).try_into().ok()).collect();
    if new.is_empty() {
        connection.commit().await?;
        return Ok(new);
    }
    let known: HashSet<usize> =
        known.iter().filter_map(|row| usize::try_from(row.get::<_, i64>(0) - 1).ok()).collect();
    let known: BTreeSet<&UsageKey<'_>> = all
        .usage
        .keys()
        .enumerate()
        .filter(|(at, _)| known.contains(at))
        .map(|(_, it)| it)
        .collect();
    let Rollup { usage, outputs } = rollup_of(settled, |id| new.contains(id));
    let bounded = bound(connection, &mut usage_cache.rows_of_day, &known, usage).await?;
    let (totals, learned) = (totals(&bounded), learned(&outputs));
    let totals_given = totals.each_ref().map(Columns::params).concat();
    let learned_given = learned.params();
    tokio::try_join!(
        connection.execute(&ADD, &totals_given),
        connection.execute(&LEARN, &learned_given),
        connection.commit(),
    )?;
    bounded.keys().for_each(|key| usage_cache.note(key));
    Ok(new)
}

fn requests<'a>(settled: &[(&'a IntentRecord<'_>, &'a SettlementRecord<'_>)]) -> Columns<'a> {
    Columns::new(settled.iter().map(|(intent, ended)| codec::request_values(intent, ended)))
}

/// Returns the rows of daily usage in which requests count, and the additions to each.
fn totals<'a>(usage: &'a BTreeMap<UsageKey<'_>, Totals>) -> [Columns<'a>; 2] {
    let keys = Columns::new(usage.keys().map(UsageKey::values));
    [keys, Columns::new(usage.values().map(Totals::values))]
}

/// Returns output sizes by model.
fn learned<'a>(outputs: &'a BTreeMap<Cow<'_, str>, (u64, u64)>) -> Columns<'a> {
    Columns::new(outputs.iter().map(|(model, (answers, tokens))| {
        [(&**model).into(), stored_total(*answers).into(), stored_total(*tokens).into()]
    }))
}

/// Adds up some of the requests, each id once.
fn rollup_of<'a>(
    settled: &[(&IntentRecord<'a>, &SettlementRecord<'a>)],
    is_counted: impl Fn(&[u8; 16]) -> bool,
) -> Rollup<'a> {
    let (mut rollup, mut seen) = (Rollup::default(), HashSet::new());
    for (intent, settlement) in settled {
        if is_counted(&intent.id.0) && seen.insert(intent.id.0) {
            rollup.add_request(intent, settlement);
        }
    }
    rollup
}

/// Replaces new rows by remainder rows if there are too many rows.
async fn bound<'a>(
    connection: &Connection,
    rows: &mut Option<(i64, u64)>,
    known: &BTreeSet<&UsageKey<'a>>,
    usage: BTreeMap<UsageKey<'a>, Totals>,
) -> Served<BTreeMap<UsageKey<'a>, Totals>> {
    let mut bounded: BTreeMap<UsageKey<'a>, Totals> = BTreeMap::new();
    // Rows that the group itself adds, by day and tenant.
    let mut of_tenants: BTreeMap<(i64, [u8; 16]), u64> = BTreeMap::new();
    for (mut key, totals) in usage {
        if !known.contains(&key) {
            let of = (key.day, key.tenant);
            let rows_of_tenant = match of_tenants.get(&of) {
                Some(rows) => *rows,
                None => {
                    let most = MAX_ROWS_A_TENANT_DAY as i64;
                    count(connection, ROWS_OF_TENANT, &[&of.0, &&of.1[..], &most]).await?
                }
            };
            of_tenants.insert(of, rows_of_tenant + 1);
            let is_full = rows_of_tenant >= MAX_ROWS_A_TENANT_DAY;
            let has_budget = is_full
                && count(connection, BUDGETS_OF_MODEL, &[&key.budgets_of_model()]).await? > 0;
            if !has_budget {
                key.bound_by_tenant(rows_of_tenant, &totals);
            }
            if key.is_open() && !has_budget {
                let rows_of_day = match *rows {
                    Some((day, rows)) if day == key.day => rows,
                    _ => count(connection, ROWS_OF_DAY, &[&key.day]).await?,
                } + 1;
                *rows = Some((key.day, rows_of_day));
                key.bound_by_day(rows_of_day);
            }
        }
        bounded.entry(key).or_default().add(&totals);
    }
    Ok(bounded)
}

async fn count(connection: &Connection, sql: &str, params: &[Param<'_>]) -> Served<u64> {
    let row = connection.row(sql, params).await?;
    Ok(row.map_or(0, |row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
}
