//! Kept conversations as their callers list, show, replace, clear, export and delete them. Each caller
//! reaches its own alone.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{check_caller, check_name, not_allowed};
use crate::config::Conversations;
use crate::proxy::admit::caller::Caller;
use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use weir_engine::wire::{Protocol, Role, json as wire_json};
use weir_store::conversations::{Conversation, ConversationFacts, KeptMessage, MAX_PAGE};
use weir_store::{Store, StoreError, now_ms};

/// Conversations of one caller.
pub struct Pages<'a> {
    store: &'a Store,
    config: Conversations,
    caller: &'a Caller,
}

impl<'a> Pages<'a> {
    /// Creates the pages of a caller, who must have a credential.
    pub fn new(store: &'a Store, config: Conversations, caller: &'a Caller) -> Proxied<Self> {
        check_caller(caller)?;
        Ok(Self { store, config, caller })
    }

    /// Lists conversations in the order of their names: a page of those after `after`.
    pub async fn list(&self, after: &str) -> Proxied<String> {
        let listed = self.store.list_conversations(self.caller.tenant, after, now_ms()).await;
        let listed = listed.map_err(unreadable)?;
        let next = listed.last().filter(|_| listed.len() == MAX_PAGE);
        let next = next.map(|last| last.name.clone());
        let data: Vec<Value> = listed.iter().map(facts).collect();
        Ok(json!({"object": "list", "data": data, "next": next}).to_string())
    }

    /// Shows a conversation with its messages.
    pub async fn show(&self, name: &str) -> Proxied<String> {
        let found = self.find(name).await?;
        let mut shown = facts(&found.facts).to_string();
        // Messages are inserted as received.
        shown.pop();
        let _ = write!(shown, r#","messages":[{}]}}"#, texts(&found));
        Ok(shown)
    }

    /// Returns a conversation as a line of JSON that `weir replay` reads.
    pub async fn export(&self, name: &str) -> Proxied<String> {
        Ok(exported(&self.find(name).await?))
    }

    /// Replaces the messages of a conversation by those of `body`, and creates it if it is missing.
    pub async fn replace(&self, name: &str, body: &[u8]) -> Proxied<String> {
        check_name(name)?;
        if !self.caller.keeps_conversations(self.config.enabled) {
            return Err(not_allowed());
        }
        let messages = messages(body)?;
        let bytes: u64 = messages.iter().map(KeptMessage::weight_bytes).sum();
        let max_bytes = self.config.limits.max_conversation_bytes / 2;
        if bytes > max_bytes {
            let message = format!(
                "The messages have {bytes} bytes with their overhead; a conversation begins with at \
                 most {max_bytes} (half of conversations.max_bytes.conversation)."
            );
            return Err(invalid(&message));
        }
        self.put(name, messages).await
    }

    /// Removes all messages of a conversation.
    pub async fn clear(&self, name: &str) -> Proxied<String> {
        self.find(name).await?;
        self.put(name, Vec::new()).await
    }

    /// Deletes a conversation. Exchanges that are under way are not kept, even if it does not exist yet.
    pub async fn delete(&self, name: &str) -> Proxied<String> {
        check_name(name)?;
        if !self.caller.keeps_conversations(self.config.enabled) {
            // No exchange of this caller is kept, so there is nothing to write for a missing one.
            self.find(name).await?;
        }
        let (tenant, max_bytes) = (self.caller.tenant, self.config.limits.max_bytes);
        let deleted = self.store.delete_conversation(tenant, name, max_bytes, now_ms()).await;
        match deleted.map_err(unwritable)? {
            true => {
                Ok(json!({"object": "conversation", "name": name, "deleted": true}).to_string())
            }
            false => Err(unknown()),
        }
    }

    async fn put(&self, name: &str, messages: Vec<KeptMessage>) -> Proxied<String> {
        let (tenant, limits) = (self.caller.tenant, self.config.limits);
        let put = self.store.replace_conversation(tenant, name, messages, limits, now_ms()).await;
        Ok(facts(&put.map_err(unwritable)?).to_string())
    }

    async fn find(&self, name: &str) -> Proxied<Conversation> {
        check_name(name)?;
        let found = self.store.conversation(self.caller.tenant, name, now_ms()).await;
        found.map_err(unreadable)?.ok_or_else(unknown)
    }
}

/// Returns a conversation as a line of JSON that `weir replay` reads.
pub fn exported(conversation: &Conversation) -> String {
    let head = json!({"id": conversation.facts.name, "source": "weir"}).to_string();
    let head = head.trim_end_matches('}');
    // Line breaks between members would end the line; inside strings there are none.
    let messages = texts(conversation).replace(['\n', '\r'], " ");
    format!("{head},\"messages\":[{messages}]}}\n")
}

/// Renders a conversation without its messages.
pub fn facts(facts: &ConversationFacts) -> Value {
    json!({
        "object": "conversation",
        "name": facts.name,
        "message_count": facts.messages,
        "size_bytes": facts.bytes,
        "created_ms": facts.created_ms,
        "last_message_ms": facts.last_message_ms,
        "expires_ms": facts.expires_ms,
    })
}

/// Returns the messages as JSON texts, joined by commas.
fn texts(conversation: &Conversation) -> String {
    let texts = conversation.messages.iter();
    let texts: Vec<_> = texts.map(|(_, message)| String::from_utf8_lossy(&message.text)).collect();
    texts.join(",")
}

/// Reads the messages of a replacement: `{"messages": […]}`.
fn messages(body: &[u8]) -> Proxied<Vec<KeptMessage>> {
    let members = std::str::from_utf8(body).ok().and_then(wire_json::unique_members);
    let raw = match members.as_deref() {
        Some([(name, raw)]) if name == "messages" => wire_json::elements(raw),
        _ => None,
    };
    let Some(raw) = raw else {
        return Err(invalid(
            "The body must be an object with the member 'messages' alone, a list.",
        ));
    };
    let mut messages = Vec::new();
    // IDs of calls without a result so far; a legacy call has none.
    let mut open: Vec<&str> = Vec::new();
    for (index, raw) in raw.into_iter().enumerate() {
        let wrong = |said: &str| invalid(&format!("messages[{index}] {said}."));
        let message = Protocol::Chat.read_message(raw);
        let message = message.map_err(|_| wrong("is not a message of chat completions"))?;
        match message.role {
            Role::System => {
                return Err(wrong(
                    "is a system message: each request has its own, and none is kept",
                ));
            }
            Role::Other => return Err(wrong("has an unknown role")),
            Role::Tool => {
                let answered = message.answers.unwrap_or_default();
                let Some(at) = open.iter().position(|id| *id == answered) else {
                    return Err(wrong("is the result of no call right before it"));
                };
                open.remove(at);
            }
            _ if !open.is_empty() => {
                return Err(wrong("stands between a call and its results"));
            }
            Role::Assistant if index == 0 => {
                return Err(wrong("is not a user's: a conversation begins with one"));
            }
            _ => open = message.calls.iter().map(|call| call.id).collect(),
        }
        let opens = message.role == Role::User;
        messages.push(KeptMessage { text: Bytes::copy_from_slice(raw.as_bytes()), opens });
    }
    match open.is_empty() {
        true => Ok(messages),
        false => Err(invalid("The last message calls a tool, and its results are missing.")),
    }
}

fn invalid(message: &str) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidRequest, message).about("messages")
}

fn unknown() -> ProxyError {
    let message = "There is no conversation of this name for this credential.";
    ProxyError::new(ErrorKind::NotFound, message)
}

fn unreadable(error: StoreError) -> ProxyError {
    tracing::warn!(target: "weir::store", %error, "the store cannot be read");
    let message = "weir cannot read its store at the moment. Try again shortly.";
    ProxyError::new(ErrorKind::StoreUnavailable, message)
}

fn unwritable(error: StoreError) -> ProxyError {
    tracing::warn!(target: "weir::store", %error, "the store cannot be written");
    let message = "weir cannot write its store at the moment. Try again shortly.";
    ProxyError::new(ErrorKind::StoreUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = r#"{"role":"user","content":"hi"}"#;
    const ANSWER: &str = r#"{"role":"assistant","content":"ho"}"#;
    const CALLS: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
    const RESULT_A: &str = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    const RESULT_B: &str = r#"{"role":"tool","tool_call_id":"b","content":"2"}"#;

    #[test]
    fn a_replacement_is_a_conversation_whose_calls_have_their_results() {
        for (list, expected) in [
            (&[][..], Ok(0)),
            (&[USER, ANSWER, USER], Ok(3)),
            (&[USER, CALLS, RESULT_B, RESULT_A, ANSWER], Ok(5)),
            (&[ANSWER], Err("messages[0] is not a user's")),
            (&[USER, CALLS], Err("results are missing")),
            (&[USER, CALLS, RESULT_A, USER], Err("messages[3] stands between")),
            (&[USER, RESULT_A], Err("messages[1] is the result of no call")),
            (&[USER, CALLS, RESULT_A, RESULT_A], Err("messages[3] is the result of no call")),
            (&[r#"{"role":"developer","content":"x"}"#], Err("messages[0] is a system message")),
            (&[USER, r#"{"role":"critic"}"#], Err("messages[1] has an unknown role")),
            (&[USER, "3"], Err("messages[1] is not a message")),
        ] {
            let body = format!(r#"{{"messages":[{}]}}"#, list.join(", "));
            match (messages(body.as_bytes()), expected) {
                (Ok(read), Ok(count)) => {
                    assert_eq!(read.len(), count);
                    assert!(read.iter().zip(list).all(|(own, raw)| own.text == *raw));
                    assert!(read.first().is_none_or(|first| first.opens));
                }
                (Err(error), Err(part)) => {
                    assert!(error.message.contains(part), "{}", error.message);
                }
                (read, _) => panic!("{list:?}: {:?}", read.map_err(|error| error.message)),
            }
        }
        for body in ["", "[]", r#"{"messages":3}"#, r#"{"messages":[],"x":1}"#] {
            assert!(messages(body.as_bytes()).is_err(), "{body}");
        }
    }
}
