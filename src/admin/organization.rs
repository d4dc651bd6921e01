//! Usage and costs of the organization, in the form of OpenAI's API for them, so that tools that read
//! OpenAI's read weir's. A team is a project. Sums come from the journal; nothing is computed twice.

use std::collections::BTreeMap;

use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};

use super::api::{Answer, pairs};
use super::{AdminState, Refusal, refused};
use weir_store::ledger::{
    Column, DAY_MS, Filter, MAX_ROWS, SeriesQuery, Totals, UsageQuery, UsageRow,
};
use weir_store::now_ms;

const COMPLETIONS: &str = "/v1/organization/usage/completions";
const COSTS: &str = "/v1/organization/costs";
const DAY_S: u64 = DAY_MS / 1000;
const HOUR_S: u64 = 60 * 60;
const MINUTE_S: u64 = 60;
/// Prefix of the name of a page, before the start of its first bucket.
const PAGE: &str = "page_";
/// Maximum number of values of one filter.
const MAX_VALUES: usize = 1000;
const NANO_USD_PER_USD: f64 = 1e9;

/// One of the two pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Completions,
    Costs,
}

impl Page {
    /// Returns the page at a path.
    pub(super) fn at(path: &str) -> Option<Self> {
        match path {
            COMPLETIONS => Some(Self::Completions),
            COSTS => Some(Self::Costs),
            _ => None,
        }
    }
}

/// Names of groups, and their columns, in the order of [`Names`]. A filter has the name of its group in the plural.
const COLUMNS: [(&str, Column); 4] = [
    ("project_id", Column::Team),
    ("user_id", Column::User),
    ("api_key_id", Column::Key),
    ("model", Column::Model),
];

/// Names of a group: team, user, key and model, as far as they are grouped by.
type Names = [Option<String>; COLUMNS.len()];

/// Query of a page.
#[derive(Debug, Default)]
struct PageQuery {
    page: Page,
    /// Times in seconds since 1970; `None` for now.
    start: Option<u64>,
    end: Option<u64>,
    /// Length of a bucket.
    width: u64,
    /// Maximum number of buckets.
    limit: Option<u64>,
    /// Start of the first bucket, if it is not the first page.
    cursor: Option<u64>,
    /// Accepted names by column; empty for all.
    only: [Vec<String>; COLUMNS.len()],
    batch: Option<bool>,
    /// Columns that results are grouped by.
    groups: [bool; COLUMNS.len()],
    /// Whether they are grouped by being a batch job. None is: weir does not meter those.
    by_batch: bool,
}

/// Buckets of a page: their first start, their number, and whether more follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Buckets {
    first: u64,
    count: u64,
    width: u64,
    has_more: bool,
}

impl Buckets {
    /// Returns the end of the last bucket.
    fn end(self) -> u64 {
        self.first + self.count * self.width
    }

    fn starts(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |place| self.first + place * self.width)
    }
}

impl PageQuery {
    fn read(page: Page, uri: &Uri) -> Result<Self, Refusal> {
        let mut asked = Self { page, width: DAY_S, ..Self::default() };
        for (name, value) in pairs(uri)? {
            // SDKs write lists as `name[]=`, others repeat the name.
            asked.set(name.strip_suffix("[]").unwrap_or(&name), &value)?;
        }
        Ok(asked)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        let whole = || {
            let number = value.parse::<u64>().ok().filter(|number| *number < 1 << 40);
            number.ok_or_else(|| refused(format!("{name} must be a whole number.")))
        };
        let is_costs = self.page == Page::Costs;
        match name {
            "start_time" => self.start = Some(whole()?),
            "end_time" => self.end = Some(whole()?),
            "bucket_width" => self.width = width(value, is_costs)?,
            "limit" => self.limit = Some(whole()?),
            "page" => {
                let cursor = value.strip_prefix(PAGE).and_then(|start| start.parse().ok());
                let message = "page must be the next_page of the answer before.";
                self.cursor = Some(cursor.ok_or_else(|| refused(message))?);
            }
            "batch" if !is_costs => {
                let batch = value.parse().map_err(|_| refused("batch must be true or false."))?;
                self.batch = Some(batch);
            }
            "group_by" if value == "batch" && !is_costs => self.by_batch = true,
            "group_by" => {
                let names = if is_costs { "line_item" } else { "model, batch" };
                let column = column(value, is_costs).ok_or_else(|| {
                    refused(format!(
                        "group_by must be one of project_id, user_id, api_key_id, {names}: the journal \
                         has nothing else."
                    ))
                })?;
                self.groups[column] = true;
            }
            name => {
                let names = if is_costs { "line_items" } else { "user_ids, models and batch" };
                let filter = name.strip_suffix('s').filter(|own| !is_costs || *own != "user_id");
                let column = filter.and_then(|own| column(own, is_costs)).ok_or_else(|| {
                    refused(format!(
                        "Unknown parameter. This page takes start_time, end_time, bucket_width, limit, \
                         page, group_by, project_ids, api_key_ids, {names}."
                    ))
                })?;
                if self.only[column].len() >= MAX_VALUES {
                    return Err(refused(format!("A filter has at most {MAX_VALUES} values.")));
                }
                self.only[column].push(value.to_owned());
            }
        }
        Ok(())
    }

    /// Returns the buckets of the page, at the time `now` in seconds.
    fn buckets(&self, now: u64) -> Result<Buckets, Refusal> {
        let width = self.width;
        let (usual, most) = match (self.page, width) {
            (Page::Costs, _) => (7, 180),
            (_, DAY_S) => (7, 31),
            (_, HOUR_S) => (24, 168),
            _ => (60, 1440),
        };
        let limit = self.limit.unwrap_or(usual);
        if !(1..=most).contains(&limit) {
            return Err(refused(format!("limit must be from 1 to {most}.")));
        }
        let start = self.start.ok_or_else(|| {
            refused("start_time is missing: the first moment, in seconds since 1970.")
        })?;
        let end = self.end.unwrap_or(now.max(start) + 1);
        if end <= start {
            return Err(refused("end_time must be after start_time."));
        }
        // Nothing has happened after now.
        let end = end.min(now + 1).next_multiple_of(width);
        let start = start / width * width;
        let first = self.cursor.unwrap_or(start);
        if first < start || !first.is_multiple_of(width) {
            return Err(refused("page must be the next_page of an answer to the same query."));
        }
        let rest = end.saturating_sub(first) / width;
        let count = rest.min(limit);
        Ok(Buckets { first, count, width, has_more: rest > count })
    }

    /// Returns the columns that matter: those grouped by, and those with accepted names.
    fn columns(&self) -> Vec<Column> {
        let columns = COLUMNS.iter().zip(self.groups.iter().zip(&self.only));
        let matters = columns.filter(|(_, (is_grouped, only))| **is_grouped || !only.is_empty());
        matters.map(|((_, column), _)| *column).collect()
    }

    /// Returns the filter of columns with a single accepted name.
    fn filter(&self) -> Filter {
        let sole = |column: usize| match self.only[column].as_slice() {
            [sole] => Some(sole.clone()),
            _ => None,
        };
        Filter { team: sole(0), user: sole(1), key: sole(2), model: sole(3), ..Filter::default() }
    }

    /// Returns the group of a row; `None` if its names are not accepted.
    fn names(&self, row: &UsageRow) -> Option<Names> {
        let mut names = Names::default();
        for (place, (_, column)) in COLUMNS.into_iter().enumerate() {
            let name = row.name(column);
            let only = &self.only[place];
            if !only.is_empty() && !name.is_some_and(|name| only.iter().any(|own| own == name)) {
                return None;
            }
            if self.groups[place] {
                names[place] = name.filter(|name| !name.is_empty()).map(str::to_owned);
            }
        }
        Some(names)
    }

    /// Renders the totals of a group.
    fn result(&self, names: &Names, totals: &Totals) -> Value {
        let [project, user, key, model] = names;
        match self.page {
            Page::Costs => json!({
                "object": "organization.costs.result",
                "amount": {
                    "value": totals.cost_nano_usd as f64 / NANO_USD_PER_USD,
                    "currency": "usd",
                },
                "line_item": model,
                "project_id": project,
                "user_id": user,
                "api_key_id": key,
            }),
            Page::Completions => json!({
                "object": "organization.usage.completions.result",
                "input_tokens": totals.prompt_tokens,
                "input_cached_tokens": totals.cached_tokens,
                "input_cache_write_tokens": totals.cache_write_tokens,
                "output_tokens": totals.completion_tokens,
                "num_model_requests": totals.requests,
                "project_id": project,
                "user_id": user,
                "api_key_id": key,
                "model": model,
                "batch": self.by_batch.then_some(false),
                "service_tier": null,
            }),
        }
    }
}

fn width(value: &str, is_costs: bool) -> Result<u64, Refusal> {
    match value {
        "1d" => Ok(DAY_S),
        "1h" if !is_costs => Ok(HOUR_S),
        "1m" if !is_costs => Ok(MINUTE_S),
        _ if is_costs => Err(refused("bucket_width must be 1d.")),
        _ => Err(refused("bucket_width must be 1m, 1h or 1d.")),
    }
}

/// Returns the place of the column of a group. Costs call a model a line item.
fn column(group: &str, is_costs: bool) -> Option<usize> {
    let group = match group {
        "line_item" if is_costs => "model",
        "model" if is_costs => return None,
        own => own,
    };
    COLUMNS.iter().position(|(own, _)| *own == group)
}

impl AdminState {
    /// Returns one of the two pages.
    pub(super) async fn organization(&self, page: Page, method: &Method, uri: &Uri) -> Answer {
        if method != Method::GET {
            return Err(Refusal::method("GET"));
        }
        let asked = PageQuery::read(page, uri)?;
        let mut buckets = asked.buckets(now_ms() / 1000)?;
        let rows = loop {
            let rows = match asked.batch {
                Some(true) => Vec::new(),
                _ if buckets.count == 0 => Vec::new(),
                _ => self.rows(&asked, buckets).await?,
            };
            // A full result may lack rows: a page of fewer buckets has them all.
            match rows.len() < MAX_ROWS {
                true => break rows,
                false if buckets.count > 1 => {
                    (buckets.count, buckets.has_more) = (buckets.count / 2, true);
                }
                false => {
                    return Err(refused(format!(
                        "One bucket has more than {MAX_ROWS} groups. Group by less, filter, or take \
                         a shorter bucket_width."
                    )));
                }
            }
        };
        let mut sums: BTreeMap<u64, BTreeMap<Names, Totals>> = BTreeMap::new();
        for (start, row) in &rows {
            let Some(names) = asked.names(row) else { continue };
            sums.entry(*start).or_default().entry(names).or_default().add(&row.totals);
        }
        let data: Vec<Value> = buckets
            .starts()
            .map(|start| {
                let groups = sums.get(&start).into_iter().flatten();
                let results: Vec<Value> =
                    groups.map(|(names, totals)| asked.result(names, totals)).collect();
                json!({"object": "bucket", "start_time": start, "end_time": start + buckets.width,
                       "results": results})
            })
            .collect();
        let next = buckets.has_more.then(|| format!("{PAGE}{}", buckets.end()));
        let answer = json!({"object": "page", "data": data, "has_more": buckets.has_more,
                            "next_page": next});
        Ok((StatusCode::OK, answer.to_string()))
    }

    /// Returns the totals in buckets, each with the start of its bucket.
    async fn rows(
        &self,
        asked: &PageQuery,
        buckets: Buckets,
    ) -> Result<Vec<(u64, UsageRow)>, Refusal> {
        let (by, only, limit) = (asked.columns(), asked.filter(), None);
        if buckets.width == DAY_S {
            // Daily totals outlive the rows of requests.
            let (from_day, until_day) = (Some(buckets.first / DAY_S), Some(buckets.end() / DAY_S));
            let by = [vec![Column::Day], by].concat();
            let query = UsageQuery { by, from_day, until_day, zone: None, only, limit };
            let rows = self.store.usage(query).await?;
            return Ok(rows
                .into_iter()
                .map(|row| (row.day.unwrap_or_default() * DAY_S, row))
                .collect());
        }
        let (from_ms, until_ms) = (buckets.first * 1000, buckets.end() * 1000);
        let every_ms = Some(buckets.width * 1000);
        let query = SeriesQuery { from_ms, until_ms, every_ms, by, only, limit };
        let rows = self.store.series(query).await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.start_ms.unwrap_or_default() / 1000, row.usage))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(page: Page, query: &str) -> Result<PageQuery, String> {
        let uri = format!("{COSTS}?{query}").parse::<Uri>().expect("a URI");
        PageQuery::read(page, &uri).map_err(|refusal| refusal.message)
    }

    #[test]
    fn buckets_are_whole_and_bounded() {
        let now = 10 * DAY_S + 5;
        for (page, query, expected) in [
            (Page::Costs, "start_time=86400", Ok((DAY_S, 7, true))),
            (Page::Costs, "start_time=90000&limit=180", Ok((DAY_S, 10, false))),
            (Page::Costs, "start_time=86400&end_time=86401", Ok((DAY_S, 1, false))),
            (Page::Costs, "start_time=86400&end_time=259201&limit=2", Ok((DAY_S, 2, true))),
            (Page::Costs, "start_time=86400&page=page_172800", Ok((2 * DAY_S, 7, true))),
            (Page::Costs, "start_time=86400&page=page_950400", Ok((11 * DAY_S, 0, false))),
            (Page::Completions, "start_time=863990&bucket_width=1m", Ok((863_940, 2, false))),
            (Page::Completions, "start_time=3600&bucket_width=1h", Ok((3600, 24, true))),
            (Page::Costs, "start_time=99999999999", Ok((99_999_964_800, 0, false))),
            (Page::Costs, "", Err("start_time is missing")),
            (Page::Costs, "start_time=5&end_time=5", Err("after start_time")),
            (Page::Costs, "start_time=5&limit=181", Err("from 1 to 180")),
            (Page::Completions, "start_time=5&limit=32", Err("from 1 to 31")),
            (Page::Completions, "start_time=5&limit=0", Err("from 1 to 31")),
            (Page::Costs, "start_time=86400&page=page_1", Err("same query")),
            (Page::Costs, "start_time=172800&page=page_86400", Err("same query")),
        ] {
            let found = asked(page, query).and_then(|asked| {
                let buckets = asked.buckets(now).map_err(|refusal| refusal.message)?;
                Ok((buckets.first, buckets.count, buckets.has_more))
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{query}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (found, _) => panic!("{query}: {found:?}"),
            }
        }
    }

    #[test]
    fn parameters_are_read_strictly() {
        let all = "start_time=1&end_time=2&bucket_width=1h&limit=3&page=page_4&batch=false&\
                   project_ids[]=a&project_ids=b&user_ids%5B%5D=u&api_key_ids=k&models=m%20n&\
                   group_by[]=model&group_by=project_id&group_by=model&group_by=batch";
        let read = asked(Page::Completions, all).expect("it is readable");
        assert_eq!(read.only, [vec!["a", "b"], vec!["u"], vec!["k"], vec!["m n"]]);
        assert_eq!((read.groups, read.by_batch), ([true, false, false, true], true));
        assert_eq!((read.width, read.batch), (HOUR_S, Some(false)));
        for (page, query, part) in [
            (Page::Completions, "starttime=1", "Unknown parameter"),
            (Page::Completions, "line_items=a", "user_ids, models and batch"),
            (Page::Costs, "models=a", "line_items"),
            (Page::Costs, "bucket_width=1h", "must be 1d"),
            (Page::Completions, "bucket_width=2d", "1m, 1h or 1d"),
            (Page::Completions, "group_by=service_tier", "journal has nothing else"),
            (Page::Completions, "group_by=line_item", "journal has nothing else"),
            (Page::Costs, "group_by=model", "line_item"),
            (Page::Completions, "batch=1", "true or false"),
            (Page::Completions, "start_time=-1", "whole number"),
            (Page::Completions, "limit=99999999999999", "whole number"),
            (Page::Completions, "page=2", "next_page"),
        ] {
            let message = asked(page, query).expect_err(query);
            assert!(message.contains(part), "{query}: {message}");
        }
    }
}
