//! Small things known of models behind an upstream: in the store for other processes and later ones, in
//! memory so that planning does not wait. Knows nothing of what they mean.

use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::Tenant;
use crate::store::{Entry, Kind, MAX_KEY_BYTES, Store, StoreError, now_ms};

/// How many models are kept in memory.
const MAX_MODELS: u64 = 10_000;
/// How long what is in memory is not compared with the store. Others may have learned meanwhile.
const REFRESH_AFTER: Duration = Duration::from_secs(1);

/// Things of one kind, by whose they are and by model.
pub struct Shelf<T> {
    kind: Kind,
    lifetime_ms: u64,
    /// The store, and the upstream that the models are behind; `None` where nothing is kept.
    store: Option<(Store, String)>,
    known: Cache<(Tenant, String), Held<T>>,
}

/// Something of a model, as it was in the store.
#[derive(Clone)]
struct Held<T> {
    /// What it is, and when it ends; `None` where nothing is known.
    value: Option<(T, u64)>,
    /// Whether the store has had it: then it is gone when the store has it no more.
    is_stored: bool,
    read_at: Instant,
}

/// Something that stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<T> {
    pub upstream: String,
    pub model: String,
    pub value: T,
    pub expires_ms: u64,
}

impl<T: Copy + Serialize + DeserializeOwned + Send + Sync + 'static> Shelf<T> {
    /// Nothing yet; what is put in lasts for `lifetime_ms`.
    pub fn new(kind: Kind, lifetime_ms: u64, store: Option<(Store, String)>) -> Self {
        if let Some((store, _)) = &store {
            store.keep_at_hand(kind);
        }
        Self { kind, lifetime_ms, store, known: Cache::new(MAX_MODELS) }
    }

    /// What is known of `model`; nothing of one whose name, which callers choose, is too long.
    pub fn find(&self, account: Tenant, model: &str) -> Option<T> {
        if model.len() > MAX_KEY_BYTES {
            return None;
        }
        let now_ms = now_ms();
        let place = (account, model.to_owned());
        let value = match self.known.get(&place) {
            Some(held) if held.read_at.elapsed() < REFRESH_AFTER => held.value,
            held => {
                let held = self.reread(account, model, now_ms, held);
                let value = held.value;
                self.known.insert(place, held);
                value
            }
        };
        value.filter(|(_, expires_ms)| *expires_ms > now_ms).map(|(value, _)| value)
    }

    /// What is known of `model` by the store and by what was `held` of it. A value that the store could
    /// not take is known here nevertheless; one that it had and has no more was removed.
    fn reread(&self, account: Tenant, model: &str, now_ms: u64, held: Option<Held<T>>) -> Held<T> {
        let read_at = Instant::now();
        let (value, is_stored) = held.map_or((None, false), |held| (held.value, held.is_stored));
        match self.read(account, model, now_ms) {
            Some(Some(read)) => Held { value: Some(read), is_stored: true, read_at },
            Some(None) if is_stored => Held { value: None, is_stored: false, read_at },
            _ => Held { value, is_stored, read_at },
        }
    }

    /// Claims for an hour or so what only one of all processes is to do with `model` as it is known by
    /// `mark`. Gives whether the claim is this caller's.
    pub async fn claim(
        &self,
        kind: Kind,
        account: Tenant,
        (model, mark): (&str, u64),
        lifetime_ms: u64,
    ) -> bool {
        let mut own = [0; 16];
        let (Some((store, upstream)), Ok(())) = (&self.store, getrandom::fill(&mut own)) else {
            return false;
        };
        let Some(key) = key(upstream, &format!("{model}\n{mark}")) else { return false };
        let now_ms = now_ms();
        let expires_ms = now_ms.saturating_add(lifetime_ms);
        let entry = Entry { key, value: Bytes::copy_from_slice(&own), expires_ms };
        let first = store.put_if_absent(account, kind, vec![entry], now_ms).await;
        first.is_ok_and(|first| first.first().is_some_and(|first| **first == own))
    }

    /// Keeps what is known of `model`: in memory at once, and in the store when this is done. A store
    /// that fails costs no request.
    pub async fn keep(&self, account: Tenant, model: &str, value: T) {
        self.remember(account, model, value);
        self.store(account, model, value).await;
    }

    /// Keeps something in memory.
    pub fn remember(&self, account: Tenant, model: &str, value: T) {
        if model.len() > MAX_KEY_BYTES {
            return;
        }
        let expires_ms = now_ms().saturating_add(self.lifetime_ms);
        let held =
            Held { value: Some((value, expires_ms)), is_stored: false, read_at: Instant::now() };
        self.known.insert((account, model.to_owned()), held);
    }

    /// Keeps something in the store.
    pub async fn store(&self, account: Tenant, model: &str, value: T) {
        let now_ms = now_ms();
        let (Some((store, upstream)), Ok(text)) = (&self.store, serde_json::to_vec(&value)) else {
            return;
        };
        let Some(key) = key(upstream, model) else { return };
        let expires_ms = now_ms.saturating_add(self.lifetime_ms);
        let entry = Entry { key, value: text.into(), expires_ms };
        if let Err(error) = store.put(account, self.kind, vec![entry], now_ms).await {
            let kind = self.kind.name;
            tracing::debug!(target: "weir::learned", kind, %error, "known to this process alone");
            return;
        }
        let place = (account, model.to_owned());
        if let Some(held) = self.known.get(&place) {
            self.known.insert(place, Held { is_stored: true, ..held });
        }
    }

    /// What the store has of `model`; `None` where that cannot be told at once.
    fn read(&self, account: Tenant, model: &str, now_ms: u64) -> Option<Option<(T, u64)>> {
        let (store, upstream) = self.store.as_ref()?;
        let entry = store.peek(account, self.kind, &key(upstream, model)?, now_ms)?;
        Some(entry.and_then(|entry| {
            let value = serde_json::from_slice(&entry.value).ok()?;
            Some((value, entry.expires_ms))
        }))
    }
}

/// What a model is found by; `None` where its name, which callers choose, is too long.
fn key(upstream: &str, model: &str) -> Option<Bytes> {
    let key = format!("{upstream}\n{model}");
    (key.len() <= MAX_KEY_BYTES).then(|| key.into())
}

/// Removes from `store` what it has of a kind for the models that `is_meant` accepts, of all callers.
/// Gives the names of those that there were, at most `most`.
pub async fn remove(
    store: &Store,
    kind: Kind,
    is_meant: impl Fn(&str) -> bool,
    most: usize,
) -> Result<Vec<String>, StoreError> {
    let now_ms = now_ms();
    let mut removed = Vec::new();
    for (tenant, entry) in store.list(kind, now_ms, most).await? {
        let key = std::str::from_utf8(&entry.key).ok().and_then(|key| key.split_once('\n'));
        let Some((_, model)) = key.filter(|(_, model)| is_meant(model)) else { continue };
        removed.push(model.to_owned());
        // An entry that has ended is as if it had never been.
        let ended = Entry { value: Bytes::new(), expires_ms: now_ms, ..entry };
        store.put(tenant, kind, vec![ended], now_ms).await?;
    }
    Ok(removed)
}

/// All that `store` has of a kind, of all callers; at most `most`.
pub async fn stored<T: DeserializeOwned>(
    store: &Store,
    kind: Kind,
    most: usize,
) -> Result<Vec<Stored<T>>, StoreError> {
    let rows = store.list(kind, now_ms(), most).await?;
    let read = |(_, entry): (Tenant, Entry)| {
        let key = std::str::from_utf8(&entry.key).ok()?;
        let (upstream, model) = key.split_once('\n')?;
        Some(Stored {
            upstream: upstream.to_owned(),
            model: model.to_owned(),
            value: serde_json::from_slice(&entry.value).ok()?,
            expires_ms: entry.expires_ms,
        })
    };
    Ok(rows.into_iter().filter_map(read).collect())
}
