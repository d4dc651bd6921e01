//! `[conversations]`: conversations kept for callers, and the check of profile texts.

use super::keys::CONVERSATIONS;
use super::reader::{Reader, settings};
use super::{AuthMode, Config};
use weir_store::conversations::ConversationLimits;
use weir_store::keys::check_profile;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

settings! {
    /// `[conversations]`: conversations kept for callers.
    #[derive(Debug, Clone, Copy)]
    Conversations from keys {
        /// Whether callers without a setting of their own key may keep them.
        enabled: bool = keys.get("enabled"),
        /// Maximum number of kept messages put before those of a request.
        max_messages: u64 = keys.get("max_messages"),
        limits: ConversationLimits = ConversationLimits {
            lifetime_ms: keys.get::<u64>("retention_days") * DAY_MS,
            max_conversation_bytes: keys.get("max_bytes.conversation"),
            max_bytes: keys.get("max_bytes.total"),
        },
    }
}

/// Refuses kept conversations that find no room: a request holds its body and room for a whole
/// conversation while it reads that.
pub(super) fn agree(reader: &mut Reader, config: &Config) {
    if config.conversations.enabled && !config.has_room_for_conversations() {
        let message = config.no_room("each request of a kept conversation");
        reader.section(&CONVERSATIONS).refuse("max_bytes.conversation", message);
    }
}

/// Returns the warnings: single keys may keep conversations although the configuration lets nobody.
pub(super) fn warnings(config: &Config) -> Option<(&'static str, String)> {
    if config.auth.mode != AuthMode::Keys || config.has_room_for_conversations() {
        return None;
    }
    let whose = "each request of a conversation that a single key keeps (`weir keys limit ID \
                 --conversations true`)";
    Some(("conversations.max_bytes.conversation", config.no_room(whose)))
}

impl Config {
    /// Says that `refused` finds no room, and how to give it room.
    fn no_room(&self, refused: &str) -> String {
        let most_bytes = self.conversations.limits.max_conversation_bytes;
        let room_bytes = self.server.max_bodies_in_flight_bytes;
        format!(
            "{most_bytes} is not less than server.max_bodies_in_flight_bytes ({room_bytes}), so {refused} \
             would get 503; lower this key, or raise that one to {} or more",
            most_bytes.saturating_mul(2)
        )
    }

    /// Returns whether a request may have a kept conversation of the largest size.
    fn has_room_for_conversations(&self) -> bool {
        let room_bytes = u64::try_from(self.server.max_bodies_in_flight_bytes).unwrap_or(u64::MAX);
        self.conversations.limits.max_conversation_bytes < room_bytes
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
