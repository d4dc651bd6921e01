//! State that is kept across reloads, and the settings made with it from each configuration.

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use super::admit::admission::Admissions;
use super::compaction::seal::Sealer;
use super::error::SetupError;
use super::events::Events;
use super::hold::budgets::Budgets;
use super::hold::journal::{Journal, JournalState};
use super::hold::prices::{RoutePrices, Warned};
use super::live::Live;
use super::plan::{PlanState, Planner, PlannerParts};
use super::recall::records::RecallRecords;
use super::relay::drain::Drains;
use super::send::attempt::Attempt;
use super::settings::Settings;
use super::settle::{originals::Originals, receipts::Receipts, recent::RecentConversations};
use super::summaries::{Summaries, Summariser, SummaryState};
use super::traces::Tracer;
use super::upstreams::{Upstreams, headers::Via, routes::Routes};
use crate::config::Config;
use crate::upstream::Client;
use weir_store::ledger::RequestId;
use weir_store::redis::Redis;
use weir_store::{SECRET_BYTES, Store, Tenant};

/// State kept across reloads.
pub struct Runtime {
    pub store: Store,
    /// Secret of callers' fingerprints and of sealed items.
    pub secret: [u8; SECRET_BYTES],
    pub originals: Arc<Originals>,
    /// Recent conversations, for the inspector.
    pub recent: RecentConversations,
    pub receipts: Receipts,
    /// Answers that are read without their callers.
    pub drains: Drains,
    pub admissions: Admissions,
    /// Requests in flight and ended ones, for operators.
    pub live: Arc<Live>,
    /// Routes and models already reported as unread.
    pub unread: Warned,
    pub events: Events,
    pub tracer: Tracer,
    pub plans: Arc<PlanState>,
    /// Records of the model's recalls.
    pub recalls: Arc<RecallRecords>,
    journal: Arc<JournalState>,
    /// Permit for one inspection at a time, so that requests find their cores.
    pub inspections: Arc<Semaphore>,
    summaries: Arc<SummaryState>,
    /// Name of this instance in `via`, to recognise its own requests.
    pub via: Via,
}

impl Runtime {
    /// Creates the state for the configuration in force at the start. Fails if memory for its
    /// caches is not available.
    pub fn new(config: &Arc<Config>, store: Store) -> Result<Self, SetupError> {
        let redis = Redis::configured(&config.redis.url, &config.redis.key_prefix)
            .map_err(SetupError::Redis)?;
        let events = Events::new(config);
        let budgets = Budgets::new(Arc::clone(config), &store, redis.clone(), events.clone());
        Ok(Self {
            originals: Arc::new(Originals::new(&config.context, &store)?),
            recent: RecentConversations::default(),
            receipts: Receipts::new(&config.ledger, &store),
            drains: Drains::new(&config.ledger),
            admissions: Admissions::new(redis),
            live: Arc::default(),
            unread: Warned::default(),
            events,
            tracer: Tracer::new(config),
            journal: Arc::new(JournalState::new(store.clone(), budgets)),
            plans: Arc::new(PlanState::new(&config.cache, Some(store.clone()))),
            recalls: Arc::new(RecallRecords::new(store.clone())),
            inspections: Arc::new(Semaphore::new(1)),
            summaries: Arc::new(SummaryState::new(&config.summaries, &store)),
            via: Via::random(),
            secret: instance_secret(config, &store),
            store,
        })
    }

    /// Keeps the originals of what an accepted attempt has left out, and the receipt of its compaction
    /// under the request's ID, and reads ahead for the next one. `permit` is the body's share of memory.
    pub(super) fn keep(
        &self,
        config: &Config,
        (tenant, id): (Tenant, Option<RequestId>),
        attempt: &mut Attempt,
        permit: Box<dyn Send>,
    ) {
        let left_out = std::mem::take(&mut attempt.planned.left_out);
        self.originals.keep(tenant, attempt.job.body.clone(), left_out, permit);
        if let Some(id) = id.filter(|_| config.ledger.receipts) {
            self.receipts.keep(tenant, id, &attempt.job, &attempt.planned);
        }
        let _ = std::mem::take(&mut attempt.planned.read_ahead).start();
    }
}

impl Settings {
    /// Creates the settings of `config`. `client` is that of the default upstream, made if absent.
    /// Unchanged upstreams of `before` keep their connections and learned values.
    pub fn new(
        config: Arc<Config>,
        client: Option<Client>,
        runtime: &Runtime,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        let store = &runtime.store;
        let old = before.map(|before| (&*before.config, &before.upstreams));
        let upstreams = Upstreams::new(&config, client, (store, &runtime.events), old)?;
        let routes =
            Routes::new(Arc::clone(&config), |name| Arc::clone(&upstreams.find(name).knowledge));
        let prices = RoutePrices::new(&config, |name| upstreams.find(name).origin.to_string());
        let origin = upstreams.default.origin.to_string();
        let state = Arc::clone(&runtime.journal);
        let journal = Arc::new(Journal::new(Arc::clone(&config), origin, prices, state));
        let old = before.and_then(|before| before.summaries.as_deref());
        let shared = (store, &runtime.summaries);
        let summaries = Summaries::new(&config, &upstreams.default, &journal, shared, old)
            .map_err(SetupError::Summaries)?;
        let parts = PlannerParts {
            state: Some(Arc::clone(&runtime.plans)),
            routes: Some(Arc::new(routes)),
            summaries: summaries.clone().map(|own| own as Arc<dyn Summariser>),
            metrics: Arc::clone(journal.metrics()),
        };
        let planner = Planner::new(Arc::clone(&config), parts);
        let (via, sealer) = (runtime.via.clone(), Sealer::new(&runtime.secret));
        let config_hash = OnceLock::new();
        Ok(Self { config, config_hash, upstreams, planner, summaries, journal, via, sealer })
    }
}

/// Returns the secret that instances share: the configured one, or that of their store.
pub fn instance_secret(config: &Config, store: &Store) -> [u8; SECRET_BYTES] {
    let configured = config.auth.secret.as_ref();
    configured.map_or_else(
        || store.secret(),
        |secret| blake3::derive_key("weir 1 the secret of instances", secret.expose().as_bytes()),
    )
}
