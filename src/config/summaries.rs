//! `[summaries]`: model, timing and cost limits of summaries of compacted messages. Reads no key;
//! it records where one is stored.

use super::choices::SummaryMode;
use super::keys::SUMMARIES;
use super::reader::Reader;
use super::{Config, Priced, Secret, SecretPlace};
use weir_store::budget::NanoUsd;

/// Model name that stands for the request's own model.
pub const SAME_MODEL: &str = "same";

/// Summaries of compacted messages, written by a model.
#[derive(Debug, Clone)]
pub struct Summaries {
    /// As written; [`Self::mode`] resolves it.
    pub mode: SummaryMode,
    /// Model that writes summaries; empty for none, [`SAME_MODEL`] for each request's own.
    pub model: String,
    /// Base URL of its upstream; empty for `upstream.url`.
    pub url: String,
    /// Place of the key for `url`.
    pub api_key: SecretPlace,
    /// The key itself, filled in at start; the configuration never contains it.
    pub provider_key: Option<Secret>,
    /// Maximum length of one summary.
    pub summary_tokens: u64,
    /// Room for reasoning in addition to the summary.
    pub reasoning_tokens: u64,
    /// Effort of reasoning; empty for the model's default.
    pub reasoning_effort: String,
    /// Share of the growth up to the next compaction after which its summary is prefetched.
    pub prefetch_permille: u32,
    /// Time limit of one model call.
    pub timeout_ms: u64,
    /// How long a request waits for a missing summary in the mode `wait`.
    pub wait_ms: u64,
    /// Pause after several failed calls in a row.
    pub pause_ms: u64,
    /// Maximum concurrent calls.
    pub max_concurrent: usize,
    /// How long a summary and the text inserted by a compaction are kept after their last use.
    pub lifetime_ms: u64,
    /// Memory for both, in front of the store.
    pub cache_bytes: u64,
    /// Maximum total size in the store.
    pub max_bytes: u64,
    /// Maximum cost of one tenant's summaries per day (UTC); 0 for no cap.
    pub max_day: NanoUsd,
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

/// Reads the section.
pub(super) fn read(reader: &mut Reader) -> Summaries {
    let mut keys = reader.section(&SUMMARIES);
    let summaries = Summaries {
        mode: keys.get("mode"),
        model: keys.text("model", |text| Ok(text.trim().to_owned())),
        url: keys.text("upstream.url", optional_url),
        api_key: keys.text("upstream.api_key", SecretPlace::parse),
        provider_key: None,
        summary_tokens: keys.get("summary_tokens"),
        reasoning_tokens: keys.get("reasoning.tokens"),
        reasoning_effort: keys.text("reasoning.effort", |text| Ok(text.trim().to_owned())),
        prefetch_permille: keys.get("prefetch"),
        timeout_ms: keys.get("timeouts_ms.call"),
        wait_ms: keys.get("timeouts_ms.wait"),
        pause_ms: keys.get("timeouts_ms.pause"),
        max_concurrent: keys.get("max_concurrent"),
        lifetime_ms: keys.get("kept.lifetime_ms"),
        cache_bytes: keys.get("kept.cache_bytes"),
        max_bytes: keys.get("kept.max_bytes"),
        max_day: keys.get("max_usd_per_day"),
    };
    agree(reader, &summaries);
    summaries
}

/// Rejects contradicting keys.
fn agree(reader: &mut Reader, summaries: &Summaries) {
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

/// Parses a base URL, or an empty text.
fn optional_url(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Ok(String::new()) } else { super::checks::base_url(text) }
}
