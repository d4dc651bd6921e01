//! Keys of conversations: keyed hashes over their messages, the same for all processes of a store.

use weir_engine::wire::Protocol;
use weir_store::Tenant;

/// Key of a conversation up to one of its messages.
pub(super) type Key = [u8; 32];

/// Maker of keys for one purpose.
pub(super) struct KeyChain {
    pub secret: Key,
}

impl KeyChain {
    /// Creates the maker for `purpose` from a store's secret.
    pub(super) fn new(purpose: &str, secret: &[u8]) -> Self {
        Self { secret: blake3::derive_key(purpose, secret) }
    }

    /// Returns the key of a conversation before its first message.
    pub(super) fn start(&self, tenant: Tenant, protocol: Protocol) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&tenant.0);
        hasher.update(&[protocol as u8]);
        *hasher.finalize().as_bytes()
    }

    /// Returns the key of a conversation after one more message.
    pub(super) fn next(&self, before: &Key, message: &str) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(before);
        hasher.update(message.as_bytes());
        *hasher.finalize().as_bytes()
    }
}
