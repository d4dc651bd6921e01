//! Prefix cache: how far bodies were read, so that the next request of a conversation, which begins
//! with the same bytes, is read from there on. A prefix matches only if its hash under a secret of
//! this process does. Losing an entry changes no result, only its cost.

use std::sync::Arc;

use moka::sync::Cache;
use xxhash_rust::xxh3::Xxh3;

use weir_engine::wire::Beginning;
use weir_store::Tenant;

/// Minimum body size; shorter bodies are parsed again quickly.
const MIN_BYTES: usize = 64 << 10;
/// Memory per message of an entry.
const MESSAGE_BYTES: usize = 40;
/// Memory of an entry besides its messages: key, pointers, the cache's own data.
const ENTRY_BYTES: usize = 600;

/// Maximum number of prefixes under one key.
const MOST_PREFIXES: usize = 4;

/// Prefixes of bodies, keyed by at least their first half. So conversations with the same opening
/// words differ. Under a key stand the newest prefix, the one that it continues, and others: requests
/// that branch off a conversation, such as side requests, do not displace it.
pub(super) struct PrefixCache {
    secret: [u8; 192],
    known: Cache<u128, Arc<[Arc<Known>]>>,
}

/// Prefix of a body, up to the end of its last message.
pub(super) struct Known {
    bytes: usize,
    hash: u128,
    pub read: Beginning,
    /// Hashes of its messages.
    pub hashes: Vec<u128>,
}

/// Lookup result for a body.
pub(super) struct Looked {
    /// Keys of prefixes that end within the body's last power of two and the one before it.
    keys: [(usize, u128); 2],
    hashed: Hashed,
    pub known: Option<Arc<Known>>,
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
        let weight = |_: &u128, known: &Arc<[Arc<Known>]>| {
            let own = known.iter().map(|known| ENTRY_BYTES + known.hashes.len() * MESSAGE_BYTES);
            u32::try_from(own.sum::<usize>()).unwrap_or(u32::MAX)
        };
        Self { secret, known: Cache::builder().weigher(weight).max_capacity(max_bytes).build() }
    }

    /// Looks up the longest known prefix of `body`; `None` if a body is too short to be worth it.
    pub(super) fn look(&self, tenant: Tenant, body: &[u8]) -> Option<Looked> {
        let high = 1usize << body.len().checked_ilog2().filter(|_| body.len() >= MIN_BYTES)?;
        let mut hashed = Hashed { hasher: Xxh3::with_secret(self.secret), bytes: 0 };
        let mut keys = [(0, 0); 2];
        let mut known = None;
        for (place, least) in [high / 2, high].into_iter().enumerate() {
            let key = self.key(tenant, hashed.up_to(body, least)?);
            keys[place] = (least, key);
            let mut candidates = self.known.get(&key).map_or_else(Vec::new, |known| known.to_vec());
            // The body is hashed once, from the shortest to the longest.
            candidates.sort_by_key(|candidate| candidate.bytes);
            let mut read = hashed.clone();
            for candidate in candidates {
                if read.up_to(body, candidate.bytes) == Some(candidate.hash) {
                    known = Some(candidate);
                }
            }
        }
        Some(Looked { keys, hashed, known })
    }

    /// Records how far `body`, which was looked up, was read. `hashes` are those of its messages.
    pub(super) fn keep(&self, looked: &Looked, body: &[u8], read: Beginning, hashes: &[u128]) {
        let bytes = read.end();
        if looked.known.as_ref().is_some_and(|known| known.bytes == bytes) {
            return;
        }
        let [low, high] = looked.keys;
        let (hash, (least, key)) = match bytes >= high.0 {
            true => (looked.hashed.clone().up_to(body, bytes), high),
            false if bytes >= low.0 => {
                let mut hashed = Hashed { hasher: Xxh3::with_secret(self.secret), bytes: 0 };
                (hashed.up_to(body, bytes), low)
            }
            false => return,
        };
        let Some(hash) = hash else { return };
        let newest = Arc::new(Known { bytes, hash, read, hashes: hashes.to_vec() });
        let continued = looked.known.iter().filter(|known| known.bytes >= least);
        let others = self.known.get(&key);
        let others = others.iter().flat_map(|others| others.iter());
        let mut all = vec![newest];
        for own in continued.chain(others) {
            let is_there = |known: &Arc<Known>| (known.bytes, known.hash) == (own.bytes, own.hash);
            if all.len() < MOST_PREFIXES && !all.iter().any(is_there) {
                all.push(Arc::clone(own));
            }
        }
        self.known.insert(key, all.into());
    }

    fn key(&self, tenant: Tenant, hash: u128) -> u128 {
        let mut hasher = Xxh3::with_secret(self.secret);
        hasher.update(&tenant.0);
        hasher.update(&hash.to_le_bytes());
        hasher.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::wire::Protocol;

    const TENANT: Tenant = Tenant([7; 16]);

    fn body(messages: usize, end: &str) -> String {
        let texts = (0..messages).map(|number| {
            let text = format!("{number} é \\\" ").repeat(700);
            format!(r#"{{"role":"user","content":"{text}"}}"#)
        });
        let texts: Vec<String> = texts.collect();
        format!(r#"{{"model":"gpt-4o","messages":[{}]{end}}}"#, texts.join(","))
    }

    fn keep(beginnings: &PrefixCache, tenant: Tenant, body: &str) {
        let looked = beginnings.look(tenant, body.as_bytes()).expect("it is long enough");
        let request = Protocol::Chat.read(body.as_bytes(), 1000).expect("readable");
        let hashes = vec![1; request.messages.len()];
        let read = Protocol::Chat.beginning(&request).expect("it has messages");
        beginnings.keep(&looked, body.as_bytes(), read, &hashes);
    }

    fn messages(beginnings: &PrefixCache, tenant: Tenant, body: &str) -> Option<usize> {
        let looked = beginnings.look(tenant, body.as_bytes())?;
        let known = looked.known.as_ref()?;
        let on = Protocol::Chat.read_on(body.as_bytes(), &known.read, 1000).expect("readable");
        let anew = Protocol::Chat.read(body.as_bytes(), 1000).expect("readable");
        assert_eq!(on, anew);
        Some(known.hashes.len())
    }

    #[test]
    fn a_conversation_is_taken_up_where_it_was_left() {
        let beginnings = PrefixCache::new([3; 192], 1 << 20);
        assert_eq!(messages(&beginnings, TENANT, &body(40, "")), None);
        for length in 40..90 {
            keep(&beginnings, TENANT, &body(length, ""));
            let next = body(length + 2, r#","stream":true,"n":2"#);
            assert_eq!(messages(&beginnings, TENANT, &next), Some(length), "{length}");
            assert_eq!(messages(&beginnings, Tenant([8; 16]), &next), None);
        }
    }

    #[test]
    fn a_side_request_does_not_displace_its_conversation() {
        let beginnings = PrefixCache::new([3; 192], 1 << 20);
        keep(&beginnings, TENANT, &body(40, ""));
        for length in (40..90).step_by(2) {
            let side = body(length + 1, "").replace(&format!("{length} é"), "Name this");
            assert_eq!(messages(&beginnings, TENANT, &side), Some(length), "{length}");
            keep(&beginnings, TENANT, &side);
            let next = body(length + 2, "");
            assert_eq!(messages(&beginnings, TENANT, &next), Some(length), "{length}");
            keep(&beginnings, TENANT, &next);
        }
    }

    #[test]
    fn another_byte_anywhere_is_another_beginning() {
        let (beginnings, before) = (PrefixCache::new([3; 192], 1 << 20), body(60, ""));
        keep(&beginnings, TENANT, &before);
        let end = before.len() - 2;
        for at in [1, 100, end / 3, end / 2, end * 2 / 3, end - 40] {
            let at = (at..).find(|at| before.as_bytes()[*at].is_ascii_alphanumeric());
            let at = at.expect("there is one");
            let mut other = before.clone();
            other.replace_range(at..=at, if &before[at..=at] == "x" { "y" } else { "x" });
            let looked = beginnings.look(TENANT, other.as_bytes()).expect("it is long enough");
            assert!(looked.known.is_none(), "{at}");
        }
        assert!(beginnings.look(TENANT, &before.as_bytes()[..MIN_BYTES - 1]).is_none());
    }

    #[test]
    fn a_short_beginning_of_a_long_body_is_left() {
        let beginnings = PrefixCache::new([3; 192], 1 << 20);
        let tools = format!(r#","tools":[{}1]"#, "1,".repeat(200_000));
        let long = body(20, &tools);
        keep(&beginnings, TENANT, &long);
        assert_eq!(messages(&beginnings, TENANT, &long), None);
        // Nor is a longer known prefix used for a body that ends before it.
        keep(&beginnings, TENANT, &body(90, ""));
        assert_eq!(messages(&beginnings, TENANT, &body(70, "")), None);
    }
}
