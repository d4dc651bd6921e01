//! Attempts of a conversation: planned for the model of its route, and for the next one if that is
//! worthwhile. A fallback never gets less of the conversation than the first model would have had.

use std::sync::Arc;

use http::header::CONTENT_ENCODING;

pub use super::attempt::{Attempt, ChatRequest, PlannedAttempt};
use super::overflow_retry::OverflowRetry;
use super::{Cause, Exchange, may_pass, probe, request_usage};
use crate::config::LargerWhen;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::hold::account::{self, Opening};
use crate::proxy::plan::Planned;
use crate::proxy::settings::Settings;
use crate::proxy::settle::record::Record;
use crate::proxy::summaries::Requester;
use crate::proxy::upstreams::Upstream;
use crate::proxy::upstreams::routes::Route;
use crate::upstream::{Inbound, Outbound, OutboundBody, Target};

/// Conversation with its current attempt and the models left to try.
pub struct Chat<'a> {
    settings: &'a Settings,
    request: ChatRequest,
    current: PlannedAttempt,
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
        request: ChatRequest,
        record: &mut Record,
    ) -> Result<Self, ProxyError> {
        let routes = settings.planner.routes();
        let route = request.model.as_ref().map_or(routes.unmatched(), |model| routes.find(model));
        let mut larger = route.larger().map(|(model, when)| (model.to_owned(), when));
        let planning = Planning { settings, request: &request };
        let current = planning.choose(&mut larger).await?;
        record.planned(&current.planned);
        let model = request.model.as_deref().unwrap_or(&current.planned.model);
        request.caller.check_model(model, &settings.config.routes)?;
        request.caller.check_conversation(&request.readable, &settings.config.routes)?;
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
        if !chat.route.fallback().is_empty()
            && !chat.current.attempt.upstream.lets_through()
            && let Some(other) = chat.next_fallback().await
        {
            chat.enter(other, record);
        }
        Ok(chat)
    }

    /// Returns the attempt that was made last.
    pub fn into_current(self) -> PlannedAttempt {
        self.current
    }

    /// Selects the next fallback model: its upstream is not skipped, and it receives as much of the
    /// conversation as the first.
    async fn next_fallback(&mut self) -> Option<PlannedAttempt> {
        let planning = Planning { settings: self.settings, request: &self.request };
        while let Some(model) = self.route.fallback().get(self.tried_fallbacks) {
            self.tried_fallbacks += 1;
            let Ok(looked) = planning.look(Some(model)).await else { continue };
            let is_less = looked.planned.limit_tokens < self.limit_tokens && looked.planned.loses();
            if !is_less
                && looked.attempt.upstream.lets_through()
                && let Ok(ready) = planning.settled(Some(model), looked).await
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
        let PlannedAttempt { attempt, planned } = &mut self.current;
        let journal = &settings.journal;
        let holding =
            journal.hold_planned(&settings.planner, &account, &mut attempt.job, planned).await?;
        let is_first = cause != Some(Cause::TooLong);
        if !is_first {
            record.planned_again(planned);
        }
        let opening = Opening::planned(account, &attempt.target, planned, record.plan_ms());
        record.account(journal.open(opening, holding).await?);
        if is_first {
            self.overflow = OverflowRetry::default();
            record.sent_to(settings.shown_name(&attempt.upstream));
        }
        Ok(())
    }

    /// Returns the request of the current attempt.
    fn outbound(&self, cause: Option<Cause>) -> Outbound {
        let PlannedAttempt { attempt, planned } = &self.current;
        let callers = self.request.headers.clone();
        let (via, endpoint) = (&self.settings.via, attempt.target.endpoint());
        let mut headers = attempt.upstream.outbound_read(callers, via, endpoint);
        let is_too_long = cause == Some(Cause::TooLong);
        if planned.body.is_some() || attempt.is_renamed || is_too_long {
            headers.remove(CONTENT_ENCODING);
        }
        let unchanged = if is_too_long { &attempt.job.body } else { &attempt.received };
        let body = OutboundBody::Bytes(planned.body.as_ref().unwrap_or(unchanged).clone());
        let (method, target) = (self.request.method.clone(), attempt.target.clone());
        Outbound { method, target, headers, body }
    }
}

impl Exchange for Chat<'_> {
    type Next = PlannedAttempt;

    fn place(&self) -> (&Upstream, &Target) {
        (&self.current.attempt.upstream, &self.current.attempt.target)
    }

    fn is_replayable(&self) -> bool {
        true
    }

    async fn send(
        &mut self,
        cause: Option<Cause>,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        if cause != Some(Cause::UsageRefused) {
            self.open(cause, record).await?;
        }
        let upstream = &self.current.attempt.upstream;
        let sent = upstream.client.send(self.outbound(cause)).await;
        let inbound = sent.map_err(|error| upstream.error(error))?;
        if cause == Some(Cause::UsageRefused) && inbound.status.is_success() {
            upstream.knowledge.usage_refusals.note(&self.current.planned.model);
        }
        Ok(inbound)
    }

    async fn correct(
        &mut self,
        inbound: &mut Inbound,
        record: &mut Record,
    ) -> Result<Option<Cause>, ProxyError> {
        let PlannedAttempt { attempt, planned } = &mut self.current;
        if planned.usage_request.is_some()
            && request_usage::is_refusal(inbound).await
            && let Some(body) = planned.body.take()
        {
            planned.body = planned.remove_usage_request(&body);
            attempt.job.options.is_usage_refused = true;
            return Ok(Some(Cause::UsageRefused));
        }
        if self.overflow.shorten(self.settings, &mut self.current, inbound, record).await? {
            return Ok(Some(Cause::TooLong));
        }
        Ok(None)
    }

    async fn next(&mut self, sent: &Result<Inbound, ProxyError>) -> Option<PlannedAttempt> {
        match sent {
            Err(error) if error.kind == ErrorKind::ContextLengthExceeded => {
                let (model, _) = self.larger.take()?;
                let planning = Planning { settings: self.settings, request: &self.request };
                planning.larger(&model, Some(&self.current.planned)).await
            }
            sent if may_pass(sent) => self.next_fallback().await,
            _ => None,
        }
    }

    fn enter(&mut self, next: PlannedAttempt, record: &mut Record) {
        record.planned(&next.planned);
        self.current = next;
    }
}

/// Plans of a conversation for different models.
struct Planning<'a> {
    settings: &'a Settings,
    request: &'a ChatRequest,
}

impl Planning<'_> {
    /// Plans for the requested model, or for the larger one if the conversation needs it.
    async fn choose(
        &self,
        larger: &mut Option<(String, LargerWhen)>,
    ) -> Result<PlannedAttempt, ProxyError> {
        let asked = self.request.model.as_deref();
        // A plan that may not be carried out settles nothing.
        let first = match larger {
            Some((_, LargerWhen::Cut)) => self.look(asked).await,
            _ => self.ready(asked).await,
        };
        let is_wanted = |when: LargerWhen| match &first {
            Ok(ready) => when == LargerWhen::Cut && ready.planned.loses(),
            Err(error) => error.kind == ErrorKind::ContextLengthExceeded,
        };
        if let Some((model, _)) = larger.take_if(|(_, when)| is_wanted(*when)) {
            let planned = first.as_ref().ok().map(|ready| &ready.planned);
            if let Some(ready) = self.larger(&model, planned).await {
                return Ok(ready);
            }
        }
        self.settled(asked, first?).await
    }

    /// Plans for the larger model, if it is one.
    async fn larger(&self, model: &str, than: Option<&Planned>) -> Option<PlannedAttempt> {
        let looked = self.look(Some(model)).await.ok()?;
        let is_larger = |than: &Planned| looked.planned.limit_tokens > than.limit_tokens;
        match than.is_none_or(is_larger) {
            true => self.settled(Some(model), looked).await.ok(),
            false => None,
        }
    }

    /// Plans an attempt for `model` that may not be made.
    async fn look(&self, model: Option<&str>) -> Result<PlannedAttempt, ProxyError> {
        let attempt = Attempt::new(self.settings, self.request, model)?;
        let planned = self.settings.planner.plan_job(&attempt.job).await?;
        Ok(PlannedAttempt { attempt, planned })
    }

    /// Completes a tentative plan with the records of its compactions, if summaries are enabled.
    async fn settled(
        &self,
        model: Option<&str>,
        looked: PlannedAttempt,
    ) -> Result<PlannedAttempt, ProxyError> {
        match (&self.settings.summaries, &looked.attempt.job.requester) {
            (Some(_), None) => self.ready(model).await,
            _ => Ok(looked),
        }
    }

    /// Plans an attempt for `model`.
    async fn ready(&self, model: Option<&str>) -> Result<PlannedAttempt, ProxyError> {
        let (settings, request) = (self.settings, self.request);
        let mut attempt = Attempt::new(settings, request, model)?;
        attempt.job.requester = settings.summaries.as_ref().map(|_| {
            Arc::new(Requester {
                caller: request.caller.clone(),
                headers: request.headers.clone(),
                target: attempt.target.clone(),
                protocol: request.protocol,
                upstream: Arc::clone(&attempt.upstream),
            })
        });
        let planned = settings.planner.plan_job(&attempt.job).await;
        let planned = match probe::probed(settings, request, &mut attempt, &planned).await {
            Some(probing) => probing,
            None => planned?,
        };
        Ok(PlannedAttempt { attempt, planned })
    }
}
