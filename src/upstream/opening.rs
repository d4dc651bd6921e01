//! Beginning of an answer: read before its head is passed on, so that an answer that failed before its
//! first content can be replaced. Decides nothing about attempts.

use std::time::Duration;

use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use reqwest::Url;
use tokio::time::{Instant, timeout, timeout_at};

use super::{AnswerError, Inbound, SendError};
use weir_engine::wire::usage::{MAX_OPENING_BYTES, Meter, Metered, Opening, Verdict};

/// Maximum time for which the beginning of an answer is held back. Reasoning models announce an answer long
/// before its content, and callers give up on a head that does not come.
const MAX_HELD: Duration = Duration::from_secs(30);

/// Stands for the address that a caller has asked, to see whether a redirect leaves it. No host has this name.
const ASKED: &str = "http://asked.invalid/";
/// Maximum time for the rest of an answer that another one replaces.
const MAX_REST: Duration = Duration::from_secs(2);

impl Inbound {
    /// Returns the origin to which the answer redirects, if a caller that follows leaves the address that it
    /// has asked. No path and no query, which may hold a credential.
    pub fn leads_away(&self) -> Option<String> {
        let asked = Url::parse(ASKED).ok().filter(|_| self.status.is_redirection())?;
        self.headers.get_all(LOCATION).iter().find_map(|location| {
            match asked.join(&String::from_utf8_lossy(location.as_bytes())) {
                Ok(led) if led.origin() == asked.origin() => None,
                Ok(led) => Some(led.origin().ascii_serialization()),
                Err(_) => Some("an address that cannot be read".to_owned()),
            }
        })
    }

    /// Reads an answer until it has begun or failed, and records a failure. An answer without content and
    /// without an error for its caller is none: it is the error returned.
    pub async fn open(&mut self) -> Result<(), SendError> {
        if !self.status.is_success() || self.headers.contains_key(CONTENT_ENCODING) {
            return Ok(());
        }
        let content_type = self.headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
        let mut opening = Opening::new(content_type.and_then(Result::ok));
        let mut fed_bytes = 0;
        let mut is_open = |seen: &[u8]| {
            opening.feed(&seen[fed_bytes..]);
            fed_bytes = seen.len();
            opening.is_over()
        };
        // An answer that has begun is held for a while only.
        let held_by = self.begins_by.min(Instant::now() + MAX_HELD);
        let reading = self.body.peek_until(MAX_OPENING_BYTES, &mut is_open);
        let mut is_late = timeout_at(held_by, reading).await.is_err();
        if is_late && held_by < self.begins_by {
            if !self.body.seen().is_empty() {
                return Ok(());
            }
            let reading = self.body.peek_until(MAX_OPENING_BYTES, |seen| !seen.is_empty());
            is_late = timeout_at(self.begins_by, reading).await.is_err();
        }
        let is_whole = self.body.is_seen_whole();
        let seen = self.body.seen();
        if !opening.is_over() && !is_whole && self.body.cut().is_none() {
            let is_nothing = opening.is_stream() || seen.trim_ascii().is_empty();
            let timeout_ms = self.first_byte_timeout_ms;
            return match is_late && is_nothing {
                true => Err(SendError::FirstByteTimeout { timeout_ms }),
                // An answer that has begun is passed on.
                false => Ok(()),
            };
        }
        let is_stream = opening.is_stream();
        match opening.finish(seen) {
            Verdict::Content => Ok(()),
            Verdict::Failed(failure) if failure.is_told => {
                self.failed = Some(failure.status);
                Ok(())
            }
            Verdict::Failed(_) => match self.body.cut() {
                None => Err(SendError::Empty),
                Some(_) if !is_stream => Ok(()),
                Some(AnswerError::Idle { timeout_ms }) => {
                    Err(SendError::Idle { timeout_ms: *timeout_ms })
                }
                Some(_) => Err(SendError::Closed),
            },
        }
    }

    /// Returns the facts of an answer that nobody gets, as far as it comes at once.
    pub async fn metered(&mut self) -> Metered {
        let content_type = self.headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
        let mut meter = Meter::new(content_type.and_then(Result::ok));
        if !self.headers.contains_key(CONTENT_ENCODING) {
            let _ = timeout(MAX_REST, self.body.peek(MAX_OPENING_BYTES)).await;
            meter.feed(self.body.seen());
        }
        meter.finish()
    }

    /// Whether the upstream accepted the request, as far as its answer has begun.
    pub fn is_accepted(&self) -> bool {
        self.status.is_success() && self.failed.is_none()
    }

    /// Returns its status; that of its error if it failed although it began as a success.
    pub fn outcome(&self) -> u16 {
        self.failed.unwrap_or(self.status.as_u16())
    }
}
