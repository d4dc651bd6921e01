//! What a weir does on the server again and again while it serves: it says that it lives, and asks
//! whether keys or values at hand were changed. Word of a change makes it ask at once; without one it asks all the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::super::StoreError;
use super::connection::{Connection, Failure};
use super::keys::VERSION;
use super::{Shared, instances, schema};

/// How often it is asked what was changed.
const ASK_INTERVAL: Duration = Duration::from_millis(300);

/// Watches until the store's thread ends.
pub async fn watch(shared: Arc<Shared>) {
    loop {
        let ended = watch_once(&shared).await;
        shared.pool.health().report(Err(&StoreError::from(ended)));
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

/// Watches by one connection until that fails; why it did.
async fn watch_once(shared: &Shared) -> Failure {
    let connection = match shared.pool.connect().await {
        Ok(connection) => connection,
        Err(failure) => return failure,
    };
    // Where nothing can be listened for, as behind some poolers, asking is all there is.
    if let Err(failure) = connection.batch("LISTEN weir_keys").await
        && !failure.is_refusal()
    {
        return failure;
    }
    let mut beaten: Option<Instant> = None;
    loop {
        match look(shared, &connection, &mut beaten).await {
            // What has been written can be, and where nothing is, reading is all there is.
            Ok(has_written) if has_written || !shared.is_registered.load(Ordering::Relaxed) => {
                shared.pool.health().report(Ok(()));
            }
            Ok(_) => {}
            Err(failure) => return failure,
        }
        // An interval that has passed is as good as word of a change.
        let _ = tokio::time::timeout(ASK_INTERVAL, shared.pool.changed().notified()).await;
    }
}

/// Asks what was changed, and says that this weir lives where that is due; whether it has.
async fn look(
    shared: &Shared,
    connection: &Connection,
    beaten: &mut Option<Instant>,
) -> Result<bool, Failure> {
    let asked = Instant::now();
    let version = schema::number(connection, VERSION).await?;
    shared.keys.note(version.unwrap_or(0), asked);
    shared.mirrors.refresh(connection).await?;
    let is_due = beaten.is_none_or(|beaten| beaten.elapsed() >= instances::BEAT_INTERVAL);
    let is_written = is_due && shared.is_registered.load(Ordering::Relaxed);
    if is_written {
        instances::beat(connection, &shared.instance).await?;
        *beaten = Some(asked);
    }
    Ok(is_written)
}
