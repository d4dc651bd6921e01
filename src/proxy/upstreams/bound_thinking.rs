//! Models whose thinking an upstream refused as that of another conversation.

use super::refused_models::RefusedModels;

/// Models that refuse thinking after a compaction changed what stands before it.
#[derive(Default)]
pub struct BoundThinking {
    models: RefusedModels,
}

impl BoundThinking {
    /// Whether the upstream refused thinking of `model`.
    pub fn has(&self, model: &str) -> bool {
        self.models.has(model)
    }

    /// Remembers that the upstream refused thinking of `model`.
    pub fn note(&self, model: &str) {
        if self.models.note(model) {
            tracing::info!(
                target: "weir::models",
                model,
                "the upstream compares what stands before this model's thinking, so a compaction leaves \
                 out all earlier thinking"
            );
        }
    }
}
