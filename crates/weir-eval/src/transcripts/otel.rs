//! Traces and logs of OpenTelemetry by its conventions for generative AI: OTLP as JSON, and single spans as SDKs
//! print them. Each call of a model is a request. Reads no files.
//!
//! What was sent stands in `gen_ai.input.messages`, of the span or of an event, or in one event for each message,
//! as older programs write it; OpenLLMetry has an attribute for each part of a message. Spans of agents and tools
//! sum up others, and are passed over.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::chat;
use super::logs::{self, decoded};
use super::{LineMembers, Recorded, RecordedExchange, as_text, quoted};
use weir_engine::wire::json;
use weir_engine::wire::usage::{Metered, Usage};

/// Operations that call a model with messages, and their name.
const OPERATIONS: [&str; 4] = ["chat", "text_completion", "generate_content", "completion"];
const OPERATION: [&str; 2] = ["gen_ai.operation.name", "llm.request.type"];
/// Name of the event that has what was sent.
const DETAILS: &str = "gen_ai.client.inference.operation.details";

/// What is read of a span or a record: a request, nothing, or the reason why it cannot be read.
type ReadSpan = Result<Option<Recorded>, &'static str>;

/// Attributes by their names, with values as JSON.
struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Attributes<'a> {
    /// Reads OTLP's list of keys and values, or an object.
    fn of(raw: Option<&'a str>) -> Self {
        let raw = raw.unwrap_or("{}");
        let listed = json::elements(raw).map(|list| {
            let pair = |own: &str| -> Option<(String, String)> {
                let key = json::string(json::member(own, "key")?)?.into_owned();
                Some((key, value(json::member(own, "value")?)))
            };
            let pairs = list.into_iter().filter_map(pair);
            pairs.map(|(key, value)| (key.into(), value.into())).collect()
        });
        let named = || {
            let all = json::members(raw).unwrap_or_default().into_iter();
            all.map(|(key, raw)| (key, Cow::Borrowed(raw))).collect()
        };
        Self(listed.unwrap_or_else(named))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, raw)| raw.as_ref())
    }

    fn text(&self, name: &str) -> Option<String> {
        json::string(self.get(name)?).map(Cow::into_owned)
    }

    /// Returns a count, which JSON may have as a text.
    fn count(&self, name: &str) -> Option<u64> {
        self.get(name)?.trim_matches('"').parse().ok()
    }

    /// Returns the attributes of each part of a list, such as `role` of `gen_ai.prompt.0.role`, in its order.
    fn parts(&self, list: &str) -> Vec<Attributes<'_>> {
        let mut parts = BTreeMap::<usize, Vec<_>>::new();
        for (name, raw) in &self.0 {
            let rest = name.strip_prefix(list).and_then(|own| own.strip_prefix('.'));
            let part = rest.and_then(|own| own.split_once('.'));
            let Some((number, name)) = part else { continue };
            let Ok(number) = number.parse() else { continue };
            parts.entry(number).or_default().push((name.into(), Cow::Borrowed(&**raw)));
        }
        parts.into_values().map(Attributes).collect()
    }

    /// Returns a value that may be a text with JSON.
    fn json(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).map(decoded).filter(|raw| json::elements(raw).is_some())
    }
}

/// Returns a value of OTLP as plain JSON.
fn value(raw: &str) -> String {
    let Some((kind, own)) = json::members(raw).and_then(|own| own.into_iter().next()) else {
        return "null".to_owned();
    };
    match &*kind {
        "arrayValue" => {
            let values = json::member(own, "values").and_then(json::elements).unwrap_or_default();
            format!("[{}]", values.into_iter().map(value).collect::<Vec<_>>().join(","))
        }
        "kvlistValue" => {
            let values = json::member(own, "values").and_then(json::elements).unwrap_or_default();
            let pair = |own: &str| {
                let inner = value(json::member(own, "value")?);
                Some(format!("{}:{inner}", json::member(own, "key")?))
            };
            format!("{{{}}}", values.into_iter().filter_map(pair).collect::<Vec<_>>().join(","))
        }
        _ => own.to_owned(),
    }
}

/// Returns the spans and records of a text of OTLP, or the only span; `None` if it has neither.
pub(crate) fn spans<'a>(line: &LineMembers<'a>, raw: &'a str) -> Option<Vec<&'a str>> {
    for [outer, middle, inner] in
        [["resourceSpans", "scopeSpans", "spans"], ["resourceLogs", "scopeLogs", "logRecords"]]
    {
        if let Some(resources) = line.get(outer).and_then(json::elements) {
            let lists = |raw: &'a str, name| {
                json::member(raw, name).and_then(json::elements).unwrap_or_default()
            };
            let scopes = resources.into_iter().flat_map(|own| lists(own, middle));
            return Some(scopes.flat_map(|own| lists(own, inner)).collect());
        }
    }
    let has_attributes = line.get("attributes").is_some_and(|own| own.contains("\"gen_ai."));
    has_attributes.then(|| vec![raw])
}

/// Reads a span, or a record of a log.
///
/// # Errors
///
/// If it calls a model, and what was sent is not there.
pub(crate) fn request(raw: &str, number: usize) -> ReadSpan {
    let Some(span) = LineMembers::of(raw) else { return Ok(None) };
    let is_details = |own: &LineMembers<'_>| {
        ["eventName", "event_name", "name"]
            .iter()
            .any(|name| own.text(name).as_deref() == Some(DETAILS))
    };
    let own = Attributes::of(span.get("attributes"));
    let operation = OPERATION.iter().find_map(|name| own.text(name));
    let is_call = operation.map_or_else(
        || own.get("gen_ai.request.model").is_some(),
        |name| OPERATIONS.contains(&name.as_str()),
    );
    if !is_call || (span.get("eventName").is_some() && !is_details(&span)) {
        return Ok(None);
    }
    let events = span.get("events").and_then(json::elements).unwrap_or_default();
    let events: Vec<_> = events.into_iter().filter_map(LineMembers::of).collect();
    let details = events.iter().find(|event| is_details(event));
    let details = Attributes::of(details.and_then(|event| event.get("attributes")));
    let of_either = |name| own.json(name).or_else(|| details.json(name));
    let list = of_either("gen_ai.input.messages").and_then(|raw| retold(&raw));
    let messages = list
        .or_else(|| of_events(&events))
        .or_else(|| of_prompt(&own))
        .ok_or("has no messages: what is sent is left out, unless the program records content")?;
    let system = of_either("gen_ai.system_instructions").and_then(|raw| instructions(&raw));
    let messages = match system {
        Some(system) => format!("[{system},{}", &messages[1..]),
        None => messages,
    };
    let usage = usage(&own);
    let id = own.text("gen_ai.response.id").or_else(|| span.text("spanId"));
    let exchange = RecordedExchange {
        at_ms: sent_ms(&span),
        model: own.text("gen_ai.response.model").or_else(|| own.text("gen_ai.request.model")),
        is_free: own.get("error.type").is_some() && usage.is_none(),
        reported: Metered { usage, ..Metered::default() },
        id: id.clone(),
        ..RecordedExchange::default()
    };
    let tools = of_either("gen_ai.tool.definitions");
    let id = id.unwrap_or_else(|| format!("span-{number}"));
    Ok(Some(logs::of_messages(id, &messages, tools.as_deref(), exchange)))
}

/// Returns when a span began, in milliseconds: OTLP counts nanoseconds, SDKs print dates.
fn sent_ms(span: &LineMembers<'_>) -> Option<u64> {
    let nanos = ["startTimeUnixNano", "timeUnixNano"].iter().find_map(|name| span.get(name));
    let nanos = nanos.and_then(|raw| raw.trim_matches('"').parse::<u64>().ok());
    let dates = ["start_time", "startTime"].iter().find_map(|name| span.get(name));
    nanos.map(|nanos| nanos / 1_000_000).or_else(|| super::time_ms(dates?))
}

/// Returns the usage of a call. Input counts what was cached; some leave it out.
fn usage(own: &Attributes<'_>) -> Option<Usage> {
    let count = |name: &str| own.count(&format!("gen_ai.usage.{name}"));
    let input = count("input_tokens").or_else(|| count("prompt_tokens"))?;
    let first = |names: &[&str]| names.iter().find_map(|name| count(name)).unwrap_or(0);
    let read = first(&["cache_read.input_tokens", "cache_read_input_tokens"]);
    let written = first(&[
        "cache_write.input_tokens",
        "cache_creation.input_tokens",
        "cache_creation_input_tokens",
    ]);
    let cached = read.saturating_add(written);
    Some(Usage {
        prompt_tokens: Some(if input < cached { input.saturating_add(cached) } else { input }),
        completion_tokens: count("output_tokens").or_else(|| count("completion_tokens")),
        cached_tokens: Some(read),
        cache_write_tokens: Some(written),
        ..Usage::default()
    })
}

/// Returns the messages that older programs write as one event each; `None` without any.
fn of_events(events: &[LineMembers<'_>]) -> Option<String> {
    let message = |event: &LineMembers<'_>| {
        let name = event.text("name")?;
        let role = name.strip_prefix("gen_ai.")?.strip_suffix(".message")?.to_owned();
        let own = Attributes::of(event.get("attributes"));
        let content = own.get("content").unwrap_or("null");
        let calls = own.json("tool_calls").map(|raw| format!(r#","tool_calls":{raw}"#));
        let id = own.get("id").filter(|_| role == "tool");
        let id = id.map(|raw| format!(r#","tool_call_id":{raw}"#));
        let (role, rest) = (quoted(&role), calls.or(id).unwrap_or_default());
        Some(format!(r#"{{"role":{role},"content":{content}{rest}}}"#))
    };
    let all: Vec<String> = events.iter().filter_map(message).collect();
    (!all.is_empty()).then(|| format!("[{}]", all.join(",")))
}

/// Returns the messages of OpenLLMetry's attributes; `None` without any.
fn of_prompt(own: &Attributes<'_>) -> Option<String> {
    let message = |own: Attributes<'_>| {
        let role = own.get("role")?;
        let calls = own.parts("tool_calls").into_iter().map(|call| {
            let (id, name) = (call.text("id"), call.text("name"));
            chat::call(&id.unwrap_or_default(), &name.unwrap_or_default(), call.get("arguments"))
        });
        let calls: Vec<String> = calls.collect();
        let id = own.get("tool_call_id").map(|raw| format!(r#","tool_call_id":{raw}"#));
        let rest = chat::members(&calls) + &id.unwrap_or_default();
        // Parts are a text with JSON.
        let is_part = |raw: &&str| json::member(raw, "type").is_some();
        let is_list = |raw: &Cow<'_, str>| json::elements(raw)?.first().map(is_part);
        let parts = own.json("content").filter(|raw| is_list(raw) == Some(true));
        let content = parts.or_else(|| own.get("content").map(Cow::Borrowed));
        let content = content.unwrap_or(Cow::Borrowed("null"));
        Some(format!(r#"{{"role":{role},"content":{content}{rest}}}"#))
    };
    let all: Vec<String> = own.parts("gen_ai.prompt").into_iter().filter_map(message).collect();
    (!all.is_empty()).then(|| format!("[{}]", all.join(",")))
}

fn instructions(raw: &str) -> Option<String> {
    let parts = json::elements(raw)?;
    let texts: Vec<String> = parts.into_iter().filter_map(shown).collect();
    let content = chat::content(&texts);
    (!texts.is_empty()).then(|| format!(r#"{{"role":"system","content":{content}}}"#))
}

/// Returns a list of messages as chat completions have it: with parts by these conventions, or as it is. A text
/// is one message of the user; `None` for other JSON.
pub(crate) fn retold(raw: &str) -> Option<String> {
    if serde_json::from_str::<serde::de::IgnoredAny>(raw).is_err() {
        let raw = quoted(raw);
        return Some(format!(r#"[{{"role":"user","content":{raw}}}]"#));
    }
    let list = json::elements(raw).filter(|list| !list.is_empty())?;
    let mut all = Vec::with_capacity(list.len());
    for message in list {
        let role = json::member(message, "role").filter(|role| role.starts_with('"'))?;
        match json::member(message, "parts").and_then(json::elements) {
            Some(parts) => add(role, &parts, &mut all),
            None => all.push(message.to_owned()),
        }
    }
    (!all.is_empty()).then(|| format!("[{}]", all.join(",")))
}

/// Adds a message with parts. Each result of a call is a message of its own.
fn add(role: &str, parts: &[&str], all: &mut Vec<String>) {
    let parts: Vec<(LineMembers<'_>, &str)> =
        parts.iter().filter_map(|raw| Some((LineMembers::of(raw)?, *raw))).collect();
    let is = |part: &LineMembers<'_>, kind: &str| part.text("type").as_deref() == Some(kind);
    for (part, _) in parts.iter().filter(|(part, _)| is(part, "tool_call_response")) {
        let id = quoted(&part.text("id").unwrap_or_default());
        let response = part.get("response").or(part.get("result")).unwrap_or(r#""""#);
        let content = as_text(response);
        all.push(format!(r#"{{"role":"tool","tool_call_id":{id},"content":{content}}}"#));
    }
    let calls = parts.iter().filter(|(part, _)| is(part, "tool_call")).map(|(part, _)| {
        let (id, name) = (part.text("id").unwrap_or_default(), part.text("name"));
        chat::call(&id, &name.unwrap_or_default(), part.get("arguments"))
    });
    let calls: Vec<String> = calls.collect();
    let texts: Vec<String> = parts.iter().filter_map(|(_, raw)| shown(raw)).collect();
    if texts.is_empty() && calls.is_empty() {
        return;
    }
    let content = chat::content(&texts);
    let calls = chat::members(&calls);
    all.push(format!(r#"{{"role":{role},"content":{content}{calls}}}"#));
}

/// Returns a text or a picture as a part of a chat.
fn shown(raw: &str) -> Option<String> {
    let part = LineMembers::of(raw)?;
    match part.text("type")?.as_str() {
        "text" => Some(chat::text(part.get("content")?)),
        "blob" => chat::picture(&part.text("mime_type")?, &part.text("content")?),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
