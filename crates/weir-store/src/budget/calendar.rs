//! UTC calendar arithmetic: dates in text form and as days counted from 1970. Reads no clock.

use jiff::ToSpan;
use jiff::civil::Date;

/// Milliseconds per day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// First day of the count.
const EPOCH: Date = jiff::civil::date(1970, 1, 1);

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
