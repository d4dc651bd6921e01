//! Originals of messages that were not sent whole, kept for their caller. Saving never delays or
//! fails a request: a failed save is tried again with the next request from which the message is
//! left out.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use xxhash_rust::xxh3::xxh3_128_with_secret;

use crate::config;
use crate::proxy::cache::Cache;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::plan::LeftOut;
use weir_engine::compact::{is_reference, reference};
use weir_store::Tenant;
use weir_store::{Entry, Kind, Life, OpenError, Store, StoreError, now_ms};

/// Maximum bytes saved per request, and so the size of the largest original.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Maximum bytes that all requests together may have copied and not yet saved.
const MAX_WAITING_BYTES: usize = 4 * MAX_BATCH_BYTES;
/// Entries written in one step.
const ENTRIES_AT_ONCE: usize = 256;
/// Maximum number of requests saving at once.
const MAX_UNDER_WAY: usize = 1024;
/// Maximum number of messages remembered as saved.
const MAX_REMEMBERED: u64 = 1 << 18;
/// Maximum time that a lookup, or shutdown, waits for saves in progress.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Stores and finds originals.
pub struct Originals {
    /// `None` if originals are not kept.
    store: Option<Store>,
    kind: Kind,
    lifetime_ms: u64,
    /// Messages saved less than half a lifetime ago, by hashes under `secret`.
    saved: Cache<u128, ()>,
    secret: [u8; 192],
    waiting_bytes: Arc<Semaphore>,
    /// Tenants whose messages are being saved; the receiver's sender is dropped at the end.
    under_way: Mutex<Vec<(Tenant, watch::Receiver<()>)>>,
}

impl Originals {
    /// Creates the originals as `context` configures them, possibly in `store`.
    pub fn new(context: &config::Context, store: &Store) -> Result<Self, OpenError> {
        let store = match context.originals {
            config::Originals::Off => None,
            config::Originals::Memory => Some(Store::in_memory()?),
            config::Originals::Store => Some(store.clone()),
        };
        let mut secret = [0; 192];
        getrandom::fill(&mut secret)
            .map_err(|error| OpenError::System { message: format!("no random bytes: {error}") })?;
        let lifetime_ms = context.originals_lifetime_ms;
        Ok(Self {
            store,
            kind: Kind { name: "original", max_bytes: context.originals_max_bytes },
            lifetime_ms,
            saved: Cache::builder(MAX_REMEMBERED)
                .time_to_live(Duration::from_millis(lifetime_ms / 2))
                .build(),
            secret,
            waiting_bytes: Arc::new(Semaphore::new(MAX_WAITING_BYTES)),
            under_way: Mutex::new(Vec::new()),
        })
    }

    /// Returns the store that keeps them, if any.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Saves the messages left out of `body`, in the background. `permit` is the body's share of
    /// memory, released together with the body.
    pub fn keep(
        self: &Arc<Self>,
        tenant: Tenant,
        body: Bytes,
        left_out: LeftOut,
        permit: Box<dyn Send>,
    ) {
        let Some(store) = self.store.clone() else { return };
        if left_out.spans.is_empty() || tenant == Tenant::ANONYMOUS {
            return;
        }
        let bytes = left_out.spans.iter().map(Range::len).sum::<usize>().min(MAX_BATCH_BYTES);
        let room = u32::try_from(bytes)
            .ok()
            .and_then(|bytes| Arc::clone(&self.waiting_bytes).try_acquire_many_owned(bytes).ok());
        let (Some(room), Some(over)) = (room, self.begin(tenant)) else {
            tracing::debug!(target: "weir::originals", "too many saves in progress; skipped");
            return;
        };
        let originals = Arc::clone(self);
        tokio::spawn(async move {
            let reader = Arc::clone(&originals);
            let read = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                reader.read_new(tenant, &body, &left_out, bytes)
            });
            if let Ok(new) = read.await {
                // The writer reports its own failures.
                let _ = originals.save(&store, tenant, new).await;
            }
            drop((room, over));
        });
    }

    /// Registers a save of `tenant`, until the result is dropped.
    fn begin(&self, tenant: Tenant) -> Option<watch::Sender<()>> {
        let mut under_way = self.under_way.lock().ok()?;
        under_way.retain(|(_, over)| over.has_changed().is_ok());
        if under_way.len() >= MAX_UNDER_WAY {
            return None;
        }
        let (sender, over) = watch::channel(());
        under_way.push((tenant, over));
        Some(sender)
    }

    /// Returns the entries of messages not saved recently, of at most `max_bytes` together, each
    /// with its cache key. Reads all messages that were left out.
    fn read_new(
        &self,
        tenant: Tenant,
        body: &[u8],
        left_out: &LeftOut,
        max_bytes: usize,
    ) -> Vec<(u128, Entry)> {
        let expires_ms = now_ms().saturating_add(self.lifetime_ms);
        let mut new = Vec::new();
        let mut new_bytes = 0;
        for span in &left_out.spans {
            let raw = &body[span.clone()];
            let mut key = [0; 32];
            key[..16].copy_from_slice(&tenant.0);
            key[16..].copy_from_slice(&xxh3_128_with_secret(raw, &self.secret).to_le_bytes());
            let mark = xxh3_128_with_secret(&key, &self.secret);
            if self.saved.contains(&mark) || new_bytes + raw.len() > max_bytes {
                continue;
            }
            let Ok(text) = std::str::from_utf8(raw) else { continue };
            let key = reference(&left_out.protocol.identity(text)).into();
            let value = Bytes::copy_from_slice(raw);
            let entry = Entry { key, value, expires_ms };
            if entry.weight_bytes() <= self.kind.max_bytes {
                new_bytes += raw.len();
                new.push((mark, entry));
            }
        }
        new
    }

    /// Writes entries, and remembers those that are written.
    async fn save(
        &self,
        store: &Store,
        tenant: Tenant,
        mut new: Vec<(u128, Entry)>,
    ) -> Result<(), StoreError> {
        while !new.is_empty() {
            let rest = new.split_off(new.len().min(ENTRIES_AT_ONCE));
            let (marks, entries): (Vec<_>, Vec<_>) = new.into_iter().unzip();
            store.put(tenant, self.kind, entries, now_ms()).await?;
            for mark in marks {
                self.saved.insert(&mark, ());
            }
            new = rest;
        }
        Ok(())
    }

    /// Returns the original that `tenant` sent with this reference, as it was sent.
    pub async fn find(&self, tenant: Tenant, wanted: &str) -> Result<Bytes, ProxyError> {
        if tenant == Tenant::ANONYMOUS {
            return Err(ProxyError::new(
                ErrorKind::CredentialRequired,
                "Originals are per caller. \
                 Send the same credential (authorization, api-key or x-api-key) as with the \
                 conversation. weir keeps no originals for callers without one.",
            ));
        }
        let Some(store) = &self.store else {
            let message = "weir keeps no originals here; the operator can enable them with \
                           context.originals = \"memory\" or \"store\"";
            return Err(ProxyError::new(ErrorKind::NotFound, message));
        };
        if is_reference(wanted) {
            if let Some(found) = self.look_up(store, tenant, wanted).await? {
                return Ok(found);
            }
            if self.settle(|other| other == tenant).await
                && let Some(found) = self.look_up(store, tenant, wanted).await?
            {
                return Ok(found);
            }
        }
        Err(ProxyError::new(
            ErrorKind::NotFound,
            "There is no original with this reference for this credential: its lifetime is over \
             (context.advanced.originals.lifetime_ms), others took its room (context.advanced.originals.max_bytes), \
             or it never existed.",
        ))
    }

    async fn look_up(
        &self,
        store: &Store,
        tenant: Tenant,
        wanted: &str,
    ) -> Result<Option<Bytes>, ProxyError> {
        let keys = vec![Bytes::copy_from_slice(wanted.as_bytes())];
        let mut found =
            store.fetch(tenant, self.kind, keys, now_ms(), Life::Left).await.map_err(|error| {
                tracing::warn!(target: "weir::store", %error, "the store cannot be read");
                let message = "weir cannot read its store at the moment. Try again shortly.";
                ProxyError::new(ErrorKind::StoreUnavailable, message)
            })?;
        Ok(found.pop().flatten())
    }

    /// Waits, within bounds, until all saves of these tenants finish. Returns whether there were
    /// any.
    pub async fn settle(&self, of: impl Fn(Tenant) -> bool) -> bool {
        let waited_for: Vec<_> = self.under_way.lock().map_or_else(
            |_| Vec::new(),
            |list| {
                let own = list.iter().filter(|(tenant, _)| of(*tenant));
                own.map(|(_, over)| over.clone()).collect()
            },
        );
        let is_any = !waited_for.is_empty();
        let all_over = async {
            for mut over in waited_for {
                while over.changed().await.is_ok() {}
            }
        };
        // Saves that exceed the time continue.
        let _ = tokio::time::timeout(SETTLE_TIMEOUT, all_over).await;
        is_any
    }
}
