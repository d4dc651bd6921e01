//! State of summaries that a reload keeps: records, work in progress, breakers, holds and counters.
//! Decides nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::breakers::AllBreakers;
use super::cap::Cap;
use super::counts::Counts;
use super::flights::Flights;
use super::records::Records;
use crate::config;
use crate::proxy::cache::Cache;
use crate::proxy::upstreams::refused_models::RefusedModels;
use weir_store::ledger::DAY_MS;
use weir_store::{Store, Tenant};

/// Maximum number of callers remembered to have an accepted credential, and for how long.
const MOST_PROVED: u64 = 100_000;
const PROVED_FOR: Duration = Duration::from_millis(DAY_MS);
/// Maximum memory of summaries in progress or waiting, in KiB.
const ROOM_KIB: usize = 128 << 10;

/// State that all configurations' summaries share.
pub struct SummaryState {
    pub(super) records: Records,
    pub(super) flights: Arc<Flights>,
    pub(super) breakers: AllBreakers,
    pub(super) cap: Cap,
    /// Callers with a request accepted by the upstream, if summaries are paid with weir's key.
    pub(super) proved: Cache<Tenant, ()>,
    /// Memory for summaries in progress or waiting, in KiB.
    pub(super) room: Arc<Semaphore>,
    pub(super) counts: Counts,
    /// Models that refuse `max_tokens`.
    pub(super) renamed_outputs: RefusedModels,
}

impl SummaryState {
    /// Creates the state for the configuration in force at the start.
    pub fn new(settings: &config::Summaries, store: &Store) -> Self {
        Self {
            records: Records::new(settings, store.clone()),
            flights: Flights::new(settings.max_concurrent),
            breakers: AllBreakers::new(),
            cap: Cap::default(),
            proved: Cache::builder(MOST_PROVED).time_to_idle(|()| PROVED_FOR).build(),
            room: Arc::new(Semaphore::new(ROOM_KIB)),
            counts: Counts::default(),
            renamed_outputs: RefusedModels::default(),
        }
    }
}
