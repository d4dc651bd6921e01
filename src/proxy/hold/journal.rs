//! Journal entry of each request: opened in the store before the request is sent, settled there
//! before its caller sees the end. Entries left open by a kill are settled at the next start, by
//! rule. Relays nothing and decides nothing about requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::{Config, OnFailure, Priced};
use crate::proxy::admit::attribution::{self, BodyLabels, ConversationKey};
use crate::proxy::cache::Cache;
use crate::proxy::error::{ErrorKind, ProxyError, Reason};
use crate::proxy::hold::account::{Ended, JournalEntry, OWN_ANSWER};
use crate::proxy::hold::bound::{self, Unread};
use crate::proxy::hold::budgets::{self, Budgets, Desired, Holding};
use crate::proxy::hold::deferred::Deferred;
use crate::proxy::hold::prices::{RoutePrices, Warned};
use crate::proxy::metrics::{Metrics, Queue};
use crate::proxy::plan::shared::shown;
use crate::proxy::plan::{Job, Planned, Planner};
use crate::proxy::send::INLINE_BODY_BYTES;
use crate::proxy::settle::record::Outcome;
use crate::proxy::settle::settlement::{self, End, Held, Known};
use crate::upstream::Route;
use weir_engine::tokens::Encoding;
use weir_engine::wire::Protocol;
use weir_engine::wire::allowance::{Allowance, searches_unasked};
use weir_store::budget::{Compaction, Kind, Price};
use weir_store::ledger::{
    self, Attribution, DAY_MS, Flags, Intent, RequestId, RequestQuery, Settlement,
};
use weir_store::{Store, StoreError, Tenant, now_ms};

/// Maximum number of ended processes' requests settled in one batch.
const ORPHANS_AT_ONCE: usize = 256;
/// Maximum number of ends kept until the store can be written again; requests of others are settled by
/// rule at the next start.
const MAX_LATE: usize = 10_000;
/// Maximum number of background settlements that shutdown waits for.
const MAX_BEHIND: u32 = 1 << 16;
/// Retry delay sent after the store could not be written.
const RETRY_AFTER_MS: u64 = 1000;
/// Maximum time that shutdown waits for background settlements.
const BEHIND_TIMEOUT: Duration = Duration::from_secs(5);

/// Journal of requests, with the prices of one configuration. A request is settled by the prices that
/// it began with.
pub struct Journal {
    config: Arc<Config>,
    upstream: String,
    routed: RoutePrices,
    state: Arc<JournalState>,
}

/// State of the journal that a reload keeps.
pub struct JournalState {
    store: Store,
    budgets: Budgets,
    /// One permit for each settlement in the background.
    behind: Arc<Semaphore>,
    /// Ends of requests that could not be written.
    late: Mutex<Vec<Late>>,
    /// Whether a task writes them.
    is_catching_up: AtomicBool,
    /// Models without a price that were already warned about.
    unpriced: Warned,
    metrics: Arc<Metrics>,
    conversations: ConversationKey,
    /// Responses that are finished in the background.
    deferred: Deferred,
    /// When the newest entry began, as first seen, and the time of that look.
    newest: OnceCell<(u64, Instant)>,
    /// Model that last answered a tenant's requests to an upstream for another name, and when: its price is
    /// billed.
    answered: Cache<Alias, (String, Instant)>,
}

/// Upstream's origin and requested model, of a tenant.
type Alias = (Tenant, (String, String));

/// Maximum number of [`Alias`]es.
const MAX_ALIASES: u64 = 10_000;
/// Time for which a model with a price of its own is expected to be answered by another one again.
const ANSWERED_FOR: Duration = Duration::from_secs(600);

/// End of a request that is to be written.
enum Late {
    Settled(Arc<Intent>, Settlement),
    /// It was never sent, or used nothing.
    Released(RequestId),
}

impl JournalState {
    /// Creates the state for a journal in `store`, with `budgets`.
    pub fn new(store: Store, budgets: Budgets) -> Self {
        Self {
            conversations: ConversationKey::new(&store.secret()),
            store,
            budgets,
            behind: Arc::new(Semaphore::new(MAX_BEHIND as usize)),
            late: Mutex::default(),
            is_catching_up: AtomicBool::new(false),
            unpriced: Warned::default(),
            metrics: Arc::default(),
            deferred: Deferred::default(),
            newest: OnceCell::new(),
            answered: Cache::new(MAX_ALIASES),
        }
    }

    /// Returns the time by which the age of entries is judged: a clock that is wrong when weir starts must not
    /// make all of them old.
    async fn plausible_now_ms(&self) -> u64 {
        let look = async || {
            let query = RequestQuery { limit: Some(1), ..RequestQuery::default() };
            let newest = self.store.requests(query).await.ok()?.first()?.begun_ms;
            Some((newest, Instant::now()))
        };
        let look = || async { look().await.ok_or(()) };
        // Without an entry nothing is old.
        let Ok((newest_ms, at)) = self.newest.get_or_try_init(look).await else { return 0 };
        let since_ms = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        now_ms().min(newest_ms.saturating_add(since_ms).saturating_add(DAY_MS))
    }

    /// Removes the entry of a request that was never sent or used nothing, now or once the store can be
    /// written again. Returns whether it is removed.
    async fn release(&self, id: RequestId) -> bool {
        let released = self.store.release_request(id).await;
        if released.is_err() {
            self.keep([Late::Released(id)]);
        }
        released.is_ok()
    }

    /// Settles a request, now or once the store can be written again. Returns whether it is settled.
    async fn settle(&self, intent: Arc<Intent>, settlement: Settlement) -> bool {
        let settled = self.store.settle_request(Arc::clone(&intent), settlement.clone()).await;
        if settled.is_err() {
            self.keep([Late::Settled(intent, settlement)]);
        }
        settled.is_ok()
    }

    fn keep(&self, unwritten: impl IntoIterator<Item = Late>) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.extend(unwritten);
        if late.len() > MAX_LATE {
            let requests = late.len() - MAX_LATE;
            late.truncate(MAX_LATE);
            tracing::warn!(
                target: "weir::ledger",
                requests,
                "the store cannot be written, and no more ends of requests are kept: these are settled by \
                 rule at the next start"
            );
        }
    }

    /// Writes the ends that could not be written before, in the background: the store has just taken
    /// something.
    fn catch_up_behind(self: &Arc<Self>) {
        let has_late = !self.late.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if has_late && !self.is_catching_up.swap(true, Ordering::AcqRel) {
            let (own, place) = (Arc::clone(self), Arc::clone(&self.behind).try_acquire_owned());
            tokio::spawn(async move {
                own.catch_up().await;
                own.is_catching_up.store(false, Ordering::Release);
                drop(place);
            });
        }
    }

    /// Writes the ends of requests that could not be written before.
    async fn catch_up(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        let mut late = late.into_iter();
        while let Some(one) = late.next() {
            let is_written = match one {
                Late::Settled(intent, settlement) => self.settle(intent, settlement).await,
                Late::Released(id) => self.release(id).await,
            };
            if !is_written {
                self.keep(late);
                return;
            }
        }
    }
}

impl Journal {
    /// Creates the journal for requests to the upstream at `upstream`, unless they name another
    /// one, with the prices in `routed`.
    pub fn new(
        config: Arc<Config>,
        upstream: String,
        routed: RoutePrices,
        state: Arc<JournalState>,
    ) -> Self {
        Self { config, upstream, routed, state }
    }

    /// Holds the maximum cost of a conversation about to be sent as `planned`. Plans it again with
    /// a lower output limit if its budgets have no room for more.
    pub async fn hold_planned(
        &self,
        planner: &Planner,
        caller: &ledger::Caller,
        job: &mut Job,
        planned: &mut Planned,
    ) -> Result<Holding, ProxyError> {
        let body = planned.body.as_ref().unwrap_or(&job.body);
        let allowance = self.allowance(body, Some(job.protocol)).await.unwrap_or_default();
        let desired = Desired { as_of: job.as_of, ..Desired::planned(planned, allowance) };
        let queued = Instant::now();
        let held = self.hold(caller, &desired).await;
        self.metrics().waited(Queue::Budget, queued.elapsed());
        let mut holding = held?;
        let granted = holding.output_tokens.filter(|_| self.config.budgets.clamp);
        if let Some(granted) = granted.filter(|_| holding.is_reduced && planned.is_clampable) {
            job.options.max_output_tokens = Some(granted);
            let again = planner.plan_job(job).await?;
            // The first plan compacted the conversation.
            *planned = Planned {
                compaction: planned.compaction,
                summary: planned.summary,
                prefetch: planned.prefetch.take(),
                ..again
            };
        }
        planned.budget = holding.report.take();
        Ok(holding)
    }

    /// Holds a request's maximum cost in all its budgets, or refuses it.
    pub async fn hold(
        &self,
        caller: &ledger::Caller,
        desired: &Desired<'_>,
    ) -> Result<Holding, ProxyError> {
        let place = self.place(desired.upstream);
        if self.routed.find(place, desired.model).is_none() {
            self.state.unpriced.check(&self.config, desired.model)?;
        }
        let fallbacks = &desired.allowance.fallbacks;
        let model = self.counted_for(caller.tenant, place, desired.model);
        self.check_fallbacks(place, (fallbacks, &model), desired.as_of).await?;
        let prices = || self.prices_before(caller.tenant, place, desired.model, fallbacks);
        self.held(self.state.budgets.hold(caller, (desired, &model), prices).await)
    }

    /// Refuses other models that may answer a request, and be billed, if one has a budget of its own: the
    /// request counts towards that of its first model alone.
    async fn check_fallbacks(
        &self,
        place: &str,
        (fallbacks, model): (&[String], &str),
        as_of: Option<u64>,
    ) -> Result<(), ProxyError> {
        for fallback in fallbacks {
            let name = self.counted_as(place, fallback);
            if name != model && self.state.budgets.has_own(&name, as_of).await {
                let message = format!(
                    "The model '{}', which may answer instead, has a budget of its own: ask for it \
                     by 'model'.",
                    shown(fallback)
                );
                return Err(ProxyError::new(ErrorKind::InvalidRequest, message));
            }
        }
        Ok(())
    }

    /// Reads what a request allows its provider to charge for, off the async threads if its body is large;
    /// `None` if nobody has a budget, or the body is no JSON object.
    async fn allowance(&self, body: &Bytes, protocol: Option<Protocol>) -> Option<Allowance> {
        if !self.state.budgets.may_apply().await {
            return None;
        }
        if body.len() <= INLINE_BODY_BYTES {
            return Allowance::of(body, protocol);
        }
        let body = body.clone();
        tokio::task::spawn_blocking(move || Allowance::of(&body, protocol)).await.ok()?
    }

    /// Counts the hold of a request to which budgets apply.
    fn held(&self, held: Result<Holding, ProxyError>) -> Result<Holding, ProxyError> {
        match &held {
            Ok(holding) if !holding.is_bound() => {}
            held => self.metrics().held(held.as_ref().err().map(|error| error.kind)),
        }
        held
    }

    /// Returns the counters of requests.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.state.metrics
    }

    /// Reads the origin of a request from its headers and its body.
    pub fn attribute(&self, headers: &HeaderMap, tenant: Tenant, body: &BodyLabels) -> Attribution {
        let mut attribution = attribution::from_headers(headers);
        self.state.conversations.complete(&mut attribution, tenant, body);
        attribution
    }

    /// Returns the budgets.
    pub fn budgets(&self) -> &Budgets {
        &self.state.budgets
    }

    /// Holds the cost of a request whose prompt and output limit are known.
    pub async fn hold_counted(&self, entry: &JournalEntry) -> Result<Holding, ProxyError> {
        let limit_tokens = entry.max_output_tokens.unwrap_or(0);
        let desired = Desired {
            model: &entry.model,
            upstream: entry.upstream.as_deref(),
            sent_tokens: entry.compaction.map_or(0, |done| done.sent_tokens),
            encoding: Encoding::Estimate,
            allowance: Allowance { limit_tokens, is_limited: true, ..Allowance::default() },
            window_tokens: 0,
            most_output_tokens: 0,
            is_clampable: false,
            as_of: None,
        };
        self.hold(&entry.caller, &desired).await
    }

    /// Holds the cost of a request that weir does not plan. `body` is its body as far as it was read.
    pub async fn hold_unread(
        &self,
        entry: &mut JournalEntry,
        body: Option<&Bytes>,
    ) -> Result<Holding, ProxyError> {
        if !entry.is_billed && bound::is_free(&entry.route) {
            return self.state.budgets.note(&entry.caller);
        }
        let place = self.place(entry.upstream.as_deref()).to_owned();
        let tenant = entry.caller.tenant;
        let model = &*self.counted_for(tenant, &place, &entry.model);
        let found = self.config.models.find(model);
        let window_tokens = found.entry.window_tokens;
        let known = found.entry.max_output_tokens.filter(|_| found.name.is_some());
        let route = bound::route(&entry.route);
        let allowance = match body {
            Some(body) => self.allowance(body, None).await,
            None => None,
        };
        let fallbacks =
            allowance.as_ref().map_or_else(Vec::new, |allowance| allowance.fallbacks.clone());
        self.check_fallbacks(&place, (&fallbacks, model), None).await?;
        let of_path = self.price("", None, "").filter(|_| route.is_none());
        let prices = || match route {
            None => of_path.into_iter().collect(),
            Some(_) => self.prices_before(tenant, &place, &entry.model, &fallbacks),
        };
        let unread = Unread {
            route,
            model,
            allowance,
            window_tokens,
            most_output_tokens: known.unwrap_or(window_tokens),
        };
        let held = self.held(self.state.budgets.hold_unread(&entry.caller, &unread, prices).await);
        // Such a request is charged even if its answer reports no usage.
        entry.is_billed |= of_path.is_some_and(|price| price.fee(Kind::Request).is_some());
        held
    }

    /// Records that a request for which `holding` is held is about to be sent; `None` if there is
    /// nothing to settle.
    ///
    /// If the write fails, `ledger.on_failure` decides whether the request is sent.
    pub async fn open(
        self: &Arc<Self>,
        entry: JournalEntry,
        holding: Holding,
    ) -> Result<Option<Account>, ProxyError> {
        let is_written = self.config.ledger.enabled;
        if !is_written && !holding.is_bound() {
            return Ok(None);
        }
        let asked = self.counted_as(self.place(entry.upstream.as_deref()), &entry.model);
        let model = match holding.model.is_empty() {
            true => asked.clone(),
            false => holding.model.clone(),
        };
        let asked = Some(asked).filter(|asked| *asked != model);
        let intent = Arc::new(Intent {
            id: holding.id(),
            begun_ms: holding.id().begun_ms(),
            caller: entry.caller,
            route: entry.route,
            model,
            upstream: entry.upstream.unwrap_or_else(|| self.upstream.clone()),
            stream: entry.stream,
            action: entry.action,
            zone: entry.zone.to_owned(),
            attribution: Arc::unwrap_or_clone(entry.attribution),
            received_tokens: entry.compaction.map(|done| done.received_tokens),
            sent_tokens: entry.compaction.map(|done| done.sent_tokens),
            max_output_tokens: entry.max_output_tokens,
            plan_ms: Some(entry.plan_ms),
            held_nano_usd: holding.amount.map(|amount| amount.nano_usd),
            held_tokens: holding.amount.map(|amount| amount.tokens),
        });
        let account = Account {
            journal: Arc::clone(self),
            intent,
            asked,
            compaction: entry.compaction,
            counted_tokens: entry.counted_tokens,
            is_billed: entry.is_billed,
            is_written,
            holding: Some(holding),
            deferred: None,
        };
        if !is_written {
            return Ok(Some(account));
        }
        let mut unsent = Unsent { journal: self, id: Some(account.id()) };
        match self.state.store.open_request(&account.intent).await {
            Ok(()) => {
                self.state.catch_up_behind();
                self.state.budgets.check_held(account.holding.as_ref()).await?;
            }
            Err(error) if self.config.ledger.on_failure == OnFailure::Closed => {
                return Err(unwritten(error));
            }
            Err(_) => {}
        }
        unsent.id = None;
        Ok(Some(account))
    }

    /// Settles requests that ended processes left open, and deletes expired entries.
    pub async fn tend(&self) {
        self.state.catch_up().await;
        self.settle_deferred(false).await;
        match self.recover().await {
            Ok(0) => {}
            Ok(requests) => tracing::warn!(
                target: "weir::ledger",
                requests,
                "settled requests by rule that an ended weir had left open; \
                 `weir usage --requests` lists them"
            ),
            Err(error) => tracing::warn!(target: "weir::ledger", %error, "cannot read the journal"),
        }
        // If it fails, requests that wait repeat it.
        let _ = self.state.budgets.follow().await;
        let ledger = &self.config.ledger;
        let now_ms = self.state.plausible_now_ms().await;
        let before = |days: u64| now_ms.saturating_sub(days.saturating_mul(DAY_MS));
        let (rows_ms, sums_ms) =
            (before(ledger.retention_days), before(ledger.sums_retention_days));
        match self.state.store.prune_requests(rows_ms, sums_ms).await {
            Ok(0) => {}
            Ok(rows) => {
                tracing::debug!(target: "weir::ledger", rows, "deleted expired entries")
            }
            Err(error) => {
                tracing::debug!(target: "weir::ledger", %error, "could not delete expired entries")
            }
        }
    }

    /// Settles requests that ended processes left open, and returns their number.
    pub async fn recover(&self) -> Result<u64, StoreError> {
        let mut settled = 0;
        loop {
            let orphans = self.state.store.orphans(ORPHANS_AT_ONCE).await?;
            let is_last = orphans.len() < ORPHANS_AT_ONCE;
            let mut settling = JoinSet::new();
            for intent in orphans {
                let compaction = intent.sent_tokens.map(|sent_tokens| Compaction {
                    received_tokens: intent.received_tokens.unwrap_or(sent_tokens),
                    sent_tokens,
                    earlier_tokens: None,
                    is_new: false,
                    max_input_tokens: u64::MAX,
                });
                let counted = (compaction, intent.sent_tokens);
                let settlement = self.settlement(&intent, counted, &Ended::killed()).await;
                let (store, adopted) =
                    (self.state.store.clone(), self.state.budgets.adopt(&intent));
                settling.spawn(async move {
                    let spending = budgets::spending(&settlement);
                    let settled = store.settle_request(Arc::new(intent), settlement).await;
                    match settled {
                        Ok(true) => adopted.settle(spending).await,
                        Ok(false) | Err(_) => adopted.forget(),
                    }
                    settled
                });
            }
            while let Some(done) = settling.join_next().await {
                settled += u64::from(done.map_err(|_| StoreError::Closed)??);
            }
            if is_last {
                return Ok(settled);
            }
        }
    }

    /// Computes the settlement of a request that ended this way.
    async fn settlement(
        &self,
        intent: &Intent,
        (compaction, counted_tokens): (Option<Compaction>, Option<u64>),
        ended: &Ended,
    ) -> Settlement {
        // Nothing of it was sent, however the process ended.
        let is_own = intent.upstream == OWN_ANSWER;
        let end = if is_own { End::NotSent } else { ended.end };
        let learned_output_tokens = match end {
            // A store that cannot be read is treated like one without statistics.
            End::NotSent | End::Refused => None,
            End::Seen if ended.metered.usage.is_some() => None,
            End::Seen | End::Unseen => {
                self.state.store.learned_output_tokens(&intent.model).await.unwrap_or(None)
            }
        };
        let held = intent.held_nano_usd.zip(intent.held_tokens);
        let answered = ended.metered.model.as_deref();
        let known = Known {
            compaction,
            counted_tokens,
            held: held.map(|(nano_usd, tokens)| Held { nano_usd, tokens }),
            max_output_tokens: intent.max_output_tokens,
            learned_output_tokens,
            status: ended.status,
            price: self.price_after(intent, answered),
            takes_stated_cost: self.config.prices.stated,
            searches_unasked: searches_unasked(&intent.model),
        };
        let mut settlement = settlement::settle(end, &ended.metered, &known);
        ended.outcome.clone_into(&mut settlement.outcome);
        settlement.status = ended.status;
        settlement.first_byte_ms = ended.first_byte_ms;
        settlement.total_ms = ended.total_ms;
        if ended.is_replaced {
            settlement.flags |= Flags::REPLACED;
        }
        if ended.outcome == Outcome::CallerLeft.name() {
            settlement.flags |= Flags::CALLER_LEFT;
        }
        settlement
    }

    /// Returns the account of a response in the background, to which a request of `tenant` may have the end.
    pub fn deferred(&self, tenant: Tenant, response: &str) -> Option<Account> {
        let (account, ended) = self.state.deferred.take(tenant, response)?;
        Some(Account { deferred: Some(Box::new((response.to_owned(), ended))), ..account })
    }

    /// Settles responses by rule that nobody has asked for in time, or all.
    async fn settle_deferred(&self, all: bool) {
        for (account, ended) in self.state.deferred.take_late(all) {
            account.settle_now(ended).await;
        }
    }

    /// Waits, within bounds, for background settlements.
    pub async fn finish(&self) {
        self.settle_deferred(true).await;
        self.state.catch_up().await;
        let all = self.state.behind.acquire_many(MAX_BEHIND);
        if tokio::time::timeout(BEHIND_TIMEOUT, all).await.is_err() {
            tracing::warn!(target: "weir::ledger", "shut down before all requests were settled");
        }
    }

    /// Returns the origin of an upstream.
    fn place<'a>(&'a self, upstream: Option<&'a str>) -> &'a str {
        upstream.unwrap_or(&self.upstream)
    }

    /// Returns the name that a model counts under in the journal and in budgets, however a caller spells it.
    /// A route with a price of its own gives the price by the name that it sends.
    fn counted_as(&self, upstream: &str, model: &str) -> String {
        match self.routed.find(upstream, model) {
            Some(_) => model.to_owned(),
            None => self.config.models.billed_name(model),
        }
    }

    /// Returns the name that a request of `tenant` counts under before it is answered: a model without a price
    /// counts as the one that answered for it last.
    fn counted_for(&self, tenant: Tenant, upstream: &str, model: &str) -> String {
        let own = self.counted_as(upstream, model);
        if self.price(upstream, None, model).is_some() {
            return own;
        }
        let answered = self.state.answered.get(&(tenant, (upstream.to_owned(), own.clone())));
        answered.map_or(own, |(answered, _)| self.counted_as(upstream, &answered))
    }

    /// Remembers the model that answered for another name.
    fn note_answered(&self, intent: &Intent, asked: Option<&str>, answered: &str) {
        let own = asked.unwrap_or(&intent.model);
        if answered == own {
            return;
        }
        let alias = (intent.caller.tenant, (intent.upstream.clone(), own.to_owned()));
        let is_recent =
            |(known, at): &(String, Instant)| known == answered && at.elapsed() < ANSWERED_FOR / 2;
        if !self.state.answered.get(&alias).as_ref().is_some_and(is_recent) {
            self.state.answered.insert(&alias, (answered.to_owned(), Instant::now()));
        }
    }

    /// Returns the prices that a request may be billed at: its own, that of the model that answered the last
    /// one, and those of the models that may answer instead.
    fn prices_before(
        &self,
        tenant: Tenant,
        upstream: &str,
        asked: &str,
        fallbacks: &[String],
    ) -> Vec<&Price> {
        let alias = (tenant, (upstream.to_owned(), self.counted_as(upstream, asked)));
        let of_name = self.price(upstream, None, asked);
        let answered = self.state.answered.get(&alias);
        let answered = answered.filter(|(_, at)| of_name.is_none() || at.elapsed() < ANSWERED_FOR);
        let of_answer =
            answered.and_then(|(answered, _)| self.price(upstream, Some(&answered), asked));
        let own = [of_name, of_answer];
        let others = fallbacks.iter().map(|model| self.price(upstream, None, model));
        own.into_iter().chain(others).flatten().collect()
    }

    /// Returns the price of a request that was answered; on a path without a bound, that of a request at least.
    fn price_after(&self, intent: &Intent, answered: Option<&str>) -> Option<&Price> {
        let is_bounded = bound::route(&intent.route).is_some();
        let of_path = || self.price("", None, "").filter(|_| !is_bounded);
        self.price(&intent.upstream, answered, &intent.model).or_else(of_path)
    }

    /// Returns the price from the route; else that of the model that answered, or that was
    /// requested. Only the answer names the model behind a deployment.
    fn price(&self, upstream: &str, answered: Option<&str>, asked: &str) -> Option<&Price> {
        if let Some(price) = self.routed.find(upstream, asked) {
            return Some(price);
        }
        let by_answer = answered.and_then(|name| self.config.models.price(name));
        by_answer.or_else(|| match self.config.price(asked) {
            Priced::Known(price) | Priced::Default(price) => Some(price),
            // A path without a model has a price a request at most.
            Priced::Unpriced | Priced::Refused => {
                let is_path = asked.is_empty() && answered.is_none();
                let default = self.config.prices.default.as_ref().filter(|_| is_path);
                default.filter(|price| price.fee(Kind::Request).is_some())
            }
        })
    }
}

/// Cost and savings of a settled request, as far as known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub cost_nano_usd: Option<u64>,
    pub saved_nano_usd: Option<i64>,
}

impl Cost {
    /// Returns the cost of two attempts together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let cost = [self.cost_nano_usd, other.cost_nano_usd].into_iter().flatten();
        let saved = [self.saved_nano_usd, other.saved_nano_usd].into_iter().flatten();
        Self {
            cost_nano_usd: cost.reduce(u64::saturating_add),
            saved_nano_usd: saved.reduce(i64::saturating_add),
        }
    }
}

/// Open journal entry of a request. If it is dropped, nobody saw the request's end: it is settled
/// by rule, at the next start at the latest.
#[must_use = "an account must be settled"]
pub struct Account {
    journal: Arc<Journal>,
    intent: Arc<Intent>,
    /// Name that the caller's own counts under, if the request counts as another model.
    asked: Option<String>,
    compaction: Option<Compaction>,
    counted_tokens: Option<u64>,
    is_billed: bool,
    /// Whether it is kept in the store, or settled with its budgets only.
    is_written: bool,
    /// Its hold, until that is settled.
    holding: Option<Holding>,
    /// Response in the background that a later request asks for, and how the request before it ended.
    deferred: Option<Box<(String, Ended)>>,
}

impl Account {
    /// Returns the request's ID in the journal.
    pub fn id(&self) -> RequestId {
        self.intent.id
    }

    /// Records how the request ended, and returns its cost once that is written. If it is dropped
    /// before, as by a caller that leaves at the last moment, it continues in the background.
    pub async fn settle(self, ended: Ended) -> Cost {
        match self.unless_deferred(ended) {
            Some((account, ended)) => account.settle_now(ended).await,
            None => Cost::default(),
        }
    }

    /// Settles in the background, if nobody can wait for it.
    pub fn settle_behind(self, ended: Ended) {
        drop(Rest { unsettled: self.unless_deferred(ended) });
    }

    /// Keeps the account of a response that is not finished; returns that of any other request.
    fn unless_deferred(mut self, ended: Ended) -> Option<(Self, Ended)> {
        let pending =
            ended.metered.pending.clone().filter(|_| self.intent.route == Route::Responses.name());
        let (response, ended) = match (pending, self.deferred.take()) {
            (Some(response), _) => (response, ended),
            // What was asked for did not come: as before.
            (None, Some(before)) if !ended.is_seen_success() => *before,
            (None, _) => return Some((self, ended)),
        };
        let (tenant, state) = (self.intent.caller.tenant, Arc::clone(&self.journal.state));
        state.deferred.park((tenant, response), self, ended).err().map(|parked| *parked)
    }

    async fn settle_now(self, ended: Ended) -> Cost {
        let mut rest = Rest { unsettled: Some((self, ended)) };
        let settled = match &rest.unsettled {
            Some((account, ended)) => account.write(ended).await,
            None => None,
        };
        if let Some((account, _)) = rest.unsettled.take() {
            account.let_go(settled.as_ref()).await;
        }
        settled.map_or_else(Cost::default, |(_, settlement)| Cost {
            cost_nano_usd: settlement.cost_nano_usd,
            saved_nano_usd: settlement.saved_nano_usd,
        })
    }

    /// Replaces the request's hold by the actual cost.
    async fn let_go(self, settled: Option<&(Arc<Intent>, Settlement)>) {
        let Some((intent, settlement)) = settled else { return };
        // Reached once for each account, however often it was written.
        self.journal.state.metrics.settled(&intent.model, settlement);
        if let Some(holding) = self.holding {
            holding.settle(settlement).await;
        }
    }

    /// Writes the settlement; `None` if nothing is kept.
    async fn write(&self, ended: &Ended) -> Option<(Arc<Intent>, Settlement)> {
        let journal = &self.journal;
        // An answer to a request that is free may repeat the usage of another.
        let is_free = !self.is_billed && bound::is_free(&self.intent.route);
        if is_free || !self.is_billed && ended.metered.usage.is_none() {
            if self.is_written {
                journal.state.release(self.intent.id).await;
            }
            return None;
        }
        let mut intent = Arc::clone(&self.intent);
        if let Some(model) = &ended.metered.model {
            // Without a price of its own it is billed, and counts, as what answered.
            let price = |answered| journal.price(&intent.upstream, answered, &intent.model);
            let is_alias = price(None).is_none() && price(Some(model)).is_some();
            if is_alias || intent.held_nano_usd.is_some() {
                journal.note_answered(&intent, self.asked.as_deref(), model);
            }
            if intent.model.is_empty() || is_alias {
                let counted = journal.counted_as(&intent.upstream, model);
                Arc::make_mut(&mut intent).model = counted;
            }
        }
        let counted = (self.compaction, self.counted_tokens);
        let settlement = journal.settlement(&intent, counted, ended).await;
        if self.is_written {
            journal.state.settle(Arc::clone(&intent), settlement.clone()).await;
        }
        Some((intent, settlement))
    }
}

/// Settlement on its way into the store. If dropped, it continues in the background: settled twice,
/// it counts once.
struct Rest {
    /// `None` once it is stored.
    unsettled: Option<(Account, Ended)>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let (Some((account, ended)), Ok(runtime)) =
            (self.unsettled.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let place = Arc::clone(&account.journal.state.behind).try_acquire_owned();
        runtime.spawn(async move {
            let settled = account.write(&ended).await;
            account.let_go(settled.as_ref()).await;
            drop(place);
        });
    }
}

/// Journal entry of a request that was not sent yet. If dropped, the entry is removed: its caller
/// has left, and there is nothing to settle.
struct Unsent<'a> {
    journal: &'a Journal,
    /// `None` once the request is to be sent.
    id: Option<RequestId>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let state = Arc::clone(&self.journal.state);
        let place = Arc::clone(&state.behind).try_acquire_owned();
        runtime.spawn(async move {
            state.release(id).await;
            drop(place);
        });
    }
}

/// Refuses a request because the store cannot be written.
fn unwritten(error: StoreError) -> ProxyError {
    tracing::warn!(target: "weir::ledger", %error, "refused a request that could not be recorded");
    ProxyError {
        retry_after_ms: Some(RETRY_AFTER_MS),
        reason: Some(Reason::Store(error).into()),
        ..ProxyError::new(
            ErrorKind::StoreUnavailable,
            "weir cannot record the request at the moment, and sends no unrecorded request \
             (ledger.on_failure = \"closed\"). Try again shortly.",
        )
    }
}
