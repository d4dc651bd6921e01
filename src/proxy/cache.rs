//! Bounded caches of any types. Each is a moka cache; all have the same types inside, so moka is compiled
//! once for them instead of once for each pair of types.

use std::any::Any;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::policy::EvictionPolicy;
use moka::{Expiry, sync};

use weir_store::Tenant;

/// Values by key, at most so many or of so much weight. Those that are used least leave first.
pub(super) struct Cache<K, V> {
    entries: sync::Cache<u128, Entry>,
    hasher: RandomState,
    weigh: Box<Weigh<V>>,
    idle: Option<fn(&V) -> Duration>,
    keys: PhantomData<fn(K)>,
}

/// Memory that boxing adds to a value: pointer, counters, weight, idle time.
const BOX_BYTES: u32 = 64;

/// Function that returns the weight of a value.
type Weigh<V> = dyn Fn(&V) -> u32 + Send + Sync;

/// Value of any type.
#[derive(Clone)]
struct Entry {
    value: Arc<dyn Any + Send + Sync>,
    weight: u32,
    idle: Option<Duration>,
}

/// Key of a cache. Callers must not be able to choose a `u128` or an array that is used as one.
pub(super) trait CacheKey {
    /// Returns 128 bits that identify the key: its own bytes if callers cannot choose them, otherwise a hash
    /// with a secret seed.
    fn identity(&self, hasher: &RandomState) -> u128;
}

/// Keyed hash.
impl CacheKey for u128 {
    fn identity(&self, _: &RandomState) -> u128 {
        *self
    }
}

/// Keyed hash of 32 bytes. Its first half is the identity.
impl CacheKey for [u8; 32] {
    fn identity(&self, _: &RandomState) -> u128 {
        let (half, _) = self.as_chunks::<16>();
        u128::from_le_bytes(half[0])
    }
}

impl CacheKey for Tenant {
    fn identity(&self, _: &RandomState) -> u128 {
        u128::from_le_bytes(self.0)
    }
}

/// Key of a tenant and a part that a caller may choose.
impl<T: Hash> CacheKey for (Tenant, T) {
    fn identity(&self, hasher: &RandomState) -> u128 {
        let half = |number: u8| u128::from(hasher.hash_one((number, self)));
        half(0) << 64 | half(1)
    }
}

impl<K: CacheKey, V: Clone + Send + Sync + 'static> Cache<K, V> {
    /// Creates a cache of at most so many values.
    pub(super) fn new(most: u64) -> Self {
        Self::builder(most).build()
    }

    /// Begins to create a cache of at most so many values, or of this weight if they are weighed.
    pub(super) fn builder(most: u64) -> Builder<K, V> {
        let builder = sync::Cache::builder().max_capacity(most);
        Builder { builder, weigh: Box::new(|_| 1), idle: None, keys: PhantomData }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.entries.get(&key.identity(&self.hasher)).and_then(value)
    }

    /// Returns the value of `key`, which `new` returns the first time.
    pub(super) fn get_with(&self, key: &K, new: impl Fn() -> V) -> V {
        let entry = self.entries.get_with(key.identity(&self.hasher), || self.entry(new()));
        value(entry).unwrap_or_else(new)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(&key.identity(&self.hasher))
    }

    pub(super) fn insert(&self, key: &K, value: V) {
        self.entries.insert(key.identity(&self.hasher), self.entry(value));
    }

    pub(super) fn remove(&self, key: &K) {
        self.entries.invalidate(&key.identity(&self.hasher));
    }

    /// Returns the weight of all values, as far as it is known.
    pub(super) fn weight(&self) -> u64 {
        self.entries.weighted_size()
    }

    fn entry(&self, value: V) -> Entry {
        let (weight, idle) = ((self.weigh)(&value), self.idle.map(|idle| idle(&value)));
        Entry { value: Arc::new(value), weight, idle }
    }
}

/// Returns the value of an entry. Each cache has values of one type only.
fn value<V: Clone + 'static>(entry: Entry) -> Option<V> {
    entry.value.downcast_ref::<V>().cloned()
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// Cache to be created.
pub(super) struct Builder<K, V> {
    builder: sync::CacheBuilder<u128, Entry, sync::Cache<u128, Entry>>,
    weigh: Box<Weigh<V>>,
    idle: Option<fn(&V) -> Duration>,
    keys: PhantomData<fn(K)>,
}

impl<K: CacheKey, V: 'static> Builder<K, V> {
    /// Bounds the weight of all values, as `weigh` returns it in bytes, instead of their number.
    pub(super) fn weigh(self, weigh: impl Fn(&V) -> u32 + Send + Sync + 'static) -> Self {
        let builder = self.builder.weigher(|_, entry| entry.weight);
        let weigh = move |value: &V| weigh(value).saturating_add(BOX_BYTES);
        Self { builder, weigh: Box::new(weigh), ..self }
    }

    /// Drops the values that were not used for the longest time, instead of those that are used least.
    pub(super) fn least_recently_used(self) -> Self {
        Self { builder: self.builder.eviction_policy(EvictionPolicy::lru()), ..self }
    }

    /// Drops each value so long after it was inserted.
    pub(super) fn time_to_live(self, lifetime: Duration) -> Self {
        Self { builder: self.builder.time_to_live(lifetime), ..self }
    }

    /// Drops each value after a time without use, which `idle` returns.
    pub(super) fn time_to_idle(self, idle: fn(&V) -> Duration) -> Self {
        Self { builder: self.builder.expire_after(Idle), idle: Some(idle), ..self }
    }

    pub(super) fn build(self) -> Cache<K, V> {
        let Self { builder, weigh, idle, keys } = self;
        Cache { entries: builder.build(), hasher: RandomState::new(), weigh, idle, keys }
    }
}

/// Expiry by the time without use.
struct Idle;

impl Expiry<u128, Entry> for Idle {
    fn expire_after_create(&self, _: &u128, entry: &Entry, _: Instant) -> Option<Duration> {
        entry.idle
    }

    fn expire_after_read(
        &self,
        _: &u128,
        entry: &Entry,
        _: Instant,
        _: Option<Duration>,
        _: Instant,
    ) -> Option<Duration> {
        entry.idle
    }

    fn expire_after_update(
        &self,
        _: &u128,
        entry: &Entry,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        entry.idle
    }
}

/// Numbers of lookups in a cache.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Lookups {
    /// Counts a lookup.
    pub(super) fn note(&self, is_hit: bool) {
        self.note_all(u64::from(is_hit), u64::from(!is_hit));
    }

    /// Counts several lookups.
    pub(super) fn note_all(&self, hits: u64, misses: u64) {
        for (counter, more) in [(&self.hits, hits), (&self.misses, misses)] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

/// Figures of a cache since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheFigures {
    pub name: &'static str,
    /// Lookups, if they are counted: hits and misses.
    pub lookups: Option<(u64, u64)>,
    pub bytes: u64,
}

impl CacheFigures {
    pub(super) fn new(name: &'static str, lookups: Option<&Lookups>, bytes: u64) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lookups = lookups.map(|lookups| (read(&lookups.hits), read(&lookups.misses)));
        Self { name, lookups, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys() {
        let cache: Cache<(Tenant, String), Arc<str>> = Cache::new(100);
        let key = |tenant, name: &str| (Tenant([tenant; 16]), name.to_owned());
        cache.insert(&key(1, "a"), "one".into());
        assert_eq!(cache.get(&key(1, "a")).as_deref(), Some("one"));
        assert_eq!((cache.get(&key(2, "a")), cache.get(&key(1, "b"))), (None, None));
        assert_eq!(&*cache.get_with(&key(1, "a"), || "other".into()), "one");
        assert_eq!(&*cache.get_with(&key(2, "a"), || "two".into()), "two");
        assert!(cache.contains(&key(2, "a")));
        cache.remove(&key(2, "a"));
        assert!(!cache.contains(&key(2, "a")));
        let cache: Cache<[u8; 32], u8> = Cache::new(9);
        cache.insert(&[1; 32], 1);
        assert_eq!((cache.get(&[1; 32]), cache.get(&[2; 32])), (Some(1), None));
    }

    #[test]
    fn weight_is_bounded() {
        let builder: Builder<u128, Vec<u8>> = Cache::builder(1000);
        let cache = builder.weigh(|value| value.len() as u32).build();
        for key in 0..100_u128 {
            cache.insert(&key, vec![0; 100]);
            cache.entries.run_pending_tasks();
        }
        assert!((1..=1000).contains(&cache.weight()), "{}", cache.weight());
        cache.insert(&7, vec![0; 1000]);
        cache.entries.run_pending_tasks();
        assert_eq!(cache.get(&7), None);
    }

    #[test]
    fn values_leave_in_the_order_of_their_use() {
        let cache: Cache<u128, ()> = Cache::builder(3).least_recently_used().build();
        for key in [1, 2, 3, 1, 4, 5_u128] {
            cache.insert(&key, ());
            cache.entries.run_pending_tasks();
        }
        assert_eq!(
            [1, 2, 3, 4, 5].map(|key: u128| cache.contains(&key)),
            [true, false, false, true, true]
        );
    }

    #[test]
    fn values_end_with_their_time() {
        let cache: Cache<Tenant, ()> = Cache::builder(9).time_to_live(Duration::ZERO).build();
        cache.insert(&Tenant([1; 16]), ());
        assert!(!cache.contains(&Tenant([1; 16])));
        let idle = |lifetime_s: &u64| Duration::from_secs(*lifetime_s);
        let cache: Cache<u128, u64> = Cache::builder(9).time_to_idle(idle).build();
        cache.insert(&1, 0);
        cache.insert(&2, 1000);
        assert_eq!((cache.get(&1), cache.get(&2)), (None, Some(1000)));
        let (entry, now) = (cache.entry(1000), tokio::time::Instant::now().into_std());
        let read = Idle.expire_after_read(&2, &entry, now, Some(Duration::ZERO), now);
        let updated = Idle.expire_after_update(&2, &entry, now, Some(Duration::ZERO));
        assert_eq!((read, updated), (entry.idle, entry.idle), "each use restarts the idle time");
    }
}
