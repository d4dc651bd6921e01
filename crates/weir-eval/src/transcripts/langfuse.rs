//! Exports of Langfuse: observations, alone or within their traces. Each generation is a request. Reads no files.

use super::logs::{self, decoded};
use super::{LineMembers, Recorded, RecordedExchange, otel, time_ms};
use weir_engine::wire::json;
use weir_engine::wire::usage::{Metered, Usage};

/// Whether these are the members of an observation.
pub(crate) fn is_observation(line: &LineMembers<'_>) -> bool {
    let has = |name| line.get(name).is_some();
    has("traceId") && has("startTime") && has("type")
}

/// Reads an observation; `None` if no model was called for it.
///
/// # Errors
///
/// If its input is no conversation.
pub(crate) fn request(
    line: &LineMembers<'_>,
    number: usize,
) -> Result<Option<Recorded>, &'static str> {
    if line.get("type") != Some(r#""GENERATION""#) {
        return Ok(None);
    }
    let input = decoded(line.get("input").ok_or("has no input")?);
    let messages = json::member(&input, "messages").unwrap_or(&input);
    let messages = otel::retold(messages).ok_or("has an input without messages")?;
    let model = line.text("model").or_else(|| line.text("providedModelName"));
    let tools = json::member(&input, "tools");
    let usage = line.get("usageDetails").and_then(usage).or_else(|| old_usage(line));
    let exchange = RecordedExchange {
        at_ms: line.get("startTime").and_then(time_ms),
        is_free: line.get("level") == Some(r#""ERROR""#) && usage.is_none(),
        reported: Metered { usage, ..Metered::default() },
        id: line.text("id"),
        model,
        ..RecordedExchange::default()
    };
    let id = line.text("id").unwrap_or_else(|| format!("line-{number}"));
    Ok(Some(logs::of_messages(id, &messages, tools, exchange)))
}

/// Returns usage by Langfuse's names: each is a part of input or output, and no other's, unless input and output
/// alone are all.
fn usage(raw: &str) -> Option<Usage> {
    let details: Vec<(_, u64)> = json::members(raw)?
        .into_iter()
        .filter_map(|(name, raw)| Some((name, json::count(raw)?)))
        .collect();
    let sum = |is: &dyn Fn(&str) -> bool| -> u64 {
        details.iter().filter(|(name, _)| is(name)).fold(0, |all, own| all.saturating_add(own.1))
    };
    let is_cache = |name: &str| name.contains("cache");
    let is_write =
        |name: &str| is_cache(name) && (name.contains("creation") || name.contains("write"));
    let output = sum(&|name| name.starts_with("output"));
    let all_input = sum(&|name| name.starts_with("input") || is_cache(name));
    let bare = |word: &str| sum(&|name| name == word);
    let is_inclusive = bare("total") > 0 && bare("input") + bare("output") == bare("total");
    let prompt = if is_inclusive { bare("input") } else { all_input };
    (prompt > 0 || output > 0).then(|| Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(if is_inclusive { bare("output") } else { output }),
        cached_tokens: Some(sum(&|name| is_cache(name) && !is_write(name))),
        cache_write_tokens: Some(sum(&is_write)),
        ..Usage::default()
    })
}

/// Returns the usage that exports had before they had details. It does not say what was cached.
fn old_usage(line: &LineMembers<'_>) -> Option<Usage> {
    let count = |raw: Option<&str>| raw.and_then(json::count).filter(|tokens| *tokens > 0);
    let of_usage = |name| count(json::member(line.get("usage")?, name));
    let prompt_tokens = of_usage("input").or_else(|| count(line.get("promptTokens")));
    let completion_tokens = of_usage("output").or_else(|| count(line.get("completionTokens")));
    prompt_tokens?;
    Some(Usage { prompt_tokens, completion_tokens, ..Usage::default() })
}

#[cfg(test)]
mod tests;
