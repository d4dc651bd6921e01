//! Tools that a search loads into the conversation: definitions that are deferred until then. Reads names
//! alone.
//!
//! Anthropic's guide to the tool search tool describes `tool_reference`, OpenAI's guide `tool_search_output`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use memchr::memmem;

use super::json;
use super::{Message, Protocol};

/// Member with the name of a tool that is loaded, and type of an item with definitions.
const REFERENCE: &str = "\"tool_reference\"";
const OUTPUT: &str = "\"tool_search_output\"";
/// Maximum depth of namespaces in namespaces.
const MAX_DEPTH: u32 = 4;

impl Message<'_> {
    /// Whether it may load tools.
    pub fn may_load_tools(&self) -> bool {
        let has = |name: &str| memmem::find(self.raw.as_bytes(), name.as_bytes()).is_some();
        match self.protocol {
            Protocol::Chat => false,
            Protocol::Messages => has(REFERENCE),
            Protocol::Responses => has(OUTPUT),
        }
    }

    /// Returns the names of the tools that it loads.
    pub fn loaded_tools(&self) -> Vec<String> {
        let mut names = Vec::new();
        match self.protocol {
            Protocol::Chat => {}
            Protocol::Messages => add_references(self.raw, MAX_DEPTH * 2, &mut names),
            Protocol::Responses => {
                for item in json::run(self.raw).unwrap_or_default() {
                    if json::member(item, "type") == Some(OUTPUT) {
                        add_definitions(json::member(item, "tools"), MAX_DEPTH, &mut names);
                    }
                }
            }
        }
        names
    }

    /// Returns the names of the tools that it calls.
    pub fn called_tools(&self) -> impl Iterator<Item = String> {
        self.all_calls().filter_map(|call| Some(json::string(call.name)?.into_owned()))
    }
}

/// Adds the names in blocks of references, at any place in `raw`.
fn add_references(raw: &str, depth: u32, names: &mut Vec<String>) {
    let is_worth_it = || memmem::find(raw.as_bytes(), REFERENCE.as_bytes()).is_some();
    let Some(depth) = depth.checked_sub(1).filter(|_| is_worth_it()) else { return };
    if raw.starts_with('[') {
        let elements = json::elements(raw).unwrap_or_default();
        return elements.into_iter().for_each(|own| add_references(own, depth, names));
    }
    let members = json::members(raw).unwrap_or_default();
    let member = |name: &str| members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
    if member("type") == Some(REFERENCE) {
        names.extend(member("tool_name").and_then(json::string).map(|name| name.into_owned()));
        return;
    }
    members.iter().for_each(|(_, own)| add_references(own, depth, names));
}

/// Adds the names of definitions, also of those in namespaces.
fn add_definitions(list: Option<&str>, depth: u32, names: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for tool in list.and_then(json::elements).unwrap_or_default() {
        names.extend(
            json::member(tool, "name").and_then(json::string).map(|name| name.into_owned()),
        );
        add_definitions(json::member(tool, "tools"), depth, names);
    }
}

/// Returns the list of tools in which those with these names are deferred no more; `None` if none of them
/// was. Blanks replace the member, so that no other byte moves.
pub fn undeferred(tools: &str, names: &BTreeSet<String>) -> Option<String> {
    let mut deferrals = Vec::new();
    add_deferrals(Some(tools), MAX_DEPTH, names, &mut deferrals);
    let place = |text: &str| text.as_ptr() as usize - tools.as_ptr() as usize;
    let mut bytes = tools.as_bytes().to_vec();
    for (name, value) in &deferrals {
        // From the name's quote to the value, with the comma behind, or else the one before.
        let (mut start, mut end) = (place(name).saturating_sub(1), place(value) + value.len());
        let is_blank = |byte: &&u8| byte.is_ascii_whitespace();
        end += bytes[end..].iter().take_while(is_blank).count();
        if bytes.get(end) == Some(&b',') {
            end += 1;
        } else {
            start -= bytes[..start].iter().rev().take_while(is_blank).count();
            start -= usize::from(bytes[..start].last() == Some(&b','));
        }
        bytes[start..end].fill(b' ');
    }
    String::from_utf8(bytes).ok().filter(|_| !deferrals.is_empty())
}

/// Adds name and value of the member that defers a tool, for those with these names.
fn add_deferrals<'a>(
    list: Option<&'a str>,
    depth: u32,
    names: &BTreeSet<String>,
    deferrals: &mut Vec<(&'a str, &'a str)>,
) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for tool in list.and_then(json::elements).unwrap_or_default() {
        let members = json::members(tool).unwrap_or_default();
        let own = members.iter().find(|(name, _)| name == "name").map(|(_, raw)| *raw);
        let is_meant = own.and_then(json::string).is_some_and(|own| names.contains(&*own));
        for (name, raw) in &members {
            match name {
                Cow::Borrowed(name) if is_meant && *name == "defer_loading" && *raw == "true" => {
                    deferrals.push((name, raw));
                }
                name if name == "tools" => add_deferrals(Some(raw), depth, names, deferrals),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_tools_are_found_in_both_protocols() {
        for (protocol, raw, wanted) in [
            (
                Protocol::Messages,
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"tool_reference","tool_name":"a"}]}]}"#,
                &["a"][..],
            ),
            (
                Protocol::Messages,
                r#"{"role":"assistant","content":[{"type":"tool_search_tool_result","tool_use_id":"s","content":{"type":"tool_search_tool_search_result","tool_references":[{"type":"tool_reference","tool_name":"a"},{"type":"tool_reference","tool_name":"b"}]}}]}"#,
                &["a", "b"],
            ),
            (
                Protocol::Messages,
                r#"{"role":"user","content":"a \"tool_reference\" of tool_name"}"#,
                &[],
            ),
            (
                Protocol::Responses,
                r#"{"type":"tool_search_call","execution":"server","arguments":{}},{"type":"tool_search_output","execution":"server","tools":[{"type":"function","name":"a","parameters":{"name":"x"}},{"type":"namespace","name":"n","tools":[{"type":"function","name":"b"}]}]}"#,
                &["a", "n", "b"],
            ),
        ] {
            let message = protocol.read_message(raw).expect("a message");
            assert_eq!(message.loaded_tools(), wanted, "{raw}");
            assert!(message.may_load_tools() || wanted.is_empty(), "{raw}");
        }
    }

    #[test]
    fn named_tools_are_deferred_no_more_and_no_other_byte_moves() {
        let names = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        for (tools, wanted) in [
            (
                r#"[{"name":"a","defer_loading":true},{"name":"c","defer_loading":true}]"#,
                Some(r#"[{"name":"a"                     },{"name":"c","defer_loading":true}]"#),
            ),
            (
                r#"[{"defer_loading" : true , "name":"b"}]"#,
                Some(r#"[{                         "name":"b"}]"#),
            ),
            (
                r#"[{"type":"namespace","name":"n","tools":[{"name":"b", "defer_loading":true,"strict":true}]}]"#,
                Some(
                    r#"[{"type":"namespace","name":"n","tools":[{"name":"b",                      "strict":true}]}]"#,
                ),
            ),
            (r#"[{"name":"a","defer_loading":false},{"name":"c","defer_loading":true}]"#, None),
            (r#"{"name":"a"}"#, None),
        ] {
            assert_eq!(undeferred(tools, &names).as_deref(), wanted, "{tools}");
        }
    }
}
