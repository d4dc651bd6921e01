//! What all requests' plans share: the configuration, and what is remembered from one to the next.
//! None of it changes what a plan says of a conversation.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use super::Tenant;
use super::memory::Memory;
use super::planner::{INLINE_BYTES, Pace, Stop};
use super::summaries::Summaries;
use super::ways::Ways;
use crate::config::Config;
use crate::context::Measure;
use crate::tokens::tools;
use crate::wire::{Extra, ExtraKind, Request};

pub(super) struct Shared {
    pub(super) config: Arc<Config>,
    pub(super) memory: Arc<Memory>,
    /// Unknown models that were warned about already.
    warned: Arc<Mutex<HashSet<String>>>,
    /// `None` where no model sums up what cuts take.
    pub(super) summaries: Option<Arc<Summaries>>,
    /// The ways that requests may go, with what their upstreams have taught.
    pub(super) ways: Arc<Ways>,
    /// How many threads may work on bodies beside the async ones: one a core, so that large bodies
    /// queue here and not on the cores.
    pub(super) heavy: Arc<Semaphore>,
}

/// How many unknown models are remembered as warned about.
const WARNED_MODELS: usize = 1000;

impl Shared {
    pub(super) fn new(
        config: Arc<Config>,
        ways: Arc<Ways>,
        summaries: Option<Arc<Summaries>>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            memory: Arc::new(Memory::new(&config.cache)),
            warned: Arc::default(),
            ways,
            config,
            summaries,
            heavy: Arc::new(Semaphore::new(cores)),
        }
    }

    /// The same by another configuration: what is remembered of contents goes on.
    pub(super) fn renewed(
        &self,
        config: Arc<Config>,
        ways: Arc<Ways>,
        summaries: Option<Arc<Summaries>>,
    ) -> Self {
        // A fold holds the summaries that stood in it, which its key says nothing of.
        let is_alike = config.summaries.mode() == self.config.summaries.mode();
        let memory = match is_alike {
            true => Arc::clone(&self.memory),
            false => Arc::new(Memory::new(&config.cache)),
        };
        let (warned, heavy) = (Arc::clone(&self.warned), Arc::clone(&self.heavy));
        Self { memory, warned, ways, config, summaries, heavy }
    }

    /// Tokens of what stands beside the messages, counted once for each content.
    pub(super) fn extras_tokens(
        &self,
        tenant: Tenant,
        request: &Request<'_>,
        measure: Measure,
        pace: Pace,
    ) -> Result<u64, Stop> {
        let mut tokens = 0;
        for extra in &request.extras {
            let key = self.memory.extra_key(tenant, measure, extra);
            if let Some(fact) = self.memory.extra(key) {
                tokens += fact;
                continue;
            }
            if pace == Pace::Inline && extra.raw.len() > INLINE_BYTES {
                return Err(Stop::Heavy);
            }
            let own = extra_tokens(measure, extra);
            self.memory.keep_extra(key, own);
            tokens += own;
        }
        Ok(tokens)
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

/// Tokens of something that stands beside the messages.
pub(super) fn extra_tokens(measure: Measure, extra: &Extra<'_>) -> u64 {
    match extra.kind {
        ExtraKind::Tools | ExtraKind::Functions => tools::count_list(measure.encoding, extra.raw),
        ExtraKind::ResponseFormat => tools::count_response_format(measure.encoding, extra.raw),
        ExtraKind::Prediction => measure.encoding.count(extra.raw),
    }
}

/// As much of a model's name, which callers choose, as is kept and logged.
pub(super) fn shown(model: &str) -> String {
    model.chars().take(100).collect()
}
