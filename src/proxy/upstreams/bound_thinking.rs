//! Models whose thinking an upstream refused as that of another conversation, and whose requests it took
//! without. Kept in memory: after a restart, one more refusal teaches it again.

use serde::{Deserialize, Serialize};

use super::learned_store::{LearnedStore, Lesson};
use weir_store::{Kind, Tenant};

/// Its kind, though none is stored.
const BOUND: Kind = Kind { name: "bound_thinking", max_bytes: 0 };

/// Fact that a model refuses thinking after a compaction changed what stands before it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct IsBound {}

impl Lesson for IsBound {
    fn confirms(&self, _: &Self) -> bool {
        true
    }
}

/// Models that refuse such thinking. A refusal may repeat a caller's words, so the traffic of one tenant
/// teaches others nothing until another's confirms it.
pub struct BoundThinking {
    models: LearnedStore<IsBound>,
}

impl BoundThinking {
    /// Creates the empty set; with `has_own_key` all callers are one account to the upstream.
    pub fn new(has_own_key: bool) -> Self {
        Self { models: LearnedStore::new(BOUND, u64::MAX, None, has_own_key) }
    }

    /// Whether the upstream refuses thinking of `model` in requests of `tenant`.
    pub fn has(&self, tenant: Tenant, model: &str) -> bool {
        self.models.find(tenant, model).is_some()
    }

    /// Remembers that the upstream refused thinking of `model`, and took a request of `tenant` without.
    pub fn note(&self, tenant: Tenant, model: &str) {
        if !self.has(tenant, model) {
            tracing::info!(
                target: "weir::models",
                model,
                "the upstream compares what stands before this model's thinking, so a compaction leaves \
                 out all earlier thinking"
            );
        }
        // Nothing is stored.
        let _ = self.models.teach(tenant, model, IsBound {});
    }
}
