//! Days and months in UTC, as people write them and as they are counted from 1970. Reads no clock.

/// The milliseconds of a day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// The last year that is read; days of later ones are nobody's.
const MAX_YEAR: u64 = 9999;

/// Year, month and day of so many days after 1970 began, by the Gregorian calendar.
pub fn date(days: u64) -> (u64, u64, u64) {
    // Years are taken to begin in March, so that the leap day is their last; 719 468 days lie
    // between March of the year 0 and 1970.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Days from 1970 to a date from 1970 on; `None` where there is no such date.
pub fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=MAX_YEAR).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let year_from_march = if month <= 2 { year - 1 } else { year };
    let month_from_march = if month <= 2 { month + 9 } else { month - 3 };
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leaps = year_from_march / 4 - year_from_march / 100 + year_from_march / 400;
    let days = (365 * year_from_march + leaps + of_year).checked_sub(719_468)?;
    // A day that its month has not comes out as one of the next.
    (date(days) == (year, month, day)).then_some(days)
}

/// A day counted from 1970, as `2026-01-31`.
pub fn shown_day(day: u64) -> String {
    let (year, month, day) = date(day);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Reads `2026-01-31`, counted from 1970.
pub fn read_day(text: &str) -> Option<u64> {
    let mut parts = text.split('-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() { None } else { days(year, month, day) }
}

/// Reads `2026-01`: its first day, and the first day of the next month, counted from 1970.
pub fn read_month(text: &str) -> Option<(u64, u64)> {
    let (year, month) = text.split_once('-')?;
    let (year, month) = (number(year)?, number(month)?);
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    Some((days(year, month, 1)?, days(next.0, next.1, 1)?))
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
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
    fn a_day_is_shown_as_it_is_read() {
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
