//! Logs of requests: a request body, a line of an OpenAI batch file, of LiteLLM's logs or of another log that
//! has the body in `body` or `request`, and HAR files. Reads no files.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Recorded, RecordedExchange, quoted, time_ms};
use weir_engine::wire::usage::{Meter, Usage};
use weir_engine::wire::{Protocol, json};

/// Maximum nesting of a body in the members of a log.
const MOST_WRAPPERS: u8 = 2;

/// Members of a request body, and of logs around one.
#[derive(Deserialize)]
struct Line<'a> {
    id: Option<String>,
    custom_id: Option<String>,
    request_id: Option<String>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(rename = "startTime", alias = "start_time", alias = "timestamp", borrow)]
    start: Option<&'a RawValue>,
    #[serde(borrow)]
    call_type: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    model_parameters: Option<&'a RawValue>,
}

/// Reads a conversation or a request from an object; `None` if it has no messages. `number` names one
/// without a name of its own.
pub(crate) fn request(text: &str, number: usize, protocol: Option<Protocol>) -> Option<Recorded> {
    nested(text, number, protocol, MOST_WRAPPERS)
}

fn nested(text: &str, number: usize, protocol: Option<Protocol>, wrappers: u8) -> Option<Recorded> {
    let line: Line<'_> = serde_json::from_str(text).ok()?;
    let is_list = |raw: &&RawValue| matches!(raw.get().as_bytes().first(), Some(b'[' | b'"'));
    let id = line.custom_id.as_ref().or(line.request_id.as_ref()).or(line.id.as_ref());
    let id = id.cloned().unwrap_or_else(|| format!("line-{number}"));
    if line.messages.is_some() && line.is_log() {
        let list = line.messages.filter(is_list)?;
        let body = line.body(list);
        let protocol = protocol.unwrap_or_else(|| Protocol::recognise(&body));
        return Some(Recorded {
            id,
            protocol,
            body,
            is_request: true,
            exchanges: vec![line.exchange()],
            ..Recorded::default()
        });
    }
    if line.messages.or(line.input).is_some() {
        let protocol = protocol.unwrap_or_else(|| Protocol::recognise(text));
        // Without a name, one that waits for an answer is a request. Others are whole conversations.
        let list = line.messages.or(line.input);
        let is_request = line.id.is_none() && list.is_some_and(|raw| !ends_with_answer(raw.get()));
        let body = text.to_owned();
        let exchanges = if is_request { vec![line.exchange()] } else { Vec::new() };
        return Some(Recorded { id, protocol, body, is_request, exchanges, ..Recorded::default() });
    }
    let inner = line.body.or(line.request).filter(|_| wrappers > 0)?;
    let decoded = json::string(inner.get());
    let inner = decoded.as_deref().unwrap_or(inner.get());
    let found = nested(inner, number, protocol, wrappers - 1)?;
    let mut exchange = line.exchange();
    if let Some(own) = found.exchanges.first() {
        exchange.model = exchange.model.or_else(|| own.model.clone());
        exchange.usage = exchange.usage.or(own.usage);
        exchange.at_ms = exchange.at_ms.or(own.at_ms);
    }
    Some(Recorded { id, is_request: true, exchanges: vec![exchange], ..found })
}

/// Whether a list of messages ends with one of the assistant's.
fn ends_with_answer(list: &str) -> bool {
    let last = json::elements(list).and_then(|all| all.last().copied());
    let role = last.and_then(|raw| json::member(raw, "role")).and_then(json::string);
    role.is_some_and(|role| role == "assistant")
}

impl Line<'_> {
    /// Whether it is a record about a request, rather than the request itself.
    fn is_log(&self) -> bool {
        self.call_type.or(self.response).or(self.start).is_some() || self.request_id.is_some()
    }

    /// Returns the request body, which LiteLLM spreads over the line.
    fn body(&self, messages: &RawValue) -> String {
        let decoded = json::string(messages.get());
        let messages = decoded.as_deref().unwrap_or(messages.get());
        let tools = self.model_parameters.and_then(|raw| json::member(raw.get(), "tools"));
        let members = [("model", self.model.map(RawValue::get)), ("tools", tools)];
        let members = members.into_iter().filter_map(|(name, raw)| Some((name, raw?)));
        let head: String = members.map(|(name, raw)| format!(r#""{name}":{raw},"#)).collect();
        format!(r#"{{{head}"messages":{messages}}}"#)
    }

    fn exchange(&self) -> RecordedExchange {
        let answered = self.response.map(RawValue::get).and_then(answered);
        let of_metadata = || {
            let usage = json::member(self.metadata?.get(), "usage_object")?;
            reported(&format!(r#"{{"usage":{usage}}}"#))
        };
        let totals = || {
            let count = |raw: Option<&RawValue>| raw.and_then(|raw| json::count(raw.get()));
            let prompt_tokens = count(self.prompt_tokens).filter(|tokens| *tokens > 0)?;
            let completion_tokens = count(self.completion_tokens);
            let prompt_tokens = Some(prompt_tokens);
            Some(Usage { prompt_tokens, completion_tokens, ..Usage::default() })
        };
        RecordedExchange {
            at_ms: self.start.and_then(|raw| time_ms(raw.get())),
            model: self.model.and_then(|raw| json::string(raw.get())).map(Into::into),
            usage: answered.or_else(of_metadata).or_else(totals),
            earlier: Vec::new(),
        }
    }
}

/// Returns the usage in an answer, or in the body of a recorded one.
fn answered(raw: &str) -> Option<Usage> {
    let decoded = json::string(raw);
    let raw = decoded.as_deref().unwrap_or(raw);
    reported(raw).or_else(|| reported(json::member(raw, "body")?))
}

/// Returns the reported usage; all that it does not name as cached was not.
fn reported(body: &str) -> Option<Usage> {
    let usage = Usage::of(body.as_bytes()).filter(|usage| usage.prompt_tokens.is_some())?;
    Some(Usage { cached_tokens: usage.cached_tokens.or(Some(0)), ..usage })
}

/// Returns the requests to models of an HTTP archive; `None` if the text is none.
pub(crate) fn har(text: &str, protocol: Option<Protocol>) -> Option<Vec<Recorded>> {
    let entries = json::member(json::member(text, "log")?, "entries")?;
    let entries = json::elements(entries)?.into_iter().enumerate();
    Some(entries.filter_map(|(number, raw)| entry(raw, number + 1, protocol)).collect())
}

fn entry(raw: &str, number: usize, protocol: Option<Protocol>) -> Option<Recorded> {
    let posted = json::member(json::member(raw, "request")?, "postData")?;
    let body = json::string(json::member(posted, "text")?)?;
    let found = request(&body, number, protocol)?;
    let content = json::member(raw, "response").and_then(|raw| json::member(raw, "content"));
    let usage = content.and_then(|content| {
        let kind = json::string(json::member(content, "mimeType")?)?;
        let mut meter = Meter::new(Some(&kind));
        meter.feed(json::string(json::member(content, "text")?)?.as_bytes());
        let usage = meter.finish().usage.filter(|usage| usage.prompt_tokens.is_some())?;
        Some(Usage { cached_tokens: usage.cached_tokens.or(Some(0)), ..usage })
    });
    let model = json::member(&found.body, "model").and_then(json::string).map(Into::into);
    let at_ms = json::member(raw, "startedDateTime").and_then(time_ms);
    let exchanges = vec![RecordedExchange { at_ms, model, usage, earlier: Vec::new() }];
    Some(Recorded { id: format!("entry-{number}"), is_request: true, exchanges, ..found })
}

/// Reads a bare list of messages or items as a request.
pub(crate) fn list(text: &str, protocol: Protocol) -> Recorded {
    let name = if protocol == Protocol::Responses { "input" } else { "messages" };
    let body = format!("{{{}:{text}}}", quoted(name));
    Recorded { id: "request".to_owned(), protocol, body, is_request: true, ..Recorded::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::{TextForm, read};

    const MESSAGES: &str = r#"[{"role":"user","content":"x"}]"#;

    #[test]
    fn a_line_of_each_log_is_one_request() {
        let body = format!(r#"{{"model":"m","messages":{MESSAGES}}}"#);
        let usage = r#"{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}"#;
        let all = (Some(60_000), Some(9), Some(4));
        for (line, id, expected) in [
            (
                format!(
                    r#"{{"custom_id":"c1","method":"POST","url":"/v1/chat/completions","body":{body}}}"#
                ),
                "c1",
                (None, None, None),
            ),
            (
                format!(r#"{{"request":{body},"response":{{"usage":{usage}}},"timestamp":60}}"#),
                "line-1",
                all,
            ),
            (
                format!(
                    r#"{{"request":{{"body":{}}},"response":{{"body":{{"usage":{usage}}}}},"timestamp":60}}"#,
                    quoted(&body)
                ),
                "line-1",
                all,
            ),
            // LiteLLM: its standard payload, and its database with texts for objects.
            (
                format!(
                    r#"{{"id":"i","call_type":"acompletion","model":"m","messages":{MESSAGES},"startTime":60.0,"response":{{"usage":{usage}}},"prompt_tokens":7}}"#
                ),
                "i",
                all,
            ),
            (
                format!(
                    r#"{{"request_id":"r","call_type":"acompletion","model":"m","messages":{},"startTime":"1970-01-01 00:01:00","response":"{{}}","metadata":{{"usage_object":{usage}}}}}"#,
                    quoted(MESSAGES)
                ),
                "r",
                all,
            ),
            (
                format!(
                    r#"{{"request_id":"r","model":"m","messages":{MESSAGES},"prompt_tokens":7,"completion_tokens":1}}"#
                ),
                "r",
                (None, Some(7), None),
            ),
        ] {
            let found = request(&line, 1, None).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((found.id.as_str(), found.is_request), (id, true), "{line}");
            let read = found.protocol.read(found.body.as_bytes(), 9).expect("readable");
            assert_eq!((read.messages.len(), read.model.as_deref()), (1, Some("m")), "{line}");
            let [own] = &found.exchanges[..] else { panic!("{line}: one request") };
            let usage = own.usage.unwrap_or_default();
            assert_eq!((own.at_ms, usage.prompt_tokens, usage.cached_tokens), expected, "{line}");
        }
        let without = r#"{"request_id":"r","call_type":"acompletion","messages":{},"response":{}}"#;
        assert_eq!(request(without, 1, None), None);
    }

    #[test]
    fn an_archive_has_the_requests_to_models() {
        let entry = |body: &str, content: &str| {
            format!(
                r#"{{"startedDateTime":"1970-01-01T00:01:00Z","request":{{"postData":{{"text":{}}}}},"response":{{"content":{content}}}}}"#,
                quoted(body)
            )
        };
        let body = format!(r#"{{"model":"m","messages":{MESSAGES}}}"#);
        let stream = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        let text = format!(
            r#"{{"log":{{"version":"1.2","entries":[{},{{"request":{{"url":"/"}}}},{}]}}}}"#,
            entry(
                &body,
                &format!(r#"{{"mimeType":"text/event-stream","text":{}}}"#, quoted(stream))
            ),
            entry("a=1", "{}"),
        );
        let (form, found) = read(&text, None).expect("an archive");
        assert_eq!((form, found.len(), found[0].id.as_str()), (TextForm::Har, 1, "entry-1"));
        let own = &found[0].exchanges[0];
        let usage = own.usage.expect("the stream reports it");
        assert_eq!((own.at_ms, own.model.as_deref()), (Some(60_000), Some("m")));
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(9), Some(0)));
    }
}
