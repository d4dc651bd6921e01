//! Hashes of five-token sequences, used to measure how much of a text appears elsewhere.

use xxhash_rust::xxh3::xxh3_64;

use super::text;

/// Tokens per sequence.
const LENGTH: usize = 5;

/// Returns the hashes of all sequences of five words or signs in `text`, in order.
pub(crate) fn of(text: &str) -> impl Iterator<Item = u64> + '_ {
    let mut last = [0_u64; LENGTH];
    text::pieces(text).enumerate().filter_map(move |(number, (_, piece))| {
        last.rotate_left(1);
        last[LENGTH - 1] = xxh3_64(piece.as_bytes());
        let run = last
            .iter()
            .fold(0_u64, |run, own| (run.rotate_left(7) ^ own).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (number + 1 >= LENGTH).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_five_tokens() {
        for (text, runs) in [("a b c d", 0), ("a b c d e", 1), ("f(x) = y;", 3)] {
            assert_eq!(of(text).count(), runs, "{text}");
        }
        let inner: Vec<u64> = of("x a b c d e y").collect();
        assert_eq!(of("a b c d e").next(), Some(inner[1]));
        assert_ne!(of("b a c d e").next(), Some(inner[1]));
    }
}
