//! Models for whose streams an upstream refuses to report usage.

use super::refused_models::RefusedModels;
use crate::config::AskUsage;

/// Models for whose streams the upstream refuses usage requests.
pub struct UsageRefusals {
    ask_usage: AskUsage,
    models: RefusedModels,
}

impl UsageRefusals {
    pub fn new(ask_usage: AskUsage) -> Self {
        Self { ask_usage, models: RefusedModels::default() }
    }

    /// Whether usage is requested for streams of `model`.
    pub fn may_request(&self, model: &str) -> bool {
        match self.ask_usage {
            AskUsage::Always => true,
            AskUsage::Never => false,
            AskUsage::Auto => !self.models.has(model),
        }
    }

    /// Remembers that the usage request was refused for `model`, and that the request was accepted
    /// without it.
    pub fn note(&self, model: &str) {
        if self.ask_usage == AskUsage::Auto && self.models.note(model) {
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
    fn refusals_are_remembered_as_configured() {
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
    }
}
