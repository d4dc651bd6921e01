//! Request journal on SQLite. Records go to the write-ahead log (`wal`), and every query first moves
//! the records of all processes into the tables.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;

use super::log::{checkpoint_all, note_written, settle_directly};
use super::{Sqlite, backup, lookup, rows, spent};
use crate::backend::Journal;
use crate::budgets::{Spent, SpentQuery};
use crate::ledger::{Intent, RequestEnd, RequestId, Settlement};
use crate::wal::record;
use crate::{StoreError, Stored};

#[async_trait]
impl Journal for Sqlite {
    async fn open_request(&self, intent: &Intent) -> Stored<()> {
        let session = &self.session;
        session.start().await?;
        let record = record::opened(intent);
        let mut opened = session.log.open(intent.id, &record);
        if matches!(opened, Err(StoreError::Behind { .. })) && !self.writer.is_failing() {
            // Requests arrive faster than one thread moves them: the caller takes part.
            session.log.rotate_if_due();
            checkpoint_all(self).await;
            opened = session.log.open(intent.id, &record);
        }
        opened?;
        note_written(self);
        Ok(())
    }

    async fn settle_request(&self, intent: Arc<Intent>, settlement: Settlement) -> Stored<bool> {
        let record = record::settled(&intent, &settlement);
        match self.session.log.end(intent.id, &record) {
            Some(written) => {
                written?;
                note_written(self);
                Ok(true)
            }
            None => settle_directly(self, record).await,
        }
    }

    async fn release_request(&self, id: RequestId) -> Stored<()> {
        match self.session.log.end(id, &record::released(id)) {
            Some(written) => {
                written?;
                note_written(self);
                Ok(())
            }
            None => self.writer.run(move |connection| rows::release(connection, id)).await,
        }
    }

    async fn orphans(&self, limit: usize) -> Stored<Vec<Intent>> {
        checkpoint_all(self).await;
        let session = Arc::clone(&self.session);
        self.read(move |connection| rows::orphans(connection, &session.instance, limit)).await
    }

    async fn request_ends(&self, ids: Vec<RequestId>) -> Stored<Vec<RequestEnd>> {
        // Read before ended requests are moved into the tables, so that a request that ends, or
        // whose log is finished, in between is not missed.
        let (session, queried) = (Arc::clone(&self.session), ids.clone());
        let open = tokio::task::spawn_blocking(move || lookup::open_in_logs(&session, &queried));
        let open: HashSet<RequestId> = open.await.map_err(|_| StoreError::Closed)?;
        checkpoint_all(self).await;
        let end = move |connection: &Connection| {
            ids.iter().map(|id| lookup::end(connection, *id, &open)).collect()
        };
        self.read(end).await
    }

    async fn spent(&self, query: SpentQuery) -> Stored<Spent> {
        let (session, from_ms) = (Arc::clone(&self.session), query.from_ms);
        let mut in_logs = Vec::new();
        if query.wants_open {
            // Logs are read first, so that a request that ends, or whose log is finished, in
            // between is not missed.
            let read = tokio::task::spawn_blocking(move || lookup::open_since(&session, from_ms));
            in_logs = read.await.map_err(|_| StoreError::Closed)?;
        }
        checkpoint_all(self).await;
        let work = move |connection: &Connection| {
            // An in-memory store reads inside the writer's transaction.
            let begin = || connection.unchecked_transaction();
            let _moment = connection.is_autocommit().then(begin).transpose()?;
            let open = lookup::still_open(connection, in_logs, query.from_ms)?;
            Ok(Spent { ended: spent::spent(connection, &query)?, open })
        };
        self.read(work).await
    }

    async fn backup(&self, path: &Path) -> Stored<()> {
        if !self.is_file() {
            return Err(StoreError::Failed("the store is in memory only".to_owned()));
        }
        checkpoint_all(self).await;
        let (session, path) = (Arc::clone(&self.session), path.to_owned());
        self.read(move |connection| Ok(backup::write(connection, &session.instance, &path))).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Reports, Values};
    use crate::ledger::{Attribution, Caller, DAY_MS, RequestQuery, UsageQuery, UsageRow};
    use crate::{State, Tenant};

    fn intent(number: u64, text: &str) -> Intent {
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        Intent {
            id: RequestId::new(DAY_MS, random),
            begun_ms: DAY_MS,
            caller: Caller { tenant: Tenant([1; 16]), key: None },
            route: text.to_owned(),
            model: text.to_owned(),
            upstream: text.to_owned(),
            stream: false,
            action: text.to_owned(),
            zone: text.to_owned(),
            attribution: Attribution::default(),
            received_tokens: None,
            sent_tokens: None,
            max_output_tokens: None,
            plan_ms: None,
            held_nano_usd: None,
            held_tokens: None,
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_and_leaves_nothing_half_done() {
        let store = Sqlite::in_memory().expect("there is memory");
        let limit = |more_pages: i64| {
            store.writer.run(move |connection| {
                let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
                let sql = format!("PRAGMA max_page_count = {}", pages + more_pages);
                connection.query_row(&sql, [], |_| Ok(()))
            })
        };
        limit(20).await.expect("a number");
        let text = "x".repeat(200);
        let requests = |rows: Vec<UsageRow>| rows.first().map_or(0, |row| row.totals.requests);
        let mut counted = 0;
        for number in 0.. {
            let intent = Arc::new(intent(number, &text));
            store.open_request(&intent).await.expect("it is written down");
            let settlement = Settlement { outcome: text.clone(), ..Settlement::default() };
            assert_eq!(store.settle_request(intent, settlement).await, Ok(true));
            let usage = store.usage(UsageQuery::default()).await.map(requests);
            if usage != Ok(number + 1) {
                assert_eq!(usage, Ok(number), "the existing rows are returned");
                counted = number;
                break;
            }
        }
        assert!(counted > 10, "{counted}");
        assert_eq!(store.state(), State::Memory);
        let rows = store.requests(RequestQuery::default()).await.expect("it can be read");
        assert_eq!(rows.len() as u64, counted, "each row is in the sums");
        let late = Arc::new(intent(counted + 1, &text));
        let settled = store.settle_request(Arc::clone(&late), Settlement::default()).await;
        assert_eq!(settled, Err(StoreError::Full), "it was not opened, and goes there directly");
        limit(20).await.expect("a number");
        assert_eq!(store.settle_request(late, Settlement::default()).await, Ok(true));
        assert!(!store.writer.is_failing());
        let usage = store.usage(UsageQuery::default()).await.map(requests);
        assert_eq!(usage, Ok(counted + 2), "nothing that was written down is lost");
    }
}
