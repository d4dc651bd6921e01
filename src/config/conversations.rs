//! `[conversations]`: conversations kept for callers, and the check of profile texts.

use super::keys::CONVERSATIONS;
use super::reader::Reader;
use weir_store::conversations::ConversationLimits;
use weir_store::keys::check_profile;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// `[conversations]`: conversations kept for callers.
#[derive(Debug, Clone, Copy)]
pub struct Conversations {
    /// Whether callers without a setting of their own key may keep them.
    pub enabled: bool,
    /// Maximum number of kept messages put before those of a request.
    pub max_messages: u64,
    pub limits: ConversationLimits,
}

/// Reads `[conversations]`.
pub(super) fn read(reader: &mut Reader) -> Conversations {
    let mut keys = reader.section(&CONVERSATIONS);
    let retention_days: u64 = keys.get("retention_days");
    Conversations {
        enabled: keys.get("enabled"),
        max_messages: keys.get("max_messages"),
        limits: ConversationLimits {
            lifetime_ms: retention_days * DAY_MS,
            max_conversation_bytes: keys.get("max_conversation_bytes"),
            max_bytes: keys.get("max_bytes"),
        },
    }
}

/// Reads a profile text; an empty one is none.
pub(super) fn profile(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.is_empty() {
        true => Ok(String::new()),
        false => check_profile(text).map(|()| text.to_owned()),
    }
}
