//! Models for whose streams an upstream refuses to report usage. Sends nothing.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::config::AskUsage;

/// Maximum number of remembered models. Past that, all are forgotten and asked once more.
const MAX_MODELS: usize = 1000;
/// Maximum length of a remembered model name; callers choose them.
const MAX_MODEL_BYTES: usize = 200;

/// Models for whose streams the upstream refuses usage requests.
pub struct UsageRefusals {
    ask_usage: AskUsage,
    models: Mutex<HashSet<String>>,
}

impl UsageRefusals {
    pub fn new(ask_usage: AskUsage) -> Self {
        Self { ask_usage, models: Mutex::new(HashSet::new()) }
    }

    /// Whether usage is requested for streams of `model`.
    pub fn may_request(&self, model: &str) -> bool {
        match self.ask_usage {
            AskUsage::Always => true,
            AskUsage::Never => false,
            AskUsage::Auto => self.models.lock().is_ok_and(|models| !models.contains(model)),
        }
    }

    /// Remembers that the usage request was refused for `model`, and that the request was accepted
    /// without it.
    pub fn note(&self, model: &str) {
        let Ok(mut models) = self.models.lock() else { return };
        if self.ask_usage != AskUsage::Auto || model.len() > MAX_MODEL_BYTES {
            return;
        }
        if models.len() >= MAX_MODELS {
            models.clear();
        }
        if models.insert(model.to_owned()) {
            tracing::info!(
                target: "weir::models",
                model,
                "the upstream refuses to report the usage of this model's streams"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_remembered_as_configured_and_bounded() {
        for (ask_usage, before, after) in [
            (AskUsage::Auto, true, false),
            (AskUsage::Always, true, true),
            (AskUsage::Never, false, false),
        ] {
            let usage_refusals = UsageRefusals::new(ask_usage);
            assert_eq!(usage_refusals.may_request("m"), before);
            usage_refusals.note("m");
            assert_eq!(usage_refusals.may_request("m"), after);
        }
        let usage_refusals = UsageRefusals::new(AskUsage::Auto);
        let long = "m".repeat(MAX_MODEL_BYTES + 1);
        usage_refusals.note(&long);
        assert!(usage_refusals.may_request(&long));
        for number in 0..=MAX_MODELS {
            usage_refusals.note(&number.to_string());
        }
        assert!(usage_refusals.may_request("0"));
        assert!(!usage_refusals.may_request(&MAX_MODELS.to_string()));
    }
}
