//! Record of one request: its account in the journal, and one log line at its end. No part of a
//! conversation is kept or logged.

pub mod outcome;
mod presence;
mod report;
mod spans;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

pub use self::outcome::Outcome;
pub use self::presence::Presence;
use crate::proxy::admit::{admission::Admission, attribution::BodyLabels, caller::Caller};
use crate::proxy::error::{ErrorKind, OverLimit, Proxied, ProxyError};
use crate::proxy::hold::account::{End, Ended};
use crate::proxy::hold::journal::{Account, Awaited, Cost};
use crate::proxy::live;
use crate::proxy::logged::{clipped, logged};
use crate::proxy::metrics::{Metrics, Resend};
use crate::proxy::plan::{LeftOut, Planned, ReadAhead};
use crate::proxy::traces::Trace;
use crate::proxy::traces::context::{TRACEPARENT, TRACESTATE, TraceContext};
use crate::proxy::upstreams::{Upstream, learned::Sampling, probe::Probe};
use crate::upstream::retry::Tried;
use crate::upstream::{Outbound, Target};
use weir_engine::wire::usage::{Metered, Usage};
use weir_store::ledger::{Attribution, RequestId};
use weir_store::rates::MinuteLeft;

/// Log line and metrics of one request, written on drop: if a request's future or body is dropped,
/// its caller has left.
#[must_use = "a record dropped early reports that the caller left"]
pub struct Record {
    origin: Origin,
    plan: PlanFacts,
    sending: Sending,
    times: Times,
    reports: Reports,
    accounts: Accounts,
    presence: Arc<Presence>,
    /// Bytes of the answer sent to the caller.
    pub bytes_out: u64,
    /// Facts from the answer, once it has ended.
    pub metered: Metered,
    pub outcome: Outcome,
    /// Whether the answer has ended.
    has_end: bool,
}

/// Who asks for what.
struct Origin {
    method: Method,
    path: String,
    route: &'static str,
    caller: Caller,
    attribution: Arc<Attribution>,
}

/// Facts of the conversation: from its plan, or as far as known without one.
#[derive(Default)]
struct PlanFacts {
    planned: Option<Planned>,
    /// Steps of the compaction that this request caused, if it did.
    steps: Option<String>,
    passed: Passed,
    /// Conversation that weir's own error is about, if there is no plan.
    subject: Option<Box<OverLimit>>,
}

/// Attempts, and the answer of the upstream to the last one.
#[derive(Default)]
struct Sending {
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
    status: Option<StatusCode>,
    /// Whether the answer failed before its first content, although it came with a success.
    has_failed: bool,
    first_byte_ms: Option<u64>,
}

/// Times at which the phases began, the latest of each.
struct Times {
    begun: Instant,
    /// Start of planning: with the request, or when the previous attempt returned.
    turned: Instant,
    /// Time at which the request was ready to be sent.
    ready: Instant,
    /// Duration of all its plans together.
    planning: Option<Duration>,
    /// Time at which the last attempt was sent.
    sent: Instant,
    /// Start of an answer that comes in events.
    stream_begun: Option<Instant>,
    /// Start of the settlement.
    settling: Option<Instant>,
}

/// Where the request is reported, besides the log.
struct Reports {
    metrics: Arc<Metrics>,
    /// Place among the requests in flight.
    entry: live::Entry,
    trace: Option<Box<Trace>>,
}

/// Limits that it counts towards, and its cost in the journal.
struct Accounts {
    admission: Admission,
    account: Option<Account>,
    /// Response in the background that it asks for.
    awaited: Option<Awaited>,
    id: Option<RequestId>,
    cost: Cost,
    /// Tokens taken from the key's minute for what is under way.
    taken_tokens: u64,
    rounds: Rounds,
}

/// Rounds of the recall tool that are settled, while the request goes on.
#[derive(Default)]
struct Rounds {
    usage: Option<Usage>,
    /// Tokens that they used of the key's minute.
    tokens: u64,
    /// Whether the answer that is relayed reports the usage of all rounds.
    is_in_answer: bool,
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
            origin: Origin {
                method: method.clone(),
                path: logged(target.path()),
                route: target.endpoint().label(),
                caller,
                attribution: Arc::default(),
            },
            plan: PlanFacts::default(),
            sending: Sending::default(),
            times: Times::starting(now),
            reports: Reports { metrics: Arc::clone(metrics), entry, trace: None },
            accounts: Accounts {
                admission,
                account: None,
                awaited: None,
                id: None,
                cost: Cost::default(),
                taken_tokens: 0,
                rounds: Rounds::default(),
            },
            presence: Arc::default(),
            bytes_out: 0,
            metered: Metered::default(),
            outcome: Outcome::CallerLeft,
            has_end: false,
        }
    }

    /// Shares what is known of the caller's presence.
    pub fn attended(&mut self, presence: Arc<Presence>) {
        if let Some(slot) = self.accounts.admission.take_slot() {
            presence.occupies(slot);
        }
        self.presence = presence;
    }

    /// Returns what is known of the caller's presence.
    pub fn presence(&self) -> Arc<Presence> {
        Arc::clone(&self.presence)
    }

    /// Starts the trace that `begin` makes of a request with this start.
    pub fn traced(&mut self, begin: impl FnOnce(Instant) -> Option<Box<Trace>>) {
        self.reports.trace = begin(self.times.begun);
    }

    /// Records the origin of the request.
    pub fn attributed(&mut self, attribution: Attribution) {
        self.origin.attribution = Arc::new(attribution);
        self.reports.entry.attributed(&self.origin.attribution);
    }

    /// Returns the origin of the request.
    pub fn attribution(&self) -> Arc<Attribution> {
        Arc::clone(&self.origin.attribution)
    }

    /// Records the plan, without the body.
    pub fn planned(&mut self, planned: &Planned) {
        let begun = self.times.turned.max(self.times.ready);
        self.times.ready = Instant::now();
        *self.times.planning.get_or_insert_default() += self.times.ready - begun;
        let (received_tokens, sent_tokens) = (planned.received_tokens, planned.sent_tokens);
        self.reports.entry.planned(clipped(&planned.model), received_tokens, sent_tokens);
        if let Some(trace) = &mut self.reports.trace {
            trace.step("plan", (begun, self.times.ready), false, spans::planned(planned));
        }
        self.plan.planned = Some(Planned {
            body: None,
            action: planned.action.clone(),
            edits: planned.edits.clone(),
            labels: BodyLabels::default(),
            left_out: LeftOut::default(),
            model: logged(&planned.model),
            upstream: planned.upstream.clone(),
            prefetch: None,
            shortened: None,
            budget: None,
            compacted_by: String::new(),
            progress: None,
            begun: None,
            read_ahead: ReadAhead::default(),
            ..*planned
        });
    }

    /// Records the plan that replaces one refused as too long.
    pub fn planned_again(&mut self, planned: &Planned) {
        self.planned(planned);
        self.reports.metrics.resent(Resend::Overflow);
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
    /// first request; in observe mode it is only counted.
    pub fn taken(&mut self, planned: &Planned) {
        let is_first = planned.progress.as_ref().is_some_and(|own| own.note(Instant::now()));
        if !is_first || planned.compacted_by.is_empty() {
            return;
        }
        if !planned.compaction.is_new {
            self.reports.metrics.observed();
            return;
        }
        self.reports.metrics.compacted(&planned.compacted_by);
        self.plan.steps = Some(planned.compacted_by.clone());
        tracing::info!(
            target: "weir::context",
            event = "compaction",
            steps = planned.compacted_by,
            model = logged(&planned.model),
            received_tokens = planned.received_tokens,
            sent_tokens = planned.sent_tokens,
            limit_tokens = planned.limit_tokens,
            compactions = planned.compactions,
            id = self.accounts.id.map(tracing::field::display),
            "compacted a conversation"
        );
    }

    /// Records the known facts of a request that is forwarded unread.
    pub fn passed(&mut self, passed: Passed) {
        self.plan.passed = passed;
    }

    /// Returns the model that an unread request is known to name.
    pub fn passed_model(&self) -> Option<&str> {
        self.plan.passed.model.get().map(String::as_str)
    }

    /// Records that the request has waited since `begun` for the amount to hold.
    pub fn held(&mut self, begun: Instant, is_granted: bool) {
        if let Some(trace) = &mut self.reports.trace {
            trace.step("hold", (begun, Instant::now()), !is_granted, Vec::new());
        }
    }

    /// Records that `outbound` is sent to `upstream`, and puts the trace's context into its headers, if
    /// there is a trace.
    pub fn sending(&mut self, upstream: &Upstream, outbound: &mut Outbound) {
        self.times.sent = Instant::now();
        self.presence.sent(true);
        let Some(trace) = &mut self.reports.trace else { return };
        let model = self.plan.planned.as_ref().map(|planned| planned.model.as_str());
        let model = model.or_else(|| self.plan.passed.model.get().map(String::as_str));
        let limit_tokens = self.plan.planned.as_ref().and_then(|planned| planned.max_output_tokens);
        let (name, attributes) = spans::attempt(
            upstream,
            (self.origin.route, self.origin.method.as_str()),
            model,
            limit_tokens,
        );
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
        self.reports.metrics.tried(&upstream.name, tried, self.times.sent.elapsed());
    }

    /// Records that an attempt has returned and another one may be planned.
    pub fn came_back(&mut self) {
        self.times.turned = Instant::now();
    }

    /// Counts the request's tokens, or refuses it if the minute has no room.
    pub async fn take_tokens(&mut self, tokens: u64) -> Proxied<()> {
        self.accounts.admission.take_tokens(tokens).await?;
        self.accounts.taken_tokens = self.accounts.taken_tokens.saturating_add(tokens);
        Ok(())
    }

    /// Returns the remaining limits of the key's current minute.
    pub fn minute_left(&self) -> MinuteLeft {
        self.accounts.admission.left()
    }

    /// Replaces the counted tokens by the actual ones, together with those of the rounds before. What was
    /// not sent or not accepted used nothing; if the upstream reports nothing, the count stands.
    fn settle_tokens(&mut self) {
        let rounds = &self.accounts.rounds;
        let reported = match rounds.is_in_answer {
            true => Some(0),
            // What is read again was used by an earlier request.
            false if self.origin.method == Method::GET => Some(0),
            false => {
                let counted = |usage| self.accounts.admission.counted_tokens(usage);
                self.metered.usage.and_then(counted)
            }
        };
        let stands = self.is_success() || self.outcome == Outcome::CallerLeft;
        let last = reported.unwrap_or(if stands { self.accounts.taken_tokens } else { 0 });
        let used = rounds.tokens.saturating_add(last);
        self.accounts.admission.settle_tokens(used);
    }

    /// Returns the usage of the request: of all its rounds together.
    fn usage(&self) -> Option<Usage> {
        let Rounds { usage: earlier, is_in_answer, .. } = self.accounts.rounds;
        match (earlier, self.metered.usage.filter(|_| !is_in_answer)) {
            (Some(earlier), last) => Some(earlier.plus(last.unwrap_or_default())),
            (None, last) => last,
        }
    }

    /// Records that the request is ready to be sent.
    pub fn ready(&mut self) {
        self.times.ready = Instant::now();
        self.times.turned = self.times.ready;
    }

    /// Records the edits that remain after the upstream's answer.
    pub fn edited(&mut self, planned: &Planned) {
        if let Some(own) = &mut self.plan.planned {
            planned.edits.clone_into(&mut own.edits);
        }
    }

    /// Returns the time until this attempt was ready to be sent.
    pub fn plan_ms(&self) -> u64 {
        millis(self.times.ready - self.times.turned)
    }

    /// Keeps the journal account opened for the request.
    pub fn account(&mut self, account: Option<Account>) {
        self.accounts.id = account.as_ref().map(Account::id);
        self.accounts.account = account;
    }

    /// Keeps the place of the account that the answer may settle.
    pub fn awaits(&mut self, awaited: Option<Awaited>) {
        self.accounts.awaited = awaited;
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
        &self.origin.caller
    }

    /// Returns the request's ID in the journal, if it has one.
    pub fn id(&self) -> Option<RequestId> {
        self.accounts.id
    }

    /// Ends the record of a request without an answer, and returns its error.
    pub async fn failed(mut self, error: ProxyError) -> ProxyError {
        self.outcome = Outcome::Failed(error.kind);
        self.plan.subject.clone_from(&error.subject);
        if let Some((account, ended)) = self.end() {
            account.settle(ended).await;
            self.trace_settlement();
        }
        error
    }

    /// Keeps a prompt to compare with the upstream's report.
    pub fn sample(&mut self, sampling: Option<Sampling>) {
        self.sending.sampling = sampling;
    }

    /// Keeps a probe to complete if the upstream accepts the request.
    pub fn probe(&mut self, probe: Option<Arc<Probe>>) {
        self.sending.probe = probe;
    }

    /// Learns from the upstream's report of the prompt. Parts that are not text are counted by
    /// other rules.
    fn learn(&mut self) {
        let usage = self.metered.usage.unwrap_or_default();
        let other = [usage.image_input_tokens, usage.audio_input_tokens];
        let is_text = other.into_iter().flatten().all(|tokens| tokens == 0);
        if let (Some(sampling), Some(reported)) =
            (self.sending.sampling.take(), usage.prompt_tokens)
            && is_text
        {
            sampling.take(reported);
        }
    }

    /// Settles an attempt that was refused as too long. `is_sent_again` is whether another follows.
    pub async fn refused(&mut self, status: StatusCode, is_sent_again: bool) {
        self.sending.overflows += 1;
        let _ = self.settle_before(Outcome::Overflow, Some(status), is_sent_again).await;
    }

    /// Settles a failed attempt; the request is sent again, there or elsewhere.
    pub async fn gave_way(&mut self, came_back: Result<StatusCode, ErrorKind>) {
        self.reports.metrics.resent(Resend::Failure);
        let _ = match came_back {
            Ok(status) => self.settle_before(Outcome::Retried, Some(status), true).await,
            Err(kind) => self.settle_before(Outcome::Failed(kind), None, true).await,
        };
    }

    /// Settles a round of the recall tool, whose answer has been read to its end; the conversation is sent
    /// on.
    pub async fn round(&mut self, status: StatusCode, metered: Metered) {
        self.reports.metrics.resent(Resend::Recall);
        self.settle_round(Outcome::Recalled, status, metered).await;
    }

    /// Settles the last of several rounds, before its caller gets an answer with the usage of all.
    pub async fn last_round(&mut self, status: StatusCode, metered: Metered) {
        self.settle_round(Outcome::Complete, status, metered).await;
        self.accounts.rounds.is_in_answer = true;
    }

    /// Settles a round that failed, or that the upstream refused: it is not sent again.
    pub async fn round_failed(&mut self, came_back: Result<StatusCode, ErrorKind>) {
        self.accounts.taken_tokens = 0;
        let outcome = match came_back {
            Ok(status) if status.is_success() => Outcome::UpstreamFailed,
            Ok(_) => Outcome::Complete,
            Err(kind) => Outcome::Failed(kind),
        };
        if let Some(cost) = self.settle_before(outcome, came_back.ok(), false).await {
            self.settled(cost);
        }
    }

    async fn settle_round(&mut self, outcome: Outcome, status: StatusCode, metered: Metered) {
        self.metered = metered;
        self.learn();
        let metered = std::mem::take(&mut self.metered);
        if let Some(probe) = self.sending.probe.take() {
            probe.accepted(metered.usage.and_then(|usage| usage.prompt_tokens));
        }
        let Accounts { rounds, taken_tokens, admission, .. } = &mut self.accounts;
        let taken_tokens = std::mem::take(taken_tokens);
        let counted = metered.usage.and_then(|usage| admission.counted_tokens(usage));
        let used_tokens = counted.unwrap_or(taken_tokens);
        rounds.tokens = rounds.tokens.saturating_add(used_tokens);
        if let Some(usage) = metered.usage {
            rounds.usage = Some(rounds.usage.unwrap_or_default().plus(usage));
        }
        if let Some(trace) = &mut self.reports.trace {
            let mut of_attempt = spans::came_back(outcome, Some(status));
            of_attempt.extend(spans::answer(&metered));
            trace.attempt_ended(false, of_attempt);
        }
        self.presence.sent(false);
        let Some(account) = self.accounts.account.take() else { return };
        let is_replaced = outcome == Outcome::Recalled;
        let ended = self.times.ended(outcome, Some(status), metered, is_replaced);
        let cost = account.settle(ended).await;
        self.settled(cost);
    }

    /// Records that the request is sent, and its upstream.
    pub fn sent_to(&mut self, upstream: Option<&Arc<str>>) {
        self.sending.attempts += 1;
        self.sending.upstream = upstream.cloned();
    }

    /// Returns the number of attempts, without those refused as too long.
    pub fn attempts(&self) -> u64 {
        self.sending.attempts
    }

    async fn settle_before(
        &mut self,
        outcome: Outcome,
        status: Option<StatusCode>,
        is_replaced: bool,
    ) -> Option<Cost> {
        if let Some(trace) = &mut self.reports.trace {
            trace.attempt_ended(true, spans::came_back(outcome, status));
        }
        self.presence.sent(false);
        let account = self.accounts.account.take()?;
        let metered = std::mem::take(&mut self.metered);
        let ended = self.times.ended(outcome, status, metered, is_replaced);
        Some(account.settle(ended).await)
    }

    /// Records that an answer has begun; `is_stream` if it comes in events.
    pub fn answered(&mut self, status: StatusCode, is_stream: bool) {
        self.sending.status = Some(status);
        self.times.stream_begun = is_stream.then(Instant::now);
        let sent = self.times.sent.max(self.times.ready);
        // It may have been read since its head came.
        let begun = Some(self.times.turned).filter(|turned| *turned > sent);
        self.sending.first_byte_ms =
            Some(millis(begun.unwrap_or_else(Instant::now).saturating_duration_since(sent)));
    }

    /// Records that weir has answered the request itself.
    pub fn answered_by_weir(&mut self, status: StatusCode, bytes: u64) {
        (self.sending.status, self.bytes_out) = (Some(status), bytes);
        self.ended(false);
    }

    /// Whether the upstream accepted the request.
    pub fn is_success(&self) -> bool {
        self.sending.status.is_some_and(|status| status.is_success())
    }

    /// Records the usage in an answer that its caller does not get: it is billed, too.
    pub fn reported(&mut self, metered: Metered) {
        if metered.usage.is_some() {
            self.metered = metered;
        }
    }

    /// Records that the answer failed before its first content, although it came with a success.
    pub fn failed_at_opening(&mut self) {
        self.sending.has_failed = true;
    }

    /// Returns the figures of the answer. Nobody charges for one that failed before its content, unless it reports
    /// usage or content follows.
    fn metered(&self) -> Metered {
        let has_content = self.metered.said_bytes > 0 || self.metered.has_content;
        let metered = match self.sending.has_failed && !has_content {
            true => Metered { failed: true, done: true, ..self.metered.clone() },
            false => self.metered.clone(),
        };
        let named = || self.plan.passed.model.get().cloned();
        Metered { model: self.metered.model.clone().or_else(named), ..metered }
    }

    /// Returns the account and its settlement data, on the first call only.
    pub fn end(&mut self) -> Option<(Account, Ended)> {
        if let Some(probe) = self.sending.probe.take().filter(|_| self.is_success()) {
            probe.accepted(self.metered.usage.and_then(|usage| usage.prompt_tokens));
        }
        if self.accounts.account.is_none() && self.accounts.awaited.is_none() {
            return None;
        }
        let ended = Ended {
            end: match self.metered.done || self.has_end {
                true => End::Seen,
                false => self.outcome.end(),
            },
            outcome: self.outcome.name(),
            status: self.sending.status.map(|status| status.as_u16()),
            metered: self.metered(),
            first_byte_ms: self.sending.first_byte_ms,
            total_ms: Some(millis(self.times.begun.elapsed())),
            is_replaced: false,
        };
        let awaited = || self.accounts.awaited.take()?.take(&ended);
        let account = self.accounts.account.take().or_else(awaited)?;
        self.times.settling = Some(Instant::now());
        Some((account, ended))
    }

    /// Records the cost of the request, or of one of its rounds.
    pub fn settled(&mut self, cost: Cost) {
        self.accounts.cost = self.accounts.cost.plus(cost);
        self.trace_settlement();
    }

    fn trace_settlement(&mut self) {
        if let (Some(begun), Some(trace)) = (self.times.settling.take(), &mut self.reports.trace) {
            trace.step("settle", (begun, Instant::now()), false, Vec::new());
        }
    }
}

impl Times {
    /// Returns the times of a request that begins now.
    fn starting(now: Instant) -> Self {
        Self {
            begun: now,
            turned: now,
            ready: now,
            planning: None,
            sent: now,
            stream_begun: None,
            settling: None,
        }
    }

    /// Describes an attempt that has ended before the request, with an answer that was read, if any.
    fn ended(
        &self,
        outcome: Outcome,
        status: Option<StatusCode>,
        metered: Metered,
        is_replaced: bool,
    ) -> Ended {
        Ended {
            end: outcome.end(),
            outcome: outcome.name(),
            status: status.map(|status| status.as_u16()),
            metered,
            first_byte_ms: Some(millis(self.turned.saturating_duration_since(self.ready))),
            total_ms: Some(millis(self.begun.elapsed())),
            is_replaced,
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.settle_tokens();
        self.learn();
        if let Some((account, ended)) = self.end() {
            account.settle_behind(ended);
        }
        self.report();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_comes_before_the_answer_is_read() {
        let caller = Caller::new(weir_store::Tenant([0; 16]), None);
        let live = Arc::new(live::Live::default());
        let entry = live.begin("chat", &caller);
        let base = crate::upstream::Base::parse("http://localhost/v1").expect("a base");
        let target = Target::map(&base, "/v1/chat/completions").expect("a known path");
        let origin = (caller, Admission::unlimited());
        let mut record = Record::begin(&Method::POST, &target, origin, &Arc::default(), entry);
        record.times.sent += Duration::from_secs(1);
        record.times.turned += Duration::from_secs(3);
        record.answered(StatusCode::OK, false);
        assert_eq!(record.sending.first_byte_ms, Some(2000));
    }
}
