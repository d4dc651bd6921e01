//! Inputs of all requests' plans: the configuration, the routes, and caches between requests, which
//! change no result.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use super::decisions::DecisionRecords;
use super::plan_cache::PlanCache;
use crate::config::{self, Config};
use crate::proxy::cache::CacheFigures;
use crate::proxy::logged::shown;
use crate::proxy::summaries::SummaryLookup;
use crate::proxy::upstreams::routes::Routes;
use weir_engine::plan::Plan;
use weir_store::Store;

/// Caches of plans that a reload keeps.
pub struct PlanState {
    pub(super) cache: PlanCache,
    /// Decisions that conversations keep.
    pub(super) decisions: DecisionRecords,
    /// Unknown models that were already warned about.
    warned: Mutex<HashSet<String>>,
    /// Permits for threads that work on bodies besides the async ones: one per core, so that large
    /// bodies queue here and not on the cores.
    pub(super) heavy: Arc<Semaphore>,
    /// Whether unknown models are warned about.
    warns: bool,
}

/// Maximum number of unknown models remembered as warned about.
const WARNED_MODELS: usize = 1000;

impl PlanState {
    /// Creates empty caches; `store` holds the decisions that conversations keep, if there is one.
    pub fn new(limits: &config::Cache, store: Option<Store>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cache: PlanCache::new(limits),
            decisions: DecisionRecords::new(store, limits.folds_bytes / 16),
            warned: Mutex::default(),
            heavy: Arc::new(Semaphore::new(cores)),
            warns: true,
        }
    }

    /// Creates empty caches for plans that are only examined: on one thread, without warnings.
    pub(super) fn examined(limits: &config::Cache) -> Self {
        let heavy = Arc::new(Semaphore::new(0));
        Self { heavy, warns: false, ..Self::new(limits, None) }
    }

    /// Returns the figures of its caches.
    pub fn figures(&self) -> impl Iterator<Item = CacheFigures> + use<> {
        self.cache.figures().into_iter()
    }
}

/// Inputs of all plans under one configuration.
pub(super) struct Shared {
    pub(super) config: Arc<Config>,
    /// `None` if summaries are disabled.
    pub(super) summaries: Option<Arc<SummaryLookup>>,
    /// Routes of requests, with the learned values of their upstreams.
    pub(super) routes: Arc<Routes>,
    pub(super) state: Arc<PlanState>,
}

impl Shared {
    /// Warns of a compaction that leaves less than a quarter of what would fit.
    pub(super) fn warn_of_waste(&self, model: &str, plan: &Plan) {
        let fitting_tokens = plan.limit_tokens.min(plan.received_tokens);
        if self.state.warns && plan.sent_tokens < fitting_tokens / 4 {
            tracing::warn!(
                target: "weir::plan",
                model = shown(model),
                received_tokens = plan.received_tokens,
                sent_tokens = plan.sent_tokens,
                limit_tokens = plan.limit_tokens,
                tools_tokens = plan.tools_tokens(),
                "a compaction leaves less than a quarter of what would fit"
            );
        }
    }

    pub(super) fn warn_once(&self, model: &str, entry: &config::ModelEntry) {
        let Ok(mut warned) = self.state.warned.lock() else { return };
        if !self.state.warns || model.is_empty() {
            return;
        }
        let model = shown(model);
        if warned.len() < WARNED_MODELS && warned.insert(model.clone()) {
            tracing::warn!(
                target: "weir::models",
                model,
                max_input_tokens = entry.max_input_tokens,
                max_output_tokens = entry.max_output_tokens,
                "unknown model: set its window under [models.\"NAME\"] in the configuration"
            );
        }
    }
}
