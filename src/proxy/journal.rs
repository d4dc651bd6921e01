//! The account of each request: opened in the store before the request is sent, settled there before
//! its caller sees the end. What a kill leaves open is settled at the next start, by rule. Relays
//! nothing and decides nothing about requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::budgets::{self, Budgets, Desired, Holding, Unread};
use super::metrics::Metrics;
use super::opening::{Ended, Opening};
use super::prices::{RoutePrices, Warned};
use super::record::Outcome;
use super::settlement::{self, End, Known};
use super::{ErrorKind, ProxyError};
use crate::budget::{Compaction, Price, ServiceTier};
use crate::config::{Config, OnFailure, Priced};
use crate::store::ledger::{self, DAY_MS, Flags, Intent, RequestId, Settlement};
use crate::store::{Store, StoreError, now_ms};
use crate::tokens::Encoding;
use crate::upstream;

/// Requests of ended processes that are settled in one go.
const ORPHANS_AT_ONCE: usize = 256;
/// The most requests whose settlement is kept until the store can be written again; those past it
/// are settled by rule at the next start.
const MAX_LATE: usize = 10_000;
/// Settlements in the background that the end of the process waits for.
const MAX_BEHIND: u32 = 1 << 16;
/// When to try again after the store could not be written.
const RETRY_AFTER_MS: u64 = 1000;
/// How long it waits for them.
const BEHIND_TIMEOUT: Duration = Duration::from_secs(5);

/// Where requests are written down.
pub struct Journal {
    store: Store,
    config: Arc<Config>,
    budgets: Arc<Budgets>,
    upstream: String,
    routed: RoutePrices,
    /// One place for each settlement in the background.
    behind: Arc<Semaphore>,
    /// What ended while the store could not be written.
    late: Arc<Mutex<Vec<Late>>>,
    /// Models without a price that were warned about already.
    unpriced: Arc<Warned>,
    metrics: Arc<Metrics>,
}

/// A request, and what it came to.
type Late = (Arc<Intent>, Settlement);

impl Journal {
    /// For requests to the upstream at `upstream`, unless they say where they go, with the prices
    /// that `routed` has.
    pub fn new(
        config: Arc<Config>,
        store: Store,
        upstream: String,
        budgets: Budgets,
        routed: RoutePrices,
    ) -> Self {
        let behind = Arc::new(Semaphore::new(MAX_BEHIND as usize));
        let (late, unpriced, budgets) = (Arc::default(), Arc::default(), Arc::new(budgets));
        let metrics = Arc::default();
        Self { store, config, budgets, upstream, routed, behind, late, unpriced, metrics }
    }

    /// The same by another configuration: budgets and what is under way go on. A request is settled by the
    /// prices that it began with.
    pub fn renewed(&self, config: Arc<Config>, upstream: String, routed: RoutePrices) -> Self {
        Self {
            store: self.store.clone(),
            config,
            budgets: Arc::clone(&self.budgets),
            upstream,
            routed,
            behind: Arc::clone(&self.behind),
            late: Arc::clone(&self.late),
            unpriced: Arc::clone(&self.unpriced),
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// Holds what a request may come to in all its budgets, or refuses it.
    pub async fn hold(
        &self,
        caller: &ledger::Caller,
        desired: &Desired<'_>,
    ) -> Result<Holding, ProxyError> {
        let price = match self.routed.find(self.place(desired.upstream), desired.model) {
            Some(price) => Some(price),
            None => {
                self.unpriced.check(&self.config, desired.model)?;
                self.price(self.place(desired.upstream), None, desired.model)
            }
        };
        self.budgets.hold(caller, desired, price).await
    }

    /// Where requests are counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// How budgets stand.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// The same for a request whose prompt and output limit are known.
    pub async fn hold_counted(&self, opening: &Opening) -> Result<Holding, ProxyError> {
        let desired = Desired {
            model: &opening.model,
            upstream: opening.upstream.as_deref(),
            sent_tokens: opening.compaction.map_or(0, |done| done.sent_tokens),
            encoding: Encoding::Estimate,
            max_output_tokens: opening.max_output_tokens,
            most_output_tokens: 0,
            choices: 1,
            service_tier: ServiceTier::Standard,
            is_clampable: false,
            as_of: None,
        };
        self.hold(&opening.caller, &desired).await
    }

    /// Holds what a request may come to that weir does not read.
    pub async fn hold_unread(
        &self,
        opening: &Opening,
        body_bytes: u64,
    ) -> Result<Holding, ProxyError> {
        if !opening.is_billed {
            return self.budgets.note(&opening.caller);
        }
        use upstream::Route::{Embeddings, Images, Moderations};
        let model = opening.model.as_str();
        let is_of = |route: &upstream::Route| route.name() == opening.route;
        let unread = Unread {
            model,
            body_bytes,
            window_tokens: self.config.models.find(model).entry.window_tokens,
            has_output: ![Embeddings, Moderations, Images].iter().any(is_of),
        };
        let place = self.place(opening.upstream.as_deref());
        let price = if model.is_empty() { None } else { self.price(place, None, model) };
        self.budgets.hold_unread(&opening.caller, &unread, price).await
    }

    /// Writes down that a request is about to be sent for which `holding` is held; `None` where
    /// nothing is to be settled.
    ///
    /// Where that fails, `ledger.on_failure` says whether it is sent all the same.
    pub async fn open(
        self: &Arc<Self>,
        opening: Opening,
        holding: Holding,
    ) -> Result<Option<Account>, ProxyError> {
        let is_written = self.config.ledger.enabled;
        if !is_written && !holding.is_bound() {
            return Ok(None);
        }
        let intent = Arc::new(Intent {
            id: holding.id(),
            begun_ms: holding.id().begun_ms(),
            caller: opening.caller,
            route: opening.route,
            model: opening.model,
            upstream: opening.upstream.unwrap_or_else(|| self.upstream.clone()),
            stream: opening.stream,
            action: opening.action,
            zone: opening.zone.to_owned(),
            received_tokens: opening.compaction.map(|done| done.received_tokens),
            sent_tokens: opening.compaction.map(|done| done.sent_tokens),
            max_output_tokens: opening.max_output_tokens,
            plan_ms: Some(opening.plan_ms),
            held_nano_usd: holding.amount.map(|amount| amount.nano_usd),
            held_tokens: holding.amount.map(|amount| amount.tokens),
        });
        let account = Account {
            journal: Arc::clone(self),
            intent,
            compaction: opening.compaction,
            is_billed: opening.is_billed,
            is_written,
            holding: Some(holding),
        };
        if !is_written {
            return Ok(Some(account));
        }
        let mut unsent = Unsent { journal: self, id: Some(account.id()) };
        match self.store.open_request(&account.intent).await {
            Ok(()) => self.budgets.check_held(account.holding.as_ref()).await?,
            Err(error) if self.config.ledger.on_failure == OnFailure::Closed => {
                return Err(unwritten(&error));
            }
            Err(_) => {}
        }
        unsent.id = None;
        Ok(Some(account))
    }

    /// Settles what ended processes left open, and deletes what is older than it is to be kept.
    pub async fn tend(&self) {
        self.catch_up().await;
        match self.recover().await {
            Ok(0) => {}
            Ok(requests) => tracing::warn!(
                target: "weir::ledger",
                requests,
                "settled requests by rule that were open when their weir ended; \
                 `weir usage --requests` lists them"
            ),
            Err(error) => tracing::warn!(target: "weir::ledger", %error, "cannot read the journal"),
        }
        let ledger = &self.config.ledger;
        let before = |days: u64| now_ms().saturating_sub(days.saturating_mul(DAY_MS));
        let (rows_ms, sums_ms) =
            (before(ledger.retention_days), before(ledger.sums_retention_days));
        match self.store.prune_requests(rows_ms, sums_ms).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(target: "weir::ledger", rows, "deleted what was too old"),
            Err(error) => tracing::debug!(target: "weir::ledger", %error, "could not delete"),
        }
    }

    /// Settles what ended processes left open; how many requests those were.
    pub async fn recover(&self) -> Result<u64, StoreError> {
        let mut settled = 0;
        loop {
            let orphans = self.store.orphans(ORPHANS_AT_ONCE).await?;
            let is_last = orphans.len() < ORPHANS_AT_ONCE;
            let mut settling = JoinSet::new();
            for intent in orphans {
                let compaction = intent.sent_tokens.map(|sent_tokens| Compaction {
                    received_tokens: intent.received_tokens.unwrap_or(sent_tokens),
                    sent_tokens,
                    earlier_tokens: None,
                    is_cut: false,
                    max_input_tokens: u64::MAX,
                });
                let settlement = self.settlement(&intent, compaction, &Ended::killed()).await;
                let (store, adopted) = (self.store.clone(), self.budgets.adopt(&intent));
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

    /// What is written down of a request that ended so.
    async fn settlement(
        &self,
        intent: &Intent,
        compaction: Option<Compaction>,
        ended: &Ended,
    ) -> Settlement {
        let learned_output_tokens = match ended.end {
            // A store that cannot be read knows no more than one that has seen nothing.
            End::NotSent | End::Refused => None,
            End::Seen if ended.metered.usage.is_some() => None,
            End::Seen | End::Unseen => {
                self.store.learned_output_tokens(&intent.model).await.unwrap_or(None)
            }
        };
        let known = Known {
            compaction,
            max_output_tokens: intent.max_output_tokens,
            learned_output_tokens,
            status: ended.status,
            price: self.price(&intent.upstream, ended.metered.model.as_deref(), &intent.model),
        };
        let mut settlement = settlement::settle(ended.end, &ended.metered, &known);
        ended.outcome.clone_into(&mut settlement.outcome);
        settlement.status = ended.status;
        settlement.first_byte_ms = ended.first_byte_ms;
        settlement.total_ms = ended.total_ms;
        if ended.outcome == Outcome::CallerLeft.name() {
            settlement.flags |= Flags::CALLER_LEFT;
        }
        settlement
    }

    /// Settles a request, or keeps what it came to until the store can be written again; whether it
    /// is settled.
    async fn settle_or_keep(&self, intent: Arc<Intent>, settlement: Settlement) -> bool {
        let settled = self.store.settle_request(Arc::clone(&intent), settlement.clone()).await;
        if settled.is_err() {
            self.keep([(intent, settlement)]);
        }
        settled.is_ok()
    }

    fn keep(&self, unsettled: impl IntoIterator<Item = (Arc<Intent>, Settlement)>) {
        if let Ok(mut late) = self.late.lock() {
            late.extend(unsettled);
            late.truncate(MAX_LATE);
        }
    }

    /// Settles what could not be settled when it ended.
    async fn catch_up(&self) {
        let late = self.late.lock().map(|mut late| std::mem::take(&mut *late)).unwrap_or_default();
        let mut late = late.into_iter();
        while let Some((intent, settlement)) = late.next() {
            if !self.settle_or_keep(intent, settlement).await {
                self.keep(late);
                return;
            }
        }
    }

    /// Waits, within bounds, for what is being settled in the background.
    pub async fn finish(&self) {
        self.catch_up().await;
        let all = self.behind.acquire_many(MAX_BEHIND);
        if tokio::time::timeout(BEHIND_TIMEOUT, all).await.is_err() {
            tracing::warn!(target: "weir::ledger", "the end came before all requests were settled");
        }
    }

    /// The origin of the upstream that something goes to.
    fn place<'a>(&'a self, upstream: Option<&'a str>) -> &'a str {
        upstream.unwrap_or(&self.upstream)
    }

    /// What its route says that the model costs; else what the one does that answered, or the one that
    /// was asked for: behind a deployment's name only the answer knows.
    fn price(&self, upstream: &str, answered: Option<&str>, asked: &str) -> Option<&Price> {
        if let Some(price) = self.routed.find(upstream, asked) {
            return Some(price);
        }
        let by_answer = answered.and_then(|name| self.config.models.price(name));
        by_answer.or_else(|| match self.config.price(asked) {
            Priced::Known(price) | Priced::Default(price) => Some(price),
            Priced::Unpriced | Priced::Refused => None,
        })
    }
}

/// An account that is open. Whoever drops it says that nobody saw the request's end: it is settled
/// by rule, at the next start if not before.
#[must_use = "an account is to be settled"]
pub struct Account {
    journal: Arc<Journal>,
    intent: Arc<Intent>,
    compaction: Option<Compaction>,
    is_billed: bool,
    /// Whether it is kept in the store, or settled with its budgets alone.
    is_written: bool,
    /// What is held for it, until that is settled.
    holding: Option<Holding>,
}

impl Account {
    /// What the request is called in the journal.
    pub fn id(&self) -> RequestId {
        self.intent.id
    }

    /// Writes down how the request ended, and gives what it cost once that is written. Dropped before
    /// that, as by a caller that leaves at the last moment, it goes on in the background.
    pub async fn settle(self, ended: Ended) -> Option<u64> {
        let mut rest = Rest { unsettled: Some((self, ended)) };
        let settled = match &rest.unsettled {
            Some((account, ended)) => account.write(ended).await,
            None => None,
        };
        if let Some((account, _)) = rest.unsettled.take() {
            account.let_go(settled.as_ref()).await;
        }
        settled.and_then(|(_, settlement)| settlement.cost_nano_usd)
    }

    /// The same in the background, where nobody can wait for it.
    pub fn settle_behind(self, ended: Ended) {
        drop(Rest { unsettled: Some((self, ended)) });
    }

    /// Puts what the request came to in the place of what was held for it.
    async fn let_go(self, settled: Option<&(Arc<Intent>, Settlement)>) {
        let Some((intent, settlement)) = settled else { return };
        // This is reached once for each account, however often it was written.
        self.journal.metrics.settled(&intent.model, settlement);
        if let Some(holding) = self.holding {
            holding.settle(settlement).await;
        }
    }

    /// Writes down what the request came to; `None` where it came to nothing that is kept.
    async fn write(&self, ended: &Ended) -> Option<(Arc<Intent>, Settlement)> {
        let journal = &self.journal;
        if !self.is_billed && ended.metered.usage.is_none() {
            if self.is_written {
                // What the store keeps of it in spite of this is settled as a request never seen.
                let _ = journal.store.release_request(self.intent.id).await;
            }
            return None;
        }
        let mut intent = Arc::clone(&self.intent);
        if intent.model.is_empty()
            && let Some(model) = &ended.metered.model
        {
            model.clone_into(&mut Arc::make_mut(&mut intent).model);
        }
        let settlement = journal.settlement(&intent, self.compaction, ended).await;
        if self.is_written {
            journal.settle_or_keep(Arc::clone(&intent), settlement.clone()).await;
        }
        Some((intent, settlement))
    }
}

/// An account on its way into the store. Dropped, it goes on in the background: settled twice it
/// counts once.
struct Rest {
    /// `None` once it is there.
    unsettled: Option<(Account, Ended)>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let (Some((account, ended)), Ok(runtime)) =
            (self.unsettled.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let place = Arc::clone(&account.journal.behind).try_acquire_owned();
        runtime.spawn(async move {
            let settled = account.write(&ended).await;
            account.let_go(settled.as_ref()).await;
            drop(place);
        });
    }
}

/// An account of a request that was not sent yet. Dropped, it takes what is written down of it back:
/// its caller has left, and there is nothing to settle.
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
        let (store, place) =
            (self.journal.store.clone(), Arc::clone(&self.journal.behind).try_acquire_owned());
        runtime.spawn(async move {
            // What the store keeps of it in spite of this is settled as a request never seen.
            let _ = store.release_request(id).await;
            drop(place);
        });
    }
}

/// A store that cannot be written, to a caller whose request therefore is not sent.
fn unwritten(error: &StoreError) -> ProxyError {
    tracing::warn!(target: "weir::ledger", %error, "refused a request that could not be written down");
    ProxyError {
        retry_after_ms: Some(RETRY_AFTER_MS),
        ..ProxyError::new(
            ErrorKind::StoreUnavailable,
            "weir cannot write the request down at the moment, and sends none that it has not \
             written down (ledger.on_failure = \"closed\"). Try again shortly.",
        )
    }
}
