//! Reduction of a request's output limit, in place. A smaller number never has more digits, and
//! blanks replace the missing ones, so nothing else in the body moves, unless the value is no number.
//! If the request has no limit, one is added at the body's end.

use std::cmp::Reverse;

use super::{Request, json};

/// Lowers any output limit in `body` to at most `tokens`. `body` is that of `request` with any of
/// its messages changed.
pub fn put(request: &Request<'_>, body: &mut String, tokens: u64) {
    let text = request.text;
    let offset = |raw: &str| raw.as_ptr() as usize - text.as_ptr() as usize;
    let first = request.listed().first().map(|raw| offset(raw));
    let mut limits = request.output_limits.clone();
    // A value shorter than its replacement moves what follows it.
    limits.sort_unstable_by_key(|raw| Reverse(offset(raw)));
    let edited_bytes = body.len();
    for raw in limits {
        if json::count(raw).is_some_and(|asked| asked <= tokens) {
            continue;
        }
        let at = offset(raw);
        let start = match first.is_none_or(|first| at < first) {
            true => at,
            // The distance of everything after the messages to the end is unchanged.
            false => edited_bytes - (text.len() - at),
        };
        let lower = format!("{tokens:<width$}", width = raw.len());
        body.replace_range(start..start + raw.len(), &lower);
    }
}

/// Whether [`put`] or [`add`] can limit the request's output.
pub fn is_possible(request: &Request<'_>) -> bool {
    !request.output_limits.is_empty() || !request.absent_limits.is_empty()
}

/// Adds an output limit of `tokens` to `body` if it has none. `body` is that of `request` with
/// other changes.
pub fn add(request: &Request<'_>, model: &str, body: &mut String, tokens: u64) {
    let (true, Some(end)) = (request.output_limits.is_empty(), body.rfind('}')) else { return };
    let wanted = member(model);
    let name = request.absent_limits.iter().find(|name| **name == wanted);
    let Some(name) = name.or(request.absent_limits.first()) else { return };
    // A conversation has messages, so there is a member before this one.
    body.insert_str(end, &format!(",\"{name}\":{tokens}"));
}

/// Returns the name of the member that the model's provider accepts. OpenAI's reasoning models
/// refuse `max_tokens` (its API reference deprecates it in favour of `max_completion_tokens`), and
/// many other servers know only that.
pub fn member(model: &str) -> &'static str {
    let name = model.rsplit('/').next().unwrap_or(model);
    match ["o1", "o3", "o4", "gpt-5"].iter().any(|family| name.starts_with(family)) {
        true => "max_completion_tokens",
        false => "max_tokens",
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::{Edit, Protocol, splice};

    fn clamped(body: &str, tokens: u64, edits: &[(usize, Edit)]) -> String {
        let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
        let mut sent = splice::apply(Protocol::Chat, &request, edits);
        super::put(&request, &mut sent, tokens);
        sent
    }

    #[test]
    fn each_limit_is_lowered_where_it_stands() {
        let body = r#"{"max_tokens" : 4096 ,"messages":[{"role":"user","content":"hé"},{"role":"user","content":"b"}],"max_completion_tokens":800}"#;
        let lower = r#"{"max_tokens" : 70   ,"messages":[{"role":"user","content":"hé"},{"role":"user","content":"b"}],"max_completion_tokens":70 }"#;
        assert_eq!(clamped(body, 70, &[]), lower);
        assert_eq!(
            clamped(body, 800, &[(0, Edit::Remove)]),
            r#"{"max_tokens" : 800  ,"messages":[{"role":"user","content":"b"}],"max_completion_tokens":800}"#
        );
        assert_eq!(clamped(body, 4096, &[]), body);
        let none = r#"{"max_tokens":null,"messages":[]}"#;
        assert_eq!(clamped(none, 1, &[]), none);
    }

    #[test]
    fn a_limit_is_added_where_there_is_none_and_room_for_one() {
        for (model, body, expected) in [
            ("gpt-4o", r#"{"messages":[]}"#, r#"{"messages":[],"max_tokens":7}"#),
            ("o3", r#"{"messages":[] } "#, r#"{"messages":[] ,"max_completion_tokens":7} "#),
            (
                "openai/gpt-5-mini",
                r#"{"messages":[]}"#,
                r#"{"messages":[],"max_completion_tokens":7}"#,
            ),
            (
                "gpt-4o",
                r#"{"max_tokens":null,"messages":[]}"#,
                r#"{"max_tokens":null,"messages":[],"max_completion_tokens":7}"#,
            ),
            ("gpt-4o", r#"{"messages":[],"max_tokens":9}"#, r#"{"messages":[],"max_tokens":9}"#),
            (
                "gpt-4o",
                r#"{"messages":[],"max_tokens":null,"max_completion_tokens":null}"#,
                r#"{"messages":[],"max_tokens":null,"max_completion_tokens":null}"#,
            ),
        ] {
            let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
            let mut sent = body.to_owned();
            super::add(&request, model, &mut sent, 7);
            assert_eq!(sent, expected);
            let may_have = body.matches("null").count() < 2;
            assert_eq!(super::is_possible(&request), may_have, "{body}");
        }
    }

    #[test]
    fn what_is_lowered_reads_as_json() {
        let body =
            r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":18446744073709551615}"#;
        let sent = clamped(body, 1, &[(0, Edit::Append("more".into()))]);
        let request = Protocol::Chat.read(sent.as_bytes(), 100).expect("readable");
        assert_eq!(request.max_output_tokens, Some(1));
    }
}
