//! Readings of messages, kept between requests. A compaction reads all messages, even those removed earlier, so
//! each reading is usually made once: by the first compaction, or before it in the background. Losing an entry
//! changes no result, only its cost.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::proxy::cache::{Cache, CacheFigures, Lookups};
use weir_engine::compact::reading::Reading;
use weir_engine::compact::source::read_and_search;
use weir_engine::wire::Protocol;

/// Memory of a message in a table besides its reading.
const ENTRY_BYTES: usize = size_of::<Option<Entry>>() + 16;
/// Memory that a reading takes for each byte of its message: 2.2 to 3.6 in recorded conversations.
const MEMORY_PER_BYTE: usize = 3;
/// Minimum bytes of unread messages that are worth a task of their own.
const MIN_UNREAD_BYTES: usize = 16 << 10;

/// Readings by conversation.
pub(super) struct ReadingCache {
    tables: Cache<u128, Arc<Table>>,
    max_bytes: u64,
    lookups: Lookups,
}

/// Key of a conversation's readings, which its requests share.
#[derive(Clone)]
pub(super) struct ReadingKey {
    key: u128,
    /// Whether it had readings. If they are gone, others have taken their room, and only its next compaction
    /// reads the messages again: conversations must not take turns in replacing each other's readings.
    had_readings: Arc<AtomicBool>,
}

impl ReadingKey {
    pub(super) fn new(key: u128) -> Self {
        Self { key, had_readings: Arc::default() }
    }
}

/// Readings of a conversation's messages, by index.
#[derive(Clone, Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    /// Memory that they take.
    bytes: usize,
}

/// Hash of a message and its reading.
type Entry = (u128, Arc<Reading>);

impl Table {
    /// Returns the reading of a message with this hash.
    pub(super) fn get(&self, message: usize, hash: u128) -> Option<&Arc<Reading>> {
        let (own, reading) = self.entries.get(message)?.as_ref()?;
        (*own == hash).then_some(reading)
    }

    /// Whether it has the reading of another message instead of one with this hash.
    pub(super) fn has_other(&self, message: usize, hash: u128) -> bool {
        let own = self.entries.get(message).and_then(Option::as_ref);
        own.is_some_and(|(own, _)| *own != hash)
    }

    fn set(&mut self, message: usize, entry: Entry) {
        if self.entries.len() <= message {
            self.bytes += (message + 1 - self.entries.len()) * ENTRY_BYTES;
            self.entries.resize(message + 1, None);
        }
        self.bytes += entry.1.memory_bytes();
        if let Some((_, before)) = self.entries[message].replace(entry) {
            self.bytes = self.bytes.saturating_sub(before.memory_bytes());
        }
    }
}

impl ReadingCache {
    /// Creates a cache of at most `max_bytes`.
    pub(super) fn new(max_bytes: u64) -> Self {
        let weigh = |table: &Arc<Table>| u32::try_from(table.bytes).unwrap_or(u32::MAX);
        let tables = Cache::builder(max_bytes).weigh(weigh).least_recently_used().build();
        Self { tables, max_bytes, lookups: Lookups::default() }
    }

    /// Returns its figures.
    pub(super) fn figures(&self) -> CacheFigures {
        CacheFigures::new("readings", Some(&self.lookups), self.tables.weight())
    }

    /// Returns the readings of a conversation.
    pub(super) fn look(&self, conversation: &ReadingKey) -> Arc<Table> {
        self.tables.get(&conversation.key).unwrap_or_default()
    }

    /// Counts the messages that a plan asked for: those whose readings were kept, and the others.
    pub(super) fn note(&self, kept: usize, others: usize) {
        self.lookups.note_all(kept as u64, others as u64);
    }

    /// Adds readings to those of a conversation, each with the index and the hash of its message. If all take
    /// more memory than there is, none stay.
    pub(super) fn keep(&self, conversation: &ReadingKey, new: Vec<(usize, Entry)>) {
        if new.is_empty() {
            return;
        }
        let mut table = self.look(conversation);
        let own = Arc::make_mut(&mut table);
        for (message, entry) in new {
            own.set(message, entry);
        }
        match table.bytes as u64 <= self.max_bytes {
            true => self.tables.insert(&conversation.key, table),
            false => self.tables.remove(&conversation.key),
        }
        conversation.had_readings.store(true, Ordering::Relaxed);
    }

    /// Returns those of a conversation's messages, given by hash and span in `body`, that are not read yet;
    /// `None` if they are too few, or too many to keep, or if the conversation's readings are gone.
    pub(super) fn unread(
        &self,
        conversation: &ReadingKey,
        (protocol, body): (Protocol, &Bytes),
        messages: impl Iterator<Item = (u128, Range<usize>)>,
    ) -> Option<Unread> {
        let table = self.look(conversation);
        let are_gone =
            table.entries.is_empty() && conversation.had_readings.load(Ordering::Relaxed);
        if are_gone || (body.len() * MEMORY_PER_BYTE) as u64 > self.max_bytes {
            return None;
        }
        let unread = |(message, (hash, span)): (usize, (u128, Range<usize>))| {
            table.get(message, hash).is_none().then_some((message, hash, span))
        };
        let messages: Vec<_> = messages.enumerate().filter_map(unread).collect();
        let bytes: usize = messages.iter().map(|(_, _, span)| span.len()).sum();
        let (conversation, body) = (conversation.clone(), body.clone());
        (bytes >= MIN_UNREAD_BYTES).then_some(Unread { conversation, protocol, body, messages })
    }
}

/// Messages of a conversation that its next compaction will ask for, and that are not read yet.
#[derive(Clone)]
pub(super) struct Unread {
    conversation: ReadingKey,
    protocol: Protocol,
    body: Bytes,
    /// Index, hash and span in `body` of each.
    pub(super) messages: Vec<(usize, u128, Range<usize>)>,
}

impl Unread {
    /// Reads the messages in order while each gets a `place`, and keeps the readings.
    pub(super) fn read<P>(&self, cache: &ReadingCache, place: impl Fn() -> Option<P>) {
        let read = |(message, hash, span): &(usize, u128, Range<usize>)| {
            let _place = place()?;
            let raw = self.body.get(span.clone())?;
            let reading = read_and_search(self.protocol, std::str::from_utf8(raw).ok()?);
            Some((*message, (*hash, Arc::new(reading))))
        };
        cache.keep(&self.conversation, self.messages.iter().map_while(read).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use serde_json::Value;

    use super::*;
    use weir_engine::wire::Role;

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
        let (cache, own) = (ReadingCache::new(1 << 20), ReadingKey::new(1));
        cache.keep(&own, vec![(0, (10, reading("a"))), (2, (12, reading("c")))]);
        let table = cache.look(&own);
        assert_eq!(table.get(0, 10).map(|reading| reading.text.as_str()), Some("a"));
        assert_eq!(table.get(2, 12).map(|reading| reading.text.as_str()), Some("c"));
        for (message, hash) in [(0, 11), (0, 12), (1, 11), (2, 10), (3, 12)] {
            assert!(table.get(message, hash).is_none(), "{message} {hash}");
        }
        assert!(cache.look(&ReadingKey::new(2)).get(0, 10).is_none(), "another conversation");
        let others = [(0, 10), (0, 11), (1, 11), (2, 13), (3, 13)];
        let others = others.map(|(message, hash)| table.has_other(message, hash));
        assert_eq!(others, [false, true, false, true, false]);
        cache.keep(&own, vec![(2, (13, reading("d")))]);
        let table = cache.look(&own);
        assert!(table.get(2, 12).is_none() && table.get(2, 13).is_some(), "it is replaced");
    }

    #[test]
    fn too_many_readings_are_not_kept() {
        let (cache, own) = (ReadingCache::new(10_000), ReadingKey::new(1));
        cache.keep(&own, vec![(0, (1, reading("a")))]);
        cache.keep(&own, vec![(1, (2, reading(&"word 1 ".repeat(2000))))]);
        assert!(cache.look(&own).get(0, 1).is_none());
    }

    #[test]
    fn a_table_weighs_what_its_readings_take() {
        let one = reading(&"a word, 1 of many; ".repeat(200));
        assert!(one.memory_bytes() > size_of::<Reading>() + one.text.len());
        let mut table = Table::default();
        for (message, hash) in [(2, 1), (0, 2), (2, 3)] {
            table.set(message, (hash, Arc::clone(&one)));
        }
        assert_eq!(table.bytes, 3 * ENTRY_BYTES + 2 * one.memory_bytes());
    }

    #[test]
    fn few_and_too_many_unread_messages_are_left() {
        let (cache, own) = (ReadingCache::new(1 << 20), ReadingKey::new(1));
        let unread = |sizes: &[usize]| {
            let (body, messages) = messages(sizes);
            cache.unread(&own, (Protocol::Chat, &body), messages.into_iter())
        };
        assert!(unread(&[]).is_none());
        assert!(unread(&[MIN_UNREAD_BYTES / 2]).is_none());
        assert!(unread(&[(1 << 20) / MEMORY_PER_BYTE + 5]).is_none());
        let wanted = unread(&[9000, 9000, 100]).expect("enough to read");
        wanted.read(&cache, || None::<()>);
        assert!(cache.look(&own).get(0, 0).is_none());
        wanted.read(&cache, || Some(()));
        let table = cache.look(&own);
        assert!((0..3).all(|message| table.get(message, message as u128).is_some()));
        assert!(unread(&[9000, 9000, 100, 5000]).is_none());
        let more = unread(&[9000, 9000, 100, 5000, 20_000]).expect("enough to read");
        assert_eq!(more.messages.iter().map(|message| message.0).collect::<Vec<_>>(), [3, 4]);
        // Others have taken the room.
        cache.tables.remove(&own.key);
        assert!(unread(&[9000, 9000, 100]).is_none());
        cache.keep(&own, vec![(0, (0, reading("a")))]);
        assert!(unread(&[9000, 9000, 9000]).is_some(), "a compaction has read them again");
    }

    #[test]
    fn readings_take_as_much_memory_as_expected() {
        let file = include_bytes!("../../../tests/data/traces/sample.jsonl.gz");
        let mut text = String::new();
        GzDecoder::new(&file[..]).read_to_string(&mut text).expect("compressed text");
        let (mut bytes, mut memory_bytes) = (0, 0);
        for line in text.lines() {
            let record: Value = serde_json::from_str(line).expect("a record a line");
            for message in record["messages"].as_array().expect("messages") {
                let raw = message.to_string();
                bytes += raw.len();
                memory_bytes += read_and_search(Protocol::Chat, &raw).memory_bytes() + ENTRY_BYTES;
            }
        }
        let expected = (MEMORY_PER_BYTE - 1) * bytes..=(MEMORY_PER_BYTE + 1) * bytes;
        assert!(expected.contains(&memory_bytes), "{memory_bytes} for {bytes}");
    }
}
