//! Time windows of budgets: calendar periods, rolling periods, or all time. Reads no clock: the
//! time and the time zone are arguments.
//!
//! Spending is collected in buckets, identified by their first millisecond. A calendar window is
//! one bucket. A rolling window has several and counts a partly expired bucket in full. So it never
//! admits more than its limit, and frees amounts at most one bucket length late.

use std::fmt;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{SpanRound, Timestamp, ToSpan, Unit, Zoned};

use super::calendar::DAY_MS;

const MINUTE_MS: u64 = 60 * 1000;
/// Milliseconds per hour.
const HOUR_MS: u64 = 60 * 60 * 1000;
/// Maximum length of a rolling window, in hours or days.
const MAX_HOURS: u32 = 168;
const MAX_DAYS: u32 = 366;
/// Number of buckets in a window of hours.
const BUCKETS: u64 = 24;

/// Time window of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Window {
    /// Bounds the speed of spending: an agent in a loop stops after a minute's amount.
    Minute,
    Hour,
    Day,
    /// Starts on Monday (ISO 8601).
    Week,
    Month,
    /// All time that totals are kept.
    Total,
    /// The last hours, rolling.
    Hours(u32),
    /// The last UTC days, rolling.
    Days(u32),
}

/// The part of a window that counts at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First millisecond of the current bucket.
    pub bucket_ms: u64,
    /// First bucket that counts.
    pub first_ms: u64,
    /// Time from a bucket's start until it stops counting; `None` if it always counts.
    pub lifetime_ms: Option<u64>,
}

impl Window {
    /// Parses `minute`, `hour`, `day`, `week`, `month`, `total`, `24h` or `30d`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let fixed = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Total];
        if let Some(window) = fixed.into_iter().find(|window| window.to_string() == text) {
            return Ok(window);
        }
        let number = |end: char| text.strip_suffix(end).and_then(|digits| digits.parse().ok());
        match (number('h'), number('d')) {
            (Some(hours), _) if (1..=MAX_HOURS).contains(&hours) => Ok(Self::Hours(hours)),
            (_, Some(days)) if (1..=MAX_DAYS).contains(&days) => Ok(Self::Days(days)),
            _ => Err(format!(
                "{text:?} is not a window; write minute, hour, day, week, month or total, or a \
                 rolling time: from 1h to {MAX_HOURS}h, from 1d to {MAX_DAYS}d"
            )),
        }
    }

    /// Returns the span that counts at `now_ms`.
    pub fn span(self, zone: &TimeZone, now_ms: u64) -> Span {
        match self {
            Self::Total => Span { bucket_ms: 0, first_ms: 0, lifetime_ms: None },
            Self::Hours(hours) => {
                let span_ms = u64::from(hours) * HOUR_MS;
                rolling(span_ms, span_ms / BUCKETS, now_ms)
            }
            Self::Days(days) => rolling(u64::from(days) * DAY_MS, DAY_MS, now_ms),
            Self::Minute | Self::Hour | Self::Day | Self::Week | Self::Month => {
                let (start_ms, end_ms) = self.of_calendar(zone, now_ms);
                let lifetime_ms = Some(end_ms.saturating_sub(start_ms));
                Span { bucket_ms: start_ms, first_ms: start_ms, lifetime_ms }
            }
        }
    }

    /// Returns when the whole window of `span` ends; `None` if it rolls or never ends.
    pub fn ends_ms(self, span: &Span) -> Option<u64> {
        match self {
            Self::Minute | Self::Hour | Self::Day | Self::Week | Self::Month => {
                span.lifetime_ms.map(|lifetime_ms| span.bucket_ms.saturating_add(lifetime_ms))
            }
            Self::Hours(_) | Self::Days(_) | Self::Total => None,
        }
    }

    /// Returns the bucket length for totals in a store; `None` for a single bucket.
    pub fn bucket_length_ms(self) -> Option<u64> {
        match self {
            Self::Hours(hours) => Some(u64::from(hours) * HOUR_MS / BUCKETS),
            Self::Days(_) => Some(DAY_MS),
            _ => None,
        }
    }

    /// Returns the start of the calendar period that contains `now_ms`, and the start of the next.
    fn of_calendar(self, zone: &TimeZone, now_ms: u64) -> (u64, u64) {
        if self == Self::Minute {
            let start_ms = now_ms - now_ms % MINUTE_MS;
            return (start_ms, start_ms.saturating_add(MINUTE_MS));
        }
        let now = i64::try_from(now_ms).ok().and_then(|now| Timestamp::from_millisecond(now).ok());
        let bounds = now.and_then(|now| self.bounds(&now.to_zoned(zone.clone())).ok());
        // Times beyond the calendar's range, which no real clock shows, use UTC days.
        let (start, end) = bounds.unwrap_or_else(|| {
            let start_ms = now_ms - now_ms % DAY_MS;
            (start_ms, start_ms.saturating_add(DAY_MS))
        });
        // A period always contains `now_ms`, even across a zone's clock changes.
        (start.min(now_ms), end.max(now_ms.saturating_add(1)))
    }

    fn bounds(self, now: &Zoned) -> Result<(u64, u64), jiff::Error> {
        let day = now.start_of_day()?;
        let (start, end) = match self {
            Self::Hour => {
                // Whole hours passed since midnight: a zone may have a half-hour offset.
                let passed = now.since(&day)?.round(
                    SpanRound::new()
                        .largest(Unit::Hour)
                        .smallest(Unit::Hour)
                        .mode(jiff::RoundMode::Trunc),
                )?;
                let start = day.checked_add(passed)?;
                let end = start.checked_add(1.hour())?;
                (start, end)
            }
            Self::Week => {
                let since = i64::from(now.weekday().since(Weekday::Monday));
                let start = day.checked_sub(since.days())?.start_of_day()?;
                let end = start.checked_add(1.week())?.start_of_day()?;
                (start, end)
            }
            Self::Month => {
                let start = now.first_of_month()?.start_of_day()?;
                let end = start.checked_add(1.month())?.start_of_day()?;
                (start, end)
            }
            _ => {
                let end = day.checked_add(1.day())?.start_of_day()?;
                (day, end)
            }
        };
        let ms = |moment: &Zoned| u64::try_from(moment.timestamp().as_millisecond()).unwrap_or(0);
        Ok((ms(&start), ms(&end)))
    }
}

fn rolling(span_ms: u64, bucket_length_ms: u64, now_ms: u64) -> Span {
    let bucket_of = |moment_ms: u64| moment_ms - moment_ms % bucket_length_ms;
    Span {
        bucket_ms: bucket_of(now_ms),
        first_ms: bucket_of(now_ms.saturating_sub(span_ms)),
        lifetime_ms: Some(span_ms + bucket_length_ms),
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minute => f.write_str("minute"),
            Self::Hour => f.write_str("hour"),
            Self::Day => f.write_str("day"),
            Self::Week => f.write_str("week"),
            Self::Month => f.write_str("month"),
            Self::Total => f.write_str("total"),
            Self::Hours(hours) => write!(f, "{hours}h"),
            Self::Days(days) => write!(f, "{days}d"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(text: &str) -> u64 {
        let moment: Timestamp = text.parse().expect("a moment");
        u64::try_from(moment.as_millisecond()).expect("after 1970")
    }

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).expect("it is shipped")
    }

    #[test]
    fn windows_of_the_calendar_begin_and_end_where_people_are() {
        for (window, name, now, start, end) in [
            (
                "minute",
                "Asia/Kolkata",
                "2026-11-22T11:59:59Z",
                "2026-11-22T11:59:00Z",
                "2026-11-22T12:00:00Z",
            ),
            ("hour", "UTC", "2026-11-22T11:59:59Z", "2026-11-22T11:00:00Z", "2026-11-22T12:00:00Z"),
            (
                "hour",
                "Asia/Kolkata",
                "2026-11-22T11:40:00Z",
                "2026-11-22T11:30:00Z",
                "2026-11-22T12:30:00Z",
            ),
            ("day", "UTC", "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"),
            (
                "day",
                "America/New_York",
                "2026-11-22T04:59:59Z",
                "2026-11-21T05:00:00Z",
                "2026-11-22T05:00:00Z",
            ),
            // The day on which clocks are set back has 25 hours.
            (
                "day",
                "Europe/Berlin",
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            ("week", "UTC", "2026-11-22T11:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
            ("week", "UTC", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (
                "month",
                "UTC",
                "2026-12-31T23:59:59Z",
                "2026-12-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
            ),
            (
                "month",
                "Pacific/Auckland",
                "2026-11-30T11:00:00Z",
                "2026-11-30T11:00:00Z",
                "2026-12-31T11:00:00Z",
            ),
        ] {
            let span = Window::parse(window).expect("a window").span(&zone(name), ms(now));
            let (start, end) = (ms(start), ms(end));
            let expected =
                Span { bucket_ms: start, first_ms: start, lifetime_ms: Some(end - start) };
            assert_eq!(span, expected, "{window} in {name} at {now}");
        }
    }

    #[test]
    fn a_repeated_hour_counts_as_two() {
        let berlin = zone("Europe/Berlin");
        let starts = ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]
            .map(|now| Window::Hour.span(&berlin, ms(now)).bucket_ms);
        assert_eq!(starts, [ms("2026-10-25T00:00:00Z"), ms("2026-10-25T01:00:00Z")]);
    }

    #[test]
    fn rolling_windows_count_partly_expired_buckets() {
        let now = ms("2026-11-22T11:10:00Z");
        let day = Window::parse("24h").expect("a window").span(&TimeZone::UTC, now);
        assert_eq!(day.bucket_ms, ms("2026-11-22T11:00:00Z"));
        assert_eq!(day.first_ms, ms("2026-11-21T11:00:00Z"));
        assert_eq!(day.lifetime_ms, Some(25 * HOUR_MS));
        let month = Window::parse("30d").expect("a window").span(&TimeZone::UTC, now);
        assert_eq!(month.first_ms, ms("2026-10-23T00:00:00Z"));
        assert_eq!(Window::Total.span(&TimeZone::UTC, now).lifetime_ms, None);
    }

    #[test]
    fn windows_are_read_as_they_are_shown_and_nothing_else_is() {
        for text in ["minute", "hour", "day", "week", "month", "total", "1h", "168h", "1d", "366d"]
        {
            assert_eq!(Window::parse(text).map(|window| window.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "year", "0h", "169h", "0d", "367d", "-1d", "1.5h", "h", "99999999999d"] {
            assert!(Window::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn now_lies_in_a_bucket_that_counts_and_ends_later(
            now_ms in any::<u64>(),
            window in prop::sample::select(vec![
                Window::Minute, Window::Hour, Window::Day, Window::Week, Window::Month, Window::Total,
                Window::Hours(1), Window::Hours(5), Window::Hours(168), Window::Days(1), Window::Days(366),
            ]),
            name in prop::sample::select(vec!["UTC", "Europe/Berlin", "Pacific/Apia", "Asia/Kathmandu"]),
        ) {
            for now_ms in [now_ms, now_ms % (1 << 43)] {
                let span = window.span(&zone(name), now_ms);
                prop_assert!(span.first_ms <= span.bucket_ms && span.bucket_ms <= now_ms);
                if let Some(lifetime_ms) = span.lifetime_ms {
                    prop_assert!(span.bucket_ms.saturating_add(lifetime_ms) > now_ms || now_ms == u64::MAX);
                }
            }
        }
    }
}
