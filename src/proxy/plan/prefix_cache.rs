//! Prefix cache: how far bodies were read, so that the next request of a conversation, which begins
//! with the same bytes, is read from there on. A prefix matches only if its hash under a secret of
//! this process does. Losing an entry changes no result, only its cost.

use std::cmp::Reverse;
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_secret};

use crate::proxy::cache::{Cache, CacheFigures, Lookups};
use weir_engine::wire::{Beginning, Prefix, Protocol, Request};
use weir_store::Tenant;

/// Minimum body size; shorter bodies are parsed again quickly.
const MIN_BYTES: usize = 16 << 10;
/// Memory of an entry besides its lists: key, pointers, the cache's own data.
const ENTRY_BYTES: usize = 600;

/// Maximum number of prefixes under one key.
const MOST_PREFIXES: usize = 4;

/// Prefixes of bodies, keyed by at least their first half. So conversations with the same opening
/// words differ. Under a key stand the newest prefix, the one that it continues, and others: requests
/// that branch off a conversation, such as side requests, do not displace it.
pub(super) struct PrefixCache {
    secret: [u8; 192],
    known: Cache<u128, Arc<[Arc<Known>]>>,
    lookups: Lookups,
}

/// Prefixes of a body, up to the ends of its last messages.
struct Known {
    read: Beginning,
    /// Hash of the bytes up to each end, in the order of [`Beginning::ends`].
    ends: Vec<u128>,
    /// Hashes of the messages in the list.
    hashes: Vec<u128>,
    /// Those of the messages outside it, each behind the hash of its bytes.
    outside: Vec<(u128, u128)>,
}

impl Known {
    /// Returns the memory that its lists take.
    fn memory_bytes(&self) -> usize {
        let hashes = self.hashes.len() + self.ends.len() + 2 * self.outside.len();
        self.read.memory_bytes() + hashes * size_of::<u128>()
    }

    /// Returns the end of the longest prefix that `body` begins with. `hashed` is the hash of its first
    /// bytes.
    fn shared(&self, body: &[u8], mut hashed: Hashed) -> Option<usize> {
        let ends = self.read.ends().iter().zip(&self.ends);
        let is_same = |(end, hash): &(&usize, &u128)| hashed.up_to(body, **end) == Some(**hash);
        ends.take_while(is_same).last().map(|(end, _)| *end)
    }
}

/// Prefix that a body begins with.
pub(super) struct SharedPrefix {
    known: Arc<Known>,
    end: usize,
    /// Messages of the list in it.
    messages: usize,
}

impl SharedPrefix {
    /// Returns how far it is read.
    pub(super) fn prefix(&self) -> Prefix<'_> {
        self.known.read.up_to(self.end)
    }
}

/// Lookup result for a body.
pub(super) struct Looked {
    /// Keys of prefixes that end within the body's last power of two and the one before it.
    keys: [(usize, u128); 2],
    hashed: Hashed,
    pub(super) shared: Option<SharedPrefix>,
}

/// Running hash of the first `bytes` bytes.
#[derive(Clone)]
struct Hashed {
    hasher: Xxh3,
    bytes: usize,
}

impl Hashed {
    /// Returns the hash of the first `end` bytes; `None` if more are hashed already or the body is
    /// shorter.
    fn up_to(&mut self, body: &[u8], end: usize) -> Option<u128> {
        self.hasher.update(body.get(self.bytes..end)?);
        self.bytes = end;
        Some(self.hasher.digest128())
    }
}

impl PrefixCache {
    /// Creates a cache of at most `max_bytes`.
    pub(super) fn new(secret: [u8; 192], max_bytes: u64) -> Self {
        let weigh = |known: &Arc<[Arc<Known>]>| {
            let bytes = known.iter().map(|own| ENTRY_BYTES + own.memory_bytes());
            u32::try_from(bytes.sum::<usize>()).unwrap_or(u32::MAX)
        };
        let known = Cache::builder(max_bytes).weigh(weigh).build();
        Self { secret, known, lookups: Lookups::default() }
    }

    /// Returns its figures.
    pub(super) fn figures(&self) -> CacheFigures {
        CacheFigures::new("prefixes", Some(&self.lookups), self.known.weight())
    }

    /// Looks up the longest known prefix of `body`; `None` if a body is too short to be worth it.
    pub(super) fn look(&self, tenant: Tenant, protocol: Protocol, body: &[u8]) -> Option<Looked> {
        let high = 1usize << body.len().checked_ilog2().filter(|_| body.len() >= MIN_BYTES)?;
        let mut hashed = Hashed { hasher: Xxh3::with_secret(self.secret), bytes: 0 };
        let mut keys = [(0, 0); 2];
        let mut shared = None;
        for (place, least) in [high / 2, high].into_iter().enumerate() {
            let key = self.key(tenant, protocol, hashed.up_to(body, least)?);
            keys[place] = (least, key);
            let mut candidates = self.known.get(&key).map_or_else(Vec::new, |known| known.to_vec());
            // In most cases the longest one is continued, and the body is hashed once.
            candidates.sort_by_key(|known| Reverse(known.read.whole().end()));
            for known in candidates {
                // The rest is no longer than what is found: the body is not hashed again for it.
                let whole_end = known.read.whole().end();
                if shared.as_ref().is_some_and(|shared: &SharedPrefix| shared.end >= whole_end) {
                    break;
                }
                let Some(end) = known.shared(body, hashed.clone()) else { continue };
                if shared.as_ref().is_none_or(|shared| shared.end < end) {
                    let messages = known.read.up_to(end).messages();
                    shared = Some(SharedPrefix { known, end, messages });
                }
            }
        }
        self.lookups.note(shared.is_some());
        Some(Looked { keys, hashed, shared })
    }

    /// Records how far `request`, whose body was looked up, was read. `hashes` are those of its
    /// messages.
    pub(super) fn keep(&self, looked: &Looked, request: &Request<'_>, hashes: &[u128]) {
        let Some(read) = Beginning::of(request) else { return };
        let (Some(first), Some(last)) = (read.ends().first(), read.ends().last()) else { return };
        if looked.shared.as_ref().is_some_and(|shared| shared.end == *last) {
            return;
        }
        // The key must be that of each of its prefixes.
        let [low, high] = looked.keys;
        let (mut hashed, (least, key)) = match *first >= high.0 {
            true => (looked.hashed.clone(), high),
            false if *first >= low.0 => {
                (Hashed { hasher: Xxh3::with_secret(self.secret), bytes: 0 }, low)
            }
            false => return,
        };
        let body = request.text.as_bytes();
        let ends = read.ends().iter().map(|end| hashed.up_to(body, *end));
        let Some(ends) = ends.collect() else { return };
        let (outside, hashes) = hashes.split_at(request.outside);
        let outside = outside.iter().zip(&request.messages);
        let outside = outside.map(|(hash, raw)| (self.raw_hash(raw), *hash)).collect();
        let hashes = hashes.to_vec();
        let newest = Arc::new(Known { read, ends, hashes, outside });
        let continued = looked.shared.iter().map(|shared| &shared.known);
        let continued = continued.filter(|known| known.read.ends()[0] >= least);
        let others = self.known.get(&key);
        let others = others.iter().flat_map(|others| others.iter());
        let mut all = vec![newest];
        for own in continued.chain(others) {
            if all.len() < MOST_PREFIXES && !all.iter().any(|known| known.ends == own.ends) {
                all.push(Arc::clone(own));
            }
        }
        self.known.insert(&key, all.into());
    }

    /// Returns the hash of a message of `request`, which was looked up, if an earlier request had the
    /// same.
    pub(super) fn hash(
        &self,
        looked: &Looked,
        request: &Request<'_>,
        message: usize,
    ) -> Option<u128> {
        let SharedPrefix { known, messages, .. } = looked.shared.as_ref()?;
        if let Some(listed) = message.checked_sub(request.outside) {
            return known.hashes.get(listed).copied().filter(|_| listed < *messages);
        }
        // It may stand behind the list.
        let (bytes, hash) = known.outside.get(message)?;
        (self.raw_hash(request.messages[message]) == *bytes).then_some(*hash)
    }

    fn raw_hash(&self, raw: &str) -> u128 {
        xxh3_128_with_secret(raw.as_bytes(), &self.secret)
    }

    fn key(&self, tenant: Tenant, protocol: Protocol, hash: u128) -> u128 {
        let mut hasher = Xxh3::with_secret(self.secret);
        hasher.update(&tenant.0);
        hasher.update(&[protocol as u8]);
        hasher.update(&hash.to_le_bytes());
        hasher.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: Tenant = Tenant([7; 16]);
    const ALL: [Protocol; 3] = [Protocol::Chat, Protocol::Responses, Protocol::Messages];

    /// Returns a body of alternating messages, with the members `end` after the list of messages.
    fn body(protocol: Protocol, messages: usize, end: &str) -> String {
        let texts = (0..messages).map(|number| {
            let role = if number % 2 == 0 { "user" } else { "assistant" };
            let text = format!("{number} é \\\" ").repeat(700);
            format!(r#"{{"role":"{role}","content":"{text}"}}"#)
        });
        let texts: Vec<String> = texts.collect();
        listed(protocol, &texts, end)
    }

    fn listed(protocol: Protocol, messages: &[String], end: &str) -> String {
        let list = if protocol == Protocol::Responses { "input" } else { "messages" };
        let messages = messages.join(",");
        format!(r#"{{"model":"gpt-4o","instructions":"Be.","{list}":[{messages}]{end}}}"#)
    }

    fn keep(cache: &PrefixCache, tenant: Tenant, protocol: Protocol, body: &str) {
        let looked = cache.look(tenant, protocol, body.as_bytes()).expect("it is long enough");
        let request = protocol.read(body.as_bytes(), 1000).expect("readable");
        let hashes: Vec<u128> = (0..request.messages.len() as u128).collect();
        cache.keep(&looked, &request, &hashes);
    }

    /// Returns the number of messages whose hashes are known, after the body is read on and read whole
    /// with the same result.
    fn messages(
        cache: &PrefixCache,
        tenant: Tenant,
        protocol: Protocol,
        body: &str,
    ) -> Option<usize> {
        let looked = cache.look(tenant, protocol, body.as_bytes())?;
        let shared = looked.shared.as_ref()?;
        let on = protocol.read_on(body.as_bytes(), shared.prefix(), 1000).expect("readable");
        let whole = protocol.read(body.as_bytes(), 1000).expect("readable");
        assert_eq!(on, whole);
        let hashes = (0..whole.messages.len()).map(|message| cache.hash(&looked, &whole, message));
        let hashes: Vec<u128> = hashes.flatten().collect();
        assert!(hashes.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        Some(hashes.len())
    }

    #[test]
    fn a_conversation_is_taken_up_where_it_was_left() {
        for protocol in ALL {
            let cache = PrefixCache::new([3; 192], 1 << 20);
            let messages = |tenant, body: &str| messages(&cache, tenant, protocol, body);
            assert_eq!(messages(TENANT, &body(protocol, 39, "")), None);
            let outside = usize::from(protocol == Protocol::Responses);
            for length in (39..90).step_by(2) {
                keep(&cache, TENANT, protocol, &body(protocol, length, ""));
                let next = body(protocol, length + 2, r#","stream":true,"n":2"#);
                let known = messages(TENANT, &next).expect("known");
                assert_eq!(known, length + outside, "{protocol:?}");
                assert_eq!(messages(Tenant([8; 16]), &next), None);
                for other in ALL.into_iter().filter(|other| *other != protocol) {
                    let looked = cache.look(TENANT, other, next.as_bytes());
                    assert!(looked.is_some_and(|looked| looked.shared.is_none()), "{other:?}");
                }
            }
        }
    }

    #[test]
    fn marks_that_move_shorten_a_beginning() {
        let protocol = Protocol::Messages;
        let marked = |length: usize, marks: usize| {
            let message = |number: usize| {
                let role = if number.is_multiple_of(2) { "user" } else { "assistant" };
                let is_marked = number + 2 * marks > length && number.is_multiple_of(2);
                let mark = if is_marked { r#","cache_control":{"type":"ephemeral"}"# } else { "" };
                let text = format!("{number} é \\\" ").repeat(700);
                format!(
                    r#"{{"role":"{role}","content":[{{"type":"text","text":"{text}"{mark}}}]}}"#
                )
            };
            listed(protocol, &(0..length).map(message).collect::<Vec<_>>(), r#","system":"Be.""#)
        };
        for marks in [1, 2] {
            let cache = PrefixCache::new([3; 192], 1 << 20);
            let mut taken_up = 0;
            for length in (9..90).step_by(2) {
                let next = marked(length, marks);
                // Where a body passes a power of two, the mark may lie before the prefix's key.
                let known = messages(&cache, TENANT, protocol, &next);
                let expected = length - 2 * marks;
                assert!(known.is_none_or(|known| known == expected), "{known:?} of {length}");
                taken_up += usize::from(known.is_some());
                keep(&cache, TENANT, protocol, &next);
            }
            assert!(taken_up >= 36, "{taken_up} were taken up");
        }
    }

    #[test]
    fn a_side_request_does_not_displace_its_conversation() {
        let beginnings = PrefixCache::new([3; 192], 1 << 20);
        keep(&beginnings, TENANT, Protocol::Chat, &body(Protocol::Chat, 40, ""));
        for length in (40..90).step_by(2) {
            let side =
                body(Protocol::Chat, length + 1, "").replace(&format!("{length} é"), "Name this");
            assert_eq!(
                messages(&beginnings, TENANT, Protocol::Chat, &side),
                Some(length),
                "{length}"
            );
            keep(&beginnings, TENANT, Protocol::Chat, &side);
            let next = body(Protocol::Chat, length + 2, "");
            assert_eq!(
                messages(&beginnings, TENANT, Protocol::Chat, &next),
                Some(length),
                "{length}"
            );
            keep(&beginnings, TENANT, Protocol::Chat, &next);
        }
    }

    #[test]
    fn a_run_that_may_go_on_is_left_out() {
        let item = |kind: &str, number: usize| {
            let text = format!("{number} word ").repeat(2000);
            format!(r#"{{"type":"{kind}","call_id":"c","name":"n","arguments":"{text}"}}"#)
        };
        let protocol = Protocol::Responses;
        let mut items: Vec<String> = Vec::new();
        for turn in 0..6 {
            items.push(item("function_call", turn));
            items.push(item("function_call_output", turn));
        }
        items.push(item("function_call", 7));
        let cache = PrefixCache::new([3; 192], 1 << 20);
        keep(&cache, TENANT, protocol, &listed(protocol, &items, ""));
        items.push(item("function_call", 8));
        let next = listed(protocol, &items, "");
        assert_eq!(messages(&cache, TENANT, protocol, &next), Some(13));
        let request = protocol.read(next.as_bytes(), 100).expect("readable");
        assert_eq!(request.messages.len(), 14);
    }

    #[test]
    fn another_byte_anywhere_is_another_beginning() {
        let (cache, before) = (PrefixCache::new([3; 192], 1 << 20), body(Protocol::Chat, 60, ""));
        keep(&cache, TENANT, Protocol::Chat, &before);
        let end = before.len() - 2;
        for at in [1, 100, end / 3, end / 2, end * 2 / 3, end - 40] {
            let at = (at..).find(|at| before.as_bytes()[*at].is_ascii_alphanumeric());
            let at = at.expect("there is one");
            let mut other = before.clone();
            other.replace_range(at..=at, if &before[at..=at] == "x" { "y" } else { "x" });
            let looked = cache.look(TENANT, Protocol::Chat, other.as_bytes());
            assert!(looked.expect("it is long enough").shared.is_none(), "{at}");
        }
        let short = &before.as_bytes()[..MIN_BYTES - 1];
        assert!(cache.look(TENANT, Protocol::Chat, short).is_none());
    }

    #[test]
    fn a_short_beginning_of_a_long_body_is_left() {
        let protocol = Protocol::Chat;
        let cache = PrefixCache::new([3; 192], 1 << 20);
        let tools = format!(r#","tools":[{}1]"#, "1,".repeat(200_000));
        let long = body(protocol, 20, &tools);
        keep(&cache, TENANT, protocol, &long);
        assert_eq!(messages(&cache, TENANT, protocol, &long), None);
        // Nor is a longer known prefix used for a body that ends before it.
        keep(&cache, TENANT, protocol, &body(protocol, 90, ""));
        assert_eq!(messages(&cache, TENANT, protocol, &body(protocol, 70, "")), None);
    }
}
