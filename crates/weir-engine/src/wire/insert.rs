//! System text and earlier messages inserted into a body, without a change to another byte. Decides
//! nothing about the texts themselves.

use super::json::{self, elements};
use super::{Protocol, Role, chat};

/// Returns `body` with `text` after the caller's own system text. `None` if it has no place for it:
/// such a body is refused when it is read.
///
/// The caller's last leading system message, `instructions` or `system` is extended, and one is added
/// if there is none. So the text stands at the same place in each request of a conversation.
pub fn system_text(protocol: Protocol, body: &str, text: &str) -> Option<String> {
    let escaped = json::escaped(text);
    match protocol {
        Protocol::Chat => in_messages(body, &escaped),
        Protocol::Responses => in_member(body, "instructions", &escaped),
        Protocol::Messages => in_member(body, "system", &escaped),
    }
}

/// Returns the body of chat completions with earlier messages, joined by commas, after its leading
/// system messages. `None` if it has no list of messages.
pub fn earlier_messages(body: &str, earlier: &str) -> Option<String> {
    let list = messages(body)?;
    let all = elements(list)?;
    let inserted = match all.iter().take_while(|raw| is_system(raw)).last() {
        Some(last) => (end_of(body, last), format!(",{earlier}")),
        None if all.is_empty() => (offset(body, list) + 1, earlier.to_owned()),
        None => (offset(body, list) + 1, format!("{earlier},")),
    };
    Some(put(body, &inserted))
}

/// Returns a body with `element` at the end of its list `name`, which is added if it is missing. `None`
/// if the member is no list.
pub(super) fn in_list(body: &str, name: &str, element: &str) -> Option<String> {
    let members = json::unique_members(body)?;
    let value = members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
    match value {
        Some(value) if value == "null" => {
            let (start, end) = (offset(body, value), end_of(body, value));
            Some(format!("{}[{element}]{}", &body[..start], &body[end..]))
        }
        Some(value) => {
            let inserted = match elements(value)?.last() {
                Some(last) => (end_of(body, last), format!(",{element}")),
                None => (offset(body, value) + 1, element.to_owned()),
            };
            Some(put(body, &inserted))
        }
        None => {
            let comma = if members.is_empty() { "" } else { "," };
            let at = body.find('{')? + 1;
            Some(put(body, &(at, format!(r#""{name}":[{element}]{comma}"#))))
        }
    }
}

/// Returns the newest user message in a body of chat completions, as JSON text.
pub fn newest_user_message(body: &str) -> Option<&str> {
    let all = elements(messages(body)?)?;
    all.into_iter().rev().find(|raw| role(raw) == Some(Role::User))
}

fn messages(body: &str) -> Option<&str> {
    let members = json::unique_members(body)?;
    members.into_iter().find(|(name, _)| name == "messages").map(|(_, raw)| raw)
}

fn role(raw: &str) -> Option<Role> {
    chat::read_message(raw).ok().map(|message| message.role)
}

fn is_system(raw: &str) -> bool {
    role(raw) == Some(Role::System)
}

/// Adds an escaped text to the messages of chat completions.
fn in_messages(body: &str, escaped: &str) -> Option<String> {
    let list = messages(body)?;
    let all = elements(list)?;
    let last = all.iter().take_while(|raw| is_system(raw)).last();
    let content = last.and_then(|last| json::member(last, "content"));
    if let Some(content) = content
        && let Some(inserted) = extension(body, content, escaped)
    {
        return Some(put(body, &inserted));
    }
    let own = format!(r#"{{"role":"system","content":"{escaped}"}}"#);
    let inserted = match last {
        Some(last) => (end_of(body, last), format!(",{own}")),
        None if all.is_empty() => (offset(body, list) + 1, own),
        None => (offset(body, list) + 1, format!("{own},")),
    };
    Some(put(body, &inserted))
}

/// Adds an escaped text to a member of the body, which is added if it is missing.
fn in_member(body: &str, name: &str, escaped: &str) -> Option<String> {
    let members = json::unique_members(body)?;
    let value = members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
    match value {
        Some(value) if value == "null" => {
            let (start, end) = (offset(body, value), end_of(body, value));
            Some(format!("{}\"{escaped}\"{}", &body[..start], &body[end..]))
        }
        Some(value) => extension(body, value, escaped).map(|inserted| put(body, &inserted)),
        None => {
            let comma = if members.is_empty() { "" } else { "," };
            let at = body.find('{')? + 1;
            Some(put(body, &(at, format!(r#""{name}":"{escaped}"{comma}"#))))
        }
    }
}

/// Returns the place and the form in which an escaped text extends `value`, a string or a list of parts
/// in `body`.
fn extension(body: &str, value: &str, escaped: &str) -> Option<(usize, String)> {
    let end = end_of(body, value);
    if value.starts_with('"') {
        let gap = if value == "\"\"" { "" } else { "\\n\\n" };
        return Some((end - 1, format!("{gap}{escaped}")));
    }
    let parts = elements(value)?;
    let comma = if parts.is_empty() { "" } else { "," };
    let at = parts.last().map_or(offset(body, value) + 1, |last| end_of(body, last));
    Some((at, format!(r#"{comma}{{"type":"text","text":"{escaped}"}}"#)))
}

fn put(body: &str, (at, text): &(usize, String)) -> String {
    [&body[..*at], text, &body[*at..]].concat()
}

/// Returns the position of `part`, a slice of `body`.
fn offset(body: &str, part: &str) -> usize {
    part.as_ptr() as usize - body.as_ptr() as usize
}

fn end_of(body: &str, part: &str) -> usize {
    offset(body, part) + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_follows_the_callers_own_system_text() {
        use Protocol::{Chat, Messages, Responses};
        for (protocol, body, expected) in [
            (
                Chat,
                r#"{ "messages" : [ {"role":"system","content":"Be brief."} ,{"role":"user","content":"hi"}]}"#,
                r#"{ "messages" : [ {"role":"system","content":"Be brief.\n\nSay \"x\"."} ,{"role":"user","content":"hi"}]}"#,
            ),
            (
                Chat,
                r#"{"messages":[{"role":"system","content":"a"},{"content":[{"type":"text","text":"b"}],"role":"developer"},{"role":"user","content":"hi"},{"role":"system","content":"late"}]}"#,
                r#"{"messages":[{"role":"system","content":"a"},{"content":[{"type":"text","text":"b"},{"type":"text","text":"Say \"x\"."}],"role":"developer"},{"role":"user","content":"hi"},{"role":"system","content":"late"}]}"#,
            ),
            (
                Chat,
                r#"{"messages":[{"role":"user","content":"hi"}]}"#,
                r#"{"messages":[{"role":"system","content":"Say \"x\"."},{"role":"user","content":"hi"}]}"#,
            ),
            (
                Chat,
                r#"{"messages":[{"role":"system","content":null}]}"#,
                r#"{"messages":[{"role":"system","content":null},{"role":"system","content":"Say \"x\"."}]}"#,
            ),
            (
                Chat,
                r#"{"messages":[]}"#,
                r#"{"messages":[{"role":"system","content":"Say \"x\"."}]}"#,
            ),
            (
                Responses,
                r#"{"input":"hi","instructions":"Be brief."}"#,
                r#"{"input":"hi","instructions":"Be brief.\n\nSay \"x\"."}"#,
            ),
            (Responses, r#" {"input":"hi"}"#, r#" {"instructions":"Say \"x\".","input":"hi"}"#),
            (
                Responses,
                r#"{"instructions" : null,"input":"hi"}"#,
                r#"{"instructions" : "Say \"x\".","input":"hi"}"#,
            ),
            (Messages, r#"{"system":""}"#, r#"{"system":"Say \"x\"."}"#),
            (
                Messages,
                r#"{"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}} ]}"#,
                r#"{"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Say \"x\"."} ]}"#,
            ),
            (Messages, r#"{"system":[]}"#, r#"{"system":[{"type":"text","text":"Say \"x\"."}]}"#),
        ] {
            let made = system_text(protocol, body, "Say \"x\".");
            assert_eq!(made.as_deref(), Some(expected));
            assert!(serde_json::from_str::<serde_json::Value>(expected).is_ok());
        }
        for body in ["", "[]", "{}", r#"{"messages":3}"#, r#"{"messages":[],"messages":[]}"#] {
            assert_eq!(system_text(Chat, body, "x"), None, "{body}");
        }
        assert_eq!(system_text(Messages, r#"{"system":3}"#, "x"), None);
    }

    #[test]
    fn earlier_messages_follow_the_system_messages() {
        let user = r#"{"role":"user","content":"hi"}"#;
        let system = r#"{"role":"developer","content":"s"}"#;
        for (before, after) in [
            (format!("[{system}, {user}]"), format!("[{system},1,2, {user}]")),
            (format!("[ {user}]"), format!("[1,2, {user}]")),
            (format!("[{user},{system}]"), format!("[1,2,{user},{system}]")),
            (format!("[{system}]"), format!("[{system},1,2]")),
            ("[]".to_owned(), "[1,2]".to_owned()),
        ] {
            let body = |list: &str| format!(r#"{{"messages":{list},"model":"m"}}"#);
            assert_eq!(earlier_messages(&body(&before), "1,2"), Some(body(&after)));
        }
        assert_eq!(earlier_messages("{}", "1"), None);
    }

    #[test]
    fn the_newest_user_message_is_found() {
        let body = r#"{"messages":[{"role":"user","content":"a"},{"content":"b","role":"user"},{"role":"assistant","content":"c"}]}"#;
        assert_eq!(newest_user_message(body), Some(r#"{"content":"b","role":"user"}"#));
        assert_eq!(newest_user_message(r#"{"messages":[{"role":"tool"}]}"#), None);
    }
}
