//! Lists that chat completions stream in fragments, such as `reasoning_details` of OpenRouter and
//! `thinking_blocks` of LiteLLM, put together again for the request that continues the answer.

use super::super::text::{self, Object};
use crate::wire::json;

/// Members whose fragments are joined; of others the last value counts.
const TEXTS: [&str; 6] = ["text", "summary", "thinking", "data", "content", "signature"];
/// Maximum number of elements of one list.
const MAX_ELEMENTS: usize = 4096;
/// Maximum number of members of an element.
const MAX_MEMBERS: usize = 64;

/// List of objects that arrive in fragments.
#[derive(Debug, Default)]
pub(super) struct Fragments(Vec<Vec<(String, String)>>);

impl Fragments {
    /// Adds a fragment; returns `false` if there are too many.
    pub(super) fn add(&mut self, fragment: &str) -> bool {
        let Some(object) = Object::read(fragment) else { return true };
        let continues = self.0.last().is_some_and(|last| continues(last, &object));
        if !continues {
            if self.0.len() >= MAX_ELEMENTS {
                return false;
            }
            self.0.push(Vec::new());
        }
        let Some(element) = self.0.last_mut() else { return true };
        for (name, value) in object.members() {
            let Some((_, own)) = element.iter_mut().find(|(own, _)| own == name) else {
                if element.len() < MAX_MEMBERS {
                    element.push((name.clone().into_owned(), (*value).to_owned()));
                }
                continue;
            };
            match text::inner(value) {
                Some(more) if TEXTS.contains(&&**name) && own.ends_with('"') => {
                    own.pop();
                    own.push_str(more);
                    own.push('"');
                }
                _ if *value == "null" => {}
                _ => *own = (*value).to_owned(),
            }
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the list as JSON text.
    pub(super) fn list(&self) -> String {
        let element = |members: &Vec<(String, String)>| {
            let members =
                members.iter().map(|(name, value)| format!("{}:{value}", json::quoted(name)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        };
        format!("[{}]", self.0.iter().map(element).collect::<Vec<_>>().join(","))
    }
}

/// Whether a fragment belongs to the element before it: both have one type and one index, or the same
/// type without an index while the element is not signed yet.
fn continues(last: &[(String, String)], fragment: &Object<'_>) -> bool {
    let own = |name: &str| {
        let found = last.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        found.filter(|raw| *raw != "null")
    };
    if own("type") != fragment.get("type") || own("index") != fragment.get("index") {
        return false;
    }
    let is_other =
        own("id").is_some() && fragment.get("id").is_some() && own("id") != fragment.get("id");
    let is_signed = own("signature").is_some_and(|raw| !text::is_empty(raw));
    let is_text = text::inner(own("type").unwrap_or_default()).is_some_and(|kind| {
        kind.ends_with("text") || kind.ends_with("summary") || kind == "thinking"
    });
    let has_more = ["text", "summary", "thinking"]
        .iter()
        .any(|name| fragment.get(name).is_some_and(|raw| !text::is_empty(raw)));
    !is_other && is_text && (own("index").is_some() || !(is_signed && has_more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_put_together() {
        for (fragments, wanted) in [
            (
                &[
                    r#"{"type":"reasoning.text","text":"a\n","index":0,"format":"x","signature":null}"#,
                    r#"{"type":"reasoning.text","text":"b","index":0,"format":"x"}"#,
                    r#"{"type":"reasoning.text","signature":"s","index":0}"#,
                    r#"{"type":"reasoning.encrypted","data":"d","index":1}"#,
                ][..],
                r#"[{"type":"reasoning.text","text":"a\nb","index":0,"format":"x","signature":"s"},{"type":"reasoning.encrypted","data":"d","index":1}]"#,
            ),
            (
                &[
                    r#"{"type":"thinking","thinking":"a"}"#,
                    r#"{"type":"thinking","thinking":"b","signature":""}"#,
                    r#"{"type":"thinking","thinking":"","signature":"s"}"#,
                    r#"{"type":"thinking","thinking":"c"}"#,
                    r#"{"type":"redacted_thinking","data":"d"}"#,
                    r#"{"type":"redacted_thinking","data":"e"}"#,
                ],
                r#"[{"type":"thinking","thinking":"ab","signature":"s"},{"type":"thinking","thinking":"c"},{"type":"redacted_thinking","data":"d"},{"type":"redacted_thinking","data":"e"}]"#,
            ),
            (&["3", "null"], "[]"),
        ] {
            let mut all = Fragments::default();
            assert!(fragments.iter().all(|fragment| all.add(fragment)));
            assert_eq!(all.list(), wanted);
            assert_eq!(all.is_empty(), wanted == "[]");
        }
    }
}
