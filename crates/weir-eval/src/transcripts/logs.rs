//! Logs of requests: a request body, a line of an OpenAI batch file, of LiteLLM's logs, of Helicone's export or of
//! another log that has the body in `body` or `request`, and HAR files. Reads no files.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::{LineMembers, Recorded, RecordedExchange, quoted, reported, time_ms, usage_in};
use weir_engine::wire::usage::{Metered, Usage};
use weir_engine::wire::{Protocol, json};

/// Maximum nesting of a body in the members of a log.
const MOST_WRAPPERS: u8 = 2;

/// First status of answers that failed.
const FAILED: u64 = 400;
/// Names of the time at which a request was sent.
const TIMES: [&str; 4] = ["startTime", "start_time", "timestamp", "request_created_at"];
/// Names of a request's body, and of its answer. LiteLLM's database has the body of a chat apart, and nothing
/// among its messages.
const BODIES: [&str; 4] = ["body", "request", "request_body", "proxy_server_request"];
const ANSWERS: [&str; 2] = ["response", "response_body"];
/// Helicone's name of no answer, in a member that names the one that its cache gave.
const NO_ANSWER: &str = "00000000-0000-0000-0000-000000000000";

/// Reads a conversation or a request from an object; `None` if it has no messages. `number` names one
/// without a name of its own.
pub(crate) fn request(text: &str, number: usize, protocol: Option<Protocol>) -> Option<Recorded> {
    nested(text, number, protocol, MOST_WRAPPERS)
}

fn nested(text: &str, number: usize, protocol: Option<Protocol>, wrappers: u8) -> Option<Recorded> {
    serde_json::from_str::<&RawValue>(text).ok()?;
    let line = LineMembers::of(text)?;
    let id = line.text("custom_id").or_else(|| id(&line));
    let id = id.unwrap_or_else(|| format!("line-{number}"));
    let messages = line.get("messages").filter(|raw| !is_empty(&decoded(raw)));
    if let Some(list) = messages.filter(|_| is_log(&line)) {
        let body = body(&line, list)?;
        let protocol = protocol.unwrap_or_else(|| Protocol::recognise(&body));
        let exchanges = vec![exchange(&line)];
        return Some(Recorded {
            id,
            protocol,
            body,
            is_request: true,
            exchanges,
            ..Recorded::default()
        });
    }
    if let Some(list) = messages.or_else(|| line.get("input")) {
        let protocol = protocol.unwrap_or_else(|| Protocol::recognise(text));
        // Without a name, one with a model or that waits for an answer is a request. Others are whole
        // conversations.
        let waits = line.get("model").is_some() || !ends_with_answer(list);
        let is_request = line.text("id").is_none() && waits;
        let body = text.to_owned();
        let exchanges = if is_request { vec![exchange(&line)] } else { Vec::new() };
        return Some(Recorded { id, protocol, body, is_request, exchanges, ..Recorded::default() });
    }
    let inner = BODIES.iter().find_map(|name| line.get(name)).filter(|_| wrappers > 0)?;
    let found = nested(&decoded(inner), number, protocol, wrappers - 1)?;
    let mut own = exchange(&line);
    if let Some(inner) = found.exchanges.first() {
        own.model = own.model.or_else(|| inner.model.clone());
        own.at_ms = own.at_ms.or(inner.at_ms);
        if own.reported.usage.is_none() {
            own.reported = inner.reported.clone();
        }
    }
    if line.get("custom_id").is_some() && line.get("url").is_some() {
        own.reported.service_tier = Some("batch".to_owned());
    }
    Some(Recorded { id, is_request: true, exchanges: vec![own], ..found })
}

/// Returns a request of these messages, as chat completions or Messages have them.
pub(crate) fn of_messages(
    id: String,
    messages: &str,
    tools: Option<&str>,
    exchange: RecordedExchange,
) -> Recorded {
    let model = exchange.model.as_deref().map(|model| format!(r#""model":{},"#, quoted(model)));
    let tools = tools.filter(|raw| json::elements(raw).is_some());
    let tools = tools.map(|raw| format!(r#""tools":{raw},"#)).unwrap_or_default();
    let body = format!(r#"{{{}{tools}"messages":{messages}}}"#, model.unwrap_or_default());
    let protocol = Protocol::recognise(&body);
    let exchanges = vec![exchange];
    Recorded { id, protocol, body, is_request: true, exchanges, ..Recorded::default() }
}

/// Returns why a record with none of these is no request.
pub(crate) fn reason(line: &LineMembers<'_>) -> &'static str {
    let has = |name| line.get(name).is_some();
    match has("messages") {
        _ if has("request_created_at") => {
            "has no bodies: Helicone exports them with --include-body"
        }
        _ if has("call_type") => {
            "has no messages: LiteLLM keeps what is sent if store_prompts_in_spend_logs is on"
        }
        true => "has no messages",
        false => "has neither messages nor input",
    }
}

/// Whether JSON has nothing in it.
fn is_empty(raw: &str) -> bool {
    let inner = raw.trim().strip_prefix(['[', '{']).and_then(|raw| raw.strip_suffix([']', '}']));
    inner.unwrap_or(raw).trim().is_empty()
}

/// Returns what a text has, or a member as it is.
pub(crate) fn decoded(raw: &str) -> Cow<'_, str> {
    json::string(raw).unwrap_or(Cow::Borrowed(raw))
}

fn id(line: &LineMembers<'_>) -> Option<String> {
    line.text("request_id").or_else(|| line.text("id"))
}

/// Whether a list of messages ends with one of the assistant's.
fn ends_with_answer(list: &str) -> bool {
    let last = json::elements(list).and_then(|all| all.last().copied());
    let role = last.and_then(|raw| json::member(raw, "role")).and_then(json::string);
    role.is_some_and(|role| role == "assistant")
}

/// Whether it is a record about a request, rather than the request itself.
pub(crate) fn is_log(line: &LineMembers<'_>) -> bool {
    let names =
        ["call_type", "request_id", "proxy_server_request"].iter().chain(&ANSWERS).chain(&TIMES);
    names.into_iter().any(|name| line.get(name).is_some())
        || usage_in(line.get("usage")).usage.is_some()
}

/// Returns the request body, which LiteLLM spreads over the line; `None` if it has no messages.
fn body(line: &LineMembers<'_>, raw: &str) -> Option<String> {
    let messages = match decoded(raw) {
        // Its calls of Responses have the input there, which may be a text.
        text if raw.starts_with('"') && !text.trim_start().starts_with('[') => {
            Cow::Owned(format!(r#"[{{"role":"user","content":{raw}}}]"#))
        }
        list => Some(list).filter(|_| raw.starts_with(['"', '[']))?,
    };
    let of_parameters = || json::member(line.get("model_parameters")?, "tools");
    let tools = line.get("tools").or_else(of_parameters);
    let members = [("model", line.get("model")), ("system", line.get("system")), ("tools", tools)];
    let members = members.into_iter().filter_map(|(name, raw)| Some((name, raw?)));
    let head: String = members.map(|(name, raw)| format!(r#""{name}":{raw},"#)).collect();
    Some(format!(r#"{{{head}"messages":{messages}}}"#))
}

fn exchange(line: &LineMembers<'_>) -> RecordedExchange {
    let count = |name| line.get(name).and_then(json::count);
    let of_metadata = || json::member(line.get("metadata")?, "usage_object");
    let totals = || {
        let prompt_tokens = count("prompt_tokens").filter(|tokens| *tokens > 0)?;
        let cached_tokens = count("prompt_cache_read_tokens");
        let cache_write_tokens = count("prompt_cache_write_tokens");
        // Anthropic counts what was cached apart.
        let is_apart = line.text("provider").is_some_and(|own| own == "ANTHROPIC");
        let cached = [cached_tokens, cache_write_tokens].into_iter().flatten().filter(|_| is_apart);
        Some(Usage {
            prompt_tokens: Some(cached.fold(prompt_tokens, u64::saturating_add)),
            completion_tokens: count("completion_tokens"),
            cached_tokens,
            cache_write_tokens,
            ..Usage::default()
        })
    };
    let response = ANSWERS.iter().find_map(|name| line.get(name)).unwrap_or_default();
    let mut reported = answered(response);
    let usage = reported.usage.or_else(|| usage_in(line.get("usage")).usage);
    let usage = usage.or_else(|| usage_in(of_metadata()).usage);
    reported.usage = usage.or_else(totals);
    let is = |name, word| line.get(name).is_some_and(|raw| is_word(raw, word));
    let status_in = |name| json::member(response, name).and_then(json::count);
    let status = count("status").or_else(|| count("response_status"));
    let status = status.or_else(|| status_in("status")).or_else(|| status_in("status_code"));
    let kept = line.text("cache_reference_id").filter(|own| own != NO_ANSWER);
    RecordedExchange {
        at_ms: TIMES.into_iter().find_map(|name| time_ms(line.get(name)?)),
        model: line.text("model"),
        id: id(line),
        is_free: is("cache_hit", "true")
            || kept.is_some()
            || has_failed(&reported, if is("status", "failure") { Some(FAILED) } else { status }),
        reported,
        sent: 0,
    }
}

/// Whether an answer with a status failed, and reports no tokens.
fn has_failed(reported: &Metered, status: Option<u64>) -> bool {
    let usage = reported.usage.unwrap_or_default();
    let is_billed = usage.prompt_tokens > Some(0) || usage.completion_tokens > Some(0);
    (reported.failed || status.is_some_and(|status| status >= FAILED)) && !is_billed
}

/// Whether a member is a word, as itself or as a text.
fn is_word(raw: &str, word: &str) -> bool {
    raw.trim_matches('"').eq_ignore_ascii_case(word)
}

/// Returns what an answer reports, or the body of a recorded one. Either may be a text.
fn answered(raw: &str) -> Metered {
    let answer = decoded(raw);
    let own = reported(&answer);
    let body = json::member(&answer, "body").filter(|_| own.usage.is_none());
    body.map(|body| reported(&decoded(body))).unwrap_or(own)
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
    let response = json::member(raw, "response").unwrap_or_default();
    let content = json::member(response, "content").unwrap_or_default();
    let answer = json::member(content, "text").and_then(json::string).unwrap_or_default();
    let is_encoded = json::member(content, "encoding") == Some("\"base64\"");
    let decoded = is_encoded.then(|| STANDARD.decode(answer.as_bytes()).ok()).flatten();
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let reported = reported(decoded.as_deref().unwrap_or(&answer));
    let status = json::member(response, "status").and_then(json::count);
    let exchange = RecordedExchange {
        at_ms: json::member(raw, "startedDateTime").and_then(time_ms),
        model: json::member(&found.body, "model").and_then(json::string).map(Into::into),
        is_free: has_failed(&reported, status),
        reported,
        ..RecordedExchange::default()
    };
    let id = format!("entry-{number}");
    Some(Recorded { id, is_request: true, exchanges: vec![exchange], ..found })
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
    use crate::recorded::{ReadText, TextForm, read};

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
            let usage = own.reported.usage.unwrap_or_default();
            assert_eq!((own.at_ms, usage.prompt_tokens, usage.cached_tokens), expected, "{line}");
        }
        let without = r#"{"request_id":"r","call_type":"acompletion","messages":{},"response":{}}"#;
        assert_eq!(request(without, 1, None), None);
    }

    #[test]
    fn litellm_has_the_body_of_a_chat_apart() {
        let body = format!(r#"{{"model":"m","tools":[],"messages":{MESSAGES}}}"#);
        let usage = r#"{"prompt_tokens":9,"completion_tokens":2}"#;
        let row = |messages: &str, body: &str| {
            format!(
                r#"{{"request_id":"r","call_type":"acompletion","model":"m","startTime":60.0,"messages":{messages},"response":{{"usage":{usage}}},"proxy_server_request":{body}}}"#
            )
        };
        let rows = [
            row("{}", &body),
            row(r#""{}""#, &quoted(&body)),
            row("[]", &format!(r#"{{"url":"u","body":{body}}}"#)),
        ];
        let page = format!(r#"{{"data":[{}],"total":1}}"#, rows[0]);
        for text in rows.iter().cloned().chain([format!("[{}]", rows[0]), page]) {
            let found = read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
            let [own] = &found.recorded[..] else { panic!("{text}: one request") };
            assert_eq!((own.id.as_str(), own.body.as_str()), ("r", body.as_str()), "{text}");
            assert_eq!((own.is_request, own.exchanges[0].prompt_tokens()), (true, Some(9)));
        }
        for bare in ["{}", r#""{}""#, "[]", r#""""#] {
            let row = row(bare, "{}");
            for text in [row.clone(), format!("[{row}]")] {
                let error = read(&text, None).expect_err(&text);
                assert!(error.starts_with("Line 1 has no messages: LiteLLM"), "{text}: {error}");
            }
        }
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
        let ReadText { form, recorded: found, .. } = read(&text, None).expect("an archive");
        assert_eq!((form, found.len(), found[0].id.as_str()), (TextForm::Har, 1, "entry-1"));
        let own = &found[0].exchanges[0];
        let usage = own.reported.usage.expect("the stream reports it");
        assert_eq!((own.at_ms, own.model.as_deref()), (Some(60_000), Some("m")));
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(9), Some(0)));
    }

    #[test]
    fn usage_is_read_wherever_a_log_has_it() {
        let usage = r#"{"input_tokens":9,"output_tokens":2}"#;
        let body = format!(r#"{{"model":"m","messages":{MESSAGES}}}"#);
        let stream = format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"usage\":{usage}}}}}\n\n"
        );
        let answer = format!(r#"{{"service_tier":"flex","usage":{usage}}}"#);
        for (line, tier) in [
            (format!(r#"{{"request":{body},"response":{}}}"#, quoted(&stream)), None),
            (format!(r#"{{"request":{body},"response":{answer}}}"#), Some("flex")),
            (
                format!(r#"{{"request":{body},"response":{{"body":{}}}}}"#, quoted(&answer)),
                Some("flex"),
            ),
            (format!(r#"{{"id":"q","model":"m","messages":{MESSAGES},"usage":{usage}}}"#), None),
            // LiteLLM has the input of its calls of Responses among the messages.
            (
                format!(
                    r#"{{"id":"q","call_type":"aresponses","model":"m","messages":"say \"x\"","response":{answer}}}"#
                ),
                Some("flex"),
            ),
        ] {
            let found = request(&line, 1, None).unwrap_or_else(|| panic!("{line}"));
            let own = &found.exchanges[0];
            assert!(found.is_request && !own.is_free, "{line}");
            assert_eq!(own.prompt_tokens(), Some(9), "{line}");
            assert_eq!(own.reported.service_tier.as_deref(), tier, "{line}");
            let read = found.protocol.read(found.body.as_bytes(), 9).expect("readable");
            assert_eq!(read.messages.len(), 1, "{line}");
        }
    }

    #[test]
    fn what_nobody_bills_is_known() {
        let body = format!(r#"{{"model":"m","messages":{MESSAGES}}}"#);
        let usage = r#"{"prompt_tokens":9,"completion_tokens":2}"#;
        for (rest, is_free) in [
            (r#""status":429,"response":{}"#.to_owned(), true),
            (r#""status":"failure","response":{}"#.to_owned(), true),
            (r#""response":{"error":{"message":"slow"}}"#.to_owned(), true),
            (r#""response":{"status_code":500,"body":"x"}"#.to_owned(), true),
            (format!(r#""response":{{"usage":{usage}}},"cache_hit":true"#), true),
            (r#""response":{},"cache_hit":"True""#.to_owned(), true),
            (format!(r#""response":{{"usage":{usage}}},"cache_hit":"False""#), false),
            // It failed on its way back.
            (format!(r#""status":"failure","response":{{"usage":{usage}}}"#), false),
            (r#""status":200,"response":{}"#.to_owned(), false),
            (r#""status":"success","response":{}"#.to_owned(), false),
        ] {
            let line = format!(r#"{{"request":{body},{rest}}}"#);
            let found = request(&line, 1, None).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(found.exchanges[0].is_free, is_free, "{line}");
        }
        for (status, content, is_free, prompt_tokens) in [
            (429, r#"{"text":"{\"error\":{}}"}"#.to_owned(), true, None),
            (200, r#"{"text":"{}"}"#.to_owned(), false, None),
            (
                200,
                format!(
                    r#"{{"encoding":"base64","text":"{}"}}"#,
                    STANDARD.encode(format!(r#"{{"usage":{usage}}}"#))
                ),
                false,
                Some(9),
            ),
        ] {
            let text = format!(
                r#"{{"log":{{"entries":[{{"request":{{"postData":{{"text":{}}}}},"response":{{"status":{status},"content":{content}}}}}]}}}}"#,
                quoted(&body)
            );
            let found = read(&text, None).expect("an archive").recorded;
            let own = &found[0].exchanges[0];
            assert_eq!((own.is_free, own.prompt_tokens()), (is_free, prompt_tokens), "{text}");
        }
    }
}
