//! Calendar arithmetic: dates in text form, as days counted from 1970, and in a time zone. Reads no clock.

use std::fmt::Write as _;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// Milliseconds per day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// First day of the count.
const EPOCH: Date = jiff::civil::date(1970, 1, 1);
/// Clock changes of a zone that a query distinguishes: those of 32 years.
const MAX_CLOCK_CHANGES: usize = 64;

/// Formats a day counted from 1970 as `2026-01-31`. Days after 9999-12-31 show as that day.
pub fn shown_day(day: u64) -> String {
    let date = i32::try_from(day).ok().and_then(|days| EPOCH.checked_add(days.days()).ok());
    date.unwrap_or(Date::MAX).to_string()
}

/// Parses `2026-01-31` into a day counted from 1970; `None` if the date does not exist.
pub fn read_day(text: &str) -> Option<u64> {
    let mut parts = text.split('-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() { None } else { days(date(year, month, day)?) }
}

/// Parses `2026-01` into the first days of that month and of the next, counted from 1970.
pub fn read_month(text: &str) -> Option<(u64, u64)> {
    let (year, month) = text.split_once('-')?;
    let first = date(number(year)?, number(month)?, 1)?;
    Some((days(first)?, days(first.checked_add(1.month()).ok()?)?))
}

/// Returns the moment at which `day` begins in `zone`, in milliseconds since 1970.
pub fn start_of_day_ms(zone: &TimeZone, day: u64) -> u64 {
    let date = i32::try_from(day).ok().and_then(|days| EPOCH.checked_add(days.days()).ok());
    let start = date.and_then(|date| date.to_zoned(zone.clone()).ok());
    let start_ms = start.and_then(|start| u64::try_from(start.timestamp().as_millisecond()).ok());
    start_ms.unwrap_or(day.saturating_mul(DAY_MS))
}

/// Returns the SQL of a column with milliseconds since 1970, moved to the clock of `zone`. Correct for
/// 32 years from `from_ms` on.
pub(crate) fn local_ms_sql(zone: &TimeZone, column: &str, from_ms: u64) -> String {
    let from = i64::try_from(from_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let mut since = from.unwrap_or(Timestamp::UNIX_EPOCH);
    let moved = |since| format!("{column} + {}", i64::from(zone.to_offset(since).seconds()) * 1000);
    let mut cases = String::new();
    for change in zone.following(since).take(MAX_CLOCK_CHANGES) {
        let until = change.timestamp();
        let _ = write!(cases, " WHEN {column} < {} THEN {}", until.as_millisecond(), moved(since));
        since = until;
    }
    match cases.is_empty() {
        true => format!("({})", moved(since)),
        false => format!("(CASE{cases} ELSE {} END)", moved(since)),
    }
}

fn date(year: i16, month: i16, day: i16) -> Option<Date> {
    Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}

/// Returns the days from 1970 to `date`; `None` if it is earlier.
fn days(date: Date) -> Option<u64> {
    u64::try_from((date - EPOCH).get_days()).ok()
}

fn number(text: &str) -> Option<i16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed() {
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("1970-02-01", Some(31)),
            ("2000-02-29", Some(11_016)),
            ("2000-03-01", Some(11_017)),
            ("2025-12-31", Some(20_453)),
            ("2026-11-22", Some(20_779)),
            ("2100-02-29", None),
            ("2026-02-30", None),
            ("2026-13-01", None),
            ("2026-00-01", None),
            ("2026-01-00", None),
            ("1969-12-31", None),
            ("10000-01-01", None),
            ("2026-1-1", Some(20_454)),
            ("2026-01", None),
            ("2026-01-01-01", None),
            ("+2026-01-01", None),
            ("99999999999999999999-01-01", None),
            ("", None),
        ] {
            assert_eq!(read_day(text), expected, "{text}");
        }
    }

    #[test]
    fn a_zone_moves_the_days() {
        let berlin = TimeZone::get("Europe/Berlin").expect("it is shipped");
        let day = |text| read_day(text).expect("it exists");
        let hours = |zone: &TimeZone, text| {
            day(text) * 24 - start_of_day_ms(zone, day(text)) / (60 * 60 * 1000)
        };
        assert_eq!((hours(&berlin, "2026-01-31"), hours(&berlin, "2026-07-31")), (1, 2));
        assert_eq!(hours(&TimeZone::UTC, "2026-07-31"), 0);
        let sql = local_ms_sql(&berlin, "at", start_of_day_ms(&berlin, day("2026-01-01")));
        let summer = "(CASE WHEN at < 1774746000000 THEN at + 3600000 \
                      WHEN at < 1792890000000 THEN at + 7200000 ";
        assert!(sql.starts_with(summer), "{sql}");
        assert_eq!(local_ms_sql(&TimeZone::UTC, "at", 0), "(at + 0)");
    }

    #[test]
    fn shown_days_round_trip() {
        for day in (0..2_900_000).step_by(97) {
            assert_eq!(read_day(&shown_day(day)), Some(day));
        }
    }

    #[test]
    fn a_month_ends_where_the_next_begins() {
        let day = |text| read_day(text).expect("a date");
        assert_eq!(read_month("2026-11"), Some((day("2026-11-01"), day("2026-12-01"))));
        assert_eq!(read_month("2026-12"), Some((day("2026-12-01"), day("2027-01-01"))));
        for text in ["2026", "2026-13", "2026-0", "x-1", "2026-01-01"] {
            assert_eq!(read_month(text), None, "{text}");
        }
    }
}
