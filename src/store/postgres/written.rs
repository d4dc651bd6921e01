//! Groups of requests written to PostgreSQL's tables. A settlement's row, the end of its intent and
//! the sums it adds to are one transaction: so each request counts once, whoever settles it. Several
//! statements go out at once, and all who write take rows in one order, so that nobody waits in a
//! ring.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

use tokio_postgres::error::SqlState;

use super::super::ledger::RequestId;
use super::super::ledger::added::{
    Added, MAX_LEARNED_MODELS, MAX_ROWS_A_TENANT_DAY, Place, Sums, stored_sum,
};
use super::super::ledger::asked::{COUNTED, REQUEST_COLUMNS, SUMMED};
use super::super::ledger::facts;
use super::super::ledger::frame::{self, Behind, Ending, Facts, Said};
use super::columns::{Learned, Places, Requests, Totals};
use super::connection::{Connection, Failure, Given};

const OPEN: &str = "INSERT INTO weir_intent (id, instance, begun_ms, facts)
    SELECT given.id, $1, given.begun_ms, given.facts
    FROM unnest($2::bytea[], $3::bigint[], $4::text[]) AS given (id, begun_ms, facts)
    WHERE NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = given.id)
    ON CONFLICT (id) DO NOTHING";
const RELEASE: &str = "DELETE FROM weir_intent i WHERE i.id = ANY ($1::bytea[])
    AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)";
const FORGET: &str = "DELETE FROM weir_intent WHERE id = ANY ($1::bytea[])";
/// In the order of the columns.
const REQUEST_TYPES: [&str; 28] = [
    "bytea", "bigint", "bytea", "text", "text", "text", "text", "text", "text", "text", "boolean",
    "bigint", "text", "text", "text", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint",
    "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint",
];
static INSERT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO weir_request ({REQUEST_COLUMNS}) SELECT * FROM {}
         ON CONFLICT (id) DO NOTHING RETURNING id",
        unnested(&REQUEST_TYPES, 1)
    )
});
/// Which of some places have a row: their numbers, counted from one.
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
static ADD: LazyLock<String> = LazyLock::new(|| add(1));
static LEARN: LazyLock<String> = LazyLock::new(|| learn(1));
/// All that a group of new requests changes, where the places that it adds to have their rows. It fails
/// as a division by zero, and changes nothing, where not all requests were new.
static SETTLE: LazyLock<String> = LazyLock::new(|| {
    let added = REQUEST_TYPES.len() + 1;
    let learned = added + PLACE_TYPES.len() + COUNTED.len() + SUMMED.len();
    format!(
        "WITH written AS ({}), forgotten AS ({FORGET}), added AS ({}), learned AS ({})
         SELECT 1 / (count(*) = ${})::int FROM written",
        *INSERT,
        add(added),
        learn(learned),
        learned + 3
    )
});

/// Adds to the places given by parameters from `first` on.
fn add(first: usize) -> String {
    let figures = [&COUNTED[..], &SUMMED].concat();
    let types = [&PLACE_TYPES[..], &vec!["bigint"; figures.len()]].concat();
    let capped = |name: &&str| match *name {
        // No sum grows past what can be added to once more.
        "saved_nano_usd" => "saved_nano_usd = greatest(least(own.saved_nano_usd
             + excluded.saved_nano_usd, 1::bigint << 62), -(1::bigint << 62))"
            .to_owned(),
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

/// Adds what answers took, by parameters from `first` on. Old answers count for less and less.
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

/// Columns of these types side by side, as parameters from `first` on.
fn unnested(types: &[&str], first: usize) -> String {
    let columns = types.iter().enumerate().map(|(place, of)| format!("${}::{of}[]", place + first));
    format!("unnest({})", columns.collect::<Vec<_>>().join(", "))
}

/// Compiles what is asked for at once with others.
pub async fn prepare(connection: &Connection) -> Result<(), Failure> {
    for sql in [OPEN, RELEASE, FORGET, &INSERT, &KNOWN, &ADD, &LEARN, &SETTLE] {
        connection.prepare(sql).await?;
    }
    Ok(())
}

/// The most places that are remembered. Past that all are forgotten, and looked for anew.
const MAX_KNOWN_PLACES: usize = 4096;

/// What is remembered of the sums, so that it is not asked again and again.
#[derive(Default)]
pub struct Remembered {
    /// How many rows the day that is written to has. Those that other weirs add are not seen before the
    /// next day: that moves the limit a little.
    rows_of_day: Option<(i64, u64)>,
    /// Places that have their rows.
    known: HashSet<Place<'static>>,
}

impl Remembered {
    fn note(&mut self, place: &Place<'_>) {
        if self.known.len() >= MAX_KNOWN_PLACES {
            self.known.clear();
        }
        self.known.insert(place.owned());
    }
}

/// What a group has to write.
pub struct Frames<'a> {
    instance: [u8; 16],
    /// By each frame's place in the group.
    said: Vec<Option<Said<'a>>>,
    opened: Vec<(RequestId, &'a [u8])>,
}

impl<'a> Frames<'a> {
    pub fn read(instance: [u8; 16], frames: &[&'a [u8]]) -> Self {
        let (mut said, mut opened) = (Vec::new(), Vec::new());
        for frame in frames {
            let content = frame::Frames::new(frame, Behind::Nothing, false).next();
            let content = content.unwrap_or_default();
            let read = frame::read(content);
            if let Some(Said::Opened(facts)) = &read {
                opened.push((facts.id, content));
            }
            said.push(read);
        }
        Self { instance, said, opened }
    }
}

/// Writes all of `frames`; whether each was new.
pub async fn write(
    connection: &Connection,
    remembered: &mut Remembered,
    frames: &Frames<'_>,
) -> Result<Vec<bool>, Failure> {
    let released: Vec<&[u8]> = frames
        .said
        .iter()
        .filter_map(|said| match said {
            Some(Said::Released(id)) => Some(&id.0[..]),
            _ => None,
        })
        .collect();
    tokio::try_join!(open(connection, frames), release(connection, &released))?;
    let mut settled: Vec<(&Facts<'_>, &Ending<'_>)> = frames
        .said
        .iter()
        .filter_map(|said| match said {
            Some(Said::Settled(facts, ending)) => Some((facts, ending)),
            _ => None,
        })
        .collect();
    // The one order in which all write.
    settled.sort_by_key(|(facts, _)| facts.id);
    let mut new = match settled.is_empty() {
        true => HashSet::new(),
        false => settle(connection, remembered, &settled).await?,
    };
    let is_new = |said: &Option<Said<'_>>| match said {
        // Of two in one group the first is.
        Some(Said::Settled(facts, _)) => new.remove(&facts.id.0),
        _ => true,
    };
    Ok(frames.said.iter().map(is_new).collect())
}

async fn open(connection: &Connection, frames: &Frames<'_>) -> Result<(), Failure> {
    if frames.opened.is_empty() {
        return Ok(());
    }
    let (mut ids, mut begun_ms, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for (id, content) in &frames.opened {
        let (begun, facts) = facts::of_frame(*id, content);
        ids.push(&id.0[..]);
        begun_ms.push(begun);
        told.push(facts);
    }
    connection.execute(OPEN, &[&&frames.instance[..], &ids, &begun_ms, &told]).await.map(drop)
}

async fn release(connection: &Connection, ids: &[&[u8]]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    connection.execute(RELEASE, &[&ids]).await.map(drop)
}

/// Writes the rows of requests that have ended, and adds them up; the ids of those that were new.
async fn settle(
    connection: &Connection,
    remembered: &mut Remembered,
    settled: &[(&Facts<'_>, &Ending<'_>)],
) -> Result<HashSet<[u8; 16]>, Failure> {
    let all = added(settled, |_| true);
    if all.places.keys().all(|place| remembered.known.contains(place)) {
        match settle_known(connection, settled, &all).await {
            Err(failure) if failure.code() == Some(&SqlState::DIVISION_BY_ZERO) => {}
            done => return done,
        }
    }
    settle_stepwise(connection, remembered, settled, &all).await
}

/// Settles in one statement what is new, as next to all is, and counts where rows are.
async fn settle_known(
    connection: &Connection,
    settled: &[(&Facts<'_>, &Ending<'_>)],
    all: &Added<'_>,
) -> Result<HashSet<[u8; 16]>, Failure> {
    let new: HashSet<[u8; 16]> = settled.iter().map(|(facts, _)| facts.id.0).collect();
    let requests = Requests::new(settled);
    let (totals, learned) = (Totals::new(&all.places), Learned::new(&all.outputs));
    let count = stored_sum(new.len() as u64);
    let given = [requests.given(), totals.given(), learned.given(), vec![&count]].concat();
    connection.execute(&SETTLE, &given).await?;
    Ok(new)
}

/// Settles whatever it is, in a few steps.
async fn settle_stepwise(
    connection: &Connection,
    remembered: &mut Remembered,
    settled: &[(&Facts<'_>, &Ending<'_>)],
    all: &Added<'_>,
) -> Result<HashSet<[u8; 16]>, Failure> {
    let requests = Requests::new(settled);
    let candidates = Places::new(all.places.keys());
    let (rows_given, places_given) = (requests.given(), candidates.given());
    let ids: [Given<'_>; 1] = [&requests.ids];
    let ((), inserted, _, known) = tokio::try_join!(
        connection.begin(),
        connection.rows(&INSERT, &rows_given),
        connection.execute(FORGET, &ids),
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
    let known: BTreeSet<&Place<'_>> = all
        .places
        .keys()
        .enumerate()
        .filter(|(at, _)| known.contains(at))
        .map(|(_, it)| it)
        .collect();
    let Added { places, outputs } = added(settled, |id| new.contains(id));
    let bounded = bound(connection, &mut remembered.rows_of_day, &known, places).await?;
    let (totals, learned) = (Totals::new(&bounded), Learned::new(&outputs));
    let (totals_given, learned_given) = (totals.given(), learned.given());
    tokio::try_join!(
        connection.execute(&ADD, &totals_given),
        connection.execute(&LEARN, &learned_given),
        connection.commit(),
    )?;
    bounded.keys().for_each(|place| remembered.note(place));
    Ok(new)
}

/// What some of the requests add up to, each id once.
fn added<'a>(
    settled: &[(&Facts<'a>, &Ending<'a>)],
    is_counted: impl Fn(&[u8; 16]) -> bool,
) -> Added<'a> {
    let (mut added, mut seen) = (Added::default(), HashSet::new());
    for (facts, ending) in settled {
        if is_counted(&facts.id.0) && seen.insert(facts.id.0) {
            added.note(facts, ending);
        }
    }
    added
}

/// Moves places that have no row yet to those that gather, where there are rows enough.
async fn bound<'a>(
    connection: &Connection,
    rows: &mut Option<(i64, u64)>,
    known: &BTreeSet<&Place<'a>>,
    places: BTreeMap<Place<'a>, Sums>,
) -> Result<BTreeMap<Place<'a>, Sums>, Failure> {
    let mut bounded: BTreeMap<Place<'a>, Sums> = BTreeMap::new();
    // Rows that the group itself adds, by day and tenant.
    let mut of_tenants: BTreeMap<(i64, [u8; 16]), u64> = BTreeMap::new();
    for (mut place, sums) in places {
        if !known.contains(&place) {
            let of = (place.day, place.tenant);
            let rows_of_tenant = match of_tenants.get(&of) {
                Some(rows) => *rows,
                None => {
                    let most = MAX_ROWS_A_TENANT_DAY as i64;
                    count(connection, ROWS_OF_TENANT, &[&of.0, &&of.1[..], &most]).await?
                }
            };
            of_tenants.insert(of, rows_of_tenant + 1);
            place.bound_by_tenant(rows_of_tenant);
            if place.is_open() {
                let rows_of_day = match *rows {
                    Some((day, rows)) if day == place.day => rows,
                    _ => count(connection, ROWS_OF_DAY, &[&place.day]).await?,
                } + 1;
                *rows = Some((place.day, rows_of_day));
                place.bound_by_day(rows_of_day);
            }
        }
        bounded.entry(place).or_default().add(&sums);
    }
    Ok(bounded)
}

async fn count(connection: &Connection, sql: &str, given: &[Given<'_>]) -> Result<u64, Failure> {
    let row = connection.row(sql, given).await?;
    Ok(row.map_or(0, |row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
}
