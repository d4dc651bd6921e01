//! `[summaries]`: model, timing and cost limits of summaries of compacted messages. Reads no key;
//! it records where one is stored.

use super::choices::SummaryMode;
use super::reader::{Reader, settings};
use super::{Config, Priced, Secret, SecretPlace};
use weir_store::budget::NanoUsd;

/// Model name that stands for the request's own model.
pub const SAME_MODEL: &str = "same";

settings! {
    /// Summaries of compacted messages, written by a model.
    #[derive(Debug, Clone)]
    Summaries from keys {
        /// As written; [`Self::mode`] resolves it.
        mode: SummaryMode = keys.get("mode"),
        /// Model that writes summaries; empty for none, [`SAME_MODEL`] for each request's own.
        model: String = keys.text("model", trimmed),
        /// Base URL of its upstream; empty for `upstream.url`.
        url: String = keys.text("upstream.url", optional_url),
        /// Place of the key for `url`.
        api_key: SecretPlace = keys.text("upstream.api_key", SecretPlace::parse),
        /// The key itself, filled in at start; the configuration never contains it.
        provider_key: Option<Secret> = None,
        /// Maximum length of one summary.
        summary_tokens: u64 = keys.get("summary_tokens"),
        /// Room for reasoning in addition to the summary.
        reasoning_tokens: u64 = keys.get("reasoning.tokens"),
        /// Effort of reasoning; empty for the model's default.
        reasoning_effort: String = keys.text("reasoning.effort", trimmed),
        /// Share of the growth up to the next compaction after which its summary is prefetched.
        prefetch_permille: u32 = keys.get("prefetch"),
        /// Time limit of one model call.
        timeout_ms: u64 = keys.get("timeouts_ms.call"),
        /// How long a request waits for a missing summary in the mode `wait`.
        wait_ms: u64 = keys.get("timeouts_ms.wait"),
        /// Pause after several failed calls in a row.
        pause_ms: u64 = keys.get("timeouts_ms.pause"),
        /// Maximum concurrent calls.
        max_concurrent: usize = keys.get("max_concurrent"),
        /// How long a summary and the text inserted by a compaction are kept after their last use.
        lifetime_ms: u64 = keys.get("kept.lifetime_ms"),
        /// Memory for both, in front of the store.
        cache_bytes: u64 = keys.get("kept.cache_bytes"),
        /// Maximum total size in the store.
        max_bytes: u64 = keys.get("kept.max_bytes"),
        /// Maximum cost of one tenant's summaries per day (UTC); 0 for no cap.
        max_day: NanoUsd = keys.get("max_usd_per_day"),
    }
}

impl Summaries {
    /// Resolves the mode; never returns [`SummaryMode::Auto`].
    pub fn mode(&self) -> SummaryMode {
        match self.mode {
            SummaryMode::Auto if self.model.is_empty() => SummaryMode::Off,
            SummaryMode::Auto => SummaryMode::Background,
            mode => mode,
        }
    }

    /// Returns whether a model is called at all.
    pub fn are_written(&self) -> bool {
        matches!(self.mode(), SummaryMode::Background | SummaryMode::Wait)
    }
}

impl Default for Summaries {
    fn default() -> Self {
        Config::default().summaries
    }
}

/// Rejects contradicting keys.
pub(super) fn agree(reader: &mut Reader, summaries: &Summaries) {
    let is_model_wanted = matches!(summaries.mode, SummaryMode::Background | SummaryMode::Wait);
    if is_model_wanted && summaries.model.is_empty() {
        let message = "is missing: summaries.mode requires a model. Name one that the upstream \
                       serves, or \"same\" for each request's own";
        reader.refuse(&["summaries", "model"], message);
    }
    if summaries.model == SAME_MODEL && !summaries.url.is_empty() {
        let message = "is set, but summaries.model is \"same\": a request's own model is called at \
                       the request's upstream. Name a model of this upstream, or remove the URL";
        reader.refuse(&["summaries", "upstream", "url"], message);
    }
    if summaries.api_key.is_set() && summaries.url.is_empty() {
        let message = "is missing: a separate key for summaries requires a separate upstream. \
                       Without a key, summaries use the credentials of their requests";
        reader.refuse(&["summaries", "upstream", "url"], message);
    }
}

/// Rejects a cost cap that cannot be enforced: it relies on the costs recorded in the journal.
pub(super) fn agree_with(reader: &mut Reader, config: &Config) {
    let summaries = &config.summaries;
    let is_capped = summaries.max_day.0 > 0 && summaries.are_written();
    if is_capped && !config.ledger.enabled {
        let message =
            "is set, but ledger.enabled is false: without the journal, spending is unknown";
        reader.refuse(&["summaries", "max_usd_per_day"], message);
    }
    let is_named = summaries.model != SAME_MODEL;
    if is_capped && is_named && matches!(config.price(&summaries.model), Priced::Unpriced) {
        let message = "is set, but the model's price is unknown: set it under [models.\"NAME\"]";
        reader.refuse(&["summaries", "max_usd_per_day"], message);
    }
}

fn trimmed(text: &str) -> Result<String, String> {
    Ok(text.trim().to_owned())
}

/// Parses a base URL, or an empty text.
fn optional_url(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Ok(String::new()) } else { super::checks::base_url(text) }
}
