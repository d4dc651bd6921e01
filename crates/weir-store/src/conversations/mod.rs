//! Conversations kept for callers: their facts, limits and the choice of messages. Back ends store them;
//! messages are opaque here.

mod rows;

use bytes::Bytes;

use crate::sql::stored;
use crate::{ENTRY_BYTES, Kind};

pub(crate) use rows::delete_expired;
#[cfg(test)]
pub(crate) use rows::{create, mark};

/// Maximum size of a name.
pub const MAX_NAME_BYTES: usize = 100;
/// Maximum number of conversations in a page.
pub const MAX_PAGE: usize = 100;
/// Overhead of a message in addition to its text: its row and index entries.
pub const MESSAGE_BYTES: u64 = 64;
/// Name of their kind in the totals of the store.
pub(crate) const KIND: &str = "conversation";
/// Maximum expired conversations deleted per transaction, so that others do not wait long.
const DELETED_AT_ONCE: u64 = 100;
/// First character of the name of a mark: an empty row that has ended. Conversations' names begin with
/// characters before it.
pub(crate) const MARK: char = '~';
/// How long a mark is kept: longer than an answer takes.
const MARK_LIFETIME_MS: u64 = 24 * 3_600_000;

/// Limits of conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversationLimits {
    /// How long a conversation is kept after its last change.
    pub lifetime_ms: u64,
    /// Maximum size of one conversation. Above it, its oldest turns are deleted down to half of it, so
    /// that its beginning changes rarely.
    pub max_conversation_bytes: u64,
    /// Maximum size of all conversations. Above it, the tenant with the most data loses its oldest.
    pub max_bytes: u64,
}

impl ConversationLimits {
    /// Returns the kind under which the sizes of conversations are counted.
    pub fn kind(&self) -> Kind {
        Kind { name: KIND, max_bytes: self.max_bytes }
    }
}

/// Identity of a conversation between two changes that are no additions. One that is replaced or
/// cleared gets another, and none is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversationId(pub(crate) i64);

/// Message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMessage {
    /// The message as JSON.
    pub text: Bytes,
    /// Whether a conversation may begin with it: it opens a turn.
    pub opens: bool,
}

impl KeptMessage {
    /// Returns its size as counted against limits.
    pub fn weight_bytes(&self) -> u64 {
        self.text.len() as u64 + MESSAGE_BYTES
    }
}

/// Conversation without its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationFacts {
    pub name: String,
    pub messages: u64,
    /// Size as counted against limits.
    pub bytes: u64,
    pub created_ms: u64,
    /// When messages were last added; `None` if there are none.
    pub last_message_ms: Option<u64>,
    pub expires_ms: u64,
}

/// Returns the name of the mark of a conversation that was replaced, cleared or deleted. Its end is the
/// time of that change, or one more than that of the change before, so that no two changes have the same.
fn mark_name(name: &str) -> String {
    format!("{MARK}{name}")
}

/// Returns the time before which a mark must have ended to be deleted.
pub(crate) fn marks_end_ms(now_ms: u64) -> u64 {
    now_ms.saturating_sub(MARK_LIFETIME_MS)
}

/// Conversation with its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub id: ConversationId,
    pub facts: ConversationFacts,
    /// Messages with their places, in order. Places count from the first message ever added.
    pub messages: Vec<(u64, KeptMessage)>,
}

impl Conversation {
    /// Returns the newest messages, at most `max`, from one that opens a turn. If the newest turn alone
    /// has more, all of that.
    ///
    /// The choice depends on places alone and moves on by half of `max` at once. So most additions
    /// extend the list at its end, and the beginning of the next request stays the same.
    pub fn newest(&self, max: u64) -> &[(u64, KeptMessage)] {
        let messages = self.messages.as_slice();
        let Some((last, _)) = messages.last() else { return messages };
        if messages.len() as u64 <= max {
            return messages;
        }
        let (end, step) = (last + 1, (max / 2).max(1));
        let start = end.saturating_sub(max).div_ceil(step) * step;
        let opens = |(_, message): &&(u64, KeptMessage)| message.opens;
        let later = messages.iter().position(|both| both.0 >= start && opens(&both));
        let first = later.or_else(|| messages.iter().rposition(|both| opens(&both)));
        &messages[first.unwrap_or(0)..]
    }
}

/// Messages to add at the end of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// Conversation that they continue; `None` if there was none, so that one is created.
    pub continues: Option<ConversationId>,
    /// Latest change of that name before they began, as the store's `conversation_change` returned it.
    pub change: u64,
    pub messages: Vec<KeptMessage>,
}

/// Row of a conversation that messages are added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdditionRow {
    Known(i64),
    /// One that is created.
    New,
    /// None: the conversation was changed since it was read.
    Changed,
}

impl Addition {
    /// Returns the row that it belongs to. `found` is that of the conversation, and `change` the latest
    /// change of its name.
    fn row(&self, found: Option<i64>, change: u64) -> AdditionRow {
        match (self.continues, found) {
            (Some(ConversationId(wanted)), found) if found != Some(wanted) => AdditionRow::Changed,
            // A mark that is gone was older than any exchange.
            (None, _) if change > self.change => AdditionRow::Changed,
            (_, Some(id)) => AdditionRow::Known(id),
            (_, None) => AdditionRow::New,
        }
    }
}

/// Outcome of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// All messages were added.
    Whole,
    /// The conversation was replaced, cleared or deleted since it was read; nothing was added.
    Changed,
}

/// Remaining messages of a conversation after an addition, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rest {
    /// Place of the first one; those before it are deleted.
    first: i64,
    messages: i64,
    weight_bytes: i64,
}

impl Rest {
    /// Determines the rest of a conversation of at most `max_bytes`. `messages` are those of
    /// [`first_kept`].
    fn of(messages: &[(i64, i64, bool)], max_bytes: u64) -> Self {
        let first = first_kept(messages, max_bytes).unwrap_or(0);
        let kept = messages.iter().filter(|(place, ..)| *place >= first);
        let (count, bytes) =
            kept.fold((0, 0), |(count, sum), (_, size, _)| (count + 1, sum + size));
        Self { first, messages: count, weight_bytes: bytes + stored(ENTRY_BYTES) }
    }
}

/// Returns the place of the first message that stays if a conversation has more than `max_bytes`: from
/// there, it has at most half of that. `messages` are places, weights and whether they open a turn.
fn first_kept(messages: &[(i64, i64, bool)], max_bytes: u64) -> Option<i64> {
    let total: i64 = messages.iter().map(|(_, weight, _)| weight).sum();
    let within = |bytes: i64, most: u64| u64::try_from(bytes).unwrap_or(0) <= most;
    if within(total, max_bytes.saturating_sub(ENTRY_BYTES)) {
        return None;
    }
    let mut rest = total;
    for (place, weight, opens) in messages {
        if *opens && within(rest, max_bytes / 2) {
            return Some(*place);
        }
        rest -= weight;
    }
    // The newest turn alone is larger than half; it stays whole.
    messages.iter().rfind(|(_, _, opens)| *opens).map(|(place, ..)| *place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(roles: &str, first: u64) -> Conversation {
        let message = |(place, role): (u64, char)| {
            (place, KeptMessage { text: Bytes::new(), opens: role == 'u' })
        };
        let facts = ConversationFacts {
            name: "a".to_owned(),
            messages: roles.len() as u64,
            bytes: 0,
            created_ms: 0,
            last_message_ms: None,
            expires_ms: 0,
        };
        let messages = (first..).zip(roles.chars()).map(message).collect();
        Conversation { id: ConversationId(1), facts, messages }
    }

    #[test]
    fn the_newest_messages_begin_a_turn() {
        for (roles, max, expected) in [
            ("", 4, (0, 0)),
            ("ua", 4, (0, 2)),
            ("uaua", 4, (0, 4)),
            // The start moves on by two.
            ("uauaua", 4, (2, 4)),
            ("uauauaua", 4, (4, 4)),
            // A turn that the start falls into is left out whole.
            ("uattauaua", 6, (5, 4)),
            // The newest turn stays whole, however long it is.
            ("uautatata", 4, (2, 7)),
            ("tatata", 4, (0, 6)),
            ("uaua", 1, (2, 2)),
        ] {
            let conversation = conversation(roles, 0);
            let newest = conversation.newest(max);
            let found = (newest.first().map_or(0, |both| both.0), newest.len());
            assert_eq!(found, expected, "{roles} {max}");
        }
    }

    #[test]
    fn the_start_moves_rarely_and_by_places_alone() {
        let mut starts = Vec::new();
        for exchanges in 1..=300 {
            let conversation = conversation(&"ua".repeat(exchanges), 0);
            let newest = conversation.newest(200);
            assert!(newest.len() <= 200 && newest.len() >= 100.min(2 * exchanges));
            starts.push(newest[0].0);
        }
        starts.dedup();
        assert_eq!(starts, [0, 100, 200, 300, 400]);
        // Messages before the start make no difference.
        let (whole, rest) =
            (conversation(&"ua".repeat(150), 0), conversation(&"ua".repeat(125), 50));
        assert_eq!(whole.newest(200), rest.newest(200));
    }

    #[test]
    fn the_oldest_turns_make_room_for_half() {
        let row = |place, weight, opens| (place, weight, opens);
        let pairs = |count: i64| -> Vec<_> {
            (0..count).flat_map(|n| [row(2 * n, 100, true), row(2 * n + 1, 100, false)]).collect()
        };
        assert_eq!(first_kept(&pairs(5), 1000 + ENTRY_BYTES), None);
        assert_eq!(first_kept(&pairs(5), 999 + ENTRY_BYTES), Some(4));
        assert_eq!(first_kept(&pairs(1), 100), Some(0));
        assert_eq!(first_kept(&[], 0), None);
    }
}
