//! Lease renewer: the background task of an instance. It registers requests that Redis does not
//! know, renews their leases, retries settlements, and settles requests whose leases have expired.

use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::super::super::ledger::{RequestEnd, RequestId};
use super::super::super::{StoreError, Stored};
use super::super::Spending;
use super::lease::{Lease, read_id};
use super::load::Uncovered;
use super::scripts::{LOST, REGISTER, RENEW, SWEEP};
use super::{BATCH, RedisCounters, ms};

/// Runs the task while the counters are in use.
pub(super) async fn run(
    counts: Weak<RedisCounters>,
    wakeup: Arc<Notify>,
    tick: std::time::Duration,
) {
    let mut ticks = interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renewed = Instant::now();
    loop {
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = wakeup.notified() => false,
        };
        let Some(counts) = counts.upgrade() else { return };
        // Failures are logged by the connection and retried at the next tick.
        let _ = counts.flush().await;
        if is_tick {
            let is_due = renewed.elapsed() >= counts.options.lease / 3;
            if counts.tick(is_due).await.is_ok() && is_due {
                renewed = Instant::now();
            }
        }
    }
}

impl RedisCounters {
    /// Sends pending settlements.
    async fn flush(&self) -> Stored<()> {
        let ids: Vec<RequestId> = self.state.lock().ended.keys().copied().collect();
        for id in ids {
            self.finish(id).await?;
        }
        Ok(())
    }

    async fn tick(&self, is_due: bool) -> Stored<()> {
        self.refresh_generation().await?;
        if is_due {
            self.renew().await?;
        }
        self.register_unknown().await?;
        self.sweep().await
    }

    /// Registers the requests under way that the generation does not know.
    pub(crate) async fn register_unknown(&self) -> Stored<()> {
        let _guard = self.registering.lock().await;
        let (generation, unknown) = {
            let state = self.state.lock();
            let Some(generation) = state.generation.clone() else { return Ok(()) };
            let is_unknown = |lease: &Lease| lease.known_in.as_ref() != Some(&generation);
            let unknown = state.leases.iter().filter(|(_, lease)| is_unknown(lease));
            let unknown: Vec<_> = unknown.map(|(id, lease)| (*id, lease.clone())).collect();
            (generation, unknown)
        };
        for leases in unknown.chunks(BATCH) {
            let batch: Vec<_> = leases.iter().map(|(id, lease)| (*id, lease, -1)).collect();
            self.register(&generation, &batch).await?;
        }
        Ok(())
    }

    /// Registers requests, with the time since they ended. Requires the lock `registering`. If the
    /// generation has ended, they are registered in the next.
    pub(crate) async fn register(
        &self,
        generation: &Arc<str>,
        leases: &[(RequestId, &Lease, i64)],
    ) -> Stored<()> {
        let batch: Vec<Value> = leases
            .iter()
            .map(|(id, lease, written_ago_ms)| lease.json(*id, *written_ago_ms))
            .collect();
        let arguments = |_: &str| json!({ "lease_ms": ms(self.options.lease), "leases": batch });
        let reply = self.call_in(generation, &REGISTER, arguments).await?;
        if reply.first().is_none_or(|word| word != "done") {
            return Err(StoreError::Busy);
        }
        let mut rest = reply[1..].iter();
        let mut uncovered = Vec::new();
        while let (Some(place), Some(count)) = (rest.next(), rest.next()) {
            let place = place.parse::<usize>().ok().and_then(|place| place.checked_sub(1));
            let names: Vec<&String> = rest.by_ref().take(count.parse().unwrap_or(0)).collect();
            if let Some((id, lease, written_ago_ms)) = place.and_then(|place| leases.get(place)) {
                uncovered.extend(names.into_iter().map(|name| Uncovered {
                    id: *id,
                    begun_ms: lease.begun_ms,
                    name: name.clone(),
                    written_ago_ms: *written_ago_ms,
                }));
            }
        }
        if !self.cover(generation, uncovered).await? {
            return Err(StoreError::Busy);
        }
        let mut state = self.state.lock();
        for (id, ..) in leases {
            if let Some(lease) = state.leases.get_mut(id) {
                lease.known_in = Some(Arc::clone(generation));
            }
            if let Some(ended) = state.ended.get_mut(id) {
                ended.lease.known_in = Some(Arc::clone(generation));
            }
        }
        Ok(())
    }

    /// Renews the leases of all requests under way. Registers those that Redis has lost.
    async fn renew(&self) -> Stored<()> {
        let ids: Vec<RequestId> = {
            let state = self.state.lock();
            let known = state.leases.iter().filter(|(_, lease)| lease.known_in.is_some());
            // Ended requests that are not settled yet are renewed as well: a sweep by another would
            // be no faster.
            known.map(|(id, _)| *id).chain(state.ended.keys().copied()).collect()
        };
        for ids in ids.chunks(BATCH) {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let arguments = |_: &str| json!({ "lease_ms": ms(self.options.lease), "ids": ids });
            let reply = self.call(&RENEW, arguments).await?;
            if self.mark_unknown(&reply[1..]) {
                tracing::warn!(
                    target: "weir::budget",
                    "Redis has lost data, so budgets are counted again; configure it to evict no \
                     keys (maxmemory-policy noeviction)"
                );
                self.call(&LOST, |_| json!({})).await?;
            }
        }
        Ok(())
    }

    /// Returns whether Redis is still in this generation and knows this live request.
    pub(crate) async fn is_held(&self, id: RequestId, generation: &str) -> Stored<bool> {
        let arguments =
            |_: &str| json!({ "lease_ms": ms(self.options.lease), "ids": [id.to_string()] });
        let reply = self.call_in(generation, &RENEW, arguments).await?;
        Ok(reply == ["done"])
    }

    /// Marks requests that Redis does not know. Returns whether it lost any that is still under
    /// way: its hold remains in the counters and could never be released.
    fn mark_unknown(&self, reply: &[String]) -> bool {
        let (mut is_lost, mut has_lost) = (false, false);
        let mut state = self.state.lock();
        for word in reply {
            if word == "lost" {
                is_lost = true;
                continue;
            }
            // A request that ended meanwhile was settled, not lost.
            if let Some(lease) = read_id(word).and_then(|id| state.leases.get_mut(&id)) {
                lease.known_in = None;
                has_lost |= is_lost;
            }
            is_lost = false;
        }
        has_lost
    }

    /// Ends requests with expired leases according to the journal: by its row; left open if the
    /// journal has it open; released if the journal does not know it.
    async fn sweep(&self) -> Stored<()> {
        let again_ms = ms(self.options.lease / 3).max(1);
        let arguments = |_: &str| json!({ "again_ms": again_ms, "most": BATCH });
        let reply = self.call(&SWEEP, arguments).await?;
        let ids: Vec<RequestId> = {
            let state = self.state.lock();
            let expired = reply.iter().skip(1).filter_map(|id| read_id(id));
            // This instance was delayed and continues.
            let is_own =
                |id: &RequestId| state.leases.contains_key(id) || state.ended.contains_key(id);
            expired.filter(|id| !is_own(id)).collect()
        };
        if ids.is_empty() {
            return Ok(());
        }
        let ends = self.store.request_ends(ids.clone()).await?;
        for (id, end) in ids.into_iter().zip(ends) {
            match end {
                RequestEnd::Open => {}
                RequestEnd::Unknown => self.settle_swept(id, Spending::default(), false).await?,
                RequestEnd::Ended { nano_usd, tokens } => {
                    self.settle_swept(id, Spending { nano_usd, tokens }, true).await?;
                }
            }
        }
        self.state.lock().queue.wake_next();
        Ok(())
    }
}
