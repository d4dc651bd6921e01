//! Splitting of long texts into blocks, for tokenizers that take more than linear time. The ends of
//! blocks depend on the text alone. Independent of any tokenizer.

/// Maximum input of a tokenizer call.
pub const BLOCK_BYTES: usize = 16 << 10;

/// Counts the tokens of `text`, block by block. If no position in half a block is one at which
/// every tokenizer splits, the text is split anywhere. One token is added then, since the two parts
/// of a word may take fewer tokens than the whole.
pub fn count(text: &str, tokens_of: impl Fn(&str) -> u64) -> u64 {
    // A run of one character makes equal blocks, which would take longest.
    let mut last = ("", 0);
    let tokens = blocks(text).map(|(block, added)| {
        if block != last.0 {
            last = (block, tokens_of(block));
        }
        last.1 + added
    });
    tokens.sum()
}

/// Returns the blocks of `text`, each with the tokens to add for its end.
fn blocks(text: &str) -> impl Iterator<Item = (&str, u64)> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        if text.len() <= BLOCK_BYTES {
            return Some((text, 0));
        }
        let (at, added) = match place(text) {
            Some(at) => (at, 0),
            None => (text.floor_char_boundary(BLOCK_BYTES), 1),
        };
        let (block, after) = text.split_at(at);
        rest = Some(after);
        Some((block, added))
    })
}

/// Finds the last position in the second half of a block at which every tokenizer splits.
fn place(text: &str) -> Option<usize> {
    let start = text.floor_char_boundary(BLOCK_BYTES / 2);
    let end = text.floor_char_boundary(BLOCK_BYTES);
    let mut behind = text[end..].chars();
    let (mut first, mut second) = (behind.next()?, behind.next());
    for (offset, before) in text[start..end].char_indices().rev() {
        if is_parted(before, first, second) {
            return Some(start + offset + before.len_utf8());
        }
        (second, first) = (Some(first), before);
    }
    None
}

/// Returns whether no tokenizer ever joins text across a position. Such positions are before a
/// single space between words, between a line's end and a letter, and between a letter and a comma
/// or full stop.
fn is_parted(before: char, first: char, second: Option<char>) -> bool {
    let is_word = |character: char| character.is_ascii_alphanumeric();
    match first {
        ' ' => is_word(before) && second.is_some_and(is_word),
        ',' | '.' | ';' | ')' | '，' | '。' | '、' => is_letter(before),
        _ => before == '\n' && is_letter(first),
    }
}

/// Returns whether a character is a letter by every tokenizer's rules. Some letters are missing.
/// Marks are excluded: some tokenizers treat them as letters and some as symbols.
fn is_letter(character: char) -> bool {
    matches!(character,
        'a'..='z' | 'A'..='Z' | 'а'..='я' | 'А'..='Я' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='龥' | '가'..='힣')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<&str> {
        blocks(text).map(|(block, _)| block).collect()
    }

    #[test]
    fn blocks_make_up_the_text_and_end_where_it_is_parted() {
        for (unit, next) in [
            ("some words ", " "),
            ("line\n", "l"),
            ("漢字、", "、"),
            ("слово, ", ","),
            ("{\"key\":\"value.\"},\n", "."),
        ] {
            let text = unit.repeat(100_000 / unit.len());
            let parts = parts(&text);
            assert_eq!(parts.concat(), text);
            assert!(parts.iter().all(|part| part.len() <= BLOCK_BYTES) && parts.len() > 5);
            assert!(parts[1..].iter().all(|part| part.starts_with(next)), "{unit:?}");
        }
    }

    #[test]
    fn equal_blocks_in_a_row_are_counted_once() {
        for unit in ["a", "=", "é", "中", "\u{301}"] {
            let calls = std::cell::Cell::new(0);
            let text = unit.repeat(3_000_000 / unit.len());
            count(&text, |_| {
                calls.set(calls.get() + 1);
                0
            });
            assert!(calls.get() <= 2, "{unit:?}: {}", calls.get());
        }
    }

    #[test]
    fn a_text_without_places_is_cut_on_a_border_and_counts_a_token_more() {
        for unit in ["=", "😀", "\u{301}", " ", "é", "a"] {
            let text = unit.repeat(100_000 / unit.len());
            let parts = parts(&text);
            assert_eq!(parts.concat(), text);
            assert_eq!(count(&text, |_| 0), parts.len() as u64 - 1, "{unit:?}");
        }
    }

    #[test]
    fn short_texts_are_left_whole() {
        for text in ["", "a", &"a, ".repeat(5000)] {
            assert_eq!(parts(text), [text]);
        }
    }
}
