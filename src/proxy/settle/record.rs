//! Record of one request: its account in the journal, and one log line at its end. No part of a
//! conversation is kept or logged.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

use crate::proxy::admit::admission::Admission;
use crate::proxy::admit::attribution::ConversationLabel;
use crate::proxy::admit::caller::Caller;
use crate::proxy::error::Subject;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::hold::account::Ended;
use crate::proxy::hold::journal::Account;
use crate::proxy::hold::journal::Cost;
use crate::proxy::live;
use crate::proxy::metrics::{Finished, Metrics, Resend};
use crate::proxy::plan::Planned;
use crate::proxy::plan::planned::Progress;
use crate::proxy::send::probe::Probe;
use crate::proxy::settle::originals::LeftOut;
pub use crate::proxy::settle::outcome::Outcome;
use crate::proxy::settle::settlement::{self, End};
use crate::proxy::settle::spans;
use crate::proxy::traces::Trace;
use crate::proxy::traces::context::{TRACEPARENT, TRACESTATE, TraceContext};
use crate::proxy::upstreams::Upstream;
use crate::proxy::upstreams::learned::Sampling;
use crate::upstream::retry::Tried;
use crate::upstream::{Outbound, Target};
use weir_engine::wire::usage::Metered;
use weir_store::budget::NanoUsd;
use weir_store::ledger::{Attribution, RequestId, signed_usd};
use weir_store::now_ms;
use weir_store::rates::MinuteLeft;

/// Maximum length of a path or model name in the log; callers choose them.
pub const MAX_LOGGED_BYTES: usize = 200;

/// Log line and metrics of one request, written on drop: if a request's future or body is dropped,
/// its caller has left.
#[must_use = "a record dropped early reports that the caller left"]
pub struct Record {
    begun: Instant,
    /// Start of planning: with the request, or when the previous attempt returned.
    turned: Instant,
    /// Time at which the request was ready to be sent.
    ready: Instant,
    /// Duration of all its plans together.
    planning: Option<Duration>,
    method: Method,
    path: String,
    route: &'static str,
    metrics: Arc<Metrics>,
    /// Place among the requests in flight.
    entry: live::Entry,
    caller: Caller,
    attribution: Arc<Attribution>,
    admission: Admission,
    planned: Option<Planned>,
    /// Steps of the compaction that this request caused, if it did.
    steps: Option<String>,
    passed: Passed,
    /// Conversation that weir's own error is about, if there is no plan.
    subject: Option<Box<Subject>>,
    account: Option<Account>,
    id: Option<RequestId>,
    cost: Cost,
    status: Option<StatusCode>,
    upstream_first_byte_ms: Option<u64>,
    /// Number of overflow refusals by the upstream.
    overflows: u64,
    /// Number of other attempts.
    attempts: u64,
    /// Upstream of the last attempt, if there are several routes.
    upstream: Option<Arc<str>>,
    /// Prompt to compare with the upstream's report.
    sampling: Option<Sampling>,
    /// Probe of the model's limits, completed if the upstream accepts the request.
    probe: Option<Arc<Probe>>,
    /// Bytes of the answer sent to the caller.
    pub bytes_out: u64,
    /// Facts from the answer, once it has ended.
    pub metered: Metered,
    pub outcome: Outcome,
    /// Whether the answer has ended.
    has_end: bool,
    /// Time at which the last attempt was sent.
    sent: Instant,
    /// Start of an answer that comes in events.
    stream_begun: Option<Instant>,
    /// Start of the settlement.
    settling: Option<Instant>,
    trace: Option<Box<Trace>>,
}

/// Request that is forwarded unread.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    /// Model that it names, as soon as that is known.
    pub model: Arc<OnceLock<String>>,
    /// Value of `x-weir-action` in the answer, if any.
    pub action: Option<&'static str>,
}

impl Record {
    /// Starts the record of a request, and keeps the caller's slot.
    pub fn begin(
        method: &Method,
        target: &Target,
        (caller, admission): (Caller, Admission),
        metrics: &Arc<Metrics>,
        entry: live::Entry,
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
            entry,
            caller,
            attribution: Arc::default(),
            admission,
            planned: None,
            steps: None,
            passed: Passed::default(),
            subject: None,
            account: None,
            id: None,
            cost: Cost::default(),
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
            sent: now,
            stream_begun: None,
            settling: None,
            trace: None,
        }
    }

    /// Starts the trace that `begin` makes of a request with this start.
    pub fn traced(&mut self, begin: impl FnOnce(Instant) -> Option<Box<Trace>>) {
        self.trace = begin(self.begun);
    }

    /// Records the origin of the request.
    pub fn attributed(&mut self, attribution: Attribution) {
        self.attribution = Arc::new(attribution);
        self.entry.attributed(&self.attribution);
    }

    /// Returns the origin of the request.
    pub fn attribution(&self) -> Arc<Attribution> {
        Arc::clone(&self.attribution)
    }

    /// Records the plan, without the body.
    pub fn planned(&mut self, planned: &Planned) {
        let begun = self.turned.max(self.ready);
        self.ready = Instant::now();
        *self.planning.get_or_insert_default() += self.ready - begun;
        let (received_tokens, sent_tokens) = (planned.received_tokens, planned.sent_tokens);
        self.entry.planned(clipped(&planned.model), received_tokens, sent_tokens);
        if let Some(trace) = &mut self.trace {
            trace.step("plan", (begun, self.ready), false, spans::planned(planned));
        }
        self.planned = Some(Planned {
            body: None,
            action: planned.action.clone(),
            edits: planned.edits.clone(),
            conversation: ConversationLabel::Unknown,
            left_out: LeftOut::default(),
            model: logged(&planned.model),
            upstream: planned.upstream.clone(),
            prefetch: None,
            shortened: None,
            budget: None,
            compacted_by: String::new(),
            progress: None,
            begun: None,
            ..*planned
        });
    }

    /// Records the plan that replaces one refused as too long.
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

    /// Records that the upstream accepted the plan. Counts and logs a compaction if this is its
    /// first request.
    pub fn taken(&mut self, planned: &Planned) {
        let is_first = planned.progress.as_ref().is_some_and(Progress::note);
        if !is_first || !planned.compaction.is_new {
            return;
        }
        self.metrics.compacted(&planned.compacted_by);
        self.steps = Some(planned.compacted_by.clone());
        tracing::info!(
            target: "weir::context",
            event = "compaction",
            steps = planned.compacted_by,
            model = logged(&planned.model),
            received_tokens = planned.received_tokens,
            sent_tokens = planned.sent_tokens,
            limit_tokens = planned.limit_tokens,
            compactions = planned.compactions,
            id = self.id.map(tracing::field::display),
            "compacted a conversation"
        );
    }

    /// Records the known facts of a request that is forwarded unread.
    pub fn passed(&mut self, passed: Passed) {
        self.passed = passed;
    }

    /// Returns the model that an unread request is known to name.
    pub fn passed_model(&self) -> Option<&str> {
        self.passed.model.get().map(String::as_str)
    }

    /// Records that the request has waited since `begun` for the amount to hold.
    pub fn held(&mut self, begun: Instant, is_granted: bool) {
        if let Some(trace) = &mut self.trace {
            trace.step("hold", (begun, Instant::now()), !is_granted, Vec::new());
        }
    }

    /// Records that `outbound` is sent to `upstream`, and puts the trace's context into its headers, if
    /// there is a trace.
    pub fn sending(&mut self, upstream: &Upstream, outbound: &mut Outbound) {
        self.sent = Instant::now();
        let Some(trace) = &mut self.trace else { return };
        let model = self.planned.as_ref().map(|planned| planned.model.as_str());
        let model = model.or_else(|| self.passed.model.get().map(String::as_str));
        let limit_tokens = self.planned.as_ref().and_then(|planned| planned.max_output_tokens);
        let (name, attributes) =
            spans::attempt(upstream, (self.route, self.method.as_str()), model, limit_tokens);
        if let Some(context) = trace.attempt(name, attributes) {
            if TraceContext::from_headers(&outbound.headers).is_none() {
                // The state of another trace.
                outbound.headers.remove(TRACESTATE);
            }
            outbound.headers.insert(TRACEPARENT, context);
        }
    }

    /// Records how the request came back from `upstream`.
    pub fn tried(&self, upstream: &Upstream, tried: Tried) {
        self.metrics.tried(&upstream.name, tried, self.sent.elapsed());
    }

    /// Records that an attempt has returned and another one may be planned.
    pub fn came_back(&mut self) {
        self.turned = Instant::now();
    }

    /// Counts the request's tokens, or refuses it if the minute has no room.
    pub async fn take_tokens(&mut self, tokens: u64) -> Result<(), ProxyError> {
        self.admission.take_tokens(tokens).await
    }

    /// Returns the remaining limits of the key's current minute.
    pub fn minute_left(&self) -> MinuteLeft {
        self.admission.left()
    }

    /// Replaces the counted tokens by the actual ones. A request that was not sent or not accepted
    /// used nothing; if the upstream reports nothing, the count stands.
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

    /// Records that the request is ready to be sent.
    pub fn ready(&mut self) {
        self.ready = Instant::now();
        self.turned = self.ready;
    }

    /// Records the edits that remain after the upstream's answer.
    pub fn edited(&mut self, planned: &Planned) {
        if let Some(own) = &mut self.planned {
            planned.edits.clone_into(&mut own.edits);
        }
    }

    /// Returns the time until this attempt was ready to be sent.
    pub fn plan_ms(&self) -> u64 {
        millis(self.ready - self.turned)
    }

    /// Keeps the journal account opened for the request.
    pub fn account(&mut self, account: Option<Account>) {
        self.id = account.as_ref().map(Account::id);
        self.account = account;
    }

    /// Records that the answer has ended, whether or not its caller was still there.
    pub fn ended(&mut self, has_caller_left: bool) {
        self.has_end = true;
        if !has_caller_left {
            self.outcome = Outcome::Complete;
        }
    }

    /// Returns the sender of the request.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the request's ID in the journal, if it has one.
    pub fn id(&self) -> Option<RequestId> {
        self.id
    }

    /// Ends the record of a request without an answer, and returns its error.
    pub async fn failed(mut self, error: ProxyError) -> ProxyError {
        self.outcome = Outcome::Failed(error.kind);
        self.subject.clone_from(&error.subject);
        if let Some((account, ended)) = self.end() {
            account.settle(ended).await;
            self.trace_settlement();
        }
        error
    }

    /// Keeps a prompt to compare with the upstream's report.
    pub fn sample(&mut self, sampling: Option<Sampling>) {
        self.sampling = sampling;
    }

    /// Keeps a probe to complete if the upstream accepts the request.
    pub fn probe(&mut self, probe: Option<Arc<Probe>>) {
        self.probe = probe;
    }

    /// Learns from the upstream's report of the prompt. Parts that are not text are counted by
    /// other rules.
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

    /// Settles an attempt that was refused as too long; the request may be sent again.
    pub async fn refused(&mut self, status: StatusCode) {
        self.overflows += 1;
        self.settle_before(Outcome::Overflow, Some(status)).await;
    }

    /// Settles a failed attempt; the request is sent again, there or elsewhere.
    pub async fn gave_way(&mut self, came_back: Result<StatusCode, ErrorKind>) {
        self.metrics.resent(Resend::Failure);
        match came_back {
            Ok(status) => self.settle_before(Outcome::Retried, Some(status)).await,
            Err(kind) => self.settle_before(Outcome::Failed(kind), None).await,
        }
    }

    /// Records that the request is sent, and its upstream.
    pub fn sent_to(&mut self, upstream: Option<&Arc<str>>) {
        self.attempts += 1;
        self.upstream = upstream.cloned();
    }

    /// Returns the number of attempts, without those refused as too long.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    async fn settle_before(&mut self, outcome: Outcome, status: Option<StatusCode>) {
        if let Some(trace) = &mut self.trace {
            trace.attempt_ended(true, spans::came_back(outcome, status));
        }
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

    /// Records that an answer has begun; `is_stream` if it comes in events.
    pub fn answered(&mut self, status: StatusCode, is_stream: bool) {
        self.status = Some(status);
        self.stream_begun = is_stream.then(Instant::now);
        self.upstream_first_byte_ms = Some(millis(self.sent.max(self.ready).elapsed()));
    }

    /// Records that weir has answered the request itself.
    pub fn answered_by_weir(&mut self, status: StatusCode, bytes: u64) {
        (self.status, self.bytes_out) = (Some(status), bytes);
        self.ended(false);
    }

    /// Whether the upstream accepted the request.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.is_success())
    }

    /// Returns the account and its settlement data, on the first call only.
    pub fn end(&mut self) -> Option<(Account, Ended)> {
        if let Some(probe) = self.probe.take().filter(|_| self.is_success()) {
            probe.accepted(self.metered.usage.and_then(|usage| usage.prompt_tokens));
        }
        let account = self.account.take()?;
        self.settling = Some(Instant::now());
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

    /// Records the cost of the request.
    pub fn settled(&mut self, cost: Cost) {
        self.cost = cost;
        self.trace_settlement();
    }

    fn trace_settlement(&mut self) {
        if let (Some(begun), Some(trace)) = (self.settling.take(), &mut self.trace) {
            trace.step("settle", (begun, Instant::now()), false, Vec::new());
        }
    }
}

impl Record {
    /// Returns the status that the caller gets, or would have got.
    fn caller_status(&self) -> Option<u16> {
        let own = match self.outcome {
            Outcome::Failed(kind) => Some(kind.status()),
            _ => None,
        };
        own.or(self.status).map(|status| status.as_u16())
    }

    /// Returns the model of the request, as far as known.
    fn model(&self) -> Option<&str> {
        let planned = self.planned.as_ref().map(|planned| planned.model.as_str());
        let subject = || self.subject.as_ref().map(|subject| subject.model.as_str());
        let passed = || self.passed.model.get().map(String::as_str);
        let model = planned.or_else(subject).or_else(passed).or(self.metered.model.as_deref());
        model.filter(|model| !model.is_empty())
    }

    fn action(&self) -> Option<&str> {
        let planned = self.planned.as_ref().map(|planned| planned.action.as_str());
        // The conversation of an error was not sent.
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
            stream: self.stream_begun.map(|begun| begun.elapsed()),
            first_byte: self.upstream_first_byte_ms.map(Duration::from_millis),
            plan: self.planning,
            unsettled: match self.id {
                Some(_) => None,
                None => self.metered.usage.map(settlement::believed),
            },
        });
    }

    /// Adds the request to the ended ones that operators see.
    fn show(&self) {
        let planned = self.planned.as_ref();
        let subject = self.subject.as_deref();
        let key = self.caller.key.as_ref();
        let usage = self.metered.usage.unwrap_or_default();
        let labels = self.attribution.labels().map(|label| label.map(str::to_owned));
        let [conversation, agent, parent, class] = labels;
        let received_tokens = planned.map(|planned| planned.received_tokens);
        let limit_tokens = planned.map(|planned| planned.limit_tokens);
        self.entry.ended(live::Ended {
            seq: 0,
            ended_ms: now_ms(),
            route: self.route,
            model: self.model().map(logged),
            status: self.caller_status(),
            outcome: self.outcome.name(),
            action: self.action().map(str::to_owned),
            steps: self.steps.clone(),
            received_tokens: received_tokens.or(subject.and_then(|own| own.received_tokens)),
            sent_tokens: planned.map(|planned| planned.sent_tokens),
            limit_tokens: limit_tokens.or(subject.map(|own| own.limit_tokens)),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: usage.completion_tokens,
            cost_usd: self.cost.cost_nano_usd.map(|nano_usd| NanoUsd(nano_usd).to_decimal()),
            saved_usd: self.cost.saved_nano_usd.map(signed_usd),
            duration_ms: millis(self.begun.elapsed()),
            first_byte_ms: self.upstream_first_byte_ms,
            plan_ms: self.planning.map(|planning| (planning.as_micros() as f64) / 1000.0),
            key: key.map(|key| key.id.clone()),
            team: key.map(|key| key.team.clone()),
            upstream: self.upstream.as_deref().map(str::to_owned),
            conversation,
            agent,
            parent,
            class,
            error: match self.outcome {
                Outcome::Failed(kind) => Some(kind.code()),
                _ => None,
            },
        });
    }

    /// Ends the trace.
    fn trace(&mut self) {
        let Some(mut trace) = self.trace.take() else { return };
        let is_cut = matches!(self.outcome, Outcome::UpstreamCut | Outcome::IdleTimeout);
        // A refusal is no error of the server's, but one of the upstream's client.
        let is_error = is_cut || self.caller_status().is_some_and(|status| status >= 500);
        let is_refused = self.status.is_none_or(|status| !status.is_success());
        let mut of_attempt = spans::came_back(self.outcome, self.status);
        of_attempt.extend(spans::answer(&self.metered));
        trace.attempt_ended(is_cut || is_refused, of_attempt);
        let mut attributes = spans::request(
            (self.method.as_str(), self.route),
            self.caller_status(),
            self.outcome,
            self.action(),
        );
        let planned = self.planned.as_ref();
        attributes.extend(planned.into_iter().flat_map(spans::planned));
        attributes.extend(spans::caller(&self.caller, &self.attribution));
        attributes.extend(spans::costs(self.id, self.cost.cost_nano_usd, self.attempts));
        trace.finish(spans::name(self.method.as_str(), self.route), is_error, attributes);
    }

    fn log(&self) {
        let planned = self.planned.as_ref();
        let subject = self.subject.as_deref();
        let key = self.caller.key.as_ref();
        let [conversation, agent, parent, class] = self.attribution.labels();
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
            conversation,
            agent,
            parent,
            class,
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
            // The server renders weir's own errors, so their size is unknown here.
            bytes_out = (!matches!(self.outcome, Outcome::Failed(_))).then_some(self.bytes_out),
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            cached_tokens = usage.cached_tokens,
            cost_usd = self.cost.cost_nano_usd.map(|nano_usd| NanoUsd(nano_usd).to_decimal()),
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
        self.show();
        self.log();
        self.trace();
    }
}

/// Truncates a text for the log.
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
