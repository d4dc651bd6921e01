//! Report of an ended request: its metrics, its row for operators, its log line and its trace. Reads the
//! record and decides nothing.

use std::time::Duration;

use super::{Outcome, Record, millis, spans};
use crate::proxy::hold::account::believed;
use crate::proxy::live;
use crate::proxy::logged::logged;
use crate::proxy::metrics::Finished;
use crate::proxy::plan::Planned;
use weir_store::budget::NanoUsd;
use weir_store::ledger::signed_usd;
use weir_store::now_ms;

impl Record {
    /// Counts, shows and logs the request, and ends its trace.
    pub(super) fn report(&mut self) {
        self.count();
        let ended = self.ended_row();
        self.log(&ended);
        self.reports.entry.ended(ended);
        self.trace();
    }

    /// Returns the status that the caller gets, or would have got.
    fn caller_status(&self) -> Option<u16> {
        let own = match self.outcome {
            Outcome::Failed(kind) => Some(kind.status()),
            _ => None,
        };
        own.or(self.sending.status).map(|status| status.as_u16())
    }

    /// Returns the model of the request, as far as known.
    fn model(&self) -> Option<&str> {
        let planned = self.plan.planned.as_ref().map(|planned| planned.model.as_str());
        let subject = || self.plan.subject.as_ref().map(|subject| subject.model.as_str());
        let passed = || self.plan.passed.model.get().map(String::as_str);
        let model = planned.or_else(subject).or_else(passed).or(self.metered.model.as_deref());
        model.filter(|model| !model.is_empty())
    }

    fn action(&self) -> Option<&str> {
        let planned = self.plan.planned.as_ref().map(|planned| planned.action.as_str());
        // The conversation of an error was not sent.
        let planned = planned.filter(|_| !matches!(self.outcome, Outcome::Failed(_)));
        planned.or(self.plan.passed.action)
    }

    fn count(&self) {
        let is_failed = matches!(self.outcome, Outcome::Failed(_));
        let sent = self.plan.planned.as_ref().filter(|_| !is_failed);
        self.reports.metrics.finished(&Finished {
            route: self.origin.route,
            model: self.model().unwrap_or_default(),
            outcome: self.outcome.name(),
            status: self.caller_status(),
            error: match self.outcome {
                Outcome::Failed(kind) => Some(kind),
                _ => None,
            },
            action: self.action().unwrap_or_default(),
            conversation_tokens: sent.map(|sent| {
                let planned_tokens = sent.planned_tokens().unwrap_or(sent.sent_tokens);
                [sent.received_tokens, sent.sent_tokens, planned_tokens]
            }),
            duration: self.times.begun.elapsed(),
            stream: self.times.stream_begun.map(|begun| begun.elapsed()),
            first_byte: self.sending.first_byte_ms.map(Duration::from_millis),
            plan: self.times.planning,
            unsettled: match self.accounts.id {
                Some(_) => None,
                None => self.usage().map(believed),
            },
        });
    }

    /// Returns the request's row among the ended ones that operators see.
    fn ended_row(&self) -> live::Ended {
        let planned = self.plan.planned.as_ref();
        let subject = self.plan.subject.as_deref();
        let key = self.origin.caller.key.as_ref();
        let usage = self.usage().unwrap_or_default();
        let labels = self.origin.attribution.labels().map(|label| label.map(str::to_owned));
        let [conversation, agent, parent, class] = labels;
        let received_tokens = planned.map(|planned| planned.received_tokens);
        let limit_tokens = planned.map(|planned| planned.limit_tokens);
        live::Ended {
            seq: 0,
            ended_ms: now_ms(),
            route: self.origin.route,
            model: self.model().map(logged),
            status: self.caller_status(),
            outcome: self.outcome.name(),
            action: self.action().map(str::to_owned),
            steps: self.plan.steps.clone(),
            received_tokens: received_tokens.or(subject.and_then(|own| own.received_tokens)),
            sent_tokens: planned.map(|planned| planned.sent_tokens),
            limit_tokens: limit_tokens.or(subject.map(|own| own.limit_tokens)),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: usage.completion_tokens,
            cost_usd: self
                .accounts
                .cost
                .cost_nano_usd
                .map(|nano_usd| NanoUsd(nano_usd).to_decimal()),
            saved_usd: self.accounts.cost.saved_nano_usd.map(signed_usd),
            planned_tokens: planned.and_then(Planned::planned_tokens),
            planned_saved_usd: self.accounts.cost.planned_saved_nano_usd.map(signed_usd),
            duration_ms: millis(self.times.begun.elapsed()),
            first_byte_ms: self.sending.first_byte_ms,
            plan_ms: self.times.planning.map(|planning| (planning.as_micros() as f64) / 1000.0),
            key: key.map(|key| key.id.clone()),
            team: key.map(|key| key.team.clone()),
            upstream: self.sending.upstream.as_deref().map(str::to_owned),
            conversation,
            agent,
            parent,
            class,
            error: match self.outcome {
                Outcome::Failed(kind) => Some(kind.word()),
                _ => None,
            },
        }
    }

    /// Ends the trace.
    fn trace(&mut self) {
        let Some(mut trace) = self.reports.trace.take() else { return };
        let is_cut = matches!(self.outcome, Outcome::UpstreamCut | Outcome::IdleTimeout);
        // A refusal is no error of the server's, but one of the upstream's client.
        let is_error = is_cut || self.caller_status().is_some_and(|status| status >= 500);
        let is_refused = self.sending.status.is_none_or(|status| !status.is_success());
        let mut of_attempt = spans::came_back(self.outcome, self.sending.status);
        of_attempt.extend(spans::answer(&self.metered));
        trace.attempt_ended(is_cut || is_refused, of_attempt);
        let mut attributes = spans::request(
            (self.origin.method.as_str(), self.origin.route),
            self.caller_status(),
            self.outcome,
            self.action(),
        );
        let planned = self.plan.planned.as_ref();
        attributes.extend(planned.into_iter().flat_map(spans::planned));
        attributes.extend(spans::caller(&self.origin.caller, &self.origin.attribution));
        attributes.extend(spans::costs(
            self.accounts.id,
            self.accounts.cost.cost_nano_usd,
            self.sending.attempts,
        ));
        trace.finish(
            spans::name(self.origin.method.as_str(), self.origin.route),
            is_error,
            attributes,
        );
    }

    fn log(&self, row: &live::Ended) {
        let planned = self.plan.planned.as_ref();
        tracing::info!(
            target: "weir::request",
            event = if self.usage().is_some() { "token_usage" } else { "request" },
            method = self.origin.method.as_str(),
            path = self.origin.path.as_str(),
            status = row.status,
            outcome = row.outcome,
            address = self.origin.caller.address.map(tracing::field::display),
            key = row.key.as_deref(),
            team = row.team.as_deref(),
            conversation = row.conversation.as_deref(),
            agent = row.agent.as_deref(),
            parent = row.parent.as_deref(),
            class = row.class.as_deref(),
            model = row.model.as_deref(),
            action = row.action.as_deref(),
            edits = planned.map(|planned| planned.edits.as_str()),
            received_tokens = row.received_tokens,
            sent_tokens = row.sent_tokens,
            limit_tokens = row.limit_tokens,
            messages = planned.map(|planned| planned.messages),
            reread_tokens = planned.map(|own| own.compaction.rereads.new_tokens).filter(|own| *own > 0),
            stream = planned.map(|planned| planned.stream),
            upstream = row.upstream.as_deref(),
            attempts = (self.sending.attempts > 1).then_some(self.sending.attempts),
            overflows = (self.sending.overflows > 0).then_some(self.sending.overflows),
            upstream_first_byte_ms = row.first_byte_ms,
            total_ms = row.duration_ms,
            // The server renders weir's own errors, so their size is unknown here.
            bytes_out = (!matches!(self.outcome, Outcome::Failed(_))).then_some(self.bytes_out),
            prompt_tokens = row.prompt_tokens,
            completion_tokens = row.completion_tokens,
            cached_tokens = row.cached_tokens,
            cost_usd = row.cost_usd.as_deref(),
            planned_tokens = row.planned_tokens,
            planned_saved_usd = row.planned_saved_usd.as_deref(),
            id = self.accounts.id.map(tracing::field::display),
            finish_reason = self.metered.finish_reason.as_deref(),
            "request"
        );
    }
}
