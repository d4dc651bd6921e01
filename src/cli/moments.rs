//! Moments and spans of time as people write them. Reads no clock.

const SECOND_MS: u64 = 1000;
const DAY_MS: u64 = 24 * 60 * 60 * SECOND_MS;
/// About a century; what is longer is meant to be for ever.
const MAX_SPAN_MS: u64 = 36_500 * DAY_MS;

/// Reads a span such as `30d`, `12h`, `90m` or `45s`, in milliseconds.
pub fn span_ms(text: &str) -> Result<u64, String> {
    let wanted = || format!("{text:?} is no span of time; write one such as 30d, 12h, 90m or 45s");
    let unit = text.chars().last().ok_or_else(wanted)?;
    let unit_ms = match unit {
        'd' => DAY_MS,
        'h' => 60 * 60 * SECOND_MS,
        'm' => 60 * SECOND_MS,
        's' => SECOND_MS,
        _ => return Err(wanted()),
    };
    let number = text[..text.len() - unit.len_utf8()].parse::<u32>().map_err(|_| wanted())?;
    let span_ms = u64::from(number) * unit_ms;
    if span_ms > MAX_SPAN_MS { Err(wanted()) } else { Ok(span_ms) }
}

/// A moment (milliseconds since 1970) as `2026-01-31 08:30`, in UTC.
pub fn moment(moment_ms: u64) -> String {
    let minutes = moment_ms / (60 * SECOND_MS);
    let (year, month, day) = date(moment_ms / DAY_MS);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

/// Year, month and day of so many days after 1970 began.
fn date(days: u64) -> (u64, u64, u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_by_the_calendar() {
        for (moment_ms, expected) in [
            (0, "1970-01-01 00:00"),
            (951_782_399_999, "2000-02-28 23:59"),
            (951_782_400_000, "2000-02-29 00:00"),
            (951_868_800_000, "2000-03-01 00:00"),
            (1_767_225_599_999, "2025-12-31 23:59"),
            (1_767_225_600_000, "2026-01-01 00:00"),
            (4_107_542_400_000, "2100-03-01 00:00"),
        ] {
            assert_eq!(moment(moment_ms), expected);
        }
    }

    #[test]
    fn spans_have_a_unit() {
        for (text, expected) in [
            ("30d", Some(30 * DAY_MS)),
            ("12h", Some(DAY_MS / 2)),
            ("90m", Some(5_400_000)),
            ("0s", Some(0)),
            ("30", None),
            ("d", None),
            ("-1d", None),
            ("1w", None),
            ("1é", None),
            ("", None),
            ("36501d", None),
        ] {
            assert_eq!(span_ms(text).ok(), expected, "{text}");
        }
    }
}
