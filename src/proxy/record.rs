//! What becomes of one request: its account in the journal, and one log line at its end. Nothing
//! that a conversation says is kept or logged.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

use super::error::Subject;
use super::journal::Account;
use super::learned::Sampling;
use super::metrics::{Finished, Metrics, Resend};
use super::opening::Ended;
pub use super::outcome::Outcome;
use super::planned::Progress;
use super::planner::Planned;
use super::probe::Probe;
use super::settlement::{self, End};
use super::{Admission, Caller, ErrorKind, LeftOut, ProxyError};
use crate::budget::NanoUsd;
use crate::store::ledger::RequestId;
use crate::store::rates::MinuteLeft;
use crate::upstream::Target;
use crate::wire::usage::Metered;

/// The most of a path or of a model's name that goes into the log; callers choose them.
pub const MAX_LOGGED_BYTES: usize = 200;

/// The log line of one request and its place in the metrics, written when the record is dropped: a
/// request whose future or body is dropped is one that the caller has left.
#[must_use = "a record that is dropped early says that the caller left"]
pub struct Record {
    begun: Instant,
    /// When planning began: with the request, or when the attempt before came back.
    turned: Instant,
    /// When the request was ready to be sent.
    ready: Instant,
    /// How long all its plans took together.
    planning: Option<Duration>,
    method: Method,
    path: String,
    route: &'static str,
    metrics: Arc<Metrics>,
    caller: Caller,
    admission: Admission,
    planned: Option<Planned>,
    passed: Passed,
    /// The conversation that weir's own error is about, if no plan was made of it.
    subject: Option<Box<Subject>>,
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

/// A request that is passed on unread.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    /// The model that it names, as soon as that is known.
    pub model: Arc<OnceLock<String>>,
    /// The word for it that the answer's `x-weir-action` has, if any.
    pub action: Option<&'static str>,
}

impl Record {
    /// Begins the record of a request, and keeps its place among its caller's.
    pub fn begin(
        method: &Method,
        target: &Target,
        caller: Caller,
        admission: Admission,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let now = Instant::now();
        metrics.begun();
        Self {
            begun: now,
            turned: now,
            ready: now,
            planning: None,
            method: method.clone(),
            path: logged(target.path()),
            route: target.endpoint().label(),
            metrics: Arc::clone(metrics),
            caller,
            admission,
            planned: None,
            passed: Passed::default(),
            subject: None,
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

    /// Notes what is to be sent, without the body.
    pub fn planned(&mut self, planned: &Planned) {
        let begun = self.turned.max(self.ready);
        self.ready = Instant::now();
        *self.planning.get_or_insert_default() += self.ready - begun;
        self.planned = Some(Planned {
            body: None,
            action: planned.action.clone(),
            edits: planned.edits.clone(),
            left_out: LeftOut::default(),
            model: logged(&planned.model),
            upstream: planned.upstream.clone(),
            ahead: None,
            budget: None,
            compacted_by: String::new(),
            progress: None,
            ..*planned
        });
    }

    /// Notes what is to be sent in the place of what the upstream refused as too long.
    pub fn planned_again(&mut self, planned: &Planned) {
        self.planned(planned);
        self.metrics.resent(Resend::Overflow);
        tracing::info!(
            target: "weir::learned",
            event = "resend",
            model = logged(&planned.model),
            limit_tokens = planned.limit_tokens,
            sent_tokens = planned.sent_tokens,
            "sending a request again that the upstream refused as too long"
        );
    }

    /// Notes that the upstream took what was planned. If that was the first request with a
    /// compaction, the compaction is counted and logged.
    pub fn taken(&self, planned: &Planned) {
        let is_first = planned.progress.as_ref().is_some_and(Progress::note);
        if !is_first || !planned.compaction.is_cut {
            return;
        }
        self.metrics.compacted(&planned.compacted_by);
        tracing::info!(
            target: "weir::context",
            event = "compaction",
            steps = planned.compacted_by,
            model = logged(&planned.model),
            received_tokens = planned.received_tokens,
            sent_tokens = planned.sent_tokens,
            limit_tokens = planned.limit_tokens,
            compactions = planned.cuts,
            id = self.id.map(tracing::field::display),
            "compacted a conversation"
        );
    }

    /// Notes what is known of a request that is passed on unread.
    pub fn passed(&mut self, passed: Passed) {
        self.passed = passed;
    }

    /// The model that a request passed on unread is known to name.
    pub fn passed_model(&self) -> Option<&str> {
        self.passed.model.get().map(String::as_str)
    }

    /// Notes that an attempt has come back and another one may be planned.
    pub fn came_back(&mut self) {
        self.turned = Instant::now();
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

    /// Notes that the request is ready to be sent, as it was planned before if it was.
    pub fn ready(&mut self) {
        self.ready = Instant::now();
        self.turned = self.ready;
    }

    /// Notes which edits were left after the upstream had its say.
    pub fn edited(&mut self, planned: &Planned) {
        if let Some(own) = &mut self.planned {
            planned.edits.clone_into(&mut own.edits);
        }
    }

    /// How long it took until this attempt was ready to be sent.
    pub fn plan_ms(&self) -> u64 {
        millis(self.ready - self.turned)
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
        self.subject.clone_from(&error.subject);
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
        self.metrics.resent(Resend::Failure);
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
            first_byte_ms: Some(millis(self.turned.saturating_duration_since(self.ready))),
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
            metered: Metered {
                model: self.metered.model.clone().or_else(|| self.passed.model.get().cloned()),
                ..self.metered.clone()
            },
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

impl Record {
    /// The status that the caller gets, or would have got.
    fn caller_status(&self) -> Option<u16> {
        let own = match self.outcome {
            Outcome::Failed(kind) => Some(kind.status()),
            _ => None,
        };
        own.or(self.status).map(|status| status.as_u16())
    }

    /// The model that the request is for, as far as that is known.
    fn model(&self) -> Option<&str> {
        let planned = self.planned.as_ref().map(|planned| planned.model.as_str());
        let subject = || self.subject.as_ref().map(|subject| subject.model.as_str());
        let passed = || self.passed.model.get().map(String::as_str);
        let model = planned.or_else(subject).or_else(passed).or(self.metered.model.as_deref());
        model.filter(|model| !model.is_empty())
    }

    fn action(&self) -> Option<&str> {
        let planned = self.planned.as_ref().map(|planned| planned.action.as_str());
        // What an error is about was not sent.
        let planned = planned.filter(|_| !matches!(self.outcome, Outcome::Failed(_)));
        planned.or(self.passed.action)
    }

    fn count(&self) {
        let is_failed = matches!(self.outcome, Outcome::Failed(_));
        let sent = self.planned.as_ref().filter(|_| !is_failed);
        self.metrics.finished(&Finished {
            route: self.route,
            model: self.model().unwrap_or_default(),
            outcome: self.outcome.name(),
            status: self.caller_status(),
            error: match self.outcome {
                Outcome::Failed(kind) => Some(kind),
                _ => None,
            },
            action: self.action().unwrap_or_default(),
            conversation_tokens: sent.map(|sent| (sent.received_tokens, sent.sent_tokens)),
            duration: self.begun.elapsed(),
            first_byte: self.upstream_first_byte_ms.map(Duration::from_millis),
            plan: self.planning,
            unsettled: match self.id {
                Some(_) => None,
                None => self.metered.usage.map(settlement::believed),
            },
        });
    }

    fn log(&self) {
        let planned = self.planned.as_ref();
        let subject = self.subject.as_deref();
        let key = self.caller.key.as_ref();
        let usage = self.metered.usage.unwrap_or_default();
        let received_tokens = planned.map(|planned| planned.received_tokens);
        let limit_tokens = planned.map(|planned| planned.limit_tokens);
        tracing::info!(
            target: "weir::request",
            event = if self.metered.usage.is_some() { "token_usage" } else { "request" },
            method = self.method.as_str(),
            path = self.path.as_str(),
            status = self.caller_status(),
            outcome = self.outcome.name(),
            address = self.caller.address.map(tracing::field::display),
            key = key.map(|key| key.id.as_str()),
            team = key.map(|key| key.team.as_str()),
            model = self.model().map(clipped),
            action = self.action(),
            edits = planned.map(|planned| planned.edits.as_str()),
            received_tokens = received_tokens.or(subject.and_then(|own| own.received_tokens)),
            sent_tokens = planned.map(|planned| planned.sent_tokens),
            limit_tokens = limit_tokens.or(subject.map(|own| own.limit_tokens)),
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

impl Drop for Record {
    fn drop(&mut self) {
        self.settle_tokens();
        self.learn();
        if let Some((account, ended)) = self.end() {
            account.settle_behind(ended);
        }
        self.count();
        self.log();
    }
}

/// As much of a text as goes into the log.
pub fn logged(text: &str) -> String {
    clipped(text).to_owned()
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOGGED_BYTES)]
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
