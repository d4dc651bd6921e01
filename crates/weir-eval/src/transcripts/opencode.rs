//! Sessions of opencode, as its command `export` prints them: `{info, messages}`, with `{info, parts}` for each
//! message. They are retold as chat completions.
//!
//! The session has no system prompt and no tools. A subagent has a session of its own. After a compaction by
//! opencode a conversation of its own begins with the summary.

use super::chat::{self, ChatPart};
use super::{LineMembers, Recorded, as_text, time_ms};
use weir_engine::wire::json;
use weir_engine::wire::usage::{Metered, Usage};

/// Whether these are the members of an exported session.
pub(crate) fn is_export(line: &LineMembers<'_>) -> bool {
    line.get("info").is_some_and(|info| info.starts_with('{')) && line.get("messages").is_some()
}

/// Returns the conversations of an exported session, in order.
pub(crate) fn conversations(export: &LineMembers<'_>) -> Vec<Recorded> {
    let info = export.get("info").and_then(LineMembers::of);
    let of_session = |name| info.as_ref().and_then(|info| info.text(name));
    let mut parts = vec![ChatPart::default()];
    let messages = export.get("messages").and_then(json::elements).unwrap_or_default();
    for entry in messages.into_iter().filter_map(LineMembers::of) {
        let Some(info) = entry.get("info").and_then(LineMembers::of) else { continue };
        let items = entry.get("parts").and_then(json::elements).unwrap_or_default();
        let items: Vec<_> = items.into_iter().filter_map(LineMembers::of).collect();
        let Some(part) = parts.last_mut() else { continue };
        match info.text("role").as_deref() {
            Some("user") => {
                let shown: Vec<String> = items.iter().filter_map(shown).collect();
                if !shown.is_empty() {
                    part.user(&chat::content(&shown), created_ms(&info));
                }
            }
            Some("assistant") => {
                let summary = add_answer(&info, &items, part);
                if info.get("summary") == Some("true") && !summary.is_empty() {
                    let mut next = ChatPart::default();
                    next.user(&chat::content(&summary), created_ms(&info));
                    parts.push(next);
                }
            }
            _ => {}
        }
    }
    let id = of_session("id").unwrap_or_else(|| "session".to_owned());
    chat::recorded(&id, of_session("directory").as_deref(), parts)
}

fn created_ms(info: &LineMembers<'_>) -> Option<u64> {
    time_ms(json::member(info.get("time")?, "created")?)
}

/// Returns a part that the model sees, as one of a chat.
fn shown(part: &LineMembers<'_>) -> Option<String> {
    match part.text("type")?.as_str() {
        "text" if part.get("ignored") != Some("true") => Some(chat::text(part.get("text")?)),
        "file" => {
            let url = part.text("url")?;
            let (_, data) = url.split_once(";base64,")?;
            chat::picture(&part.text("mime")?, data)
        }
        _ => None,
    }
}

/// Adds the steps of an answer, each a request of its own. Returns what was said.
fn add_answer(
    info: &LineMembers<'_>,
    items: &[LineMembers<'_>],
    part: &mut ChatPart,
) -> Vec<String> {
    let is_end = |own: &LineMembers<'_>| own.get("type") == Some(r#""step-finish""#);
    let mut said = Vec::new();
    for (number, step) in items.split_inclusive(is_end).enumerate() {
        let of_step = step.last().filter(|own| is_end(own)).and_then(|own| own.get("tokens"));
        let usage = of_step.or(info.get("tokens")).and_then(usage);
        let shown: Vec<String> = step.iter().filter_map(shown).collect();
        let calls: Vec<_> = step.iter().filter_map(call).collect();
        let is_empty = shown.is_empty() && calls.is_empty();
        // What follows the last step's end, such as a list of changed files, is no answer.
        if is_empty && (usage.is_none() || (number > 0 && of_step.is_none())) {
            continue;
        }
        let own = part.begin(created_ms(info));
        own.model = info.text("modelID");
        own.id = info.text("id").map(|id| format!("{id} {number}"));
        own.reported = Metered { usage, ..Metered::default() };
        if !is_empty {
            let made: Vec<String> = calls.iter().map(|(_, call, _)| call.clone()).collect();
            part.answer(&chat::content(&shown), &made);
        }
        for (id, _, result) in calls {
            if let Some((content, at_ms)) = result {
                part.result(&id, &content, at_ms);
            }
        }
        said.extend(shown);
    }
    said
}

/// Result of a call as JSON content, and when it came.
type ToolResult = (String, Option<u64>);

/// Returns the name of a call, the call, and its result if there is one.
fn call(part: &LineMembers<'_>) -> Option<(String, String, Option<ToolResult>)> {
    if part.text("type")? != "tool" {
        return None;
    }
    let (id, name) = (part.text("callID")?, part.text("tool")?);
    let state = part.get("state").and_then(LineMembers::of);
    let of_state = |name| state.as_ref().and_then(|state| state.get(name));
    let made = chat::call(&id, &name, of_state("input"));
    let content = of_state("output").or(of_state("error")).map(as_text);
    let end_ms = of_state("time").and_then(|raw| json::member(raw, "end")).and_then(time_ms);
    Some((id, made, content.map(|content| (content, end_ms))))
}

/// Returns what a step used; `None` if all is zero, as in answers that failed.
fn usage(raw: &str) -> Option<Usage> {
    let tokens = LineMembers::of(raw)?;
    let cache = tokens.get("cache").unwrap_or("{}");
    let count = |name| tokens.get(name).and_then(json::count).unwrap_or(0);
    let of_cache = |name| json::member(cache, name).and_then(json::count).unwrap_or(0);
    let (read, written) = (of_cache("read"), of_cache("write"));
    let prompt = count("input").saturating_add(read).saturating_add(written);
    let output = count("output").saturating_add(count("reasoning"));
    let all = tokens.get("total").and_then(json::count).and_then(|all| all.checked_sub(prompt));
    let output = all.filter(|tokens| *tokens >= count("output")).unwrap_or(output);
    (prompt > 0 || output > 0).then(|| Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(output),
        cached_tokens: Some(read),
        cache_write_tokens: Some(written),
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests;
