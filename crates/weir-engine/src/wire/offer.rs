//! Definition of the recall tool, added to the tools of a request without a change to another byte. A
//! function of the request alone, so the tools stay the same in the course of a conversation. Knows
//! nothing of what the tool returns.

use std::borrow::Cow;

use super::insert::in_list;
use super::recall_tool::{NAMES, definition};
use super::{Protocol, Request, agents, json};

/// Returns the name under which the tool can be offered in a request; `None` if it cannot.
///
/// An agent's own compaction needs no tool. If the provider keeps the conversation, or answers later or
/// more than once, no call could be answered in its place. Responses are kept by default: what the provider
/// keeps ends in a call, which the client can neither see nor continue. The older form of tools allows no
/// other next to it.
pub fn name(request: &Request<'_>) -> Option<&'static str> {
    if request.provider_state.is_some() || request.choices > 1 {
        return None;
    }
    let members = json::members(request.text)?;
    let member = |name: &str| members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
    let is_kept = member("store") != Some("false") || member("background") == Some("true");
    if request.protocol == Protocol::Responses && is_kept {
        return None;
    }
    if member("functions").is_some() && request.protocol == Protocol::Chat {
        return None;
    }
    let tools = match member("tools") {
        None | Some("null") => Vec::new(),
        Some(list) => json::elements(list)?,
    };
    if agents::is_compaction(request) {
        return None;
    }
    let taken: Vec<Cow<'_, str>> = tools.into_iter().filter_map(tool_name).collect();
    NAMES.into_iter().find(|name| taken.iter().all(|own| own != name))
}

/// Returns the body of a request with the tool of this name behind the caller's own. `None` if it has no
/// place for it.
pub fn with_tool(request: &Request<'_>, name: &str) -> Option<String> {
    in_list(request.text, "tools", &definition(request.protocol, name))
}

/// Returns the name of a tool from its definition.
fn tool_name(raw: &str) -> Option<Cow<'_, str>> {
    let own = json::member(raw, "name");
    let inside = || {
        ["function", "custom"]
            .into_iter()
            .find_map(|form| json::member(json::member(raw, form)?, "name"))
    };
    own.or_else(inside).and_then(json::string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(protocol: Protocol, body: &str) -> Option<(&'static str, String)> {
        let request = protocol.read(body.as_bytes(), 100).expect("a request");
        let name = name(&request)?;
        Some((name, with_tool(&request, name)?))
    }

    #[test]
    fn the_tool_follows_the_callers_own_tools() {
        use Protocol::{Chat, Messages, Responses};
        for (protocol, body, before, after) in [
            (
                Chat,
                r#"{"messages":[] , "tools" : [ {"a":1} ]}"#,
                r#"{"messages":[] , "tools" : [ {"a":1},"#,
                " ]}",
            ),
            (Chat, r#"{"tools":[],"messages":[]}"#, r#"{"tools":["#, r#"],"messages":[]}"#),
            (Chat, r#"{"tools":null,"messages":[]}"#, r#"{"tools":["#, r#"],"messages":[]}"#),
            (Chat, r#"{"messages":[]}"#, r#"{"tools":["#, r#"],"messages":[]}"#),
            (
                Responses,
                r#" {"input":"x","store":false}"#,
                r#" {"tools":["#,
                r#"],"input":"x","store":false}"#,
            ),
            (
                Messages,
                r#"{"messages":[],"tools":[{"name":"f"}]}"#,
                r#"{"messages":[],"tools":[{"name":"f"},"#,
                "]}",
            ),
        ] {
            let (name, made) = offered(protocol, body).expect("it is offered");
            assert_eq!(
                (name, made),
                ("recall", format!("{before}{}{after}", definition(protocol, "recall")))
            );
        }
    }

    #[test]
    fn a_name_that_is_taken_gives_way() {
        use Protocol::{Chat, Messages, Responses};
        for (protocol, tools) in [
            (Chat, r#"[{"type":"function","function":{"name":"recall"}}]"#),
            (Chat, r#"[{"type":"custom","custom":{"name":"recall"}}]"#),
            (Responses, r#"[{"type":"function","name":"recall"}]"#),
            (Messages, r#"[{"name":"recall"}]"#),
        ] {
            let list = if protocol == Responses { "input" } else { "messages" };
            let body = format!(r#"{{"{list}":[],"store":false,"tools":{tools}}}"#);
            assert_eq!(offered(protocol, &body).map(|(name, _)| name), Some("weir_recall"));
            let both = body.replace(r#""}]"#, r#""},{"name":"weir_recall"}]"#);
            assert_eq!(
                offered(protocol, &both.replace(r#""}}]"#, r#""}},{"name":"weir_recall"}]"#)),
                None
            );
        }
    }

    #[test]
    fn requests_whose_calls_could_not_be_answered_get_none() {
        for (protocol, body) in [
            (Protocol::Chat, r#"{"messages":[],"n":2}"#),
            (Protocol::Chat, r#"{"messages":[],"functions":[{"name":"f"}]}"#),
            (Protocol::Chat, r#"{"messages":[],"tools":7}"#),
            (Protocol::Responses, r#"{"input":"x","store":false,"previous_response_id":"r"}"#),
            (Protocol::Responses, r#"{"input":"x","store":false,"background":true}"#),
            (Protocol::Responses, r#"{"input":"x"}"#),
            (Protocol::Responses, r#"{"input":"x","store":null}"#),
            (Protocol::Responses, r#"{"input":"x","store":true}"#),
        ] {
            assert_eq!(offered(protocol, body), None, "{body}");
        }
    }
}
