//! Tables of text, and amounts in them. Knows nothing of what they list.

use weir_eval::table;
use weir_store::budget::NanoUsd;

/// Aligns columns: the first `names` to the left, figures to the right, and the last as it is.
pub(super) fn aligned(rows: &[Vec<String>], names: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    table::aligned(rows, |column| column < names || column + 1 == columns)
}

/// Aligns all columns to the left, below their heads.
pub(super) fn left_aligned<const N: usize>(
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows: Vec<Vec<String>> =
        std::iter::once(heads.map(str::to_owned)).chain(rows).map(Vec::from).collect();
    aligned(&rows, N)
}

/// Formats nano-dollars for people.
pub(super) fn signed_dollars(nano_usd: i128) -> String {
    let sign = if nano_usd < 0 { "-" } else { "" };
    let amount = u64::try_from(nano_usd.unsigned_abs()).unwrap_or(u64::MAX);
    format!("{sign}{}", NanoUsd(amount).shown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_one_below_the_other() {
        let rows = [vec!["m", "7", "x"], vec!["longer", "1234", ""]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        assert_eq!(aligned(&rows, 1), "m          7  x\nlonger  1234\n");
    }
}
