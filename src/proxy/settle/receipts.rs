//! Receipts of compactions, kept for their caller by the ID of the request that made one. Making and saving
//! them never delays or fails a request.

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
/// Maximum number of receipts being made at once, and of messages of one.
const MAX_UNDER_WAY: usize = 4;
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
    room: Arc<Semaphore>,
    /// Receipts being made; each receiver's sender is dropped at the end.
    under_way: Mutex<Vec<watch::Receiver<()>>>,
}

impl Receipts {
    /// Creates the receipts of a store, kept as long as the rows of the ledger.
    pub fn new(ledger: &config::Ledger, store: &Store) -> Self {
        Self {
            store: store.clone(),
            lifetime_ms: ledger.retention_days.saturating_mul(DAY_MS),
            room: Arc::new(Semaphore::new(MAX_UNDER_WAY)),
            under_way: Mutex::default(),
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
        let (Ok(room), Some(over)) = (Arc::clone(&self.room).try_acquire_owned(), self.begin())
        else {
            tracing::debug!(target: "weir::receipts", "too many receipts in progress; skipped");
            return;
        };
        let (store, lifetime_ms) = (self.store.clone(), self.lifetime_ms);
        let (protocol, received) = (job.protocol, job.body.clone());
        let client = job.without_recall.as_ref().map(|plain| plain.body.clone());
        tokio::spawn(async move {
            let made = tokio::task::spawn_blocking(move || {
                receipt(protocol, client.as_deref(), &received, &sent)
            });
            if let Ok(Some(text)) = made.await {
                let expires_ms = now_ms().saturating_add(lifetime_ms);
                let entry = Entry { key: id.to_string().into(), value: text.into(), expires_ms };
                if entry.weight_bytes() <= KIND.max_bytes {
                    // The writer reports its own failures.
                    let _ = store.put(tenant, KIND, vec![entry], now_ms()).await;
                }
            }
            drop((room, over));
        });
    }

    /// Registers a receipt, until the result is dropped.
    fn begin(&self) -> Option<watch::Sender<()>> {
        let mut under_way = self.under_way.lock().ok()?;
        under_way.retain(|over| over.has_changed().is_ok());
        let (sender, over) = watch::channel(());
        under_way.push(over);
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
        self.settle().await;
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
                 ledger.receipts was off, or its time is over (ledger.retention_days).",
            )
        })
    }

    /// Waits, within bounds, until the receipts in progress are saved.
    pub async fn settle(&self) {
        let waited_for: Vec<_> =
            self.under_way.lock().map_or_else(|_| Vec::new(), |list| list.clone());
        let all_over = async {
            for mut over in waited_for {
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
