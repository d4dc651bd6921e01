//! What the journal can be asked. Reads, and never more rows than it says.

use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use super::text::given;
use super::{Caller, Flags, KeyNames, RequestId, Settlement, Sums, Tenant};

/// The most rows of an answer.
pub const MAX_ROWS: usize = 10_000;

/// What sums are told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Day,
    Organisation,
    Team,
    Key,
    User,
    Model,
    Tenant,
}

impl Column {
    fn sql(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Organisation => "organisation",
            Self::Team => "team",
            Self::Key => "key",
            Self::User => "user",
            Self::Model => "model",
            Self::Tenant => "tenant",
        }
    }
}

/// Which sums are wanted. What is `None` is not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// One row for each set of these; one row over all for none.
    pub by: Vec<Column>,
    /// The first day, counted from 1970.
    pub from_day: Option<u64>,
    /// The first day that is no longer wanted.
    pub until_day: Option<u64>,
    pub tenant: Option<Tenant>,
    pub key: Option<String>,
    pub team: Option<String>,
    pub organisation: Option<String>,
    pub user: Option<String>,
    pub model: Option<String>,
    /// The most rows; [`MAX_ROWS`] where it is more or missing.
    pub limit: Option<usize>,
}

/// Sums, and what they are over: what was asked to be told by is `Some`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    /// Counted from 1970.
    pub day: Option<u64>,
    pub tenant: Option<Tenant>,
    /// Empty for callers without a virtual key, as are team, organisation and user.
    pub key: Option<String>,
    pub team: Option<String>,
    pub organisation: Option<String>,
    pub user: Option<String>,
    pub model: Option<String>,
    pub sums: Sums,
}

/// Which requests are wanted. What is `None` is not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestQuery {
    /// The first moment, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// The first moment that is no longer wanted.
    pub until_ms: Option<u64>,
    pub tenant: Option<Tenant>,
    pub key: Option<String>,
    pub team: Option<String>,
    pub organisation: Option<String>,
    pub user: Option<String>,
    pub model: Option<String>,
    /// What was asked for, such as `chat/completions`; `summary` is what weir itself asked for.
    pub route: Option<String>,
    /// Only with any of these; all where it is empty.
    pub flags: Flags,
    /// The most rows; [`MAX_ROWS`] where it is more or missing.
    pub limit: Option<usize>,
}

/// One request that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRow {
    pub id: RequestId,
    pub begun_ms: u64,
    pub caller: Caller,
    pub route: String,
    pub model: String,
    pub upstream: String,
    pub stream: bool,
    pub action: String,
    pub zone: String,
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
    pub plan_ms: Option<u64>,
    pub settlement: Settlement,
}

/// The columns that are added up only by halves: whole sums could pass what SQLite's numbers hold,
/// and it would then answer nothing at all.
const SUMMED: [&str; 9] = [
    "received_tokens",
    "sent_tokens",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost_nano_usd",
    "saved_nano_usd",
];
const COUNTED: [&str; 5] = ["requests", "failed", "estimated", "partly_priced", "unpriced"];

/// The conditions of a query with what they compare to.
#[derive(Default)]
struct Conditions {
    sql: Vec<&'static str>,
    values: Vec<Value>,
}

impl Conditions {
    fn add(&mut self, sql: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.sql.push(sql);
            self.values.push(value.into());
        }
    }

    fn written(&self) -> String {
        if self.sql.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", self.sql.join(" AND "))
        }
    }
}

fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn at_most(limit: Option<usize>) -> usize {
    limit.unwrap_or(MAX_ROWS).min(MAX_ROWS)
}

pub fn usage(connection: &Connection, query: &UsageQuery) -> rusqlite::Result<Vec<UsageRow>> {
    let mut conditions = Conditions::default();
    conditions.add("day >= ?", query.from_day.map(stored));
    conditions.add("day < ?", query.until_day.map(stored));
    conditions.add("tenant = ?", query.tenant.map(|tenant| tenant.0.to_vec()));
    conditions.add("key = ?", query.key.clone());
    conditions.add("team = ?", query.team.clone());
    conditions.add("organisation = ?", query.organisation.clone());
    conditions.add("user = ?", query.user.clone());
    conditions.add("model = ?", query.model.clone());

    let by: Vec<&str> = query.by.iter().map(|column| column.sql()).collect();
    let mut columns: Vec<String> = by.iter().map(|&column| column.to_owned()).collect();
    columns.extend(COUNTED.map(|column| format!("sum({column})")));
    columns.extend(SUMMED.map(|column| format!("sum({column} >> 32), sum({column} & 0xffffffff)")));
    let group = if by.is_empty() { String::new() } else { format!("GROUP BY {}", by.join(", ")) };
    let day: &[&str] = if by.contains(&"day") { &["day"] } else { &[] };
    let most: &[&str] = &["total(cost_nano_usd) DESC", "total(requests) DESC"];
    let order = [day, most, &by].concat().join(", ");
    let sql = format!(
        "SELECT {columns} FROM usage_day {conditions} {group} HAVING count(*) > 0
         ORDER BY {order} LIMIT {limit}",
        columns = columns.join(", "),
        conditions = conditions.written(),
        limit = at_most(query.limit),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement
        .query_map(params_from_iter(conditions.values), |row| usage_row(row, &query.by))?;
    rows.collect()
}

fn usage_row(row: &Row<'_>, by: &[Column]) -> rusqlite::Result<UsageRow> {
    let mut told = UsageRow::default();
    for (index, column) in by.iter().enumerate() {
        match column {
            Column::Day => told.day = Some(row.get(index).map(given)?),
            Column::Organisation => told.organisation = Some(row.get(index)?),
            Column::Team => told.team = Some(row.get(index)?),
            Column::Key => told.key = Some(row.get(index)?),
            Column::User => told.user = Some(row.get(index)?),
            Column::Model => told.model = Some(row.get(index)?),
            Column::Tenant => told.tenant = Some(Tenant(row.get(index)?)),
        }
    }
    let count = |index: usize| row.get(by.len() + index).map(given);
    let sum = |index: usize| {
        let first = by.len() + COUNTED.len() + 2 * index;
        let (high, low): (i64, i64) = (row.get(first)?, row.get(first + 1)?);
        Ok::<_, rusqlite::Error>((i128::from(high) << 32) + i128::from(low))
    };
    let whole =
        |index: usize| Ok::<_, rusqlite::Error>(u64::try_from(sum(index)?).unwrap_or(u64::MAX));
    let saved = sum(8)?.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    told.sums = Sums {
        requests: count(0)?,
        failed: count(1)?,
        estimated: count(2)?,
        partly_priced: count(3)?,
        unpriced: count(4)?,
        received_tokens: whole(0)?,
        sent_tokens: whole(1)?,
        prompt_tokens: whole(2)?,
        completion_tokens: whole(3)?,
        cached_tokens: whole(4)?,
        cache_write_tokens: whole(5)?,
        reasoning_tokens: whole(6)?,
        cost_nano_usd: whole(7)?,
        saved_nano_usd: i64::try_from(saved).unwrap_or(0),
    };
    Ok(told)
}

/// What a tenant's requests of one route have cost since `from_ms`, in nano-dollars.
pub fn spent_on_route(
    connection: &Connection,
    tenant: Tenant,
    route: &str,
    from_ms: u64,
) -> rusqlite::Result<u64> {
    let sql = "SELECT total(cost_nano_usd) FROM request WHERE id >= ? AND tenant = ? AND route = ?";
    let first = RequestId::first_of(from_ms).0;
    // Exact up to nine million dollars, and far from the caps that it is compared with above that.
    let spent: f64 =
        connection.prepare_cached(sql)?.query_row((first, tenant.0, route), |row| row.get(0))?;
    Ok(spent as u64)
}

/// Single requests, newest first.
pub fn requests(
    connection: &Connection,
    query: &RequestQuery,
) -> rusqlite::Result<Vec<RequestRow>> {
    let first_of = |moment_ms| RequestId::first_of(moment_ms).0.to_vec();
    let mut conditions = Conditions::default();
    // Ids begin with their moment, and rows lie in their order.
    conditions.add("id >= ?", query.from_ms.map(first_of));
    conditions.add("id < ?", query.until_ms.map(first_of));
    conditions.add("tenant = ?", query.tenant.map(|tenant| tenant.0.to_vec()));
    conditions.add("key = ?", query.key.clone());
    conditions.add("team = ?", query.team.clone());
    conditions.add("organisation = ?", query.organisation.clone());
    conditions.add("user = ?", query.user.clone());
    conditions.add("model = ?", query.model.clone());
    conditions.add("route = ?", query.route.clone());
    let flags = Some(query.flags).filter(|flags| !flags.is_empty());
    if flags.is_some_and(|flags| Flags::RARE.covers(flags)) {
        // As the index on these has it.
        conditions.sql.push(Flags::IS_RARE_SQL);
    }
    conditions.add("flags & ? <> 0", flags.map(|flags| i64::from(flags.0)));
    let sql = format!(
        "SELECT id, begun_ms, tenant, key, team, organisation, user, route, model, upstream, stream,
         status, outcome, action, zone, received_tokens, sent_tokens, prompt_tokens,
         completion_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost_nano_usd,
         saved_nano_usd, flags, plan_ms, first_byte_ms, total_ms
         FROM request {conditions} ORDER BY id DESC LIMIT {limit}",
        conditions = conditions.written(),
        limit = at_most(query.limit),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(conditions.values), request_row)?;
    rows.collect()
}

fn request_row(row: &Row<'_>) -> rusqlite::Result<RequestRow> {
    let key: Option<String> = row.get(3)?;
    let names = |key: String| -> rusqlite::Result<Arc<KeyNames>> {
        let name = |index| row.get::<_, Option<String>>(index).map(Option::unwrap_or_default);
        let names = KeyNames { key, team: name(4)?, organisation: name(5)?, user: name(6)? };
        Ok(Arc::new(names))
    };
    let figure = |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(index)?.map(given));
    Ok(RequestRow {
        id: RequestId(row.get(0)?),
        begun_ms: row.get(1).map(given)?,
        caller: Caller { tenant: Tenant(row.get(2)?), key: key.map(names).transpose()? },
        route: row.get(7)?,
        model: row.get(8)?,
        upstream: row.get(9)?,
        stream: row.get(10)?,
        action: row.get(13)?,
        zone: row.get(14)?,
        received_tokens: figure(15)?,
        sent_tokens: figure(16)?,
        plan_ms: figure(25)?,
        settlement: Settlement {
            outcome: row.get(12)?,
            status: row.get(11)?,
            prompt_tokens: figure(17)?,
            completion_tokens: figure(18)?,
            cached_tokens: figure(19)?,
            cache_write_tokens: figure(20)?,
            reasoning_tokens: figure(21)?,
            cost_nano_usd: figure(22)?,
            saved_nano_usd: row.get(23)?,
            flags: Flags(row.get(24)?),
            first_byte_ms: figure(26)?,
            total_ms: figure(27)?,
        },
    })
}
