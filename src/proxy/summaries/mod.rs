//! Model-written summaries of messages that compactions remove: made in the background ahead of the
//! compaction, kept in the store, and fixed permanently when the compaction is made. No request
//! fails because of one, and none waits unless configured to.
//!
//! Plans look them up. `making` makes them, above the journal, which has a row for each call.

mod breakers;
mod cap;
mod counts;
mod flights;
mod keys;
mod making;
mod records;
mod spans;
mod state;

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use self::keys::SummaryKeys;
pub use self::making::{Sent, Summaries};
pub use self::spans::{PrefetchSpan, Spans, SummaryOutcome, WaitMode};
pub use self::state::SummaryState;
use super::admit::caller::Caller;
use super::upstreams::Upstream;
use crate::config;
use crate::upstream::Target;
use weir_engine::compact::PrefetchSettings;
use weir_engine::wire::Protocol;

/// Requester of a summary: the request it is made for, and how that was sent.
#[derive(Clone)]
pub struct Requester {
    pub caller: Caller,
    /// Headers of the request.
    pub headers: HeaderMap,
    pub target: Target,
    pub protocol: Protocol,
    /// Upstream of the request.
    pub upstream: Arc<Upstream>,
}

/// Maker of summaries, as plans know it.
pub trait Summariser: Send + Sync {
    /// Returns the records for plans to look up.
    fn lookup(&self) -> &Arc<SummaryLookup>;

    /// Prefetches a summary and waits for it, for a limited time; if the request leaves, the work
    /// continues. Nobody gets one at weir's expense until an upstream has accepted the caller's
    /// credential.
    fn wait(self: Arc<Self>, wanted: PrefetchSpan, body: Bytes, by: Arc<Requester>) -> Waiting;
}

/// Wait for a summary.
pub type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Records and ready summaries under one configuration.
pub struct SummaryLookup {
    settings: config::Summaries,
    keys: SummaryKeys,
    state: Arc<SummaryState>,
}

impl SummaryLookup {
    /// Returns the settings for requesting summaries; `None` if none are made.
    pub fn prefetch_settings(&self) -> Option<PrefetchSettings> {
        let config::Summaries { prefetch_permille, summary_tokens, .. } = self.settings;
        self.settings
            .are_written()
            .then_some(PrefetchSettings { mark_permille: prefetch_permille, summary_tokens })
    }

    /// Returns the wait mode of a request that is going to be sent.
    pub fn wait_mode(&self) -> WaitMode {
        match self.settings.mode() {
            config::SummaryMode::Wait => WaitMode::Wait,
            _ => WaitMode::Settle,
        }
    }
}
