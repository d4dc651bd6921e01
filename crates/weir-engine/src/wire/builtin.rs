//! Blocks and items of tools that the provider runs: which are calls, and where their arguments and the
//! texts of their results stand. All readers share these tables; unknown types are read by their ending.
//!
//! The API references of Messages (server tools, MCP connector) and Responses (built-in tools) describe
//! the types.

use super::json;
use super::message::{Call, Message, Part};

/// Endings of the types of calls.
const CALLS: [&str; 3] = ["_tool_use", "_call", "_approval_request"];
/// Endings of the types with results. A call of Responses may hold its own.
const RESULTS: [&str; 3] = ["_tool_result", "_call_output", "_call"];
/// Members with a call's arguments; the first that is given counts.
const ARGUMENTS: [&str; 6] = ["arguments", "input", "action", "operation", "code", "queries"];
/// Members under which texts of results stand. Sealed ones (`encrypted_content`, `encrypted_stdout`) are none.
const TEXTS: [&str; 12] = [
    "content", "text", "source", "data", "stdout", "stderr", "output", "outputs", "logs",
    "results", "error", "lines",
];
/// Maximum depth at which a text stands.
const MAX_DEPTH: u32 = 8;

/// Whether blocks of this type are a built-in tool's.
pub(super) fn is_known(kind: &str) -> bool {
    CALLS.iter().chain(&RESULTS).any(|ending| kind.ends_with(ending))
}

/// Returns the call in the object `raw` of this type, if it is one. A call without a name is named by its
/// type.
pub(super) fn call<'a>(kind: &str, raw: &'a str) -> Option<Call<'a>> {
    if !CALLS.iter().any(|ending| kind.ends_with(ending)) {
        return None;
    }
    let members = json::members(raw)?;
    let member = |name: &str| {
        let own = members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
        own.filter(|raw| *raw != "null")
    };
    let is_failed = |raw: &str| matches!(raw, "\"failed\"" | "\"incomplete\"");
    Some(Call {
        has_failed: member("error").is_some() || member("status").is_some_and(is_failed),
        name: member("name").or(member("type")).unwrap_or_default(),
        arguments: ARGUMENTS.iter().find_map(|name| member(name)).unwrap_or_default(),
        id: member("call_id").or(member("id")).unwrap_or_default(),
    })
}

/// Returns the texts of the results in the object `raw` of this type, as JSON strings in order.
pub(super) fn outputs<'a>(kind: &str, raw: &'a str) -> Vec<&'a str> {
    if RESULTS.iter().any(|ending| kind.ends_with(ending)) { texts(raw) } else { Vec::new() }
}

/// Returns the texts in a result or a part of one, as JSON strings in order.
pub(super) fn texts(raw: &str) -> Vec<&str> {
    let mut found = Vec::new();
    add_texts(raw, MAX_DEPTH, &mut found);
    found
}

fn add_texts<'a>(raw: &'a str, depth: u32, found: &mut Vec<&'a str>) {
    if raw.starts_with('"') {
        found.extend((raw.len() > 2).then_some(raw));
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    if raw.starts_with('[') {
        for element in json::elements(raw).unwrap_or_default() {
            add_texts(element, depth, found);
        }
        return;
    }
    let members = json::unique_members(raw).unwrap_or_default();
    let is_text = members.iter().any(|(name, raw)| name == "type" && *raw == "\"text\"");
    for (name, value) in &members {
        // Other data is base64.
        if TEXTS.contains(&&**name) && (name != "data" || is_text) && is_readable(name, value) {
            add_texts(value, depth, found);
        }
    }
}

/// Whether a member may hold texts: the source of a search result is its address.
fn is_readable(name: &str, value: &str) -> bool {
    name != "source" || value.starts_with('{')
}

/// Adds the part `raw` of a result to `message`: its texts to `parts`, the rest to the parts outside. One
/// without texts stays the part that it is.
pub(super) fn add<'a>(
    raw: &'a str,
    part: Part<'a>,
    message: &mut Message<'a>,
    parts: &mut Vec<Part<'a>>,
) {
    let texts = texts(raw);
    if texts.is_empty() {
        return parts.push(part);
    }
    let mut from = 0;
    for text in &texts {
        let start = text.as_ptr() as usize - raw.as_ptr() as usize;
        message.others.push(Part::Ambiguous(&raw[from..start]));
        from = start + text.len();
    }
    message.others.push(Part::Ambiguous(&raw[from..]));
    parts.extend(texts.into_iter().map(Part::Text));
}

#[cfg(test)]
mod tests {
    use super::super::splice::{TextCut, rewrite};
    use super::super::{Edit, Protocol};
    use super::*;

    /// Blocks and items, with the name and the arguments of the call and the texts of results in each.
    const TYPES: &[(&str, &str, &str, &[&str])] = &[
        (
            r#"{"type":"server_tool_use","id":"s","name":"bash_code_execution","input":{"command":"ls"}}"#,
            r#""bash_code_execution""#,
            r#"{"command":"ls"}"#,
            &[],
        ),
        (
            r#"{"type":"mcp_tool_use","id":"m","name":"echo","server_name":"x","input":{}}"#,
            r#""echo""#,
            "{}",
            &[],
        ),
        (
            r#"{"type":"mcp_tool_result","tool_use_id":"m","is_error":false,"content":[{"type":"text","text":"a"}]}"#,
            "",
            "",
            &[r#""a""#],
        ),
        (
            r#"{"type":"bash_code_execution_tool_result","tool_use_id":"s","content":{"type":"bash_code_execution_result","stdout":"o","stderr":"e","return_code":0,"content":[{"type":"bash_code_execution_output","file_id":"f"}]}}"#,
            "",
            "",
            &[r#""o""#, r#""e""#],
        ),
        (
            r#"{"type":"code_execution_tool_result","content":{"type":"encrypted_code_execution_result","encrypted_stdout":"zzz","stderr":""}}"#,
            "",
            "",
            &[],
        ),
        (
            r#"{"type":"web_fetch_tool_result","content":{"type":"web_fetch_result","url":"u","content":{"type":"document","source":{"type":"text","media_type":"text/plain","data":"page"},"title":"t"}}}"#,
            "",
            "",
            &[r#""page""#],
        ),
        (
            r#"{"type":"web_fetch_tool_result","content":{"content":{"type":"document","source":{"type":"base64","data":"JVBE"}}}}"#,
            "",
            "",
            &[],
        ),
        (
            r#"{"type":"web_search_tool_result","content":[{"type":"web_search_result","url":"u","encrypted_content":"zzz"}]}"#,
            "",
            "",
            &[],
        ),
        (
            r#"{"type":"advisor_tool_result","content":{"type":"advisor_result","text":"do x"}}"#,
            "",
            "",
            &[r#""do x""#],
        ),
        (
            r#"{"type":"mcp_call","id":"m","name":"roll","arguments":"{}","output":"4","error":null}"#,
            r#""roll""#,
            r#""{}""#,
            &[r#""4""#],
        ),
        (
            r#"{"type":"mcp_approval_request","id":"m","name":"roll","arguments":"{}"}"#,
            r#""roll""#,
            r#""{}""#,
            &[],
        ),
        (
            r#"{"type":"code_interpreter_call","id":"c","code":"1+1","outputs":[{"type":"logs","logs":"2"},{"type":"image","url":"u"}]}"#,
            r#""code_interpreter_call""#,
            r#""1+1""#,
            &[r#""2""#],
        ),
        (
            r#"{"type":"file_search_call","id":"f","queries":["q"],"results":[{"file_id":"f","text":"hit"}]}"#,
            r#""file_search_call""#,
            r#"["q"]"#,
            &[r#""hit""#],
        ),
        (
            r#"{"type":"web_search_call","id":"w","action":{"type":"search","query":"q"}}"#,
            r#""web_search_call""#,
            r#"{"type":"search","query":"q"}"#,
            &[],
        ),
        (
            r#"{"type":"teapot_call","input":"brew","output":"tea"}"#,
            r#""teapot_call""#,
            r#""brew""#,
            &[r#""tea""#],
        ),
        (r#"{"type":"teapot_tool_result","content":"tea"}"#, "", "", &[r#""tea""#]),
        (r#"{"type":"text","text":"a"}"#, "", "", &[]),
    ];

    #[test]
    fn calls_and_texts_are_found_in_all_types() {
        for &(raw, name, arguments, wanted) in TYPES {
            let kind = json::member(raw, "type").and_then(json::string).expect("a type");
            let own = call(&kind, raw);
            let own = own.map(|own| (own.name, own.arguments)).unwrap_or_default();
            assert_eq!((own, &outputs(&kind, raw)[..]), ((name, arguments), wanted), "{raw}");
        }
    }

    #[test]
    fn texts_in_structured_results_are_clipped_where_they_stand() {
        let gone = || TextCut::Gone;
        for (protocol, raw, cuts, wanted) in [
            (
                Protocol::Messages,
                r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"search_result","source":"s","title":"t","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"type":"document","source":{"type":"text","data":"three"}},{"type":"text","text":"four"}]}"#,
                vec![TextCut::Whole, gone(), gone(), TextCut::Whole],
                r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"search_result","source":"s","title":"t","content":[{"type":"text","text":"one"},{"type":"text","text":"…"}]},{"type":"text","text":"four"}]}"#,
            ),
            (
                Protocol::Responses,
                r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"one","stderr":"two","outcome":{"type":"exit","exit_code":0}},{"stdout":"three","stderr":"","outcome":{"type":"timeout"}}]}"#,
                vec![gone(), TextCut::Whole, TextCut::Whole],
                r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"…","stderr":"two","outcome":{"type":"exit","exit_code":0}},{"stdout":"three","stderr":"","outcome":{"type":"timeout"}}]}"#,
            ),
        ] {
            let message = protocol.read_message(raw).expect("readable");
            assert_eq!(message.texts().len(), cuts.len(), "{raw}");
            assert_eq!(rewrite(protocol, raw, &[&Edit::Clip(cuts)]), wanted);
        }
    }

    #[test]
    fn placeholders_and_notes_keep_the_form_of_a_shells_output() {
        let raw = r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"one","stderr":"","outcome":{"type":"timeout"}}]}"#;
        for (edit, wanted) in [
            (Edit::Replace("gone".into()), r#""stdout":"gone""#),
            (Edit::Append(" note".into()), r#""stdout":"one note""#),
            (Edit::Prepend("note ".into()), r#""stdout":"note one""#),
        ] {
            let sent = rewrite(Protocol::Responses, raw, &[&edit]);
            assert_eq!(sent, raw.replace(r#""stdout":"one""#, wanted));
        }
    }
}
