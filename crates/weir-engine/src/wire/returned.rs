//! Items of Responses in the form in which a provider returns them: with an ID, a status, and contents as
//! lists. Everything else in them keeps its bytes.
//!
//! The Open Responses specification describes the form. Clients may send items without any of it.

use std::borrow::Cow;

use super::json;
use super::json::rejoin;

/// Returns a run of items, joined by commas, each in the form of an answer. `id` makes the ID of an item
/// from a prefix.
///
/// # Errors
///
/// The first error of `id`.
pub fn items<E>(run: &str, mut id: impl FnMut(&str) -> Result<String, E>) -> Result<String, E> {
    let Some(items) = json::run(run) else { return Ok(run.to_owned()) };
    let changed = items.iter().map(|raw| item(raw, &mut id)).collect::<Result<Vec<_>, E>>()?;
    let mut changed = changed.into_iter();
    Ok(rejoin(run, &items, |_, raw| changed.next().flatten().map(Cow::Owned).or(Some(raw.into()))))
}

/// Returns an item in the form of an answer; `None` if it has that or is not known.
fn item<E>(raw: &str, id: &mut impl FnMut(&str) -> Result<String, E>) -> Result<Option<String>, E> {
    let Some(members) = json::members(raw) else { return Ok(None) };
    let member = |name: &str| {
        let own = members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
        own.filter(|raw| *raw != "null")
    };
    let role = member("role").and_then(json::string);
    let kind = match member("type") {
        Some(kind) => json::string(kind),
        None => role.is_some().then_some(Cow::Borrowed("message")),
    };
    let prefix = match kind.as_deref() {
        Some("message") => "msg",
        Some("function_call" | "function_call_output") => "fc",
        _ => return Ok(None),
    };
    let mut added = String::new();
    if member("type").is_none() {
        added.push_str(r#""type":"message","#);
    }
    // Members that are null are given twice then, and the last counts for most readers.
    let is_absent = |name: &str| members.iter().all(|(own, _)| own != name);
    if is_absent("id") {
        added.push_str(&format!(r#""id":"{}","#, id(prefix)?));
    }
    if is_absent("status") {
        added.push_str(r#""status":"completed","#);
    }
    let content = member("content").filter(|_| prefix == "msg");
    let parts = content.and_then(|raw| listed(raw, role.as_deref() == Some("assistant")));
    if added.is_empty() && parts.is_none() {
        return Ok(None);
    }
    let text = match (content, parts) {
        (Some(content), Some(parts)) => {
            Cow::Owned(rejoin(raw, &[content], |_, _| Some(parts.as_str().into())))
        }
        _ => Cow::Borrowed(raw),
    };
    // Every item has a member, its type or its role.
    Ok(Some(text.replacen('{', &format!("{{{added}"), 1)))
}

/// Returns a content as a list of parts with all their members; `None` if it is one.
fn listed(raw: &str, is_assistant: bool) -> Option<String> {
    const NONE: &str = r#""annotations":[]"#;
    if raw.starts_with('"') {
        return Some(match is_assistant {
            true => format!(r#"[{{"type":"output_text","text":{raw},{NONE}}}]"#),
            false => format!(r#"[{{"type":"input_text","text":{raw}}}]"#),
        });
    }
    let parts = json::elements(raw)?;
    let is_bare = |part: &str| {
        let kind = json::member(part, "type").and_then(json::string);
        kind.as_deref() == Some("output_text") && json::member(part, "annotations").is_none()
    };
    parts.iter().any(|part| is_bare(part)).then(|| {
        rejoin(raw, &parts, |_, part| {
            Some(match is_bare(part) {
                true => part.replacen('{', &format!("{{{NONE},"), 1).into(),
                false => part.into(),
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(run: &str) -> String {
        let mut number = 0;
        let id = |prefix: &str| -> Result<String, ()> {
            number += 1;
            Ok(format!("{prefix}_{number}"))
        };
        items(run, id).expect("there are IDs")
    }

    #[test]
    fn items_get_what_they_lack_and_keep_their_bytes() {
        for (run, wanted) in [
            ("", ""),
            (
                r#"{ "role" :"user", "content":"\u0041", "x":1.50 }"#,
                r#"{"type":"message","id":"msg_1","status":"completed", "role" :"user", "content":[{"type":"input_text","text":"\u0041"}], "x":1.50 }"#,
            ),
            (
                r#"{"type":"message","role":"assistant","phase":"commentary","content":"a"} , {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}"#,
                r#"{"id":"msg_1","status":"completed","type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"a","annotations":[]}]} , {"id":"fc_2","status":"completed","type":"function_call","call_id":"c","name":"f","arguments":"{}"}"#,
            ),
            (
                r#"{"type":"message","id":"msg_x","status":"completed","role":"assistant","content":[{"type":"output_text","text":"{"},{"type":"refusal","refusal":"n"}]}"#,
                r#"{"type":"message","id":"msg_x","status":"completed","role":"assistant","content":[{"annotations":[],"type":"output_text","text":"{"},{"type":"refusal","refusal":"n"}]}"#,
            ),
        ] {
            assert_eq!(returned(run), wanted);
        }
    }

    #[test]
    fn whole_and_unknown_items_stay() {
        for run in [
            r#"{"type":"message","id":"m","status":"completed","role":"user","content":[{"type":"input_text","text":"a"}]}"#,
            r#"{"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]}"#,
            r#"{"type":"reasoning","summary":[]}"#,
            r#"{"type":"compaction","encrypted_content":"a"}"#,
            r#"{"id":"x"}"#,
            "3",
        ] {
            assert_eq!(returned(run), run);
        }
        let failed = items(r#"{"role":"user"}"#, |_| Err::<String, _>(7));
        assert_eq!(failed, Err(7));
    }
}
