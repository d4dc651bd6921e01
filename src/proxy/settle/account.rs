//! Settlement of journal entries: when a request ends, in the background if nobody waits for it, and at the
//! next start if its process was killed. `settlement` computes the figures.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::settlement::{self, Held, Known};
use crate::proxy::hold::account::{End, Ended, OWN_ANSWER, Terms};
use crate::proxy::hold::journal::{Account, Cost, Journal, JournalState, Late, MAX_BEHIND};
use crate::proxy::hold::{bound, budgets};
use crate::proxy::record::Outcome;
use crate::upstream::Route;
use weir_engine::wire::allowance::searches_unasked;
use weir_engine::wire::usage::InnerUsage;
use weir_store::budget::{Compaction, Price};
use weir_store::ledger::{DAY_MS, Flags, Intent, RequestQuery, Settlement};
use weir_store::{StoreError, now_ms};

/// Maximum number of ended processes' requests settled in one batch.
const ORPHANS_AT_ONCE: usize = 256;
/// Maximum number of ends that are written together.
const LATE_AT_ONCE: usize = 128;
/// Maximum time that shutdown waits for background settlements.
const BEHIND_TIMEOUT: Duration = Duration::from_secs(5);

impl JournalState {
    /// Settles a request, now or once the store can be written again. Returns whether it is settled.
    async fn settle(&self, intent: Arc<Intent>, settlement: Settlement) -> bool {
        let settled = self.store.settle_request(Arc::clone(&intent), settlement.clone()).await;
        if settled.is_err() {
            self.keep([Late::Settled(intent, settlement)]);
        }
        settled.is_ok()
    }

    /// Writes the ends that could not be written before, in the background: the store has just taken
    /// something.
    pub(crate) fn catch_up_behind(self: &Arc<Self>) {
        // Nearly always there is nothing, and each request asks.
        if !self.is_late.load(Ordering::Acquire) || !self.is_late.swap(false, Ordering::AcqRel) {
            return;
        }
        let (own, place) = (Arc::clone(self), Arc::clone(&self.behind).try_acquire_owned());
        tokio::spawn(async move {
            own.catch_up().await;
            drop(place);
        });
    }

    /// Writes the ends of requests that could not be written before, many at once: the store writes what it is
    /// given together in one transaction.
    pub(crate) async fn catch_up(self: &Arc<Self>) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        let mut late = late.into_iter();
        while late.len() > 0 {
            let mut group = JoinSet::new();
            for one in late.by_ref().take(LATE_AT_ONCE) {
                let own = Arc::clone(self);
                group.spawn(async move {
                    match one {
                        Late::Settled(intent, settlement) => own.settle(intent, settlement).await,
                        Late::Released(id) => own.release(id).await,
                    }
                });
            }
            let mut are_written = true;
            while let Some(written) = group.join_next().await {
                are_written &= written.unwrap_or(false);
            }
            if !are_written {
                self.keep(late);
                return;
            }
        }
    }

    /// Returns the time against which the age of entries is judged: a clock that is wrong when weir starts must not
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
}

impl Journal {
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
        // Whole days: totals of a day's part must not look like those of the day.
        let before = |days: u64| (now_ms / DAY_MS).saturating_sub(days).saturating_mul(DAY_MS);
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
                    max_input_tokens: u64::MAX,
                    ..Compaction::default()
                });
                let counted = (compaction, intent.sent_tokens);
                let settlement =
                    self.settlement((&intent, None), counted, None, &Ended::killed()).await;
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
        (intent, spelled): (&Intent, Option<&str>),
        (compaction, counted_tokens): (Option<Compaction>, Option<u64>),
        terms: Option<&Terms>,
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
        let inner_price = |inner: &InnerUsage| {
            let model = inner.model.as_deref().filter(|own| Some(*own) != answered)?;
            self.config.models.price(model)
        };
        let inner_prices: Vec<Option<&Price>> =
            ended.metered.apart.iter().map(inner_price).collect();
        let known = Known {
            compaction,
            counted_tokens,
            held: held.map(|(nano_usd, tokens)| Held { nano_usd, tokens }),
            max_output_tokens: intent.max_output_tokens,
            learned_output_tokens,
            status: ended.status,
            picture_nano_usd: self.config.models.picture_nano_usd(),
            price: self.price_after(intent, spelled, answered),
            inner_prices: &inner_prices,
            takes_stated_cost: self.config.prices.stated,
            searches_unasked: searches_unasked(&intent.model),
            draws: intent.route == Route::Images.name(),
            is_chat: intent.route == Route::Chat.name(),
            terms,
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
}

impl Account {
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
        let is_response = self.intent.route == Route::Responses.name();
        let Some(response) = ended.metered.pending.clone().filter(|_| is_response) else {
            return Some((self, ended));
        };
        let (tenant, state) = (self.intent.caller.tenant, Arc::clone(&self.journal.state));
        // Others do not wait for its end to learn which model answers for its name.
        if let Some(model) = &ended.metered.model {
            self.journal.note_answered(&self.intent, self.asked.as_deref(), model);
        }
        if let Some(holding) = &mut self.holding {
            holding.first = None;
        }
        state.deferred.park((tenant, response), (self, ended)).err()
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
            planned_saved_nano_usd: settlement.planned_saved_nano_usd,
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
        } else if ended.is_seen_success() && intent.held_nano_usd.is_some() {
            // Nobody says what answered: the name stands for itself.
            let own = self.asked.as_deref().unwrap_or(&intent.model);
            journal.note_answered(&intent, self.asked.as_deref(), own);
        }
        let counted = (self.compaction, self.counted_tokens);
        let terms = self.holding.as_ref().and_then(|holding| holding.terms.as_ref());
        let own = (&*intent, self.spelled.as_deref());
        let settlement = journal.settlement(own, counted, terms, ended).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::proxy::events::Events;
    use crate::proxy::hold::budgets::Budgets;
    use weir_store::Store;
    use weir_store::ledger::RequestId;

    #[tokio::test]
    async fn kept_ends_are_written_in_groups() {
        const ENDS: u64 = 1000;
        let store = Store::in_memory().expect("there is memory");
        let config = Arc::new(Config::default());
        let budgets = Budgets::new(Arc::clone(&config), &store, None, Events::new(&config));
        let state = Arc::new(JournalState::new(store.clone(), budgets));
        let transactions = || store.activity().transactions.counts.iter().sum::<u64>();
        state.keep((0..ENDS).map(|number| {
            let mut random = [0; 10];
            random[2..].copy_from_slice(&number.to_be_bytes());
            Late::Released(RequestId::new(DAY_MS, random))
        }));
        let before = transactions();
        state.catch_up().await;
        let taken = transactions() - before;
        assert!((1..=ENDS / 2).contains(&taken), "{taken} transactions");
        assert!(state.late.lock().is_ok_and(|late| late.is_empty()));
    }
}
