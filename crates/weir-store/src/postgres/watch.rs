//! Background task on the server: updates this weir's liveness, and polls for changes of keys and
//! replicated values. A notification triggers a poll at once; otherwise it polls at intervals.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::super::StoreError;
use super::connection::{Connection, Failure};
use super::keys::VERSION;
use super::{Shared, instances, schema};

/// Interval of polls.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Runs until the store's thread ends.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        let ended = watch_connection(&shared).await;
        shared.pool.health().report(Err(&StoreError::from(ended)));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Watches on one connection until it fails; returns the failure.
async fn watch_connection(shared: &Shared) -> Failure {
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
                shared.pool.health().report(Ok(()));
            }
            Ok(_) => {}
            Err(failure) => return failure,
        }
        // A timeout triggers a poll as a notification does.
        let _ = tokio::time::timeout(POLL_INTERVAL, shared.pool.changed().notified()).await;
    }
}

/// Polls for changes, and updates liveness if due; returns whether it did.
async fn poll(
    shared: &Shared,
    connection: &Connection,
    beat_at: &mut Option<Instant>,
) -> Result<bool, Failure> {
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
