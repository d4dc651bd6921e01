//! State shared by all requests' plans: the configuration, and caches between requests. None of it
//! changes the result of a plan.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use super::plan_cache::PlanCache;
use crate::config::Config;
use crate::proxy::summaries::Summaries;
use crate::proxy::upstreams::routes::Routes;

pub(super) struct Shared {
    pub(super) config: Arc<Config>,
    pub(super) memory: Arc<PlanCache>,
    /// Unknown models that were already warned about.
    warned: Arc<Mutex<HashSet<String>>>,
    /// `None` if summaries are disabled.
    pub(super) summaries: Option<Arc<Summaries>>,
    /// Routes of requests, with the learned values of their upstreams.
    pub(super) routes: Arc<Routes>,
    /// Permits for threads that work on bodies besides the async ones: one per core, so that large
    /// bodies queue here and not on the cores.
    pub(super) heavy: Arc<Semaphore>,
}

/// Maximum number of unknown models remembered as warned about.
const WARNED_MODELS: usize = 1000;

impl Shared {
    pub(super) fn new(
        config: Arc<Config>,
        routes: Arc<Routes>,
        summaries: Option<Arc<Summaries>>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            memory: Arc::new(PlanCache::new(&config.cache)),
            warned: Arc::default(),
            routes,
            config,
            summaries,
            heavy: Arc::new(Semaphore::new(cores)),
        }
    }

    /// Creates the state for another configuration: caches of contents carry over.
    pub(super) fn renewed(
        &self,
        config: Arc<Config>,
        routes: Arc<Routes>,
        summaries: Option<Arc<Summaries>>,
    ) -> Self {
        // A compaction state holds its summaries, which are not part of its key.
        let is_alike = config.summaries.mode() == self.config.summaries.mode();
        let memory = match is_alike {
            true => Arc::clone(&self.memory),
            false => Arc::new(PlanCache::new(&config.cache)),
        };
        let (warned, heavy) = (Arc::clone(&self.warned), Arc::clone(&self.heavy));
        Self { memory, warned, routes, config, summaries, heavy }
    }

    pub(super) fn warn_once(&self, model: &str, entry: &crate::config::ModelEntry) {
        let Ok(mut warned) = self.warned.lock() else { return };
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

/// Truncates a model name, which callers choose, for storage and the log.
pub fn shown(model: &str) -> String {
    model.chars().take(100).collect()
}
