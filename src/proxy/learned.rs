//! What upstreams have taught of their models: limits, and how their tokens compare with weir's count.
//! Decides nothing: what follows from a refusal or a sample is said in `context`.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use moka::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tenant;
use super::planner::{Job, Planned};
use super::shared::{self, shown};
use super::shelf::{self, Shelf, Stored};
use crate::config::Learning;
use crate::context::calibration::{Ratio, Samples};
use crate::context::{LearnedLimits, Measure};
use crate::store::{Kind, Store, StoreError, now_ms};
use crate::tokens::media::ImageRule;
use crate::tokens::{Encoding, REPLY_PRIMING};
use crate::wire::Protocol;

/// Limits in the store.
pub const LIMITS: Kind = Kind { name: "learned_limits", max_bytes: 1 << 20 };
/// Ratios in the store.
pub const RATIOS: Kind = Kind { name: "learned_ratios", max_bytes: 1 << 20 };
/// Whose everything is that is learned with weir's own key: the upstream knows one account.
const OWN_ACCOUNT: Tenant = Tenant([0xff; 16]);
/// How long a ratio is believed that no sample has moved. Tokenizers do not change; what is served
/// under a name may.
const RATIO_LIFETIME_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// How many models samples are kept of.
const MAX_SAMPLED_MODELS: u64 = 1000;
/// Smaller prompts are mostly framing, which differs from one template to another.
const MIN_SAMPLE_TOKENS: u64 = 500;
/// How many prompts are counted anew at once, for a model that has no ratio yet.
const MAX_COUNTING: usize = 2;
/// The bytes of bodies that are kept for that until their answers have ended. What is above that
/// teaches nothing.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// What is known of the models behind an upstream.
pub struct Learned {
    has_own_key: bool,
    options: Learning,
    limits: Shelf<LimitsRow>,
    ratios: Shelf<RatioRow>,
    samples: Cache<(Tenant, String), Arc<Mutex<Samples>>>,
    counting: Arc<Semaphore>,
    keeping: Arc<Semaphore>,
}

/// Limits as they stand in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    pub counts_output: bool,
    pub is_told: bool,
    pub learned_ms: u64,
}

/// A ratio as it stands in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatioRow {
    /// Tokens of the model's own for a thousand of weir's.
    pub permille: u32,
    /// How often the ratio has moved.
    pub version: u32,
    pub learned_ms: u64,
}

impl Learned {
    /// What is known of the models of `upstream` by `store`. With weir's own key all callers are one
    /// to the upstream; else each credential has limits of its own, such as a provider's tiers give.
    pub fn new(store: Store, upstream: String, has_own_key: bool, options: Learning) -> Self {
        Self::on(Some((store, upstream)), has_own_key, options)
    }

    /// Nothing is known, and nothing kept.
    pub fn nothing(options: Learning) -> Self {
        Self::on(None, false, options)
    }

    fn on(store: Option<(Store, String)>, has_own_key: bool, options: Learning) -> Self {
        Self {
            has_own_key,
            options,
            limits: Shelf::new(LIMITS, options.limit_lifetime_ms, store.clone()),
            ratios: Shelf::new(RATIOS, RATIO_LIFETIME_MS, store),
            samples: Cache::new(MAX_SAMPLED_MODELS),
            counting: Arc::new(Semaphore::new(MAX_COUNTING)),
            keeping: Arc::new(Semaphore::new(MAX_KEPT_BYTES)),
        }
    }

    /// Whether refusals are learned from.
    pub fn heals(&self) -> bool {
        self.options.heal
    }

    /// The limits that were learned of `model`, for requests of `tenant`.
    pub fn limits(&self, tenant: Tenant, model: &str) -> LearnedLimits {
        let row = self.options.heal.then(|| self.limits.find(self.account(tenant), model));
        row.flatten().map_or_else(LearnedLimits::default, |row| LearnedLimits {
            window_tokens: row.window_tokens,
            max_input_tokens: row.max_input_tokens,
            counts_output: row.counts_output,
            is_told: row.is_told,
        })
    }

    /// Keeps the limits that were learned of `model` from a request of `tenant`.
    pub async fn keep_limits(&self, tenant: Tenant, model: &str, limits: LearnedLimits) {
        let row = LimitsRow {
            window_tokens: limits.window_tokens,
            max_input_tokens: limits.max_input_tokens,
            counts_output: limits.counts_output,
            is_told: limits.is_told,
            learned_ms: now_ms(),
        };
        self.limits.keep(self.account(tenant), model, row).await;
    }

    /// The tokens that `model` takes for a thousand of weir's, for requests of `tenant`.
    pub fn permille(&self, tenant: Tenant, model: &str) -> Option<u32> {
        let row = self.options.calibrate.then(|| self.ratios.find(self.account(tenant), model));
        row.flatten().map(|row| row.permille)
    }

    /// What the answer to a request is to be compared with; `None` where it teaches nothing.
    pub fn sampling(self: &Arc<Self>, job: &Job, planned: &Planned) -> Option<Sampling> {
        let is_worth_it = self.options.calibrate
            && planned.is_calibrated
            && planned.action != "fault"
            && planned.sent_tokens >= MIN_SAMPLE_TOKENS;
        if !is_worth_it {
            return None;
        }
        let counted = match planned.encoding {
            Encoding::Scaled { permille } => Counted::At(permille, planned.sent_tokens),
            _ => self.kept(planned.body.as_ref().unwrap_or(&job.body))?,
        };
        let account = self.account(job.tenant);
        Some(Sampling { learned: Arc::clone(self), account, model: planned.model.clone(), counted })
    }

    /// A body that is kept until its answer has ended, where there is room for it.
    fn kept(&self, body: &Bytes) -> Option<Counted> {
        let bytes = u32::try_from(body.len()).ok()?;
        let place = Arc::clone(&self.keeping).try_acquire_many_owned(bytes).ok()?;
        Some(Counted::Not(body.clone(), place))
    }

    /// Takes a sample, and moves the ratio where that is due.
    fn sample(self: &Arc<Self>, account: Tenant, model: String, sample: Sample) {
        let place = (account, model);
        let samples = self.samples.get_with(place.clone(), Default::default);
        let (_, model) = place;
        let Ok(mut samples) = samples.lock() else { return };
        let current = self.ratios.find(account, &model);
        let version = current.map_or(0, |row| row.version);
        samples.take(sample.permille, sample.counted_tokens, sample.reported_tokens, version);
        let ratio = current.map(|row| Ratio { permille: row.permille, version });
        let Some(permille) = samples.step(ratio) else { return };
        let version = version.saturating_add(1);
        let row = RatioRow { permille, version, learned_ms: now_ms() };
        self.ratios.remember(account, &model, row);
        drop(samples);
        tracing::info!(
            target: "weir::learned",
            event = "calibration",
            model = shown(&model),
            before = current.map(|row| f64::from(row.permille) / 1000.0),
            ratio = f64::from(permille) / 1000.0,
            version,
            "the ratio of the model's tokens to weir's count has moved; live conversations near their \
             limit may be cut once more"
        );
        let learned = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { learned.ratios.store(account, &model, row).await });
        }
    }

    /// Whose what is learned is.
    fn account(&self, tenant: Tenant) -> Tenant {
        if self.has_own_key { OWN_ACCOUNT } else { tenant }
    }
}

/// A prompt whose own count the upstream may report.
pub struct Sampling {
    learned: Arc<Learned>,
    account: Tenant,
    model: String,
    counted: Counted,
}

/// Whether a prompt was counted by what ratios are of.
enum Counted {
    /// It was, at this ratio, and came to so many tokens.
    At(u32, u64),
    /// It was not: this is the body, and its place among those that are kept.
    Not(Bytes, OwnedSemaphorePermit),
}

/// One prompt by both counts.
struct Sample {
    permille: u32,
    counted_tokens: u64,
    reported_tokens: u64,
}

impl Sampling {
    /// Takes what the upstream reported of the prompt. Counts it first where nobody has, on a thread
    /// that may take its time; while too many others are counted there, the sample is passed over.
    pub fn take(self, reported_tokens: u64) {
        let Self { learned, account, model, counted } = self;
        let (body, kept) = match counted {
            Counted::At(permille, counted_tokens) => {
                let sample = Sample { permille, counted_tokens, reported_tokens };
                return learned.sample(account, model, sample);
            }
            Counted::Not(body, kept) => (body, kept),
        };
        let (Ok(place), Ok(runtime)) = (
            Arc::clone(&learned.counting).try_acquire_owned(),
            tokio::runtime::Handle::try_current(),
        ) else {
            return;
        };
        runtime.spawn_blocking(move || {
            let _places = (place, kept);
            let counted = || count(&body, &model);
            let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(counted));
            let Ok(Some(counted_tokens)) = counted else { return };
            let sample = Sample { permille: 1000, counted_tokens, reported_tokens };
            learned.sample(account, model, sample);
        });
    }
}

/// What a body's prompt comes to at a ratio of one.
fn count(body: &[u8], model: &str) -> Option<u64> {
    let measure = Measure {
        encoding: Encoding::Scaled { permille: 1000 },
        images: ImageRule::of_model(model),
    };
    let request = Protocol::Chat.read(body, usize::MAX).ok()?;
    let mut tokens = REPLY_PRIMING;
    for raw in &request.messages {
        tokens += measure.fact(&Protocol::Chat.read_message(raw).ok()?).tokens;
    }
    for extra in &request.extras {
        tokens += shared::extra_tokens(measure, extra);
    }
    Some(tokens)
}

/// All limits that `store` has, of all callers; at most `most`.
pub async fn limits_rows(store: &Store, most: usize) -> Result<Vec<Stored<LimitsRow>>, StoreError> {
    shelf::stored(store, LIMITS, most).await
}

/// All ratios that `store` has, of all callers; at most `most`.
pub async fn ratio_rows(store: &Store, most: usize) -> Result<Vec<Stored<RatioRow>>, StoreError> {
    shelf::stored(store, RATIOS, most).await
}
