//! Token counts of texts, images and tool definitions. Pure: a count depends on the content and the
//! encoding alone, and is the same warm or cold, on every machine.

mod blocks;
mod bpe;
pub mod encoding;
pub mod estimate;
mod growth;
pub(crate) mod letters;
pub mod media;
pub mod open;
pub mod own;
pub mod tools;
pub mod visible;

pub use encoding::{Digits, Encoding};

/// Tokens of framing around each message: role, name and content markers.
///
/// OpenAI's guide to counting chat tokens gives 3, and the role is a token of its own.
pub const MESSAGE_FRAMING: u64 = 4;
/// Tokens of framing around each call of an assistant message.
pub const CALL_FRAMING: u64 = 8;
/// Tokens for a `name` in addition to the name itself.
pub const NAME_FRAMING: u64 = 1;
/// Tokens that prime the reply, once per request.
pub const REPLY_PRIMING: u64 = 3;
/// Assumed tokens of content that cannot be counted.
pub const UNCOUNTABLE: u64 = 150;

/// Counts content of unknown form: its texts without base64 data and references, or the assumed
/// size of uncountable content, whichever is more.
pub fn count_unknown(encoding: Encoding, raw: &str) -> u64 {
    const NO_TEXT: [&str; 10] = [
        "type",
        "data",
        "file_data",
        "file_id",
        "id",
        "url",
        "cache_control",
        "signature",
        "thought_signature",
        "encrypted_content",
    ];
    let text = visible::text(raw, &NO_TEXT, |_| false);
    encoding.count(text.as_deref().unwrap_or(raw)).max(UNCOUNTABLE)
}
