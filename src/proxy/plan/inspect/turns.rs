//! Requests of a conversation: each ends before an answer of the assistant. Finds their ends, and writes
//! each as a body of its own.

use bytes::Bytes;

use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use weir_engine::wire::{Protocol, Request, Role, json};

/// Maximum number of requests in an inspected conversation.
pub const MAX_TURNS: usize = 4000;

/// Ends of the requests of a conversation in its body.
pub(super) struct Turns {
    /// Messages and bytes up to the end of each request, as far as it is not the whole.
    ends: Vec<(usize, usize)>,
    /// Number of messages of the whole, if that is a request too.
    whole: Option<usize>,
    /// Position of the end of the list of messages.
    list_end: usize,
}

impl Turns {
    /// Finds the requests: all messages before an answer that follows a user's message or a result, and
    /// the whole, if it does not end with an answer or `is_request`.
    pub(super) fn of(request: &Request<'_>, is_request: bool) -> Proxied<Self> {
        let name = if request.protocol == Protocol::Responses { "input" } else { "messages" };
        let list = json::member(request.text, name).unwrap_or_default();
        let at =
            |part: &str| (part.as_ptr() as usize).saturating_sub(request.text.as_ptr() as usize);
        let messages = request.messages.iter();
        let roles = messages.map(|raw| {
            let message = request.protocol.read_message(raw);
            message.map_or(Role::Other, |message| message.role)
        });
        let roles: Vec<Role> = roles.collect();
        let is_answer = |index: usize| {
            roles[index] == Role::Assistant
                && index > request.outside
                && matches!(roles[index - 1], Role::User | Role::Tool)
        };
        let ends = (1..roles.len()).filter(|index| is_answer(*index)).map(|index| {
            let before = request.text[..at(request.messages[index])].trim_end();
            (index, before.trim_end_matches(',').len())
        });
        let ends: Vec<_> = ends.collect();
        let is_whole = is_request || ends.is_empty() || roles.last() != Some(&Role::Assistant);
        if roles.len() == request.outside {
            return Err(refused("The conversation has no messages."));
        }
        let turns = Self {
            whole: is_whole.then_some(roles.len()),
            list_end: (at(list) + list.len()).saturating_sub(1),
            ends,
        };
        match turns.len() {
            all if all > MAX_TURNS => Err(refused(format!(
                "The conversation has {all} requests; an inspection takes at most {MAX_TURNS}. Cut it \
                 into parts."
            ))),
            _ => Ok(turns),
        }
    }

    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        self.ends.len() + usize::from(self.whole.is_some())
    }

    /// Returns the number of messages in each request.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.ends.iter().map(|(messages, _)| *messages).chain(self.whole).collect()
    }

    /// Returns the body of a request; `whole` is that of the conversation.
    pub(super) fn body(&self, whole: &Bytes, place: usize) -> Bytes {
        match self.ends.get(place) {
            Some((_, end)) => [&whole[..*end], &whole[self.list_end..]].concat().into(),
            None => whole.clone(),
        }
    }
}

pub(super) fn refused(message: impl Into<String>) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_ends_before_an_answer() {
        let chat = r#"{"model":"m","messages":[{"role":"system","content":"s"} , {"role":"user","content":"u"},
            {"role":"assistant","content":"a, ]"},{"role":"assistant","content":"b"},
            {"role":"user","content":"v"} ,{"role":"assistant","content":"c"}],"n":1}"#;
        let responses = r#"{"input":[{"role":"user","content":"u"},{"type":"reasoning","summary":[]},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"c","output":"o"}],"instructions":"i"}"#;
        let messages = r#"{"system":"s","messages":[{"role":"user","content":"u"},
            {"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}},{"type":"tool_use","id":"d","name":"f","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"o"},{"type":"tool_result","tool_use_id":"d","content":"p"}]},
            {"role":"assistant","content":"done"}]}"#;
        for (protocol, body, is_request, lengths) in [
            (Protocol::Chat, chat, false, vec![2, 5]),
            (Protocol::Chat, chat, true, vec![2, 5, 6]),
            (Protocol::Responses, responses, false, vec![2, 4]),
            (Protocol::Messages, messages, false, vec![2, 5]),
            (
                Protocol::Chat,
                r#"{"messages":[{"role":"assistant","content":"a"}]}"#,
                false,
                vec![1],
            ),
            (Protocol::Responses, r#"{"input":"u"}"#, false, vec![1]),
        ] {
            let request = protocol.read(body.as_bytes(), 100).expect("readable");
            let turns = Turns::of(&request, is_request).unwrap_or_else(|_| panic!("{body}"));
            assert_eq!(turns.lengths(), lengths, "{body}");
            let whole = Bytes::copy_from_slice(body.as_bytes());
            for (place, length) in lengths.iter().enumerate() {
                let own = turns.body(&whole, place);
                let read = protocol.read(&own, 100).expect("a body of its own");
                assert_eq!(read.messages, request.messages[..*length], "{body}");
                assert_eq!(read.model, request.model);
            }
        }
    }

    #[test]
    fn a_conversation_without_messages_is_refused() {
        let request = Protocol::Chat.read(br#"{"messages":[]}"#, 100).expect("readable");
        assert!(Turns::of(&request, true).is_err());
    }
}
