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

/// Tokens of a loaded tool whose definition is named alone: a common one has some hundred.
const NAMED_TOOL: u64 = 300;

/// Counts content of unknown form: its texts, and the estimates of media and sealed content in it; or
/// the assumed size of uncountable content, whichever is more. References take nothing.
pub fn count_unknown(encoding: Encoding, images: media::ImageRule, raw: &str) -> u64 {
    const NO_TEXT: [&str; 6] =
        ["type", "file_id", "id", "url", "cache_control", "thought_signature"];
    let mut opaque_tokens = 0;
    let mut take = |name: &str, said: &str| {
        let tokens = match name {
            "signature" | "thought_signature" => Some(0),
            // A block that loads a tool of Messages (Anthropic's guide to tool search).
            "tool_name" => Some(NAMED_TOOL),
            _ if name.starts_with("encrypted_") => Some(sealed_tokens(said)),
            _ => media::count_data(images, said),
        };
        opaque_tokens += tokens.unwrap_or_default();
        tokens.is_some()
    };
    let text = visible::text_without(raw, &NO_TEXT, |_| false, &mut take);
    (encoding.count(text.as_deref().unwrap_or(raw)) + opaque_tokens).max(UNCOUNTABLE)
}

/// Estimates the tokens of encrypted content: base64 has 3 bytes in 4 letters, and a token some 4
/// bytes. Codex, OpenAI's own client, estimates likewise.
pub fn sealed_tokens(raw: &str) -> u64 {
    (raw.len() as u64 * 3).div_ceil(16)
}
