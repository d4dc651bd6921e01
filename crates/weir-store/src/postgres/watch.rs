//! Background task on the server: updates this weir's liveness, and polls for changes of keys and
//! replicated values. A notification triggers a poll at once; otherwise it polls at intervals.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::{StoreError, Stored};
use super::connection::{Connection, Served, ServerFailure};
use super::{Postgres, ServerState, instances, schema};
use crate::backend::Internal;

/// Name of the change counter of keys and budgets.
pub(super) const VERSION: &str = "keys_version";
/// How long cached keys are trusted after the server last confirmed the change counter.
const TRUSTED: Duration = Duration::from_secs(1);

/// The change counter as known to this weir.
#[derive(Default)]
pub(super) struct ChangeCount(Mutex<Option<(u64, Instant)>>);

impl ChangeCount {
    /// Records the counter that the server returned to a query sent at `asked`. Older answers than
    /// the known one are ignored.
    pub(super) fn note(&self, version: u64, asked_at: Instant) {
        let mut known = self.0.lock();
        if known.is_none_or(|(_, before)| before <= asked_at) {
            *known = Some((version, asked_at));
        }
    }

    /// Returns the change counter; `None` if it is too old to trust.
    fn version(&self) -> Option<u64> {
        let known = *self.0.lock();
        known.filter(|(_, asked_at)| asked_at.elapsed() < TRUSTED).map(|(version, _)| version)
    }
}

#[async_trait]
impl Internal for Postgres {
    fn is_current(&self, count: u64) -> bool {
        self.0.shared.keys.version() == Some(count)
    }

    fn watch_changes(&self) {
        self.watch();
    }

    async fn hold_leader_lease(&self) -> Stored<bool> {
        self.renew_leader_lease().await
    }
}

/// Interval of polls.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Runs until the store's thread ends.
pub(super) async fn watch(shared: Arc<ServerState>) {
    loop {
        let ended = watch_connection(&shared).await;
        shared.pool.health.report(Err(&StoreError::from(ended)));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Watches on one connection until it fails; returns the failure.
async fn watch_connection(shared: &ServerState) -> ServerFailure {
    let connection = match shared.pool.connect().await {
        Ok(connection) => connection,
        Err(failure) => return failure,
    };
    // If `LISTEN` is unavailable, as behind some poolers, polling still works.
    if let Err(failure) = connection.batch("LISTEN weir_keys").await
        && !failure.is_refusal()
    {
        return failure;
    }
    let mut beat_at: Option<Instant> = None;
    loop {
        match poll(shared, &connection, &mut beat_at).await {
            // A successful write proves that writes work; without any writes, reads suffice.
            Ok(has_written) if has_written || !shared.is_registered.load(Ordering::Relaxed) => {
                shared.pool.health.report(Ok(()));
            }
            Ok(_) => {}
            Err(failure) => return failure,
        }
        // A timeout triggers a poll as a notification does.
        let _ = tokio::time::timeout(POLL_INTERVAL, shared.pool.changed.notified()).await;
    }
}

/// Polls for changes, and updates liveness if due; returns whether it did.
async fn poll(
    shared: &ServerState,
    connection: &Connection,
    beat_at: &mut Option<Instant>,
) -> Served<bool> {
    let asked_at = Instant::now();
    let version = schema::number(connection, VERSION).await?;
    shared.keys.note(version.unwrap_or(0), asked_at);
    shared.replicas.refresh(connection).await?;
    let is_due = beat_at.is_none_or(|beat_at| beat_at.elapsed() >= instances::BEAT_INTERVAL);
    let is_written = is_due && shared.is_registered.load(Ordering::Relaxed);
    if is_written {
        instances::beat(connection, &shared.instance).await?;
        *beat_at = Some(asked_at);
    }
    Ok(is_written)
}
