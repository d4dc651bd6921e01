//! Rows of ASCII letters, the content of most texts: found and put into lower case many bytes at a time.

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

/// Returns a text in lower case, as `str::to_lowercase` does. The standard function takes letters one by one
/// from the first one beyond ASCII on.
pub fn in_lower_case(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    // The one letter whose lower case depends on its neighbours.
    if text.contains('Σ') {
        return text.to_lowercase();
    }
    let mut lower = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (plain, wide) = rest.split_at(behind_ascii(rest.as_bytes()));
        let start = lower.len();
        lower.push_str(plain);
        lower[start..].make_ascii_lowercase();
        rest = wide.trim_start_matches(|letter: char| !letter.is_ascii());
        let letters = wide[..wide.len() - rest.len()].chars();
        lower.extend(letters.flat_map(char::to_lowercase));
    }
    lower
}

/// Returns the number of ASCII characters that a text begins with.
fn behind_ascii(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk())
        && u64::from_le_bytes(*chunk) & HIGH_BITS == 0
    {
        at += 8;
    }
    at + bytes[at..].iter().take_while(|byte| byte.is_ascii()).count()
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

    #[test]
    fn lower_case_is_that_of_the_standard_library() {
        for text in [
            "",
            "ABC def",
            "→ Ä",
            "ÄÖÜ mit ẞ",
            "İstanbul → X",
            "ΟΔΟΣ, ΟΔΟΣΣ a",
            "ſ K Å",
            "日本 ABC\n",
        ] {
            assert_eq!(in_lower_case(text), text.to_lowercase(), "{text}");
        }
        let all: String = (0..=char::MAX as u32).filter_map(char::from_u32).collect();
        let all = all.replace('Σ', "");
        assert_eq!(in_lower_case(&all), all.to_lowercase());
    }
}
