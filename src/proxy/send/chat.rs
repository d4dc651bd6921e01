//! Attempts of a conversation: planned for the model of its route, and for the next one if that is
//! worthwhile. A fallback never gets less of the conversation than the first model would have had.

use std::sync::Arc;

use http::header::CONTENT_ENCODING;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::overflow_retry::OverflowRetry;
use super::{Cause, Exchange, is_cause, refused_part};
use crate::config::LargerWhen;
use crate::proxy::admit::request::ChatRequest;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::hold::account::{self, JournalEntry};
use crate::proxy::plan::Planned;
use crate::proxy::record::Record;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::Upstream;
use crate::proxy::upstreams::routes::Route;
use crate::upstream::{Inbound, Outbound, OutboundBody, Target};
use weir_engine::wire::Protocol;

/// Conversation with its current attempt and the models left to try.
pub struct Chat<'a> {
    settings: &'a Settings,
    request: ChatRequest,
    current: Attempt,
    overflow: OverflowRetry,
    route: Arc<Route>,
    /// Number of the route's fallback models that were tried or passed over.
    tried_fallbacks: usize,
    /// The larger model, until it is tried.
    larger: Option<(String, LargerWhen)>,
    /// Limit of the requested model.
    limit_tokens: u64,
}

impl<'a> Chat<'a> {
    /// Plans a conversation for the model of its route, and takes its tokens from the caller's
    /// minute. An upstream that fails repeatedly is skipped while there is another.
    pub async fn plan(
        settings: &'a Settings,
        mut request: ChatRequest,
        record: &mut Record,
    ) -> Result<Self, ProxyError> {
        let budgets = settings.journal.budgets();
        request.options.is_tight = budgets.are_tight(|| account::account(record.caller())).await;
        let routes = settings.planner.routes();
        let asked = request.model.name.as_ref();
        let route = asked.map_or(routes.unmatched(), |model| routes.find(model));
        let mut larger = route.row.larger.clone().map(|model| (model, route.row.larger_when));
        let current = choose(settings, &request, &mut larger).await?;
        let (stated, tenant) = (record.attribution(), request.caller.tenant);
        let mut origin = settings.journal.complete(&stated, tenant, &current.planned.labels);
        if let Some(class) = current.planned.class {
            origin.class = Some(class.word().to_owned());
        }
        record.attributed(origin);
        record.planned(&current.planned);
        let model = request.model.name.as_deref().unwrap_or(&current.planned.model);
        request.caller.check_model(model, &settings.config.routes)?;
        request.caller.check_provider_state(current.planned.provider_state)?;
        request.caller.check_conversation(&request.decoded, &settings.config.routes)?;
        record.take_tokens(current.planned.sent_tokens).await?;
        let limit_tokens = current.planned.limit_tokens;
        let (overflow, route) = (OverflowRetry::default(), Arc::clone(route));
        let mut chat = Self {
            settings,
            request,
            current,
            overflow,
            route,
            tried_fallbacks: 0,
            larger,
            limit_tokens,
        };
        if !chat.route.row.fallback.is_empty()
            && !chat.current.may_be_asked(tenant)
            && let Some(other) = chat.next_fallback().await
        {
            chat.enter(other, record);
        }
        Ok(chat)
    }

    /// Plans a request that was continued behind an answer to it, for the model that gave this answer in
    /// the attempt `before`, and takes its tokens from the caller's minute. No other model gets it.
    pub async fn round(
        settings: &'a Settings,
        request: ChatRequest,
        before: &Attempt,
        record: &mut Record,
    ) -> Result<Self, ProxyError> {
        record.came_back();
        let current = before.continued(settings, &request).await?;
        record.planned(&current.planned);
        record.take_tokens(current.planned.sent_tokens).await?;
        let routes = settings.planner.routes();
        let route =
            request.model.name.as_ref().map_or(routes.unmatched(), |model| routes.find(model));
        let (route, limit_tokens) = (Arc::clone(route), current.planned.limit_tokens);
        let (overflow, tried_fallbacks) = (OverflowRetry::default(), route.row.fallback.len());
        let larger = None;
        Ok(Self {
            settings,
            request,
            current,
            overflow,
            route,
            tried_fallbacks,
            larger,
            limit_tokens,
        })
    }

    /// Returns the request, and the attempt that was made last.
    pub fn into_parts(self) -> (ChatRequest, Attempt) {
        (self.request, self.current)
    }

    /// Selects the next fallback model: its upstream is not skipped, and it receives as much of the
    /// conversation as the first.
    async fn next_fallback(&mut self) -> Option<Attempt> {
        let (settings, request) = (self.settings, &self.request);
        while let Some(model) = self.route.row.fallback.get(self.tried_fallbacks) {
            self.tried_fallbacks += 1;
            let looked = Attempt::look(settings, request, Some(model)).await;
            let Ok(looked) = looked else { continue };
            let is_less = looked.planned.limit_tokens < self.limit_tokens && looked.planned.loses();
            if !is_less
                && looked.may_be_asked(request.caller.tenant)
                && let Ok(ready) = looked.settled(settings, request, Some(model)).await
            {
                return Some(ready);
            }
        }
        None
    }

    /// Holds the cost of the current attempt and records it.
    async fn open(&mut self, cause: Option<Cause>, record: &mut Record) -> Result<(), ProxyError> {
        let settings = self.settings;
        let account = account::account(&self.request.caller);
        let Attempt { upstream, target, job, planned, .. } = &mut self.current;
        let journal = &settings.journal;
        let queued = Instant::now();
        let origin = record.attribution();
        let party = (&account, &origin);
        let holding = journal.hold_planned(&settings.planner, party, job, planned).await;
        record.held(queued, holding.is_ok());
        let holding = holding?;
        let is_first = cause != Some(Cause::TooLong);
        if !is_first {
            record.planned_again(planned);
        }
        let plan_ms = record.plan_ms();
        let entry = JournalEntry::planned(account, target, planned, origin, plan_ms);
        record.account(journal.open(entry, holding).await?);
        if is_first {
            self.overflow = OverflowRetry::default();
            record.sent_to(settings.shown_name(upstream));
        }
        Ok(())
    }

    /// Records the decisions that the plan begins. If another process was first, the request is planned
    /// by its decisions.
    async fn settle_decisions(&mut self) -> Result<(), ProxyError> {
        let Attempt { job, planned, .. } = &mut self.current;
        let planner = &self.settings.planner;
        if planner.settle(planned).await {
            *planned = planner.plan_fitting(job).await?;
            // It is sent as planned, even if a third process was faster.
            planner.settle(planned).await;
        }
        Ok(())
    }

    /// Plans the request again without the model's thinking if the upstream refuses some of it, once. A
    /// request without any is refused for another reason, in words that may be its own.
    async fn drops_thinking(&mut self, inbound: &mut Inbound) -> bool {
        let Attempt { job, planned, .. } = &mut self.current;
        let may_be = self.request.protocol != Protocol::Responses && !job.options.bypass;
        if !may_be
            || job.options.is_thinking_refused
            || !refused_part::is_named(inbound, refused_part::THINKING).await
        {
            return false;
        }
        job.options.is_thinking_refused = true;
        let again = self.settings.planner.plan_fitting(job).await;
        let is_without = |again: &Planned| {
            again.body.is_some()
                && again.body != planned.body
                && again.edits.split(',').any(|edit| edit == "thinking")
        };
        let Some(again) = again.ok().filter(is_without) else {
            job.options.is_thinking_refused = false;
            return false;
        };
        planned.replace_refused(again);
        true
    }

    /// Returns the request of the current attempt.
    fn outbound(&self, cause: Option<Cause>) -> Outbound {
        let Attempt { upstream, target, job, planned, .. } = &self.current;
        let callers = self.request.headers.clone();
        let (via, endpoint) = (&self.settings.via, target.endpoint());
        let mut headers = upstream.outbound_read(callers, via, endpoint);
        let is_too_long = cause == Some(Cause::TooLong);
        let is_without_recall = self.request.recall.is_some() && job.without_recall.is_none();
        let is_changed = job.is_renamed || is_too_long || is_without_recall;
        if planned.body.is_some() || is_changed {
            headers.remove(CONTENT_ENCODING);
        }
        let unchanged = if is_changed { &job.body } else { &self.request.received };
        let body = OutboundBody::Bytes(planned.body.as_ref().unwrap_or(unchanged).clone());
        let (method, target) = (self.request.method.clone(), target.clone());
        Outbound { method, target, headers, body }
    }
}

impl Exchange for Chat<'_> {
    type Next = Attempt;

    fn place(&self) -> (&Upstream, &Target) {
        (&self.current.upstream, &self.current.target)
    }

    fn is_replayable(&self) -> bool {
        true
    }

    fn is_opened(&self) -> bool {
        true
    }

    async fn send(
        &mut self,
        cause: Option<Cause>,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        self.settle_decisions().await?;
        if !matches!(cause, Some(Cause::UsageRefused | Cause::ThinkingRefused)) {
            self.open(cause, record).await?;
        }
        let upstream = &self.current.upstream;
        let mut outbound = self.outbound(cause);
        record.sending(upstream, &mut outbound);
        let sent = upstream.client.send(outbound).await;
        let mut inbound = sent.map_err(|error| upstream.error(error))?;
        inbound.correct_type(self.current.planned.stream).await;
        let (knowledge, model) = (&upstream.knowledge, &self.current.planned.model);
        match cause.filter(|_| inbound.status.is_success()) {
            Some(Cause::UsageRefused) => knowledge.usage_refusals.note(model),
            Some(Cause::ThinkingRefused) => {
                knowledge.bound_thinking.note(self.request.caller.tenant, model);
            }
            _ => {}
        }
        Ok(inbound)
    }

    async fn correct(
        &mut self,
        inbound: &mut Inbound,
        record: &mut Record,
    ) -> Result<Option<Cause>, ProxyError> {
        let Attempt { job, planned, .. } = &mut self.current;
        if planned.usage_request.is_some()
            && refused_part::is_named(inbound, refused_part::USAGE).await
            && let Some(body) = planned.body.take()
        {
            planned.body = planned.remove_usage_request(&body);
            job.options.is_usage_refused = true;
            return Ok(Some(Cause::UsageRefused));
        }
        if self.drops_thinking(inbound).await {
            return Ok(Some(Cause::ThinkingRefused));
        }
        if self.overflow.shorten(self.settings, &mut self.current, inbound, record).await? {
            return Ok(Some(Cause::TooLong));
        }
        Ok(None)
    }

    fn model(&self) -> &str {
        &self.current.planned.model
    }

    async fn next(&mut self, sent: &mut Result<Inbound, ProxyError>) -> Option<Attempt> {
        match sent {
            Err(error) if error.kind == ErrorKind::ContextLengthExceeded => {
                let (model, _) = self.larger.take()?;
                let than = Some(self.current.planned.limit_tokens);
                larger_than(self.settings, &self.request, &model, than).await
            }
            sent => match is_cause(&self.route, sent).await {
                true => self.next_fallback().await,
                false => None,
            },
        }
    }

    fn enter(&mut self, next: Attempt, record: &mut Record) {
        record.planned(&next.planned);
        self.current = next;
    }
}

/// Plans for the requested model, or for the larger one if the conversation needs it.
async fn choose(
    settings: &Settings,
    request: &ChatRequest,
    larger: &mut Option<(String, LargerWhen)>,
) -> Result<Attempt, ProxyError> {
    let asked = request.model.name.as_deref();
    // A plan that may not be carried out settles nothing.
    let first = match larger {
        Some((_, LargerWhen::Cut)) => Attempt::look(settings, request, asked).await,
        _ => Attempt::ready(settings, request, asked).await,
    };
    let is_wanted = |when: LargerWhen| match &first {
        Ok(ready) => when == LargerWhen::Cut && ready.planned.loses(),
        Err(error) => error.kind == ErrorKind::ContextLengthExceeded,
    };
    if let Some((model, _)) = larger.take_if(|(_, when)| is_wanted(*when)) {
        let than = first.as_ref().ok().map(|ready| ready.planned.limit_tokens);
        if let Some(ready) = larger_than(settings, request, &model, than).await {
            return Ok(ready);
        }
    }
    first?.settled(settings, request, asked).await
}

/// Plans for the larger model, if its limit is above `limit_tokens`.
async fn larger_than(
    settings: &Settings,
    request: &ChatRequest,
    model: &str,
    limit_tokens: Option<u64>,
) -> Option<Attempt> {
    let looked = Attempt::look(settings, request, Some(model)).await.ok()?;
    match limit_tokens.is_none_or(|than| looked.planned.limit_tokens > than) {
        true => looked.settled(settings, request, Some(model)).await.ok(),
        false => None,
    }
}
