//! Transcripts that coding agents keep of their sessions, one file a program. Reads no files.

pub(crate) mod claude_code;
pub(crate) mod codex;

/// Returns a text as a JSON string.
fn quoted(text: &str) -> String {
    let mut raw = String::from('"');
    weir_engine::wire::json::escape_into(text, &mut raw);
    raw.push('"');
    raw
}
