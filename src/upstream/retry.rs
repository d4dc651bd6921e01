//! Retry decisions: whether a failed request is sent again, when, or to another upstream. Pure:
//! facts in, decision out.

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

/// Outcome of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection was made; nothing was sent.
    Connect,
    /// The connection closed before any part of an answer arrived.
    Closed,
    /// Anything else: a timeout, a broken answer, an incomplete caller's body.
    Other,
}

/// Facts about one failed attempt.
#[derive(Debug, Clone, Copy)]
pub struct FailedAttempt {
    pub failure: Failure,
    /// A connection was opened for this very request.
    pub new_connection: bool,
    /// The request can be sent again, byte for byte.
    pub replayable: bool,
    /// Time from the start of sending to the failure.
    pub waited_ms: u64,
}

/// Longest that the close of an idle connection takes to arrive. After that the upstream has most likely worked on
/// the request.
const MAX_CLOSE_MS: u64 = 1000;

/// Whether to send the request once more, on a new connection.
///
/// A pooled connection that closes soon was most often closed by the upstream before the request reached
/// it. On a new connection, and later, this does not hold: the upstream may have acted on the request, so it
/// is not sent twice without a row of its own.
pub fn sends_again(attempt: FailedAttempt) -> bool {
    let is_closed = attempt.failure == Failure::Closed && attempt.waited_ms <= MAX_CLOSE_MS;
    is_closed && !attempt.new_connection && attempt.replayable
}

/// First pause before a retry, and the maximum that it grows to.
const FIRST_WAIT_MS: u64 = 500;
const LONGEST_WAIT_MS: u64 = 8000;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Outcome of a request at an upstream, as far as retries depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// No connection.
    Unconnected,
    /// The connection ended, or sent something that is not HTTP, instead of an answer.
    Unanswered,
    /// No answer in time.
    Silent,
    /// An answer.
    Status(u16),
}

/// Retry instructions in an answer's headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryAdvice {
    /// Delay from `retry-after-ms` or `retry-after`.
    pub wait_ms: Option<u64>,
    /// `x-should-retry: false`: no retry.
    pub is_in_vain: bool,
}

/// Number of retries and maximum delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryLimits {
    pub max_retries: u32,
    pub max_wait_ms: u64,
}

impl Tried {
    /// Whether the failure may be transient, so that another attempt is worthwhile. The caller's
    /// request is not the cause then.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Unconnected | Self::Unanswered | Self::Silent => true,
            Self::Status(status) => {
                matches!(status, 408 | 409 | 429) || (status >= 500 && !matches!(status, 501 | 505))
            }
        }
    }

    /// Whether the upstream itself has a problem. A rate limit is not one.
    pub fn is_trouble(self) -> bool {
        match self {
            Self::Unconnected | Self::Unanswered | Self::Silent => true,
            Self::Status(status) => status >= 500 && !matches!(status, 501 | 505),
        }
    }
}

impl RetryAdvice {
    /// Reads an answer's headers at `now_ms` (since 1970).
    pub fn read(headers: &HeaderMap, now_ms: u64) -> Self {
        let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
        let exact = text(&RETRY_AFTER_MS).and_then(|text| milliseconds(text, 1.0));
        let wait_ms = exact.or_else(|| {
            let text = text(&RETRY_AFTER)?;
            milliseconds(text, 1000.0).or_else(|| {
                let at = jiff::fmt::rfc2822::DateTimeParser::new()
                    .relaxed_weekday(true)
                    .parse_timestamp(text)
                    .ok()?;
                let at_ms = u64::try_from(at.as_millisecond()).ok()?;
                Some(at_ms.saturating_sub(now_ms))
            })
        });
        Self { wait_ms, is_in_vain: text(&SHOULD_RETRY) == Some("false") }
    }
}

/// Parses a decimal number of units of `unit_ms` milliseconds.
fn milliseconds(text: &str, unit_ms: f64) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let ms = text.parse::<f64>().ok().filter(|_| is_plain)? * unit_ms;
    // A number out of range is longer than any wait.
    Some(ms.ceil() as u64)
}

/// Returns the delay before the next attempt after `retries` retries; `None` to give up. `jitter`
/// is a random number, new for each call.
///
/// After silence, nothing is sent to the same upstream again: it may still be at work.
pub fn wait_ms(
    retries: u32,
    tried: Tried,
    advice: RetryAdvice,
    limits: RetryLimits,
    jitter: u32,
) -> Option<u64> {
    let is_worth_it = tried.may_pass() && tried != Tried::Silent && !advice.is_in_vain;
    if !is_worth_it || retries >= limits.max_retries {
        return None;
    }
    let wait_ms = advice.wait_ms.unwrap_or_else(|| {
        let grown_ms = FIRST_WAIT_MS.saturating_mul(1 << retries.min(16)).min(LONGEST_WAIT_MS);
        let bound_ms = grown_ms.min(limits.max_wait_ms);
        (u64::from(jitter) * (bound_ms + 1)) >> 32
    });
    (wait_ms <= limits.max_wait_ms).then_some(wait_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pooled_connection_that_closed_is_worth_another_try() {
        let rows = [
            (Failure::Closed, false, true, 1000, true),
            (Failure::Closed, false, true, 1001, false),
            (Failure::Closed, true, true, 0, false),
            (Failure::Closed, false, false, 0, false),
            (Failure::Connect, true, true, 0, false),
            (Failure::Connect, false, true, 0, false),
            (Failure::Other, false, true, 0, false),
        ];
        for (failure, new_connection, replayable, waited_ms, again) in rows {
            let attempt = FailedAttempt { failure, new_connection, replayable, waited_ms };
            assert_eq!(sends_again(attempt), again, "{attempt:?}");
        }
    }

    const LIMITS: RetryLimits = RetryLimits { max_retries: 3, max_wait_ms: 30_000 };

    #[test]
    fn what_may_pass_is_sent_again_and_nothing_else() {
        let plain = RetryAdvice::default();
        let rows = [
            (Tried::Unconnected, true, true, true),
            (Tried::Unanswered, true, true, true),
            (Tried::Silent, false, true, true),
            (Tried::Status(200), false, false, false),
            (Tried::Status(400), false, false, false),
            (Tried::Status(401), false, false, false),
            (Tried::Status(404), false, false, false),
            (Tried::Status(408), true, true, false),
            (Tried::Status(409), true, true, false),
            (Tried::Status(413), false, false, false),
            (Tried::Status(429), true, true, false),
            (Tried::Status(500), true, true, true),
            (Tried::Status(501), false, false, false),
            (Tried::Status(503), true, true, true),
            (Tried::Status(505), false, false, false),
            (Tried::Status(529), true, true, true),
        ];
        for (tried, again, elsewhere, trouble) in rows {
            assert_eq!(wait_ms(0, tried, plain, LIMITS, 0).is_some(), again, "{tried:?}");
            assert_eq!(tried.may_pass(), elsewhere, "{tried:?}");
            assert_eq!(tried.is_trouble(), trouble, "{tried:?}");
            let in_vain = RetryAdvice { is_in_vain: true, ..plain };
            assert_eq!(wait_ms(0, tried, in_vain, LIMITS, 0), None);
        }
    }

    #[test]
    fn pauses_grow_to_their_bound_with_full_jitter() {
        let wait = |retries, jitter| {
            let limits = RetryLimits { max_retries: 10, ..LIMITS };
            wait_ms(retries, Tried::Status(503), RetryAdvice::default(), limits, jitter)
        };
        for (retries, longest_ms) in
            [(0, 500), (1, 1000), (2, 2000), (3, 4000), (4, 8000), (9, 8000)]
        {
            assert_eq!(wait(retries, 0), Some(0));
            assert_eq!(wait(retries, u32::MAX), Some(longest_ms));
            assert_eq!(wait(retries, 1 << 31), Some(longest_ms / 2));
        }
        assert_eq!(wait(10, 0), None);
        let short = RetryLimits { max_retries: 1, max_wait_ms: 7 };
        assert_eq!(
            wait_ms(0, Tried::Unconnected, RetryAdvice::default(), short, u32::MAX),
            Some(7)
        );
    }

    #[test]
    fn what_an_answer_says_of_waiting_goes_before_as_far_as_patience_goes() {
        let now_ms = 784_111_777_000; // Sun, 06 Nov 1994 08:49:37 GMT
        type Row<'a> = (&'a [(&'static str, &'a str)], Option<u64>, Option<u64>);
        let rows: [Row<'_>; 11] = [
            (&[("retry-after", "2")], Some(2000), Some(2000)),
            (&[("retry-after", "0")], Some(0), Some(0)),
            (&[("retry-after", "1.5")], Some(1500), Some(1500)),
            (&[("retry-after", "30")], Some(30_000), Some(30_000)),
            (&[("retry-after", "31")], Some(31_000), None),
            (&[("retry-after", "99999999999999999999")], Some(u64::MAX), None),
            (&[("retry-after", "-1")], None, Some(0)),
            (&[("retry-after", "soon")], None, Some(0)),
            (&[("retry-after", "9"), ("retry-after-ms", "250")], Some(250), Some(250)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")], Some(3000), Some(3000)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")], Some(0), Some(0)),
        ];
        for (headers, advised_ms, waited_ms) in rows {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(*name, value.parse().expect("a value"));
            }
            let advice = RetryAdvice::read(&map, now_ms);
            assert_eq!(advice.wait_ms, advised_ms, "{headers:?}");
            let waited = wait_ms(0, Tried::Status(429), advice, LIMITS, 0);
            assert_eq!(waited, waited_ms, "{headers:?}");
        }
        let mut map = HeaderMap::new();
        map.insert(SHOULD_RETRY, http::HeaderValue::from_static("false"));
        assert!(RetryAdvice::read(&map, now_ms).is_in_vain);
        map.insert(SHOULD_RETRY, http::HeaderValue::from_static("true"));
        assert!(!RetryAdvice::read(&map, now_ms).is_in_vain);
    }
}
