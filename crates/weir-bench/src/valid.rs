//! Rules of a valid request, for messages of chat completions. The client's own conversation is the
//! standard: a form that it has is not a fault.

use weir_engine::wire::Role;
use weir_eval::conversation::{Conversation, Message};
use weir_eval::judge::is_paired;
use weir_eval::text::Text;

/// Rule that a request breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokenRule {
    /// A message that cannot be read, or none at all.
    Unreadable,
    /// A call without its result behind it, or a result without its call.
    Unpaired,
    /// The first message behind the system's is a result.
    OpensWithResult,
    /// Two messages of the assistant in a row.
    Alternation,
    /// A message of the assistant without text and calls.
    Empty,
    /// The last message is not the client's.
    LastChanged,
}

/// Returns the first rule that a request breaks.
pub(crate) fn problem(
    conversation: &Conversation,
    length: usize,
    sent: &[&Message],
) -> Option<BrokenRule> {
    let own = &conversation.messages[..length];
    let first = sent.iter().find(|message| message.role != Role::System);
    let (Some(first), Some(last)) = (first, sent.last()) else {
        return Some(BrokenRule::Unreadable);
    };
    let is_own_paired = is_paired(&own.iter().collect::<Vec<_>>());
    let own_first = own.iter().find(|message| message.role != Role::System);
    let own_opens_with_result = own_first.is_some_and(|own| own.role == Role::Tool);
    let is_double = |pair: &[&Message]| pair.iter().all(|own| own.role == Role::Assistant);
    let own_doubles = own.windows(2).any(|pair| is_double(&[&pair[0], &pair[1]]));
    let is_empty = |message: &&Message| {
        message.role == Role::Assistant && message.calls.is_empty() && message.texts.is_empty()
    };
    if is_own_paired && !is_paired(sent) {
        Some(BrokenRule::Unpaired)
    } else if first.role == Role::Tool && !own_opens_with_result {
        Some(BrokenRule::OpensWithResult)
    } else if !own_doubles && sent.windows(2).any(is_double) {
        Some(BrokenRule::Alternation)
    } else if sent.iter().any(is_empty) && !own.iter().any(|own| is_empty(&own)) {
        Some(BrokenRule::Empty)
    } else if !is_last_whole(&own[length - 1], last) {
        Some(BrokenRule::LastChanged)
    } else {
        None
    }
}

/// Whether all of the client's last message is there: other text may stand before or behind it.
fn is_last_whole(own: &Message, sent: &Message) -> bool {
    let (own_text, text) = (Text::new(&own.content).text, Text::new(&sent.content).text);
    own.role == sent.role
        && own.answers == sent.answers
        && (text.starts_with(&own_text) || text.ends_with(&own_text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"messages":[
        {"role":"system","content":"s"},
        {"role":"user","content":"u"},
        {"role":"assistant","content":"","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"r"},
        {"role":"assistant","content":"x"},
        {"role":"user","content":"next"},
        {"role":"assistant","content":"y"}]}"#;

    #[test]
    fn each_rule_is_judged() {
        let conversation = Conversation::read(LINE, 1, None).expect("it is one");
        let read = |raw: &str| Message::read(raw).expect("a message");
        let own = |index: usize| read(&conversation.messages[index].raw);
        let said = |role: &str, text: &str| {
            read(&serde_json::json!({"role": role, "content": text}).to_string())
        };
        for (sent, expected) in [
            ((0..6).map(own).collect::<Vec<_>>(), None),
            (vec![own(0), said("user", "note"), own(5)], None),
            (vec![own(0), said("user", "next\n\nrecalled")], None),
            (vec![own(0), own(1), own(2), own(5)], Some(BrokenRule::Unpaired)),
            (vec![own(0), own(1), own(3), own(5)], Some(BrokenRule::Unpaired)),
            (vec![own(1), own(4), said("assistant", "z"), own(5)], Some(BrokenRule::Alternation)),
            (vec![own(1), said("assistant", ""), own(5)], Some(BrokenRule::Empty)),
            (vec![own(0), own(1), own(4)], Some(BrokenRule::LastChanged)),
            (vec![own(0), said("user", "nex")], Some(BrokenRule::LastChanged)),
            (vec![own(0)], Some(BrokenRule::Unreadable)),
            (vec![], Some(BrokenRule::Unreadable)),
        ] {
            let sent: Vec<&Message> = sent.iter().collect();
            assert_eq!(problem(&conversation, 6, &sent), expected);
        }
    }
}
