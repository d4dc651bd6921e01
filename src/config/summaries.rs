//! `[summaries]`: who sums up what a cut takes, when, and for how much. Reads no key; it says where
//! one is held.

use super::reader::{Decimal, Reader};
use super::{Config, Priced, Secret, set};
use crate::budget::NanoUsd;

/// The model's name that stands for the one of the request itself.
pub const SAME_MODEL: &str = "same";
/// The most that a summary may be allowed: more is no summary.
const MAX_SUMMARY_TOKENS: u64 = 16_384;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const GIB: u64 = 1 << 30;

/// Summaries by a model of what cuts take.
#[derive(Debug, Clone)]
pub struct Summaries {
    /// As written; [`Self::mode`] is what it comes to.
    pub mode: SummaryMode,
    /// The model that writes them; empty for none, [`SAME_MODEL`] for each request's own.
    pub model: String,
    /// The base URL of its upstream; empty for `upstream.url`.
    pub url: String,
    /// The variable that holds the key for `url`; empty for none.
    pub api_key_env: String,
    /// The file that holds it; empty for none.
    pub api_key_file: String,
    /// The key itself, which no configuration holds: whoever starts weir reads it.
    pub own_key: Option<Secret>,
    /// The most that one may take.
    pub summary_tokens: u64,
    /// How full a conversation is when the summary for its next cut is begun, as a share of the
    /// mark of that cut.
    pub announce_permille: u32,
    /// How long one call of the model may take.
    pub timeout_ms: u64,
    /// How long a request whose cut has no summary yet waits for it, in the mode `wait`.
    pub wait_ms: u64,
    /// How long no call is made after several in a row have failed.
    pub pause_ms: u64,
    /// The most calls at once.
    pub max_concurrent: usize,
    /// How long a summary and what a cut put in place are kept after their last use.
    pub lifetime_ms: u64,
    /// Memory for both, in front of the store.
    pub cache_bytes: u64,
    /// What they all may weigh in the store.
    pub max_bytes: u64,
    /// What one tenant's summaries may cost a day (UTC); 0 is no cap.
    pub max_day: NanoUsd,
}

/// When a model sums up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryMode {
    /// In the background where there is a model, else not at all.
    Auto,
    /// Never, and what it wrote before is not looked for.
    Off,
    /// Never; what stands already in conversations' frozen parts goes on to stand.
    Extract,
    /// Ahead of the cut that needs it, and no request waits.
    Background,
    /// The same, and a cut whose summary is not ready waits for it.
    Wait,
}

impl Summaries {
    /// What `mode` comes to: never [`SummaryMode::Auto`].
    pub fn mode(&self) -> SummaryMode {
        match self.mode {
            SummaryMode::Auto if self.model.is_empty() => SummaryMode::Off,
            SummaryMode::Auto => SummaryMode::Background,
            mode => mode,
        }
    }

    /// Whether a model is called at all.
    pub fn are_written(&self) -> bool {
        matches!(self.mode(), SummaryMode::Background | SummaryMode::Wait)
    }
}

impl Default for Summaries {
    fn default() -> Self {
        Self {
            mode: SummaryMode::Auto,
            model: String::new(),
            url: String::new(),
            api_key_env: String::new(),
            api_key_file: String::new(),
            own_key: None,
            summary_tokens: 800,
            announce_permille: 800,
            timeout_ms: 60_000,
            wait_ms: 10_000,
            pause_ms: 30_000,
            max_concurrent: 4,
            lifetime_ms: 30 * DAY_MS,
            cache_bytes: 32 << 20,
            max_bytes: 256 << 20,
            max_day: NanoUsd(0),
        }
    }
}

const DAY_CAP: Decimal = Decimal {
    end: NanoUsd(1_000_000 * 1_000_000_000),
    wanted: "dollars from 0 to below 1000000 with at most nine decimals, like \"2.50\"",
};

/// Reads the section.
pub(super) fn read(reader: &mut Reader, summaries: &mut Summaries) {
    let modes = [
        ("auto", SummaryMode::Auto),
        ("off", SummaryMode::Off),
        ("extract", SummaryMode::Extract),
        ("background", SummaryMode::Background),
        ("wait", SummaryMode::Wait),
    ];
    let at = |key| ["summaries", key];
    set(&mut summaries.mode, reader.choice(&at("mode"), &modes));
    set(&mut summaries.model, reader.text(&at("model"), |text| Ok(text.trim().to_owned())));
    set(&mut summaries.url, reader.text(&at("url"), optional_url));
    set(&mut summaries.api_key_env, reader.text(&at("api_key_env"), super::auth::variable));
    set(&mut summaries.api_key_file, reader.text(&at("api_key_file"), super::auth::file));
    set(
        &mut summaries.summary_tokens,
        reader.whole(&at("summary_tokens"), 64..=MAX_SUMMARY_TOKENS),
    );
    let announce = reader.share_permille(&at("announce"), 100..=1000);
    set(&mut summaries.announce_permille, announce);
    let wholes = [
        ("timeout_ms", &mut summaries.timeout_ms, 1..=DAY_MS),
        ("wait_ms", &mut summaries.wait_ms, 1..=DAY_MS),
        ("pause_ms", &mut summaries.pause_ms, 1..=DAY_MS),
        ("lifetime_ms", &mut summaries.lifetime_ms, 1000..=366 * DAY_MS),
        ("cache_bytes", &mut summaries.cache_bytes, 0..=1024 * GIB),
        ("max_bytes", &mut summaries.max_bytes, 1 << 20..=1024 * GIB),
    ];
    for (key, place, range) in wholes {
        set(place, reader.whole(&at(key), range));
    }
    let concurrent = reader.whole(&at("max_concurrent"), 1..=1024);
    set(&mut summaries.max_concurrent, concurrent.and_then(|calls| usize::try_from(calls).ok()));
    set(&mut summaries.max_day, reader.decimal(&at("max_usd_per_day"), DAY_CAP));
    agree(reader, summaries);
}

/// Refuses what does not go together.
fn agree(reader: &mut Reader, summaries: &Summaries) {
    let is_model_wanted = matches!(summaries.mode, SummaryMode::Background | SummaryMode::Wait);
    if is_model_wanted && summaries.model.is_empty() {
        let message = "is missing: summaries.mode asks for a model. Name one that the upstream \
                       has, or \"same\" for each request's own";
        reader.refuse(&["summaries", "model"], message);
    }
    if summaries.model == SAME_MODEL && !summaries.url.is_empty() {
        let message = "is given, yet summaries.model is \"same\": a request's own model is where \
                       the request goes. Name a model of this upstream, or leave the URL out";
        reader.refuse(&["summaries", "url"], message);
    }
    if !summaries.api_key_env.is_empty() && !summaries.api_key_file.is_empty() {
        let message = "is given beside summaries.api_key_env; name one of them";
        reader.refuse(&["summaries", "api_key_file"], message);
    }
    let has_key = !summaries.api_key_env.is_empty() || !summaries.api_key_file.is_empty();
    if has_key && summaries.url.is_empty() {
        let message = "is missing: a key for summaries alone goes to an upstream of their own. \
                       Without one they are written with what their requests are sent with";
        reader.refuse(&["summaries", "url"], message);
    }
}

/// Refuses a cap that nothing would hold: it goes by what the journal says that calls have cost.
pub(super) fn agree_with(reader: &mut Reader, config: &Config) {
    let summaries = &config.summaries;
    let is_capped = summaries.max_day.0 > 0 && summaries.are_written();
    if is_capped && !config.ledger.enabled {
        let message = "is given, yet ledger.enabled is false: without the journal nobody knows what \
                       was spent";
        reader.refuse(&["summaries", "max_usd_per_day"], message);
    }
    let is_named = summaries.model != SAME_MODEL;
    if is_capped && is_named && matches!(config.price(&summaries.model), Priced::Unpriced) {
        let message = "is given, yet the model's price is not known: set it under \
                       [models.\"NAME\"]";
        reader.refuse(&["summaries", "max_usd_per_day"], message);
    }
}

/// A base URL, or nothing.
fn optional_url(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Ok(String::new()) } else { super::checks::base_url(text) }
}
