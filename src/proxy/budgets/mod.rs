//! A request and its budgets: what it may come to is held before it is sent, and settled when it has
//! ended. The arithmetic is `budget::hold`'s, the counts are the store's; here is what a request asks
//! for, what its caller is told, and what becomes of it where nobody can tell.

mod alerts;
mod report;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use super::metrics::Queue;
use super::opening::new_id;
use super::planner::{Job, Planned};
use super::{ErrorKind, Proxy, ProxyError};
use crate::budget::outputs::Outputs;
use crate::budget::{Ask, Measure, OutputBound, Price, ServiceTier};
use crate::config::{Config, OnFailure};
use crate::store::budgets::Book;
use crate::store::counters::{
    Counters, Held, NoRoom, Owner, RedisOptions, Reservation, Spending, Standing,
};
use crate::store::ledger::{self, Flags, Intent, RequestId, Settlement};
use crate::store::redis::Redis;
use crate::store::{Store, StoreError, Tenant, now_ms};
use crate::tokens::Encoding;
use alerts::Alerts;
pub use report::Report;

/// What an answer of a model is taken to hardly ever pass, of which too few were seen.
const UNKNOWN_OUTPUT_TOKENS: u64 = 2048;
/// Answers that come now and then may be twice as long as nearly all that were seen.
const SPARE: u64 = 2;
/// As many bytes of a body that is not read are taken for a token.
const BYTES_A_TOKEN: u64 = 4;
/// The least output that a request is worth sending for.
const LEAST_OUTPUT_TOKENS: u64 = 16;
/// How many models' answers are remembered, by tenant.
const MAX_OUTPUTS: u64 = 10_000;
/// When to try again where others hold what is left.
const RETRY_AFTER_MS: u64 = 1000;

/// Holds what requests may come to.
pub struct Budgets {
    config: Arc<Config>,
    book: Book,
    counters: Counters,
    /// What answers of a model usually take, by tenant: nobody's answers change what is held for
    /// another's.
    outputs: Cache<(Tenant, String), Arc<Mutex<Outputs>>>,
    alerts: Alerts,
}

/// What is held for a request, and what its caller is told. Dropped, it is given back.
#[must_use = "what is held is to be settled"]
pub struct Holding {
    held: Held,
    /// The most output of each answer, where it is in a budget.
    pub output_tokens: Option<u64>,
    /// How much is held, where it is in a budget.
    pub amount: Option<Spending>,
    /// How its budgets stand, where it is in one.
    pub report: Option<Report>,
    /// Whose answers are learned from.
    outputs: Option<Arc<Mutex<Outputs>>>,
    choices: u64,
}

impl Holding {
    /// What the request is called.
    pub fn id(&self) -> RequestId {
        self.held.id()
    }

    /// Whether it is in a budget.
    pub fn is_bound(&self) -> bool {
        self.output_tokens.is_some()
    }

    /// Puts what the request came to in the place of what is held.
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

/// What budgets count of a request that came to this.
pub fn spending(settlement: &Settlement) -> Spending {
    let output_tokens = settlement.completion_tokens.unwrap_or(0);
    Spending {
        nano_usd: settlement.cost_nano_usd.unwrap_or(0),
        tokens: settlement.prompt_tokens.unwrap_or(0).saturating_add(output_tokens),
    }
}

/// What a request may come to, as far as that is known before it is sent.
pub struct Desired<'a> {
    pub model: &'a str,
    /// Where it goes, if that is another upstream than the default.
    pub upstream: Option<&'a str>,
    /// The prompt, by weir's count.
    pub sent_tokens: u64,
    /// How it was counted.
    pub encoding: Encoding,
    /// The most output of each answer, where the request says so.
    pub max_output_tokens: Option<u64>,
    /// The most that the model could write otherwise.
    pub most_output_tokens: u64,
    pub choices: u64,
    pub service_tier: ServiceTier,
    /// Whether its limit can be lowered, or one be put.
    pub is_clampable: bool,
    /// [`Caller::as_of`](super::Caller::as_of).
    pub as_of: Option<u64>,
}

/// What is known of a request that weir does not read.
pub struct Unread<'a> {
    /// Empty where not even that is known.
    pub model: &'a str,
    /// Zero where nobody has told.
    pub body_bytes: u64,
    pub window_tokens: u64,
    /// Whether its answer takes tokens.
    pub has_output: bool,
}

impl<'a> Desired<'a> {
    /// Of a conversation that is sent as `planned`.
    pub fn planned(planned: &'a Planned) -> Self {
        let known = planned.limits.max_output_tokens.filter(|_| planned.is_model_known);
        let rest_tokens = planned.limits.window_tokens.saturating_sub(planned.sent_tokens);
        Self {
            model: &planned.model,
            upstream: planned.upstream.as_deref(),
            sent_tokens: planned.sent_tokens,
            encoding: planned.encoding,
            max_output_tokens: planned.max_output_tokens,
            most_output_tokens: known.unwrap_or(rest_tokens),
            choices: planned.choices,
            service_tier: planned.service_tier.unwrap_or_default(),
            is_clampable: planned.is_clampable,
            as_of: None,
        }
    }
}

impl Proxy {
    /// Holds what a conversation may come to that is about to be sent as `planned`, which is planned
    /// anew with a lower output limit where its budgets have no room for more.
    pub(super) async fn hold(
        &self,
        caller: &ledger::Caller,
        job: &mut Job,
        planned: &mut Planned,
    ) -> Result<Holding, ProxyError> {
        let desired = Desired { as_of: job.as_of, ..Desired::planned(planned) };
        let queued = Instant::now();
        let held = self.journal.hold(caller, &desired).await;
        self.journal.metrics().waited(Queue::Budget, queued.elapsed());
        let mut holding = held?;
        let granted = holding.output_tokens.filter(|_| self.config.budgets.clamp);
        let is_less = |granted: &u64| match planned.max_output_tokens {
            Some(asked) => *granted < asked,
            None => *granted < Desired::planned(planned).most_output_tokens,
        };
        if let Some(granted) = granted.filter(is_less).filter(|_| planned.is_clampable) {
            job.asked.max_output_tokens = Some(granted);
            let again = self.planner.plan_job(job).await?;
            // What was done to the conversation was done by the first plan.
            *planned = Planned {
                compaction: planned.compaction,
                summary: planned.summary,
                ahead: planned.ahead.take(),
                ..again
            };
        }
        planned.budget = holding.report.take();
        Ok(holding)
    }
}

impl Budgets {
    /// Budgets in `store`, held as `config` says, and counted in `redis` where there is one.
    pub fn new(config: Arc<Config>, store: &Store, redis: Option<Redis>) -> Self {
        let (zone, store) = (config.budgets.time_zone.clone(), store.clone());
        let counters = match redis {
            Some(redis) => Counters::in_redis(redis, store.clone(), zone, RedisOptions::default()),
            None => Counters::in_memory(store.clone(), zone),
        };
        Self {
            book: Book::new(store),
            counters,
            outputs: Cache::new(MAX_OUTPUTS),
            alerts: Alerts::new(&config.budgets.webhook_url),
            config,
        }
    }

    /// Holds what a request may come to whose prompt weir has counted.
    pub async fn hold(
        &self,
        caller: &ledger::Caller,
        desired: &Desired<'_>,
        price: Option<&Price>,
    ) -> Result<Holding, ProxyError> {
        let outputs = (caller.tenant, desired.model);
        let ask = |usual_tokens| self.ask(desired, price, usual_tokens);
        self.hold_as(caller, outputs, desired.as_of, ask).await
    }

    /// Holds what a request may come to that weir does not read: by the length of its body and by what
    /// such answers usually take. Where less is left it holds that: what it takes is known when it has
    /// ended, and nobody is kept out by a guess.
    pub async fn hold_unread(
        &self,
        caller: &ledger::Caller,
        unread: &Unread<'_>,
        price: Option<&Price>,
    ) -> Result<Holding, ProxyError> {
        let prompt_tokens = (unread.body_bytes / BYTES_A_TOKEN).min(unread.window_tokens);
        self.hold_as(caller, (caller.tenant, unread.model), None, |usual_tokens| {
            let usual_tokens = usual_tokens.unwrap_or(UNKNOWN_OUTPUT_TOKENS);
            let output_tokens = if unread.has_output { usual_tokens } else { 0 };
            let all_tokens = prompt_tokens.saturating_add(output_tokens);
            let all_nano_usd =
                price.map_or(0, |price| price.bound(prompt_tokens, None).nano_usd(output_tokens));
            let per_mtok = u128::from(all_nano_usd) * 1_000_000 / u128::from(all_tokens.max(1));
            Ask {
                money: OutputBound {
                    base_nano_usd: 0,
                    output_nano_usd_per_mtok: u64::try_from(per_mtok).unwrap_or(u64::MAX),
                },
                prompt_tokens: 0,
                choices: 1,
                wanted_tokens: all_tokens,
                enough_tokens: all_tokens,
                least_tokens: LEAST_OUTPUT_TOKENS.min(all_tokens),
                is_flexible: true,
            }
        })
        .await
    }

    async fn hold_as(
        &self,
        caller: &ledger::Caller,
        (tenant, model): (Tenant, &str),
        as_of: Option<u64>,
        ask: impl FnOnce(Option<u64>) -> Ask,
    ) -> Result<Holding, ProxyError> {
        let begun_ms = now_ms();
        let id = new_id(begun_ms)?;
        let owner = Owner::new(caller.key.clone(), model);
        let applied = match self.book.of(&owner.scopes(), as_of).await {
            Ok(applied) => applied,
            Err(error) => {
                self.unknown(&error)?;
                Vec::new()
            }
        };
        if applied.is_empty() {
            return Ok(self.unheld(id, begun_ms, owner));
        }
        let outputs = self.outputs.get_with((tenant, owner.model.clone()), Arc::default);
        let usual = outputs.lock().unwrap_or_else(PoisonError::into_inner).nearly_all();
        let ask = ask(usual);
        let patience = Duration::from_millis(self.config.budgets.wait_ms);
        let wanted = Reservation { id, begun_ms, applied, ask, patience };
        match self.counters.reserve(wanted, owner.clone()).await {
            Ok(granted) => {
                self.alerts.look(&granted.standings, begun_ms);
                let amount = Spending {
                    nano_usd: ask.amount(Measure::NanoUsd, granted.output_tokens),
                    tokens: ask.amount(Measure::Tokens, granted.output_tokens),
                };
                Ok(Holding {
                    held: granted.held,
                    output_tokens: Some(granted.output_tokens),
                    amount: Some(amount),
                    report: Report::new(&granted.standings, amount.nano_usd),
                    outputs: Some(outputs),
                    choices: ask.choices,
                })
            }
            Err(NoRoom::Exhausted(standing)) => {
                self.alerts.look(std::slice::from_ref(&standing), begun_ms);
                Err(exhausted(&standing))
            }
            Err(NoRoom::Held) => Err(held()),
            Err(NoRoom::Store(error)) => {
                self.unknown(&error)?;
                Ok(self.unheld(id, begun_ms, owner))
            }
        }
    }

    /// Refuses to send a request that the journal has as open by now, if what it holds is no longer held.
    pub async fn check_held(&self, holding: Option<&Holding>) -> Result<(), ProxyError> {
        let Some(holding) = holding.filter(|holding| holding.is_bound()) else { return Ok(()) };
        match holding.held.opened().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(held()),
            Err(error) => self.unknown(&error),
        }
    }

    /// Takes over a request that a process has left open when it ended.
    pub fn adopt(&self, intent: &Intent) -> Held {
        let owner = Owner::new(intent.caller.key.clone(), &intent.model);
        self.counters.adopt(intent.id, intent.begun_ms, owner)
    }

    /// Counts a request that takes nothing as far as anybody knows.
    pub fn note(&self, caller: &ledger::Caller) -> Result<Holding, ProxyError> {
        let begun_ms = now_ms();
        let owner = Owner::new(caller.key.clone(), "");
        Ok(self.unheld(new_id(begun_ms)?, begun_ms, owner))
    }

    fn unheld(&self, id: RequestId, begun_ms: u64, owner: Owner) -> Holding {
        let held = self.counters.note(id, begun_ms, owner);
        Holding { held, output_tokens: None, amount: None, report: None, outputs: None, choices: 1 }
    }

    /// What a request asks for, whose answers usually take at most `usual_tokens`.
    fn ask(&self, desired: &Desired<'_>, price: Option<&Price>, usual_tokens: Option<u64>) -> Ask {
        let sent_tokens = desired.sent_tokens;
        // What the provider counts may be more than what weir does.
        let prompt_tokens = match desired.encoding {
            Encoding::Estimate => sent_tokens + sent_tokens / 4,
            Encoding::Scaled { .. } => sent_tokens + sent_tokens / 20,
            _ => sent_tokens,
        };
        let usual_tokens =
            usual_tokens.map_or(UNKNOWN_OUTPUT_TOKENS, |tokens| tokens.saturating_mul(SPARE));
        let may_clamp = self.config.budgets.clamp && desired.is_clampable;
        let wanted_tokens = match desired.max_output_tokens {
            Some(asked) => asked,
            None if may_clamp => desired.most_output_tokens,
            None => usual_tokens.min(desired.most_output_tokens),
        };
        Ask {
            money: price.map_or_else(OutputBound::default, |price| {
                price.bound(prompt_tokens, Some(desired.service_tier))
            }),
            prompt_tokens,
            choices: desired.choices.max(1),
            wanted_tokens,
            enough_tokens: usual_tokens.min(wanted_tokens),
            least_tokens: LEAST_OUTPUT_TOKENS.min(wanted_tokens),
            is_flexible: may_clamp || desired.max_output_tokens.is_none(),
        }
    }

    /// How the budgets stand that a caller's requests are in, those of single models aside.
    pub async fn standings(&self, caller: &ledger::Caller) -> Result<Vec<Standing>, StoreError> {
        let owner = Owner::new(caller.key.clone(), "");
        let applied = self.book.of(&owner.scopes(), None).await?;
        self.counters.standings(applied, now_ms()).await
    }

    /// How the first `most` of all budgets stand, and how many there are besides.
    pub async fn all_standings(&self, most: usize) -> Result<(Vec<Standing>, usize), StoreError> {
        let mut applied = self.book.all().await?;
        let omitted = applied.len().saturating_sub(most);
        applied.truncate(most);
        Ok((self.counters.standings(applied, now_ms()).await?, omitted))
    }

    /// Refuses a request whose budgets nobody can tell of, where the configuration says so.
    fn unknown(&self, error: &StoreError) -> Result<(), ProxyError> {
        tracing::warn!(target: "weir::budget", %error, "cannot tell how budgets stand");
        if self.config.budgets.on_failure == OnFailure::Open {
            return Ok(());
        }
        Err(ProxyError {
            retry_after_ms: Some(RETRY_AFTER_MS),
            ..ProxyError::new(
                ErrorKind::StoreUnavailable,
                "weir cannot tell how this request's budgets stand at the moment, and sends none \
                 without (budgets.on_failure = \"closed\"). Try again shortly.",
            )
        })
    }
}

/// Refuses a request for which there is no room at the moment.
fn held() -> ProxyError {
    ProxyError {
        retry_after_ms: Some(RETRY_AFTER_MS),
        ..ProxyError::new(
            ErrorKind::BudgetHeld,
            "What is left of a budget of this request is held for others that are under way. Try again \
             shortly, or lower max_tokens.",
        )
    }
}

fn exhausted(standing: &Standing) -> ProxyError {
    ProxyError::new(ErrorKind::BudgetExhausted, report::exhausted(standing))
}
