//! Images and audio. Sizes are read from headers; nothing is decoded or fetched.
//!
//! The rules are those that providers publish, or the larger value if measured billing differs.
//! Remote images count as the rule's maximum.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use serde::{Deserialize, Serialize};

use super::UNCOUNTABLE;

/// Bytes of an image's base64 that are examined for its size.
const HEADER_BASE64_BYTES: usize = 64 * 1024;

/// Patches of an image with the detail `high`, by OpenAI's guide to images (models from GPT-5.4 on).
const HIGH_PATCHES: u32 = 2500;

/// Beginnings of the names of models that reduce images to some 1,600 tokens: those before Claude Opus 4.7
/// (Anthropic's guide to vision).
const SMALL_CLAUDE: [&str; 13] = [
    "claude-2",
    "claude-3",
    "claude-4-",
    "claude-v",
    "claude-instant",
    "claude-haiku-4",
    "claude-sonnet-4",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2",
    "claude-opus-4-5",
    "claude-opus-4-6",
    "claude-opus-4@",
];

/// Image counting rule of a family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ImageRule {
    /// A base, and an amount for each tile of 512 pixels (OpenAI, up to GPT-5 and the o series).
    /// The image is first fitted into 2,048 by 2,048 and its shorter side reduced to 768.
    Tiles { base: u32, tile: u32 },
    /// Patches of 32 pixels, at most `cap`, times a factor in thousandths (OpenAI's small and
    /// newer models). Those that take `original` images have at least 2,500 for `high` ones.
    Patches { cap: u32, factor_permille: u32, original: Option<u32> },
    /// Patches of 28 pixels, at most `cap` (Anthropic).
    Squares { cap: u32 },
    /// An amount for each tile of 768 pixels, at least `least` (Google).
    Large { tile: u32, least: u32 },
}

impl ImageRule {
    /// Returns the rule for `model`; unknown models use the most expensive common rule.
    pub fn of_model(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        // Bedrock puts the maker in front.
        let name = name.rsplit_once("openai.").map_or(name.as_str(), |(_, own)| own);
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if starts(&["gpt-4o-mini"]) {
            Self::Tiles { base: 2833, tile: 5667 }
        } else if starts(&["gpt-4.1-nano", "gpt-5-nano"]) {
            Self::Patches { cap: 1536, factor_permille: 2460, original: None }
        } else if starts(&["gpt-4.1-mini", "gpt-5-mini"]) {
            Self::Patches { cap: 1536, factor_permille: 1620, original: None }
        } else if starts(&["o4-mini"]) {
            Self::Patches { cap: 1536, factor_permille: 1720, original: None }
        } else if starts(&["gpt-6", "chat-latest"]) {
            Self::Patches { cap: 12_000, factor_permille: 1200, original: Some(12_000) }
        } else if starts(&["gpt-5.6"]) {
            // Without a detail, images keep their size; larger ones are refused.
            Self::Patches { cap: 30_000, factor_permille: 1200, original: Some(30_000) }
        } else if starts(&["gpt-5.2", "gpt-5.3", "gpt-5.4", "gpt-5.5"]) {
            Self::Patches { cap: 1536, factor_permille: 1200, original: Some(10_000) }
        } else if starts(&["gpt-5"]) {
            Self::Tiles { base: 70, tile: 140 }
        } else if starts(&["o1", "o3"]) {
            Self::Tiles { base: 75, tile: 150 }
        } else if let Some(at) = name.find("claude") {
            // A cloud's name may stand in front.
            let name = name[at..].replace('.', "-");
            let is_small = SMALL_CLAUDE.iter().any(|own| name.starts_with(own));
            let is_small = is_small || name == "claude-opus-4";
            Self::Squares { cap: if is_small { 1600 } else { 4784 } }
        } else if starts(&["gemini"]) {
            Self::Large { tile: 258, least: 1120 }
        } else {
            Self::Tiles { base: 85, tile: 170 }
        }
    }

    /// Whether the rule for `model` is that of its own family.
    pub fn is_known(model: &str) -> bool {
        let unknown = Self::Tiles { base: 85, tile: 170 };
        Self::of_model(model) != unknown
    }

    /// Counts the tokens of an image at `url` with the caller's `detail`.
    pub fn count(self, url: &str, detail: Option<&str>) -> u64 {
        // Gemini's form of OpenAI's API takes PDFs as images.
        if url.starts_with("data:application/pdf")
            && let Some(tokens) = count_data(self, url)
        {
            return tokens;
        }
        let size = data_size(url);
        let low = detail == Some("low");
        let tokens = match self {
            Self::Tiles { base, .. } if low => u64::from(base),
            Self::Tiles { base, tile } => {
                let (width, height) = size.map_or((2048, 768), fit_tiles);
                u64::from(base)
                    + u64::from(tile) * width.div_ceil(512).saturating_mul(height.div_ceil(512))
            }
            Self::Patches { cap, factor_permille, original } => {
                let cap = match (detail, original) {
                    (Some("original"), Some(original)) => original,
                    (Some("high"), Some(_)) => HIGH_PATCHES,
                    _ => cap,
                };
                let patches = size.map_or(u64::from(cap), |(width, height)| {
                    width.div_ceil(32).saturating_mul(height.div_ceil(32)).min(u64::from(cap))
                });
                (patches * u64::from(factor_permille)).div_ceil(1000)
            }
            Self::Squares { cap } => size.map_or(u64::from(cap), |(width, height)| {
                width.div_ceil(28).saturating_mul(height.div_ceil(28)).min(u64::from(cap))
            }),
            Self::Large { tile, least } => {
                // One by its address may be the largest.
                let tiles = size.map_or(16, |(width, height)| {
                    width.div_ceil(768).saturating_mul(height.div_ceil(768)).min(16)
                });
                (u64::from(tile) * tiles).max(u64::from(least))
            }
        };
        tokens.max(u64::from(u8::from(!url.is_empty())))
    }
}

/// Fits an image into 2,048 by 2,048, then reduces its shorter side to at most 768.
fn fit_tiles((width, height): (u64, u64)) -> (u64, u64) {
    let (mut width, mut height) = (width.max(1), height.max(1));
    let longer = width.max(height);
    if longer > 2048 {
        width = (width * 2048).div_ceil(longer);
        height = (height * 2048).div_ceil(longer);
    }
    let shorter = width.min(height);
    if shorter > 768 {
        width = (width * 768).div_ceil(shorter);
        height = (height * 768).div_ceil(shorter);
    }
    (width, height)
}

/// Returns width and height of the image in a `data:` URL, in pixels; `None` for other URLs and
/// other content.
fn data_size(url: &str) -> Option<(u64, u64)> {
    let (_, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    let bytes = decode_start(data)?;
    let size = imagesize::blob_size(&bytes).ok()?;
    // Sides are bounded so that their products stay far from overflow.
    Some((size.width.min(1 << 24) as u64, size.height.min(1 << 24) as u64))
}

fn decode_start(data: &str) -> Option<Vec<u8>> {
    let start = data.as_bytes().get(..data.len().min(HEADER_BASE64_BYTES))?;
    let whole_groups = start.len() / 4 * 4;
    STANDARD.decode(start.get(..whole_groups)?).ok()
}

/// Minimum length of base64 that is content and no name.
const MIN_DATA_LETTERS: usize = 512;
/// Tokens of a PDF's page, whose text and picture a model reads: Anthropic's guide to PDF gives 1,500 to
/// 3,000.
const PAGE_TOKENS: u64 = 2250;
/// The first bytes of a PDF as base64.
const PDF_BASE64: &str = "JVBERi";
/// Bytes of a PDF for a token if its pages cannot be found, since they are compressed.
const PDF_BYTES: u64 = 32;
/// Most streams of a PDF that are unpacked, and most bytes of these, and of the head of one.
const MAX_STREAMS: usize = 4096;
const UNPACKED_BYTES: u64 = 16 * 1024 * 1024;
const STREAM_HEAD_BYTES: usize = 1024;
/// Bytes of a text for a token.
const TEXT_BYTES: u64 = 4;
/// Bytes of other media for a token.
const MEDIA_BYTES: u64 = 128;

/// Whether a part's JSON text holds a PDF as base64.
pub(crate) fn holds_pages(raw: &str) -> bool {
    memchr::memmem::find(raw.as_bytes(), PDF_BASE64.as_bytes()).is_some()
}

/// Estimates the tokens of content given as base64, alone or in a `data:` URL; `None` for other
/// texts. Linear, and a text ends the work at its first space.
pub(super) fn count_data(images: ImageRule, said: &str) -> Option<u64> {
    let data = match said.strip_prefix("data:") {
        Some(url) => url.split_once(";base64,")?.1,
        None => said,
    };
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_=\r\n".contains(&byte);
    if data.len() < MIN_DATA_LETTERS || !data.bytes().all(is_letter) {
        return None;
    }
    let bytes = data.len() as u64 / 4 * 3;
    let start = decode_start(data).unwrap_or_default();
    if start.starts_with(b"%PDF-") {
        let found = PAGE_TOKENS * pages(data);
        return Some(if found > 0 { found } else { PAGE_TOKENS.max(bytes / PDF_BYTES) });
    }
    if imagesize::image_type(&start).is_ok() {
        let end = data.len().min(HEADER_BASE64_BYTES);
        let start = data.get(..end).unwrap_or_default();
        return Some(images.count(&format!("data:;base64,{start}"), None));
    }
    if is_text(&start) {
        return Some(bytes / TEXT_BYTES);
    }
    Some((bytes / MEDIA_BYTES).max(UNCOUNTABLE))
}

/// Whether a file begins as text.
fn is_text(start: &[u8]) -> bool {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last letter may be cut.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_written = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t');
    !text.is_empty() && text.chars().all(is_written)
}

/// Counts the pages of a PDF given as base64: the objects of the type `Page` that stand in it as text, or in its
/// compressed streams of objects.
fn pages(data: &str) -> u64 {
    let mut letters: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    letters.truncate(letters.len() / 4 * 4);
    let Ok(bytes) = STANDARD.decode(letters) else { return 0 };
    match marks_of_pages(&bytes) {
        0 => compressed_pages(&bytes),
        pages => pages,
    }
}

/// Counts the pages in a PDF's streams of objects, which are compressed by zlib. What is unpacked in all is
/// bounded by the size of the file and [`UNPACKED_BYTES`].
fn compressed_pages(bytes: &[u8]) -> u64 {
    const STREAM: &[u8] = b"stream";
    let mut left = (4 * bytes.len() as u64).min(UNPACKED_BYTES);
    let (mut pages, mut unpacked) = (0, Vec::new());
    for at in memchr::memmem::find_iter(bytes, b"/ObjStm").take(MAX_STREAMS) {
        let rest = &bytes[at..bytes.len().min(at + STREAM_HEAD_BYTES)];
        let Some(begin) = memchr::memmem::find(rest, STREAM) else { continue };
        let stream = bytes[at + begin + STREAM.len()..].trim_ascii_start();
        unpacked.clear();
        // A stream that breaks off has what was read before.
        let _ = ZlibDecoder::new(stream).take(left).read_to_end(&mut unpacked);
        left -= unpacked.len() as u64;
        pages += marks_of_pages(&unpacked);
        if left == 0 {
            break;
        }
    }
    pages
}

/// Counts the marks of pages in a PDF's objects.
fn marks_of_pages(bytes: &[u8]) -> u64 {
    let is_page = |at: &usize| {
        let rest = bytes.get(at + b"/Type".len()..).unwrap_or_default().trim_ascii_start();
        let after = rest.strip_prefix(b"/Page");
        after.is_some_and(|after| !after.first().is_some_and(u8::is_ascii_alphanumeric))
    };
    memchr::memmem::find_iter(bytes, b"/Type").filter(is_page).count() as u64
}

/// Counts the tokens of recorded speech given as base64, by its duration: 10 a second for users'
/// speech (OpenAI's guide to realtime costs). Compressed formats use the low end of their bit
/// rates.
pub fn count_audio(data: &str, format: &str) -> u64 {
    let bytes = data.len() as u64 / 4 * 3;
    let bytes_per_second = match format {
        "wav" => decode_start(data).and_then(|start| wav_rate(&start)).unwrap_or(32_000),
        "pcm16" => 48_000,
        _ => 4_000,
    };
    (bytes * 10).div_ceil(bytes_per_second.max(1)).max(UNCOUNTABLE)
}

/// Reads the byte rate in a WAV header.
fn wav_rate(start: &[u8]) -> Option<u64> {
    let rate: [u8; 4] = start.get(28..32)?.try_into().ok()?;
    start.starts_with(b"RIFF").then(|| u64::from(u32::from_le_bytes(rate))).filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a PNG header with these sides.
    fn png(width: u32, height: u32) -> String {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 6, 0, 0, 0, 0, 0, 0, 0]);
        format!("data:image/png;base64,{}", STANDARD.encode(bytes))
    }

    #[test]
    fn published_examples() {
        // Values of OpenAI's guide to vision for GPT-4o and for 4.1-mini.
        for (model, width, height, detail, tokens) in [
            ("gpt-4o", 1024, 1024, None, 765),
            ("gpt-4o", 2048, 4096, None, 1105),
            ("gpt-4o", 4096, 8192, Some("low"), 85),
            ("gpt-4.1-mini", 1024, 1024, None, 1659),
            ("openai/gpt-4o", 1024, 1024, Some("high"), 765),
            // Measured at most by openai/codex, which has the caps of `original`.
            ("gpt-5.4", 3200, 3200, None, 1844),
            ("gpt-5.5", 3200, 3200, Some("high"), 3000),
            ("gpt-5.5", 3200, 3200, Some("original"), 12_000),
            ("gpt-5.6-sol", 4000, 2500, None, 11_850),
            // The guide of Anthropic.
            ("us.anthropic.claude-sonnet-4-5-v1:0", 4032, 3024, None, 1600),
            ("claude-opus-4.6", 4032, 3024, None, 1600),
            ("claude-opus-4-8", 4032, 3024, None, 4784),
            ("claude-sonnet-5", 1024, 1024, None, 1369),
        ] {
            let rule = ImageRule::of_model(model);
            assert_eq!(rule.count(&png(width, height), detail), tokens, "{model} {width}x{height}");
        }
    }

    #[test]
    fn unknown_sizes_count_as_the_most() {
        for model in ["gpt-4o", "gpt-4.1-mini", "claude-sonnet-4-5", "gemini-2.5-pro", "qwen-vl"] {
            let rule = ImageRule::of_model(model);
            let remote = rule.count("https://example.com/a.png", None);
            assert!(remote >= rule.count(&png(1024, 1024), None), "{model}");
            assert_eq!(remote, rule.count("data:image/png;base64,AAAA", None), "{model}");
        }
        assert!(ImageRule::of_model("gpt-4o").count(&png(u32::MAX, u32::MAX), None) < 10_000);
    }

    #[test]
    fn data_counts_as_the_media_it_is() {
        let rule = ImageRule::of_model("gpt-4o");
        let padding = |bytes: usize| (0..bytes).map(|at| (at * 7 % 251) as u8);
        let pdf = |pages: usize, mark: &str| {
            let mut bytes = b"%PDF-1.7\n1 0 obj <</Type /Pages /Count 9>>".to_vec();
            (0..pages).for_each(|_| {
                bytes.extend(mark.bytes());
                bytes.extend(padding(20_011));
            });
            bytes
        };
        let mut compressed = b"%PDF-1.7\n3 0 obj <</Type/ObjStm /N 40>> stream\r\n".to_vec();
        let objects = "<</Type /Page/Parent 1 0 R>>\n".repeat(40);
        let mut packed = Vec::new();
        let mut reader = flate2::read::ZlibEncoder::new(objects.as_bytes(), Default::default());
        reader.read_to_end(&mut packed).expect("it is packed");
        compressed.extend(packed);
        compressed.extend(b"\nendstream");
        compressed.extend(padding(600));
        let mut picture =
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\0\0\0\x04\0\x08\x06\0\0\0".to_vec();
        picture.extend(padding(200_000));
        for (bytes, tokens) in [
            (pdf(40, "<</Type/Page/Parent 1 0 R>>"), 90_000),
            (pdf(3, "<< /Type /Page >>"), 6750),
            (pdf(9, "stream"), (9 * 20_017 + 42) / PDF_BYTES),
            (compressed, 40 * PAGE_TOKENS),
            (picture, 765),
            (padding(170_000).collect(), 170_000 / MEDIA_BYTES),
            (padding(600).collect(), UNCOUNTABLE),
            ("id,name\n1,größe\n".repeat(1000).into_bytes(), 18_000 / TEXT_BYTES),
        ] {
            let data = STANDARD.encode(&bytes);
            let counted = count_data(rule, &data).expect("data");
            assert!(counted.abs_diff(tokens) <= 1, "{counted} {tokens}");
            let url = format!("data:application/octet-stream;base64,{data}");
            assert_eq!(count_data(rule, &url), Some(counted));
            if bytes.starts_with(b"%PDF") {
                let url = url.replace("octet-stream", "pdf");
                assert_eq!(rule.count(&url, None), counted);
            }
        }
        let text = "A text with spaces. ".repeat(100);
        for said in [text.as_str(), "c2hvcnQ=", "data:text/plain,no", "https://example.com/a"] {
            assert_eq!(count_data(rule, said), None);
        }
    }

    #[test]
    fn sound_counts_by_its_length() {
        let minute_of_wav = {
            let mut bytes = b"RIFF0000WAVEfmt 00000000".to_vec();
            bytes.extend(16_000u32.to_le_bytes());
            bytes.extend(32_000u32.to_le_bytes());
            bytes.resize(32_000 * 60, 0);
            STANDARD.encode(bytes)
        };
        assert!((590..620).contains(&count_audio(&minute_of_wav, "wav")));
        assert_eq!(count_audio("AAAA", "mp3"), UNCOUNTABLE);
    }
}
