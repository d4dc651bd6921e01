//! Reduction of a request's output limits, in place, and of those on thinking with them. A smaller number
//! never has more digits, and blanks replace the missing ones, so nothing else in the body moves, unless
//! the value is no number. If the request has no limit, one is added at the body's end.

use std::cmp::Reverse;

use super::allowance::{self, LEAST_THINKING_TOKENS};
use super::{Request, json};

/// Lowers any output limit in `body` to at most `tokens`, and limits on thinking in the same proportion,
/// below it. `body` is that of `request` with any of its messages changed. Returns the places in the text of
/// `request`, in bytes, at which values became longer, each with the number of bytes.
pub fn put(request: &Request<'_>, body: &mut String, tokens: u64) -> Vec<(usize, usize)> {
    let mut grown = Vec::new();
    let text = request.text;
    let offset = |raw: &str| raw.as_ptr() as usize - text.as_ptr() as usize;
    let first = request.listed().first().map(|raw| offset(raw));
    let asked = largest(request);
    // Of thinking that comes on top of the output, so much as there is room for.
    let apart = asked.filter(|asked| *asked < tokens && most_thinking(request) >= *asked);
    let room = apart.map(|asked| (tokens - asked).max(LEAST_THINKING_TOKENS.min(tokens - 1)));
    let output_tokens = room.map_or(tokens, |room| tokens - room);
    let outputs = allowance::limits(request).into_iter().map(|raw| (raw, output_tokens));
    let thinking = allowance::thinking(request).into_iter();
    let lower = |raw: &str| match room {
        Some(room) => json::count(raw).unwrap_or(u64::MAX).min(room),
        None => thinking_tokens(raw, asked, tokens),
    };
    let mut limits: Vec<(&str, u64)> =
        outputs.chain(thinking.map(|raw| (raw, lower(raw)))).collect();
    // A value shorter than its replacement moves what follows it.
    limits.sort_unstable_by_key(|(raw, _)| Reverse(offset(raw)));
    let edited_bytes = body.len();
    for (raw, tokens) in limits {
        // A limit of 0 is none for some servers.
        if json::count(raw).is_some_and(|asked| asked > 0 && asked <= tokens) {
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
        grown.push((at, lower.len() - raw.len()));
    }
    grown
}

/// Returns the largest output limit in `request`; `None` if it has none, or one that is no number.
pub fn largest(request: &Request<'_>) -> Option<u64> {
    let limits = allowance::limits(request);
    let limit = |raw| allowance::output_limit(raw, Some(request.protocol));
    let counts: Option<Vec<u64>> = limits.into_iter().map(limit).collect();
    counts?.into_iter().max()
}

/// Returns the largest output of `request` with thinking that comes on top of it (interleaved thinking);
/// `None` as in [`largest`].
pub fn most(request: &Request<'_>) -> Option<u64> {
    let thinking = most_thinking(request);
    largest(request).map(|own| if thinking >= own { own.saturating_add(thinking) } else { own })
}

fn most_thinking(request: &Request<'_>) -> u64 {
    let limits = allowance::thinking(request).into_iter();
    limits.map(|raw| json::count(raw).unwrap_or(u64::MAX)).max().unwrap_or(0)
}

/// Returns the limit on thinking that keeps its share of the output. Providers refuse one that is not below
/// the output limit (Anthropic's guide to extended thinking), or below their minimum.
fn thinking_tokens(raw: &str, asked: Option<u64>, tokens: u64) -> u64 {
    let own = json::count(raw).unwrap_or(u64::MAX);
    let share = match asked.filter(|asked| *asked > tokens) {
        Some(asked) => u128::from(own) * u128::from(tokens) / u128::from(asked),
        None => u128::from(own),
    };
    let share = u64::try_from(share).unwrap_or(u64::MAX);
    share.max(LEAST_THINKING_TOKENS.min(own)).min(tokens.saturating_sub(1))
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
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    // Bedrock puts the maker in front, and fine-tuned models their kind.
    let name = name.rsplit_once("openai.").map_or(name.as_str(), |(_, own)| own);
    let name = name.strip_prefix("ft:").unwrap_or(name);
    let generation = |family: &str| {
        let rest = name.strip_prefix(family)?;
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok()
    };
    let is_reasoning = generation("gpt-").is_some_and(|number| number >= 5)
        || generation("o").is_some()
        || name.starts_with("chat-latest");
    if is_reasoning { "max_completion_tokens" } else { "max_tokens" }
}

#[cfg(test)]
mod tests {
    use crate::wire::{Edit, Protocol, splice};

    #[test]
    fn reasoning_models_get_the_limit_that_they_take() {
        let reasoning = "o1 o3-mini o4-mini-2025-04-16 gpt-5 gpt-5.6-luna gpt-6-sol gpt-6.1-sol gpt-7 GPT-10 \
                         openai/gpt-6-luna openai.gpt-5.6-luna us.openai.gpt-6-sol chat-latest ft:gpt-6-luna:org::id";
        for model in reasoning.split(' ').filter(|name| !name.is_empty()) {
            assert_eq!(super::member(model), "max_completion_tokens", "{model}");
        }
        for model in [
            "gpt-4o",
            "gpt-4.1-mini",
            "gpt-oss-120b",
            "openai.gpt-oss-20b",
            "olmo",
            "o",
            "claude-x",
            "",
        ] {
            assert_eq!(super::member(model), "max_tokens", "{model}");
        }
    }

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
    fn thinking_is_lowered_with_the_output_and_stays_valid() {
        let thinking = |budget: u64, most: u64| {
            format!(
                r#"{{"thinking":{{"type":"enabled","budget_tokens":{budget:<5}}},"messages":[],"max_tokens":{most:<5}}}"#
            )
        };
        for (budget, most, tokens, lower) in [
            (16_000, 32_000, 8000, 4000),
            (30_000, 32_000, 1500, 1406),
            (2000, 32_000, 8000, 1024),
            (31_999, 32_000, 1025, 1024),
            (40_000, 32_000, 8000, 7999),
            (500, 32_000, 8000, 500),
        ] {
            let sent = clamped(&thinking(budget, most), tokens, &[]);
            assert_eq!(sent, thinking(lower, tokens), "{budget} of {most}");
        }
        // Thinking on top of the output.
        for (budget, most, tokens, lower) in
            [(9000, 2000, 5000, (3000, 2000)), (9000, 2000, 2500, (1024, 1476))]
        {
            let sent = clamped(&thinking(budget, most), tokens, &[]);
            assert_eq!(sent, thinking(lower.0, lower.1), "{budget} above {most}");
        }
        let body = r#"{"messages":[],"max_tokens":900,"n_predict":5000,"options":{"num_predict":-1},"reasoning":{"max_tokens":4000}}"#;
        let lower = r#"{"messages":[],"max_tokens":900,"n_predict":2000,"options":{"num_predict":2000},"reasoning":{"max_tokens":1999}}"#;
        assert_eq!(clamped(body, 2000, &[]), lower);
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
