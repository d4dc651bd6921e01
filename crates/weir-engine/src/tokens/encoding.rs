//! Encodings of texts: token count, and the longest head or tail within a number of tokens.
//!
//! `bpe/` counts `o200k_base` and `cl100k_base`, exactly and in linear time for any text.
//! `tiktoken-rs` counts the older public encodings, `open.rs` those of open models, and `own.rs`
//! those of a user's file; all others are estimated.

use serde::{Deserialize, Serialize};

use super::bpe::{self, Bpe};
use super::estimate;
use super::open::Open;
use super::own::Own;

/// Public encodings that are counted exactly, and the estimate for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Encoding {
    /// `o200k_base`: GPT-4o, GPT-4.1, GPT-5 and later, the o series, gpt-oss.
    O200kBase,
    /// `cl100k_base`: GPT-4, GPT-3.5 and the third generation of embeddings.
    Cl100kBase,
    /// `p50k_base`: Codex and the later GPT-3 models.
    P50kBase,
    /// `p50k_edit`: the edit models.
    P50kEdit,
    /// `r50k_base`: GPT-3.
    R50kBase,
    /// Encoding of an open model, part of the program.
    Open(Open),
    /// Read from the `tokenizer.json` that came with the model.
    Own(Own),
    /// Not public: estimated by script and kind of content.
    Estimate,
    /// Not public, with a known number of tokens per thousand of `o200k_base`, using this digit
    /// rule. Relative to that count, the ratio of two encodings varies least between texts.
    Scaled { permille: u32, digits: Digits },
}

/// Digit rule of an encoding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Digits {
    /// One token per digit, as in most encodings.
    #[default]
    Apart,
    /// Up to three digits at once, as `o200k_base` itself does.
    InThrees,
}

impl Encoding {
    /// Returns the encoding called `name`, as written in `config/models.toml`; `None` if there is
    /// none.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "o200k_base" => Self::O200kBase,
            "cl100k_base" => Self::Cl100kBase,
            "p50k_base" => Self::P50kBase,
            "p50k_edit" => Self::P50kEdit,
            "r50k_base" => Self::R50kBase,
            "estimate" => Self::Estimate,
            _ => return Open::from_name(name).map(Self::Open),
        })
    }

    /// Returns the encoding that [`String::from`] wrote as `text`; `None` if it is unknown, or a
    /// vocabulary of the user's that is no longer loaded.
    fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (first, rest) = (words.next()?, words.collect::<Vec<_>>());
        match (first, rest.as_slice()) {
            ("own", [fingerprint]) => {
                u128::from_str_radix(fingerprint, 16).ok().and_then(Own::find).map(Self::Own)
            }
            ("scaled", [permille, digits]) => {
                let digits = match *digits {
                    "apart" => Digits::Apart,
                    "in_threes" => Digits::InThrees,
                    _ => return None,
                };
                Some(Self::Scaled { permille: permille.parse().ok()?, digits })
            }
            (name, []) => Self::from_name(name),
            _ => None,
        }
    }

    /// Lists the names of all available encodings, formatted for a sentence.
    pub fn names() -> String {
        let public = ["o200k_base", "cl100k_base", "p50k_base", "p50k_edit", "r50k_base"];
        let open = Open::ALL.map(Open::name);
        let quoted = public.iter().chain(&open).map(|name| format!("{name:?}"));
        format!("{} or \"estimate\"", quoted.collect::<Vec<_>>().join(", "))
    }

    /// Counts the tokens of `text`. Special tokens spelled in it count as plain text.
    pub fn count(self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        let tokens = match self {
            Self::O200kBase => bpe::o200k().count(text),
            Self::Cl100kBase => bpe::cl100k().count(text),
            Self::P50kBase => by_blocks(tiktoken_rs::p50k_base_singleton(), text),
            Self::P50kEdit => by_blocks(tiktoken_rs::p50k_edit_singleton(), text),
            Self::R50kBase => by_blocks(tiktoken_rs::r50k_base_singleton(), text),
            Self::Open(open) => return open.count(text),
            Self::Own(own) => return own.count(text),
            Self::Estimate => return estimate::count(text),
            Self::Scaled { permille, digits } => {
                let apart = match digits {
                    Digits::Apart => digits_apart(text),
                    Digits::InThrees => 0,
                };
                let tokens = Self::O200kBase.count(text) + apart;
                return (tokens * u64::from(permille)).div_ceil(1000);
            }
        };
        tokens as u64
    }

    /// Returns whether counts may differ from the model's own tokenizer.
    pub fn is_estimated(self) -> bool {
        matches!(self, Self::Estimate | Self::Scaled { .. })
    }

    /// Returns the bytes of the longest head of `text` found within `tokens`, on a character
    /// border.
    pub fn head_bytes(self, text: &str, tokens: u64) -> usize {
        match self {
            Self::O200kBase => bpe_head(bpe::o200k(), text, tokens),
            Self::Cl100kBase => bpe_head(bpe::cl100k(), text, tokens),
            _ => self.longest(text.len(), tokens, |bytes| &text[..floor_border(text, bytes)]),
        }
    }

    /// Returns the bytes of the longest tail of `text` found within `tokens`, on a character
    /// border.
    pub fn tail_bytes(self, text: &str, tokens: u64) -> usize {
        match self {
            Self::O200kBase => bpe_tail(bpe::o200k(), text, tokens),
            Self::Cl100kBase => bpe_tail(bpe::cl100k(), text, tokens),
            _ => self.longest(text.len(), tokens, |bytes| {
                &text[ceil_border(text, text.len() - bytes)..]
            }),
        }
    }

    /// Returns the bytes of the longest `piece` within `tokens`, found by doubling and halving.
    /// Counts grow with bytes, give or take a token if a piece is split.
    fn longest<'a>(self, most: usize, tokens: u64, piece: impl Fn(usize) -> &'a str) -> usize {
        // Doubles first, so that the work depends on `tokens` instead of the text's length.
        let (mut fits, mut exceeds) = (0, 64.min(most + 1));
        while exceeds <= most && self.count(piece(exceeds)) <= tokens {
            (fits, exceeds) = (exceeds, (exceeds * 2).min(most + 1));
        }
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            if self.count(piece(middle)) <= tokens {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        piece(fits).len()
    }

    /// Loads the tables and warms them, so that no request has to.
    pub fn warm(self) {
        self.count("Warm text, 12345 {\"json\": [1, 2]}\n\tfn main() {}\r\n  ");
        self.count("你好 Привет, 12345\n");
    }
}

impl From<Encoding> for String {
    fn from(encoding: Encoding) -> Self {
        match encoding {
            Encoding::O200kBase => "o200k_base".to_owned(),
            Encoding::Cl100kBase => "cl100k_base".to_owned(),
            Encoding::P50kBase => "p50k_base".to_owned(),
            Encoding::P50kEdit => "p50k_edit".to_owned(),
            Encoding::R50kBase => "r50k_base".to_owned(),
            Encoding::Open(open) => open.name().to_owned(),
            Encoding::Own(own) => format!("own {:x}", own.fingerprint()),
            Encoding::Estimate => "estimate".to_owned(),
            Encoding::Scaled { permille, digits: Digits::Apart } => {
                format!("scaled {permille} apart")
            }
            Encoding::Scaled { permille, digits: Digits::InThrees } => {
                format!("scaled {permille} in_threes")
            }
        }
    }
}

impl TryFrom<String> for Encoding {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::from_text(&text).ok_or_else(|| format!("{text:.100} is no encoding"))
    }
}

/// Returns the number of additional tokens in `o200k_base`, which takes three digits for one, if
/// each digit were a token.
fn digits_apart(text: &str) -> u64 {
    let mut more = 0;
    let mut run = 0_u64;
    for character in text.chars() {
        if character.is_numeric() {
            // The second and the third of each three.
            more += u64::from(!run.is_multiple_of(3));
            run += 1;
        } else {
            run = 0;
        }
    }
    more
}

/// Approximate size of a block for `tiktoken-rs`: on long runs it is slower than linear, and may
/// run out of stack.
const BLOCK_BYTES: usize = 4096;

/// Counts block by block. Blocks end before a single space between words, a position that the
/// encodings never join across. Only a text without any such position for a whole block is split
/// elsewhere, and may count a token or two more.
fn by_blocks(tokenizer: &tiktoken_rs::CoreBPE, text: &str) -> usize {
    let mut rest = text;
    let mut tokens = 0;
    while !rest.is_empty() {
        let (block, after) = rest.split_at(block_bytes(rest));
        tokens += tokenizer.count_ordinary(block);
        rest = after;
    }
    tokens
}

fn block_bytes(text: &str) -> usize {
    if text.len() <= BLOCK_BYTES {
        return text.len();
    }
    let bytes = text.as_bytes();
    let is_between_words = |place: &usize| {
        bytes[*place] == b' '
            && bytes[place - 1].is_ascii_alphanumeric()
            && bytes[place + 1].is_ascii_alphanumeric()
    };
    (BLOCK_BYTES / 2..BLOCK_BYTES)
        .rev()
        .find(is_between_words)
        .unwrap_or_else(|| floor_border(text, BLOCK_BYTES))
}

fn bpe_head(bpe: &Bpe, text: &str, tokens: u64) -> usize {
    floor_border(text, bpe.head_bytes(text, to_usize(tokens)))
}

/// Reads the text's end in growing stretches, so that the cost depends on `tokens` instead of the
/// text's length.
fn bpe_tail(bpe: &Bpe, text: &str, tokens: u64) -> usize {
    let tokens = to_usize(tokens);
    if tokens == 0 {
        return 0;
    }
    let mut stretch = tokens.saturating_mul(6).max(64);
    loop {
        let from = ceil_border(text, text.len().saturating_sub(stretch));
        let rest = &text[from..];
        let bytes = rest.len() - ceil_border(rest, rest.len() - bpe.tail_bytes(rest, tokens));
        if bytes < rest.len() || from == 0 {
            return bytes;
        }
        stretch = stretch.saturating_mul(2);
    }
}

fn to_usize(tokens: u64) -> usize {
    usize::try_from(tokens).unwrap_or(usize::MAX)
}

fn floor_border(text: &str, mut bytes: usize) -> usize {
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    bytes
}

fn ceil_border(text: &str, mut bytes: usize) -> usize {
    while !text.is_char_boundary(bytes) {
        bytes += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Encoding; 12] = [
        Encoding::Open(Open::DeepseekV3),
        Encoding::Open(Open::Llama3),
        Encoding::Open(Open::MistralV3),
        Encoding::Open(Open::Qwen2),
        Encoding::Scaled { permille: 1234, digits: Digits::Apart },
        Encoding::Scaled { permille: 1234, digits: Digits::InThrees },
        Encoding::O200kBase,
        Encoding::Cl100kBase,
        Encoding::P50kBase,
        Encoding::P50kEdit,
        Encoding::R50kBase,
        Encoding::Estimate,
    ];

    #[test]
    fn encodings_are_read_as_they_are_written() {
        for encoding in ALL {
            assert_eq!(Encoding::try_from(String::from(encoding)), Ok(encoding));
        }
        for text in ["", "own", "own 12", "own x", "scaled", "scaled 1", "scaled x apart", "none"] {
            assert!(Encoding::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_scaled_count_has_digits_one_by_one() {
        let scaled =
            |text: &str, permille| Encoding::Scaled { permille, digits: Digits::Apart }.count(text);
        for (text, tokens) in [("", 0), ("hello", 1), ("7", 1), ("1234567", 7), ("12 345 6", 8)] {
            assert_eq!(scaled(text, 1000), tokens, "{text:?}");
        }
        assert_eq!((scaled("hello", 500), scaled("hello", 1001)), (1, 2));
        assert_eq!(scaled(&"hello ".repeat(1000), 1500), 1502);
    }

    #[test]
    fn special_tokens_are_plain_text() {
        assert!(Encoding::O200kBase.count("<|endoftext|>") > 1);
        assert!(Encoding::R50kBase.count("<|endoftext|>") > 1);
    }

    #[test]
    fn heads_and_tails_stay_within_their_tokens_and_on_borders() {
        let texts = [
            "The quick brown fox jumps over the lazy dog. ".repeat(40),
            "a".repeat(4000),
            "日本語のテキスト、それに絵文字😀👩‍👩‍👧".repeat(40),
            " \n\t ".repeat(300),
            "{\"id\":123456,\"name\":\"x\"},".repeat(100),
            String::new(),
            "é".into(),
        ];
        for encoding in ALL {
            for text in &texts {
                let whole = encoding.count(text);
                for tokens in [0, 1, 2, 7, 50, 10_000] {
                    let head = &text[..encoding.head_bytes(text, tokens)];
                    let tail = &text[text.len() - encoding.tail_bytes(text, tokens)..];
                    // A split piece may take a token more than it did inside the whole.
                    assert!(encoding.count(head) <= tokens + 2, "{encoding:?} head {tokens}");
                    assert!(encoding.count(tail) <= tokens + 2, "{encoding:?} tail {tokens}");
                    if tokens >= whole {
                        assert_eq!((head.len(), tail.len()), (text.len(), text.len()));
                    } else if tokens >= 7 && !text.trim().is_empty() {
                        assert!(
                            encoding.count(head) * 2 >= tokens,
                            "{encoding:?} {tokens} head of {text:.20}"
                        );
                        assert!(
                            encoding.count(tail) * 2 >= tokens,
                            "{encoding:?} {tokens} tail of {text:.20}"
                        );
                    }
                }
            }
        }
    }
}
