//! Journal in PostgreSQL: its queues, orphaned requests, ends and pruning.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::super::ledger::codec;
use super::super::ledger::text::from_stored;
use super::super::ledger::{Intent, RequestEnd, RequestId, Settlement};
use super::super::wal::record;
use super::super::{StoreError, Stored};
use super::Postgres;
use super::instances::LIFETIME;
use crate::backend::Journal;
use crate::budgets::{Spent, SpentQuery};
use crate::sql::stored;

/// How long an orphan is reserved for the weir that has claimed it.
const CLAIM: &str = "interval '30 seconds'";

#[async_trait]
impl Journal for Postgres {
    async fn open_request(&self, intent: &Intent) -> Stored<()> {
        self.begin().await?;
        self.enqueue(&self.0.shared.queues.intents, record::opened(intent)).await.map(drop)
    }

    async fn settle_request(&self, intent: Arc<Intent>, settlement: Settlement) -> Stored<bool> {
        let record = record::settled(&intent, &settlement);
        self.enqueue(&self.0.shared.queues.endings, record).await
    }

    async fn release_request(&self, id: RequestId) -> Stored<()> {
        self.enqueue(&self.0.shared.queues.intents, record::released(id)).await.map(drop)
    }

    /// Claims the requests for this weir alone to settle. Returns none if the server has not seen
    /// this weir for long: it may not have seen others either.
    async fn orphans(&self, limit: usize) -> Stored<Vec<Intent>> {
        self.begin().await?;
        self.run(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql = format!(
                "UPDATE weir_intent SET claimed_by = $1, claimed_at = statement_timestamp()
                 WHERE id IN (SELECT i.id FROM weir_intent i
                  WHERE EXISTS (SELECT 1 FROM weir_instance own WHERE own.id = $1
                   AND own.since < statement_timestamp() - {LIFETIME}
                   AND own.seen >= statement_timestamp() - {LIFETIME})
                  AND NOT EXISTS (SELECT 1 FROM weir_instance n WHERE n.id = i.instance
                   AND n.seen >= statement_timestamp() - {LIFETIME})
                  AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)
                  AND (i.claimed_at IS NULL OR i.claimed_by = $1
                   OR i.claimed_at < statement_timestamp() - {CLAIM})
                  ORDER BY i.id LIMIT $2 FOR UPDATE SKIP LOCKED)
                 RETURNING id, begun_ms, facts"
            );
            let limit = stored(limit as u64);
            let rows = connection.rows(&sql, &[&&shared.instance[..], &limit]).await?;
            let intent = |row: &Row| {
                let id = row.get::<_, &[u8]>(0).try_into().unwrap_or_default();
                codec::intent(id, row.get(1), row.get::<_, &str>(2).as_bytes())
            };
            let mut intents: Vec<Intent> = rows.iter().map(intent).collect();
            intents.sort_by_key(|intent| intent.id);
            Ok(intents)
        })
        .await
    }

    async fn request_ends(&self, ids: Vec<RequestId>) -> Stored<Vec<RequestEnd>> {
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let queried: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
            // A single statement, so the result is consistent.
            let sql = "SELECT r.id IS NOT NULL, i.id IS NOT NULL, coalesce(r.cost_nano_usd, 0),
                        coalesce(r.prompt_tokens, 0) + coalesce(r.completion_tokens, 0)
                       FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (id, place)
                       LEFT JOIN weir_request r ON r.id = asked.id
                       LEFT JOIN weir_intent i ON i.id = asked.id ORDER BY asked.place";
            let rows = connection.rows(sql, &[&queried]).await?;
            let end = |row: &Row| match (row.get(0), row.get(1)) {
                (true, _) => RequestEnd::Ended {
                    nano_usd: from_stored(row.get(2)),
                    tokens: from_stored(row.get(3)),
                },
                (false, true) => RequestEnd::Open,
                (false, false) => RequestEnd::Unknown,
            };
            Ok(rows.iter().map(end).collect())
        })
        .await
    }

    async fn spent(&self, query: SpentQuery) -> Stored<Spent> {
        self.spent_since(query).await
    }

    async fn backup(&self, _path: &Path) -> Stored<()> {
        let message = "the store is in PostgreSQL; copy the database with pg_dump";
        Err(StoreError::Failed(message.to_owned()))
    }
}
