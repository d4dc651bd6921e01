//! What becomes of one request: its account in the journal, and one log line at its end. Nothing
//! that a conversation says is kept or logged.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

use super::journal::Account;
use super::learned::Sampling;
use super::opening::Ended;
use super::planner::Planned;
use super::probe::Probe;
use super::settlement::End;
use super::{Admission, Caller, ErrorKind, LeftOut, ProxyError};
use crate::budget::NanoUsd;
use crate::context::Zone;
use crate::store::ledger::RequestId;
use crate::store::rates::MinuteLeft;
use crate::upstream::Target;
use crate::wire::usage::Metered;

/// The most of a path or of a model's name that goes into the log; callers choose them.
pub const MAX_LOGGED_BYTES: usize = 200;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// The caller went away; what the upstream had left to say was read for its usage, or cancelled.
    CallerLeft,
    UpstreamCut,
    IdleTimeout,
    /// The upstream refused it as too long, and it was planned anew.
    Overflow,
    /// The upstream refused it in a way that may pass, and it was sent again, there or elsewhere.
    Retried,
    Failed(ErrorKind),
}

impl Outcome {
    /// The word for it in the log and in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::CallerLeft => "caller_left",
            Self::UpstreamCut => "upstream_cut",
            Self::IdleTimeout => "idle_timeout",
            Self::Overflow => "overflow",
            Self::Retried => "retried",
            Self::Failed(kind) => kind.code(),
        }
    }

    /// How much was seen of the end of a request that came to this.
    fn end(self) -> End {
        match self {
            Self::Complete | Self::Retried => End::Seen,
            Self::Overflow | Self::Failed(ErrorKind::UpstreamPath) => End::Refused,
            Self::CallerLeft | Self::UpstreamCut | Self::IdleTimeout => End::Unseen,
            Self::Failed(ErrorKind::UpstreamTimeout | ErrorKind::UpstreamClosed) => End::Unseen,
            Self::Failed(_) => End::NotSent,
        }
    }
}

/// The log line of one request, written when the record is dropped: a request whose future or
/// body is dropped is one that the caller has left.
#[must_use = "a record that is dropped early says that the caller left"]
pub struct Record {
    begun: Instant,
    /// When the request was ready to be sent.
    ready: Instant,
    method: Method,
    path: String,
    caller: Caller,
    admission: Admission,
    planned: Option<Planned>,
    account: Option<Account>,
    id: Option<RequestId>,
    cost_nano_usd: Option<u64>,
    status: Option<StatusCode>,
    upstream_first_byte_ms: Option<u64>,
    /// How often the upstream refused the request as too long.
    overflows: u64,
    /// How often it was sent, apart from that.
    attempts: u64,
    /// The upstream that it was sent to last, where there are several ways to go.
    upstream: Option<Arc<str>>,
    /// The prompt, to be compared with what the upstream reports of it.
    sampling: Option<Sampling>,
    /// What is found out of the model's limits if the upstream accepts the request.
    probe: Option<Arc<Probe>>,
    /// Bytes of the answer that the caller got.
    pub bytes_out: u64,
    /// What the answer told, once it has ended.
    pub metered: Metered,
    pub outcome: Outcome,
    /// Whether the answer has come to its end.
    has_end: bool,
}

impl Record {
    /// Begins the record of a request, and keeps its place among its caller's.
    pub fn begin(method: &Method, target: &Target, caller: Caller, admission: Admission) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            ready: now,
            method: method.clone(),
            path: logged(target.path()),
            caller,
            admission,
            planned: None,
            account: None,
            id: None,
            cost_nano_usd: None,
            status: None,
            upstream_first_byte_ms: None,
            overflows: 0,
            attempts: 0,
            upstream: None,
            sampling: None,
            probe: None,
            bytes_out: 0,
            metered: Metered::default(),
            outcome: Outcome::CallerLeft,
            has_end: false,
        }
    }

    /// Notes what is sent, without the body.
    pub fn planned(&mut self, planned: &Planned) {
        if planned.body.is_some() && planned.compaction.is_cut {
            tracing::info!(
                target: "weir::context",
                event = if planned.zone == Zone::Restart { "restart" } else { "context_mask" },
                model = logged(&planned.model),
                action = planned.action,
                received_tokens = planned.received_tokens,
                sent_tokens = planned.sent_tokens,
                cuts = planned.cuts,
                "a conversation was cut"
            );
        }
        self.ready();
        self.planned = Some(Planned {
            body: None,
            action: planned.action.clone(),
            edits: planned.edits.clone(),
            left_out: LeftOut::default(),
            model: logged(&planned.model),
            upstream: planned.upstream.clone(),
            ahead: None,
            budget: None,
            ..*planned
        });
    }

    /// Counts what the request will send, or refuses it where the minute has no room.
    pub async fn take_tokens(&mut self, tokens: u64) -> Result<(), ProxyError> {
        self.admission.take_tokens(tokens).await
    }

    /// What the minute of the request's key has left.
    pub fn minute_left(&self) -> MinuteLeft {
        self.admission.left()
    }

    /// Puts what was used in the place of what was counted before. What was not sent, or not
    /// taken, used nothing; where the upstream does not say, the count stands.
    fn settle_tokens(&mut self) {
        let usage = self.metered.usage.unwrap_or_default();
        match (usage.prompt_tokens, usage.completion_tokens) {
            (None, None) if self.is_success() => {}
            (None, None) if self.outcome == Outcome::CallerLeft => {}
            (prompt, completion) => {
                let used = prompt.unwrap_or(0).saturating_add(completion.unwrap_or(0));
                self.admission.settle_tokens(used);
            }
        }
    }

    /// Notes that the request is ready to be sent.
    pub fn ready(&mut self) {
        self.ready = Instant::now();
    }

    /// Notes which edits were left after the upstream had its say.
    pub fn edited(&mut self, planned: &Planned) {
        if let Some(own) = &mut self.planned {
            planned.edits.clone_into(&mut own.edits);
        }
    }

    /// How long it took until the request was ready to be sent.
    pub fn plan_ms(&self) -> u64 {
        millis(self.ready - self.begun)
    }

    /// Keeps the account that is opened for the request.
    pub fn account(&mut self, account: Option<Account>) {
        self.id = account.as_ref().map(Account::id);
        self.account = account;
    }

    /// Notes that the answer has come to its end, whether or not its caller was there to see it.
    pub fn ended(&mut self, has_caller_left: bool) {
        self.has_end = true;
        if !has_caller_left {
            self.outcome = Outcome::Complete;
        }
    }

    /// Who the request is from.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// What the request is called in the journal, if it is in there.
    pub fn id(&self) -> Option<RequestId> {
        self.id
    }

    /// Ends the record of a request that got no answer, and hands its error on.
    pub async fn failed(mut self, error: ProxyError) -> ProxyError {
        self.outcome = Outcome::Failed(error.kind);
        if let Some((account, ended)) = self.end() {
            account.settle(ended).await;
        }
        error
    }

    /// Keeps a prompt to be compared with what the upstream reports of it.
    pub fn sample(&mut self, sampling: Option<Sampling>) {
        self.sampling = sampling;
    }

    /// Keeps what is found out if the upstream accepts the request.
    pub fn probe(&mut self, probe: Option<Arc<Probe>>) {
        self.probe = probe;
    }

    /// Learns from what the upstream reported of the prompt. What is no text is counted by other rules.
    fn learn(&mut self) {
        let usage = self.metered.usage.unwrap_or_default();
        let other = [usage.image_input_tokens, usage.audio_input_tokens];
        let is_text = other.into_iter().flatten().all(|tokens| tokens == 0);
        if let (Some(sampling), Some(reported)) = (self.sampling.take(), usage.prompt_tokens)
            && is_text
        {
            sampling.take(reported);
        }
    }

    /// Settles what was sent and refused as too long; the request may be sent again.
    pub async fn refused(&mut self, status: StatusCode) {
        self.overflows += 1;
        self.settle_before(Outcome::Overflow, Some(status)).await;
    }

    /// Settles what was sent in vain; the request is sent again, there or elsewhere.
    pub async fn gave_way(&mut self, came_back: Result<StatusCode, ErrorKind>) {
        match came_back {
            Ok(status) => self.settle_before(Outcome::Retried, Some(status)).await,
            Err(kind) => self.settle_before(Outcome::Failed(kind), None).await,
        }
    }

    /// Notes that the request is sent, and where to.
    pub fn sent_to(&mut self, upstream: Option<&Arc<str>>) {
        self.attempts += 1;
        self.upstream = upstream.cloned();
    }

    /// How often the request was sent, what was refused as too long aside.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    async fn settle_before(&mut self, outcome: Outcome, status: Option<StatusCode>) {
        let Some(account) = self.account.take() else { return };
        let ended = Ended {
            end: outcome.end(),
            outcome: outcome.name(),
            status: status.map(|status| status.as_u16()),
            metered: Metered::default(),
            first_byte_ms: Some(millis(self.ready.elapsed())),
            total_ms: Some(millis(self.begun.elapsed())),
        };
        account.settle(ended).await;
    }

    /// Notes that an answer has begun.
    pub fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.upstream_first_byte_ms = Some(millis(self.ready.elapsed()));
    }

    /// Whether the upstream took the request.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.is_success())
    }

    /// The account and what it is to be settled with, the first time this is asked for.
    pub fn end(&mut self) -> Option<(Account, Ended)> {
        if let Some(probe) = self.probe.take().filter(|_| self.is_success()) {
            probe.accepted(self.metered.usage.and_then(|usage| usage.prompt_tokens));
        }
        let account = self.account.take()?;
        let ended = Ended {
            end: match self.metered.done || self.has_end {
                true => End::Seen,
                false => self.outcome.end(),
            },
            outcome: self.outcome.name(),
            status: self.status.map(|status| status.as_u16()),
            metered: self.metered.clone(),
            first_byte_ms: self.upstream_first_byte_ms,
            total_ms: Some(millis(self.begun.elapsed())),
        };
        Some((account, ended))
    }

    /// Notes what the request came to.
    pub fn settled(&mut self, cost_nano_usd: Option<u64>) {
        self.cost_nano_usd = cost_nano_usd;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.settle_tokens();
        self.learn();
        if let Some((account, ended)) = self.end() {
            account.settle_behind(ended);
        }
        let planned = self.planned.as_ref();
        let key = self.caller.key.as_ref();
        let usage = self.metered.usage.unwrap_or_default();
        tracing::info!(
            target: "weir::request",
            event = if self.metered.usage.is_some() { "token_usage" } else { "request" },
            method = self.method.as_str(),
            path = self.path.as_str(),
            status = self.status.map(|status| status.as_u16()),
            outcome = self.outcome.name(),
            address = self.caller.address.map(tracing::field::display),
            key = key.map(|key| key.id.as_str()),
            team = key.map(|key| key.team.as_str()),
            model = planned.map(|planned| planned.model.as_str()),
            action = planned.map(|planned| planned.action.as_str()),
            edits = planned.map(|planned| planned.edits.as_str()),
            received_tokens = planned.map(|planned| planned.received_tokens),
            sent_tokens = planned.map(|planned| planned.sent_tokens),
            limit_tokens = planned.map(|planned| planned.limit_tokens),
            messages = planned.map(|planned| planned.messages),
            stream = planned.map(|planned| planned.stream),
            upstream = self.upstream.as_deref(),
            attempts = (self.attempts > 1).then_some(self.attempts),
            overflows = (self.overflows > 0).then_some(self.overflows),
            upstream_first_byte_ms = self.upstream_first_byte_ms,
            total_ms = millis(self.begun.elapsed()),
            bytes_out = self.bytes_out,
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            cached_tokens = usage.cached_tokens,
            cost_usd = self.cost_nano_usd.map(|nano_usd| NanoUsd(nano_usd).to_decimal()),
            id = self.id.map(tracing::field::display),
            finish_reason = self.metered.finish_reason.as_deref(),
            "request"
        );
    }
}

/// As much of a text as goes into the log.
pub fn logged(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_LOGGED_BYTES)].to_owned()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_choose_is_logged_in_part() {
        assert_eq!(logged("/v1/models"), "/v1/models");
        assert_eq!(logged(&"a".repeat(201)), "a".repeat(200));
        assert_eq!(logged(&"€".repeat(100)), "€".repeat(66));
    }
}
