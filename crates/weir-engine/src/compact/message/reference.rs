//! References: names for retrieving messages that were not sent whole. Derived from the message's
//! bytes alone, so every instance writes the same one. Stores nothing.

/// Length of a reference: 60 bits, so that a caller's own messages do not collide by chance.
pub const REFERENCE_LENGTH: usize = 12;

/// Base32 as in RFC 4648, in lower case: no two of these characters look alike.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const BITS_PER_CHARACTER: usize = 5;

/// Returns the reference of a message, given its JSON text as received.
pub fn reference(raw_message: &str) -> String {
    let hash = blake3::hash(raw_message.as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    let bits = u64::from_be_bytes(*first);
    let character = |place: usize| {
        let shift = u64::BITS as usize - BITS_PER_CHARACTER * (place + 1);
        char::from(ALPHABET[(bits >> shift) as usize % ALPHABET.len()])
    };
    (0..REFERENCE_LENGTH).map(character).collect()
}

/// Returns whether `text` has the form of a reference.
pub fn is_reference(text: &str) -> bool {
    text.len() == REFERENCE_LENGTH && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_fixed_by_the_bytes() {
        // The BLAKE3 test vector for empty input begins with af1349b9f5f9a1a6.
        for (raw, expected) in [("", "v4jutopv7gq2"), ("{}", "nzdn2eg67snv")] {
            assert_eq!(reference(raw), expected);
            assert!(is_reference(expected), "{expected}");
        }
        assert_ne!(reference("{}"), reference("{ }"));
    }

    #[test]
    fn only_references_have_their_form() {
        for text in
            ["", "v4jutopv7gq", "v4jutopv7gq2a", "V4JUTOPV7GQ2", "v4jutopv7gq1", "v4jutopv7gq/"]
        {
            assert!(!is_reference(text), "{text}");
        }
    }
}
