//! Making of summaries: when, by whom, within which limits, and how often they may fail. Knows no plan.

mod call;
mod request;
mod work;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use self::call::{CallFailure, Line, SUMMARY};
pub use self::work::Sent;
use self::work::{Missing, Work};
use super::breakers::Breakers;
use super::cap::HeldCost;
use super::flights::{Landing, Part};
use super::keys::{Key, SummaryKeys};
use super::records::Ready;
use super::spans::{self, PrefetchSpan};
use super::state::SummaryState;
use super::{Requester, Summariser, SummaryLookup, Waiting};
use crate::config::{self, Config, Priced, SAME_MODEL};
use crate::proxy::admit::caller::Caller;
use crate::proxy::hold::journal::Journal;
use crate::proxy::upstreams::Upstream;
use crate::upstream::{Client, ClientError, ProviderKey, Target};
use weir_store::budget::{self, Billed, NanoUsd};
use weir_store::ledger::DAY_MS;
use weir_store::{Store, Tenant, now_ms};

/// Maximum time that shutdown waits for summaries in progress.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Summariser of one configuration, with the state and records of all.
pub struct Summaries {
    config: Arc<Config>,
    lookup: Arc<SummaryLookup>,
    line: Line,
    /// Target of a summariser with its own name.
    own_target: Option<Target>,
    journal: Arc<Journal>,
    store: Store,
}

impl Summaries {
    /// Creates the summaries of `config`, with `upstream` if they use the requests' upstream;
    /// `None` if they are disabled. Connections of `before` to an unchanged summariser carry over.
    pub fn new(
        config: &Arc<Config>,
        upstream: &Arc<Upstream>,
        journal: &Arc<Journal>,
        (store, state): (&Store, &Arc<SummaryState>),
        before: Option<&Self>,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let settings = config.summaries.clone();
        if !spans::are_looked_for(settings.mode()) {
            return Ok(None);
        }
        let line = line(config, upstream, before)?;
        let own_target = match settings.model.as_str() {
            "" | SAME_MODEL => None,
            _ => Target::map(line.client().base(), "/v1/chat/completions").ok(),
        };
        Ok(Some(Arc::new(Self {
            lookup: Arc::new(SummaryLookup {
                settings,
                keys: SummaryKeys::new(&store.secret()),
                state: Arc::clone(state),
            }),
            line,
            own_target,
            journal: Arc::clone(journal),
            store: store.clone(),
            config: Arc::clone(config),
        })))
    }

    /// Prefetches the summary of a span in the background, unless that is in progress.
    pub fn prefetch(
        self: &Arc<Self>,
        wanted: PrefetchSpan,
        body: &Bytes,
        requester: &Arc<Requester>,
        sent: Option<Sent>,
    ) {
        // Nobody waits for it.
        let _ = self.begin(wanted, body, requester, sent);
    }

    /// Records that the upstream accepted a request of this caller.
    pub fn note_taken(&self, caller: &Caller) {
        if self.lends_key(caller) {
            self.lookup.state.proved.insert(&caller.tenant, ());
        }
    }

    /// Whether summaries use weir's own key on behalf of a caller without a virtual key.
    fn lends_key(&self, caller: &Caller) -> bool {
        matches!(self.line, Line::Own(_, Some(_))) && caller.key.is_none()
    }

    fn begin(
        self: &Arc<Self>,
        wanted: PrefetchSpan,
        body: &Bytes,
        requester: &Arc<Requester>,
        sent: Option<Sent>,
    ) -> Option<Landing> {
        let tenant = requester.caller.tenant;
        if self.breakers(requester).is_open(Instant::now()) {
            return None;
        }
        // Another model reads the messages themselves.
        let model = self.lookup.settings.model.as_str();
        let sent = sent.filter(|_| model == SAME_MODEL || model == wanted.model);
        let bytes = wanted.bytes() + sent.as_ref().map_or(0, |sent| sent.body.len());
        let kib = u32::try_from(bytes / 1024 + 1).ok()?;
        // Without room in memory there is no summary.
        let held = Arc::clone(&self.lookup.state.room).try_acquire_many_owned(kib).ok()?;
        let (start, messages) = (wanted.start, wanted.of(body));
        let part = Part { messages: messages.len(), key: wanted.covered };
        let is_own = |part: &Part| self.is_key_of(tenant, &messages, part);
        self.lookup.state.flights.begin((start, part), is_own, || {
            let summaries = Arc::clone(self);
            let (requester, messages) = (Arc::clone(requester), messages.clone());
            let work = Work { requester, messages, wanted, sent, _held: held };
            async move { summaries.fly(&work).await }
        })
    }

    /// Makes a summary and stores it; returns whether there is one.
    async fn fly(&self, work: &Work) -> bool {
        let tenant = work.requester.caller.tenant;
        let wanted = &work.wanted;
        // Possibly made by another process.
        let will_do = |ready: &Ready| {
            let part = Part { messages: ready.summary.covers, key: ready.covered };
            part.messages >= wanted.least_covers && self.is_key_of(tenant, &work.messages, &part)
        };
        if self.lookup.state.records.ready(tenant, &wanted.start, will_do).await.is_some() {
            return true;
        }
        let begun = Instant::now();
        let made = self.make(work).await;
        let total_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        match made {
            Ok(made) => {
                self.lookup.state.counts.made(made.calls as u64, made.tokens);
                tracing::info!(
                    target: "weir::summaries",
                    event = SUMMARY,
                    messages = made.summary.covers,
                    calls = made.calls,
                    tokens = made.tokens,
                    cost_usd = NanoUsd(made.cost_nano_usd).to_decimal(),
                    total_ms,
                    "summarised messages for the next compaction"
                );
                let covers = made.summary.covers.min(work.messages.len());
                let covered = self.key_of(tenant, &work.messages[..covers]);
                let ready = Ready { summary: made.summary, covered };
                self.lookup.state.records.keep_ready(tenant, &wanted.start, ready).await;
                true
            }
            Err(missing) => {
                self.lookup.state.counts.missed(missing == Missing::Capped);
                let failure = missing.failure();
                tracing::info!(
                    target: "weir::summaries",
                    event = "summary_missing",
                    why = missing.word(),
                    status = failure.and_then(CallFailure::status),
                    cause = failure.and_then(CallFailure::cause),
                    total_ms,
                    "messages could not be summarised; their compaction uses the extract"
                );
                // A pause ends by itself and does not count as a failure of the conversation.
                matches!(missing, Missing::Paused)
            }
        }
    }

    /// Whether these messages begin with that part.
    fn is_key_of(&self, tenant: Tenant, messages: &[Bytes], part: &Part) -> bool {
        let own = messages.get(..part.messages).filter(|own| !own.is_empty());
        own.is_some_and(|own| self.key_of(tenant, own) == part.key)
    }

    fn key_of(&self, tenant: Tenant, messages: &[Bytes]) -> Key {
        self.lookup
            .keys
            .span(tenant, messages.iter().filter_map(|raw| std::str::from_utf8(raw).ok()))
    }

    /// Returns the upstream of a call on behalf of a request: the request's own route, if its model
    /// answers.
    fn line(&self, requester: &Requester) -> Line {
        match &self.line {
            Line::Callers(_) if self.lookup.settings.model == SAME_MODEL => {
                Line::Callers(Arc::clone(&requester.upstream))
            }
            line => line.clone(),
        }
    }

    fn breakers(&self, requester: &Requester) -> Breakers {
        let tenant = requester.caller.tenant;
        let whose = match self.line(requester) {
            Line::Callers(upstream) if upstream.gets_callers_key => {
                (tenant, Arc::clone(&upstream.name))
            }
            Line::Callers(upstream) => (Tenant::ANONYMOUS, Arc::clone(&upstream.name)),
            Line::Own(..) => (Tenant::ANONYMOUS, Arc::default()),
        };
        let pause = Duration::from_millis(self.lookup.settings.pause_ms);
        self.lookup.state.breakers.find(whose, tenant, pause)
    }

    /// Holds the maximum cost of a call. Refuses if the tenant's summaries could exceed today's
    /// cap, or if the price is unknown.
    async fn hold(
        &self,
        tenant: Tenant,
        model: &str,
        [prompt_tokens, output_tokens]: [u64; 2],
    ) -> Result<Option<HeldCost>, Missing> {
        let max_day = self.lookup.settings.max_day;
        if max_day.0 == 0 {
            return Ok(None);
        }
        let (Priced::Known(price) | Priced::Default(price)) = self.config.price(model) else {
            return Err(Missing::Capped);
        };
        let billed = Billed {
            prompt_tokens: Some(prompt_tokens),
            completion_tokens: Some(output_tokens),
            ..Billed::default()
        };
        let most = NanoUsd(budget::cost(price, &billed).nano_usd);
        let now_ms = now_ms();
        let day_ms = now_ms - now_ms % DAY_MS;
        let spent = async { self.store.spent_on_route(tenant, SUMMARY, day_ms).await.ok() };
        self.lookup
            .state
            .cap
            .hold(tenant, max_day, most, spent)
            .await
            .map(Some)
            .ok_or(Missing::Capped)
    }

    /// Waits, within bounds, for summaries in progress.
    pub async fn finish(&self) {
        // Calls still in flight at the end are settled by rule at the next start.
        let _ = tokio::time::timeout(FINISH_TIMEOUT, self.lookup.state.flights.finish()).await;
    }

    /// Returns the counters by name.
    pub fn figures(&self) -> Vec<(String, u64)> {
        self.lookup.state.counts.figures(&self.lookup.state.records)
    }
}

impl Summariser for Summaries {
    fn lookup(&self) -> &Arc<SummaryLookup> {
        &self.lookup
    }

    fn wait(self: Arc<Self>, wanted: PrefetchSpan, body: Bytes, by: Arc<Requester>) -> Waiting {
        let SummaryLookup { settings, state, .. } = &*self.lookup;
        let deadline = Instant::now() + Duration::from_millis(settings.wait_ms);
        let may_begin = !self.lends_key(&by.caller) || state.proved.contains(&by.caller.tenant);
        let begin = || self.begin(wanted, &body, &by, None);
        let Some(landing) = may_begin.then(begin).flatten() else {
            return Box::pin(std::future::ready(()));
        };
        state.counts.waited();
        Box::pin(async move {
            // A summary that is not ready by then is not used.
            let _ = tokio::time::timeout_at(deadline, landing.reached()).await;
        })
    }
}

/// Returns the upstream of the summariser; that of `before` if it is configured alike.
fn line(
    config: &Config,
    upstream: &Arc<Upstream>,
    before: Option<&Summaries>,
) -> Result<Line, ClientError> {
    let settings = &config.summaries;
    if settings.url.is_empty() {
        return Ok(Line::Callers(Arc::clone(upstream)));
    }
    let is_alike = |before: &&Summaries| {
        let old = &before.lookup.settings;
        config.upstream == before.config.upstream
            && settings.url == old.url
            && settings.provider_key == old.provider_key
            && settings.timeout_ms == old.timeout_ms
    };
    if let Some(before) = before.filter(is_alike)
        && let line @ Line::Own(..) = &before.line
    {
        return Ok(line.clone());
    }
    let own = config::Upstream {
        url: settings.url.clone(),
        first_byte_timeout_ms: settings.timeout_ms,
        // weir's client certificate is only for the upstream for which it is configured.
        tls: config::TlsFiles { cert: None, key: None, ..config.upstream.tls.clone() },
        ..config.upstream.clone()
    };
    let client = Client::new(&own)?;
    let provider_key =
        settings.provider_key.as_ref().and_then(|key| ProviderKey::new(key, client.base()));
    Ok(Line::Own(client, provider_key))
}
