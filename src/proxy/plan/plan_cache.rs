//! Plan cache: token counts by content and compaction states by conversation, tenant first. Losing
//! an entry changes no result, only its cost.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::sync;
use tokio::time::Instant;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_secret};

use super::prefix_cache::PrefixCache;
use super::readings::{ReadingCache, ReadingKey};
use crate::config::{self, SummaryMode};
use crate::proxy::cache::{Cache, CacheFigures, Lookups};
use weir_engine::compact::{Compactor, Fact, Measure};
use weir_engine::plan::Decisions;
use weir_engine::wire::{Extra, Protocol, Request};
use weir_store::Tenant;

/// Memory of an entry besides its value: key, pointers, the cache's own data.
const ENTRY_BYTES: u32 = 160;
/// Maximum number of ends of shorter conversations looked up before a fresh start.
const PROBES: usize = 4096;

/// State of a conversation at the end of one of its requests.
#[derive(Clone)]
pub(super) struct Remembered {
    pub state: Arc<Compactor>,
    /// Time at which the first of its compactions looked up its record.
    pub looked_at: Instant,
    pub last_sent: LastSent,
    /// Key of the state that it continues, set when it is kept.
    pub before: Option<u128>,
    pub readings: ReadingKey,
}

/// Request of a conversation that an upstream last accepted. A plan alone does not change it.
#[derive(Debug, Clone, Default)]
pub(super) struct LastSent {
    sent: Arc<Mutex<Option<Sent>>>,
    /// Time of the last one of the conversation and of those that branched off from it: each renews the
    /// provider's cache.
    at: Arc<Mutex<Option<Instant>>>,
}

/// Request of a conversation that an upstream accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Tokens of its messages as received.
    pub received_tokens: u64,
    /// Number of compactions applied to it; 0 if it was sent whole.
    pub compactions: u32,
}

impl LastSent {
    /// Returns the request; `None` if no request of the conversation is known to be accepted.
    pub(super) fn get(&self) -> Option<Sent> {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time since the last request; `None` if none is known to be accepted.
    pub(super) fn pause(&self) -> Option<Duration> {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.map(|at| at.elapsed())
    }

    /// Records that an upstream accepted `sent` at this time, and returns the request before it.
    pub(super) fn set(&self, sent: Sent, at: Instant) -> Option<Sent> {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).replace(sent)
    }

    /// Copies it for the conversation's next request, which may be one of several.
    pub(super) fn branch(&self) -> Self {
        Self { sent: Arc::new(Mutex::new(self.get())), at: Arc::clone(&self.at) }
    }
}

/// Caches of counts and compaction states. Keys are hashes under a secret of this process, so
/// nobody can make two contents share one; they never leave the process.
pub(super) struct PlanCache {
    secret: [u8; 192],
    /// Looked up for each message of a request, so its values are not boxed as those of [`Cache`].
    facts: sync::Cache<u128, Fact>,
    extras: Cache<u128, u64>,
    states: Cache<u128, Remembered>,
    pub prefixes: PrefixCache,
    pub readings: ReadingCache,
    lookups: Lookups,
}

impl PlanCache {
    pub(super) fn new(limits: &config::Cache) -> Self {
        let mut secret = [0; 192];
        getrandom::fill(&mut secret).expect("the operating system gives random bytes");
        Self {
            secret,
            facts: sync::Cache::builder()
                .weigher(|_: &u128, _: &Fact| ENTRY_BYTES)
                .max_capacity(limits.counts_bytes)
                .build(),
            extras: Cache::builder(limits.counts_bytes / 16).weigh(|_| ENTRY_BYTES).build(),
            states: Cache::builder(limits.folds_bytes)
                .weigh(|remembered: &Remembered| {
                    u32::try_from(remembered.state.memory_bytes())
                        .unwrap_or(u32::MAX)
                        .saturating_add(ENTRY_BYTES)
                })
                .build(),
            prefixes: PrefixCache::new(secret, limits.folds_bytes / 8),
            readings: ReadingCache::new(limits.folds_bytes / 2),
            lookups: Lookups::default(),
        }
    }

    /// Returns the figures of all caches.
    pub(super) fn figures(&self) -> [CacheFigures; 4] {
        let counts_bytes = self.facts.weighted_size() + self.extras.weight();
        [
            CacheFigures::new("counts", None, counts_bytes),
            CacheFigures::new("plans", Some(&self.lookups), self.states.weight()),
            self.prefixes.figures(),
            self.readings.figures(),
        ]
    }

    /// Returns the facts counted earlier for a content.
    pub(super) fn fact(&self, key: u128) -> Option<Fact> {
        self.facts.get(&key)
    }

    pub(super) fn keep_fact(&self, key: u128, fact: Fact) {
        self.facts.insert(key, fact);
    }

    /// Returns the key of an item outside the messages.
    pub(super) fn extra_key(&self, tenant: Tenant, measure: Measure, extra: &Extra<'_>) -> u128 {
        let own = xxh3_128_with_secret(extra.raw.as_bytes(), &self.secret);
        self.join(&(tenant, measure, extra.kind, own))
    }

    pub(super) fn extra(&self, key: u128) -> Option<u64> {
        self.extras.get(&key)
    }

    pub(super) fn keep_extra(&self, key: u128, tokens: u64) {
        self.extras.insert(&key, tokens);
    }

    /// Returns the compaction state of the longest prefix of the conversation with which a request
    /// ended.
    pub(super) fn longest_fold(&self, chain: &Chain, head: &[Fact]) -> Option<Remembered> {
        let is_own = |messages: usize, state: &Compactor| {
            let is_same = |(own, other): (&Fact, &Fact)| {
                own.form > 0 && (own.form, own.form_tokens) == (other.form, other.form_tokens)
            };
            state.messages() == messages && head.iter().zip(state.facts()).all(is_same)
        };
        let mut ends = chain.ends.iter().enumerate().skip(head.len()).rev().take(PROBES);
        let found = ends.find_map(|(index, end)| {
            self.states.get(end).filter(|found| is_own(index + 1, &found.state))
        });
        self.lookups.note(found.is_some());
        found
    }

    /// Stores the compaction state of a whole conversation. The one that it continues, of so many
    /// messages, stays for another request that begins there, such as a side request; the one before
    /// that goes.
    pub(super) fn keep_state(
        &self,
        chain: &Chain,
        state: Remembered,
        earlier_messages: Option<usize>,
    ) {
        let Some(end) = chain.ends.last() else { return };
        let earlier = earlier_messages.and_then(|messages| messages.checked_sub(1));
        let earlier = earlier.and_then(|index| chain.ends.get(index));
        let oldest = earlier.and_then(|earlier| self.states.get(earlier)?.before);
        self.states.insert(end, Remembered { before: earlier.copied(), ..state });
        if let Some(oldest) = oldest {
            self.states.remove(&oldest);
        }
    }

    /// Hashes each message of a request once, except those whose hashes are `known`, by index.
    pub(super) fn hashes(
        &self,
        request: &Request<'_>,
        known: impl Fn(usize) -> Option<u128>,
    ) -> Vec<u128> {
        let hash = |raw: &str| {
            xxh3_128_with_secret(request.protocol.identity(raw).as_bytes(), &self.secret)
        };
        let messages = request.messages.iter().enumerate();
        messages.map(|(index, raw)| known(index).unwrap_or_else(|| hash(raw))).collect()
    }

    /// Returns the keys of a conversation's prefixes regardless of its profile. `own` are the hashes
    /// of its messages.
    pub(super) fn prefixes_of(
        &self,
        tenant: Tenant,
        protocol: Protocol,
        own: &[u128],
    ) -> Vec<u128> {
        let mut end = self.join(&(tenant, protocol, "prefix"));
        own.iter()
            .map(|own| {
                end = self.pair(end, *own);
                end
            })
            .collect()
    }

    /// Returns the key of a message's content by one way of counting; `own` is its hash.
    pub(super) fn content_key(
        &self,
        (tenant, protocol, measure): (Tenant, Protocol, Measure),
        own: u128,
    ) -> u128 {
        self.pair(self.join(&(tenant, protocol, measure)), own)
    }

    /// Computes one key from several parts.
    fn join(&self, parts: &impl std::hash::Hash) -> u128 {
        let mut hasher = Xxh3::with_secret(self.secret);
        parts.hash(&mut hasher);
        hasher.digest128()
    }
}

/// Keys of a conversation's messages and of its prefixes.
pub(super) struct Chain {
    /// Hashes of the messages alone.
    own: Vec<u128>,
    contents: Vec<u128>,
    ends: Vec<u128>,
}

impl Chain {
    /// Combines the hashes of a conversation's messages, `own`, without the first `head`, which are the system's
    /// and may change with each request. Tenant, protocol and decisions are part
    /// of every key, and so is the mode of summaries, since a compaction state holds them.
    pub(super) fn new(
        memory: &PlanCache,
        (tenant, decisions, mode): (Tenant, &Decisions, SummaryMode),
        protocol: Protocol,
        (own, head): (Vec<u128>, usize),
    ) -> Self {
        let seed = memory.join(&(tenant, protocol, decisions.profile.measure));
        let mut end = memory.join(&(tenant, protocol, decisions, mode));
        let contents = own.iter().map(|own| memory.pair(seed, *own)).collect();
        let ends = own.iter().enumerate().map(|(index, own)| {
            end = if index < head { end } else { memory.pair(end, *own) };
            end
        });
        Self { ends: ends.collect(), own, contents }
    }

    /// Returns the hashes of the messages alone.
    pub(super) fn own(&self) -> &[u128] {
        &self.own
    }

    /// Returns the key of the whole conversation; 0 if it is empty.
    pub(super) fn end(&self) -> u128 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Returns the key of one message's content.
    pub(super) fn content_key(&self, message: usize) -> u128 {
        self.contents[message]
    }
}

impl PlanCache {
    fn pair(&self, left: u128, right: u128) -> u128 {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&left.to_le_bytes());
        bytes[16..].copy_from_slice(&right.to_le_bytes());
        xxh3_128_with_secret(&bytes, &self.secret)
    }
}
