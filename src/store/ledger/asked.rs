//! What the journal can be asked, and what it answers, whatever keeps it.

use std::fmt::Write as _;

use super::{Caller, Flags, RequestId, Settlement, Sums, Tenant};

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
    /// Its name in the tables, as SQL wants it.
    pub fn sql(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Organisation => "organisation",
            Self::Team => "team",
            Self::Key => "key",
            Self::User => "\"user\"",
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

/// What a column is compared to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Number(i64),
    Bytes(Vec<u8>),
    Text(String),
}

/// The conditions of a query with what they compare to. Columns are called alike everywhere.
#[derive(Default)]
pub struct Conditions {
    /// Each with `?` for its value, if it has one.
    sql: Vec<&'static str>,
    pub values: Vec<Wanted>,
}

impl Conditions {
    fn add(&mut self, sql: &'static str, value: Option<Wanted>) {
        if let Some(value) = value {
            self.sql.push(sql);
            self.values.push(value);
        }
    }

    fn add_names(&mut self, names: [&Option<String>; 5]) {
        const SQL: [&str; 5] =
            ["key = ?", "team = ?", "organisation = ?", "\"user\" = ?", "model = ?"];
        for (sql, name) in SQL.into_iter().zip(names) {
            self.add(sql, name.clone().map(Wanted::Text));
        }
    }

    /// As SQL, which counts the places of values from `$1` on.
    pub fn written(&self) -> String {
        let mut written = String::new();
        let mut place = 0;
        for sql in &self.sql {
            written.push_str(if written.is_empty() { "WHERE " } else { " AND " });
            let mut rest = *sql;
            while let Some((before, behind)) = rest.split_once('?') {
                place += 1;
                // Writing to a text cannot fail.
                let _ = write!(written, "{before}${place}");
                rest = behind;
            }
            written.push_str(rest);
        }
        written
    }
}

impl UsageQuery {
    pub fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::default();
        conditions.add("day >= ?", self.from_day.map(number));
        conditions.add("day < ?", self.until_day.map(number));
        conditions.add("tenant = ?", self.tenant.map(bytes));
        let Self { key, team, organisation, user, model, .. } = self;
        conditions.add_names([key, team, organisation, user, model]);
        conditions
    }

    /// The columns of what it is told by, as SQL wants them.
    pub fn by_sql(&self) -> Vec<&'static str> {
        self.by.iter().map(|column| column.sql()).collect()
    }

    pub fn most_rows(&self) -> usize {
        at_most(self.limit)
    }
}

impl RequestQuery {
    pub fn conditions(&self) -> Conditions {
        let first_of = |moment_ms| Wanted::Bytes(RequestId::first_of(moment_ms).0.to_vec());
        let mut conditions = Conditions::default();
        // Ids begin with their moment, and rows lie in their order.
        conditions.add("id >= ?", self.from_ms.map(first_of));
        conditions.add("id < ?", self.until_ms.map(first_of));
        conditions.add("tenant = ?", self.tenant.map(bytes));
        let Self { key, team, organisation, user, model, .. } = self;
        conditions.add_names([key, team, organisation, user, model]);
        conditions.add("route = ?", self.route.clone().map(Wanted::Text));
        let flags = Some(self.flags).filter(|flags| !flags.is_empty());
        if flags.is_some_and(|flags| Flags::RARE.covers(flags)) {
            // As the index on these has it.
            conditions.sql.push(Flags::IS_RARE_SQL);
        }
        conditions.add("flags & ? <> 0", flags.map(|flags| number(u64::from(flags.0))));
        conditions
    }

    pub fn most_rows(&self) -> usize {
        at_most(self.limit)
    }
}

fn number(number: u64) -> Wanted {
    Wanted::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn bytes(tenant: Tenant) -> Wanted {
    Wanted::Bytes(tenant.0.to_vec())
}

fn at_most(limit: Option<usize>) -> usize {
    limit.unwrap_or(MAX_ROWS).min(MAX_ROWS)
}

/// The columns of a request's row, as SQL wants them and in the order that rows are read in.
pub const REQUEST_COLUMNS: &str = "id, begun_ms, tenant, key, team, organisation, \"user\", route,
    model, upstream, stream, status, outcome, action, zone, received_tokens, sent_tokens,
    prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, reasoning_tokens,
    cost_nano_usd, saved_nano_usd, flags, plan_ms, first_byte_ms, total_ms";

/// The columns of figures that are counted by one, and those of sums that can grow large.
pub const COUNTED: [&str; 5] = ["requests", "failed", "estimated", "partly_priced", "unpriced"];
pub const SUMMED: [&str; 9] = [
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

/// Sums by their columns. What is more than a figure holds is the most that it does.
pub fn told_sums(counted: [u64; 5], summed: [i128; 9]) -> Sums {
    let [requests, failed, estimated, partly_priced, unpriced] = counted;
    let whole = |sum: i128| u64::try_from(sum).unwrap_or(u64::MAX);
    let saved = summed[8].clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Sums {
        requests,
        failed,
        estimated,
        partly_priced,
        unpriced,
        received_tokens: whole(summed[0]),
        sent_tokens: whole(summed[1]),
        prompt_tokens: whole(summed[2]),
        completion_tokens: whole(summed[3]),
        cached_tokens: whole(summed[4]),
        cache_write_tokens: whole(summed[5]),
        reasoning_tokens: whole(summed[6]),
        cost_nano_usd: whole(summed[7]),
        saved_nano_usd: i64::try_from(saved).unwrap_or(0),
    }
}
