//! Models whose requests an upstream refused in part. Kept in memory: after a restart, one more refusal
//! teaches it again. Sends nothing.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Maximum number of remembered models. Past that, all are forgotten.
const MAX_MODELS: usize = 1000;
/// Maximum length of a remembered model name; callers choose them.
const MAX_MODEL_BYTES: usize = 200;

/// Bounded set of models.
#[derive(Default)]
pub struct RefusedModels {
    models: Mutex<HashSet<String>>,
}

impl RefusedModels {
    /// Whether `model` is remembered.
    pub(crate) fn has(&self, model: &str) -> bool {
        self.models.lock().contains(model)
    }

    /// Remembers `model`; returns whether it is new.
    pub(crate) fn note(&self, model: &str) -> bool {
        if model.len() > MAX_MODEL_BYTES {
            return false;
        }
        let mut models = self.models.lock();
        if models.len() >= MAX_MODELS {
            models.clear();
        }
        models.insert(model.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_remembered_once_and_bounded() {
        let refused = RefusedModels::default();
        assert!(!refused.has("m"));
        assert!(refused.note("m") && refused.has("m") && !refused.note("m"));
        let long = "x".repeat(MAX_MODEL_BYTES + 1);
        assert!(!refused.note(&long) && !refused.has(&long));
        for number in 0..MAX_MODELS {
            refused.note(&number.to_string());
        }
        assert!(!refused.has("m") && refused.has("999"));
    }
}
