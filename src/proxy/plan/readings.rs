//! Readings of messages, kept between requests. A compaction reads all messages, even those removed earlier, so
//! each reading is made once: by the first compaction, or before it in the background. Losing an entry changes
//! no result, only its cost.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::plan_cache::{CacheFigures, Lookups};
use super::shared::PlanState;
use crate::proxy::cache::Cache;
use weir_engine::compact::reading::Reading;
use weir_engine::compact::source::read_and_search;
use weir_engine::wire::Protocol;

/// Memory of a message in a table besides its reading.
const ENTRY_BYTES: usize = size_of::<Option<Entry>>() + 16;
/// Memory that a reading takes for each byte of its message: 4.4 to 5.6 in recorded conversations.
const MEMORY_PER_BYTE: usize = 5;
/// Minimum bytes of unread messages that are worth a task of their own.
const MIN_UNREAD_BYTES: usize = 16 << 10;
/// Time after which the readings of a conversation without requests make room for others.
const IDLE: Duration = Duration::from_secs(10 * 60);

/// Readings by conversation.
pub(super) struct ReadingCache {
    tables: Cache<u128, Arc<Table>>,
    max_bytes: u64,
    lookups: Lookups,
}

/// Readings of a conversation's messages, by index.
#[derive(Clone, Default)]
pub(super) struct Table(Vec<Option<Entry>>);

/// Hash of a message and its reading.
type Entry = (u128, Arc<Reading>);

impl Table {
    /// Returns the reading of a message with this hash.
    pub(super) fn get(&self, message: usize, hash: u128) -> Option<&Arc<Reading>> {
        let (own, reading) = self.0.get(message)?.as_ref()?;
        (*own == hash).then_some(reading)
    }

    /// Whether it has the reading of another message instead of one with this hash.
    pub(super) fn has_other(&self, message: usize, hash: u128) -> bool {
        self.0.get(message).is_some_and(|own| own.as_ref().is_some_and(|(own, _)| *own != hash))
    }

    fn memory_bytes(&self) -> usize {
        let readings = self.0.iter().flatten().map(|(_, reading)| reading.memory_bytes());
        self.0.len() * ENTRY_BYTES + readings.sum::<usize>()
    }
}

impl ReadingCache {
    /// Creates a cache of at most `max_bytes`.
    pub(super) fn new(max_bytes: u64) -> Self {
        let weigh = |table: &Arc<Table>| u32::try_from(table.memory_bytes()).unwrap_or(u32::MAX);
        let tables = Cache::builder(max_bytes).weigh(weigh).time_to_idle(|_| IDLE).build();
        Self { tables, max_bytes, lookups: Lookups::default() }
    }

    /// Returns its figures.
    pub(super) fn figures(&self) -> CacheFigures {
        CacheFigures::new("readings", Some(&self.lookups), self.tables.weight())
    }

    /// Returns the readings of a conversation.
    pub(super) fn look(&self, conversation: u128) -> Arc<Table> {
        self.tables.get(&conversation).unwrap_or_default()
    }

    /// Counts the messages that a plan asked for: those whose readings were kept, and the others.
    pub(super) fn note(&self, kept: usize, others: usize) {
        self.lookups.note_all(kept as u64, others as u64);
    }

    /// Keeps the readings of the first `messages` messages of a conversation for one that branches off it.
    pub(super) fn branch(&self, conversation: &Table, messages: usize, other: u128) {
        let shared = &conversation.0[..messages.min(conversation.0.len())];
        self.tables.insert(&other, Arc::new(Table(shared.to_vec())));
    }

    /// Adds readings to those of a conversation, each with the index and the hash of its message. If all take
    /// more memory than there is, none stay.
    pub(super) fn keep(&self, conversation: u128, new: Vec<(usize, Entry)>) {
        let mut table = self.look(conversation);
        let own = Arc::make_mut(&mut table);
        for (message, entry) in new {
            if own.0.len() <= message {
                own.0.resize(message + 1, None);
            }
            own.0[message] = Some(entry);
        }
        match table.memory_bytes() as u64 <= self.max_bytes {
            true => self.tables.insert(&conversation, table),
            false => self.tables.remove(&conversation),
        }
    }

    /// Returns those of a conversation's messages, given by hash and span in `body`, that are not read yet;
    /// `None` if they are too few, or there is no room to keep them.
    pub(super) fn unread(
        &self,
        conversation: u128,
        (protocol, body): (Protocol, &Bytes),
        messages: impl Iterator<Item = (u128, Range<usize>)>,
    ) -> Option<Unread> {
        let (mut all_bytes, mut unread_bytes) = (0, 0);
        let table = self.look(conversation);
        let mut unread = Vec::new();
        for (message, (hash, span)) in messages.enumerate() {
            all_bytes += span.len();
            if table.get(message, hash).is_none() {
                unread_bytes += span.len();
                unread.push((message, hash, span));
            }
        }
        // Conversations must not take turns in replacing each other's readings.
        let others_bytes = if table.0.is_empty() { self.tables.weight() } else { 0 };
        let has_room = others_bytes + (all_bytes * MEMORY_PER_BYTE) as u64 <= self.max_bytes;
        let body = body.clone();
        (has_room && unread_bytes >= MIN_UNREAD_BYTES).then(|| Unread {
            conversation,
            protocol,
            body,
            messages: unread,
        })
    }
}

/// Messages of a conversation that its next compaction will ask for, and that are not read yet.
#[derive(Clone)]
pub(super) struct Unread {
    conversation: u128,
    protocol: Protocol,
    body: Bytes,
    /// Index, hash and span in `body` of each.
    messages: Vec<(usize, u128, Range<usize>)>,
}

impl Unread {
    /// Reads the messages as long as `goes_on`, and keeps the readings.
    fn read(&self, cache: &ReadingCache, goes_on: impl Fn() -> bool) {
        let read = |(message, hash, span): &(usize, u128, Range<usize>)| {
            let raw = self.body.get(span.clone())?;
            let reading = read_and_search(self.protocol, std::str::from_utf8(raw).ok()?);
            Some((*message, (*hash, Arc::new(reading))))
        };
        let messages = self.messages.iter().take_while(|_| goes_on());
        cache.keep(self.conversation, messages.filter_map(read).collect());
    }
}

/// Reading that is left to do once its request is sent, if any.
#[derive(Clone, Default)]
pub struct ReadAhead(Option<(Arc<PlanState>, Box<Unread>)>);

impl ReadAhead {
    pub(super) fn new(state: &Arc<PlanState>, unread: Option<Unread>) -> Self {
        Self(unread.map(|unread| (Arc::clone(state), Box::new(unread))))
    }

    /// Reads the messages now.
    #[cfg(test)]
    pub(super) fn run(self) {
        if let Some((state, unread)) = self.0 {
            unread.read(&state.cache.readings, || true);
        }
    }

    /// Reads the messages in the background while a core is free. The compaction reads the others. So as many
    /// bodies as there are cores may stay in memory a little longer than their requests, each of at most a
    /// fifth of the cache's size.
    /// Returns the task, if there is one.
    pub fn start(self) -> Option<JoinHandle<()>> {
        let (state, unread) = self.0?;
        let place = Arc::clone(&state.heavy).try_acquire_owned().ok()?;
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn_blocking(move || {
            let _place = place;
            // Plans that wait for a core go first.
            let is_free = || state.heavy.available_permits() > 0;
            let read = || unread.read(&state.cache.readings, is_free);
            if catch_unwind(AssertUnwindSafe(read)).is_err() {
                tracing::error!(target: "weir::fault", "reading ahead failed");
            }
        }))
    }
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = self.0.as_ref().map_or(0, |(_, unread)| unread.messages.len());
        formatter.debug_tuple("ReadAhead").field(&messages).finish()
    }
}

/// Part of no plan: two are equal if they send the same.
impl PartialEq for ReadAhead {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReadAhead {}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::wire::Role;

    const OF: (u128, u128) = (1, 2);

    fn reading(text: &str) -> Arc<Reading> {
        Arc::new(Reading::of_text(Role::User, text))
    }

    /// Returns messages of so many bytes, each with its index as its hash, and their body.
    fn messages(sizes: &[usize]) -> (Bytes, Vec<(u128, Range<usize>)>) {
        let (mut body, mut spans) = (String::new(), Vec::new());
        for (number, size) in sizes.iter().enumerate() {
            let start = body.len();
            let text = "word ".repeat(size / 5);
            body.push_str(&format!(r#"{{"role":"user","content":"{text}"}}"#));
            spans.push((number as u128, start..body.len()));
        }
        (body.into(), spans)
    }

    #[test]
    fn readings_are_of_the_same_message_alone() {
        let cache = ReadingCache::new(1 << 20);
        cache.keep(OF.0, vec![(0, (10, reading("a"))), (2, (12, reading("c")))]);
        let table = cache.look(OF.0);
        assert_eq!(table.get(0, 10).map(|own| own.text.as_str()), Some("a"));
        assert_eq!(table.get(2, 12).map(|own| own.text.as_str()), Some("c"));
        for (message, hash) in [(0, 11), (0, 12), (1, 11), (2, 10), (3, 12)] {
            assert!(table.get(message, hash).is_none(), "{message} {hash}");
        }
        assert!(cache.look(OF.1).get(0, 10).is_none(), "another conversation");
        let others = [(0, 10), (0, 11), (1, 11), (2, 13), (3, 13)];
        let others = others.map(|(message, hash)| table.has_other(message, hash));
        assert_eq!(others, [false, true, false, true, false]);
        // A branch has what is shared, and the conversation keeps the rest.
        cache.branch(&table, 2, OF.1);
        cache.keep(OF.1, vec![(2, (13, reading("d")))]);
        let found = [OF.0, OF.1].map(|of| {
            let table = cache.look(of);
            [(0, 10), (2, 12), (2, 13)].map(|(message, hash)| table.get(message, hash).is_some())
        });
        assert_eq!(found, [[true, true, false], [true, false, true]]);
    }

    #[test]
    fn too_many_readings_are_not_kept() {
        let cache = ReadingCache::new(10_000);
        cache.keep(OF.0, vec![(0, (1, reading("a")))]);
        cache.keep(OF.0, vec![(1, (2, reading(&"word 1 ".repeat(2000))))]);
        assert!(cache.look(OF.0).get(0, 1).is_none());
    }

    #[test]
    fn a_table_weighs_what_its_readings_take() {
        let one = reading(&"a word, 1 of many; ".repeat(200));
        assert!(one.memory_bytes() > size_of::<Reading>() + one.text.len());
        let table = Table(vec![Some((1, Arc::clone(&one))), None, Some((2, one.clone()))]);
        assert_eq!(table.memory_bytes(), 3 * ENTRY_BYTES + 2 * one.memory_bytes());
    }

    #[test]
    fn few_and_too_many_unread_messages_are_left() {
        let cache = ReadingCache::new(1 << 20);
        let unread = |sizes: &[usize]| {
            let (body, messages) = messages(sizes);
            cache.unread(OF.0, (Protocol::Chat, &body), messages.into_iter())
        };
        assert!(unread(&[]).is_none());
        assert!(unread(&[MIN_UNREAD_BYTES / 2]).is_none());
        assert!(unread(&[(1 << 20) / MEMORY_PER_BYTE + 5]).is_none());
        let wanted = unread(&[9000, 9000, 100]).expect("enough to read");
        wanted.read(&cache, || false);
        assert!(cache.look(OF.0).get(0, 0).is_none());
        wanted.read(&cache, || true);
        let table = cache.look(OF.0);
        assert!((0..3).all(|message| table.get(message, message as u128).is_some()));
        assert!(unread(&[9000, 9000, 100, 5000]).is_none());
        let more = unread(&[9000, 9000, 100, 5000, 20_000]).expect("enough to read");
        assert_eq!(more.messages.iter().map(|own| own.0).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_reading_takes_as_much_memory_as_expected() {
        let text = "fn main() { let value_1 = read(\"src/main.rs\")?; }\n".repeat(400);
        let memory_bytes = reading(&text).memory_bytes();
        let ratio = memory_bytes / text.len();
        assert!((MEMORY_PER_BYTE - 3..=MEMORY_PER_BYTE + 3).contains(&ratio), "{ratio}");
    }
}
