//! Times and durations as people write them. Reads no clock.

use weir_store::budget::calendar::{DAY_MS, shown_day};

const SECOND_MS: u64 = 1000;
/// About a century; a longer duration is meant to be unlimited.
const MAX_SPAN_MS: u64 = 36_500 * DAY_MS;

/// Parses a duration such as `30d`, `12h`, `90m` or `45s`, in milliseconds.
pub(super) fn span_ms(text: &str) -> Result<u64, String> {
    let wanted = || format!("{text:?} is not a duration; write one such as 30d, 12h, 90m or 45s");
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

/// Formats a time (milliseconds since 1970) as `2026-01-31 08:30`, in UTC.
pub(super) fn moment(moment_ms: u64) -> String {
    let minutes = moment_ms / (60 * SECOND_MS);
    let day = shown_day(moment_ms / DAY_MS);
    format!("{day} {:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_follow_the_calendar() {
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
