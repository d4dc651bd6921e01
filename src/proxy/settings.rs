//! State of the proxy that is made from one configuration.

use std::sync::{Arc, OnceLock};

use super::compaction::seal::Sealer;
use super::hold::journal::Journal;
use super::plan::Planner;
use super::summaries::Summaries;
use super::upstreams::{Upstream, Upstreams, headers::Via};
use crate::config::{Config, Mode};
use crate::upstream::{Target, TargetError};
use weir_engine::compact::Configured;

/// State made from one configuration.
pub struct Settings {
    pub config: Arc<Config>,
    /// Hash of the configuration, once it was shown.
    pub config_hash: OnceLock<String>,
    pub upstreams: Upstreams,
    pub planner: Planner,
    /// `None` if summaries are disabled.
    pub summaries: Option<Arc<Summaries>>,
    pub journal: Arc<Journal>,
    pub via: Via,
    pub sealer: Sealer,
}

impl Settings {
    /// Whether conversations are planned but forwarded unchanged.
    pub fn is_observed(&self) -> bool {
        self.config.context.mode == Mode::Observe
    }

    /// Returns an upstream's name if there are several routes.
    pub fn shown_name<'a>(&self, upstream: &'a Upstream) -> Option<&'a Arc<str>> {
        self.planner.routes().are_several().then_some(&upstream.name)
    }

    /// Returns the limits of a model in configuration and catalogue.
    pub fn configured(&self, model: &str) -> Configured {
        let entry = self.config.models.find(model).entry;
        let (window_tokens, max_input_tokens) = (entry.window_tokens, entry.max_input_tokens);
        Configured { window_tokens, max_input_tokens }
    }

    /// Maps the `received` target of a request for `asked` onto an upstream that gets the model
    /// `sent`.
    pub fn target(
        &self,
        received: &Target,
        upstream: &Arc<Upstream>,
        asked: &str,
        sent: &str,
    ) -> Result<Target, TargetError> {
        let gets_callers_key = upstream.gets_callers_key;
        let is_same = asked == sent
            && Arc::ptr_eq(upstream, &self.upstreams.default)
            && (gets_callers_key || !received.has_credentials());
        match is_same {
            true => Ok(received.clone()),
            false => received.onto(upstream.client.base(), sent, gets_callers_key),
        }
    }
}
