//! Estimate for models whose tokenizer is not public: by script and kind of character.
//!
//! The weights are slightly above the counts of the public tokenizers of open models; plain English
//! has about four characters per token.

/// Estimates the tokens of `text`.
pub fn count(text: &str) -> u64 {
    let mut total_millitokens = 0;
    let mut run = 0;
    let mut last = '\0';
    for character in text.chars() {
        // Every tokenizer merges a long run of one character: it costs less from the 9th on.
        run = if character == last { run + 1 } else { 0 };
        last = character;
        total_millitokens += if run > 8 && character.is_ascii() { 60 } else { weight(character) };
    }
    u64::div_ceil(total_millitokens, 1000)
}

/// Returns the thousandths of a token for one character.
fn weight(character: char) -> u64 {
    match character {
        ' ' => 60,
        '\n' | '\r' | '\t' => 300,
        'a'..='z' => 245,
        'A'..='Z' => 380,
        '0'..='9' => 700,
        '\u{0}'..='\u{7f}' => 550,
        // Latin with marks, then Greek and Cyrillic.
        '\u{80}'..='\u{24f}' => 600,
        '\u{370}'..='\u{52f}' => 480,
        // Hebrew, Arabic.
        '\u{590}'..='\u{8ff}' => 600,
        // The scripts of India and of south-east Asia.
        '\u{900}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' => 900,
        // Kana, Hangul, Han.
        '\u{3040}'..='\u{30ff}' => 850,
        '\u{ac00}'..='\u{d7af}' => 950,
        '\u{3400}'..='\u{9fff}' => 1100,
        // General punctuation and CJK punctuation.
        '\u{2000}'..='\u{206f}' | '\u{3000}'..='\u{303f}' | '\u{ff00}'..='\u{ffef}' => 900,
        // Rare scripts, symbols, emoji: up to a token a byte.
        other => 700 * other.len_utf8() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_english_is_about_four_characters_a_token() {
        let text = "The committee will meet again on Tuesday to decide whether the new bridge, which \
            has been delayed since spring, can still be opened before the end of the year.";
        let characters_per_token = text.len() as f64 / count(text) as f64;
        assert!((3.5..4.6).contains(&characters_per_token), "{characters_per_token}");
    }

    #[test]
    fn never_zero_for_something_and_zero_for_nothing() {
        assert_eq!(count(""), 0);
        for text in ["a", " ", "\n", "中", "😀", "\u{0}"] {
            assert!(count(text) >= 1, "{text:?}");
        }
    }
}
