//! Call of the summariser: sends it, reads the answer within bounds, and accounts for it. Knows
//! nothing of the summarised content.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::time::{Instant, timeout};

use super::request::{self, AnswerText};
use crate::proxy::hold::account::{End, Ended, JournalEntry};
use crate::proxy::hold::journal::Journal;
use crate::proxy::upstreams::Upstream;
use crate::upstream::{Client, Inbound, Outbound, OutboundBody, ProviderKey, Target};
use weir_engine::wire::usage::{Meter, Metered};

/// Maximum size of an answer that is read.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Name of these calls in the journal: their route and action.
pub(super) const SUMMARY: &str = "summary";
/// Caller's headers that are forwarded if the call goes to the caller's own upstream: the
/// credentials that pay.
const CREDENTIALS: [HeaderName; 7] = [
    AUTHORIZATION,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
    USER_AGENT,
];

/// Reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// The summariser could not be reached, or broke off.
    Unreachable,
    /// It exceeded its timeout.
    Slow,
    /// It returned an error, for which it may have a word.
    Refused { status: u16, cause: Option<String>, wants_renamed: bool },
    /// Its answer did not end by itself, or is a refusal.
    Unfinished { cause: String },
    /// Its answer is invalid.
    Garbage,
    /// weir could not record the call, or may not make it.
    NotWritten,
}

impl CallFailure {
    /// Returns its name in the log and in the counters.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Slow => "slow",
            Self::Refused { .. } => "refused",
            Self::Unfinished { .. } => "unfinished",
            Self::Garbage => "garbage",
            Self::NotWritten => "not_written",
        }
    }

    /// Returns the status of an error.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns the summariser's own word for it.
    pub(super) fn cause(&self) -> Option<&str> {
        match self {
            Self::Refused { cause, .. } => cause.as_deref(),
            Self::Unfinished { cause } => Some(cause),
            _ => None,
        }
    }
}

/// Upstream of calls, and the credentials for it.
#[derive(Clone)]
pub(super) enum Line {
    /// The upstream of callers' own requests, with the same credentials.
    Callers(Arc<Upstream>),
    /// Its own upstream, with its key if it has one.
    Own(Client, Option<ProviderKey>),
}

impl Line {
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Callers(upstream) => &upstream.client,
            Self::Own(client, _) => client,
        }
    }

    /// Whether this is the upstream of callers' own requests.
    pub(super) fn is_callers(&self) -> bool {
        matches!(self, Self::Callers(_))
    }

    /// Returns the headers of a call for a caller whose request had `callers`.
    pub(super) fn headers(&self, callers: &HeaderMap, target: &Target) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self {
            Self::Callers(upstream) => {
                for name in &CREDENTIALS {
                    for value in callers.get_all(name) {
                        headers.append(name, value.clone());
                    }
                }
                upstream.put_own(&mut headers, target.endpoint());
            }
            Self::Own(_, Some(provider_key)) => {
                provider_key.put_into(&mut headers, target.endpoint())
            }
            Self::Own(_, None) => {}
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers
    }
}

/// Answer of a call, and its cost.
pub(super) struct Said {
    pub text: String,
    pub metered: Metered,
    pub cost_nano_usd: Option<u64>,
}

/// Sends `body` and reads the answer.
pub(super) async fn call(
    line: &Line,
    journal: &Arc<Journal>,
    entry: JournalEntry,
    (target, headers): (Target, HeaderMap),
    body: String,
    deadline: Duration,
) -> Result<Said, CallFailure> {
    let holding = journal.hold_counted(&entry).await.map_err(|_| CallFailure::NotWritten)?;
    let account = journal.open(entry, holding).await.map_err(|_| CallFailure::NotWritten)?;
    let begun = Instant::now();
    let outbound = Outbound {
        method: Method::POST,
        target,
        headers,
        body: OutboundBody::Bytes(Bytes::from(body)),
    };
    let mut status = None;
    let read = timeout(deadline, async {
        let inbound = line.client().send(outbound).await.map_err(|_| CallFailure::Unreachable)?;
        status = Some(inbound.status.as_u16());
        read(inbound).await
    });
    let (answer, metered) = match read.await {
        Ok(Ok((answer, metered))) => (Ok(answer), metered),
        Ok(Err(failure)) => (Err(failure), Metered::default()),
        Err(_) => (Err(CallFailure::Slow), Metered::default()),
    };
    let ended = Ended {
        end: match (&answer, status) {
            (Ok(_), _) => End::Seen,
            (Err(CallFailure::Unreachable), None) => End::NotSent,
            (Err(_), _) => End::Unseen,
        },
        outcome: answer.as_ref().map_or_else(|failure| failure.word(), |_| "complete"),
        status,
        metered: metered.clone(),
        first_byte_ms: None,
        total_ms: u64::try_from(begun.elapsed().as_millis()).ok(),
        is_replaced: false,
    };
    let cost_nano_usd = match account {
        Some(account) => account.settle(ended).await.cost_nano_usd,
        None => None,
    };
    let answer = answer?;
    if let Some(status) = status.filter(|status| !(200..300).contains(status)) {
        let wants_renamed = request::wants_renamed(status, &answer);
        return Err(CallFailure::Refused { status, cause: request::cause(&answer), wants_renamed });
    }
    let AnswerText { text, problem } = request::said(&answer).ok_or(CallFailure::Garbage)?;
    if let Some(cause) = problem {
        return Err(CallFailure::Unfinished { cause });
    }
    Ok(Said { text, metered, cost_nano_usd })
}

/// Reads a complete answer and its usage.
async fn read(mut inbound: Inbound) -> Result<(Vec<u8>, Metered), CallFailure> {
    inbound.correct_type(false).await;
    let content_type = inbound.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mut meter = Meter::new(content_type);
    let answer = inbound.body.peek(MAX_ANSWER_BYTES).await.to_vec();
    if answer.len() > MAX_ANSWER_BYTES {
        return Err(CallFailure::Garbage);
    }
    if !inbound.body.is_seen_whole() {
        return Err(CallFailure::Unreachable);
    }
    meter.feed(&answer);
    Ok((answer, meter.finish()))
}
