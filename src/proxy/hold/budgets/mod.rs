//! Budgets of a request: holds its maximum cost before it is sent, and settles the actual cost when
//! it ends. `budget::hold` does the arithmetic and the store counts. This file decides the amount
//! to hold, the caller's report, and the outcome if the counts are unavailable.

mod alerts;
mod report;
pub mod scope;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::{Clamp, Config, OnFailure};
use crate::proxy::cache::Cache;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::events::Events;
use crate::proxy::hold::account::Terms;
use crate::proxy::hold::bound::{self, Desired, Unread};
use crate::proxy::plan::BudgetReport;
use crate::proxy::random::new_id;
use crate::upstream::Route;
use alerts::Alerts;
use jiff::tz::TimeZone;
use tokio::sync::OwnedMutexGuard;
use weir_store::budget::outputs::Outputs;
use weir_store::budget::{Ask, Measure, Price, Scope, ScopeKind, Scopes};
use weir_store::budgets::BudgetCache;
use weir_store::counters::{
    BudgetStatus, Counters, Held, Listed, NoRoom, Owner, RedisOptions, Reservation, Spending,
};
use weir_store::ledger::{self, Attribution, Flags, Intent, RequestId, Settlement};
use weir_store::redis::Redis;
use weir_store::{Store, StoreError, Tenant, now_ms};

/// Maximum number of models, by tenant, whose answers are remembered.
const MAX_OUTPUTS: u64 = 10_000;
/// Retry delay sent if other requests hold the rest of a budget.
const RETRY_AFTER_MS: u64 = 1000;
/// Spent share of a budget, in percent, from which conversations get half of their limit.
const TIGHT_PERCENT: u64 = 80;

/// Holds and settles the cost of requests.
pub struct Budgets {
    config: Arc<Config>,
    budget_cache: BudgetCache,
    counters: Counters,
    /// `None` if they are counted in this process.
    redis: Option<Redis>,
    store: Store,
    /// Usual output of a model, by tenant: one tenant's answers do not change the amount held for
    /// another's.
    outputs: Cache<(Tenant, String), Arc<Mutex<Outputs>>>,
    alerts: Alerts,
}

/// The caller of a request, and its origin as its client states it.
pub type Party<'a> = (&'a ledger::Caller, &'a Arc<Attribution>);

/// Amount held for a request, and the report to its caller. Released on drop.
#[must_use = "a hold must be settled"]
pub struct Holding {
    held: Held,
    /// Output limit of each answer, if a budget applies.
    pub output_tokens: Option<u64>,
    /// Whether that is less than the request asks for.
    pub is_reduced: bool,
    /// Amount held, if a budget applies.
    pub amount: Option<Spending>,
    /// State of its budgets, if any apply.
    pub report: Option<BudgetReport>,
    /// Statistics that this answer contributes to.
    outputs: Option<Arc<Mutex<Outputs>>>,
    choices: u64,
    /// Name that its model counts under; empty if the answer names it.
    pub model: String,
    /// What the request wants that changes its price; `None` for the standard.
    pub terms: Option<Terms>,
    /// Kept while others wait to learn which model answers for its name.
    pub first: Option<OwnedMutexGuard<()>>,
}

impl Holding {
    /// Returns the request's ID.
    pub fn id(&self) -> RequestId {
        self.held.id()
    }

    /// Whether a budget applies.
    pub fn is_bound(&self) -> bool {
        self.output_tokens.is_some()
    }

    /// Replaces the hold by the actual cost.
    pub async fn settle(self, settlement: &Settlement) {
        let output = settlement.completion_tokens;
        let unknown = Flags::ESTIMATED | Flags::USAGE_MISSING | Flags::CALLER_LEFT;
        let is_seen = !settlement.flags.any(unknown) && output.is_some_and(|tokens| tokens > 0);
        if let (true, Some(outputs), Some(tokens)) = (is_seen, &self.outputs, output) {
            let mut outputs = outputs.lock().unwrap_or_else(PoisonError::into_inner);
            outputs.note(tokens.div_ceil(self.choices.max(1)));
        }
        self.held.settle(spending(settlement)).await;
    }
}

/// Returns the most that a request costs with this output.
fn amount(ask: &Ask, output_tokens: u64) -> Spending {
    Spending {
        nano_usd: ask.amount(Measure::NanoUsd, output_tokens),
        tokens: ask.amount(Measure::Tokens, output_tokens),
    }
}

/// Converts a settlement to the amounts that budgets count.
pub fn spending(settlement: &Settlement) -> Spending {
    let output_tokens = settlement.completion_tokens.unwrap_or(0);
    Spending {
        nano_usd: settlement.cost_nano_usd.unwrap_or(0),
        tokens: settlement.prompt_tokens.unwrap_or(0).saturating_add(output_tokens),
    }
}

impl Budgets {
    /// Creates the budgets of `config`, held in `store` and counted in `redis` if configured. Their
    /// alerts are sent as `events`.
    pub fn new(config: Arc<Config>, store: &Store, redis: Option<Redis>, events: Events) -> Self {
        let (zone, store) = (config.budgets.time_zone.clone(), store.clone());
        let counters = match redis.clone() {
            Some(redis) => Counters::in_redis(redis, store.clone(), zone, RedisOptions::default()),
            None => Counters::in_memory(store.clone(), zone),
        };
        Self {
            budget_cache: BudgetCache::new(store.clone()),
            store,
            counters,
            redis,
            outputs: Cache::new(MAX_OUTPUTS),
            alerts: Alerts::new(events),
            config,
        }
    }

    /// Holds the maximum cost of a request whose prompt weir has counted, at the dearest of these prices, in
    /// the budgets of the model that it counts as.
    pub async fn hold<'p>(
        &self,
        party: Party<'_>,
        (desired, counted_as): (&Desired<'_>, &str),
        prices: impl FnOnce() -> Vec<&'p Price>,
    ) -> Result<Holding, ProxyError> {
        let clamps = self.config.budgets.clamp != Clamp::Off;
        self.hold_as(party, counted_as, desired.as_of, |usual_tokens| {
            let ask = bound::conversation(desired, &prices(), usual_tokens, clamps);
            Ok((ask, bound::advice(Some(&desired.allowance))))
        })
        .await
    }

    /// Holds the maximum cost of a request that weir forwards as it is. Refuses it if nothing bounds that
    /// and a budget applies. If no budget applies, the maximum is the cost of an answer without usage.
    pub async fn hold_unread<'p>(
        &self,
        party: Party<'_>,
        unread: &Unread<'_>,
        prices: impl Fn() -> Vec<&'p Price>,
    ) -> Result<Holding, ProxyError> {
        let held = self.hold_as(party, unread.model, None, |_| {
            let advice = bound::advice(unread.allowance.as_ref());
            match bound::unread(unread, &prices()) {
                Some(ask) => Ok((ask, advice)),
                None => Err(unbounded()),
            }
        });
        let mut holding = held.await?;
        if holding.amount.is_none() && unread.route.is_some_and(Route::may_lack_usage) {
            holding.amount = bound::unread(unread, &prices()).map(|ask| amount(&ask, 0));
        }
        Ok(holding)
    }

    /// Whether a model has a budget of its own.
    pub async fn has_own(&self, model: &str, as_of: Option<u64>) -> bool {
        let scopes = Scopes { model: Some(model), ..Scopes::default() };
        let applied = self.budget_cache.of(&scopes, as_of).await.unwrap_or_default();
        let is_own = |scope: &Scope| scope.kind == ScopeKind::Model && !scope.is_each();
        applied.iter().any(|one| is_own(&one.budget.id.scope))
    }

    /// Whether the model that answers decides what a caller's request counts towards: models have budgets, or one
    /// in money applies. If that is unknown, the hold finds out.
    pub async fn depend_on_model(&self, (caller, origin): Party<'_>) -> bool {
        if self.budget_cache.has_models().await.unwrap_or(false) {
            return true;
        }
        let owner = Owner::new(caller, Arc::clone(origin), "");
        let applied = self.budget_cache.of(&owner.scopes(), None).await.unwrap_or_default();
        applied.iter().any(|one| one.budget.id.measure == Measure::NanoUsd)
    }

    /// Whether any budget may apply to a request, so that its body must be read.
    pub async fn may_apply(&self) -> bool {
        // If that is unknown, the hold finds out.
        self.budget_cache.has_any().await.unwrap_or(true)
    }

    /// Holds what `ask` returns in all budgets of a request. It gets the usual output of the model's
    /// answers, and also returns what would lower the amount.
    async fn hold_as(
        &self,
        (caller, origin): Party<'_>,
        model: &str,
        as_of: Option<u64>,
        ask: impl FnOnce(Option<u64>) -> Result<(Ask, &'static str), ProxyError>,
    ) -> Result<Holding, ProxyError> {
        let begun_ms = now_ms();
        let id = new_id(begun_ms)?;
        let owner = Owner::new(caller, Arc::clone(origin), model);
        let applied = match self.budget_cache.of(&owner.scopes(), as_of).await {
            Ok(applied) => applied,
            Err(error) => {
                self.unknown(&error)?;
                Vec::new()
            }
        };
        if applied.is_empty() {
            return Ok(self.unheld(id, begun_ms, owner));
        }
        let outputs = self.outputs.get_with(&(caller.tenant, owner.model.clone()), Arc::default);
        let usual = outputs.lock().unwrap_or_else(PoisonError::into_inner).nearly_all();
        let (ask, advice) = ask(usual)?;
        let patience = Duration::from_millis(self.config.budgets.wait_ms);
        let wanted = Reservation { id, begun_ms, applied, ask, patience };
        match self.counters.reserve(wanted, owner.clone()).await {
            Ok(granted) => {
                self.alerts.look(&granted.statuses);
                let amount = amount(&ask, granted.output_tokens);
                Ok(Holding {
                    held: granted.held,
                    output_tokens: Some(granted.output_tokens),
                    is_reduced: granted.output_tokens < ask.wanted_tokens,
                    amount: Some(amount),
                    report: BudgetReport::new(&granted.statuses, amount.nano_usd),
                    outputs: Some(outputs),
                    choices: ask.choices,
                    model: owner.model,
                    terms: None,
                    first: None,
                })
            }
            Err(NoRoom::Exhausted(status)) => {
                self.alerts.look(std::slice::from_ref(&status));
                let measure = status.budget.id.measure;
                let needed_tokens =
                    if ask.is_flexible { ask.least_tokens } else { ask.wanted_tokens };
                let needed = ask.amount(measure, needed_tokens);
                let (least, left) = (ask.amount(measure, 0), status.left());
                let advice = if least > left { bound::without_output(advice) } else { advice };
                Err(ProxyError::new(
                    ErrorKind::BudgetExhausted,
                    report::exhausted(&status, needed, advice),
                ))
            }
            Err(NoRoom::Held) => Err(held()),
            Err(NoRoom::Store(error)) => {
                self.unknown(&error)?;
                Ok(self.unheld(id, begun_ms, owner))
            }
        }
    }

    /// Checks, once the journal entry is open, that the request's hold has not been lost.
    pub async fn check_held(&self, holding: Option<&Holding>) -> Result<(), ProxyError> {
        let Some(holding) = holding.filter(|holding| holding.is_bound()) else { return Ok(()) };
        match holding.held.opened().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(held()),
            Err(error) => self.unknown(&error),
        }
    }

    /// Returns whether the Redis that counts is silent or refuses.
    pub fn is_redis_failing(&self) -> bool {
        self.redis.as_ref().is_some_and(Redis::is_failing)
    }

    /// Settles requests that other processes have settled in the journal.
    pub async fn follow(&self) -> Result<(), StoreError> {
        self.counters.follow().await
    }

    /// Takes over a request that an ended process left open.
    pub fn adopt(&self, intent: &Intent) -> Held {
        self.counters.adopt(intent.id, intent.begun_ms, Owner::of(intent))
    }

    /// Registers a request with no known cost.
    pub fn note(&self, party: Party<'_>) -> Result<Holding, ProxyError> {
        let begun_ms = now_ms();
        let owner = Owner::new(party.0, Arc::clone(party.1), "");
        Ok(self.unheld(new_id(begun_ms)?, begun_ms, owner))
    }

    fn unheld(&self, id: RequestId, begun_ms: u64, owner: Owner) -> Holding {
        let model = owner.model.clone();
        let held = self.counters.note(id, begun_ms, owner);
        Holding {
            held,
            model,
            output_tokens: None,
            is_reduced: false,
            amount: None,
            report: None,
            outputs: None,
            choices: 1,
            terms: None,
            first: None,
        }
    }

    /// Returns the time zone in which days and months begin.
    pub fn zone(&self) -> &TimeZone {
        self.counters.zone()
    }

    /// Returns the state of the budgets that apply to a caller's requests, except those of single
    /// models, conversations and agents.
    pub async fn statuses(&self, caller: &ledger::Caller) -> Result<Vec<BudgetStatus>, StoreError> {
        let owner = Owner::new(caller, Arc::default(), "");
        let applied = self.budget_cache.of(&owner.scopes(), None).await?;
        self.counters.statuses(applied, now_ms()).await
    }

    /// Whether conversations of a caller must be shorter for its budgets to last.
    pub async fn are_tight(&self, caller: impl FnOnce() -> ledger::Caller) -> bool {
        if self.config.budgets.clamp != Clamp::Context {
            return false;
        }
        // If they are unknown, the hold decides.
        let statuses = self.statuses(&caller()).await.unwrap_or_default();
        let percent = |own: &BudgetStatus| 100 * u128::from(own.count.spent);
        statuses
            .iter()
            .any(|own| percent(own) >= u128::from(TIGHT_PERCENT) * u128::from(own.budget.limit))
    }

    /// Returns the state of the first `most` budgets and members of budgets, and the number of others.
    pub async fn all_statuses(
        &self,
        most: usize,
    ) -> Result<(Vec<BudgetStatus>, usize), StoreError> {
        let (_, mut budgets) = self.store.budgets().await?;
        let mut omitted = budgets.len().saturating_sub(most);
        budgets.truncate(most);
        let listed = self.counters.listed(&self.store, budgets, now_ms()).await?;
        let mut statuses: Vec<BudgetStatus> = listed.into_iter().flat_map(Listed::all).collect();
        omitted += statuses.len().saturating_sub(most);
        statuses.truncate(most);
        Ok((statuses, omitted))
    }

    /// Refuses a request if the state of its budgets is unknown and the configuration requires it.
    fn unknown(&self, error: &StoreError) -> Result<(), ProxyError> {
        // Redis has one warning for its state.
        if !self.is_redis_failing() {
            tracing::warn!(target: "weir::budget", %error, "cannot read the state of budgets");
        }
        if self.config.budgets.on_failure == OnFailure::Open {
            return Ok(());
        }
        Err(ProxyError {
            retry_after_ms: Some(RETRY_AFTER_MS),
            ..ProxyError::new(
                ErrorKind::StoreUnavailable,
                "weir cannot read the state of this request's budgets and does not send it \
                 without (budgets.on_failure = \"closed\"). Try again shortly.",
            )
        })
    }
}

/// Refuses a request for which there is currently no room.
pub fn held() -> ProxyError {
    ProxyError {
        retry_after_ms: Some(RETRY_AFTER_MS),
        ..ProxyError::new(
            ErrorKind::BudgetHeld,
            "The rest of a budget of this request is held for requests in flight. Try again \
             shortly, or lower max_tokens.",
        )
    }
}

/// Refuses a request whose cost nothing bounds.
fn unbounded() -> ProxyError {
    ProxyError::new(
        ErrorKind::PassthroughRequired,
        "weir cannot bound what this request may cost, so it is closed to callers under a budget. \
         The operator can set a price a request: request_usd_each under [models.\"NAME\"] or, for a path \
         without a model, under [prices.default].",
    )
}
