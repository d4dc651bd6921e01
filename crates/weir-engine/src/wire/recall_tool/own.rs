//! Recalls that weir has put into a conversation, recognised by the IDs of their calls. Changes no request.

use std::borrow::Cow;
use std::collections::HashSet;

use super::super::json;
use super::text::{self, Object};
use super::{NAMES, Protocol};

/// Returns the messages of `list` without weir's recalls: calls of the tool that no message of the client
/// has, and their results. `None` for messages that consist of them.
pub fn without_recalls<'a>(
    protocol: Protocol,
    client: &[&str],
    list: &[&'a str],
) -> Vec<Option<Cow<'a, str>>> {
    let all = list.iter().flat_map(|raw| calls(protocol, raw));
    let mut own: HashSet<String> =
        all.filter(|(name, _)| NAMES.contains(&name.as_str())).map(|(_, id)| id).collect();
    if !own.is_empty() {
        for (_, id) in client.iter().flat_map(|raw| calls(protocol, raw)) {
            own.remove(&id);
        }
    }
    if own.is_empty() {
        return list.iter().map(|raw| Some(Cow::Borrowed(*raw))).collect();
    }
    list.iter().map(|raw| without(protocol, raw, &own)).collect()
}

/// Returns the name and ID of each call in a message.
fn calls(protocol: Protocol, raw: &str) -> Vec<(String, String)> {
    let Ok(message) = protocol.read_message(raw) else { return Vec::new() };
    let text = |raw: &str| json::string(raw).unwrap_or_default().into_owned();
    message.calls.iter().map(|call| (text(call.name), text(call.id))).collect()
}

fn without<'a>(protocol: Protocol, raw: &'a str, own: &HashSet<String>) -> Option<Cow<'a, str>> {
    let is_own =
        |raw: &str, name: &str| text::member_text(raw, name).is_some_and(|id| own.contains(&*id));
    let Some(message) = Object::read(raw) else { return Some(raw.into()) };
    let list = match protocol {
        Protocol::Responses => return (!is_own(raw, "call_id")).then_some(raw.into()),
        Protocol::Chat if is_own(raw, "tool_call_id") => return None,
        // A result may stand for itself.
        Protocol::Messages if is_own(raw, "tool_use_id") => return None,
        Protocol::Chat => "tool_calls",
        Protocol::Messages => "content",
    };
    let Some(parts) = message.get(list) else { return Some(raw.into()) };
    let less = text::edited(parts, |_, part| {
        let is_recall = match protocol {
            Protocol::Chat => is_own(part, "id"),
            _ => is_own(part, "tool_use_id") || is_own(part, "id"),
        };
        (!is_recall).then_some(part.into())
    });
    if less == parts {
        return Some(raw.into());
    }
    let is_left = json::elements(&less).is_some_and(|left| !left.is_empty());
    match (protocol, is_left) {
        (_, true) => Some(text::with(raw, list, &less).into()),
        (Protocol::Chat, false)
            if message.get("content").is_some_and(|own| !text::is_empty(own)) =>
        {
            Some(text::without(raw, list).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weirs_own_calls_are_left_out() {
        let call = |id: &str, name: &str| {
            format!(
                r#"{{"id":"{id}","type":"function","function":{{"name":"{name}","arguments":"{{}}"}}}}"#
            )
        };
        let asks = |calls: &str| {
            format!(r#"{{"role":"assistant","content":null,"tool_calls":[{calls}]}}"#)
        };
        let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#);
        let client = [asks(&call("c1", "recall")), result("c1"), asks(&call("c2", "read"))];
        let both = asks(&format!("{},{}", call("c2", "read"), call("r2", "recall")));
        let sent = [
            client[0].clone(),
            client[1].clone(),
            asks(&call("r1", "weir_recall")),
            result("r1"),
            both,
            result("r2"),
        ];
        let refs = |list: &'_ [String]| -> Vec<String> { list.to_vec() };
        let (client, sent) = (refs(&client), refs(&sent));
        let client: Vec<&str> = client.iter().map(String::as_str).collect();
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        let left = without_recalls(Protocol::Chat, &client, &sent);
        let left: Vec<Option<&str>> = left.iter().map(Option::as_deref).collect();
        assert_eq!(left, [Some(client[0]), Some(client[1]), None, None, Some(client[2]), None]);
    }

    #[test]
    fn blocks_and_items_are_left_out() {
        let both = r#"{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"read","input":{}},{"type":"tool_use","id":"r1","name":"recall","input":{}}]}"#;
        let results = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"r1","content":"a"},{"type":"tool_result","tool_use_id":"c1","content":"b"}]}"#;
        let left = without_recalls(Protocol::Messages, &[], &[both, results]);
        let left: Vec<String> = left.into_iter().flatten().map(Cow::into_owned).collect();
        assert!(left[0].contains("c1") && !left[0].contains("r1"), "{}", left[0]);
        assert!(left[1].contains("c1") && !left[1].contains("r1"), "{}", left[1]);
        let items = [
            r#"{"type":"function_call","call_id":"r1","name":"recall","arguments":"{}"}"#,
            r#"{"type":"function_call_output","call_id":"r1","output":"a"}"#,
            r#"{"role":"user","content":"x"}"#,
        ];
        let left = without_recalls(Protocol::Responses, &[], &items);
        assert_eq!(left, [None, None, Some(Cow::Borrowed(items[2]))]);
    }
}
