//! Groups of requests written to PostgreSQL's tables. A settlement's row, the end of its intent and
//! the sums it adds to are one transaction: so each request counts once, whoever settles it. Several
//! statements go out at once, and all who write take rows in one order, so that nobody waits in a
//! ring.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

use super::super::ledger::RequestId;
use super::super::ledger::added::{
    Added, MAX_ADDED, MAX_LEARNED_MODELS, MAX_ROWS_A_TENANT_DAY, Place, Sums, stored_sum,
};
use super::super::ledger::asked::{COUNTED, REQUEST_COLUMNS, SUMMED};
use super::super::ledger::facts::{self, moment};
use super::super::ledger::frame::{self, Behind, Ending, Facts, Said};
use super::super::ledger::text::signed_figure;
use super::connection::{Connection, Failure, Given};

const OPEN: &str = "INSERT INTO weir_intent (id, instance, begun_ms, facts)
    SELECT given.id, $1, given.begun_ms, given.facts
    FROM unnest($2::bytea[], $3::bigint[], $4::text[]) AS given (id, begun_ms, facts)
    WHERE NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = given.id)
    ON CONFLICT (id) DO NOTHING";
const RELEASE: &str = "DELETE FROM weir_intent i WHERE i.id = ANY ($1::bytea[])
    AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)";
const FORGET: &str = "DELETE FROM weir_intent WHERE id = ANY ($1::bytea[])";
static INSERT: LazyLock<String> = LazyLock::new(|| {
    // In the order of the columns.
    let types = [
        "bytea", "bigint", "bytea", "text", "text", "text", "text", "text", "text", "text",
        "boolean", "bigint", "text", "text", "text", "bigint", "bigint", "bigint", "bigint",
        "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint",
    ];
    format!(
        "INSERT INTO weir_request ({REQUEST_COLUMNS}) SELECT * FROM {}
         ON CONFLICT (id) DO NOTHING RETURNING id",
        unnested(&types, 1)
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
static ADD: LazyLock<String> = LazyLock::new(|| {
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
        unnested(&types, 1),
        figures.iter().map(capped).collect::<Vec<_>>().join(", ")
    )
});
/// Old answers count for less and less.
static LEARN: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO weir_learned_output AS own (model, requests, completion_tokens)
         SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS given (model, requests, tokens)
         WHERE EXISTS (SELECT 1 FROM weir_learned_output l WHERE l.model = given.model)
         OR (SELECT count(*) FROM weir_learned_output) < {MAX_LEARNED_MODELS}
         ON CONFLICT (model) DO UPDATE SET requests = excluded.requests
             + CASE WHEN own.requests < 512 THEN own.requests ELSE own.requests / 2 END,
         completion_tokens = excluded.completion_tokens
             + CASE WHEN own.requests < 512 THEN own.completion_tokens
                    ELSE own.completion_tokens / 2 END"
    )
});
const PLACE_TYPES: [&str; 7] = ["bigint", "bytea", "text", "text", "text", "text", "text"];

/// Columns of these types side by side, as parameters from `first` on.
fn unnested(types: &[&str], first: usize) -> String {
    let columns = types.iter().enumerate().map(|(place, of)| format!("${}::{of}[]", place + first));
    format!("unnest({})", columns.collect::<Vec<_>>().join(", "))
}

/// Compiles what is asked for at once with others.
pub async fn prepare(connection: &Connection) -> Result<(), Failure> {
    for sql in [OPEN, RELEASE, FORGET, &INSERT, &KNOWN, &ADD, &LEARN] {
        connection.prepare(sql).await?;
    }
    Ok(())
}

/// How many rows of sums the day that is written to has, so that they are not counted again and again.
/// Those that other weirs add are not seen before the next day: that moves the limit a little.
#[derive(Default)]
pub struct RowsOfDay(Option<(i64, u64)>);

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
    rows: &mut RowsOfDay,
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
        false => settle(connection, rows, &settled).await?,
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
    rows: &mut RowsOfDay,
    settled: &[(&Facts<'_>, &Ending<'_>)],
) -> Result<HashSet<[u8; 16]>, Failure> {
    let requests = Requests::new(settled);
    let all = added(settled, |_| true);
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
    let bounded = bound(connection, rows, &known, places).await?;
    let (totals, learned) = (Totals::new(&bounded), Learned::new(&outputs));
    let (totals_given, learned_given) = (totals.given(), learned.given());
    tokio::try_join!(
        connection.execute(&ADD, &totals_given),
        connection.execute(&LEARN, &learned_given),
        connection.commit(),
    )?;
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
    rows: &mut RowsOfDay,
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
                let rows_of_day = match rows.0 {
                    Some((day, rows)) if day == place.day => rows,
                    _ => count(connection, ROWS_OF_DAY, &[&place.day]).await?,
                } + 1;
                rows.0 = Some((place.day, rows_of_day));
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

/// Rows of requests, a list a column.
#[derive(Default)]
struct Requests<'a> {
    ids: Vec<&'a [u8]>,
    begun_ms: Vec<i64>,
    tenants: Vec<&'a [u8]>,
    /// A virtual key's id, its team, organisation and user.
    names: [Vec<Option<&'a str>>; 4],
    /// Route, model, upstream; outcome, action, zone.
    texts: [Vec<&'a str>; 6],
    streams: Vec<bool>,
    statuses: Vec<Option<i64>>,
    /// Received and sent tokens, and what was reported.
    figures: [Vec<Option<i64>>; 9],
    flags: Vec<i64>,
    /// Planning, the first byte, and all.
    times_ms: [Vec<Option<i64>>; 3],
}

impl<'a> Requests<'a> {
    fn new(settled: &[(&'a Facts<'_>, &'a Ending<'_>)]) -> Self {
        let mut rows = Self::default();
        for (facts, ending) in settled {
            let figure = |number: Option<u64>| number.map(moment);
            rows.ids.push(&facts.id.0);
            rows.begun_ms.push(moment(facts.begun_ms));
            rows.tenants.push(&facts.tenant);
            let names = facts.key.map_or([None; 4], |names| names.map(Some));
            push(&mut rows.names, names);
            let (route, model, upstream) = (facts.route, facts.model, facts.upstream);
            push(
                &mut rows.texts,
                [route, model, upstream, ending.outcome, facts.action, facts.zone],
            );
            rows.streams.push(facts.stream);
            rows.statuses.push(ending.status.map(i64::from));
            push(
                &mut rows.figures,
                [
                    figure(facts.received_tokens),
                    figure(facts.sent_tokens),
                    figure(ending.prompt_tokens),
                    figure(ending.completion_tokens),
                    figure(ending.cached_tokens),
                    figure(ending.cache_write_tokens),
                    figure(ending.reasoning_tokens),
                    figure(ending.cost_nano_usd),
                    signed_figure(ending.saved_nano_usd),
                ],
            );
            rows.flags.push(i64::from(ending.flags.0));
            let times = [facts.plan_ms, ending.first_byte_ms, ending.total_ms];
            push(&mut rows.times_ms, times.map(figure));
        }
        rows
    }

    /// In the order of [`REQUEST_COLUMNS`].
    fn given(&self) -> Vec<Given<'_>> {
        let [route, model, upstream, outcome, action, zone] = &self.texts;
        let mut given: Vec<Given<'_>> = vec![&self.ids, &self.begun_ms, &self.tenants];
        given.extend(self.names.iter().map(|names| names as Given<'_>));
        given.extend([route as Given<'_>, model, upstream, &self.streams, &self.statuses]);
        given.extend([outcome as Given<'_>, action, zone]);
        given.extend(self.figures.iter().map(|figures| figures as Given<'_>));
        given.push(&self.flags);
        given.extend(self.times_ms.iter().map(|times| times as Given<'_>));
        given
    }
}

fn push<T, const N: usize>(columns: &mut [Vec<T>; N], row: [T; N]) {
    for (column, value) in columns.iter_mut().zip(row) {
        column.push(value);
    }
}

/// Where requests are counted, a list a column.
#[derive(Default)]
struct Places<'a> {
    days: Vec<i64>,
    tenants: Vec<&'a [u8]>,
    /// Key, team, organisation, user and model.
    names: [Vec<&'a str>; 5],
}

impl<'a> Places<'a> {
    fn new(places: impl Iterator<Item = &'a Place<'a>>) -> Self {
        let mut columns = Self::default();
        for place in places {
            columns.days.push(place.day);
            columns.tenants.push(&place.tenant);
            let Place { key, team, organisation, user, model, .. } = place;
            push(&mut columns.names, [key, team, organisation, user, model].map(|it| &**it));
        }
        columns
    }

    fn given(&self) -> Vec<Given<'_>> {
        let mut given: Vec<Given<'_>> = vec![&self.days, &self.tenants];
        given.extend(self.names.iter().map(|names| names as Given<'_>));
        given
    }
}

/// What is added to each place, a list a column.
struct Totals<'a> {
    places: Places<'a>,
    /// In the order of `COUNTED` and `SUMMED`.
    figures: [Vec<i64>; 14],
}

impl<'a> Totals<'a> {
    fn new(added: &'a BTreeMap<Place<'a>, Sums>) -> Self {
        let mut figures: [Vec<i64>; 14] = Default::default();
        for sums in added.values() {
            let whole = sums.figures().map(stored_sum);
            for (column, figure) in figures.iter_mut().zip(whole) {
                column.push(figure);
            }
            figures[13].push(sums.saved_nano_usd.clamp(-MAX_ADDED, MAX_ADDED));
        }
        Self { places: Places::new(added.keys()), figures }
    }

    fn given(&self) -> Vec<Given<'_>> {
        let mut given = self.places.given();
        given.extend(self.figures.iter().map(|figures| figures as Given<'_>));
        given
    }
}

/// What answers of models took, a list a column.
#[derive(Default)]
struct Learned<'a> {
    models: Vec<&'a str>,
    answers: Vec<i64>,
    tokens: Vec<i64>,
}

impl<'a> Learned<'a> {
    fn new(outputs: &'a BTreeMap<std::borrow::Cow<'_, str>, (u64, u64)>) -> Self {
        let mut columns = Self::default();
        for (model, (answers, tokens)) in outputs {
            columns.models.push(model);
            columns.answers.push(stored_sum(*answers));
            columns.tokens.push(stored_sum(*tokens));
        }
        columns
    }

    fn given(&self) -> Vec<Given<'_>> {
        vec![&self.models, &self.answers, &self.tokens]
    }
}
