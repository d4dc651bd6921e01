//! Growth of a text in the normalizers of a user's `tokenizer.json` before counting: these may
//! replace anything by anything, repeatedly. Bounds the size of one block.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

use super::blocks::BLOCK_BYTES;

/// Maximum size of a normalized block. Each byte takes some twenty more in memory.
const MAX_BYTES: usize = 1 << 20;
/// Maximum intermediate size, if a step is only known by its worst case.
const MAX_STEP_BYTES: usize = 2 << 20;

/// Steps before the counting.
pub struct Growth {
    steps: Vec<GrowthStep>,
    /// Maximum growth factor of splitting a text.
    parting: usize,
    /// Whether texts reach the steps in parts.
    is_parted: bool,
    /// Whether no text can grow too much.
    is_tame: bool,
}

struct GrowthStep {
    normalizer: NormalizerWrapper,
    /// Maximum growth factor of a text.
    factor: usize,
    /// Whether it adds more to a text in parts than to the whole.
    is_by_part: bool,
}

/// Relevant members of a file.
#[derive(Deserialize)]
struct File {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    special: bool,
    /// Whether the steps apply to the token when the file is read.
    #[serde(default = "is_unless_told")]
    normalized: bool,
}

fn is_unless_told() -> bool {
    true
}

impl Growth {
    /// Derives the growth from a file, or returns why the file is unusable.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let file: File = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let mut steps = Vec::new();
        file.normalizer.iter().for_each(|normalizer| collect(normalizer, &mut steps));
        let parting = file.pre_tokenizer.as_ref().map_or(1, parting);
        let all = steps.iter().map(|step| step.factor).chain([parting]);
        let all = all.fold(1, usize::saturating_mul);
        let is_tame = BLOCK_BYTES.saturating_mul(all) <= MAX_BYTES;
        let is_parted = file.added_tokens.iter().any(|token| !token.special);
        let growth = Self { steps, parting, is_parted, is_tame };
        if BLOCK_BYTES.saturating_mul(parting) > MAX_BYTES {
            return Err(format!("its pre-tokenizer may make a text {parting} times as long"));
        }
        if file.added_tokens.iter().any(|own| own.normalized && !growth.bounds(&own.content)) {
            return Err("its normalizer makes a token of its own too long".to_owned());
        }
        Ok(growth)
    }

    /// Returns whether a text of one block stays within bounds.
    pub fn bounds(&self, text: &str) -> bool {
        if self.is_tame && text.len() <= BLOCK_BYTES {
            return true;
        }
        let mut normalized = NormalizedString::from(text);
        let mut scale = self.parting;
        let fits = |bytes: usize, times: usize, most: usize| bytes.saturating_mul(times) <= most;
        for step in &self.steps {
            if !fits(normalized.get().len(), step.factor, MAX_STEP_BYTES)
                || step.normalizer.normalize(&mut normalized).is_err()
            {
                return false;
            }
            if step.is_by_part && self.is_parted {
                scale = scale.saturating_mul(step.factor);
            }
            if !fits(normalized.get().len(), scale, MAX_BYTES) {
                return false;
            }
        }
        fits(normalized.get().len(), scale, MAX_BYTES)
    }
}

/// Collects the steps of `normalizer`.
fn collect(normalizer: &NormalizerWrapper, steps: &mut Vec<GrowthStep>) {
    use NormalizerWrapper as Kind;
    let (factor, is_by_part) = match normalizer {
        Kind::Sequence(sequence) => {
            return sequence.as_ref().iter().for_each(|own| collect(own, steps));
        }
        Kind::StripNormalizer(_) | Kind::StripAccents(_) | Kind::Nmt(_) => (1, false),
        Kind::Lowercase(_) | Kind::ByteLevel(_) => (2, false),
        // Source: Unicode Standard Annex 15, on how much normalization forms expand UTF-8.
        Kind::NFC(_) | Kind::NFD(_) => (3, false),
        Kind::NFKC(_) | Kind::NFKD(_) => (11, false),
        // Blanks around characters, separate marks, and lowercase letters.
        Kind::BertNormalizer(_) => (2 * 3 * 2, false),
        Kind::Prepend(own) => (1 + own.prepend.len(), true),
        Kind::Replace(_) => replacing(&as_json(normalizer)),
        Kind::Precompiled(_) => (longest_entry(&as_json(normalizer)), false),
    };
    steps.push(GrowthStep { normalizer: normalizer.clone(), factor, is_by_part });
}

/// Converts a normalizer to its JSON form: the crate exposes some members only there.
fn as_json(normalizer: &NormalizerWrapper) -> Value {
    serde_json::to_value(normalizer).unwrap_or_default()
}

/// Returns the growth factor of a replacement. A pattern may match the empty string, before each
/// byte.
fn replacing(told: &Value) -> (usize, bool) {
    let Some(content) = told["content"].as_str() else { return (usize::MAX, true) };
    match told["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => {
            (content.len().div_ceil(pattern.len()).max(1), false)
        }
        _ => (content.len().saturating_add(1), true),
    }
}

/// Returns the longest text that a SentencePiece table substitutes for a byte or more. The table is
/// a length, a tree of so many bytes, and the texts, each followed by a zero.
fn longest_entry(told: &Value) -> usize {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let encoded = told["precompiled_charsmap"].as_str();
    let table = encoded.and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    let texts = table
        .split_first_chunk()
        .and_then(|(length, rest)| rest.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..));
    let longest = |texts: &[u8]| texts.split(|byte| *byte == 0).map(<[u8]>::len).max();
    texts.and_then(longest).map_or(usize::MAX, |longest| longest.max(1))
}

/// Returns the growth factor of splitting: marks for blanks, and one before each part.
fn parting(own: &PreTokenizerWrapper) -> usize {
    match own {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().map(parting).fold(1, usize::saturating_mul)
        }
        PreTokenizerWrapper::ByteLevel(_) => 4,
        PreTokenizerWrapper::Metaspace(_) => 8,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn growth(normalizer: &Value, pre_tokenizer: &Value, added: &Value) -> Result<Growth, String> {
        let file = json!({
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "added_tokens": added,
        });
        Growth::read(file.to_string().as_bytes())
    }

    fn replace(pattern: Value, content: &str) -> Value {
        json!({ "type": "Replace", "pattern": pattern, "content": content })
    }

    #[test]
    fn a_block_that_grows_too_much_is_told_before_it_does() {
        let letters = |times: usize| replace(json!({ "String": "a" }), &"a".repeat(times));
        let sequence = |all: Vec<Value>| json!({ "type": "Sequence", "normalizers": all });
        let before = |content: String| json!({ "type": "Prepend", "prepend": content });
        let token = |is_special: bool| {
            json!([{
                "id": 0, "content": "x", "special": is_special, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            }])
        };
        let block = "a".repeat(BLOCK_BYTES);
        for (normalizer, added, text, expected) in [
            (json!(null), json!([]), block.as_str(), true),
            (letters(64), json!([]), &block, true),
            (letters(65), json!([]), &block, false),
            (letters(1 << 20), json!([]), "a", true),
            (letters((2 << 20) + 1), json!([]), "a", false),
            (letters(1 << 20), json!([]), &block, false),
            (sequence(vec![letters(8); 40]), json!([]), &block, false),
            (sequence(vec![sequence(vec![letters(8); 20]); 2]), json!([]), "aaa", false),
            (sequence(vec![letters(8); 40]), json!([]), &block.replace('a', "b"), true),
            (replace(json!({ "Regex": "" }), &"b".repeat(127)), json!([]), &block, false),
            (replace(json!({ "String": " " }), "\u{2581}"), json!([]), &block, true),
            // In parts, each of them is preceded by an addition.
            (before("b".repeat(100)), token(true), &block, true),
            (before("b".repeat(100)), token(false), &block, false),
        ] {
            let growth = growth(&normalizer, &json!(null), &added).expect("it can be used");
            assert_eq!(growth.bounds(text), expected, "{:.300} {added}", normalizer.to_string());
        }
    }

    #[test]
    fn what_parts_a_text_lengthens_it_within_bounds() {
        let meta = json!({ "type": "Metaspace", "replacement": "_", "prepend_scheme": "always" });
        let of = |times: usize| json!({ "type": "Sequence", "pretokenizers": vec![meta.clone(); times] });
        assert!(growth(&json!(null), &of(2), &json!([])).is_ok());
        let said = growth(&json!(null), &of(3), &json!([])).map(drop).expect_err("it grows");
        assert_eq!(said, "its pre-tokenizer may make a text 512 times as long");
    }

    #[test]
    fn a_files_own_tokens_go_through_the_same() {
        let token = json!([{
            "id": 0, "content": "a".repeat(1000), "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": true,
        }]);
        let large = replace(json!({ "String": "a" }), &"b".repeat(100_000));
        let said = growth(&large, &json!(null), &token).map(drop).expect_err("it grows");
        assert!(said.contains("token of its own"), "{said}");
    }
}
