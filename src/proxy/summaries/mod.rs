//! Summaries by a model of what cuts take: made in the background ahead of the cut that needs them,
//! kept in the store, and put in place once and for all when the cut is made. No request fails for
//! one, and none waits unless it is told to.

mod breaker;
mod call;
mod cap;
mod counts;
mod flights;
mod keys;
mod records;
mod request;
mod spans;
mod work;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::breaker::{Breaker, Breakers};
use self::call::{Line, SUMMARY};
use self::cap::{Cap, Held};
use self::counts::Counts;
use self::flights::{Flights, Landing, Part};
use self::keys::Keys;
use self::records::{Ready, Records};
pub use self::spans::{Look, Patience, Spans, Wanted};
pub use self::work::{Behalf, Sent};
use self::work::{Missing, Work};
use super::upstreams::Upstream;
use super::{Caller, Journal};
use crate::budget::{self, Billed, NanoUsd};
use crate::config::{self, Config, Priced, SAME_MODEL};
use crate::context::Asking;
use crate::store::ledger::DAY_MS;
use crate::store::{Store, Tenant, now_ms};
use crate::upstream::{Client, ClientError, OwnKey, Target};

/// Callers whose own credentials have a breaker each; past that the least used begin anew.
const MOST_BREAKERS: u64 = 10_000;
/// Callers who are remembered to have a credential that the upstream takes, and for how long.
const MOST_PROVED: u64 = 100_000;
const PROVED_FOR: Duration = Duration::from_millis(DAY_MS);
/// The most that what is being summed up, and what waits for it, holds in memory, in KiB.
const ROOM_KIB: usize = 128 << 10;
/// How long the end of the process waits for summaries that are being made.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// What sums up, and what is kept of it.
pub struct Summaries {
    config: Arc<Config>,
    settings: config::Summaries,
    keys: Keys,
    records: Arc<Records>,
    flights: Arc<Flights>,
    /// Of what answers, by its name: one for each tenant where callers' own credentials are sent, else
    /// one for all.
    breakers: Cache<(Tenant, Arc<str>), Arc<Breaker>>,
    /// Of what is made of each tenant's content.
    content_breakers: Cache<Tenant, Arc<Breaker>>,
    cap: Cap,
    /// Callers of whom the upstream has taken a request, where it is weir's key that summaries cost.
    proved: Cache<Tenant, ()>,
    line: Line,
    /// Where a summariser with a name of its own is.
    own_target: Option<Target>,
    journal: Arc<Journal>,
    store: Store,
    /// Room for what is being summed up or waits for it, in KiB.
    room: Arc<Semaphore>,
    pub counts: Arc<Counts>,
}

impl Summaries {
    /// As `config` says, by `upstream` where a model of its own sums up at the upstream of requests;
    /// `None` where none are looked for. What was known `before` goes on.
    pub fn new(
        config: &Arc<Config>,
        upstream: &Arc<Upstream>,
        journal: &Arc<Journal>,
        store: &Store,
        before: Option<&Self>,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let settings = config.summaries.clone();
        if !spans::are_looked_for(settings.mode()) {
            return Ok(None);
        }
        let line = line(config, upstream)?;
        let own_target = match settings.model.as_str() {
            "" | SAME_MODEL => None,
            _ => Target::map(line.client().base(), "/v1/chat/completions").ok(),
        };
        let pause = Duration::from_millis(settings.pause_ms);
        // A breaker outlives its pause, or nobody would be left alone.
        let idle = pause.saturating_mul(4);
        let own = Self {
            keys: Keys::new(&store.secret()),
            records: Arc::new(Records::new(&settings, store.clone())),
            flights: Flights::new(settings.max_concurrent),
            breakers: Cache::builder().max_capacity(MOST_BREAKERS).time_to_idle(idle).build(),
            content_breakers: Cache::builder()
                .max_capacity(MOST_BREAKERS)
                .time_to_idle(idle)
                .build(),
            cap: Cap::new(settings.max_day),
            proved: Cache::builder().max_capacity(MOST_PROVED).time_to_idle(PROVED_FOR).build(),
            line,
            own_target,
            journal: Arc::clone(journal),
            store: store.clone(),
            room: Arc::new(Semaphore::new(ROOM_KIB)),
            counts: Arc::default(),
            config: Arc::clone(config),
            settings,
        };
        Ok(Some(Arc::new(match before {
            Some(before) => own.continuing(before),
            None => own,
        })))
    }

    /// What is known, under way, held and counted goes on from what was before.
    fn continuing(self, before: &Self) -> Self {
        let is_paused_alike = self.settings.pause_ms == before.settings.pause_ms;
        let (breakers, content_breakers) = match is_paused_alike {
            true => (before.breakers.clone(), before.content_breakers.clone()),
            false => (self.breakers, self.content_breakers),
        };
        let (own, old) = (&self.settings, &before.settings);
        let goes_alike = self.config.upstream == before.config.upstream
            && own.url == old.url
            && own.own_key == old.own_key
            && own.timeout_ms == old.timeout_ms;
        let line = match (&self.line, &before.line) {
            (Line::Own(..), line @ Line::Own(..)) if goes_alike => line.clone(),
            (line, _) => line.clone(),
        };
        Self {
            line,
            records: Arc::clone(&before.records),
            flights: Arc::clone(&before.flights),
            cap: before.cap.renewed(self.settings.max_day),
            proved: before.proved.clone(),
            room: Arc::clone(&before.room),
            counts: Arc::clone(&before.counts),
            breakers,
            content_breakers,
            ..self
        }
    }

    /// How summaries are asked for; `None` where none is made.
    pub fn asking(&self) -> Option<Asking> {
        let config::Summaries { announce_permille, summary_tokens, .. } = self.settings;
        self.settings.are_written().then_some(Asking { announce_permille, summary_tokens })
    }

    /// The patience of a request that is going to be sent.
    pub fn patience(&self) -> Patience {
        match self.settings.mode() {
            config::SummaryMode::Wait => Patience::Waits,
            _ => Patience::Settles,
        }
    }

    /// Has the summary of a span made in the background, unless that is under way.
    pub fn announce(
        self: &Arc<Self>,
        wanted: Wanted,
        body: &Bytes,
        behalf: &Arc<Behalf>,
        sent: Option<Sent>,
    ) {
        // Nobody waits for it.
        let _ = self.begin(wanted, body, behalf, sent);
    }

    /// Notes that the upstream took a request of this caller's.
    pub fn note_taken(&self, caller: &Caller) {
        if self.lends_key(caller) {
            self.proved.insert(caller.tenant, ());
        }
    }

    /// Whether summaries cost a key of weir's own that this caller has not been given leave to use.
    fn lends_key(&self, caller: &Caller) -> bool {
        matches!(self.line, Line::Own(_, Some(_))) && caller.key.is_none()
    }

    /// The same, and waits for it until `deadline`; a request that goes away meanwhile ends nothing.
    /// Nobody has one made at weir's expense whose credential is one
    /// that no upstream has taken.
    pub async fn wait(
        self: &Arc<Self>,
        wanted: Wanted,
        body: &Bytes,
        behalf: &Arc<Behalf>,
        deadline: Instant,
    ) {
        let caller = &behalf.caller;
        if self.lends_key(caller) && !self.proved.contains_key(&caller.tenant) {
            return;
        }
        let Some(landing) = self.begin(wanted, body, behalf, None) else { return };
        self.counts.waited();
        // What is not there by then is settled without it.
        let _ = tokio::time::timeout_at(deadline, landing.reached()).await;
    }

    /// How long a request waits for a summary.
    pub fn wait_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.wait_ms)
    }

    fn begin(
        self: &Arc<Self>,
        wanted: Wanted,
        body: &Bytes,
        behalf: &Arc<Behalf>,
        sent: Option<Sent>,
    ) -> Option<Landing> {
        let tenant = behalf.caller.tenant;
        if self.breakers(behalf).is_open(Instant::now()) {
            return None;
        }
        // Another model reads the messages themselves.
        let model = self.settings.model.as_str();
        let sent = sent.filter(|_| model == SAME_MODEL || model == wanted.model);
        let bytes = wanted.bytes() + sent.as_ref().map_or(0, |sent| sent.body.len());
        let kib = u32::try_from(bytes / 1024 + 1).ok()?;
        // What there is no room for is not summed up.
        let held = Arc::clone(&self.room).try_acquire_many_owned(kib).ok()?;
        let (start, messages) = (wanted.start, wanted.of(body));
        let part = Part { messages: messages.len(), key: wanted.covered };
        let is_own = |part: &Part| self.is_key_of(tenant, &messages, part);
        self.flights.begin((start, part), is_own, || {
            let summaries = Arc::clone(self);
            let (behalf, messages) = (Arc::clone(behalf), messages.clone());
            let work = Work { behalf, messages, wanted, sent, _held: held };
            async move { summaries.fly(&work).await }
        })
    }

    /// Makes a summary and keeps it; whether there is one.
    async fn fly(&self, work: &Work) -> bool {
        let tenant = work.behalf.caller.tenant;
        let wanted = &work.wanted;
        // Perhaps another process's.
        let will_do = |ready: &Ready| {
            let part = Part { messages: ready.summary.covers, key: ready.covered };
            part.messages >= wanted.least_covers && self.is_key_of(tenant, &work.messages, &part)
        };
        if self.records.ready(tenant, &wanted.start, will_do).await.is_some() {
            return true;
        }
        let begun = Instant::now();
        let made = self.make(work).await;
        let total_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        match made {
            Ok(made) => {
                self.counts.made(made.calls as u64, made.tokens);
                tracing::info!(
                    target: "weir::summaries",
                    event = SUMMARY,
                    messages = made.summary.covers,
                    calls = made.calls,
                    tokens = made.tokens,
                    cost_usd = NanoUsd(made.cost_nano_usd).to_decimal(),
                    total_ms,
                    "messages were summed up for a cut to come"
                );
                let covers = made.summary.covers.min(work.messages.len());
                let covered = self.key_of(tenant, &work.messages[..covers]);
                let ready = Ready { summary: made.summary, covered };
                self.records.keep_ready(tenant, &wanted.start, ready).await;
                true
            }
            Err(missing) => {
                self.counts.missed(missing);
                tracing::info!(
                    target: "weir::summaries",
                    event = "summary_missing",
                    why = missing.word(),
                    total_ms,
                    "messages could not be summed up; their cut says what weir says without a model"
                );
                // What is over by itself is not held against the conversation.
                matches!(missing, Missing::Paused)
            }
        }
    }

    /// Whether these messages begin with that part.
    fn is_key_of(&self, tenant: Tenant, messages: &[Bytes], part: &Part) -> bool {
        let own = messages.get(..part.messages).filter(|own| !own.is_empty());
        own.is_some_and(|own| self.key_of(tenant, own) == part.key)
    }

    fn key_of(&self, tenant: Tenant, messages: &[Bytes]) -> keys::Key {
        self.keys.span(tenant, messages.iter().filter_map(|raw| std::str::from_utf8(raw).ok()))
    }

    /// Where a call on behalf of a request goes: the request's own way, where its model answers.
    fn line(&self, behalf: &Behalf) -> Line {
        match &self.line {
            Line::Callers(_) if self.settings.model == SAME_MODEL => {
                Line::Callers(Arc::clone(&behalf.upstream))
            }
            line => line.clone(),
        }
    }

    fn breakers(&self, behalf: &Behalf) -> Breakers {
        let tenant = behalf.caller.tenant;
        let whose = match self.line(behalf) {
            Line::Callers(upstream) if upstream.gets_callers_key => {
                (tenant, Arc::clone(&upstream.name))
            }
            Line::Callers(upstream) => (Tenant::ANONYMOUS, Arc::clone(&upstream.name)),
            Line::Own(..) => (Tenant::ANONYMOUS, Arc::default()),
        };
        let pause = Duration::from_millis(self.settings.pause_ms);
        let new = || Arc::new(Breaker::new(pause));
        Breakers {
            summariser: self.breakers.get_with(whose, new),
            content: self.content_breakers.get_with(tenant, new),
        }
    }

    /// Holds what a question may cost at most; refuses where the tenant's summaries could so come to
    /// more than they may today, and where nobody knows the price.
    async fn hold(
        &self,
        tenant: Tenant,
        model: &str,
        [prompt_tokens, output_tokens]: [u64; 2],
    ) -> Result<Option<Held>, Missing> {
        if !self.cap.is_set() {
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
        self.cap.hold(tenant, most, spent).await.map(Some).ok_or(Missing::Capped)
    }

    /// Waits, within bounds, for summaries that are being made.
    pub async fn finish(&self) {
        // At the end of the time what is under way is settled by rule at the next start.
        let _ = tokio::time::timeout(FINISH_TIMEOUT, self.flights.finish()).await;
    }

    /// What was counted, by name.
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        self.counts.figures(&self.records)
    }
}

/// Where the summariser is.
fn line(config: &Config, upstream: &Arc<Upstream>) -> Result<Line, ClientError> {
    let settings = &config.summaries;
    if settings.url.is_empty() {
        return Ok(Line::Callers(Arc::clone(upstream)));
    }
    let own = config::Upstream {
        url: settings.url.clone(),
        first_byte_timeout_ms: settings.timeout_ms,
        // weir's certificate is for the upstream that it is set for.
        tls: config::ConnectTls {
            client_cert: None,
            client_key: None,
            ..config.upstream.tls.clone()
        },
        ..config.upstream.clone()
    };
    let client = Client::new(&own)?;
    let own_key = settings.own_key.as_ref().and_then(|key| OwnKey::new(key, client.base()));
    Ok(Line::Own(client, own_key))
}
