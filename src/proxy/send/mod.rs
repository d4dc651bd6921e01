//! Attempts: sends a request to its upstream, again if there is a cause for it, and to the next
//! model if that is a cause as well. One loop serves all routes; `chat` and `passthrough` prepare their
//! attempts. Relays no answer.

pub mod attempt;
pub mod chat;
pub mod models;
mod overflow_retry;
pub mod passthrough;
pub mod probe;
mod refused_part;

use std::time::Duration;

use http::StatusCode;

use super::error::{ErrorKind, ProxyError};
use super::record::Record;
use super::upstreams::Upstream;
use super::upstreams::routes::Route;
use crate::config::FallbackOn;
use crate::upstream::retry::{self, RetryAdvice, Tried};
use crate::upstream::{Inbound, Target};
use weir_store::{Tenant, now_ms};

/// Cause for sending a request again. One more lies below, in `upstream::client`: a pooled
/// connection that had closed unused is replaced there, where it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The upstream refuses to report the usage of a stream. The request for it is removed; the
    /// account stays the same.
    UsageRefused,
    /// The upstream refuses thinking in the request as that of another conversation. It is planned again
    /// without; the account stays the same.
    ThinkingRefused,
    /// The upstream refuses the request as too long. It is planned again.
    TooLong,
    /// The failure may be transient. The same is sent again after a delay.
    Retry(Duration),
    /// Another model may accept it: a fallback after a transient failure, or the larger model.
    Fallback,
}

/// Request with the attempts that can be made for it.
pub trait Exchange {
    /// Attempt with another model.
    type Next;

    /// Returns the upstream and the target of the current attempt.
    fn place(&self) -> (&Upstream, &Target);

    /// Whether the request can be sent a second time.
    fn is_replayable(&self) -> bool;

    /// Whether its answer is read until it has begun, so that one that fails before can be replaced.
    fn is_opened(&self) -> bool;

    /// Holds the cost of the current attempt, records and sends it. `cause` is the reason if the
    /// request was sent before.
    fn send(
        &mut self,
        cause: Option<Cause>,
        record: &mut Record,
    ) -> impl Future<Output = Result<Inbound, ProxyError>> + Send;

    /// Changes the request if the answer is a refusal that a changed request avoids, and returns
    /// the cause then.
    fn correct(
        &mut self,
        inbound: &mut Inbound,
        record: &mut Record,
    ) -> impl Future<Output = Result<Option<Cause>, ProxyError>> + Send;

    /// Returns the model of the current attempt.
    fn model(&self) -> &str;

    /// Prepares an attempt with another model, if the failure is a reason for one.
    fn next(
        &mut self,
        sent: &mut Result<Inbound, ProxyError>,
    ) -> impl Future<Output = Option<Self::Next>> + Send;

    /// Makes `next` the current attempt.
    fn enter(&mut self, next: Self::Next, record: &mut Record);
}

/// Sends a request until there is no cause to send it again. Each cause but a refused usage request
/// and refused thinking settles the account of the attempt before.
pub async fn send(
    exchange: &mut impl Exchange,
    record: &mut Record,
) -> Result<Inbound, ProxyError> {
    let (mut cause, mut retries) = (None, 0);
    loop {
        let mut sent = exchange.send(cause, record).await;
        let mut came_back = tried(&sent);
        // Nobody waits for another attempt.
        if record.presence().has_left() {
            return sent;
        }
        let correction = match &mut sent {
            Ok(inbound) => exchange.correct(inbound, record).await,
            Err(_) => Ok(None),
        };
        let (upstream, target) = exchange.place();
        if let Ok(None) = correction {
            sent = opened(sent, exchange.is_opened(), upstream, record).await;
            came_back = tried(&sent);
        }
        if let Some(came_back) = came_back {
            record.tried(upstream, came_back);
        }
        match correction {
            Ok(None) => {}
            Ok(correction) => {
                cause = correction;
                continue;
            }
            Err(error) => sent = Err(error),
        }
        let mut sent = match sent {
            Ok(inbound) => {
                let has_virtual_key = record.caller().key.is_some();
                upstream.well_placed(target, inbound, has_virtual_key).await
            }
            Err(error) => Err(error),
        };
        record.came_back();
        if record.presence().has_left() {
            return sent;
        }
        let asked = (record.caller().tenant, exchange.model());
        let wait = wait(upstream, asked, retries, &sent).filter(|_| exchange.is_replayable());
        if let Some(wait) = wait {
            note_usage(&mut sent, record).await;
            record.gave_way(status(&sent)).await;
            drop(sent);
            tokio::time::sleep(wait).await;
            record.ready();
            retries += 1;
            cause = Some(Cause::Retry(wait));
        } else if let Some(next) = exchange.next(&mut sent).await {
            note_usage(&mut sent, record).await;
            record.gave_way(status(&sent)).await;
            drop(sent);
            exchange.enter(next, record);
            retries = 0;
            cause = Some(Cause::Fallback);
        } else {
            return sent;
        }
    }
}

/// Reads an answer until it has begun or failed.
async fn opened(
    sent: Result<Inbound, ProxyError>,
    is_opened: bool,
    upstream: &Upstream,
    record: &mut Record,
) -> Result<Inbound, ProxyError> {
    let mut inbound = sent?;
    let opened = if is_opened { inbound.open().await } else { Ok(()) };
    let mut sent = Ok(inbound);
    if let Err(error) = opened {
        note_usage(&mut sent, record).await;
        return Err(upstream.error(error));
    }
    sent
}

/// Records the usage of an answer that its caller does not get.
async fn note_usage(sent: &mut Result<Inbound, ProxyError>, record: &mut Record) {
    if let Ok(inbound) = sent {
        record.reported(inbound.metered().await);
    }
}

/// Returns how a request came back from an upstream, if it reached one.
pub fn tried(sent: &Result<Inbound, ProxyError>) -> Option<Tried> {
    match sent {
        Ok(inbound) => Some(Tried::Status(inbound.outcome())),
        Err(error) => error.tried(),
    }
}

/// Whether a failure is a cause to try a fallback model of `route`.
async fn is_cause(route: &Route, sent: &mut Result<Inbound, ProxyError>) -> bool {
    if matches!(sent, Err(error) if error.kind == ErrorKind::BudgetExhausted) {
        return route.row.fallback_on.contains(&FallbackOn::Budget);
    }
    let Some(tried) = tried(sent).filter(|_| !route.row.fallback.is_empty()) else { return false };
    for cause in &route.row.fallback_on {
        let (status, words) = match cause {
            FallbackOn::Transient if tried.may_pass() => return true,
            FallbackOn::Transient | FallbackOn::Budget => continue,
            FallbackOn::Status(status) => (*status, [].as_slice()),
            FallbackOn::NoCredit => (402, refused_part::NO_CREDIT),
            FallbackOn::NoModel => (404, refused_part::NO_MODEL),
            FallbackOn::ContentFilter => (0, refused_part::CONTENT_FILTER),
        };
        let is_gone = *cause == FallbackOn::NoModel && tried == Tried::Status(410);
        if tried == Tried::Status(status) || is_gone {
            return true;
        }
        if let Ok(inbound) = sent
            && !words.is_empty()
            && refused_part::is_said(inbound, words).await
        {
            return true;
        }
    }
    false
}

/// Returns the status of the answer, or the error instead of one.
fn status(sent: &Result<Inbound, ProxyError>) -> Result<StatusCode, ErrorKind> {
    match sent {
        Ok(inbound) if inbound.failed.is_some() => Err(ErrorKind::UpstreamFailed),
        Ok(inbound) => Ok(inbound.status),
        Err(error) => Err(error.kind),
    }
}

/// Records how a request came back from `upstream`, and returns the delay before the next attempt
/// there; `None` for no retry. It was for this tenant and model.
fn wait(
    upstream: &Upstream,
    asked: (Tenant, &str),
    retries: u32,
    sent: &Result<Inbound, ProxyError>,
) -> Option<Duration> {
    let tried = tried(sent)?;
    upstream.note(tried);
    let headers = sent.as_ref().ok().map(|inbound| &inbound.headers);
    let advice =
        headers.map_or_else(RetryAdvice::default, |headers| RetryAdvice::read(headers, now_ms()));
    if let (Tried::Status(429), Some(wait_ms)) = (tried, advice.wait_ms) {
        upstream.cool_down(asked, Duration::from_millis(wait_ms));
    }
    if retries >= upstream.retry_limits.max_retries || !tried.may_pass() {
        return None;
    }
    let mut random = [0; 4];
    // Without randomness all retries would come at once; they still work.
    let _ = getrandom::fill(&mut random);
    let jitter = u32::from_ne_bytes(random);
    retry::wait_ms(retries, tried, advice, upstream.retry_limits, jitter).map(Duration::from_millis)
}
