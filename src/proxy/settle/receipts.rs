//! Receipts of compactions, kept for their caller by the ID of the request that made one. Making and saving
//! them never delays or fails a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use crate::config;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::plan::{Job, Planned};
use weir_engine::compact::receipt::Receipt;
use weir_engine::wire::Protocol;
use weir_store::ledger::RequestId;
use weir_store::{Entry, Kind, Life, Store, Tenant, now_ms};

/// Maximum total size of receipts. Above it, the caller with the most loses its oldest.
const KIND: Kind = Kind { name: "receipt", max_bytes: 256 << 20 };
/// Maximum number of receipts being made at once; others wait.
const MAX_AT_ONCE: usize = 4;
/// Maximum bytes of the bodies that receipts in progress hold, and the least that one counts. A larger
/// one is made alone.
const MAX_HELD_BYTES: u32 = 64 << 20;
const LEAST_HELD_BYTES: u32 = 64 << 10;
/// Maximum number of messages of a receipt.
const MAX_MESSAGES: usize = 1 << 20;
/// Maximum length of a request's ID in a path.
const MAX_ID_BYTES: usize = 64;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum time that a lookup, or shutdown, waits for receipts in progress.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes, stores and finds receipts.
pub struct Receipts {
    store: Store,
    lifetime_ms: u64,
    /// Permits to make one, and bytes that more may hold.
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
    /// Receipts in progress; each receiver's sender is dropped at the end.
    under_way: Mutex<Vec<(RequestId, watch::Receiver<()>)>>,
    /// Number of receipts that were not made for want of room.
    skipped: AtomicU64,
}

impl Receipts {
    /// Creates the receipts of a store, kept as long as the rows of the ledger.
    pub fn new(ledger: &config::Ledger, store: &Store) -> Self {
        Self {
            store: store.clone(),
            lifetime_ms: ledger.retention_days.saturating_mul(DAY_MS),
            places: Arc::new(Semaphore::new(MAX_AT_ONCE)),
            room: Arc::new(Semaphore::new(MAX_HELD_BYTES as usize)),
            under_way: Mutex::default(),
            skipped: AtomicU64::new(0),
        }
    }

    /// Makes the receipt of a request whose plan compacted, and saves it in the background under the
    /// request's ID.
    pub fn keep(&self, tenant: Tenant, id: RequestId, job: &Job, planned: &Planned) {
        let Some(sent) =
            planned.body.clone().filter(|_| planned.compaction.is_new || planned.is_compacted_here)
        else {
            return;
        };
        if tenant == Tenant::ANONYMOUS {
            return;
        }
        let (protocol, received) = (job.protocol, job.body.clone());
        let client = job.without_recall.as_ref().map(|plain| plain.body.clone());
        let held_bytes = received.len() + sent.len() + client.as_ref().map_or(0, Bytes::len);
        self.make(tenant, id, held_bytes, move || {
            receipt(protocol, client.as_deref(), &received, &sent)
        });
    }

    /// Makes a receipt and saves it, in the background. If many are in progress it waits for its turn,
    /// and it is skipped if they hold too much.
    fn make(
        &self,
        tenant: Tenant,
        id: RequestId,
        held_bytes: usize,
        make: impl FnOnce() -> Option<String> + Send + 'static,
    ) {
        let share = u32::try_from(held_bytes).unwrap_or(u32::MAX);
        let share = share.clamp(LEAST_HELD_BYTES, MAX_HELD_BYTES);
        let room = Arc::clone(&self.room).try_acquire_many_owned(share);
        let (Ok(room), Some(over)) = (room, self.begin(id)) else {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(target: "weir::receipts", "too many receipts in progress; skipped");
            return;
        };
        let (store, lifetime_ms) = (self.store.clone(), self.lifetime_ms);
        let places = Arc::clone(&self.places);
        tokio::spawn(async move {
            let place = places.acquire_owned().await;
            if let Ok(Some(text)) = tokio::task::spawn_blocking(make).await {
                let expires_ms = now_ms().saturating_add(lifetime_ms);
                let entry = Entry { key: id.to_string().into(), value: text.into(), expires_ms };
                if entry.weight_bytes() <= KIND.max_bytes {
                    // The writer reports its own failures.
                    let _ = store.put(tenant, KIND, vec![entry], now_ms()).await;
                }
            }
            drop((place, room, over));
        });
    }

    /// Returns the number of receipts that were not made, since those in progress held too much.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Registers a receipt, until the result is dropped.
    fn begin(&self, id: RequestId) -> Option<watch::Sender<()>> {
        let mut under_way = self.under_way.lock().ok()?;
        under_way.retain(|(_, over)| over.has_changed().is_ok());
        let (sender, over) = watch::channel(());
        under_way.push((id, over));
        Some(sender)
    }

    /// Returns the receipt of the request with this ID, if `tenant` sent it.
    pub async fn find(&self, tenant: Tenant, id: &str) -> Result<Bytes, ProxyError> {
        if tenant == Tenant::ANONYMOUS {
            return Err(ProxyError::new(
                ErrorKind::CredentialRequired,
                "Receipts are per caller. Send the same credential (authorization, api-key or \
                 x-api-key) as with the request.",
            ));
        }
        self.wait(|own| own.to_string() == id).await;
        let is_id = !id.is_empty() && id.len() <= MAX_ID_BYTES && id.is_ascii();
        let keys = vec![Bytes::copy_from_slice(if is_id { id.as_bytes() } else { b"-" })];
        let found = self.store.fetch(tenant, KIND, keys, now_ms(), Life::Left).await;
        let mut found = found.map_err(|error| {
            tracing::warn!(target: "weir::store", %error, "the store cannot be read");
            let message = "weir cannot read its store at the moment. Try again shortly.";
            ProxyError::new(ErrorKind::StoreUnavailable, message)
        })?;
        found.pop().flatten().ok_or_else(|| {
            ProxyError::new(
                ErrorKind::NotFound,
                "There is no receipt of this request for this credential: it made no compaction, \
                 ledger.receipts was off, its time is over (ledger.retention_days), or weir had too \
                 many receipts to make at that moment.",
            )
        })
    }

    /// Waits, within bounds, until the receipts in progress are saved.
    pub async fn settle(&self) {
        self.wait(|_| true).await;
    }

    /// Waits, within bounds, for receipts in progress: those of these requests.
    async fn wait(&self, is_awaited: impl Fn(RequestId) -> bool) {
        let waited_for: Vec<_> = match self.under_way.lock() {
            Ok(list) => list.iter().filter(|own| is_awaited(own.0)).cloned().collect(),
            Err(_) => Vec::new(),
        };
        let all_over = async {
            for (_, mut over) in waited_for {
                while over.changed().await.is_ok() {}
            }
        };
        // Those that exceed the time continue.
        let _ = tokio::time::timeout(SETTLE_TIMEOUT, all_over).await;
    }
}

/// Makes a receipt, as JSON. `client` is the body without recalls, if weir has put any into `received`.
fn receipt(
    protocol: Protocol,
    client: Option<&[u8]>,
    received: &[u8],
    sent: &[u8],
) -> Option<String> {
    let received = protocol.read(received, MAX_MESSAGES).ok()?;
    let sent = protocol.read(sent, MAX_MESSAGES).ok()?;
    let client = client.and_then(|body| protocol.read(body, MAX_MESSAGES).ok());
    let client = client.as_ref().map_or(&received.messages, |client| &client.messages);
    let made = Receipt::with_recalls(protocol, client, &received.messages, &sent.messages);
    serde_json::to_string(&made).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const ALICE: Tenant = Tenant([1; 16]);

    fn id(number: u64) -> RequestId {
        RequestId::new(number, [0; 10])
    }

    #[tokio::test]
    async fn receipts_wait_for_their_turn_and_skipped_ones_are_counted() {
        let store = Store::in_memory().expect("there is memory");
        let receipts = Receipts::new(&config::Config::default().ledger, &store);
        let (begin, begun) = mpsc::channel::<()>();
        let begun = Arc::new(Mutex::new(begun));
        let make = |number: u64, held_bytes: usize| {
            let begun = Arc::clone(&begun);
            receipts.make(ALICE, id(number), held_bytes, move || {
                begun.lock().ok()?.recv().ok()?;
                Some(format!("receipt {number}"))
            });
        };
        // All wait until the last one is asked for; one has no room next to the others.
        for number in 0..20 {
            make(number, 1);
        }
        make(20, MAX_HELD_BYTES as usize);
        assert_eq!(receipts.skipped(), 1);
        for _ in 0..20 {
            begin.send(()).expect("they wait");
        }
        for number in 0..20 {
            let found = receipts.find(ALICE, &id(number).to_string()).await;
            assert_eq!(found.ok(), Some(Bytes::from(format!("receipt {number}"))));
        }
        let missing = receipts.find(ALICE, &id(20).to_string()).await;
        let said = missing.err().map(|error| error.message).unwrap_or_default();
        assert!(said.contains("too many receipts"), "{said}");
        // Room is given back, and a large one may have all of it.
        make(21, usize::MAX);
        begin.send(()).expect("it waits");
        assert!(receipts.find(ALICE, &id(21).to_string()).await.is_ok());
        assert_eq!(receipts.skipped(), 1);
    }
}
