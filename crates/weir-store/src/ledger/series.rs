//! Query for totals over stretches of time, from the rows of single requests: figures that daily
//! totals do not have, such as latencies. One text of SQL serves all back ends.

use super::query::{COUNT_COLUMNS, Conditions, SUM_COLUMNS, count, large, row_limit};
use super::{Column, Filter, Flags, UsageRow};

/// Upper ends of the bands of a latency, in milliseconds, exclusive. A last band is open.
pub const BAND_ENDS_MS: [u64; 13] =
    [25, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 102_400];
/// Number of bands of a latency.
pub const BANDS: usize = BAND_ENDS_MS.len() + 1;
/// Columns of latencies.
const LATENCIES: [&str; 2] = ["first_byte_ms", "total_ms"];

/// Query for totals by stretches of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesQuery {
    /// Earliest time, in milliseconds since 1970, and exclusive latest time.
    pub from_ms: u64,
    pub until_ms: u64,
    /// Length of a stretch, counted from 1970 in UTC; `None` for a single one.
    pub every_ms: Option<u64>,
    /// Columns to group by.
    pub by: Vec<Column>,
    pub only: Filter,
    /// Row limit, capped at [`super::MAX_ROWS`], which is also the default.
    pub limit: Option<usize>,
}

/// Totals of a stretch and group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesRow {
    /// Start of the stretch; `None` if the query has a single one.
    pub start_ms: Option<u64>,
    /// Names of the group, with the totals.
    pub usage: UsageRow,
    /// Requests whose conversation was sent with fewer tokens than received.
    pub shortened: u64,
    /// Requests by their time until the first byte, and by their whole time.
    pub first_byte: [u64; BANDS],
    pub total: [u64; BANDS],
}

impl SeriesQuery {
    /// Returns the conditions on requests.
    pub(crate) fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::default();
        conditions.add_span(Some(self.from_ms), Some(self.until_ms));
        conditions.add_filter(&self.only);
        conditions
    }

    /// Returns the whole statement. Columns: the stretch, if any, the names, counts, large sums,
    /// details.
    pub(crate) fn sql(&self, conditions: &Conditions) -> String {
        let every = self.every_ms.map(|every_ms| every_ms.max(1));
        let slot = every.map(|every| format!("begun_ms - begun_ms % {every}"));
        let name = |column: &Column| match column {
            Column::Tenant | Column::Model => column.sql().to_owned(),
            Column::Day => format!("begun_ms / {}", super::DAY_MS),
            _ => format!("coalesce({}, '')", column.sql()),
        };
        let groups: Vec<String> = slot.into_iter().chain(self.by.iter().map(name)).collect();
        let counts = count_columns().map(|sql| count(&sql));
        let larges = SUM_COLUMNS.map(|column| large(&format!("coalesce({column}, 0)")));
        let details = details().into_iter().map(|sql| count(&sql));
        let columns = groups.iter().cloned().chain(counts).chain(larges).chain(details);
        let group: Vec<String> = (1..=groups.len()).map(|place| place.to_string()).collect();
        let first: &[&str] = if every.is_some() { &["1"] } else { &[] };
        let most = &["sum(coalesce(cost_nano_usd, 0) / 1000) DESC", "count(*) DESC"];
        let names: Vec<&str> = group.iter().map(String::as_str).collect();
        format!(
            "SELECT {columns} FROM weir_request {conditions} {group} HAVING count(*) > 0
             ORDER BY {order} LIMIT {limit}",
            columns = columns.collect::<Vec<_>>().join(", "),
            conditions = conditions.to_sql(),
            group = match names.is_empty() {
                true => String::new(),
                false => format!("GROUP BY {}", names.join(", ")),
            },
            order = [first, most, &names].concat().join(", "),
            limit = row_limit(self.limit),
        )
    }
}

/// Returns the columns that count requests, as SQL over a request's row.
pub(super) fn count_columns() -> [String; COUNT_COLUMNS.len()] {
    let is = |flag: Flags| format!("CASE WHEN flags & {} <> 0 THEN 1 ELSE 0 END", flag.0);
    let replaced = Flags::REPLACED.0;
    [
        format!("CASE WHEN flags & {replaced} <> 0 THEN 0 ELSE 1 END"),
        format!(
            "CASE WHEN status >= 200 AND status < 300 OR flags & {replaced} <> 0 THEN 0 ELSE 1 END"
        ),
        is(Flags::ESTIMATED),
        is(Flags::PARTLY_PRICED),
        is(Flags::UNPRICED),
    ]
}

/// Returns the details as SQL over a request's row.
fn details() -> Vec<String> {
    let replaced = Flags::REPLACED.0;
    let mut details = vec![format!(
        "CASE WHEN sent_tokens < received_tokens AND flags & {replaced} = 0 THEN 1 ELSE 0 END"
    )];
    for column in LATENCIES {
        for band in 0..BANDS {
            let from = band.checked_sub(1).map_or(0, |before| BAND_ENDS_MS[before]);
            let end = BAND_ENDS_MS.get(band).map(|end| format!(" AND {column} < {end}"));
            let end = end.unwrap_or_default();
            details.push(format!("CASE WHEN {column} >= {from}{end} THEN 1 ELSE 0 END"));
        }
    }
    details
}

/// Estimates the latency below which a share of the requests ended, in milliseconds: linear inside
/// a band. `None` without requests.
pub fn quantile_ms(bands: &[u64; BANDS], share: f64) -> Option<u64> {
    let all: u64 = bands.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = share.clamp(0.0, 1.0) * all as f64;
    let mut below = 0.0;
    for (band, count) in bands.iter().enumerate() {
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            let from = band.checked_sub(1).map_or(0, |before| BAND_ENDS_MS[before]) as f64;
            // The open band has no end: its start is a lower bound.
            let end = BAND_ENDS_MS.get(band).map_or(from, |end| *end as f64);
            return Some((from + (end - from) * (wanted - below) / count).round() as u64);
        }
        below += count;
    }
    BAND_ENDS_MS.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_estimated_inside_their_band() {
        let mut bands = [0; BANDS];
        assert_eq!(quantile_ms(&bands, 0.5), None);
        // From 100 to 200 ms.
        bands[3] = 10;
        assert_eq!(quantile_ms(&bands, 0.5), Some(150));
        assert_eq!(quantile_ms(&bands, 1.0), Some(200));
        bands[BANDS - 1] = 10;
        assert_eq!(quantile_ms(&bands, 0.5), Some(200));
        assert_eq!(quantile_ms(&bands, 0.99), BAND_ENDS_MS.last().copied());
    }
}
