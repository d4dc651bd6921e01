//! What upstreams have taught of their models, kept in the store so that other processes and later
//! ones know it, and in memory so that planning does not wait. Decides nothing: what follows from a
//! refusal is `context::learned`'s to say.

use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Tenant;
use crate::config::Learning;
use crate::context::LearnedLimits;
use crate::store::{Entry, Kind, MAX_KEY_BYTES, Store, StoreError, now_ms};

/// Limits in the store.
pub const LIMITS: Kind = Kind { name: "learned_limits", max_bytes: 1 << 20 };
/// Whose everything is that is learned with weir's own key: the upstream knows one account.
const OWN_ACCOUNT: Tenant = Tenant([0xff; 16]);
/// How many models are kept in memory.
const MAX_MODELS: u64 = 10_000;
/// How long what is in memory is not compared with the store. Others may have learned meanwhile.
const REFRESH_AFTER: Duration = Duration::from_secs(1);

/// What is known of the models behind an upstream.
pub struct Learned {
    /// `None` where nothing is kept.
    store: Option<Store>,
    /// Scheme, host and port.
    upstream: String,
    has_own_key: bool,
    options: Learning,
    known: Cache<(Tenant, String), Held<LearnedLimits>>,
}

/// Something of a model, as it was in the store.
#[derive(Clone)]
struct Held<T> {
    /// What it is, and when it ends; `None` where nothing is known.
    value: Option<(T, u64)>,
    read_at: Instant,
}

/// Limits as they stand in the store.
#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    window_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_input_tokens: Option<u64>,
    counts_output: bool,
    is_told: bool,
    learned_ms: u64,
}

/// Limits of a model, for whoever looks after weir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsRow {
    pub upstream: String,
    pub model: String,
    pub limits: LearnedLimits,
    pub learned_ms: u64,
    pub expires_ms: u64,
}

impl Learned {
    /// What is known of the models of `upstream` by `store`. With weir's own key all callers are one
    /// to the upstream; else each credential has limits of its own, such as a provider's tiers give.
    pub fn new(store: Store, upstream: String, has_own_key: bool, options: Learning) -> Self {
        Self { store: Some(store), upstream, has_own_key, ..Self::nothing(options) }
    }

    /// Nothing is known, and nothing kept.
    pub fn nothing(options: Learning) -> Self {
        Self {
            store: None,
            upstream: String::new(),
            has_own_key: false,
            options,
            known: Cache::new(MAX_MODELS),
        }
    }

    /// Whether refusals are learned from.
    pub fn heals(&self) -> bool {
        self.options.heal
    }

    /// The limits that were learned of `model`, for requests of `tenant`.
    pub fn limits(&self, tenant: Tenant, model: &str) -> LearnedLimits {
        if !self.options.heal {
            return LearnedLimits::default();
        }
        let (account, now_ms) = (self.account(tenant), now_ms());
        let place = (account, model.to_owned());
        let held = self.known.get(&place);
        let value = match held {
            Some(held) if held.read_at.elapsed() < REFRESH_AFTER => held.value,
            held => {
                let known = held.and_then(|held| held.value);
                let value = self.read(account, model, now_ms).unwrap_or(known);
                self.known.insert(place, Held { value, read_at: Instant::now() });
                value
            }
        };
        let live = value.filter(|(_, expires_ms)| *expires_ms > now_ms);
        live.map_or_else(LearnedLimits::default, |(limits, _)| limits)
    }

    /// Keeps what was learned of `model` from a request of `tenant`: in memory at once, and in the
    /// store when this is done. A store that fails costs no request.
    pub async fn keep(&self, tenant: Tenant, model: &str, limits: LearnedLimits) {
        let (account, now_ms) = (self.account(tenant), now_ms());
        let expires_ms = now_ms.saturating_add(self.options.limit_lifetime_ms);
        let held = Held { value: Some((limits, expires_ms)), read_at: Instant::now() };
        self.known.insert((account, model.to_owned()), held);
        let (Some(store), Some(key)) = (&self.store, self.key(model)) else { return };
        let row = Row {
            window_tokens: limits.window_tokens,
            max_input_tokens: limits.max_input_tokens,
            counts_output: limits.counts_output,
            is_told: limits.is_told,
            learned_ms: now_ms,
        };
        let Ok(value) = serde_json::to_vec(&row) else { return };
        let entry = Entry { key, value: value.into(), expires_ms };
        if let Err(error) = store.put(account, LIMITS, vec![entry], now_ms).await {
            tracing::debug!(target: "weir::learned", %error, "a limit is known to this process alone");
        }
    }

    /// What the store has of `model`; `None` where that cannot be told at once.
    fn read(
        &self,
        account: Tenant,
        model: &str,
        now_ms: u64,
    ) -> Option<Option<(LearnedLimits, u64)>> {
        let key = self.key(model)?;
        let entry = self.store.as_ref()?.peek(account, LIMITS, &key, now_ms)?;
        Some(entry.and_then(|entry| {
            let row: Row = serde_json::from_slice(&entry.value).ok()?;
            Some((row.limits(), entry.expires_ms))
        }))
    }

    /// Whose what is learned is.
    fn account(&self, tenant: Tenant) -> Tenant {
        if self.has_own_key { OWN_ACCOUNT } else { tenant }
    }

    /// What a model is found by; `None` where its name, which callers choose, is too long.
    fn key(&self, model: &str) -> Option<Bytes> {
        let key = format!("{}\n{model}", self.upstream);
        (key.len() <= MAX_KEY_BYTES).then(|| key.into())
    }
}

impl Row {
    fn limits(&self) -> LearnedLimits {
        LearnedLimits {
            window_tokens: self.window_tokens,
            max_input_tokens: self.max_input_tokens,
            counts_output: self.counts_output,
            is_told: self.is_told,
        }
    }
}

/// All limits that `store` has, of all callers; at most `most`.
pub async fn limits_rows(store: &Store, most: usize) -> Result<Vec<LimitsRow>, StoreError> {
    let rows = store.list(LIMITS, now_ms(), most).await?;
    let read = |(_, entry): (Tenant, Entry)| {
        let key = std::str::from_utf8(&entry.key).ok()?;
        let (upstream, model) = key.split_once('\n')?;
        let row: Row = serde_json::from_slice(&entry.value).ok()?;
        Some(LimitsRow {
            upstream: upstream.to_owned(),
            model: model.to_owned(),
            limits: row.limits(),
            learned_ms: row.learned_ms,
            expires_ms: entry.expires_ms,
        })
    };
    Ok(rows.into_iter().filter_map(read).collect())
}
