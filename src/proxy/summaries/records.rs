//! Records of summaries: those ready for the next compaction, and the permanent record of each
//! compaction. The store decides between processes: the first to write a compaction's record
//! settles it. Memory in front of it saves reads, and changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::keys::Key;
use crate::config::Summaries;
use crate::proxy::cache::Cache;
use weir_engine::compact::summary::Summary;
use weir_store::{Entry, Kind, Life, Store, Stored, Tenant, now_ms};

/// Format version of the values; others are not read.
const FORM: u8 = 1;
const READY_FORM: u8 = 2;
const EXTRACT: u8 = 0;
const SUMMARY: u8 = 1;
/// Memory of an entry besides its text.
const ENTRY_BYTES: usize = 160;
/// Maximum number of ready summaries for conversations with the same beginning.
const MOST_BRANCHES: usize = 8;
/// Maximum number of spans remembered that could not be settled.
const MOST_UNSETTLED: u64 = 100_000;

/// Record of a compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// weir's own text without a model.
    Extract,
    Summary(Summary),
}

/// Summary ready for the next compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ready {
    pub summary: Summary,
    /// Key of the messages that it covers.
    pub covered: Key,
}

/// Counters of lookups by source.
#[derive(Debug, Default)]
pub(super) struct LookupCounts {
    pub in_memory: AtomicU64,
    pub in_store: AtomicU64,
    pub nowhere: AtomicU64,
    /// Failed reads and writes of the store, and unreadable values.
    pub failures: AtomicU64,
}

impl LookupCounts {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) struct Records {
    store: Store,
    lifetime_ms: u64,
    status: Cache<Key, Status>,
    /// Spans sent with the extract while the store could not be written: they keep the extract.
    unsettled: Cache<Key, ()>,
    /// Summaries of spans with the same start, the newest first.
    ready: Cache<Key, Arc<[Ready]>>,
    /// Held while a summary is added.
    keeping: Mutex<()>,
    status_kind: Kind,
    ready_kind: Kind,
    /// Lookups of compaction records.
    pub found: LookupCounts,
    /// Lookups of ready summaries.
    pub found_ready: LookupCounts,
}

impl Records {
    pub(super) fn new(settings: &Summaries, store: Store) -> Self {
        let lifetime = Duration::from_millis(settings.lifetime_ms);
        let weight = |bytes: usize| u32::try_from(bytes + ENTRY_BYTES).unwrap_or(u32::MAX);
        Self {
            store,
            lifetime_ms: settings.lifetime_ms,
            status: Cache::builder(settings.cache_bytes / 2)
                .weigh(move |status| match status {
                    Status::Extract => weight(0),
                    Status::Summary(summary) => weight(summary.text.len()),
                })
                // Shorter than in the store, so that its entries are renewed in time.
                .time_to_live(lifetime / 4)
                .build(),
            unsettled: Cache::builder(MOST_UNSETTLED).time_to_live(lifetime).build(),
            ready: Cache::builder(settings.cache_bytes / 2)
                .weigh(move |ready: &Arc<[Ready]>| {
                    let own = |ready: &Ready| ready.summary.text.len() + ENTRY_BYTES;
                    weight(ready.iter().map(own).sum())
                })
                .time_to_live(lifetime)
                .build(),
            keeping: Mutex::default(),
            status_kind: Kind { name: "cut", max_bytes: settings.max_bytes / 2 },
            ready_kind: Kind { name: "summary", max_bytes: settings.max_bytes / 2 },
            found: LookupCounts::default(),
            found_ready: LookupCounts::default(),
        }
    }

    /// Returns the record of the span, if it is settled. A store that cannot be read settles
    /// nothing.
    pub(super) async fn status(&self, tenant: Tenant, span: &Key) -> Stored<Option<Status>> {
        if let Some(status) = self.status.get(span) {
            LookupCounts::count(&self.found.in_memory);
            return Ok(Some(status));
        }
        let value = self.fetch(tenant, self.status_kind, span, &self.found).await?;
        let Some(value) = value else {
            LookupCounts::count(&self.found.nowhere);
            return Ok(None);
        };
        LookupCounts::count(&self.found.in_store);
        let status = self.read_status(&value);
        self.status.insert(span, status.clone());
        Ok(Some(status))
    }

    /// Stores `wanted` permanently as the record of the span, unless it already has one; returns
    /// the record.
    ///
    /// If it cannot be written, the record is the extract, since no other process would know of a
    /// summary. It is not settled: the next lookup tries again.
    pub(super) async fn settle(
        &self,
        tenant: Tenant,
        span: &Key,
        wanted: Status,
    ) -> (Status, bool) {
        let wanted = if self.unsettled.contains(span) { Status::Extract } else { wanted };
        let value = status_bytes(&wanted);
        let entry = self.entry(span, value);
        let written =
            self.store.put_if_absent(tenant, self.status_kind, vec![entry], now_ms()).await;
        let Ok(Some(value)) = written.map(|mut values| values.pop()) else {
            LookupCounts::count(&self.found.failures);
            self.unsettled.insert(span, ());
            return (Status::Extract, false);
        };
        let status = self.read_status(&value);
        self.unsettled.remove(span);
        self.status.insert(span, status.clone());
        (status, true)
    }

    /// Returns the ready summary for spans that begin at `start` that covers the most messages,
    /// among those that `serves` accepts.
    pub(super) async fn ready(
        &self,
        tenant: Tenant,
        start: &Key,
        serves: impl Fn(&Ready) -> bool,
    ) -> Option<Ready> {
        if let Some(ready) = self.ready_in_memory(start, &serves) {
            LookupCounts::count(&self.found_ready.in_memory);
            return Some(ready);
        }
        let stored = self.stored(tenant, start).await;
        let Some(ready) = longest(&stored, &serves) else {
            LookupCounts::count(&self.found_ready.nowhere);
            return None;
        };
        LookupCounts::count(&self.found_ready.in_store);
        self.remember(start, &[], &stored);
        Some(ready)
    }

    /// Like [`Self::ready`], from memory only and without counting.
    pub(super) fn ready_in_memory(
        &self,
        start: &Key,
        serves: impl Fn(&Ready) -> bool,
    ) -> Option<Ready> {
        longest(&self.ready.get(start)?, &serves)
    }

    /// Stores a summary for spans that begin at `start`, next to those of other conversations with
    /// the same beginning. If it cannot be stored, this process still uses it.
    pub(super) async fn keep_ready(&self, tenant: Tenant, start: &Key, ready: Ready) {
        let stored = self.stored(tenant, start).await;
        let all = self.remember(start, &[ready], &stored);
        let entry = self.entry(start, ready_bytes(&all));
        if self.store.put(tenant, self.ready_kind, vec![entry], now_ms()).await.is_err() {
            LookupCounts::count(&self.found_ready.failures);
        }
    }

    /// Puts `newest` before the known ones and `oldest` after them, as far as there is room.
    fn remember(&self, start: &Key, newest: &[Ready], oldest: &[Ready]) -> Arc<[Ready]> {
        let _turn = self.keeping.lock();
        let known = self.ready.get(start);
        let mut all: Vec<Ready> = Vec::new();
        for ready in newest.iter().chain(known.iter().flat_map(|known| known.iter())).chain(oldest)
        {
            if all.len() < MOST_BRANCHES && all.iter().all(|own| own.covered != ready.covered) {
                all.push(ready.clone());
            }
        }
        let all: Arc<[Ready]> = all.into();
        self.ready.insert(start, Arc::clone(&all));
        all
    }

    async fn stored(&self, tenant: Tenant, start: &Key) -> Vec<Ready> {
        let value = self.fetch(tenant, self.ready_kind, start, &self.found_ready).await;
        value.ok().flatten().and_then(|value| read_ready(&value)).unwrap_or_default()
    }

    async fn fetch(
        &self,
        tenant: Tenant,
        kind: Kind,
        key: &Key,
        found: &LookupCounts,
    ) -> Stored<Option<Bytes>> {
        let life = Life::Renewed { lifetime_ms: self.lifetime_ms };
        let keys = vec![Bytes::copy_from_slice(key)];
        let fetched = self.store.fetch(tenant, kind, keys, now_ms(), life).await;
        if fetched.is_err() {
            LookupCounts::count(&found.failures);
        }
        Ok(fetched?.pop().flatten())
    }

    fn entry(&self, key: &Key, value: Bytes) -> Entry {
        let expires_ms = now_ms().saturating_add(self.lifetime_ms);
        Entry { key: Bytes::copy_from_slice(key), value, expires_ms }
    }

    /// Parses a value; an unreadable one counts as the extract.
    fn read_status(&self, value: &[u8]) -> Status {
        let status = match value {
            [FORM, EXTRACT] => Some(Status::Extract),
            [FORM, SUMMARY, rest @ ..] => read_summary(rest).map(Status::Summary),
            _ => None,
        };
        status.unwrap_or_else(|| {
            LookupCounts::count(&self.found.failures);
            Status::Extract
        })
    }
}

fn status_bytes(status: &Status) -> Bytes {
    match status {
        Status::Extract => Bytes::from_static(&[FORM, EXTRACT]),
        Status::Summary(summary) => {
            let mut bytes = vec![FORM, SUMMARY];
            write_summary(summary, &mut bytes);
            bytes.into()
        }
    }
}

/// Returns the one that covers the most messages, among those that `serves` accepts.
fn longest(all: &[Ready], serves: &impl Fn(&Ready) -> bool) -> Option<Ready> {
    all.iter().filter(|ready| serves(ready)).max_by_key(|ready| ready.summary.covers).cloned()
}

fn ready_bytes(all: &[Ready]) -> Bytes {
    let mut bytes = vec![READY_FORM];
    for ready in all {
        let mut summary = Vec::new();
        write_summary(&ready.summary, &mut summary);
        bytes.extend_from_slice(&ready.covered);
        bytes.extend_from_slice(&(summary.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&summary);
    }
    bytes.into()
}

fn read_ready(value: &[u8]) -> Option<Vec<Ready>> {
    let mut rest = value.strip_prefix(&[READY_FORM])?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (covered, behind) = rest.split_first_chunk::<32>()?;
        let (length, behind) = behind.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (summary, behind) = behind.split_at_checked(length)?;
        all.push(Ready { covered: *covered, summary: read_summary(summary)? });
        rest = behind;
    }
    Some(all)
}

fn write_summary(summary: &Summary, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(summary.covers as u64).to_le_bytes());
    bytes.extend_from_slice(summary.text.as_bytes());
}

fn read_summary(bytes: &[u8]) -> Option<Summary> {
    let (covers, text) = bytes.split_first_chunk::<8>()?;
    let covers = usize::try_from(u64::from_le_bytes(*covers)).ok()?;
    Some(Summary { covers, text: std::str::from_utf8(text).ok()?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: Tenant = Tenant([1; 16]);

    fn records(store: &Store) -> Records {
        Records::new(&Summaries::default(), store.clone())
    }

    fn summary(text: &str) -> Summary {
        Summary { covers: 7, text: text.into() }
    }

    #[tokio::test]
    async fn the_first_writer_settles_a_cut_for_all() {
        let store = Store::in_memory().expect("there is memory");
        let [one, other] = [(); 2].map(|()| records(&store));
        let span = [3; 32];
        assert_eq!(one.status(TENANT, &span).await, Ok(None));
        let settled = (Status::Extract, true);
        assert_eq!(one.settle(TENANT, &span, Status::Extract).await, settled);
        let late = Status::Summary(summary("too late"));
        assert_eq!(other.settle(TENANT, &span, late).await, settled);
        assert_eq!(records(&store).status(TENANT, &span).await, Ok(Some(Status::Extract)));
        assert_eq!(one.status(Tenant([2; 16]), &[4; 32]).await, Ok(None));
        let first = Status::Summary(summary("what \u{e9} was said"));
        let settled = (first.clone(), true);
        assert_eq!(other.settle(TENANT, &[5; 32], first.clone()).await, settled);
        assert_eq!(one.settle(TENANT, &[5; 32], Status::Extract).await, settled);
        assert_eq!(records(&store).status(TENANT, &[5; 32]).await, Ok(Some(first)));
    }

    fn ready(covers: usize, number: u8) -> Ready {
        Ready { summary: Summary { covers, text: "said".into() }, covered: [number; 32] }
    }

    #[tokio::test]
    async fn conversations_that_begin_alike_have_a_summary_each() {
        let store = Store::in_memory().expect("there is memory");
        let [one, other] = [(); 2].map(|()| records(&store));
        let any = |_: &Ready| true;
        assert_eq!(one.ready(TENANT, &[1; 32], any).await, None);
        one.keep_ready(TENANT, &[1; 32], ready(7, 1)).await;
        other.keep_ready(TENANT, &[1; 32], ready(3, 2)).await;
        for records in [&one, &other, &records(&store)] {
            for (covers, number) in [(7, 1), (3, 2)] {
                let is_own = |ready: &Ready| ready.covered == [number; 32];
                let found = records.ready(TENANT, &[1; 32], is_own).await;
                assert_eq!(found, Some(ready(covers, number)));
            }
            assert_eq!(records.ready(TENANT, &[1; 32], any).await, Some(ready(7, 1)));
        }
        assert_eq!(one.ready(TENANT, &[2; 32], any).await, None);
    }

    #[tokio::test]
    async fn the_oldest_branches_go_first() {
        let store = Store::in_memory().expect("there is memory");
        let records_of_one = records(&store);
        let most = MOST_BRANCHES as u8;
        for number in 0..=most {
            records_of_one.keep_ready(TENANT, &[1; 32], ready(1, number)).await;
        }
        for records in [&records_of_one, &records(&store)] {
            for number in 0..=most {
                let is_own = |ready: &Ready| ready.covered == [number; 32];
                let found = records.ready(TENANT, &[1; 32], is_own).await;
                assert_eq!(found.is_some(), number > 0, "{number}");
            }
        }
    }

    #[test]
    fn what_is_ready_is_read_as_it_was_written_or_not_at_all() {
        let all = [ready(7, 1), ready(3, 2)];
        let bytes = ready_bytes(&all);
        assert_eq!(read_ready(&bytes).as_deref(), Some(&all[..]));
        let whole = [1, ready_bytes(&all[..1]).len(), bytes.len()];
        for length in 0..=bytes.len() {
            assert_eq!(read_ready(&bytes[..length]).is_some(), whole.contains(&length), "{length}");
        }
    }

    #[tokio::test]
    async fn a_value_that_cannot_be_read_stands_for_the_extract() {
        let store = Store::in_memory().expect("there is memory");
        let records = records(&store);
        for (index, value) in
            [&b""[..], b"\x02\x00", b"\x01\x01\x00", b"\x01\x01\0\0\0\0\0\0\0\0\xff"]
                .into_iter()
                .enumerate()
        {
            let span = [index as u8; 32];
            let entry = records.entry(&span, Bytes::copy_from_slice(value));
            let kind = records.status_kind;
            store.put(TENANT, kind, vec![entry], now_ms()).await.expect("it has room");
            assert_eq!(records.status(TENANT, &span).await, Ok(Some(Status::Extract)));
            assert_eq!(records.found.failures.load(Ordering::Relaxed), index as u64 + 1);
        }
    }
}
