//! Breakers of summaries: one for each summariser, and one for each caller's content, whose failures
//! pause summaries for that caller only.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::proxy::cache::Cache;
use crate::upstream::breaker::{Breaker, Permit};
use weir_store::Tenant;

/// Failures in a row that open a breaker.
const MOST_FAILURES: u32 = 3;
/// Maximum number of callers with their own breaker; past that the least used are reset.
const MOST_BREAKERS: u64 = 10_000;

/// Breakers of all callers, each by its pause: a changed pause begins with closed breakers.
pub(super) struct AllBreakers {
    /// By the summariser's name: one for each tenant if callers' own credentials are sent, else one
    /// for all.
    summarisers: Cache<(Tenant, Summariser), Arc<Breaker>>,
    contents: Cache<(Tenant, Duration), Arc<Breaker>>,
}

/// Name of a summariser, and the pause after its failures.
type Summariser = (Arc<str>, Duration);

impl AllBreakers {
    /// Creates an empty set.
    pub(super) fn new() -> Self {
        Self {
            summarisers: Cache::builder(MOST_BREAKERS).time_to_idle(idle).build(),
            contents: Cache::builder(MOST_BREAKERS).time_to_idle(idle).build(),
        }
    }

    /// Returns the breakers of a call to `summariser` on behalf of `tenant`.
    pub(super) fn find(
        &self,
        summariser: (Tenant, Arc<str>),
        tenant: Tenant,
        pause: Duration,
    ) -> Breakers {
        let new = || Arc::new(Breaker::new(MOST_FAILURES, pause));
        let (whose, name) = summariser;
        Breakers {
            summariser: self.summarisers.get_with(&(whose, (name, pause)), new),
            content: self.contents.get_with(&(tenant, pause), new),
        }
    }
}

/// Returns how long a breaker is kept that nobody uses: several pauses. It must outlive its pause, or the
/// pause would end early.
fn idle(breaker: &Arc<Breaker>) -> Duration {
    breaker.pause().saturating_mul(4)
}

/// Breakers that must be closed for a call on behalf of one caller.
#[derive(Debug, Clone)]
pub(super) struct Breakers {
    /// For failures of the summariser.
    pub summariser: Arc<Breaker>,
    /// For failures caused by this caller's content.
    pub content: Arc<Breaker>,
}

/// Permits from both breakers.
pub(super) struct Permits<'a> {
    pub summariser: Permit<'a>,
    pub content: Permit<'a>,
}

impl Breakers {
    /// Returns permits for a call at `now`; `None` while either breaker is open.
    pub(super) fn permits(&self, now: Instant) -> Option<Permits<'_>> {
        let summariser = self.summariser.permit(now)?;
        let Some(content) = self.content.permit(now) else {
            summariser.give_back();
            return None;
        };
        Some(Permits { summariser, content })
    }

    /// Whether calls at `now` are blocked.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.summariser.is_open(now) || self.content.is_open(now)
    }
}
