//! Vocabularies that a user gives: the `tokenizer.json` that comes with a model. Reads bytes; which file
//! they are of is the caller's.
//!
//! Counted by `tokenizers`, which the format is of, in blocks: it may take more than linear time for a
//! long text. Special tokens spelled in a text count as the plain text they are.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, PoisonError};

use tokenizers::Tokenizer;
use xxhash_rust::xxh3::xxh3_128;

use super::blocks;

/// The largest file that is read.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;

/// What has been read. It stays for the life of the process; the same bytes are kept once, however
/// often they are read.
static READ: LazyLock<Mutex<BTreeMap<u128, &'static Tokenizer>>> = LazyLock::new(Mutex::default);

/// A model's own vocabulary. Two are the same where their files are, on every machine.
#[derive(Clone, Copy)]
pub struct Own {
    fingerprint: u128,
    tokenizer: &'static Tokenizer,
}

impl Own {
    /// The vocabulary that `json` holds, or what is wrong with it.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        if json.len() > MAX_TOKENIZER_BYTES {
            return Err(format!("is larger than {} MiB", MAX_TOKENIZER_BYTES >> 20));
        }
        let fingerprint = xxh3_128(json);
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let tokenizer = match read.get(&fingerprint) {
            Some(tokenizer) => *tokenizer,
            None => {
                let tokenizer: &'static Tokenizer = Box::leak(Box::new(parsed(json)?));
                read.insert(fingerprint, tokenizer);
                tokenizer
            }
        };
        Ok(Self { fingerprint, tokenizer })
    }

    /// What its file is known by.
    pub fn fingerprint(self) -> u128 {
        self.fingerprint
    }

    /// Tokens of `text`.
    pub fn count(self, text: &str) -> u64 {
        blocks::count(text, |block| match tokens(self.tokenizer, block) {
            Ok(tokens) => tokens,
            // Hardly any text takes more tokens than bytes.
            Err(_) => block.len() as u64,
        })
    }
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<u64, String> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
    Ok(encoding.get_ids().len() as u64)
}

/// A tokenizer that counts what a text says, with nothing added, filled up or cut off.
fn parsed(json: &[u8]) -> Result<Tokenizer, String> {
    // The crate takes some things for granted of what it reads.
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.set_encode_special_tokens(true);
        let some = tokens(&tokenizer, "Some words, 12345 {\"json\": [1, 2]}\n你好")?;
        if some == 0 { Err("it has no tokens for plain words".to_owned()) } else { Ok(tokenizer) }
    }));
    let said = |error: String| format!("is no tokenizer.json that can be used: {error:.200}");
    parsed.unwrap_or_else(|_| Err("it contradicts itself".to_owned())).map_err(said)
}

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Own {}

impl Hash for Own {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

/// A vocabulary is too large to print.
impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({:032x})", self.fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const FILES: [(&str, &[u8]); 3] = [
        ("bytes", include_bytes!("../../tests/data/tokenizers/bytes.json")),
        ("pieces", include_bytes!("../../tests/data/tokenizers/pieces.json")),
        ("unigram", include_bytes!("../../tests/data/tokenizers/unigram.json")),
    ];

    fn own(json: &[u8]) -> Own {
        Own::read(json).expect("a tokenizer.json")
    }

    #[test]
    fn counts_are_those_of_the_format_s_own_package() {
        let table = include_str!("../../tests/data/tokenizers/counts.jsonl");
        for line in table.lines() {
            let row: Value = serde_json::from_str(line).expect("a line is JSON");
            let text = row["text"].as_str().expect("a text");
            for (name, json) in FILES {
                assert_eq!(Some(own(json).count(text)), row[name].as_u64(), "{name} {text:?}");
            }
        }
    }

    #[test]
    fn a_file_is_known_by_its_bytes() {
        let (first, second) = (own(FILES[0].1), own(FILES[1].1));
        assert_eq!(first, own(&Vec::from(FILES[0].1)));
        assert!(std::ptr::eq(first.tokenizer, own(FILES[0].1).tokenizer));
        assert_ne!(first, second);
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
            let problem = Own::read(json.as_bytes()).expect_err("no tokenizer");
            assert!(problem.starts_with("is no tokenizer.json that can be used: "), "{problem}");
        }
        let large = vec![b' '; MAX_TOKENIZER_BYTES + 1];
        assert_eq!(Own::read(&large), Err("is larger than 64 MiB".to_owned()));
    }

    #[test]
    fn long_texts_count_in_blocks_no_less_than_whole() {
        for (name, json) in FILES {
            let own = own(json);
            for unit in ["The river runs. ", "a", " ", "=", "中", "🙂", "\n", "7"] {
                let text = unit.repeat(40_000 / unit.len());
                let whole = tokens(own.tokenizer, &text).expect("counted");
                let counted = own.count(&text);
                assert!(
                    counted >= whole && counted <= whole + 8,
                    "{name} {unit:?} {counted} {whole}"
                );
            }
        }
    }
}
