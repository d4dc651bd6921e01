//! Settlement of requests in Redis, once each.

use serde_json::json;

use super::super::super::ledger::{MAX_FIGURE, RequestId};
use super::super::super::{StoreError, Stored};
use super::super::Spending;
use super::lease::{EndedLease, scopes};
use super::scripts::SETTLE;
use super::{MAX_TRIES, RedisCounters};

impl RedisCounters {
    /// Settles an ended request; keeps it for later if that fails. A repeated call has no effect.
    pub(crate) async fn finish(&self, id: RequestId) -> Stored<()> {
        for _ in 0..MAX_TRIES {
            let generation = self.generation().await?;
            let is_known = |ended: &EndedLease| ended.lease.known_in.as_ref() == Some(&generation);
            let Some(mut ended) = self.ended(id) else { return Ok(()) };
            let mut guard = None;
            if !is_known(&ended) {
                guard = Some(self.registering.lock().await);
                let Some(still) = self.ended(id) else { return Ok(()) };
                ended = still;
            }
            let arguments = |_: &str| {
                json!({
                    "id": id.to_string(),
                    "is_known": is_known(&ended),
                    "written_ago_ms": ended.written_ago_ms(),
                    "nano_usd": ended.spending.nano_usd.min(MAX_FIGURE),
                    "tokens": ended.spending.tokens.min(MAX_FIGURE),
                    "scopes": scopes(&ended.lease.owner),
                    "is_swept": false,
                })
            };
            let reply = self.call_in(&generation, &SETTLE, arguments).await?;
            match reply.first().map(String::as_str) {
                Some("done") => {
                    self.state.lock().ended.remove(&id);
                    return Ok(());
                }
                Some("unknown") => {
                    let lease = (id, &ended.lease, ended.written_ago_ms());
                    self.register(&generation, &[lease]).await?;
                }
                _ => {
                    drop(guard);
                    self.refresh_generation().await?;
                }
            }
        }
        Err(StoreError::Busy)
    }

    fn ended(&self, id: RequestId) -> Option<EndedLease> {
        self.state.lock().ended.get(&id).cloned()
    }

    /// Settles another instance's request.
    pub(crate) async fn settle_swept(
        &self,
        id: RequestId,
        spending: Spending,
        is_ended: bool,
    ) -> Stored<()> {
        let arguments = json!({
            "id": id.to_string(),
            "is_known": true,
            "written_ago_ms": -1,
            "nano_usd": spending.nano_usd.min(MAX_FIGURE),
            "tokens": spending.tokens.min(MAX_FIGURE),
            "scopes": [],
            "is_swept": is_ended,
            "is_given": !is_ended,
        });
        self.call(&SETTLE, |_| arguments.clone()).await.map(drop)
    }
}
