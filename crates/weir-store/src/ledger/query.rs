//! Queries of the journal and their results, for any back end.

use jiff::tz::TimeZone;

use super::series::count_columns;
use super::{Attribution, Caller, DAY_MS, Flags, RequestId, Settlement, Totals};
use crate::Tenant;
use crate::budget::calendar::local_ms_sql;
use crate::sql::SqlValue;

/// Maximum rows per result.
pub const MAX_ROWS: usize = 10_000;

/// Columns that totals can be grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Day,
    Organisation,
    Team,
    Key,
    User,
    Model,
    Tenant,
    Conversation,
    Agent,
    Parent,
    Class,
    Tag,
}

impl Column {
    /// Whether it is a label of single requests, which daily totals do not have.
    pub fn is_label(self) -> bool {
        matches!(self, Self::Conversation | Self::Agent | Self::Parent | Self::Class | Self::Tag)
    }

    /// Returns the column's name in SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Self::User => "\"user\"",
            other => other.name(),
        }
    }
}

/// Values that rows must have. `None` does not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub tenant: Option<Tenant>,
    pub key: Option<String>,
    pub team: Option<String>,
    pub organisation: Option<String>,
    pub user: Option<String>,
    pub model: Option<String>,
    pub conversation: Option<String>,
    pub agent: Option<String>,
    pub class: Option<String>,
    pub tag: Option<String>,
}

impl Filter {
    /// Whether it selects by labels, which daily totals do not have.
    pub fn has_label(&self) -> bool {
        [&self.conversation, &self.agent, &self.class, &self.tag].into_iter().any(Option::is_some)
    }
}

/// Query for totals. `None` does not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Columns to group by; none for a single row.
    pub by: Vec<Column>,
    /// First day, counted from 1970.
    pub from_day: Option<u64>,
    /// Exclusive last day.
    pub until_day: Option<u64>,
    /// Zone of the days; `None` for UTC, in which days of all times are summed up.
    pub zone: Option<TimeZone>,
    pub only: Filter,
    /// Row limit, capped at [`MAX_ROWS`], which is also the default.
    pub limit: Option<usize>,
}

/// Totals with their group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    /// Counted from 1970; `None` if not grouped by it, as is the tenant.
    pub day: Option<u64>,
    pub tenant: Option<Tenant>,
    /// Values of the other columns that it is grouped by. Those of a virtual key are empty for callers without
    /// one, and labels for requests without such a label.
    pub names: Vec<(Column, String)>,
    pub totals: Totals,
}

impl UsageRow {
    /// Returns the name in `column`, if the row is grouped by it.
    pub fn name(&self, column: Column) -> Option<&str> {
        let found = self.names.iter().find(|(own, _)| *own == column);
        found.map(|(_, name)| name.as_str())
    }
}

/// Query for single requests. `None` does not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestQuery {
    /// Earliest time, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// Exclusive latest time.
    pub until_ms: Option<u64>,
    pub only: Filter,
    /// Route of the request, such as `chat/completions`; `summary` for weir's own requests.
    pub route: Option<String>,
    /// Only requests with any of these flags; all if empty.
    pub flags: Flags,
    /// Row limit, capped at [`MAX_ROWS`], which is also the default.
    pub limit: Option<usize>,
}

/// One ended request.
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
    pub attribution: Attribution,
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
    pub plan_ms: Option<u64>,
    pub settlement: Settlement,
}

/// State of a request in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// Not recorded, or released because it was not sent.
    Unknown,
    /// Open: about to be sent, not ended. If its process has ended, it is settled by rule.
    Open,
    /// Ended, with its cost and tokens.
    Ended { nano_usd: u64, tokens: u64 },
}

/// SQL conditions of a query with their values. Column names are the same in every table.
#[derive(Default)]
pub(crate) struct Conditions {
    sql: Vec<String>,
    pub(crate) values: Vec<SqlValue<'static>>,
}

impl Conditions {
    /// Adds a condition with `?` for its value, if there is one.
    fn add(&mut self, sql: &str, value: Option<SqlValue<'static>>) {
        if let Some(value) = value {
            self.values.push(value);
            self.sql.push(sql.replace('?', &format!("${}", self.values.len())));
        }
    }

    /// Adds a span of time. IDs begin with their timestamp, and rows are stored in ID order.
    pub(super) fn add_span(&mut self, from_ms: Option<u64>, until_ms: Option<u64>) {
        let first_of = |moment_ms| SqlValue::from(RequestId::first_of(moment_ms).0.to_vec());
        self.add("id >= ?", from_ms.map(first_of));
        self.add("id < ?", until_ms.map(first_of));
    }

    pub(super) fn add_filter(&mut self, only: &Filter) {
        self.add("tenant = ?", only.tenant.map(|tenant| SqlValue::from(tenant.0.to_vec())));
        for (sql, name) in [
            ("key = ?", &only.key),
            ("team = ?", &only.team),
            ("organisation = ?", &only.organisation),
            ("\"user\" = ?", &only.user),
            ("model = ?", &only.model),
            ("conversation = ?", &only.conversation),
            ("agent = ?", &only.agent),
            ("class = ?", &only.class),
            ("tag = ?", &only.tag),
        ] {
            self.add(sql, name.clone().map(SqlValue::from));
        }
    }

    /// Formats the conditions as SQL, with values numbered from `$1`.
    pub(crate) fn to_sql(&self) -> String {
        let all = self.sql.join(" AND ");
        if all.is_empty() { all } else { format!("WHERE {all}") }
    }
}

impl UsageQuery {
    pub(crate) fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::default();
        conditions.add("day >= ?", self.from_day.map(SqlValue::from));
        conditions.add("day < ?", self.until_day.map(SqlValue::from));
        conditions.add_filter(&self.only);
        conditions
    }

    /// Returns the table that has its totals, as SQL: daily totals, or the rows of requests if it
    /// asks for labels or for the days of a zone. `bind` returns the place of an ID among the statement's values.
    pub(crate) fn table(&self, bind: impl FnOnce(RequestId) -> String) -> String {
        let has_label = self.only.has_label() || self.by.iter().any(|column| column.is_label());
        let zone = self.zone.as_ref().filter(|zone| **zone != TimeZone::UTC);
        if !has_label && zone.is_none() {
            return "weir_usage_day".to_owned();
        }
        let from_ms = self.from_day.unwrap_or(0).saturating_mul(DAY_MS);
        let (from_ms, local_ms) = match zone {
            Some(zone) => {
                let from_ms = from_ms.saturating_sub(DAY_MS);
                (from_ms, local_ms_sql(zone, "begun_ms", from_ms.max(EARLIEST_MS)))
            }
            None => (from_ms, "begun_ms".to_owned()),
        };
        let name = |column: &str| format!("coalesce({column}, '') AS {column}");
        let names = NAME_COLUMNS.into_iter().chain(LABEL_COLUMNS).map(name);
        let counts = count_columns();
        let counts = counts.iter().zip(COUNT_COLUMNS).map(|(sql, name)| format!("{sql} AS {name}"));
        let sums = SUM_COLUMNS.map(|column| format!("coalesce({column}, 0) AS {column}"));
        let columns: Vec<String> = names.chain(counts).chain(sums).collect();
        // Rows are stored in the order of their IDs, which begin with the time.
        let rows = format!(
            "SELECT {local_ms} / {DAY_MS} AS day, tenant, model, {columns} FROM weir_request
             WHERE id >= {first}",
            columns = columns.join(", "),
            first = bind(RequestId::first_of(from_ms)),
        );
        if has_label {
            return format!("({rows}) AS counted");
        }
        // Of earlier days only the totals are kept. Rows are deleted by whole days.
        let first_day =
            format!("(SELECT coalesce(min(begun_ms) / {DAY_MS}, {LAST_DAY}) FROM weir_request)");
        let labels = LABEL_COLUMNS.map(|column| format!("'' AS {column}"));
        let columns = NAME_COLUMNS.iter().map(|&name| name.to_owned()).chain(labels);
        let sums = COUNT_COLUMNS.into_iter().chain(SUM_COLUMNS).map(str::to_owned);
        let columns: Vec<String> = columns.chain(sums).collect();
        format!(
            "({rows} UNION ALL SELECT day, tenant, model, {columns} FROM weir_usage_day
              WHERE day < {first_day}) AS counted",
            columns = columns.join(", "),
        )
    }
}

impl RequestQuery {
    pub(crate) fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::default();
        conditions.add_span(self.from_ms, self.until_ms);
        conditions.add_filter(&self.only);
        conditions.add("route = ?", self.route.clone().map(SqlValue::from));
        let flags = Some(self.flags).filter(|flags| !flags.is_empty());
        if flags.is_some_and(|flags| Flags::RARE.covers(flags)) {
            // The exact expression of the partial index.
            conditions.sql.push(Flags::IS_RARE_SQL.to_owned());
        }
        conditions.add("flags & ? <> 0", flags.map(|flags| SqlValue::from(u64::from(flags.0))));
        conditions
    }
}

/// Sums a count, as SQL.
pub(crate) fn count(column: &str) -> String {
    format!("CAST(sum({column}) AS bigint)")
}

/// Sums a figure that can grow large, as SQL: in halves, since a whole sum could overflow an integer, which
/// would fail the query.
pub(crate) fn large(column: &str) -> String {
    format!("CAST(sum({column} >> 32) AS bigint), CAST(sum({column} & 4294967295) AS bigint)")
}

/// Returns a row limit within its bounds.
pub(super) fn row_limit(limit: Option<usize>) -> usize {
    limit.unwrap_or(MAX_ROWS).min(MAX_ROWS)
}

/// Columns of a request's row in SQL, in the order in which rows are read.
pub(crate) const REQUEST_COLUMNS: &str =
    "id, begun_ms, tenant, key, team, organisation, \"user\", route,
    model, upstream, stream, status, outcome, action, zone, received_tokens, sent_tokens,
    prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, reasoning_tokens,
    cost_nano_usd, saved_nano_usd, flags, plan_ms, first_byte_ms, total_ms,
    conversation, agent, parent, class, planned_saved_nano_usd, tag";

/// Columns of names in daily totals, and of labels that only rows of requests have.
const NAME_COLUMNS: [&str; 4] = ["key", "team", "organisation", "\"user\""];
const LABEL_COLUMNS: [&str; 5] = ["conversation", "agent", "parent", "class", "tag"];
/// Before the first request that a weir has recorded: 2026-01-01.
const EARLIEST_MS: u64 = 20_454 * DAY_MS;
/// After the last day that the calendar has.
const LAST_DAY: u64 = 4_000_000;
/// Columns that count requests, and columns whose sums can grow large.
pub(crate) const COUNT_COLUMNS: [&str; 5] =
    ["requests", "failed", "estimated", "partly_priced", "unpriced"];
pub(crate) const SUM_COLUMNS: [&str; 10] = [
    "received_tokens",
    "sent_tokens",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost_nano_usd",
    "saved_nano_usd",
    "planned_saved_nano_usd",
];

/// Builds totals from their columns, capping values that exceed a field.
pub(crate) fn totals_of(counted: [u64; 5], summed: [i128; 10]) -> Totals {
    let signed = |sum: i128| {
        let sum = sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        i64::try_from(sum).unwrap_or(0)
    };
    let [.., saved, planned_saved] = summed;
    let mut totals = Totals {
        saved_nano_usd: signed(saved),
        planned_saved_nano_usd: signed(planned_saved),
        ..Totals::default()
    };
    let whole = summed.map(|sum| u64::try_from(sum).unwrap_or(u64::MAX));
    for (figure, sum) in totals.figures_mut().into_iter().zip(counted.into_iter().chain(whole)) {
        *figure = sum;
    }
    totals
}
