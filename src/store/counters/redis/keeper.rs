//! What an instance does in the background for as long as it counts: it registers requests that
//! Redis does not know, prolongs their lives, settles what could not be settled, and looks after
//! requests that nobody prolongs.

use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::super::super::StoreError;
use super::super::super::ledger::{RequestEnd, RequestId};
use super::super::Spending;
use super::lease::{Lease, read_id};
use super::load::Uncovered;
use super::scripts::{LOST, REGISTER, RENEW, SWEEP};
use super::{BATCH, InRedis, ms};

/// Keeps the counts for as long as somebody uses them.
pub async fn keep(counts: Weak<InRedis>, bell: Arc<Notify>, tick: std::time::Duration) {
    let mut ticks = interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renewed = Instant::now();
    loop {
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = bell.notified() => false,
        };
        let Some(counts) = counts.upgrade() else { return };
        // What fails is tried again with the next tick; the way there has told of it.
        let _ = counts.flush().await;
        if is_tick {
            let is_due = renewed.elapsed() >= counts.options.lease / 3;
            if counts.tend(is_due).await.is_ok() && is_due {
                renewed = Instant::now();
            }
        }
    }
}

impl InRedis {
    /// Settles what is left to be settled.
    async fn flush(&self) -> Result<(), StoreError> {
        let ids: Vec<RequestId> = self.state().ended.keys().copied().collect();
        for id in ids {
            self.finish(id).await?;
        }
        Ok(())
    }

    async fn tend(&self, is_due: bool) -> Result<(), StoreError> {
        self.look_for_generation().await?;
        if is_due {
            self.renew().await?;
        }
        self.register_unknown().await?;
        self.sweep().await
    }

    /// Registers the requests under way that the generation does not know.
    pub async fn register_unknown(&self) -> Result<(), StoreError> {
        let _alone = self.registering.lock().await;
        let (generation, unknown) = {
            let state = self.state();
            let Some(generation) = state.generation.clone() else { return Ok(()) };
            let is_unknown = |lease: &Lease| lease.known_in.as_ref() != Some(&generation);
            let unknown = state.leases.iter().filter(|(_, lease)| is_unknown(lease));
            let unknown: Vec<_> = unknown.map(|(id, lease)| (*id, lease.clone())).collect();
            (generation, unknown)
        };
        for leases in unknown.chunks(BATCH) {
            let told: Vec<_> = leases.iter().map(|(id, lease)| (*id, lease, -1)).collect();
            self.register(&generation, &told).await?;
        }
        Ok(())
    }

    /// Registers requests, with when they ended. To be done under `registering`. What is refused
    /// for its generation is registered with the next.
    pub async fn register(
        &self,
        generation: &Arc<str>,
        leases: &[(RequestId, &Lease, i64)],
    ) -> Result<(), StoreError> {
        let told: Vec<Value> = leases
            .iter()
            .map(|(id, lease, written_ago_ms)| lease.told(*id, *written_ago_ms))
            .collect();
        let asked = |_: &str| json!({ "lease_ms": ms(self.options.lease), "leases": told });
        let reply = self.ask_in(generation, &REGISTER, asked).await?;
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
        let mut state = self.state();
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

    /// Prolongs the lives of all requests under way. What Redis has lost is registered anew.
    async fn renew(&self) -> Result<(), StoreError> {
        let ids: Vec<RequestId> = {
            let state = self.state();
            let known = state.leases.iter().filter(|(_, lease)| lease.known_in.is_some());
            // Those that are not settled yet live on as well: who swept them would be no faster.
            known.map(|(id, _)| *id).chain(state.ended.keys().copied()).collect()
        };
        for ids in ids.chunks(BATCH) {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let asked = |_: &str| json!({ "lease_ms": ms(self.options.lease), "ids": ids });
            let reply = self.ask(&RENEW, asked).await?;
            if self.note_unknown(&reply[1..]) {
                tracing::warn!(
                    target: "weir::budget",
                    "Redis has lost some of what it was told, so that budgets are counted anew; see \
                     that it evicts no keys (maxmemory-policy noeviction)"
                );
                self.ask(&LOST, |_| json!({})).await?;
            }
        }
        Ok(())
    }

    /// Whether Redis is still of this generation and knows this request, which lives on.
    pub async fn is_held(&self, id: RequestId, generation: &str) -> Result<bool, StoreError> {
        let asked =
            |_: &str| json!({ "lease_ms": ms(self.options.lease), "ids": [id.to_string()] });
        let reply = self.ask_in(generation, &RENEW, asked).await?;
        Ok(reply == ["done"])
    }

    /// Notes requests that Redis does not know; whether it has lost any that goes on. What they held
    /// still stands in the counts then, and nobody could give it back.
    fn note_unknown(&self, told: &[String]) -> bool {
        let (mut is_lost, mut has_lost) = (false, false);
        let mut state = self.state();
        for word in told {
            if word == "lost" {
                is_lost = true;
                continue;
            }
            // One that has ended meanwhile was settled, and is not lost.
            if let Some(lease) = read_id(word).and_then(|id| state.leases.get_mut(&id)) {
                lease.known_in = None;
                has_lost |= is_lost;
            }
            is_lost = false;
        }
        has_lost
    }

    /// Ends requests whose instance no longer prolongs them, by what the journal says: as its row
    /// says, or not at all where it is open, or by nothing where the journal does not know it.
    async fn sweep(&self) -> Result<(), StoreError> {
        let again_ms = ms(self.options.lease / 3).max(1);
        let asked = |_: &str| json!({ "again_ms": again_ms, "most": BATCH });
        let reply = self.ask(&SWEEP, asked).await?;
        let ids: Vec<RequestId> = {
            let state = self.state();
            let expired = reply.iter().skip(1).filter_map(|id| read_id(id));
            // This instance was held up, and goes on.
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
        self.state().queue.call();
        Ok(())
    }
}
