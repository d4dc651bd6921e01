//! Local state of this process's requests: those under way, and ended ones not yet settled in
//! Redis. It suffices to rebuild the state of an emptied Redis.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::super::budgets::Applied;
use super::super::super::ledger::{MAX_FIGURE, RequestId};
use super::super::reservation::{Owner, Spending};
use super::queue::Queue;
use crate::budget::{Scope, ScopeKind, Window};

/// Maximum number of settlements waiting for an unreachable Redis. The journal has them too: after
/// this instance ends, a sweep takes dropped ones from there.
const MAX_ENDED: usize = 100_000;

/// A request under way.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub begun_ms: u64,
    pub owner: Owner,
    /// Holds: counter name, bucket and amount.
    pub parts: Vec<(String, u64, u64)>,
    /// The generation that knows it.
    pub known_in: Option<Arc<str>>,
    /// `None` if it never got a hold.
    pub grant: Option<Grant>,
    /// When the journal recorded it.
    pub written: Option<Instant>,
}

/// Time and generation of a request's hold.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub generation: Arc<str>,
    /// Time just before the call.
    pub called_at: Instant,
}

impl Lease {
    /// Creates the lease of a request without a known hold.
    pub(crate) fn empty(begun_ms: u64, owner: Owner) -> Self {
        Self { begun_ms, owner, parts: Vec::new(), known_in: None, grant: None, written: None }
    }

    /// Formats it for `register.lua`; `written_ago_ms` is -1 while the request runs.
    pub(crate) fn json(&self, id: RequestId, written_ago_ms: i64) -> Value {
        let parts = self.parts.iter().map(|(key, bucket, held)| {
            json!({ "key": key, "bucket": bucket, "held": held.min(&MAX_FIGURE) })
        });
        json!({
            "id": id.to_string(),
            "begun_ms": self.begun_ms,
            "scopes": scopes(&self.owner),
            "written_ago_ms": written_ago_ms,
            "parts": parts.collect::<Vec<_>>(),
        })
    }
}

/// Returns the names of an owner's scopes.
pub(super) fn scopes(owner: &Owner) -> Vec<String> {
    let scopes = owner.scopes();
    let named = |kind: ScopeKind| {
        let name = scopes.name(kind)?.into_owned();
        Some(Scope { kind, name }.to_string())
    };
    ScopeKind::ALL.into_iter().filter_map(named).collect()
}

/// An ended request.
#[derive(Debug, Clone)]
pub(super) struct EndedLease {
    pub lease: Lease,
    pub spending: Spending,
    pub at: Instant,
}

impl EndedLease {
    /// Returns the minimum time since the journal recorded it.
    pub(super) fn written_ago_ms(&self) -> i64 {
        let written = self.lease.written.unwrap_or(self.at);
        i64::try_from(written.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// Local state of this process.
#[derive(Default)]
pub(super) struct State {
    pub generation: Option<Arc<str>>,
    pub leases: HashMap<RequestId, Lease>,
    pub ended: HashMap<RequestId, EndedLease>,
    pub queue: Queue,
}

impl State {
    /// Moves an ended request from those under way to those to be settled.
    pub(super) fn end(&mut self, id: RequestId, spending: Spending) {
        if let Some(lease) = self.leases.remove(&id) {
            self.note_ended(id, lease, spending);
        }
    }

    pub(super) fn note_ended(&mut self, id: RequestId, lease: Lease, spending: Spending) {
        if self.ended.len() >= MAX_ENDED {
            tracing::warn!(
                target: "weir::redis",
                id = %id,
                "too many settlements wait for Redis; this one is left to the journal"
            );
            return;
        }
        self.ended.insert(id, EndedLease { lease, spending, at: Instant::now() });
    }
}

/// Returns a counter's name. Measure and window come first, for scripts and [`bucket_of`].
pub(super) fn name_of(applied: &Applied) -> String {
    let id = &applied.budget.id;
    format!("{}/{}/{}\u{1f}{}", id.measure.word(), id.window, id.scope, applied.scope)
}

/// Returns the bucket of a request with this start time in the named counter.
pub(super) fn bucket_of(name: &str, zone: &TimeZone, begun_ms: u64) -> Option<u64> {
    let window = name.split('/').nth(1)?;
    Some(Window::parse(window).ok()?.span(zone, begun_ms).bucket_ms)
}

/// Parses a request id as returned by scripts.
pub(super) fn read_id(text: &str) -> Option<RequestId> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| RequestId(number.to_be_bytes()))
}
