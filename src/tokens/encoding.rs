//! Texts by encoding: count, and the longest head or tail within a number of tokens.
//!
//! `o200k_base` and `cl100k_base` are counted by `tiktoken` where the text is plain, which it is
//! several times faster on, else by `bpe-openai`, which is linear on any input. Both are exact, so
//! that the choice changes no count. The older public encodings are counted by `tiktoken-rs`, those
//! of open models by `open.rs` and, where there is a file, `own.rs`; everything else is estimated.

use std::collections::VecDeque;
use std::sync::OnceLock;

use bpe_openai::Tokenizer;

use super::estimate;
use super::open::Open;
use super::own::Own;

/// The public encodings that are counted exactly, and the estimate for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// An open model's, which is part of the program.
    Open(Open),
    /// Read from the `tokenizer.json` that came with the model.
    Own(Own),
    /// Not public: estimated by script and kind of content.
    Estimate,
    /// Not public, but known to take so many tokens for a thousand of `o200k_base` with digits one by
    /// one, which most other encodings have them. By that count the ratio of two encodings differs
    /// least from one text to another.
    Scaled { permille: u32 },
}

impl Encoding {
    /// The encoding called `name`, as written in `config/models.toml`; `None` if there is none.
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

    /// The names of all encodings that can be asked for, as one writes them in a sentence.
    pub fn names() -> String {
        let public = ["o200k_base", "cl100k_base", "p50k_base", "p50k_edit", "r50k_base"];
        let open = Open::ALL.map(Open::name);
        let quoted = public.iter().chain(&open).map(|name| format!("{name:?}"));
        format!("{} or \"estimate\"", quoted.collect::<Vec<_>>().join(", "))
    }

    /// Tokens of `text`. Special tokens spelled in it count as the plain text they are.
    pub fn count(self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        let tokens = match self {
            Self::O200kBase => by_lines(text, "o200k_base", &PLAIN_O200K, bpe_openai::o200k_base()),
            Self::Cl100kBase => {
                by_lines(text, "cl100k_base", &PLAIN_CL100K, bpe_openai::cl100k_base())
            }
            Self::P50kBase => by_blocks(tiktoken_rs::p50k_base_singleton(), text),
            Self::P50kEdit => by_blocks(tiktoken_rs::p50k_edit_singleton(), text),
            Self::R50kBase => by_blocks(tiktoken_rs::r50k_base_singleton(), text),
            Self::Open(open) => return open.count(text),
            Self::Own(own) => return own.count(text),
            Self::Estimate => return estimate::count(text),
            Self::Scaled { permille } => {
                let tokens = Self::O200kBase.count(text) + digits_apart(text);
                return (tokens * u64::from(permille)).div_ceil(1000);
            }
        };
        tokens as u64
    }

    /// Whether counts are not those of the model's own tokenizer.
    pub fn is_estimated(self) -> bool {
        matches!(self, Self::Estimate | Self::Scaled { .. })
    }

    /// Bytes of the longest head of `text` found to take at most `tokens`, on a character border.
    pub fn head_bytes(self, text: &str, tokens: u64) -> usize {
        match self {
            Self::O200kBase => bpe_head(bpe_openai::o200k_base(), text, tokens),
            Self::Cl100kBase => bpe_head(bpe_openai::cl100k_base(), text, tokens),
            _ => self.longest(text.len(), tokens, |bytes| &text[..floor_border(text, bytes)]),
        }
    }

    /// Bytes of the longest tail of `text` found to take at most `tokens`, on a character border.
    pub fn tail_bytes(self, text: &str, tokens: u64) -> usize {
        match self {
            Self::O200kBase => bpe_tail(bpe_openai::o200k_base(), text, tokens),
            Self::Cl100kBase => bpe_tail(bpe_openai::cl100k_base(), text, tokens),
            _ => self.longest(text.len(), tokens, |bytes| {
                &text[ceil_border(text, text.len() - bytes)..]
            }),
        }
    }

    /// Bytes of the longest `piece` within `tokens`, found by doubling and halving; counts grow with bytes, give
    /// or take a token where a piece is cut in two.
    fn longest<'a>(self, most: usize, tokens: u64, piece: impl Fn(usize) -> &'a str) -> usize {
        // First by doubling, so that the work follows the tokens and not the text.
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

/// How many more tokens `o200k_base`, which takes three digits for one, would have with a token for
/// each digit.
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

/// A text is given to `tiktoken-rs` in blocks of about this size: it is slower than linear, and may
/// run out of stack, on long runs.
const BLOCK_BYTES: usize = 4096;

/// Counts block by block. Blocks end before a single space between words, where the encodings
/// never join what stands on both sides; only a text without any such place for a whole block is
/// split elsewhere, and may count a token or two more for it.
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

/// The longest run of one kind of character in a plain text: past it `tiktoken` takes more than
/// linear time.
const PLAIN_RUN: usize = 64;

type Plain = OnceLock<Option<&'static tiktoken::CoreBpe>>;
static PLAIN_O200K: Plain = OnceLock::new();
static PLAIN_CL100K: Plain = OnceLock::new();

/// Counts runs of plain lines by one tokenizer and the lines between them by the other. Neither
/// encoding has a token that goes over a line's end to what the next line says, so the parts add up
/// to the whole.
fn by_lines(text: &str, name: &str, plain: &Plain, other: &Tokenizer) -> usize {
    let Some(plain) = plain.get_or_init(|| tiktoken::get_encoding(name)) else {
        return other.count(text);
    };
    if is_plain(text) {
        return plain.count(text);
    }
    let mut tokens = 0;
    let mut run = 0..0;
    let mut is_run_plain = true;
    let count = |run: std::ops::Range<usize>, is_plain: bool| match is_plain {
        true => plain.count(&text[run]),
        false => other.count(&text[run]),
    };
    while run.end < text.len() {
        let line = run.end..line_end(text, run.end);
        let is_plain = is_plain(&text[line.clone()]);
        if is_plain != is_run_plain {
            tokens += count(run.clone(), is_run_plain);
            run.start = line.start;
            is_run_plain = is_plain;
        }
        run.end = line.end;
    }
    tokens + count(run, is_run_plain)
}

/// Where the line that begins at `start` ends: behind a line's end that a letter, digit or sign
/// follows, with nothing between them but blanks. A slash must not follow at once: a sign takes it
/// along over line ends.
fn line_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = start;
    while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let end = at + length + 1;
        let blanks = bytes[end..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        at = end + blanks;
        match bytes.get(at) {
            Some(b'/') if blanks == 0 => {}
            Some(byte) if byte.is_ascii_graphic() => return end,
            _ => {}
        }
    }
    bytes.len()
}

/// Whether a text is ASCII without long runs of one kind, as nearly all of what agents send is.
fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    // Block by block and without a branch inside, which compilers turn into wide instructions.
    let is_all_plain =
        |block: &[u8]| block.iter().fold(true, |all, byte| all & is_plain_byte(*byte));
    bytes.chunks(256).all(is_all_plain) && !has_long_run(bytes)
}

fn is_plain_byte(byte: u8) -> bool {
    (0x20..=0x7e).contains(&byte) | (byte == b'\t') | (byte == b'\r') | (byte == b'\n')
}

/// Whether more than [`PLAIN_RUN`] bytes of one kind follow each other. Looks at windows of so
/// many bytes from their ends: one that ends in a short run is left behind at once, and each run
/// is walked at most twice.
fn has_long_run(bytes: &[u8]) -> bool {
    let kind = |byte: u8| KINDS[usize::from(byte)];
    let mut start = 0;
    while let Some(window) = bytes.get(start..=start + PLAIN_RUN) {
        let own = kind(window[PLAIN_RUN]);
        match window.iter().rposition(|byte| kind(*byte) != own) {
            Some(other) => start += other + 1,
            None => return true,
        }
    }
    false
}

/// The kind of bytes that a plain text does not hold.
const OTHER: u8 = 4;

/// The kind of each byte: letter, digit, white space, sign, other.
const KINDS: [u8; 256] = {
    let mut kinds = [OTHER; 256];
    let mut byte = 0;
    while byte < 128 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => 0,
            b'0'..=b'9' => 1,
            b' ' | b'\t' | b'\r' | b'\n' => 2,
            0x21..=0x7e => 3,
            _ => OTHER,
        };
        byte += 1;
    }
    kinds
};

fn bpe_head(tokenizer: &Tokenizer, text: &str, tokens: u64) -> usize {
    let mut left = tokens as usize;
    let mut bytes = 0;
    for piece in tokenizer.split(text) {
        match tokenizer.bpe.count_till_limit(piece.as_bytes(), left) {
            Some(count) => {
                left -= count;
                bytes += piece.len();
            }
            None => {
                let ids = tokenizer.bpe.encode_via_backtracking(piece.as_bytes());
                bytes +=
                    ids.iter().take(left).map(|id| tokenizer.bpe.token_len(*id)).sum::<usize>();
                break;
            }
        }
    }
    floor_border(text, bytes)
}

/// Reads the text's end in growing stretches, so that the cost follows `tokens` and not the text.
fn bpe_tail(tokenizer: &Tokenizer, text: &str, tokens: u64) -> usize {
    let tokens = tokens as usize;
    if tokens == 0 {
        return 0;
    }
    let mut stretch = tokens.saturating_mul(6).max(64);
    loop {
        let from = ceil_border(text, text.len().saturating_sub(stretch));
        let bytes = bpe_tail_within(tokenizer, &text[from..], tokens);
        if bytes < text.len() - from || from == 0 {
            return bytes;
        }
        stretch = stretch.saturating_mul(2);
    }
}

fn bpe_tail_within(tokenizer: &Tokenizer, text: &str, tokens: usize) -> usize {
    let mut kept: VecDeque<(&str, usize)> = VecDeque::new();
    let mut count = 0;
    for piece in tokenizer.split(text) {
        let own = tokenizer.bpe.count(piece.as_bytes());
        kept.push_back((piece, own));
        count += own;
        while count > tokens && kept.len() > 1 {
            count -= kept.pop_front().map_or(0, |(_, own)| own);
        }
    }
    let mut bytes: usize = kept.iter().map(|(piece, _)| piece.len()).sum();
    if count > tokens {
        // One piece is larger than what may stay: cut it between its tokens.
        let piece = kept.front().map_or("", |(piece, _)| piece);
        let ids = tokenizer.bpe.encode_via_backtracking(piece.as_bytes());
        bytes = ids.iter().rev().take(tokens).map(|id| tokenizer.bpe.token_len(*id)).sum();
    }
    text.len() - ceil_border(text, text.len() - bytes)
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

    const ALL: [Encoding; 11] = [
        Encoding::Open(Open::DeepseekV3),
        Encoding::Open(Open::Llama3),
        Encoding::Open(Open::MistralV3),
        Encoding::Open(Open::Qwen2),
        Encoding::Scaled { permille: 1234 },
        Encoding::O200kBase,
        Encoding::Cl100kBase,
        Encoding::P50kBase,
        Encoding::P50kEdit,
        Encoding::R50kBase,
        Encoding::Estimate,
    ];

    #[test]
    fn a_text_is_plain_without_long_runs_and_odd_bytes() {
        let run = |letter: &str, length: usize| letter.repeat(length);
        for (text, plain) in [
            (String::new(), true),
            ("Plain text,\r\n\t12345 {\"json\": [1, 2]}".to_owned(), true),
            (run("a", PLAIN_RUN), true),
            (run("a", PLAIN_RUN + 1), false),
            (run("aZ", PLAIN_RUN), false),
            (format!("1{}1{}", run("a", PLAIN_RUN), run("b", PLAIN_RUN)), true),
            (format!("x {}", run("-", PLAIN_RUN + 1)), false),
            (
                format!("{}{}{}", run("ab 12,", 99), run(" ", PLAIN_RUN + 1), run("ab 12,", 99)),
                false,
            ),
            (format!("{}{}{}", run("ab 12,", 99), run(" ", PLAIN_RUN), run("ab 12,", 99)), true),
            (format!("{}\u{7f}", run("ab ", 300)), false),
            (format!("{}\0{}", run("ab ", 300), run("ab ", 300)), false),
            (format!("{}é", run("ab ", 300)), false),
        ] {
            assert_eq!(is_plain(&text), plain, "{text:?}");
        }
        // Against the plainest way to say it, over runs of all lengths about the longest.
        let mut random = 1_u64;
        for _ in 0..2000 {
            let mut text = String::new();
            for _ in 0..6 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let length =
                    (random >> 33) as usize % 3 * (PLAIN_RUN / 2) + (random >> 40) as usize % 3;
                text.push_str(&["a", "7", " ", "+"][(random >> 50) as usize % 4].repeat(length));
            }
            let kinds: Vec<u8> = text.bytes().map(|byte| KINDS[usize::from(byte)]).collect();
            let longest = kinds.chunk_by(|left, right| left == right).map(<[u8]>::len).max();
            assert_eq!(is_plain(&text), longest.unwrap_or(0) <= PLAIN_RUN, "{text:?}");
        }
    }

    #[test]
    fn lines_add_up_to_the_whole() {
        let pieces = [
            "\n",
            "\r\n",
            "\n\n",
            " ",
            "    ",
            "\t",
            "/",
            "//",
            "'s",
            "'",
            "a",
            "Word",
            "été",
            "…",
            "漢",
            "12345",
            ",",
            "--",
            "\u{2028}",
            "\u{b}",
            "\u{a0}",
            "{\"a\":",
            "#",
            "👩‍👩‍👧",
            "\u{301}",
        ];
        let mut random = 1_u64;
        for round in 0..3000 {
            let mut text = String::new();
            for _ in 0..round % 40 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(random >> 33) as usize % pieces.len()]);
            }
            for (encoding, whole) in [
                (Encoding::O200kBase, bpe_openai::o200k_base().count(&text)),
                (Encoding::Cl100kBase, bpe_openai::cl100k_base().count(&text)),
            ] {
                assert_eq!(encoding.count(&text), whole as u64, "{text:?}");
            }
        }
    }

    #[test]
    fn a_scaled_count_has_digits_one_by_one() {
        let scaled = |text: &str, permille| Encoding::Scaled { permille }.count(text);
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
                    // A piece cut in two may take a token more than it did inside the whole.
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
