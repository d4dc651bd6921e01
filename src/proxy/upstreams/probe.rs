//! Request that asks an upstream for more than it last refused. Sends nothing: `send::probe` decides which
//! request it is.

use std::sync::Arc;

use super::learned::Learned;
use crate::proxy::logged::shown;
use weir_engine::compact::learned::is_read_whole;
use weir_engine::compact::{Configured, LearnedLimits, Lesson};
use weir_store::Tenant;

/// Request sent under higher limits than the learned ones.
pub struct Probe {
    pub learned: Arc<Learned>,
    pub tenant: Tenant,
    pub model: String,
    pub configured: Configured,
    /// Learned limits before, and the time of the last refusal.
    pub before: LearnedLimits,
    pub refused_ms: u64,
    /// Limits of the probe.
    pub raised: LearnedLimits,
    pub sent_tokens: u64,
    pub is_estimated: bool,
}

impl Probe {
    /// Lesson from a refused probe without numbers: nothing has changed.
    pub fn in_vain(&self) -> Lesson {
        Lesson { kept: self.before, of_this: self.before }
    }

    /// Records that the upstream accepted the request, and its `reported` prompt tokens.
    pub fn accepted(&self, reported: Option<u64>) {
        if !is_read_whole(self.sent_tokens, reported, self.is_estimated) {
            return;
        }
        tracing::info!(
            target: "weir::learned",
            model = shown(&self.model),
            learned_tokens = self.before.least_tokens(),
            sent_tokens = self.sent_tokens,
            limit_tokens = self.raised.least_tokens(),
            "the upstream takes more than it refused before; its learned limit is raised"
        );
        let of = (self.tenant, self.model.as_str());
        self.learned.raise_limits(of, self.raised, self.configured, self.refused_ms);
    }
}
