//! Keys of summaries: keyed hashes of the summarised messages, under the store's secret. So all
//! processes of one store find the same, and keys reveal nothing about contents.

use weir_store::{SECRET_BYTES, Tenant};

/// Keyed hash.
pub(super) type Key = [u8; 32];

/// Computes keys.
pub(super) struct SummaryKeys {
    secret: [u8; 32],
}

impl SummaryKeys {
    pub(super) fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        Self { secret: blake3::derive_key("weir 2026-11 summaries", secret) }
    }

    /// Returns the key of the messages that a compaction removes, in this order.
    pub(super) fn span<'a>(&self, tenant: Tenant, messages: impl Iterator<Item = &'a str>) -> Key {
        self.of(b"span", tenant, messages)
    }

    /// Returns the key of a span's start: the conversation up to its first message.
    pub(super) fn start(&self, tenant: Tenant, messages: &[&str]) -> Key {
        self.of(b"start", tenant, messages.iter().copied())
    }

    fn of<'a>(&self, kind: &[u8], tenant: Tenant, messages: impl Iterator<Item = &'a str>) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(kind);
        hasher.update(&tenant.0);
        for message in messages {
            // With their lengths, so that no two lists concatenate to the same bytes.
            hasher.update(&(message.len() as u64).to_le_bytes());
            hasher.update(message.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_one_list_of_one_tenant() {
        let keys = SummaryKeys::new(&[7; SECRET_BYTES]);
        let (one, other) = (Tenant([1; 16]), Tenant([2; 16]));
        let all = [
            keys.span(one, ["a", "b"].into_iter()),
            keys.span(one, ["ab"].into_iter()),
            keys.span(one, ["b", "a"].into_iter()),
            keys.span(other, ["a", "b"].into_iter()),
            keys.start(one, &["a", "b"]),
            SummaryKeys::new(&[8; SECRET_BYTES]).span(one, ["a", "b"].into_iter()),
        ];
        for (index, key) in all.iter().enumerate() {
            assert!(!all[..index].contains(key), "{index}");
        }
        assert_eq!(all[0], keys.span(one, ["a", "b"].into_iter()));
    }
}
