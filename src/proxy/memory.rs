//! What is remembered between requests to spare work: counts by content and folds by
//! conversation, tenant first. Losing any of it changes no result, only its cost.

use std::sync::{Arc, Mutex, PoisonError};

use moka::sync::Cache;
use tokio::time::Instant;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_secret};

use super::Tenant;
use super::beginnings::Beginnings;
use crate::config;
use crate::context::{Fact, Fold, Measure, Profile};
use crate::wire::Extra;

/// What one entry costs beside its value: key, pointers, the cache's own book-keeping.
const ENTRY_BYTES: u32 = 160;
/// How many ends of shorter conversations are looked up before starting afresh.
const PROBES: usize = 4096;

/// A conversation as one of its requests ended.
#[derive(Clone)]
pub struct Remembered {
    pub fold: Arc<Fold>,
    /// When the first of its cuts asked for what stands there.
    pub looked_at: Instant,
    pub last_sent: LastSent,
}

/// The request of a conversation that an upstream took last. A plan alone does not change it.
#[derive(Debug, Clone, Default)]
pub struct LastSent(Arc<Mutex<Option<Sent>>>);

/// A request of a conversation as an upstream took it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Tokens of its messages as received.
    pub received_tokens: u64,
    /// Compactions that had shaped it; 0 if it was sent whole.
    pub compactions: u32,
}

impl LastSent {
    /// The request; `None` if none of the conversation is known to have been taken.
    pub fn get(&self) -> Option<Sent> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an upstream took `sent`, and returns the request before it.
    pub fn set(&self, sent: Sent) -> Option<Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(sent)
    }

    /// The same for the conversation's next request, which may be one of several.
    pub fn branch(&self) -> Self {
        Self(Arc::new(Mutex::new(self.get())))
    }
}

/// Counts and folds. Keys are hashes under a secret of this process, so that nobody can make two
/// contents share one; they never leave the process.
pub struct Memory {
    secret: [u8; 192],
    facts: Cache<u128, Fact>,
    extras: Cache<u128, u64>,
    folds: Cache<u128, Remembered>,
    pub beginnings: Beginnings,
}

impl Memory {
    pub fn new(limits: &config::Cache) -> Self {
        let mut secret = [0; 192];
        getrandom::fill(&mut secret).expect("the operating system gives random bytes");
        Self {
            secret,
            facts: Cache::builder()
                .weigher(|_: &u128, _: &Fact| ENTRY_BYTES)
                .max_capacity(limits.counts_bytes)
                .build(),
            extras: Cache::builder()
                .weigher(|_: &u128, _: &u64| ENTRY_BYTES)
                .max_capacity(limits.counts_bytes / 16)
                .build(),
            folds: Cache::builder()
                .weigher(|_: &u128, remembered: &Remembered| {
                    u32::try_from(remembered.fold.memory_bytes())
                        .unwrap_or(u32::MAX)
                        .saturating_add(ENTRY_BYTES)
                })
                .max_capacity(limits.folds_bytes)
                .build(),
            beginnings: Beginnings::new(secret, limits.folds_bytes / 8),
        }
    }

    /// The fact counted earlier for a content.
    pub fn fact(&self, key: u128) -> Option<Fact> {
        self.facts.get(&key)
    }

    pub fn keep_fact(&self, key: u128, fact: Fact) {
        self.facts.insert(key, fact);
    }

    /// The key of something beside the messages.
    pub fn extra_key(&self, tenant: Tenant, measure: Measure, extra: &Extra<'_>) -> u128 {
        let own = xxh3_128_with_secret(extra.raw.as_bytes(), &self.secret);
        self.join(&(tenant, measure, extra.kind, own))
    }

    pub fn extra(&self, key: u128) -> Option<u64> {
        self.extras.get(&key)
    }

    pub fn keep_extra(&self, key: u128, tokens: u64) {
        self.extras.insert(key, tokens);
    }

    /// The fold of the longest beginning of the conversation that a request ended with.
    pub fn longest_fold(&self, chain: &Chain) -> Option<Remembered> {
        chain.ends.iter().rev().take(PROBES).find_map(|end| self.folds.get(end))
    }

    /// Remembers the fold of a whole conversation, in the place of that of its beginning: the
    /// next request continues here.
    pub fn keep_fold(&self, chain: &Chain, fold: Remembered, earlier_messages: Option<usize>) {
        let Some(end) = chain.ends.last() else { return };
        self.folds.insert(*end, fold);
        let earlier = earlier_messages.and_then(|messages| messages.checked_sub(1));
        if let Some(earlier) = earlier.and_then(|index| chain.ends.get(index)) {
            self.folds.invalidate(earlier);
        }
    }

    /// One key of several parts.
    fn join(&self, parts: &impl std::hash::Hash) -> u128 {
        let mut hasher = Xxh3::with_secret(self.secret);
        parts.hash(&mut hasher);
        hasher.digest128()
    }
}

/// The keys of a conversation's messages and of its beginnings.
pub struct Chain {
    /// The hashes of the messages alone.
    own: Vec<u128>,
    contents: Vec<u128>,
    ends: Vec<u128>,
}

impl Chain {
    /// Hashes each message once, but for the first, whose hashes are `known`. Tenant and profile are
    /// part of every key.
    pub fn new(
        memory: &Memory,
        tenant: Tenant,
        profile: &Profile,
        messages: &[&str],
        known: &[u128],
    ) -> Self {
        let seed = memory.join(&(tenant, profile.measure));
        let mut end = memory.join(&(tenant, profile));
        let mut chain = Self {
            own: Vec::with_capacity(messages.len()),
            contents: Vec::with_capacity(messages.len()),
            ends: Vec::with_capacity(messages.len()),
        };
        let mut known = known.iter().copied();
        for raw in messages {
            let hash = || xxh3_128_with_secret(raw.as_bytes(), &memory.secret);
            let own = known.next().unwrap_or_else(hash);
            chain.own.push(own);
            chain.contents.push(memory.pair(seed, own));
            end = memory.pair(end, own);
            chain.ends.push(end);
        }
        chain
    }

    /// The hashes of the messages alone.
    pub fn own(&self) -> &[u128] {
        &self.own
    }

    /// The key of one message's content.
    pub fn content_key(&self, message: usize) -> u128 {
        self.contents[message]
    }
}

impl Memory {
    fn pair(&self, left: u128, right: u128) -> u128 {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&left.to_le_bytes());
        bytes[16..].copy_from_slice(&right.to_le_bytes());
        xxh3_128_with_secret(&bytes, &self.secret)
    }
}
