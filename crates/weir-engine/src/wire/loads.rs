//! Tools that a search loads into the conversation: definitions that are deferred until then. Reads names
//! alone.
//!
//! Anthropic's guide to the tool search tool describes `tool_reference`, OpenAI's guide `tool_search_output`.

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
}
