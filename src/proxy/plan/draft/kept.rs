//! Plans by the decisions that a conversation keeps: for models that bind their thinking to everything
//! before it, and where pauses make compactions. Says when they end; `decisions.rs` records them.

use std::sync::Arc;

use super::{Draft, Given, map};
use crate::proxy::plan::decisions::{Begun, Looking};
use crate::proxy::plan::plan_cache::LastSent;
use crate::proxy::plan::planned::Job;
use weir_engine::compact::policy::Goal;
use weir_engine::compact::report::Treatment;
use weir_engine::compact::{Fact, Measure};
use weir_engine::plan::{Mode, Plan, PlanError, PlanOptions, extra_tokens};
use weir_engine::tokens::REPLY_PRIMING;
use weir_engine::wire::Request;
use weir_eval::bill::cold_after_ms;

/// Least bytes of a conversation that a compaction by price may have shortened: 16,000 tokens of history stay.
const LEAST_COLD_BYTES: usize = 48_000;

/// Size of a plan by another way of counting than its own.
#[derive(Clone, Copy)]
pub(super) struct Counted {
    pub received_tokens: u64,
    pub sent_tokens: u64,
}

impl Draft {
    /// Looks up the decisions that the conversation keeps, if its model binds its thinking, and plans
    /// by them. Returns `false` if that takes longer than the request's own task may.
    pub(super) fn find_decisions(
        &mut self,
        Given { shared, job, request }: Given<'_>,
        may_block: bool,
    ) -> bool {
        let head = request.head();
        if !self.has_decisions() || self.found.is_some() || request.messages.len() == head {
            return true;
        }
        let (tenant, protocol) = (job.tenant, request.protocol);
        let own = &self.hashes(shared, request)[head..];
        let ends = shared.state.cache.prefixes_of(tenant, protocol, own);
        let bytes: usize = request.messages.iter().map(|raw| raw.len()).sum();
        let may_be_cold = self.is_compacted_cold() && bytes >= LEAST_COLD_BYTES;
        let looking = Looking {
            tenant,
            protocol,
            messages: &request.messages[head..],
            ends: &ends,
            // Hardly any text takes more tokens than bytes.
            may_be_compacted: may_be_cold || bytes as u64 >= self.options.input_tokens(request),
            needs_thinking: !may_be_cold,
        };
        let Some(found) = shared.state.decisions.look(&looking, may_block) else { return false };
        if let Some(decisions) = &found.decisions {
            self.current = Some(Box::new(self.options.clone()));
            self.options.keep(Arc::clone(decisions));
        }
        self.found = Some(found);
        true
    }

    /// Whether the conversation keeps its decisions.
    pub(in crate::proxy::plan) fn has_decisions(&self) -> bool {
        (self.options.policy.is_thinking_bound || self.is_compacted_cold())
            && self.options.mode == Mode::Compact
    }

    /// Whether the conversation is compacted after a pause that the provider's cache does not outlive.
    fn is_compacted_cold(&self) -> bool {
        matches!(self.options.policy.zones.goal, Goal::Cold(_))
    }

    /// Whether the provider's cache has dropped what was sent of the conversation before, so that a compaction now
    /// costs no more than the request itself.
    pub(super) fn is_cold(&self, request: &Request<'_>) -> bool {
        let last_sent = self.conversation.as_ref().map(|own| &own.last_sent);
        let may = self.is_compacted_cold() && self.has_decisions() && !self.is_side;
        let pause = last_sent.filter(|_| may).and_then(LastSent::pause);
        pause.is_some_and(|pause| {
            pause.as_millis() > u128::from(cold_after_ms(&self.model, request.text))
        })
    }

    /// Returns to the options by configuration, and leaves out all thinking so far: a new plan moves
    /// what stands before it.
    pub(in crate::proxy::plan) fn begin_again(&mut self) {
        if let Some(current) = self.current.take() {
            self.options = *current;
        }
        self.options.drops_thinking = self.options.policy.is_thinking_bound;
        self.is_begun_again = true;
        self.extras.fill(None);
        self.conversation = None;
    }

    /// Returns the way of counting by configuration, if the kept decisions count otherwise.
    pub(super) fn other_measure(&self) -> Option<Measure> {
        let current = self.current.as_ref()?;
        (current.measure != self.options.measure).then_some(current.measure)
    }

    /// Counts a plan by the configuration's way of counting, if kept decisions count otherwise.
    pub(super) fn counted(&self, given: Given<'_>, plan: &Plan) -> Option<Counted> {
        let Given { shared, job, request } = given;
        let measure = self.other_measure()?;
        let cache = &shared.state.cache;
        let overhead_tokens = REPLY_PRIMING + self.extras_by(measure, given);
        let protocol = request.protocol;
        let by = (job.tenant, protocol, measure);
        let keys: Vec<u128> = self.hashes.iter().map(|own| cache.content_key(by, *own)).collect();
        let unknown: Vec<usize> =
            (0..keys.len()).filter(|message| cache.fact(keys[*message]).is_none()).collect();
        let count = move |raw: &str| Some(measure.fact(&protocol.read_message(raw).ok()?));
        let mut tokens = vec![0; request.messages.len()];
        for (message, fact) in unknown.iter().zip(map(given, &unknown, count)) {
            let fact: Fact = fact?;
            cache.keep_fact(keys[*message], fact);
            tokens[*message] = fact.tokens;
        }
        for (tokens, key) in tokens.iter_mut().zip(&keys).filter(|(tokens, _)| **tokens == 0) {
            *tokens = cache.fact(*key).map_or(0, |fact| fact.tokens);
        }
        let received_tokens = tokens.iter().sum::<u64>() + overhead_tokens;
        let sent_tokens = match plan.treatment {
            Treatment::Compacted => plan.end.sent_tokens_by(|message| tokens[message]),
            _ => received_tokens - overhead_tokens,
        };
        Some(Counted { received_tokens, sent_tokens: sent_tokens + overhead_tokens })
    }

    /// Counts the items outside the messages by another way of counting.
    fn extras_by(&self, measure: Measure, Given { shared, job, request }: Given<'_>) -> u64 {
        let cache = &shared.state.cache;
        let tokens = request.extras.iter().map(|extra| {
            let key = cache.extra_key(job.tenant, measure, extra);
            cache.extra(key).unwrap_or_else(|| {
                let tokens = extra_tokens(measure, extra);
                cache.keep_extra(key, tokens);
                tokens
            })
        });
        tokens.sum()
    }

    /// Whether the conversation must be planned by the configuration, without its thinking so far.
    ///
    /// Kept decisions end if they no longer fit, or with a compaction, which moves the prefix in any
    /// case. Without any, a compaction of an earlier request shows here for the first time, or it is
    /// unknown what was sent.
    pub(super) fn must_begin_again(
        &self,
        given: Given<'_>,
        (plan, counted): (&Result<Plan, PlanError>, Option<Counted>),
    ) -> bool {
        let Some(found) = self.found.as_ref().filter(|_| !self.is_begun_again) else {
            return false;
        };
        let Some(current) = &self.current else {
            let is_shown_late =
                |plan: &Plan| plan.treatment == Treatment::Compacted && !plan.is_compacted_here;
            return found.thinks
                && self.options.policy.is_thinking_bound
                && !self.options.drops_thinking
                && plan.as_ref().is_ok_and(is_shown_late);
        };
        match plan {
            Ok(plan) => {
                let is_too_much =
                    counted.is_some_and(|counted| counted.sent_tokens > plan.limit_tokens);
                is_too_much || (plan.is_compacted_here && self.has_moved(current, given))
            }
            Err(PlanError::CannotFit(_)) => self.has_moved(current, given),
            Err(PlanError::Message { .. } | PlanError::Stopped { .. }) => false,
        }
    }

    /// Whether the options by configuration lead to other plans than the kept decisions.
    fn has_moved(&self, current: &PlanOptions, given: Given<'_>) -> bool {
        let extras_tokens = self.extras_by(current.measure, given);
        let kept = self.options.kept.as_ref();
        kept.is_some_and(|kept| {
            kept.profile != current.profile(given.request, extras_tokens)
                || kept.late_system_as_user != current.late_system_as_user
        })
    }

    /// Returns the decisions that this plan is the first of its conversation to follow.
    pub(super) fn begun(&self, job: &Job, request: &Request<'_>, plan: &Plan) -> Option<Begun> {
        let is_first = plan.treatment == Treatment::Compacted && !self.options.passes_whole;
        let found = self.found.as_ref().filter(|_| is_first)?;
        let mut decisions = self.options.decisions(request, self.extras.iter().flatten().sum());
        if plan.is_early {
            decisions.compacted_at.push(request.messages.len());
        }
        let is_new = self.options.kept.as_deref() != Some(&decisions);
        // The record of each compaction is near for those that look for it.
        (is_new || plan.is_compacted_here)
            .then(|| found.begin(job.tenant, decisions, self.options.drops_thinking))
    }
}
