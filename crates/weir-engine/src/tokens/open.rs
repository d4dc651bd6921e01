//! Vocabularies of open models that are part of the program. `config::names` assigns them to
//! models.
//!
//! `tiktoken` counts them in blocks, so that time stays linear on any input. Special tokens spelled
//! in a text count as plain text.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::{Encoding, blocks};

/// Vocabulary of an open model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Open {
    /// DeepSeek V3, R1 and V4.
    DeepseekV3,
    /// Llama 3.0 to 3.3. A build without it uses `cl100k_base`: Llama 3 adds merges behind all of
    /// that vocabulary's and splits texts in the same way. So it never takes more tokens, and for
    /// English and code takes the same.
    Llama3,
    /// Mistral's Tekken: NeMo, Ministral, Pixtral 12B, Small 3 and others since.
    MistralV3,
    /// Qwen 2, 2.5 and 3.
    Qwen2,
}

impl Open {
    pub const ALL: [Self; 4] = [Self::DeepseekV3, Self::Llama3, Self::MistralV3, Self::Qwen2];

    /// Returns the vocabulary called `name`; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|open| open.name() == name)
    }

    /// Returns the name used in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeepseekV3 => "deepseek_v3",
            Self::Llama3 => "llama3",
            Self::MistralV3 => "mistral_v3",
            Self::Qwen2 => "qwen2",
        }
    }

    /// Counts the tokens of `text`.
    pub fn count(self, text: &str) -> u64 {
        let Some(vocabulary) = tiktoken::get_encoding(self.name()) else {
            // All but one are always present.
            return Encoding::Cl100kBase.count(text);
        };
        let text = match self {
            Self::Qwen2 => composed(text),
            _ => Cow::Borrowed(text),
        };
        let count = |part: &str| vocabulary.count(part) as u64;
        match self {
            Self::DeepseekV3 => blocks::count(&text, |block| parts(block).map(count).sum()),
            _ => blocks::count(&text, count),
        }
    }
}

/// A character that no rule of DeepSeek's pattern names, such as a joiner inside an emoji.
static UNNAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\s]").expect("the pattern is constant and valid")
});

/// Splits a text for DeepSeek's vocabulary, before each [`UNNAMED`] character: no token continues
/// across such a position. At each of these characters `tiktoken` examines all of the remaining
/// text, so without the split it takes quadratic time.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    let ends = UNNAMED.find_iter(text).map(|found| {
        let mut before = text[..found.start()].char_indices();
        match before.next_back() {
            // The last blank of several counts with what follows.
            Some((at, blank)) if blank.is_whitespace() && !matches!(blank, '\r' | '\n') => at,
            _ => found.start(),
        }
    });
    ends.chain([text.len()]).filter_map(move |end| {
        let part = text.get(start..end).filter(|part| !part.is_empty())?;
        start = end;
        Some(part)
    })
}

/// Combines letters with their marks into single characters, as Qwen reads them.
fn composed(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.nfc().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for open in Open::ALL {
            assert_eq!(Open::from_name(open.name()), Some(open));
        }
        assert_eq!(Open::from_name("cl100k_base"), None);
    }

    /// Returns the lines of the table: each a text with the counts of each model's own tokenizer.
    fn rows() -> Vec<serde_json::Value> {
        let table = include_str!("../../../../tests/golden/tokenizers/counts.jsonl");
        table.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    #[test]
    fn counts_are_those_of_the_models_own_tokenizers() {
        let rows = rows();
        assert!(rows.len() > 200);
        for row in &rows {
            let text = row["text"].as_str().expect("a text");
            for open in Open::ALL {
                let own = row[open.name()].as_u64().expect("a number");
                let counted = open.count(text);
                // Without its vocabulary Llama 3 counts no less.
                let is_there = tiktoken::get_encoding(open.name()).is_some();
                let is_right = if is_there { counted == own } else { counted >= own };
                assert!(is_right, "{open:?} {text:?}: {counted} and {own}");
            }
        }
    }

    #[test]
    fn every_character_is_counted() {
        for open in Open::ALL {
            for character in (0..=0x10_ffff).step_by(7).filter_map(char::from_u32) {
                let text = character.to_string();
                let tokens = open.count(&text);
                // A character may be normalised to several, each read as bytes.
                assert!((1..=12).contains(&tokens), "{open:?} {character:?} {tokens}");
            }
        }
    }

    #[test]
    fn blocks_add_up_to_the_whole() {
        let units = [
            "The river runs, as ever. ",
            "let x = vec![1, 2];\n",
            "漢字かな交じり文、それと",
            "Привет, мир. ",
            "हिन्दी में, ",
            "    indented\n\n\n",
        ];
        for unit in units {
            let text = unit.repeat(60_000 / unit.len());
            for open in Open::ALL {
                let Some(vocabulary) = tiktoken::get_encoding(open.name()) else { continue };
                let whole = vocabulary.count(&composed(&text)) as u64;
                let counted = open.count(&text);
                let added = (text.len() >> 13) as u64;
                assert!((whole..=whole + added).contains(&counted), "{open:?} {unit:?} {counted}");
                if !unit.starts_with("हि") && !unit.starts_with(' ') {
                    assert_eq!(counted, whole, "{open:?} {unit:?}");
                }
            }
        }
    }

    #[test]
    fn runs_count_no_less_in_blocks_than_whole() {
        for unit in ["a", " ", "=", "\n", "é", "中", "😀", "0", "aZ", "\u{301}", "=-"] {
            let text = unit.repeat(40_000 / unit.len());
            for open in Open::ALL {
                let Some(vocabulary) = tiktoken::get_encoding(open.name()) else { continue };
                let whole = vocabulary.count(&composed(&text)) as u64;
                assert!(open.count(&text) >= whole, "{open:?} {unit:?}");
            }
        }
    }

    /// The time of a text is bounded if its parts have few of the characters that take long.
    #[test]
    fn deepseek_s_parts_have_few_unnamed_characters_and_count_as_the_whole() {
        let vocabulary = tiktoken::get_encoding("deepseek_v3").expect("it is always present");
        let pieces = [
            "a", "Z", "é", "\u{301}", "7", "中", "。", ".", "=", "👩", "\u{fe0f}", " ", "\t", "\n",
            "\r\n", "\u{3000}", "\u{200d}", "\u{200b}", "\u{ad}", "\0", "\u{e000}", "\u{378}",
        ];
        let mut state = 7_u64;
        let mut texts = vec!["👩\u{200d}👩\u{200d}👧".repeat(500), " \u{200d}".repeat(500)];
        for _ in 0..2000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
            }
            texts.push(text);
        }
        for text in texts {
            let parts: Vec<&str> = parts(&text).collect();
            assert_eq!(parts.concat(), text);
            assert!(parts.iter().all(|part| UNNAMED.find_iter(part).count() <= 1), "{parts:?}");
            let counted: usize = parts.iter().map(|part| vocabulary.count(part)).sum();
            assert_eq!(counted, vocabulary.count(&text), "{text:?}");
        }
    }

    #[test]
    fn qwen_reads_letters_with_their_marks_as_one() {
        assert_eq!(Open::Qwen2.count("cafe\u{301}"), Open::Qwen2.count("café"));
        assert_ne!(Open::MistralV3.count("cafe\u{301}"), Open::MistralV3.count("café"));
    }
}
