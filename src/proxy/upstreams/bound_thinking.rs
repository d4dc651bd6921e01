//! Models whose thinking an upstream refused as that of another conversation. Kept in memory: after a
//! restart, one more refusal teaches it again.

use std::collections::HashSet;
use std::sync::Mutex;

/// Maximum number of remembered models. Past that, all are forgotten.
const MAX_MODELS: usize = 1000;
/// Maximum length of a remembered model name; callers choose them.
const MAX_MODEL_BYTES: usize = 200;

/// Models that refuse thinking after a compaction changed what stands before it.
#[derive(Default)]
pub struct BoundThinking {
    models: Mutex<HashSet<String>>,
}

impl BoundThinking {
    /// Whether the upstream refused thinking of `model`.
    pub fn has(&self, model: &str) -> bool {
        self.models.lock().is_ok_and(|models| models.contains(model))
    }

    /// Remembers that the upstream refused thinking of `model`.
    pub fn note(&self, model: &str) {
        let Ok(mut models) = self.models.lock() else { return };
        if model.len() > MAX_MODEL_BYTES {
            return;
        }
        if models.len() >= MAX_MODELS {
            models.clear();
        }
        if models.insert(model.to_owned()) {
            tracing::info!(
                target: "weir::models",
                model,
                "the upstream compares what stands before this model's thinking, so a compaction leaves \
                 out all earlier thinking"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_remembered_and_bounded() {
        let bound = BoundThinking::default();
        assert!(!bound.has("m"));
        bound.note("m");
        assert!(bound.has("m"));
        let long = "x".repeat(MAX_MODEL_BYTES + 1);
        bound.note(&long);
        assert!(!bound.has(&long));
        for number in 0..MAX_MODELS {
            bound.note(&number.to_string());
        }
        assert!(!bound.has("m") && bound.has("999"));
    }
}
