//! Search for rows of lowercase ASCII letters, the content of most words, eight bytes at a time.

/// Returns the end of the row of lowercase ASCII letters at `at`.
#[inline]
pub fn behind_small(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let others = !small_letters(u64::from_le_bytes(*chunk)) & HIGH_BITS;
        if others != 0 {
            return at + others.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| byte.is_ascii_lowercase()).count()
}

/// Highest bit of each of eight bytes.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Sets the highest bit of each byte that is a lowercase ASCII letter, and clears it for others;
/// other bits are arbitrary.
#[inline]
fn small_letters(word: u64) -> u64 {
    let each = |byte: u8| u64::from_le_bytes([byte; 8]);
    // No byte borrows from the next one: the highest bit is set before.
    let low = word | HIGH_BITS;
    (low - each(b'a')) & !(low - each(b'z' + 1)) & !word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_at_the_first_byte_that_is_no_small_letter() {
        for byte in 0..=u8::MAX {
            for length in 0..20 {
                let mut bytes = vec![b'k'; length];
                bytes.push(byte);
                bytes.extend(b"az");
                for at in 0..=length {
                    let rest = bytes[at..].iter().take_while(|own| own.is_ascii_lowercase());
                    assert_eq!(behind_small(&bytes, at), at + rest.count(), "{byte} {length} {at}");
                }
            }
        }
        assert_eq!(behind_small(b"abc", 3), 3);
    }
}
