//! The account of each request: opened in the store before the request is sent, settled there before
//! its caller sees the end. What a kill leaves open is settled at the next start, by rule. Relays
//! nothing and decides nothing about requests.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::settlement::{self, End, Known};
use super::{Caller, ErrorKind, ProxyError};
use crate::budget::{Compaction, Price};
use crate::config::{Config, OnFailure};
use crate::store::ledger::{Flags, Intent, RequestId};
use crate::store::{self, Store, StoreError, now_ms};
use crate::wire::usage::Metered;

/// Requests of ended processes that are settled in one go.
const ORPHANS_AT_ONCE: usize = 256;
/// Settlements in the background that the end of the process waits for.
const MAX_BEHIND: u32 = 1 << 16;
/// How long it waits for them.
const BEHIND_TIMEOUT: Duration = Duration::from_secs(5);

/// Where requests are written down.
pub struct Journal {
    store: Store,
    config: Arc<Config>,
    upstream: String,
    /// One place for each settlement in the background.
    behind: Arc<Semaphore>,
}

/// What is written down of a request before it is sent.
pub struct Opening {
    pub caller: Caller,
    pub route: &'static str,
    pub model: String,
    pub stream: bool,
    pub action: String,
    pub zone: &'static str,
    pub compaction: Option<Compaction>,
    pub max_output_tokens: Option<u64>,
    pub plan_ms: u64,
}

/// How a request ended.
pub struct Ended<'a> {
    pub end: End,
    /// The word for it.
    pub outcome: &'static str,
    pub status: Option<StatusCode>,
    pub metered: &'a Metered,
    pub first_byte_ms: Option<u64>,
    pub total_ms: u64,
}

impl Journal {
    pub fn new(config: Arc<Config>, store: Store, upstream: String) -> Self {
        Self { store, config, upstream, behind: Arc::new(Semaphore::new(MAX_BEHIND as usize)) }
    }

    /// Writes down that a request is about to be sent.
    ///
    /// Where that fails, `ledger.on_failure` says whether it is sent all the same.
    pub async fn open(self: &Arc<Self>, opening: Opening) -> Result<Account, ProxyError> {
        let begun_ms = now_ms();
        let mut random = [0; 10];
        getrandom::fill(&mut random)
            .map_err(|_| ProxyError::new(ErrorKind::Internal, "the system gives no random bytes"))?;
        let intent = Arc::new(Intent {
            id: RequestId::new(begun_ms, random),
            begun_ms,
            caller: opening.caller.account(),
            route: opening.route.to_owned(),
            model: opening.model,
            upstream: self.upstream.clone(),
            stream: opening.stream,
            action: opening.action,
            zone: opening.zone.to_owned(),
            received_tokens: opening.compaction.map(|done| done.received_tokens),
            sent_tokens: opening.compaction.map(|done| done.sent_tokens),
            max_output_tokens: opening.max_output_tokens,
            plan_ms: Some(opening.plan_ms),
        });
        if let Err(error) = self.store.open_request(&intent).await
            && self.config.ledger.on_failure == OnFailure::Closed
        {
            return Err(unwritten(&error));
        }
        let open = Open { journal: Arc::clone(self), intent, compaction: opening.compaction };
        Ok(Account { open: Some(open) })
    }

    /// Settles what ended processes left open; how many requests those were.
    pub async fn recover(&self) -> Result<u64, StoreError> {
        let mut settled = 0;
        loop {
            let orphans = self.store.orphans(ORPHANS_AT_ONCE).await?;
            let found = orphans.len();
            let mut settling = JoinSet::new();
            for intent in orphans {
                let metered = Metered::default();
                let ended = Ended {
                    end: End::Unseen,
                    outcome: "killed",
                    status: None,
                    metered: &metered,
                    first_byte_ms: None,
                    total_ms: 0,
                };
                let compaction = by_intent(&intent);
                let mut settlement = self.figures(&intent, compaction, &ended).await;
                settlement.total_ms = None;
                let store = self.store.clone();
                settling.spawn(async move {
                    store.settle_request(Arc::new(intent), settlement).await
                });
            }
            while let Some(done) = settling.join_next().await {
                settled += u64::from(done.map_err(|_| StoreError::Closed)??);
            }
            if found < ORPHANS_AT_ONCE {
                return Ok(settled);
            }
        }
    }

    /// What is written down of a request that ended so.
    async fn figures(
        &self,
        intent: &Intent,
        compaction: Option<Compaction>,
        ended: &Ended<'_>,
    ) -> store::ledger::Settlement {
        let learned_output_tokens = match ended.end {
            // A store that cannot be read knows no more than one that has seen nothing.
            End::Unseen => self.store.learned_output_tokens(&intent.model).await.unwrap_or(None),
            End::NotSent | End::Seen => None,
        };
        let known = Known {
            compaction,
            max_output_tokens: intent.max_output_tokens,
            learned_output_tokens,
            status: ended.status.map(|status| status.as_u16()),
            price: self.price(ended.metered.model.as_deref(), &intent.model),
        };
        let mut settlement = settlement::settle(ended.end, ended.metered, &known);
        settlement.outcome = ended.outcome.to_owned();
        settlement.status = known.status;
        settlement.first_byte_ms = ended.first_byte_ms;
        settlement.total_ms = Some(ended.total_ms);
        if ended.outcome == "caller_left" {
            settlement.flags |= Flags::CALLER_LEFT;
        }
        settlement
    }

    /// What the model costs that answered, or else the one that was asked for: behind a deployment's
    /// name or an alias only the answer knows.
    fn price(&self, answered: Option<&str>, asked: &str) -> Option<&Price> {
        let names = answered.into_iter().chain([asked]).filter(|name| !name.is_empty());
        names.filter_map(|name| self.config.models.find(name).price).next()
            .or_else(|| self.config.prices.unknown_price())
    }
}

/// An account that is open. Dropped without being settled, it is settled by rule, as one whose end
/// was not seen.
#[must_use = "an account that is dropped says that nobody saw the request's end"]
pub struct Account {
    /// `None` once it is settled.
    open: Option<Open>,
}

struct Open {
    journal: Arc<Journal>,
    intent: Arc<Intent>,
    compaction: Option<Compaction>,
}

impl Account {
    /// What the request is called in the journal.
    pub fn id(&self) -> Option<RequestId> {
        self.open.as_ref().map(|open| open.intent.id)
    }

    /// Writes down how the request ended, and gives what it came to once that is written.
    pub async fn settle(mut self, ended: Ended<'_>) -> Option<Settlement> {
        let open = self.open.take()?;
        Some(open.settle(ended).await)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let place = Arc::clone(&open.journal.behind).try_acquire_owned();
        runtime.spawn(async move {
            let metered = Metered::default();
            open.settle(Ended::unseen(&metered)).await;
            drop(place);
        });
    }
}
