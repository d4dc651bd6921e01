//! What this process knows of its requests under way and of those that have ended but are not settled
//! in Redis yet. It is enough to tell a Redis that was emptied all of it again.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::super::budgets::Applied;
use super::super::super::ledger::{MAX_FIGURE, RequestId};
use super::super::{Owner, Spending};
use super::queue::Queue;
use crate::budget::{Scope, ScopeKind, Window};

/// The most settlements that wait for a Redis that is away. The journal has them as well, and who
/// sweeps up after this instance takes from there what is dropped here.
const MAX_ENDED: usize = 100_000;

/// A request under way.
#[derive(Debug, Clone)]
pub struct Lease {
    pub begun_ms: u64,
    pub owner: Owner,
    /// What it holds: the count's name, its bucket and how much.
    pub parts: Vec<(String, u64, u64)>,
    /// The generation that knows it.
    pub known_in: Option<Arc<str>>,
    /// `None` if it was never given anything.
    pub given: Option<Given>,
    /// Since when the journal has had it.
    pub written: Option<Instant>,
}

/// When and in which generation a request was given what it holds.
#[derive(Debug, Clone)]
pub struct Given {
    pub generation: Arc<str>,
    /// The moment before it was asked for.
    pub asked: Instant,
}

impl Lease {
    /// Of a request that holds nothing, as far as this process knows.
    pub fn empty(begun_ms: u64, owner: Owner) -> Self {
        Self { begun_ms, owner, parts: Vec::new(), known_in: None, given: None, written: None }
    }

    /// As `register.lua` wants it; `written_ago_ms` is -1 while it goes on.
    pub fn told(&self, id: RequestId, written_ago_ms: i64) -> Value {
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

/// The names of an owner's scopes.
pub fn scopes(owner: &Owner) -> Vec<String> {
    let scopes = owner.scopes();
    let named = |kind: ScopeKind| {
        let name = scopes.name(kind)?.to_owned();
        Some(Scope { kind, name }.to_string())
    };
    ScopeKind::ALL.into_iter().filter_map(named).collect()
}

/// A request that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    pub lease: Lease,
    pub spending: Spending,
    pub at: Instant,
}

impl Ended {
    /// How long ago the journal had it at the latest.
    pub fn written_ago_ms(&self) -> i64 {
        let written = self.lease.written.unwrap_or(self.at);
        i64::try_from(written.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// What this process remembers.
#[derive(Default)]
pub struct State {
    pub generation: Option<Arc<str>>,
    pub leases: HashMap<RequestId, Lease>,
    pub ended: HashMap<RequestId, Ended>,
    pub queue: Queue,
}

impl State {
    /// Takes a request that has ended from those under way to those that are to be settled.
    pub fn end(&mut self, id: RequestId, spending: Spending) {
        if let Some(lease) = self.leases.remove(&id) {
            self.note_ended(id, lease, spending);
        }
    }

    pub fn note_ended(&mut self, id: RequestId, lease: Lease, spending: Spending) {
        if self.ended.len() >= MAX_ENDED {
            tracing::warn!(
                target: "weir::redis",
                id = %id,
                "settlements wait for Redis, and there are too many: this one is left to the journal"
            );
            return;
        }
        self.ended.insert(id, Ended { lease, spending, at: Instant::now() });
    }
}

/// What a count is called: measure and window stand first, so that scripts and [`bucket_of`] find
/// them.
pub fn name_of(applied: &Applied) -> String {
    let id = &applied.budget.id;
    format!("{}/{}/{}\u{1f}{}", id.measure.word(), id.window, id.scope, applied.scope)
}

/// The bucket that a request of this moment counts in, of the count of this name.
pub fn bucket_of(name: &str, zone: &TimeZone, begun_ms: u64) -> Option<u64> {
    let window = name.split('/').nth(1)?;
    Some(Window::parse(window).ok()?.span(zone, begun_ms).bucket_ms)
}

/// A request's id as scripts tell it.
pub fn read_id(text: &str) -> Option<RequestId> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| RequestId(number.to_be_bytes()))
}
