//! `GET /admin/v1/usage`: usage of all callers over time, for operators. Reads the journal: daily
//! totals where they suffice, else the rows of requests.

use http::{StatusCode, Uri};
use serde_json::{Map, Value, json};

use super::api::{Answer, query};
use super::{AdminState, Refusal, refused};
use weir_store::ledger::series::{BANDS, quantile_ms};
use weir_store::ledger::{
    Column, DAY_MS, Filter, MAX_ROWS, SeriesQuery, SeriesRow, UsageQuery, UsageRow,
};
use weir_store::now_ms;

const HOUR_MS: u64 = 60 * 60 * 1000;
/// Time that is shown without `since`.
const DEFAULT_SPAN_MS: u64 = DAY_MS;
/// Longest time whose requests are read one by one.
const MAX_SPAN_MS: u64 = 100 * DAY_MS;

/// Parameters of the path.
const PARAMETERS: [&str; 15] = [
    "since",
    "until",
    "every",
    "by",
    "limit",
    "detail",
    "key",
    "team",
    "model",
    "agent",
    "conversation",
    "class",
    "tag",
    "user",
    "organisation",
];

/// A parsed request.
#[derive(Debug)]
struct ParsedQuery {
    from_ms: u64,
    until_ms: u64,
    every_ms: Option<u64>,
    by: Vec<Column>,
    only: Filter,
    limit: usize,
    /// Whether figures are wanted that daily totals do not have.
    has_detail: bool,
}

impl ParsedQuery {
    fn read(uri: &Uri, now_ms: u64) -> Result<Self, Refusal> {
        let [since, until, every, by, limit, detail, names @ ..] = query(uri, PARAMETERS)?;
        let [key, team, model, agent, conversation, class, tag, user, organisation] = names;
        let moment = |name: &str, text: Option<String>| {
            text.map(|text| read_moment(name, &text)).transpose()
        };
        let until_ms = moment("until", until)?.unwrap_or(now_ms + 1);
        let from_ms = moment("since", since)?;
        let from_ms = from_ms.unwrap_or_else(|| until_ms.saturating_sub(DEFAULT_SPAN_MS));
        if from_ms >= until_ms {
            return Err(refused("since must be before until"));
        }
        let every_ms = match every.as_deref() {
            None => None,
            Some("hour") => Some(HOUR_MS),
            Some("day") => Some(DAY_MS),
            Some(text) => Some(read_hours(text)?),
        };
        let by = Column::read_list(&by.unwrap_or_default()).map_err(refused)?;
        if by.iter().any(|column| matches!(column, Column::Day | Column::Tenant)) {
            return Err(refused("group by day with every=day, and not by tenant"));
        }
        let limit = limit.map(|text| text.parse::<usize>()).transpose();
        let limit = limit.map_err(|_| refused("limit must be a whole number"))?;
        let has_detail = match detail.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(refused("detail is true or false")),
        };
        let only = Filter {
            tenant: None,
            key,
            team,
            organisation,
            user,
            model,
            conversation,
            agent,
            class,
            tag,
        };
        let limit = limit.unwrap_or(MAX_ROWS).min(MAX_ROWS);
        Ok(Self { from_ms, until_ms, every_ms, by, only, limit, has_detail })
    }

    /// Whether daily totals answer it: whole days, and no label of single requests.
    fn is_daily(&self, now_ms: u64) -> bool {
        let has_label = self.only.has_label() || self.by.iter().any(|column| column.is_label());
        let is_whole = self.from_ms.is_multiple_of(DAY_MS)
            && (self.until_ms > now_ms || self.until_ms.is_multiple_of(DAY_MS));
        let is_hourly = self.every_ms.is_some_and(|every_ms| every_ms < DAY_MS);
        is_whole && !is_hourly && !has_label && !self.has_detail
    }
}

/// Parses a number of hours that divides a day, such as `4h`.
fn read_hours(text: &str) -> Result<u64, Refusal> {
    let hours = text.strip_suffix('h').and_then(|digits| digits.parse::<u64>().ok());
    let hours = hours.filter(|hours| (1..=24).contains(hours) && 24 % hours == 0);
    hours.map(|hours| hours * HOUR_MS).ok_or_else(|| {
        refused("every is hour, day, or a number of hours that divides a day, such as 4h")
    })
}

/// Parses milliseconds since 1970, or a moment such as `2026-11-23T10:00:00Z`.
fn read_moment(name: &str, text: &str) -> Result<u64, Refusal> {
    if let Ok(ms) = text.parse::<u64>() {
        return Ok(ms);
    }
    let moment = text.parse::<jiff::Timestamp>().ok();
    let ms = moment.and_then(|moment| u64::try_from(moment.as_millisecond()).ok());
    ms.ok_or_else(|| {
        refused(format!("{name} is milliseconds since 1970, or a moment like 2026-01-31T12:00:00Z"))
    })
}

impl AdminState {
    /// Shows the usage of all callers, by stretches of time and names.
    pub(super) async fn usage(&self, uri: &Uri) -> Answer {
        let now_ms = now_ms();
        let asked = ParsedQuery::read(uri, now_ms)?;
        let rows: Vec<Value> = if asked.is_daily(now_ms) {
            let by_day = asked.every_ms.is_some().then_some(Column::Day);
            let by: Vec<Column> = by_day.into_iter().chain(asked.by.iter().copied()).collect();
            let daily = UsageQuery {
                by,
                from_day: Some(asked.from_ms / DAY_MS),
                until_day: Some(asked.until_ms.div_ceil(DAY_MS)),
                zone: None,
                only: asked.only.clone(),
                limit: Some(asked.limit),
            };
            let rows = self.store.usage(daily).await?;
            rows.iter().map(|row| daily_json(row, &asked)).collect()
        } else {
            if asked.until_ms - asked.from_ms > MAX_SPAN_MS {
                return Err(refused(
                    "hours, details and labels go back 100 days at once; ask for a shorter time, \
                     or for every=day from the start of a UTC day",
                ));
            }
            let series = SeriesQuery {
                from_ms: asked.from_ms,
                until_ms: asked.until_ms,
                every_ms: asked.every_ms,
                by: asked.by.clone(),
                only: asked.only.clone(),
                limit: Some(asked.limit),
            };
            let rows = self.store.series(series).await?;
            rows.iter().map(|row| series_json(row, &asked)).collect()
        };
        let json = json!({
            "object": "usage",
            "from_ms": asked.from_ms,
            "until_ms": asked.until_ms,
            "is_complete": rows.len() < asked.limit,
            "data": rows,
        });
        Ok((StatusCode::OK, json.to_string()))
    }
}

fn daily_json(row: &UsageRow, asked: &ParsedQuery) -> Value {
    let start_ms = row.day.map_or(asked.from_ms, |day| day.saturating_mul(DAY_MS));
    Value::Object(members(start_ms, row, asked))
}

fn series_json(row: &SeriesRow, asked: &ParsedQuery) -> Value {
    let mut members = members(row.start_ms.unwrap_or(asked.from_ms), &row.usage, asked);
    members.insert("compacted".to_owned(), row.shortened.into());
    let mut quantiles = |name: &str, bands: &[u64; BANDS]| {
        for (suffix, share) in [("p50", 0.5), ("p95", 0.95)] {
            members.insert(format!("{name}_{suffix}_ms"), quantile_ms(bands, share).into());
        }
    };
    quantiles("first_byte", &row.first_byte);
    quantiles("total", &row.total);
    Value::Object(members)
}

/// Returns the members that both sources have.
fn members(start_ms: u64, row: &UsageRow, asked: &ParsedQuery) -> Map<String, Value> {
    let mut members = match row.json(&asked.by) {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    members.insert("start_ms".to_owned(), start_ms.into());
    if let Some(failed) = members.remove("failed") {
        members.insert("errors".to_owned(), failed);
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 20_000 * DAY_MS + 5 * HOUR_MS;

    fn asked(query: &str) -> Result<ParsedQuery, String> {
        let uri = format!("/admin/v1/usage?{query}").parse::<Uri>().expect("a URI");
        ParsedQuery::read(&uri, NOW_MS).map_err(|refusal| refusal.message)
    }

    #[test]
    fn times_are_read_in_both_forms() {
        let asked = asked("since=2024-10-04T00:00:00Z&until=1728086400000&every=day&by=model,key");
        let asked = asked.expect("it is right");
        assert_eq!((asked.from_ms, asked.until_ms), (20_000 * DAY_MS, 20_001 * DAY_MS));
        assert!(asked.is_daily(NOW_MS));
        assert_eq!(asked.by, [Column::Model, Column::Key]);
    }

    #[test]
    fn daily_totals_are_used_where_they_suffice() {
        let start = 19_990 * DAY_MS;
        for (query, expected) in [
            (format!("since={start}&every=day"), true),
            (format!("since={start}"), true),
            (format!("since={start}&every=hour"), false),
            (format!("since={start}&by=agent"), false),
            (format!("since={start}&conversation=a"), false),
            (format!("since={start}&detail=true"), false),
            (format!("since={}", start + 1), false),
            (format!("since={start}&until={}", start + HOUR_MS), false),
            (String::new(), false),
        ] {
            assert_eq!(asked(&query).expect("it is right").is_daily(NOW_MS), expected, "{query}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (query, said) in [
            ("since=yesterday", "since is milliseconds"),
            ("every=week", "every is hour, day"),
            ("every=5h", "every is hour, day"),
            ("by=colour", "grouped by"),
            ("by=tenant", "not by tenant"),
            ("limit=-1", "limit must be"),
            ("since=5&until=5", "since must be before until"),
            ("detail=yes", "detail is"),
            ("nothing=1", "Unknown parameter"),
        ] {
            let refused = asked(query).expect_err("it is wrong");
            assert!(refused.contains(said), "{query}: {refused}");
        }
    }
}
