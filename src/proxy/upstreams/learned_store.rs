//! Store of learned values per model of an upstream: in the store for other and later processes, in
//! memory so that planning does not wait. Knows nothing of their meaning.
//!
//! If all callers are one account to the upstream, what the traffic of one tenant teaches holds for that
//! tenant alone until another's teaches the same. A tenant that was taught something else has a value of
//! its own.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::proxy::cache::Cache;
use weir_store::Tenant;
use weir_store::{Entry, Kind, MAX_KEY_BYTES, Store, StoreError, now_ms};

/// Maximum number of models kept in memory.
const MAX_MODELS: u64 = 10_000;
/// Interval at which memory is compared with the store. Other processes may have learned meanwhile.
const REFRESH_AFTER: Duration = Duration::from_secs(1);

/// Owner of what is learned for all callers of weir's own key.
const ALL: Tenant = Tenant([0xff; 16]);

/// A learned value.
pub trait Lesson: Copy + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Whether the other value says the same, but for what differs from sample to sample.
    fn confirms(&self, other: &Self) -> bool;
}

/// A value with its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taught<T> {
    #[serde(flatten)]
    value: T,
    /// Tenant whose traffic alone taught it; `None` if it holds for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<[u8; 16]>,
    /// Whether tenants have values of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_contested: bool,
}

/// Values of one kind, by account and model.
pub struct LearnedStore<T> {
    kind: Kind,
    lifetime_ms: u64,
    /// Whether all callers are one account to the upstream.
    is_shared: bool,
    /// The store, and the upstream of the models; `None` if nothing is kept.
    store: Option<(Store, String)>,
    known: Cache<(Tenant, String), LastValue<T>>,
}

/// Value of a model as last read from the store.
#[derive(Clone)]
struct LastValue<T> {
    /// The value and its expiry; `None` if nothing is known.
    value: Option<(Taught<T>, u64)>,
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

impl<T: Lesson> LearnedStore<T> {
    /// Creates an empty shelf; its values last for `lifetime_ms`.
    pub fn new(
        kind: Kind,
        lifetime_ms: u64,
        store: Option<(Store, String)>,
        is_shared: bool,
    ) -> Self {
        if let Some((store, _)) = &store {
            store.replicate(kind);
        }
        Self { kind, lifetime_ms, is_shared, store, known: Cache::new(MAX_MODELS) }
    }

    /// Returns the value of `model` for requests of `tenant`; `None` if the model's name, which callers
    /// choose, is too long.
    pub fn find(&self, tenant: Tenant, model: &str) -> Option<T> {
        let taught = self.taught(if self.is_shared { ALL } else { tenant }, model)?;
        let own = taught.is_contested.then(|| self.taught(tenant, model)).flatten();
        let all = Some(taught).filter(|all| all.by.is_none_or(|by| by == tenant.0));
        own.or(all).map(|taught| taught.value)
    }

    fn taught(&self, account: Tenant, model: &str) -> Option<Taught<T>> {
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
    fn reread(
        &self,
        account: Tenant,
        model: &str,
        now_ms: u64,
        held: Option<LastValue<T>>,
    ) -> LastValue<T> {
        let read_at = Instant::now();
        let (value, is_stored) = held.map_or((None, false), |held| (held.value, held.is_stored));
        match self.read(account, model, now_ms) {
            Some(Some(read)) => LastValue { value: Some(read), is_stored: true, read_at },
            Some(None) if is_stored => LastValue { value: None, is_stored: false, read_at },
            _ => LastValue { value, is_stored, read_at },
        }
    }

    /// Claims for about an hour a task that only one process may do for `model` in the state
    /// `mark`. Returns whether this caller has the claim.
    pub async fn claim(
        &self,
        kind: Kind,
        tenant: Tenant,
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
        let account = if self.is_shared { ALL } else { tenant };
        let first = store.put_if_absent(account, kind, vec![entry], now_ms).await;
        first.is_ok_and(|first| first.first().is_some_and(|first| **first == own))
    }

    /// Keeps a value of `model` that the traffic of `tenant` taught, in memory. Returns what to `store`.
    pub fn teach(&self, tenant: Tenant, model: &str, value: T) -> Vec<(Tenant, Taught<T>)> {
        let new = Taught { value, by: Some(tenant.0), is_contested: false };
        if !self.is_shared {
            return self.remember(model, vec![(tenant, Taught { by: None, ..new })]);
        }
        let Some(all) = self.taught(ALL, model) else {
            return self.remember(model, vec![(ALL, new)]);
        };
        let taught = match (all.by == new.by, all.value.confirms(&value)) {
            (true, _) => vec![(ALL, Taught { value, ..all })],
            (false, true) => vec![(ALL, Taught { value, by: None, ..all })],
            (false, false) => vec![(ALL, Taught { is_contested: true, ..all }), (tenant, new)],
        };
        let is_kept = all.is_contested && taught.len() == 1;
        self.remember(model, taught.into_iter().chain(is_kept.then_some((tenant, new))).collect())
    }

    /// Keeps a value of `model` that the upstream stated to `tenant` itself, in memory. Returns what to
    /// `store`.
    pub fn state(&self, tenant: Tenant, model: &str, value: T) -> Vec<(Tenant, Taught<T>)> {
        let account = if self.is_shared { ALL } else { tenant };
        self.remember(model, vec![(account, Taught { value, by: None, is_contested: false })])
    }

    fn remember(&self, model: &str, taught: Vec<(Tenant, Taught<T>)>) -> Vec<(Tenant, Taught<T>)> {
        if model.len() > MAX_KEY_BYTES {
            return Vec::new();
        }
        let expires_ms = now_ms().saturating_add(self.lifetime_ms);
        for (account, own) in &taught {
            let value = Some((*own, expires_ms));
            let held = LastValue { value, is_stored: false, read_at: Instant::now() };
            self.known.insert(&(*account, model.to_owned()), held);
        }
        taught
    }

    /// Keeps values of `model` in the store. A failing store fails no request.
    pub async fn store(&self, model: &str, taught: Vec<(Tenant, Taught<T>)>) {
        for (account, own) in taught {
            self.store_one(account, model, own).await;
        }
    }

    async fn store_one(&self, account: Tenant, model: &str, value: Taught<T>) {
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
            self.known.insert(&place, LastValue { is_stored: true, ..held });
        }
    }

    /// Reads the stored value of `model`; `None` if that is not possible at once.
    fn read(&self, account: Tenant, model: &str, now_ms: u64) -> Option<Option<(Taught<T>, u64)>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    struct Size {
        tokens: u64,
    }

    impl Lesson for Size {
        fn confirms(&self, other: &Self) -> bool {
            self.tokens.abs_diff(other.tokens) <= 1
        }
    }

    #[test]
    fn what_one_tenant_was_taught_holds_for_others_once_confirmed() {
        const KIND: Kind = Kind { name: "sizes", max_bytes: 1 << 20 };
        let [a, b, c] = [1, 2, 3].map(|byte| Tenant([byte; 16]));
        let shelf = LearnedStore::new(KIND, 60_000, None, true);
        let teach = |tenant, tokens| _ = shelf.teach(tenant, "m", Size { tokens });
        let found = || [a, b, c].map(|tenant| shelf.find(tenant, "m").map(|own: Size| own.tokens));
        teach(a, 9);
        assert_eq!(found(), [Some(9), None, None]);
        // What differs is its own.
        teach(b, 500);
        assert_eq!(found(), [Some(9), Some(500), None]);
        teach(a, 501);
        assert_eq!(found(), [Some(501), Some(500), None]);
        teach(b, 501);
        assert_eq!(found(), [Some(501); 3]);
        teach(c, 7);
        assert_eq!(found(), [Some(501), Some(501), Some(7)]);
        let apart = LearnedStore::new(KIND, 60_000, None, false);
        let _ = apart.teach(a, "m", Size { tokens: 9 });
        assert_eq!(apart.find(b, "m"), None);
    }
}
