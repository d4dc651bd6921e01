//! Interface of a store's back ends. A new back end implements these traits, gets a constructor in
//! [`Store`](crate::Store), and passes the conformance suite (`tests/it/store`). Each signature
//! stands here once: a store dereferences to [`Backend`].

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::budget::{Budget, BudgetId};
use crate::budgets::{BudgetError, Spent, SpentQuery};
use crate::conversations::{
    Added, Addition, Conversation, ConversationFacts, ConversationLimits, KeptMessage,
};
use crate::keys::{FoundKey, KeyChange, KeyError, KeyFacts, SecretFacts, TeamFacts, VirtualKey};
use crate::ledger::{
    Intent, RequestEnd, RequestId, RequestQuery, RequestRow, SeriesQuery, SeriesRow, Settlement,
    UsageQuery, UsageRow,
};
use crate::{Activity, Entry, Kind, Life, SECRET_BYTES, State, Stored, Tenant};

/// Everything that a store does for its users.
pub trait Backend: Values + Kinds + Conversations + Journal + Reports + Keys + Budgets {}

impl<B: Values + Kinds + Conversations + Journal + Reports + Keys + Budgets> Backend for B {}

/// Values by tenant, kind and key, and the store itself.
#[async_trait]
pub trait Values: Send + Sync {
    /// Returns a secret that was created with the store and stays with it.
    fn secret(&self) -> [u8; SECRET_BYTES];

    /// Returns the store's file, if it has one.
    fn file(&self) -> Option<&Path>;

    /// Returns the store's current location and health.
    fn state(&self) -> State;

    /// Returns the write activity since the start, and the queued work.
    fn activity(&self) -> Activity;

    /// Waits until all writes survive a power loss, including requests, which go into the store's
    /// own file if it is writable.
    async fn sync(&self) -> Stored<()>;

    /// Stores all of `entries`, replacing existing values, or none on an error.
    async fn put(&self, tenant: Tenant, kind: Kind, entries: Vec<Entry>, now_ms: u64)
    -> Stored<()>;

    /// Stores those of `entries` whose key has no value, and returns the current value of each key:
    /// the first writer's, over all processes. On an error none is stored.
    async fn put_if_absent(
        &self,
        tenant: Tenant,
        kind: Kind,
        entries: Vec<Entry>,
        now_ms: u64,
    ) -> Stored<Vec<Bytes>>;

    /// Returns the values of `keys` in order, `None` for missing and expired ones.
    async fn fetch(
        &self,
        tenant: Tenant,
        kind: Kind,
        keys: Vec<Bytes>,
        now_ms: u64,
        life: Life,
    ) -> Stored<Vec<Option<Bytes>>>;

    /// Reads one value on the caller's thread. Returns `None` if that would block, as it does for
    /// an in-memory store, or for a server unless the kind is [replicated](Self::replicate). The
    /// inner `None` means that the key has no value.
    fn peek(&self, tenant: Tenant, kind: Kind, key: &[u8], now_ms: u64) -> Option<Option<Entry>>;

    /// Replicates a kind locally, so that [`Self::peek`] answers for it without blocking; for small
    /// kinds. Changes by other processes arrive within a moment. Does nothing for a store that is
    /// local already.
    fn replicate(&self, _kind: Kind) {}

    /// Deletes expired entries and conversations of all tenants; returns their number. Reads ignore
    /// them anyway.
    async fn delete_expired(&self, now_ms: u64) -> Stored<u64>;
}

/// Values of all tenants.
#[async_trait]
pub trait Kinds: Send + Sync {
    /// Returns all entries of a kind, of all tenants, in key order, but at most `limit`.
    async fn list(&self, kind: Kind, now_ms: u64, limit: usize) -> Stored<Vec<(Tenant, Entry)>>;
}

/// Conversations kept for callers, by tenant and name.
#[async_trait]
pub trait Conversations: Send + Sync {
    /// Returns a conversation with all its messages.
    async fn conversation(
        &self,
        tenant: Tenant,
        name: &str,
        now_ms: u64,
    ) -> Stored<Option<Conversation>>;

    /// Returns a number of the latest change of a conversation that was no addition: 0 if none is on
    /// record, and more after each change. A conversation that does not exist may have one.
    async fn conversation_change(&self, tenant: Tenant, name: &str) -> Stored<u64>;

    /// Returns a page of a tenant's conversations in the order of their names: those after `after`,
    /// at most [`crate::conversations::MAX_PAGE`].
    async fn list_conversations(
        &self,
        tenant: Tenant,
        after: &str,
        now_ms: u64,
    ) -> Stored<Vec<ConversationFacts>>;

    /// Adds messages at the end of a conversation: all of them next to each other, or none.
    async fn add_to_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        addition: Addition,
        limits: ConversationLimits,
        now_ms: u64,
    ) -> Stored<Added>;

    /// Replaces the messages of a conversation, which is created if missing. Additions to the earlier
    /// one are refused from now on.
    async fn replace_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        messages: Vec<KeptMessage>,
        limits: ConversationLimits,
        now_ms: u64,
    ) -> Stored<ConversationFacts>;

    /// Deletes a conversation; returns whether it existed. Additions that began before are refused from
    /// now on, even if there was nothing to delete. Above `max_bytes`, conversations make room for the
    /// record of the change.
    async fn delete_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        max_bytes: u64,
        now_ms: u64,
    ) -> Stored<bool>;
}

/// Request journal: intents before sending, settlements, and daily totals.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Records that a request is about to be sent. After this returns, the record survives a kill
    /// of the process, and after [`crate::StoreOptions::sync_interval`] a power loss.
    async fn open_request(&self, intent: &Intent) -> Stored<()>;

    /// Records the end of a request. Returns `false` if it is known to be settled already: a
    /// request counts once, by its id.
    async fn settle_request(&self, intent: Arc<Intent>, settlement: Settlement) -> Stored<bool>;

    /// Withdraws a request that was not sent after all.
    async fn release_request(&self, id: RequestId) -> Stored<()>;

    /// Returns up to `limit` requests that were open when their process ended, oldest first. They
    /// stay until settled or released.
    async fn orphans(&self, limit: usize) -> Stored<Vec<Intent>>;

    /// Returns the state of each request, in order, for any process.
    async fn request_ends(&self, ids: Vec<RequestId>) -> Stored<Vec<RequestEnd>>;

    /// Returns totals of ended requests, and open requests.
    async fn spent(&self, query: SpentQuery) -> Stored<Spent>;

    /// Writes a consistent copy of the whole store to a new file at `path`, usable as a store.
    /// Others may write meanwhile.
    async fn backup(&self, path: &Path) -> Stored<()>;
}

/// Totals and rows of the journal.
#[async_trait]
pub trait Reports: Send + Sync {
    /// Returns the typical output size of `model`; `None` if no answer was read to its end.
    async fn learned_output_tokens(&self, model: &str) -> Stored<Option<u64>>;

    /// Returns daily totals, at most [`crate::ledger::MAX_ROWS`]: by day, then highest cost first.
    async fn usage(&self, query: UsageQuery) -> Stored<Vec<UsageRow>>;

    /// Returns totals of single requests by stretches of time, at most [`crate::ledger::MAX_ROWS`]:
    /// by time, then highest cost first. Goes back as far as single requests are kept.
    async fn series(&self, query: SeriesQuery) -> Stored<Vec<SeriesRow>>;

    /// Returns single requests, at most [`crate::ledger::MAX_ROWS`], newest first.
    async fn requests(&self, query: RequestQuery) -> Stored<Vec<RequestRow>>;

    /// Deletes rows of requests that began before `before_ms`, and totals of days before
    /// `totals_before_ms`; returns the number of rows. Others can write in between.
    async fn prune_requests(&self, before_ms: u64, totals_before_ms: u64) -> Stored<u64>;

    /// Returns the cost of a tenant's requests of one route since `from_ms`, in nano-dollars, as
    /// far as they have a price.
    async fn spent_on_route(
        &self,
        tenant: Tenant,
        route: &'static str,
        from_ms: u64,
    ) -> Stored<u64>;
}

/// Virtual keys. [`Store`](crate::Store) creates and rotates them, as it makes their secrets.
#[async_trait]
pub trait Keys: Send + Sync {
    /// Returns the key with this id.
    async fn show_key(&self, id: &str) -> Result<KeyFacts, KeyError>;

    /// Returns a page of keys, of all teams or one, in the order of their ids: those after `after`,
    /// at most [`crate::keys::MAX_PAGE`].
    async fn list_keys(&self, team: Option<&str>, after: &str) -> Result<Vec<KeyFacts>, KeyError>;

    /// Returns a page of teams in the order of their names: those after `after`, at most
    /// [`crate::keys::MAX_PAGE`].
    async fn list_teams(&self, after: &str) -> Result<Vec<TeamFacts>, KeyError>;

    /// Changes a key's permissions, from its next request on.
    async fn change_key(&self, id: &str, change: KeyChange) -> Result<KeyFacts, KeyError>;

    /// Revokes a key permanently, from its next request on. A repeated call changes nothing.
    async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<KeyFacts, KeyError>;
}

/// Budgets.
#[async_trait]
pub trait Budgets: Send + Sync {
    /// Sets a budget, or replaces the one with the same id; applies from the next request on.
    async fn set_budget(&self, budget: Budget, now_ms: u64) -> Result<(), BudgetError>;

    /// Removes a budget; returns whether it existed.
    async fn remove_budget(&self, id: &BudgetId) -> Stored<bool>;

    /// Returns all budgets in the order of their ids, with the change counter of keys and budgets.
    async fn budgets(&self) -> Stored<(u64, Vec<Budget>)>;
}

/// Secrets of virtual keys. Only this crate calls these operations.
#[async_trait]
pub(crate) trait Secrets: Send + Sync {
    /// Adds a key with its secret's hash, and its team and organisation if they do not exist. The
    /// key's organisation is the named one, or empty.
    async fn insert_key(
        &self,
        key: VirtualKey,
        hash: [u8; 32],
        secret: SecretFacts,
    ) -> Result<KeyFacts, KeyError>;

    /// Gives a key a new secret; its current secrets end at `end_ms`. One with an end already set
    /// ends at once, so that at most two are ever valid.
    async fn insert_secret(
        &self,
        id: &str,
        hash: [u8; 32],
        secret: SecretFacts,
        end_ms: u64,
    ) -> Result<KeyFacts, KeyError>;

    /// Returns the key of a hash, and the change counter at that time.
    async fn key_by_hash(&self, hash: [u8; 32]) -> Stored<(u64, Option<FoundKey>)>;
}

/// Operations that only this crate calls: secrets, caches and the leader lease.
#[async_trait]
pub(crate) trait Internal: Backend + Secrets {
    /// Returns whether `count` is still the current number of changes to keys and budgets; `false`
    /// if unknown.
    fn is_current(&self, count: u64) -> bool;

    /// Starts to follow changes by other processes, for [`Self::is_current`].
    fn watch_changes(&self) {}

    /// Takes or renews the lease of the process that counts budgets, if the store is on a server;
    /// [`crate::counters::leader_lock`] locks a file otherwise. Returns whether this process has it.
    async fn hold_leader_lease(&self) -> Stored<bool> {
        Ok(true)
    }
}
