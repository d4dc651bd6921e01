//! Learned values of upstreams' models: limits, and the ratio of their tokens to weir's count.
//! Decides nothing: `context` draws the conclusions from a refusal or a sample.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Learning;
use crate::proxy::cache::Cache;
use crate::proxy::logged::shown;
use crate::proxy::upstreams::learned_store::{self, LearnedStore, Lesson, Stored, Taught};
use weir_engine::compact::calibration::{self, Counted, Ratio, Sample, Samples};
use weir_engine::compact::{self, Configured, LearnedLimits, Measure};
use weir_engine::plan::extra_tokens;
use weir_engine::tokens::media::ImageRule;
use weir_engine::tokens::{Digits, Encoding, REPLY_PRIMING};
use weir_engine::wire::{Protocol, Request};
use weir_store::Tenant;
use weir_store::{Kind, Store, StoreError, now_ms};

/// Limits in the store.
pub const LIMITS: Kind = Kind { name: "learned_limits", max_bytes: 1 << 20 };
/// Claims of probes in the store.
const PROBES: Kind = Kind { name: "limit_probes", max_bytes: 1 << 20 };
/// Ratios in the store.
pub const RATIOS: Kind = Kind { name: "learned_ratios", max_bytes: 1 << 20 };
/// How long a learned limit stays valid: after an hour without a refusal a request tries twice as much anyway.
const LIMIT_LIFETIME_MS: u64 = 24 * 60 * 60 * 1000;
/// Lifetime of a ratio that no sample has moved. Tokenizers do not change, but the model behind a
/// name may.
const RATIO_LIFETIME_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// Share of a limit up to that the lessons of two tenants may differ and confirm each other.
const NEAR_SHARE: u64 = 16;
/// Such a difference of ratios, in thousandths.
const NEAR_PERMILLE: u32 = 30;
/// Maximum number of models with samples.
const MAX_SAMPLED_MODELS: u64 = 1000;
/// Minimum prompt size of a sample: smaller ones are mostly framing, which differs between
/// templates.
const MIN_SAMPLE_TOKENS: u64 = 500;
/// Maximum number of prompts counted again at once, for models without a ratio.
const MAX_COUNTING: usize = 2;
/// Maximum bytes of bodies kept for that until their answers end. Requests beyond it give no
/// samples.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// Learned values of the models behind an upstream.
pub struct Learned {
    options: Learning,
    limits: LearnedStore<LimitsRow>,
    ratios: LearnedStore<RatioRow>,
    samples: Cache<(Tenant, String), Arc<Mutex<Samples>>>,
    counting: Arc<Semaphore>,
    keeping: Arc<Semaphore>,
}

/// Limits as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsRow {
    #[serde(flatten)]
    pub limits: LearnedLimits,
    /// Time of the upstream's last refusal.
    pub learned_ms: u64,
    /// Time at which it accepted more than it had refused before, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised_ms: Option<u64>,
    /// The model's configuration: under another one these limits do not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
}

impl LimitsRow {
    fn new(limits: LearnedLimits, configured: Configured, learned_ms: u64) -> Self {
        Self { limits, learned_ms, raised_ms: None, configured: Some(configured) }
    }
}

/// Ratio as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatioRow {
    /// Tokens of the model for a thousand of weir's.
    pub permille: u32,
    /// Whether the model reads digits in groups of three.
    #[serde(default)]
    pub has_digits_in_threes: bool,
    /// Number of changes of the ratio.
    pub version: u32,
    pub learned_ms: u64,
}

impl Lesson for LimitsRow {
    fn confirms(&self, other: &Self) -> bool {
        let is_near = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => one.abs_diff(other) <= one / NEAR_SHARE,
            (one, other) => one == other,
        };
        let (own, other) = (&self.limits, &other.limits);
        is_near(own.window_tokens, other.window_tokens)
            && is_near(own.max_input_tokens, other.max_input_tokens)
            && own.counts_output == other.counts_output
    }
}

impl Lesson for RatioRow {
    fn confirms(&self, other: &Self) -> bool {
        let is_near = self.permille.abs_diff(other.permille) <= NEAR_PERMILLE;
        is_near && self.has_digits_in_threes == other.has_digits_in_threes
    }
}

impl RatioRow {
    /// Returns the model's tokens for one of weir's.
    pub fn ratio(&self) -> f64 {
        f64::from(self.permille) / 1000.0
    }

    /// Returns how the model reads digits.
    pub fn digits(&self) -> Digits {
        if self.has_digits_in_threes { Digits::InThrees } else { Digits::Apart }
    }
}

impl Learned {
    /// Creates the learned values of an upstream, kept in `store` under its name, if any. With
    /// weir's own key all callers are one account to the upstream; else each credential has its own limits,
    /// such as those of a provider's tier.
    pub fn new(store: Option<(Store, String)>, has_own_key: bool, options: Learning) -> Self {
        Self {
            options,
            limits: LearnedStore::new(LIMITS, LIMIT_LIFETIME_MS, store.clone(), has_own_key),
            ratios: LearnedStore::new(RATIOS, RATIO_LIFETIME_MS, store, has_own_key),
            samples: Cache::new(MAX_SAMPLED_MODELS),
            counting: Arc::new(Semaphore::new(MAX_COUNTING)),
            keeping: Arc::new(Semaphore::new(MAX_KEPT_BYTES)),
        }
    }

    /// Whether refusals are learned from.
    pub fn retries_overflow(&self) -> bool {
        self.options.heal
    }

    /// Returns the learned limits of `model` under this configuration, for requests of `tenant`.
    pub fn limits(&self, tenant: Tenant, model: &str, configured: Configured) -> LearnedLimits {
        self.row(tenant, model, configured).map(|row| row.limits).unwrap_or_default()
    }

    fn row(&self, tenant: Tenant, model: &str, configured: Configured) -> Option<LimitsRow> {
        let row = self.options.heal.then(|| self.limits.find(tenant, model));
        // A setting changed since is newer than the learned limits.
        row.flatten().filter(|row| row.configured.is_none_or(|own| own == configured))
    }

    /// Stores the learned limits of `model` under this configuration, from a request of `tenant`.
    pub async fn keep_limits(
        &self,
        tenant: Tenant,
        model: &str,
        limits: LearnedLimits,
        configured: Configured,
    ) {
        let row = LimitsRow::new(limits, configured, now_ms());
        self.limits.store(model, self.limits.teach(tenant, model, row)).await;
    }

    /// Returns the learned limits of `model` and the time of the last refusal, if a probe is due.
    pub fn may_probe(
        &self,
        tenant: Tenant,
        model: &str,
        configured: Configured,
    ) -> Option<(LearnedLimits, u64)> {
        let row = self.row(tenant, model, configured)?;
        compact::learned::may_probe(row.learned_ms, now_ms())
            .then_some((row.limits, row.learned_ms))
    }

    /// Claims the one probe of `model` under these learned limits, across all processes.
    pub async fn claim_probe(&self, tenant: Tenant, model: &str, limits: LearnedLimits) -> bool {
        let claimed = (model, limits.least_tokens());
        let lifetime_ms = compact::learned::PROBE_INTERVAL_MS;
        self.limits.claim(PROBES, tenant, claimed, lifetime_ms).await
    }

    /// Stores limits that the upstream has proved to accept, though it `refused` less before.
    pub fn raise_limits(
        self: &Arc<Self>,
        (tenant, model): (Tenant, &str),
        limits: LearnedLimits,
        configured: Configured,
        refused_ms: u64,
    ) {
        let row = LimitsRow {
            raised_ms: Some(now_ms()),
            ..LimitsRow::new(limits, configured, refused_ms)
        };
        self.store_limits(model, self.limits.teach(tenant, model, row));
    }

    /// Returns the tokens that `model` counts for a thousand of weir's, and how it reads digits,
    /// for requests of `tenant`.
    pub fn ratio(&self, tenant: Tenant, model: &str) -> Option<(u32, Digits)> {
        let row = self.options.calibrate.then(|| self.ratio_row(tenant, model));
        row.flatten().map(|row| (row.permille, row.digits()))
    }

    /// Returns the learned ratio of `model`, if tokenizers explain it: the store may have others.
    fn ratio_row(&self, tenant: Tenant, model: &str) -> Option<RatioRow> {
        let row = self.ratios.find(tenant, model);
        row.filter(|row| calibration::is_of_tokenizers(row.permille))
    }

    /// Prepares the comparison of a prompt, which has so many tokens by weir's count, with the answer's report;
    /// `None` if nothing can be learned from it.
    pub fn sampling(
        self: &Arc<Self>,
        (tenant, protocol, model): (Tenant, Protocol, &str),
        (body, tokens, encoding): (&Bytes, u64, Encoding),
        configured: Configured,
    ) -> Option<Sampling> {
        if !self.options.calibrate || tokens < MIN_SAMPLE_TOKENS {
            return None;
        }
        let counted = match encoding {
            Encoding::Scaled { permille, digits } => Some(Counted::At { permille, digits, tokens }),
            Encoding::Open(_) => {
                Some(Counted::At { permille: 1000, digits: Digits::default(), tokens })
            }
            _ => None,
        };
        let is_exact = matches!(encoding, Encoding::Open(_));
        let (body, kept) = self.kept(body)?;
        let (learned, model) = (Arc::clone(self), model.to_owned());
        Some(Sampling {
            learned,
            tenant,
            model,
            protocol,
            body,
            kept,
            counted,
            is_exact,
            configured,
        })
    }

    /// Whether it is still unknown how a model reads digits.
    fn compares(&self, tenant: Tenant, model: &str) -> bool {
        let samples = self.samples.get(&(tenant, model.to_owned()));
        samples.is_none_or(|samples| samples.lock().is_ok_and(|samples| samples.compares()))
    }

    /// Keeps a body until its answer has ended, if there is room for it.
    fn kept(&self, body: &Bytes) -> Option<(Bytes, OwnedSemaphorePermit)> {
        let bytes = u32::try_from(body.len()).ok()?;
        let place = Arc::clone(&self.keeping).try_acquire_many_owned(bytes).ok()?;
        Some((body.clone(), place))
    }

    /// Takes a sample, and moves the ratio if necessary.
    fn sample(
        self: &Arc<Self>,
        place: (Tenant, String),
        sample: Sample,
        is_exact: bool,
        configured: Configured,
    ) {
        let tenant = place.0;
        let samples = self.samples.get_with(&place, Default::default);
        let (_, model) = place;
        let Ok(mut samples) = samples.lock() else { return };
        let current = self.ratio_row(tenant, &model);
        let version = current.map_or(0, |row| row.version);
        samples.take(sample, version);
        let ratio = current.map(|row| {
            let (permille, digits) = (row.permille, row.digits());
            Ratio { permille, digits, version }
        });
        let digits = ratio.map_or(Digits::default(), |ratio| ratio.digits);
        if let Some(window_tokens) = samples.truncates_at(digits) {
            self.keep_truncation(tenant, &model, window_tokens, configured);
        }
        if is_exact {
            return;
        }
        if let Some(permille) = samples.unexplained(digits) {
            warn_unexplained(&model, permille);
        }
        let Some((permille, digits)) = samples.step(ratio) else { return };
        let version = version.saturating_add(1);
        let has_digits_in_threes = digits == Digits::InThrees;
        let row = RatioRow { permille, has_digits_in_threes, version, learned_ms: now_ms() };
        let taught = self.ratios.teach(tenant, &model, row);
        drop(samples);
        tracing::info!(
            target: "weir::learned",
            event = "calibration",
            model = shown(&model),
            before = current.map(|row| f64::from(row.permille) / 1000.0),
            ratio = f64::from(permille) / 1000.0,
            digits_in_threes = has_digits_in_threes,
            version,
            "the ratio of the model's tokens to weir's count has moved; live conversations near their \
             limit may be cut once more"
        );
        let learned = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { learned.ratios.store(&model, taught).await });
        }
    }

    /// Stores the size to which the upstream truncates prompts in silence as the model's window.
    fn keep_truncation(
        self: &Arc<Self>,
        tenant: Tenant,
        model: &str,
        window_tokens: u64,
        configured: Configured,
    ) {
        if !self.options.heal || window_tokens < compact::learned::MIN_LIMIT_TOKENS {
            return;
        }
        tracing::warn!(
            target: "weir::learned",
            model = shown(model),
            window_tokens,
            "the upstream truncates longer prompts in silence, so this size is the model's window from now on. Raise the \
             server's own setting (Ollama: OLLAMA_CONTEXT_LENGTH or num_ctx), then `weir models forget NAME`"
        );
        let row = window_row(window_tokens, configured);
        self.store_limits(model, self.limits.teach(tenant, model, row));
    }

    /// Stores the window that the server states for a model, unless more is known from refusals.
    pub fn keep_stated(
        self: &Arc<Self>,
        tenant: Tenant,
        model: &str,
        window_tokens: u64,
        configured: Configured,
    ) {
        let is_plausible = window_tokens >= compact::learned::MIN_LIMIT_TOKENS;
        if is_plausible && self.options.heal && self.row(tenant, model, configured).is_none() {
            let row = window_row(window_tokens, configured);
            self.store_limits(model, self.limits.state(tenant, model, row));
        }
    }

    /// Stores limits that are in memory already.
    fn store_limits(self: &Arc<Self>, model: &str, taught: Vec<(Tenant, Taught<LimitsRow>)>) {
        let (learned, model) = (Arc::clone(self), model.to_owned());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { learned.limits.store(&model, taught).await });
        }
    }
}

/// Returns limits that are a window alone.
fn window_row(window_tokens: u64, configured: Configured) -> LimitsRow {
    let limits = LearnedLimits {
        window_tokens: Some(window_tokens),
        is_reported: true,
        ..LearnedLimits::default()
    };
    LimitsRow::new(limits, configured, now_ms())
}

/// Prompt whose token count the upstream may report.
pub struct Sampling {
    learned: Arc<Learned>,
    tenant: Tenant,
    model: String,
    protocol: Protocol,
    body: Bytes,
    /// The body's share of memory.
    kept: OwnedSemaphorePermit,
    counted: Option<Counted>,
    /// Whether that is the model's own count, so that only truncation is left to learn.
    is_exact: bool,
    configured: Configured,
}

impl Sampling {
    /// Records the count that the upstream reported for the prompt, if weir can count all of it. It is read
    /// again on a blocking thread; while too many others are, the prompt teaches nothing.
    pub fn take(self, reported: u64) {
        let (Ok(place), Ok(runtime)) = (
            Arc::clone(&self.learned.counting).try_acquire_owned(),
            tokio::runtime::Handle::try_current(),
        ) else {
            return;
        };
        runtime.spawn_blocking(move || {
            let counted = std::panic::AssertUnwindSafe(|| self.counted());
            let Ok(Some(counted)) = std::panic::catch_unwind(counted) else { return };
            let Self { learned, tenant, model, kept, configured, is_exact, .. } = self;
            drop((place, kept));
            learned.sample((tenant, model), Sample { counted, reported }, is_exact, configured);
        });
    }

    /// Returns weir's count; `None` if a part of the prompt cannot be counted by its text.
    fn counted(&self) -> Option<Counted> {
        let request = self.protocol.read(&self.body, usize::MAX).ok()?;
        if !request.is_text() {
            return None;
        }
        match self.counted {
            Some(counted) if self.is_exact => Some(counted),
            Some(counted) if !self.learned.compares(self.tenant, &self.model) => Some(counted),
            _ => Some(Counted::Both {
                apart: count(&request, &self.model, Digits::Apart)?,
                in_threes: count(&request, &self.model, Digits::InThrees)?,
            }),
        }
    }
}

/// Warns that a model's upstream counts what no tokenizer explains.
fn warn_unexplained(model: &str, permille: u32) {
    tracing::warn!(
        target: "weir::learned",
        model = shown(model),
        ratio = f64::from(permille) / 1000.0,
        "the upstream reports token counts that no tokenizer explains; weir counts on without them. Check whether it \
         adds to prompts, or set token_ratio under [models.\"NAME\"]"
    );
}

/// Counts a prompt at a ratio of one.
fn count(request: &Request<'_>, model: &str, digits: Digits) -> Option<u64> {
    let measure = Measure {
        encoding: Encoding::Scaled { permille: 1000, digits },
        images: ImageRule::of_model(model),
    };
    let mut tokens = REPLY_PRIMING;
    for raw in &request.messages {
        tokens += measure.fact(&request.protocol.read_message(raw).ok()?).tokens;
    }
    for extra in &request.extras {
        tokens += extra_tokens(measure, extra);
    }
    Some(tokens)
}

/// Returns all limits in `store`, of all callers; at most `most`.
pub async fn limits_rows(store: &Store, most: usize) -> Result<Vec<Stored<LimitsRow>>, StoreError> {
    learned_store::stored(store, LIMITS, most).await
}

/// Removes the limits in `store` of the models that `is_meant` accepts, of all callers; at most
/// `most`. Returns the models' names.
pub async fn forget_limits(
    store: &Store,
    is_meant: impl Fn(&str) -> bool,
    most: usize,
) -> Result<Vec<String>, StoreError> {
    learned_store::remove(store, LIMITS, is_meant, most).await
}

/// Returns all ratios in `store`, of all callers; at most `most`.
pub async fn ratio_rows(store: &Store, most: usize) -> Result<Vec<Stored<RatioRow>>, StoreError> {
    learned_store::stored(store, RATIOS, most).await
}

/// Formats learned limits and ratios.
pub fn rows_json(limits: &[Stored<LimitsRow>], ratios: &[Stored<RatioRow>]) -> Value {
    let limits: Vec<Value> = limits.iter().map(limits_json).collect();
    let ratios: Vec<Value> = ratios.iter().map(ratio_json).collect();
    json!({"limits": limits, "ratios": ratios})
}

fn limits_json(row: &Stored<LimitsRow>) -> Value {
    let limits = row.value.limits;
    json!({
        "upstream": row.upstream,
        "model": row.model,
        "window_tokens": limits.window_tokens,
        "max_input_tokens": limits.max_input_tokens,
        "counts_output": limits.counts_output,
        "source": match (row.value.raised_ms, limits.is_reported) {
            (Some(_), _) => "raised",
            (None, true) => "told",
            (None, false) => "stepped",
        },
        "learned_ms": row.value.learned_ms,
        "expires_ms": row.expires_ms,
    })
}

fn ratio_json(row: &Stored<RatioRow>) -> Value {
    json!({
        "upstream": row.upstream,
        "model": row.model,
        "token_ratio": row.value.ratio(),
        "digits_in_threes": row.value.has_digits_in_threes,
        "version": row.value.version,
        "learned_ms": row.value.learned_ms,
        "expires_ms": row.expires_ms,
    })
}
