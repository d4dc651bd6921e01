//! Journal entry of each request: opened in the store before the request is sent. `settle::account` settles
//! it before its caller sees the end. Relays nothing and decides nothing about requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OnceCell, OwnedMutexGuard, Semaphore};
use tokio::time::Instant;

use crate::config::names;
use crate::config::{Clamp, Config, OnFailure, Priced, UnknownPrice};
use crate::proxy::admit::attribution::{BodyLabels, ConversationKey};
use crate::proxy::admit::caller::runs_model;
use crate::proxy::admit::request::on_time;
use crate::proxy::cache::Cache;
use crate::proxy::error::{ErrorKind, ErrorSource, ProxyError};
use crate::proxy::hold::account::{Ended, JournalEntry, Terms};
use crate::proxy::hold::bound::{self, Desired, Unread};
use crate::proxy::hold::budgets::{self, Budgets, Holding, Party};
use crate::proxy::hold::deferred::{Deferred, ResponseKey};
use crate::proxy::hold::prices::{RoutePrices, Warned};
use crate::proxy::logged::shown;
use crate::proxy::metrics::{Metrics, Queue};
use crate::proxy::plan::{Job, Planned, Planner};
use crate::upstream::Route;
use weir_engine::tokens::Encoding;
use weir_engine::wire::Protocol;
use weir_engine::wire::allowance::Allowance;
use weir_store::budget::{Billed, Compaction, Kind, Price, planned_nano_usd};
use weir_store::ledger::{Attribution, Intent, RequestId, Settlement};
use weir_store::{Store, StoreError, Tenant};

/// Maximum number of ends kept until the store can be written again; requests of others are settled by
/// rule at the next start.
const MAX_LATE: usize = 10_000;
/// Maximum number of background settlements that shutdown waits for.
pub(crate) const MAX_BEHIND: u32 = 1 << 16;
/// Retry delay sent after the store could not be written.
const RETRY_AFTER_MS: u64 = 1000;

/// Journal of requests, with the prices of one configuration. A request is settled by the prices that
/// it began with.
pub struct Journal {
    pub(crate) config: Arc<Config>,
    upstream: String,
    routed: RoutePrices,
    pub(crate) state: Arc<JournalState>,
}

/// State of the journal that a reload keeps.
pub struct JournalState {
    pub(crate) store: Store,
    pub(crate) budgets: Budgets,
    /// One permit for each settlement in the background.
    pub(crate) behind: Arc<Semaphore>,
    /// Ends of requests that could not be written.
    pub(crate) late: Mutex<Vec<Late>>,
    /// Whether there are such ends that nobody has begun to write again.
    pub(crate) is_late: AtomicBool,
    /// Models without a price that were already warned about.
    unpriced: Warned,
    pub(crate) metrics: Arc<Metrics>,
    conversations: ConversationKey,
    /// Responses that are finished in the background.
    pub(crate) deferred: Deferred<(Account, Ended)>,
    /// When the newest entry began, as first seen, and the time of that look.
    pub(crate) newest: OnceCell<(u64, Instant)>,
    /// Models that answered a tenant's requests to an upstream for another name.
    answered: Cache<Alias, AnsweringModels>,
    /// Lets one request at a time of a tenant ask an upstream for a name that nobody has answered yet.
    first_asked: Cache<(Tenant, String), Arc<tokio::sync::Mutex<()>>>,
}

/// Upstream's origin and requested model, of a tenant.
type Alias = (Tenant, (String, String));

/// What answered for a name: the last model, whose price is billed, and the dearest one, each with the time.
#[derive(Clone)]
struct AnsweringModels {
    last: (String, Instant),
    dearest: (String, Instant),
}

/// Maximum number of [`Alias`]es.
const MAX_ALIASES: u64 = 10_000;
/// Time for which a model with a price of its own is expected to be answered by another one again.
const ANSWERED_FOR: Duration = Duration::from_secs(600);
/// Time for which a name that a router answers by one model or another is expected to be answered by the dearest.
const VARIES_FOR: Duration = Duration::from_secs(3600);

/// End of a request that is to be written.
pub(crate) enum Late {
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
            is_late: AtomicBool::new(false),
            unpriced: Warned::default(),
            metrics: Arc::default(),
            deferred: Deferred::default(),
            newest: OnceCell::new(),
            answered: Cache::new(MAX_ALIASES),
            first_asked: Cache::new(MAX_ALIASES),
        }
    }

    /// Removes the entry of a request that was never sent or used nothing, now or once the store can be
    /// written again. Returns whether it is removed.
    pub(crate) async fn release(&self, id: RequestId) -> bool {
        let released = self.store.release_request(id).await;
        if released.is_err() {
            self.keep([Late::Released(id)]);
        }
        released.is_ok()
    }

    pub(crate) fn keep(&self, unwritten: impl IntoIterator<Item = Late>) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.extend(unwritten);
        self.is_late.store(true, Ordering::Release);
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
        party: Party<'_>,
        job: &mut Job,
        planned: &mut Planned,
    ) -> Result<Holding, ProxyError> {
        let body = planned.body.as_ref().unwrap_or(&job.body);
        let allowance = self.allowance(body, Some(job.protocol)).await.unwrap_or_default();
        let mut desired = Desired { as_of: job.as_of, ..Desired::planned(planned, allowance) };
        let queued = Instant::now();
        let held = self.hold(party, &mut desired).await;
        self.metrics().waited(Queue::Budget, queued.elapsed());
        let mut holding = held?;
        holding.terms = Terms::of(&desired.allowance);
        let granted = holding.output_tokens.filter(|_| self.config.budgets.clamp != Clamp::Off);
        if let Some(granted) = granted.filter(|_| holding.is_reduced && planned.is_clampable) {
            // Others that may answer have longer outputs.
            let most = planned.limits.max_output_tokens.filter(|_| planned.is_model_known);
            job.options.max_output_tokens = Some(granted.min(most.unwrap_or(u64::MAX)));
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
        planned.planned_saved_nano_usd = self.planned_saved_nano_usd(planned);
        Ok(holding)
    }

    /// Returns the saving that the planned compaction of an observed request would have if the provider's
    /// cache has what was sent before.
    fn planned_saved_nano_usd(&self, planned: &Planned) -> Option<i64> {
        let Compaction { received_tokens, earlier_tokens, observed, .. } = planned.compaction;
        observed?;
        let price = self.price(self.place(planned.upstream.as_deref()), None, &planned.model)?;
        let new_tokens = received_tokens.saturating_sub(earlier_tokens.unwrap_or(0));
        let cache_write_tokens = price.fee(Kind::CacheWrite).map(|_| new_tokens);
        let billed = Billed { cache_write_tokens, ..Billed::default() };
        planned_nano_usd(price, &billed, &planned.compaction)
    }

    /// Holds a request's maximum cost in all its budgets, or refuses it.
    pub async fn hold(
        &self,
        party: Party<'_>,
        desired: &mut Desired<'_>,
    ) -> Result<Holding, ProxyError> {
        let place = self.place(desired.upstream);
        let fallbacks = &desired.allowance.fallbacks;
        let names = names(desired.model, fallbacks);
        for model in names.iter().filter(|model| self.routed.find(place, model).is_none()) {
            self.state.unpriced.check(&self.config, model)?;
        }
        let tenant = party.0.tenant;
        let first = self.first_to_ask(party, place, &names).await?;
        let model = self.counted_for(tenant, place, desired.model);
        let answers = self.answers_of(tenant, place, desired.model);
        let (window_tokens, output_tokens) =
            self.largest(&[fallbacks.as_slice(), &answers].concat());
        desired.window_tokens = desired.window_tokens.max(window_tokens);
        desired.most_output_tokens = desired.most_output_tokens.max(output_tokens);
        let (desired, fallbacks) = (&*desired, &desired.allowance.fallbacks);
        self.check_fallbacks(place, (fallbacks, &model), desired.as_of).await?;
        let prices = || self.prices_before(tenant, place, desired.model, fallbacks);
        let held = self.held(self.state.budgets.hold(party, (desired, &model), prices).await);
        held.map(|mut holding| {
            holding.first = first;
            holding
        })
    }

    /// Returns the largest window and the longest output of these models, in tokens.
    fn largest(&self, models: &[String]) -> (u64, u64) {
        models.iter().fold((0, 0), |(window, output), model| {
            let found = self.config.models.find(model);
            let known = found.entry.max_output_tokens.filter(|_| found.name.is_some());
            let own = found.entry.window_tokens;
            (window.max(own), output.max(known.unwrap_or(own)))
        })
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
    /// `None` if nobody has a budget and each name is sent, or the body is no JSON object.
    async fn allowance(&self, body: &Bytes, protocol: Option<Protocol>) -> Option<Allowance> {
        let refuses_names = self.config.prices.unknown == UnknownPrice::Reject;
        if !refuses_names && !self.state.budgets.may_apply().await {
            return None;
        }
        read_allowance(body, protocol).await
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

    /// Completes the origin of a request, as its headers state it, by its body.
    pub fn complete(&self, stated: &Attribution, tenant: Tenant, body: &BodyLabels) -> Attribution {
        let mut attribution = stated.clone();
        self.state.conversations.complete(&mut attribution, tenant, body);
        attribution
    }

    /// Returns the place of the account of a response in the background, whose end a request of `tenant` may
    /// get.
    pub fn awaited(&self, tenant: Tenant, response: &str) -> Option<Awaited> {
        let response = (tenant, response.to_owned());
        let is_kept = self.state.deferred.renew(&response);
        is_kept.then(|| Awaited { state: Arc::clone(&self.state), response })
    }

    /// Returns the budgets.
    pub fn budgets(&self) -> &Budgets {
        &self.state.budgets
    }

    /// Holds the cost of a request whose prompt and output limit are known.
    pub async fn hold_counted(&self, entry: &JournalEntry) -> Result<Holding, ProxyError> {
        let limit_tokens = entry.max_output_tokens.unwrap_or(0);
        let mut desired = Desired {
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
        self.hold(entry.party(), &mut desired).await
    }

    /// Holds the cost of a request that weir does not plan. `body` is its body as far as it was read.
    pub async fn hold_unread(
        &self,
        entry: &mut JournalEntry,
        body: Option<&Bytes>,
    ) -> Result<Holding, ProxyError> {
        entry.is_billed |= bound::may_run(&entry.route) && body.is_some_and(|own| runs_model(own));
        if !entry.is_billed && bound::is_free(&entry.route) {
            return self.state.budgets.note(entry.party());
        }
        let place = self.place(entry.upstream.as_deref()).to_owned();
        let tenant = entry.caller.tenant;
        let route = bound::route(&entry.route);
        let allowance = match body {
            Some(body) if route.is_some_and(Route::may_lack_usage) => {
                read_allowance(body, None).await
            }
            Some(body) => self.allowance(body, None).await,
            None => None,
        };
        let fallbacks =
            allowance.as_ref().map_or_else(Vec::new, |allowance| allowance.fallbacks.clone());
        let first = match entry.model.is_empty() {
            true => None,
            false => {
                let names = names(&entry.model, &fallbacks);
                self.first_to_ask(entry.party(), &place, &names).await?
            }
        };
        let model = &*self.counted_for(tenant, &place, &entry.model);
        let answers = self.answers_of(tenant, &place, &entry.model);
        let all = [&[model.to_owned()], &*fallbacks, &*answers].concat();
        let (window_tokens, most_output_tokens) = self.largest(&all);
        self.check_fallbacks(&place, (&fallbacks, model), None).await?;
        let of_path = self.price_of_path(&place, &entry.model).filter(|_| route.is_none());
        let prices = || match route {
            None => of_path.into_iter().collect(),
            Some(_) => self.prices_before(tenant, &place, &entry.model, &fallbacks),
        };
        let unread = Unread { route, model, allowance, window_tokens, most_output_tokens };
        let held = self.held(self.state.budgets.hold_unread(entry.party(), &unread, prices).await);
        // Such a request is charged even if its answer reports no usage.
        entry.is_billed |= of_path.is_some_and(|price| price.fee(Kind::Request).is_some());
        held.map(|mut holding| {
            holding.first = first;
            holding.terms = unread.allowance.as_ref().and_then(Terms::of);
            holding
        })
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
        let spelled = Some(entry.model).filter(|spelled| *spelled != model);
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
            spelled,
            compaction: entry.compaction,
            counted_tokens: entry.counted_tokens,
            is_billed: entry.is_billed,
            is_written,
            holding: Some(holding),
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

    /// Returns the origin of an upstream.
    fn place<'a>(&'a self, upstream: Option<&'a str>) -> &'a str {
        upstream.unwrap_or(&self.upstream)
    }

    /// Returns the name that a model counts under in the journal and in budgets, however a caller spells it.
    /// A route with a price of its own gives the price by the name that it sends.
    pub(crate) fn counted_as(&self, upstream: &str, model: &str) -> String {
        match self.routed.find(upstream, model) {
            Some(_) => model.to_owned(),
            None => self.config.models.billed_name(model),
        }
    }

    /// Returns the name that a request of `tenant` counts under before it is answered: a model without a price
    /// counts as the one that answered for it last.
    fn counted_for(&self, tenant: Tenant, upstream: &str, model: &str) -> String {
        if model.is_empty() {
            // Its body is not read: the answer names it, or what is found in passing.
            return String::new();
        }
        let own = self.counted_as(upstream, model);
        if self.price(upstream, None, model).is_some() {
            return own;
        }
        let answered = self.state.answered.get(&(tenant, (upstream.to_owned(), own.clone())));
        // An upstream that answers one name by another model may do so for any.
        let any = || self.state.answered.get(&(tenant, (upstream.to_owned(), String::new())));
        answered.or_else(any).map_or(own, |answered| self.counted_as(upstream, &answered.last.0))
    }

    /// Waits until it is known which model answers for each name without a price, if budgets depend on that: of several
    /// requests for such names one is sent first, and the others are held as what answered it.
    /// Returns the place of the first, to be given up when it has ended.
    async fn first_to_ask(
        &self,
        party: Party<'_>,
        upstream: &str,
        models: &[&str],
    ) -> Result<Option<OwnedMutexGuard<()>>, ProxyError> {
        let tenant = party.0.tenant;
        let unpriced = models.iter().filter(|model| self.price(upstream, None, model).is_none());
        let alias =
            |model: &&str| (tenant, (upstream.to_owned(), self.counted_as(upstream, model)));
        let aliases: Vec<Alias> = unpriced.map(alias).collect();
        // A router may answer by a dearer model each time.
        let is_routed = aliases.iter().any(|(_, (_, name))| names::is_router(name));
        let is_known =
            || !is_routed && aliases.iter().all(|own| self.state.answered.get(own).is_some());
        if is_known() || !self.state.budgets.depend_on_model(party).await {
            return Ok(None);
        }
        let place = self.state.first_asked.get_with(&(tenant, upstream.to_owned()), Arc::default);
        let patience = Duration::from_millis(self.config.budgets.wait_ms);
        let waited = tokio::time::timeout(patience, place.lock_owned()).await;
        let first = waited.map_err(|_| budgets::held())?;
        Ok((!is_known()).then_some(first))
    }

    /// Remembers the model that answered for another name.
    pub(crate) fn note_answered(&self, intent: &Intent, asked: Option<&str>, answered: &str) {
        let own = asked.unwrap_or(&intent.model);
        let is_unpriced = || self.price(&intent.upstream, None, own).is_none();
        // A body without a name has a stored prompt; other paths are not read.
        let is_unread = own.is_empty() && bound::route(&intent.route).is_none();
        if is_unread || answered == own && !is_unpriced() {
            return;
        }
        let note = |name: &str| {
            let alias = (intent.caller.tenant, (intent.upstream.clone(), name.to_owned()));
            let known = self.state.answered.get(&alias);
            let is_recent = |known: &AnsweringModels| {
                known.last.0 == answered && known.last.1.elapsed() < ANSWERED_FOR / 2
            };
            if known.as_ref().is_some_and(is_recent) {
                return;
            }
            let last = (answered.to_owned(), Instant::now());
            let is_dearer = |(own, at): &(String, Instant)| {
                own != answered
                    && at.elapsed() < VARIES_FOR
                    && self.rates(own) > self.rates(answered)
            };
            let dearest = known.map(|known| known.dearest).filter(is_dearer);
            let dearest = dearest.unwrap_or_else(|| last.clone());
            self.state.answered.insert(&alias, AnsweringModels { last, dearest });
        };
        note(own);
        if answered != own && is_unpriced() {
            note("");
        }
    }

    /// Returns the prices of output and input of a model, to compare it with others.
    fn rates(&self, model: &str) -> Option<(u64, u64)> {
        let rates = &self.config.models.price(model)?.rates;
        Some((rates.output_nano_usd_per_mtok(), rates.input_nano_usd_per_mtok()))
    }

    /// Returns the models that a name counts as in a hold: the last one that answered for it, and of several the
    /// dearest; none for a name that has a price, unless another one has answered lately.
    fn answers_of(&self, tenant: Tenant, upstream: &str, asked: &str) -> Vec<String> {
        let alias = (tenant, (upstream.to_owned(), self.counted_as(upstream, asked)));
        let is_priced = self.price(upstream, None, asked).is_some();
        let any = || self.state.answered.get(&(tenant, (upstream.to_owned(), String::new())));
        let answered = self.state.answered.get(&alias);
        let answered = answered.or_else(|| any().filter(|_| !is_priced));
        let all = answered.into_iter().flat_map(|answered| [answered.last, answered.dearest]);
        let expected = all.filter(|(_, at)| !is_priced || at.elapsed() < ANSWERED_FOR);
        expected.map(|(model, _)| model).collect()
    }

    /// Returns the prices that a request may be billed at: its own, those of the models that answered for its names,
    /// and those of the models that may answer instead.
    fn prices_before(
        &self,
        tenant: Tenant,
        upstream: &str,
        asked: &str,
        fallbacks: &[String],
    ) -> Vec<&Price> {
        let prices = names(asked, fallbacks).into_iter().flat_map(|name| {
            let answers = self.answers_of(tenant, upstream, name);
            let of_answers = answers.iter().map(|own| self.price(upstream, Some(own), name));
            of_answers.chain([self.price(upstream, None, name)]).collect::<Vec<_>>()
        });
        prices.flatten().collect()
    }

    /// Returns the price of a request that was answered; on a path without a bound, that of a request at least. A
    /// plainer name in the answer than the request was `spelled` with says nothing of its host, region or speed.
    pub(crate) fn price_after(
        &self,
        intent: &Intent,
        spelled: Option<&str>,
        answered: Option<&str>,
    ) -> Option<&Price> {
        if let (Some(spelled), Some(answered)) = (spelled, answered)
            && names::is_plainer(answered, spelled)
            && self.routed.find(&intent.upstream, &intent.model).is_none()
            && let Priced::Known(price) = self.config.price(spelled)
        {
            return Some(price);
        }
        let is_bounded = bound::route(&intent.route).is_some();
        let of_path = || self.price("", None, "").filter(|_| !is_bounded);
        self.price(&intent.upstream, answered, &intent.model).or_else(of_path)
    }

    /// Returns the price of a request on a path without a bound: that of its model if it has one a request, else the
    /// one of all.
    fn price_of_path(&self, upstream: &str, model: &str) -> Option<&Price> {
        let own = self.price(upstream, None, model);
        own.filter(|own| own.fee(Kind::Request).is_some()).or_else(|| self.price("", None, ""))
    }

    /// Returns the price from the route; else that of the model that answered, or that was
    /// requested. Only the answer names the model behind a deployment.
    pub(crate) fn price(
        &self,
        upstream: &str,
        answered: Option<&str>,
        asked: &str,
    ) -> Option<&Price> {
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
    /// What the compaction that observe mode leaves out would have saved.
    pub planned_saved_nano_usd: Option<i64>,
}

impl Cost {
    /// Returns the cost of two attempts together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let cost = [self.cost_nano_usd, other.cost_nano_usd].into_iter().flatten();
        let sum = |own: [Option<i64>; 2]| own.into_iter().flatten().reduce(i64::saturating_add);
        let planned = [self.planned_saved_nano_usd, other.planned_saved_nano_usd];
        Self {
            cost_nano_usd: cost.reduce(u64::saturating_add),
            saved_nano_usd: sum([self.saved_nano_usd, other.saved_nano_usd]),
            planned_saved_nano_usd: sum(planned),
        }
    }
}

/// Open journal entry of a request. If it is dropped, nobody saw the request's end: it is settled
/// by rule, at the next start at the latest.
#[must_use = "an account must be settled"]
pub struct Account {
    pub(crate) journal: Arc<Journal>,
    pub(crate) intent: Arc<Intent>,
    /// Name that the caller's own counts under, if the request counts as another model.
    pub(crate) asked: Option<String>,
    /// Name that the request was sent with, if it counts under another one.
    pub(crate) spelled: Option<String>,
    pub(crate) compaction: Option<Compaction>,
    pub(crate) counted_tokens: Option<u64>,
    pub(crate) is_billed: bool,
    /// Whether it is kept in the store, or settled with its budgets only.
    pub(crate) is_written: bool,
    /// Its hold, until that is settled.
    pub(crate) holding: Option<Holding>,
}

impl Account {
    /// Returns the request's ID in the journal.
    pub fn id(&self) -> RequestId {
        self.intent.id
    }
}

/// Response in the background that a request asks for. Several may ask at once; the first that has its end
/// settles it.
pub struct Awaited {
    state: Arc<JournalState>,
    response: ResponseKey,
}

impl Awaited {
    /// Takes the account if the request has the end of the response.
    pub fn take(self, ended: &Ended) -> Option<Account> {
        let metered = &ended.metered;
        // An error of a gateway in a success is no response.
        let is_response = metered.usage.is_some() || metered.model.is_some();
        let has_end = ended.is_seen_success() && is_response && metered.pending.is_none();
        has_end.then(|| self.state.deferred.take(&self.response)).flatten().map(|(own, _)| own)
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

/// Returns the names of all models that may answer a request.
fn names<'a>(model: &'a str, fallbacks: &'a [String]) -> Vec<&'a str> {
    [model].into_iter().chain(fallbacks.iter().map(String::as_str)).collect()
}

/// Reads what a request allows its provider to charge for; `None` if the body is no JSON object.
async fn read_allowance(body: &Bytes, protocol: Option<Protocol>) -> Option<Allowance> {
    let body = body.clone();
    on_time(body.len(), move || Allowance::of(&body, protocol)).await.ok()?
}

/// Refuses a request because the store cannot be written.
fn unwritten(error: StoreError) -> ProxyError {
    tracing::warn!(target: "weir::ledger", %error, "refused a request that could not be recorded");
    ProxyError {
        retry_after_ms: Some(RETRY_AFTER_MS),
        reason: Some(ErrorSource::Store(error).into()),
        ..ProxyError::new(
            ErrorKind::StoreUnavailable,
            "weir cannot record the request at the moment, and sends no unrecorded request \
             (ledger.on_failure = \"closed\"). Try again shortly.",
        )
    }
}
