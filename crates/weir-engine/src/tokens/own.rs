//! Vocabularies from a user: the `tokenizer.json` that comes with a model. Reads bytes; the caller
//! chooses the file.
//!
//! `tokenizers`, the crate that defines the format, counts them in blocks: it may take more than
//! linear time for a long text. Special tokens spelled in a text count as plain text.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};

use tokenizers::Tokenizer;
use xxhash_rust::xxh3::xxh3_128;

use super::blocks;
use super::growth::Growth;

/// Maximum size of a file.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;

/// Vocabularies in use, by the hash of their file.
static HELD: LazyLock<RwLock<BTreeMap<u128, Weak<HeldCount>>>> = LazyLock::new(RwLock::default);

/// Loaded vocabulary; it exists as long as this or a clone. Equal files are kept once, however
/// often they are read.
#[derive(Clone)]
pub struct Vocabulary(Arc<HeldCount>);

struct HeldCount {
    fingerprint: u128,
    tokenizer: Tokenizer,
    growth: Growth,
}

/// Identifier of a loaded vocabulary for counting. Two are equal if their files are, on every
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Own {
    fingerprint: u128,
}

impl Vocabulary {
    /// Parses the vocabulary in `json`.
    ///
    /// # Errors
    ///
    /// If it is too large, or no usable vocabulary.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        if json.len() > MAX_TOKENIZER_BYTES {
            return Err(format!("is larger than {} MiB", MAX_TOKENIZER_BYTES >> 20));
        }
        let fingerprint = xxh3_128(json);
        if let Some(held) = (Own { fingerprint }).held() {
            return Ok(Self(held));
        }
        let (tokenizer, growth) = parsed(json)?;
        let held = Arc::new(HeldCount { fingerprint, tokenizer, growth });
        let mut all = HELD.write().unwrap_or_else(PoisonError::into_inner);
        // A faster thread may have read the same; its vocabulary is used, and this one is dropped
        // outside the lock.
        let other = all.get(&fingerprint).and_then(Weak::upgrade);
        if other.is_none() {
            all.insert(fingerprint, Arc::downgrade(&held));
        }
        drop(all);
        Ok(Self(other.unwrap_or(held)))
    }

    /// Returns the identifier for counting.
    pub fn own(&self) -> Own {
        Own { fingerprint: self.0.fingerprint }
    }
}

impl Drop for HeldCount {
    fn drop(&mut self) {
        let mut all = HELD.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have read the same file since.
        if all.get(&self.fingerprint).is_some_and(|held| held.strong_count() == 0) {
            all.remove(&self.fingerprint);
        }
    }
}

impl Own {
    /// Returns the vocabulary in use whose file has this hash; `None` if there is none.
    pub(super) fn find(fingerprint: u128) -> Option<Self> {
        let own = Self { fingerprint };
        own.held().map(|_| own)
    }

    /// Returns the hash of its file.
    pub fn fingerprint(self) -> u128 {
        self.fingerprint
    }

    /// Counts the tokens of `text`.
    pub fn count(self, text: &str) -> u64 {
        // Never used: a configuration holds each vocabulary that it counts with.
        let Some(held) = self.held() else { return text.len() as u64 };
        blocks::count(text, |block| match tokens(&held.tokenizer, &held.growth, block) {
            Ok(tokens) => tokens,
            // Hardly any text takes more tokens than bytes.
            Err(_) => block.len() as u64,
        })
    }

    fn held(self) -> Option<Arc<HeldCount>> {
        let all = HELD.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.fingerprint).and_then(Weak::upgrade)
    }
}

fn tokens(tokenizer: &Tokenizer, growth: &Growth, text: &str) -> Result<u64, String> {
    if !growth.bounds(text) {
        return Err("its normalizer makes this text too long".to_owned());
    }
    let encoding = tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
    Ok(encoding.get_ids().len() as u64)
}

/// Creates a tokenizer that counts a text as it is, without additions, padding or truncation.
fn parsed(json: &[u8]) -> Result<(Tokenizer, Growth), String> {
    // The crate panics on some invalid files.
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        let growth = Growth::read(json)?;
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.set_encode_special_tokens(true);
        let some = tokens(&tokenizer, &growth, "Some words, 12345 {\"json\": [1, 2]}\n你好")?;
        match some {
            0 => Err("it has no tokens for plain words".to_owned()),
            _ => Ok((tokenizer, growth)),
        }
    }));
    let said = |error: String| format!("is no tokenizer.json that can be used: {error:.200}");
    parsed.unwrap_or_else(|_| Err("it contradicts itself".to_owned())).map_err(said)
}

/// A vocabulary is too large to print.
impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.own().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const FILES: [(&str, &[u8]); 3] = [
        ("bytes", include_bytes!("../../../../tests/data/tokenizers/bytes.json")),
        ("pieces", include_bytes!("../../../../tests/data/tokenizers/pieces.json")),
        ("unigram", include_bytes!("../../../../tests/data/tokenizers/unigram.json")),
    ];

    fn read(json: &[u8]) -> Vocabulary {
        Vocabulary::read(json).expect("a tokenizer.json")
    }

    #[test]
    fn counts_are_those_of_the_format_s_own_package() {
        let table = include_str!("../../../../tests/data/tokenizers/counts.jsonl");
        for line in table.lines() {
            let row: Value = serde_json::from_str(line).expect("a line is JSON");
            let text = row["text"].as_str().expect("a text");
            for (name, json) in FILES {
                let counted = read(json).own().count(text);
                assert_eq!(Some(counted), row[name].as_u64(), "{name} {text:?}");
            }
        }
    }

    #[test]
    fn a_file_is_known_by_its_bytes() {
        let (first, second) = (read(FILES[0].1), read(FILES[1].1));
        let again = read(&Vec::from(FILES[0].1));
        assert_eq!(first.own(), again.own());
        assert!(Arc::ptr_eq(&first.0, &again.0), "it is kept once");
        assert_ne!(first.own(), second.own());
    }

    #[test]
    fn it_is_there_for_as_long_as_somebody_holds_it() {
        // A file that no other test uses.
        let json = [FILES[0].1, b"\n"].concat();
        let held = read(&json);
        let (own, other) = (held.own(), held.clone());
        drop(held);
        assert_eq!(own.count("Some words"), read(FILES[0].1).own().count("Some words"));
        drop(other);
        assert!(own.held().is_none());
        let all = HELD.read().unwrap_or_else(PoisonError::into_inner);
        assert!(!all.contains_key(&own.fingerprint), "and leaves nothing behind");
    }

    /// Each of forty steps turns one letter into eight.
    #[test]
    fn a_text_that_grows_past_bounds_counts_by_its_bytes() {
        let mut json: Value = serde_json::from_slice(FILES[0].1).expect("JSON");
        let step = serde_json::json!({
            "type": "Replace", "pattern": { "String": "Z" }, "content": "ZZZZZZZZ",
        });
        json["normalizer"] = serde_json::json!({
            "type": "Sequence", "normalizers": vec![step; 40],
        });
        let said = Vocabulary::read(json.to_string().as_bytes());
        let held = said.expect("it can be used for what does not grow");
        let own = held.own();
        assert_eq!(own.count("tested words"), read(FILES[0].1).own().count("tested words"));
        assert_eq!(own.count(&"Z".repeat(50_000)), 50_000 + 3);
    }

    #[test]
    fn what_is_no_tokenizer_says_so() {
        let whole = std::str::from_utf8(FILES[0].1).expect("JSON");
        for json in [
            "",
            "{}",
            "[1]",
            "no JSON",
            &whole[..whole.len() / 2],
            &whole.replace("\"BPE\"", "\"XYZ\""),
            r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}"#,
            r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":9},"merges":["a b"]}}"#,
        ] {
            let problem = Vocabulary::read(json.as_bytes()).map(drop).expect_err("no tokenizer");
            assert!(problem.starts_with("is no tokenizer.json that can be used: "), "{problem}");
        }
        let large = vec![b' '; MAX_TOKENIZER_BYTES + 1];
        let problem = Vocabulary::read(&large).map(drop);
        assert_eq!(problem, Err("is larger than 64 MiB".to_owned()));
    }

    #[test]
    fn long_texts_count_in_blocks_no_less_than_whole() {
        for (name, json) in FILES {
            let held = read(json);
            for unit in ["The river runs. ", "a", " ", "=", "中", "🙂", "\n", "7"] {
                let text = unit.repeat(40_000 / unit.len());
                let whole = tokens(&held.0.tokenizer, &held.0.growth, &text).expect("counted");
                let counted = held.own().count(&text);
                assert!(
                    counted >= whole && counted <= whole + 8,
                    "{name} {unit:?} {counted} {whole}"
                );
            }
        }
    }
}
