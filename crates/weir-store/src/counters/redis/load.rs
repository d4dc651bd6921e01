//! Loading of counters from the journal, one loader at a time over all instances.
//!
//! The counter is created first, closed, with a part for every request under way: those settle into
//! it themselves, and the journal's totals leave them out. No request holds anything in it until it
//! is loaded. If a request gets its part while the journal is read, the journal is read again.
//!
//! A request that is open in the journal counts as under way even if no instance has registered it.
//! Its instance may be slow, or was killed before Redis was emptied. It gets a lease with the hold
//! of its intent, which expires like any other.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::super::budgets::{Applied, Spent};
use super::super::super::ledger::{MAX_FIGURE, RequestId};
use super::super::super::{Store, StoreError, Stored};
use super::super::reservation::{Owner, read_past};
use super::lease::{bucket_of, name_of, read_id, scopes};
use super::scripts::{BEGIN, COVER, FINISH, SEEN};
use super::{BATCH, RedisCounters, is_stale, ms};
use crate::budget::Measure;
use crate::secret::random_name;

/// Time between checks of a counter that another instance loads.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Maximum time a request waits for a counter to load, in addition to the registration period.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of journal reads because requests arrived in between.
const MAX_ROUNDS: usize = 100;

/// A part of a counter for a request that holds nothing in it.
pub(crate) struct Uncovered {
    pub id: RequestId,
    pub begun_ms: u64,
    pub name: String,
    /// -1 while it runs.
    pub written_ago_ms: i64,
}

impl RedisCounters {
    /// Loads the counter of `applied`, or waits until another has. Continues if its caller leaves,
    /// since others wait for it.
    pub(crate) async fn load(self: &Arc<Self>, applied: &Applied, now_ms: u64) -> Stored<()> {
        let (own, applied) = (Arc::clone(self), applied.clone());
        let task = tokio::spawn(async move { own.begin(&applied, now_ms).await });
        task.await.map_err(|_| StoreError::Closed)?
    }

    async fn begin(&self, applied: &Applied, now_ms: u64) -> Stored<()> {
        let _guard = self.loading.lock().await;
        let (name, token) = (name_of(applied), random_name()?);
        let first_ms = applied.budget.id.window.span(&self.zone, now_ms).first_ms;
        let until = Instant::now() + self.options.grace + PATIENCE;
        while Instant::now() < until {
            let (generation, reply) = self
                .call_with_generation(&BEGIN, |_| {
                    json!({
                        "key": name,
                        "scope": applied.scope.to_string(),
                        "token": token,
                        "first": first_ms,
                        "lock_ms": ms(self.options.lock),
                        "grace_ms": ms(self.options.grace),
                    })
                })
                .await?;
            match reply.first().map(String::as_str) {
                Some("loaded") => return Ok(()),
                Some("begun") => {
                    let open = reply[1..].chunks_exact(2).filter_map(|pair| {
                        let (id, begun_ms) = (read_id(&pair[0])?, pair[1].parse().ok()?);
                        Some(Uncovered { id, begun_ms, name: name.clone(), written_ago_ms: -1 })
                    });
                    if self.cover(&generation, open.collect()).await?
                        && self.fill(applied, now_ms, &name, &token).await?
                    {
                        return Ok(());
                    }
                }
                Some("early") => {
                    let left = reply.get(1).and_then(|ms| ms.parse().ok()).unwrap_or(0);
                    sleep(Duration::from_millis(left).min(self.options.grace)).await;
                }
                _ => sleep(LOOK_AGAIN).await,
            }
        }
        Err(StoreError::Busy)
    }

    /// Fills a new counter from the journal; `false` if another loader has taken over.
    async fn fill(&self, applied: &Applied, now_ms: u64, name: &str, token: &str) -> Stored<bool> {
        for _ in 0..MAX_ROUNDS {
            let seen = self.call(&SEEN, |_| json!({ "key": name, "token": token })).await?;
            if seen.first().is_none_or(|word| word != "seen") {
                return Ok(false);
            }
            let open: Vec<RequestId> = seen[1..].iter().filter_map(|id| read_id(id)).collect();
            let count = open.len();
            let past = journal_state(&self.store, applied, &self.zone, now_ms, open).await;
            let nothing = Default::default();
            let (spent, underway) = past.as_ref().unwrap_or(&nothing);
            let reply = self
                .call(&FINISH, |_| {
                    json!({
                        "key": name,
                        "token": token,
                        "seen": count,
                        "first": applied.budget.id.window.span(&self.zone, now_ms).first_ms,
                        "spent": spent,
                        "underway": underway,
                        "lease_ms": 0,
                        "is_given_up": past.is_err(),
                    })
                })
                .await?;
            past?;
            match reply.first().map(String::as_str) {
                Some("loaded") => return Ok(true),
                Some("more") => {}
                _ => return Ok(false),
            }
        }
        Err(StoreError::Busy)
    }

    /// Adds parts without a hold to counters; `false` if the generation of the calls has ended.
    pub(crate) async fn cover(&self, generation: &str, uncovered: Vec<Uncovered>) -> Stored<bool> {
        let part = |one: &Uncovered| {
            let bucket = bucket_of(&one.name, &self.zone, one.begun_ms)?;
            Some(json!({
                "id": one.id.to_string(),
                "key": one.name,
                "bucket": bucket,
                "written_ago_ms": one.written_ago_ms,
            }))
        };
        let parts: Vec<Value> = uncovered.iter().filter_map(part).collect();
        for parts in parts.chunks(BATCH) {
            let reply = self.call_in(generation, &COVER, |_| json!({ "parts": parts })).await?;
            if is_stale(&reply) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the journal data of a counter's window in the format of `finish.lua`: totals and open
/// requests.
async fn journal_state(
    store: &Store,
    applied: &Applied,
    zone: &jiff::tz::TimeZone,
    now_ms: u64,
    open: Vec<RequestId>,
) -> Stored<(Vec<Value>, Vec<Value>)> {
    let id = &applied.budget.id;
    let span = id.window.span(zone, now_ms);
    let Spent { ended, open } = read_past(store, applied, &span, zone, open).await?;
    let spent = ended
        .into_iter()
        .map(|(bucket_ms, spent)| json!({ "bucket": bucket_ms, "amount": spent.min(MAX_FIGURE) }));
    let scope = applied.scope.to_string();
    let underway = open.into_iter().filter_map(|intent| {
        let scopes = scopes(&Owner::of(&intent));
        let held = match id.measure {
            Measure::NanoUsd => intent.held_nano_usd,
            Measure::Tokens => intent.held_tokens,
        };
        scopes.contains(&scope).then(|| {
            json!({
                "id": intent.id.to_string(),
                "begun_ms": intent.begun_ms,
                "scopes": scopes,
                "bucket": id.window.span(zone, intent.begun_ms).bucket_ms,
                "held": held.unwrap_or(0).min(MAX_FIGURE),
            })
        })
    });
    Ok((spent.collect(), underway.collect()))
}
