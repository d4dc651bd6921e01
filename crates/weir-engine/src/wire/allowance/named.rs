//! What a request names besides its own model: other models, tools among items, and items by their IDs. Reads
//! any JSON; adds nothing up.

use std::borrow::Cow;

use memchr::memmem;

use super::limits::{MAX_GROUPS, Members};
use crate::wire::json::{self, all};

/// Returns the lists of tools that items of Responses declare or load: additional ones, and those of a search.
pub fn items_tools(input: &str) -> Vec<&str> {
    let text = input.as_bytes();
    if memmem::find(text, b"tools\"").is_none() && memmem::find(text, b"\\u00").is_none() {
        return Vec::new();
    }
    let items = json::elements(input).unwrap_or_default().into_iter();
    items.flat_map(|item| all(item, "tools")).collect()
}

/// Returns the models that a value names: a list of names, of requests to models, or of lists by the model that they
/// stand in for. A part of another form is an empty name.
pub fn models_in(raw: &str) -> Vec<Cow<'_, str>> {
    named_models(raw, MAX_GROUPS)
}

fn named_models(raw: &str, depth: u32) -> Vec<Cow<'_, str>> {
    let name = |raw| vec![json::string(raw).unwrap_or_default()];
    let Some(depth) = depth.checked_sub(1) else { return name(raw) };
    let inner: Vec<&str> = match (json::elements(raw), json::members(raw)) {
        (Some(elements), _) => elements,
        (None, Some(members)) => match all(raw, "model") {
            own if own.is_empty() => members.into_iter().map(|(_, raw)| raw).collect(),
            own => return own.into_iter().flat_map(name).collect(),
        },
        (None, None) => return name(raw),
    };
    inner.into_iter().flat_map(|raw| named_models(raw, depth)).collect()
}

/// Returns the models that a tool at the provider or a plugin names for inferences of its own, such as an advisor.
/// OpenRouter's tools have them in `parameters` (its guides to server tools and to Fusion).
pub fn inner_models(object: &str) -> Vec<Cow<'_, str>> {
    const NAMES: [&str; 3] = ["model", "models", "analysis_models"];
    let members = json::members(object).unwrap_or_default();
    let settings = members.iter().filter(|(name, _)| name == "parameters");
    let settings = settings.flat_map(|(_, raw)| json::members(raw).unwrap_or_default());
    let all = members.iter().cloned().chain(settings);
    let named = all.filter(|(name, raw)| NAMES.contains(&name.as_ref()) && *raw != "null");
    named.flat_map(|(_, raw)| models_in(raw)).collect()
}

/// Whether an item of Responses refers to an earlier one: it has neither type nor role, or an ID in place of its
/// content. OpenAI takes that from its store (its guide to conversation state).
pub(super) fn has_references(members: &Members<'_>) -> bool {
    let input = members.iter().find(|(name, _)| name == "input").map(|(_, raw)| *raw);
    let items = input.and_then(json::elements).unwrap_or_default();
    items.iter().filter_map(|item| json::members(item)).any(|item| {
        let says = |key: &str| {
            let is_empty = |raw: &str| ["null", "[]", "{}", "\"\""].contains(&raw);
            item.iter().any(|(name, raw)| name == key && !is_empty(raw))
        };
        let types = item.iter().filter(|(name, _)| name == "type");
        let mut kinds = types.filter_map(|(_, raw)| json::string(raw));
        let contents: &[&str] = match kinds.find_map(|kind| contents(&kind)) {
            Some(contents) => contents,
            None if !says("type") && !says("role") => return true,
            None => return false,
        };
        says("id") && !contents.iter().any(|name| says(name))
    })
}

/// Returns the members that hold the content of items of this type; `None` if it is theirs in other ways.
fn contents(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        // A summary is not all of it.
        "reasoning" => &["encrypted_content", "content"],
        "image_generation_call" => &["result"],
        "file_search_call" => &["results"],
        "code_interpreter_call" => &["outputs"],
        "mcp_call" => &["output", "error"],
        "compaction" | "context_compaction" => &["encrypted_content"],
        "message" => &["content"],
        kind if kind.ends_with("_call") => {
            &["action", "actions", "arguments", "input", "name", "operation"]
        }
        _ => return None,
    })
}
