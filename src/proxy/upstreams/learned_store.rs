//! Store of learned values per model of an upstream: in the store for other and later processes, in
//! memory so that planning does not wait. Knows nothing of their meaning.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::proxy::cache::Cache;
use weir_store::Tenant;
use weir_store::{Entry, Kind, MAX_KEY_BYTES, Store, StoreError, now_ms};

/// Maximum number of models kept in memory.
const MAX_MODELS: u64 = 10_000;
/// Interval at which memory is compared with the store. Other processes may have learned meanwhile.
const REFRESH_AFTER: Duration = Duration::from_secs(1);

/// Values of one kind, by account and model.
pub struct LearnedStore<T> {
    kind: Kind,
    lifetime_ms: u64,
    /// The store, and the upstream of the models; `None` if nothing is kept.
    store: Option<(Store, String)>,
    known: Cache<(Tenant, String), Held<T>>,
}

/// Value of a model as last read from the store.
#[derive(Clone)]
struct Held<T> {
    /// The value and its expiry; `None` if nothing is known.
    value: Option<(T, u64)>,
    /// Whether the store has had it: if the store loses it, it is gone here, too.
    is_stored: bool,
    read_at: Instant,
}

/// Value in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<T> {
    pub upstream: String,
    pub model: String,
    pub value: T,
    pub expires_ms: u64,
}

impl<T: Copy + Serialize + DeserializeOwned + Send + Sync + 'static> LearnedStore<T> {
    /// Creates an empty shelf; its values last for `lifetime_ms`.
    pub fn new(kind: Kind, lifetime_ms: u64, store: Option<(Store, String)>) -> Self {
        if let Some((store, _)) = &store {
            store.replicate(kind);
        }
        Self { kind, lifetime_ms, store, known: Cache::new(MAX_MODELS) }
    }

    /// Returns the value of `model`; `None` if its name, which callers choose, is too long.
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
                self.known.insert(&place, held);
                value
            }
        };
        value.filter(|(_, expires_ms)| *expires_ms > now_ms).map(|(value, _)| value)
    }

    /// Reads the value of `model` again from the store; `held` is the one in memory. A value that
    /// could not be stored is still used here; one that the store had and lost was removed.
    fn reread(&self, account: Tenant, model: &str, now_ms: u64, held: Option<Held<T>>) -> Held<T> {
        let read_at = Instant::now();
        let (value, is_stored) = held.map_or((None, false), |held| (held.value, held.is_stored));
        match self.read(account, model, now_ms) {
            Some(Some(read)) => Held { value: Some(read), is_stored: true, read_at },
            Some(None) if is_stored => Held { value: None, is_stored: false, read_at },
            _ => Held { value, is_stored, read_at },
        }
    }

    /// Claims for about an hour a task that only one process may do for `model` in the state
    /// `mark`. Returns whether this caller has the claim.
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

    /// Keeps a value of `model`: in memory at once, and in the store when this returns. A failing
    /// store fails no request.
    pub async fn keep(&self, account: Tenant, model: &str, value: T) {
        self.remember(account, model, value);
        self.store(account, model, value).await;
    }

    /// Keeps a value in memory.
    pub fn remember(&self, account: Tenant, model: &str, value: T) {
        if model.len() > MAX_KEY_BYTES {
            return;
        }
        let expires_ms = now_ms().saturating_add(self.lifetime_ms);
        let held =
            Held { value: Some((value, expires_ms)), is_stored: false, read_at: Instant::now() };
        self.known.insert(&(account, model.to_owned()), held);
    }

    /// Keeps a value in the store.
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
            tracing::debug!(target: "weir::learned", kind, %error, "a learned value could not be stored; only this process knows it");
            return;
        }
        let place = (account, model.to_owned());
        if let Some(held) = self.known.get(&place) {
            self.known.insert(&place, Held { is_stored: true, ..held });
        }
    }

    /// Reads the stored value of `model`; `None` if that is not possible at once.
    fn read(&self, account: Tenant, model: &str, now_ms: u64) -> Option<Option<(T, u64)>> {
        let (store, upstream) = self.store.as_ref()?;
        let entry = store.peek(account, self.kind, &key(upstream, model)?, now_ms)?;
        Some(entry.and_then(|entry| {
            let value = serde_json::from_slice(&entry.value).ok()?;
            Some((value, entry.expires_ms))
        }))
    }
}

/// Returns the key of a model; `None` if its name, which callers choose, is too long.
fn key(upstream: &str, model: &str) -> Option<Bytes> {
    let key = format!("{upstream}\n{model}");
    (key.len() <= MAX_KEY_BYTES).then(|| key.into())
}

/// Removes from `store` the values of a kind for the models that `is_meant` accepts, of all
/// callers. Returns the names of at most `most` removed models.
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
        // An expired entry is as good as absent.
        let ended = Entry { value: Bytes::new(), expires_ms: now_ms, ..entry };
        store.put(tenant, kind, vec![ended], now_ms).await?;
    }
    Ok(removed)
}

/// Returns all values of a kind in `store`, of all callers; at most `most`.
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
