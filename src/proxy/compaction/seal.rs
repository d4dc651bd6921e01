//! Sealed contents of compaction items: encrypted and authenticated, so that only the caller that they
//! were made for can send them back, and nobody can forge one. Any instance with the same secret opens
//! them, and nothing is stored.
//!
//! An item is sealed by AES-256-GCM under a key of its own, derived by HKDF from the secret and a random
//! salt. Its tenant and the version of its format are authenticated with it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

use weir_engine::wire::compaction::Opened;
use weir_store::{SECRET_BYTES, Tenant};

/// Prefix of weir's own items, with the version of their format. Those of providers have another.
pub const PREFIX: &str = "weir1.";
/// Maximum size of a sealed content.
pub const MAX_SEALED_BYTES: usize = 32 << 20;
const SALT_BYTES: usize = 16;
/// First byte of a content that stands for all items before it, or for its own place.
const WHOLE: u8 = b'a';
const PLACE: u8 = b'p';

/// Reason why an item cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealError {
    /// It is larger than [`MAX_SEALED_BYTES`].
    TooLarge,
    /// It was changed, cut, or sealed for another tenant or under another secret.
    Broken,
}

/// Seals contents under the secret of the instances.
#[derive(Clone)]
pub struct Sealer {
    secret: [u8; SECRET_BYTES],
}

impl Sealer {
    /// Creates a sealer; others with the same secret open what it seals.
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        Self { secret: blake3::derive_key("weir 1 seals of compaction items", secret) }
    }

    /// Seals a content for a tenant.
    ///
    /// # Errors
    ///
    /// [`SealError::TooLarge`] if nobody could open it; [`SealError::Broken`] if the system gives no
    /// random bytes.
    pub fn seal(&self, tenant: Tenant, content: &Opened) -> Result<String, SealError> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|_| SealError::Broken)?;
        let length = SALT_BYTES + 1 + content.items.len() + AES_256_GCM.tag_len();
        if length.div_ceil(3) * 4 + PREFIX.len() > MAX_SEALED_BYTES {
            return Err(SealError::TooLarge);
        }
        let mut sealed = Vec::with_capacity(length);
        sealed.push(if content.is_whole { WHOLE } else { PLACE });
        sealed.extend_from_slice(content.items.as_bytes());
        let key = self.key(&salt)?;
        key.seal_in_place_append_tag(nonce(), Aad::from(bound(tenant)), &mut sealed)
            .map_err(|_| SealError::Broken)?;
        sealed.splice(0..0, salt);
        let mut text = String::with_capacity(PREFIX.len() + sealed.len().div_ceil(3) * 4);
        text.push_str(PREFIX);
        URL_SAFE_NO_PAD.encode_string(&sealed, &mut text);
        Ok(text)
    }

    /// Opens a sealed content of a tenant; `None` if it is not one of weir's.
    ///
    /// # Errors
    ///
    /// See [`SealError`].
    pub fn open(&self, tenant: Tenant, sealed: &str) -> Result<Option<Opened>, SealError> {
        let Some(encoded) = sealed.strip_prefix(PREFIX) else { return Ok(None) };
        if sealed.len() > MAX_SEALED_BYTES {
            return Err(SealError::TooLarge);
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| SealError::Broken)?;
        let (salt, sealed) = bytes.split_first_chunk_mut().ok_or(SealError::Broken)?;
        let key = self.key(salt)?;
        let content = key.open_in_place(nonce(), Aad::from(bound(tenant)), sealed);
        let content = content.map_err(|_| SealError::Broken)?;
        let (kind, items) = content.split_first().ok_or(SealError::Broken)?;
        let items = std::str::from_utf8(items).map_err(|_| SealError::Broken)?;
        Ok(Some(Opened { is_whole: *kind == WHOLE, items: items.to_owned() }))
    }

    /// Derives the key of one item.
    fn key(&self, salt: &[u8; SALT_BYTES]) -> Result<LessSafeKey, SealError> {
        let derived = Salt::new(HKDF_SHA256, salt).extract(&self.secret);
        let key = derived.expand(&[b"weir compaction item"], &AES_256_GCM);
        Ok(LessSafeKey::new(UnboundKey::from(key.map_err(|_| SealError::Broken)?)))
    }
}

/// Returns the nonce: each key seals one item.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// Returns the data that an item is bound to.
fn bound(tenant: Tenant) -> [u8; 22] {
    let mut bound = [0; 22];
    bound[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
    bound[PREFIX.len()..].copy_from_slice(&tenant.0);
    bound
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TENANT: Tenant = Tenant([7; 16]);

    fn content(items: &str, is_whole: bool) -> Opened {
        Opened { is_whole, items: items.to_owned() }
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened_under_the_same_secret(items in ".*", is_whole: bool) {
            let content = content(&items, is_whole);
            let sealed = Sealer::new(&[1; 32]).seal(TENANT, &content).expect("sealed");
            prop_assert_eq!(Sealer::new(&[1; 32]).open(TENANT, &sealed), Ok(Some(content.clone())));
            prop_assert_eq!(Sealer::new(&[2; 32]).open(TENANT, &sealed), Err(SealError::Broken));
            for other in [Tenant::ANONYMOUS, Tenant([8; 16])] {
                prop_assert_eq!(Sealer::new(&[1; 32]).open(other, &sealed), Err(SealError::Broken));
            }
            let again = Sealer::new(&[1; 32]).seal(TENANT, &content).expect("sealed");
            prop_assert_ne!(again, sealed);
        }
    }

    #[test]
    fn any_changed_byte_is_refused() {
        let sealer = Sealer::new(&[1; 32]);
        let sealed = sealer.seal(TENANT, &content(r#"{"a":"é"},{}"#, false)).expect("sealed");
        for at in PREFIX.len()..sealed.len() {
            for other in [b'A', b'_', b'z', b'.', b'='] {
                let mut changed = sealed.clone().into_bytes();
                changed[at] = other;
                let changed = String::from_utf8(changed).expect("ASCII");
                if changed != sealed {
                    assert_eq!(sealer.open(TENANT, &changed), Err(SealError::Broken), "{at}");
                }
            }
            assert_eq!(sealer.open(TENANT, &sealed[..at]), Err(SealError::Broken), "cut at {at}");
            let longer = format!("{}A{}", &sealed[..at], &sealed[at..]);
            assert_eq!(sealer.open(TENANT, &longer), Err(SealError::Broken), "longer at {at}");
        }
        for other in ["", "gAAAAA", "weir2.AAAA", "weir"] {
            assert_eq!(sealer.open(TENANT, other), Ok(None), "{other}");
        }
        assert_eq!(sealer.open(TENANT, PREFIX), Err(SealError::Broken));
        let huge = format!("{PREFIX}{}", "A".repeat(MAX_SEALED_BYTES));
        assert_eq!(sealer.open(TENANT, &huge), Err(SealError::TooLarge));
    }
}
