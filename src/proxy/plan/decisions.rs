//! Decisions of conversations whose model binds its thinking to everything before it, or that pauses shorten:
//! recorded in the store before a compaction is first sent, found by the conversation's prefix, and kept until they no
//! longer fit. Memory in front of the store saves reads, and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use tokio::runtime::Handle;

use crate::proxy::cache::Cache;
use crate::proxy::chain::{Key, KeyChain};
use weir_engine::plan::Decisions;
use weir_engine::wire::Protocol;
use weir_store::{Entry, Kind, Life, SECRET_BYTES, Store, Tenant, now_ms};

/// Records in the store. A record takes about 2 kB.
const KIND: Kind = Kind { name: "decisions", max_bytes: 32 << 20 };
/// Lifetime of a record that nobody reads. Each use renews it.
const LIFETIME_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// Format version of the values; others are not read.
const FORM: u8 = 1;
/// Maximum number of prefixes of one conversation whose records are looked for, the longest first.
const MAX_PREFIXES: usize = 4096;
/// Up to this many are looked for on the request's own task.
const INLINE_PREFIXES: usize = 8;
/// Memory of an entry: key, pointers, the cache's own data, and its share of decisions.
const ENTRY_BYTES: u32 = 400;

/// Records of decisions.
pub(super) struct DecisionRecords {
    store: Option<Store>,
    keys: KeyChain,
    known: Cache<u128, Known>,
}

/// Conversation up to one of its messages.
#[derive(Debug, Clone)]
struct Known {
    key: Key,
    /// Whether one of its messages may hold thinking.
    thinks: bool,
    decisions: Option<Arc<Decisions>>,
}

/// Conversation to look up.
#[derive(Clone, Copy)]
pub(super) struct Looking<'a> {
    pub tenant: Tenant,
    pub protocol: Protocol,
    pub messages: &'a [&'a str],
    /// Keys of its prefixes in this process, one for each message.
    pub ends: &'a [u128],
    /// Whether it is so large that another process may have compacted it since this one saw it.
    pub may_be_compacted: bool,
    /// Whether only one with thinking has decisions.
    pub needs_thinking: bool,
}

/// Conversation that was looked up.
#[derive(Debug, Clone)]
pub(super) struct Found {
    end: u128,
    key: Key,
    /// Whether one of its messages may hold thinking.
    pub thinks: bool,
    /// Its decisions; `None` if none are recorded.
    pub decisions: Option<Arc<Decisions>>,
}

/// Decisions that a request is the first to be sent by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    tenant: Tenant,
    end: u128,
    key: Key,
    decisions: Arc<Decisions>,
    /// Whether they replace a record of the same messages.
    replaces: bool,
}

impl Found {
    /// Returns the decisions that a request with these messages is about to be sent by. They replace a
    /// record of the same messages if the upstream has refused the request under that.
    pub(super) fn begin(&self, tenant: Tenant, decisions: Decisions, replaces: bool) -> Begun {
        let Self { end, key, .. } = *self;
        Begun { tenant, end, key, decisions: Arc::new(decisions), replaces }
    }
}

impl DecisionRecords {
    /// Creates the records in `store`; without one, they end with the process.
    pub(super) fn new(store: Option<Store>, max_bytes: u64) -> Self {
        let secret = store.as_ref().map_or([0; SECRET_BYTES], |store| store.secret());
        Self {
            store,
            keys: KeyChain::new("weir 2026-11 decisions", &secret),
            known: Cache::builder(max_bytes)
                .weigh(|_| ENTRY_BYTES)
                // Shorter than in the store, so that its entries are renewed in time.
                .time_to_live(Duration::from_millis(LIFETIME_MS / 4))
                .build(),
        }
    }

    /// Looks up a conversation; `None` if the store must be read and that may block. A store that
    /// cannot be read has no record.
    ///
    /// The store is not read for a conversation without thinking if that is needed, nor for one that this process has
    /// seen before unless [`Looking::may_be_compacted`].
    pub(super) fn look(&self, looking: &Looking<'_>, may_block: bool) -> Option<Found> {
        let Looking { tenant, protocol, messages, ends, may_be_compacted, needs_thinking } =
            *looking;
        let (seen, known) = self.longest(ends);
        let mut own = known.clone().unwrap_or_else(|| Known {
            key: self.keys.start(tenant, protocol),
            thinks: false,
            decisions: None,
        });
        let mut keys = Vec::with_capacity(messages.len() - seen);
        for raw in &messages[seen..] {
            own.key = self.keys.next(&own.key, &protocol.identity(raw));
            own.thinks = own.thinks || may_think(raw);
            keys.push(own.key);
        }
        let mut is_certain = true;
        let may_have = own.thinks || !needs_thinking;
        if may_have && !keys.is_empty() && (known.is_none() || may_be_compacted) {
            match self.newest(tenant, &keys, may_block) {
                Read::Blocks => return None,
                Read::Fails => is_certain = false,
                Read::Found(Some(decisions)) => own.decisions = Some(decisions),
                Read::Found(None) => {}
            }
        }
        let end = *ends.last()?;
        if is_certain {
            self.known.insert(&end, own.clone());
        }
        let Known { key, thinks, decisions } = own;
        Some(Found { end, key, thinks, decisions })
    }

    /// Records decisions, before the request is sent that they were made for. Returns whether another
    /// process was first for the same messages, so that the request must be planned again. A failing
    /// store fails no request: this process knows them in any case.
    pub(super) async fn settle(&self, begun: Begun) -> bool {
        let Begun { tenant, end, key, decisions, replaces } = begun;
        let remember = |decisions: &Arc<Decisions>| {
            let decisions = Some(Arc::clone(decisions));
            self.known.insert(&end, Known { key, thinks: true, decisions });
        };
        remember(&decisions);
        let (Some(store), Some(value)) = (&self.store, value(&decisions)) else { return false };
        let now_ms = now_ms();
        let expires_ms = now_ms.saturating_add(LIFETIME_MS);
        let entry = Entry { key: Bytes::copy_from_slice(&key), value, expires_ms };
        if !replaces {
            let first = store.put_if_absent(tenant, KIND, vec![entry.clone()], now_ms).await;
            let Ok(Some(first)) = first.map(|mut values| values.pop()) else { return false };
            if let Some(other) = read(&first).map(Arc::new) {
                remember(&other);
                return other != decisions;
            }
        }
        // The writer has logged a failure.
        let _ = store.put(tenant, KIND, vec![entry], now_ms).await;
        false
    }

    /// Returns the longest prefix that this process knows, by its number of messages.
    fn longest(&self, ends: &[u128]) -> (usize, Option<Known>) {
        let known = ends.iter().enumerate().rev().take(MAX_PREFIXES);
        let mut known = known.filter_map(|(place, end)| Some((place + 1, self.known.get(end)?)));
        known.next().map_or((0, None), |(messages, known)| (messages, Some(known)))
    }

    /// Reads the record of the longest of these prefixes that has one.
    fn newest(&self, tenant: Tenant, keys: &[Key], may_block: bool) -> Read {
        let Some(store) = &self.store else { return Read::Found(None) };
        let keys = keys.iter().rev().take(MAX_PREFIXES);
        if keys.len() <= INLINE_PREFIXES {
            let mut peeked = keys.clone().map(|key| store.peek(tenant, KIND, key, now_ms()));
            let found = peeked.try_fold(None, |found: Option<Decisions>, peeked| {
                let own = || peeked.as_ref().and_then(|own| read(&own.as_ref()?.value));
                peeked.is_some().then(|| found.or_else(own))
            });
            if let Some(found) = found {
                return Read::Found(found.map(Arc::new));
            }
        }
        let Ok(runtime) = Handle::try_current() else { return Read::Fails };
        if !may_block {
            return Read::Blocks;
        }
        let keys = keys.map(|key| Bytes::copy_from_slice(key)).collect();
        let life = Life::Renewed { lifetime_ms: LIFETIME_MS };
        match runtime.block_on(store.fetch(tenant, KIND, keys, now_ms(), life)) {
            Ok(values) => {
                let found = values.iter().flatten().find_map(|value| read(value));
                Read::Found(found.map(Arc::new))
            }
            Err(_) => Read::Fails,
        }
    }
}

/// Result of reading the store.
enum Read {
    Found(Option<Arc<Decisions>>),
    Fails,
    /// It would take longer than a request's own task may.
    Blocks,
}

/// Whether a message may hold a model's thinking, by the names of its members.
fn may_think(raw: &str) -> bool {
    let has = |name: &str| memmem::find(raw.as_bytes(), name.as_bytes()).is_some();
    has("thinking") || has("reasoning")
}

fn value(decisions: &Decisions) -> Option<Bytes> {
    let mut value = vec![FORM];
    serde_json::to_writer(&mut value, decisions).ok()?;
    Some(value.into())
}

fn read(value: &[u8]) -> Option<Decisions> {
    serde_json::from_slice(value.strip_prefix(&[FORM])?).ok()
}

#[cfg(test)]
mod tests {
    use weir_engine::plan::PlanOptions;
    use weir_engine::tokens::Encoding;

    use super::*;

    const TENANT: Tenant = Tenant([1; 16]);
    const THINKING: &str =
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"s"}]}"#;
    const QUESTION: &str = r#"{"role":"user","content":"Go on."}"#;

    fn decisions(window_tokens: u64) -> Decisions {
        let body = format!(r#"{{"messages":[{QUESTION}]}}"#);
        let request = Protocol::Messages.read(body.as_bytes(), 10).expect("a request");
        PlanOptions::new("m", Encoding::Estimate, window_tokens).decisions(&request, 0)
    }

    /// Looks up a conversation of a tenant; `None` if that needs the store and may not block.
    async fn look(
        records: &Arc<DecisionRecords>,
        tenant: Tenant,
        messages: &[&'static str],
        (may_be_compacted, may_block): (bool, bool),
    ) -> Option<Found> {
        let (records, messages) = (Arc::clone(records), messages.to_vec());
        let looked = move || {
            let prefix = |end: usize| blake3::hash(messages[..=end].concat().as_bytes());
            let ends = (0..messages.len()).map(|end| {
                let bytes = *prefix(end).as_bytes().first_chunk().expect("32 bytes");
                u128::from_le_bytes(bytes) ^ u128::from_le_bytes(tenant.0)
            });
            let ends: Vec<u128> = ends.collect();
            let protocol = Protocol::Messages;
            let messages = &messages;
            let needs_thinking = true;
            let looking = Looking {
                tenant,
                protocol,
                messages,
                ends: &ends,
                may_be_compacted,
                needs_thinking,
            };
            records.look(&looking, may_block)
        };
        tokio::task::spawn_blocking(looked).await.expect("it ends")
    }

    fn both() -> [Arc<DecisionRecords>; 2] {
        let store = Store::in_memory().expect("there is memory");
        [(); 2].map(|()| Arc::new(DecisionRecords::new(Some(store.clone()), 1 << 20)))
    }

    #[tokio::test]
    async fn the_first_writer_settles_a_conversation_for_all() {
        let [one, other] = both();
        let messages = [QUESTION, THINKING, QUESTION];
        let found = look(&one, TENANT, &messages, (true, true)).await.expect("it may block");
        assert_eq!(found.decisions, None);
        let late = look(&other, TENANT, &messages, (true, true)).await.expect("it may block");
        assert!(!one.settle(found.begin(TENANT, decisions(1000), false)).await);
        assert!(other.settle(late.begin(TENANT, decisions(2000), false)).await);
        let longer = [&messages[..], &[THINKING, QUESTION]].concat();
        for records in [&one, &other] {
            let found = look(records, TENANT, &longer, (true, true)).await.expect("it may block");
            assert_eq!(found.decisions.as_deref(), Some(&decisions(1000)));
        }
        // After a refusal a record is replaced, and the longest prefix counts.
        assert!(!other.settle(late.begin(TENANT, decisions(3000), true)).await);
        let fresh = Arc::new(DecisionRecords::new(one.store.clone(), 1 << 20));
        let found = look(&fresh, TENANT, &longer, (true, true)).await.expect("it may block");
        assert_eq!(found.decisions.as_deref(), Some(&decisions(3000)));
        for (tenant, messages) in [(Tenant([2; 16]), &longer[..]), (TENANT, &longer[..2])] {
            let found = look(&fresh, tenant, messages, (true, true)).await.expect("it may block");
            assert_eq!(found.decisions, None);
        }
    }

    #[tokio::test]
    async fn the_store_is_read_only_if_it_may_have_a_record() {
        let [records, _] = both();
        // The store is in memory, so that each read would block.
        for (messages, may_be_compacted, is_read) in [
            (&[QUESTION][..], true, false),
            (&[QUESTION, THINKING, QUESTION], false, false),
            (&[QUESTION, THINKING, QUESTION, THINKING, QUESTION], true, true),
        ] {
            let found = look(&records, TENANT, messages, (may_be_compacted, false)).await;
            assert_eq!(found.is_none(), is_read, "{} messages", messages.len());
        }
        // A conversation that this process has not seen from its beginning.
        let messages = [THINKING, QUESTION];
        assert!(look(&records, TENANT, &messages, (false, false)).await.is_none());
        assert!(look(&records, TENANT, &messages, (false, true)).await.is_some());
        assert!(look(&records, TENANT, &messages, (false, false)).await.is_some());
    }

    #[tokio::test]
    async fn without_a_store_decisions_last_as_long_as_the_process() {
        let records = Arc::new(DecisionRecords::new(None, 1 << 20));
        let messages = [QUESTION, THINKING, QUESTION];
        let found = look(&records, TENANT, &messages, (true, false)).await.expect("nothing blocks");
        assert!(!records.settle(found.begin(TENANT, decisions(1000), false)).await);
        let found = look(&records, TENANT, &messages, (true, false)).await.expect("nothing blocks");
        assert_eq!(found.decisions.as_deref(), Some(&decisions(1000)));
    }

    #[test]
    fn values_are_read_as_they_were_written_or_not_at_all() {
        let written = value(&decisions(1000)).expect("it is written");
        assert_eq!(read(&written), Some(decisions(1000)));
        assert!(written.len() < 2048, "{} bytes", written.len());
        for value in [&b""[..], b"\x01", b"\x01{}", b"\x02{}", &written[1..]] {
            assert_eq!(read(value), None);
        }
    }
}
