//! Vocabularies of open models that are part of the program. `config::names` assigns them to
//! models.
//!
//! `tiktoken` counts them in blocks, so that time stays linear on any input. Special tokens spelled
//! in a text count as plain text.

use std::borrow::Cow;

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
        blocks::count(&text, |block| vocabulary.count(block) as u64)
    }
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

    #[test]
    fn qwen_reads_letters_with_their_marks_as_one() {
        assert_eq!(Open::Qwen2.count("cafe\u{301}"), Open::Qwen2.count("café"));
        assert_ne!(Open::MistralV3.count("cafe\u{301}"), Open::MistralV3.count("café"));
    }
}
