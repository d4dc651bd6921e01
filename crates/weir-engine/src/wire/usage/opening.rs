//! Beginning of an answer: whether it failed before its first content. Keeps none of the answer.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde_json::Value;

use super::skim::Skim;
use super::{Answering, Notes, Read};
use crate::wire::sse::{Event, Splitter};

/// Maximum size of an answer's beginning that may be a failure; what is longer has content.
pub const MAX_OPENING_BYTES: usize = 64 << 10;
/// Status of a failure that gives none: the provider is overloaded.
const OVERLOADED: u16 = 529;

/// Statuses of errors, by the types and codes that providers give instead.
const STATUSES: [(&str, u16); 21] = [
    ("invalid_request_error", 400),
    ("invalid_request", 400),
    ("invalid_prompt", 400),
    ("bad_request", 400),
    ("context_length_exceeded", 400),
    ("content_filter", 400),
    ("content_policy_violation", 400),
    ("authentication_error", 401),
    ("invalid_api_key", 401),
    ("billing_error", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("model_not_found", 404),
    ("request_too_large", 413),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("insufficient_quota", 429),
    ("api_error", 500),
    ("server_error", 500),
    ("timeout_error", 504),
    ("overloaded_error", 529),
];

/// Types of events that come before the model has begun.
const ANNOUNCING: [&str; 4] = [
    "\"message_start\"",
    "\"response.created\"",
    "\"response.in_progress\"",
    "\"response.queued\"",
];

/// What the beginning of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Content, or something that leads to it.
    Content,
    Failed(Failure),
}

/// Failure of an answer that came with a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Status that it would have had.
    pub status: u16,
    /// Whether the answer has an error for its caller.
    pub is_told: bool,
}

impl Failure {
    /// An answer without content and without an error.
    const SILENT: Self = Self { status: OVERLOADED, is_told: false };
}

/// Reader of an answer's beginning.
#[derive(Debug)]
pub struct Opening {
    kind: Kind,
    verdict: Option<Verdict>,
    /// Whether an event without content has announced the answer.
    is_announced: bool,
}

#[derive(Debug)]
enum Kind {
    Stream(Splitter),
    Json(Skim),
    /// By its type; it may be another answer under a wrong one.
    Page,
    Other,
}

impl Opening {
    /// Creates a reader for an uncompressed answer of this `content-type`.
    pub fn new(content_type: Option<&str>) -> Self {
        let (kind, verdict) = match Answering::of(content_type) {
            Answering::Stream => (Kind::Stream(Splitter::new(MAX_OPENING_BYTES)), None),
            Answering::Json => (Kind::Json(Skim::default()), None),
            // No model writes these: it is the page of a proxy or a login.
            Answering::Page => (Kind::Page, None),
            Answering::Other => (Kind::Other, Some(Verdict::Content)),
        };
        Self { kind, verdict, is_announced: false }
    }

    /// Whether the answer comes in events, so that comments are no content.
    pub fn is_stream(&self) -> bool {
        matches!(self.kind, Kind::Stream(_))
    }

    /// Returns the verdict, as soon as it is certain.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Whether nothing that follows may change what [`Self::finish`] returns.
    pub fn is_over(&self) -> bool {
        let is_whole = matches!(&self.kind, Kind::Json(skim) if skim.kept().is_some());
        is_whole || self.verdict.is_some()
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        let (verdict, is_announced) = (&mut self.verdict, &mut self.is_announced);
        match &mut self.kind {
            _ if verdict.is_some() => {}
            Kind::Stream(splitter) => {
                splitter.feed(bytes, |event| {
                    *verdict = verdict.or_else(|| judged(event, is_announced))
                });
                if splitter.skipped_events() > 0 {
                    *verdict = verdict.or(Some(Verdict::Content));
                }
            }
            Kind::Json(skim) => skim.feed(bytes),
            Kind::Page => {
                let first = bytes.trim_ascii_start().first();
                *verdict =
                    first.map(|first| if *first == b'<' { SILENT } else { Verdict::Content });
            }
            Kind::Other => {}
        }
    }

    /// Judges an answer that ended here; `seen` is all of it.
    pub fn finish(self, seen: &[u8]) -> Verdict {
        if let Some(verdict) = self.verdict {
            return verdict;
        }
        match self.kind {
            Kind::Stream(splitter) => {
                let (mut verdict, mut is_announced) = (None, self.is_announced);
                let skipped = splitter.finish(|event| {
                    verdict = verdict.or_else(|| judged(event, &mut is_announced));
                });
                // What was announced did not come, and nothing says that this is the end.
                let others = if skipped > 0 { Verdict::Content } else { SILENT };
                verdict.unwrap_or(others)
            }
            Kind::Json(_) => judged_json(seen),
            Kind::Page => SILENT,
            Kind::Other => Verdict::Content,
        }
    }
}

const SILENT: Verdict = Verdict::Failed(Failure::SILENT);

/// Judges an event; `None` if it is none of the answer's own, or only announces the answer.
fn judged(event: Event<'_>, is_announced: &mut bool) -> Option<Verdict> {
    let data = event.data.trim_ascii();
    if data.is_empty() || event.name == b"ping" {
        return None;
    }
    if data == b"[DONE]" {
        return Some(if *is_announced { Verdict::Content } else { SILENT });
    }
    if event.name == b"error" {
        return Some(told(data));
    }
    if ANNOUNCING.iter().any(|kind| kind.trim_matches('"').as_bytes() == event.name) {
        *is_announced = true;
        return None;
    }
    let mut notes = Notes::default();
    let read = notes.body(data);
    if read.as_ref().is_some_and(|read| read.is(&["\"ping\"", "\"keepalive\""])) {
        return None;
    }
    if notes.metered.said_bytes > 0 {
        return Some(Verdict::Content);
    }
    let chunk: Value = serde_json::from_slice(data).unwrap_or_default();
    if read.as_ref().is_some_and(Read::has_failed) || is_error(&chunk) {
        return Some(told(data));
    }
    let Some(read) = read else { return Some(Verdict::Content) };
    if read.is(&ANNOUNCING) || announces(&chunk) {
        *is_announced = true;
        return None;
    }
    Some(Verdict::Content)
}

/// Whether an event comes before any content and says nothing: a ping, a beginning.
pub(crate) fn is_announcement(event: &Event<'_>) -> bool {
    let data = event.data.trim_ascii();
    let mut is_announced = false;
    let event = Event { name: event.name, data, id: event.id };
    data != b"[DONE]" && judged(event, &mut is_announced).is_none()
}

/// Whether an event has content of the answer.
pub(super) fn is_content(event: Event<'_>) -> bool {
    judged(event, &mut false) == Some(Verdict::Content)
}

/// Whether an answer or an event without content is an error in a form that has no `error` of its own: of
/// vLLM, FastAPI, Google's streams, OpenRouter, others.
fn is_error(answer: &Value) -> bool {
    let is_some = |value: &Value| !value.is_null() && value != false;
    let is_code = |value: &Value| value.as_i64().is_some_and(|code| code != 0);
    let choice = &answer["choices"][0];
    answer["object"] == "error"
        || answer["status"] == "failed"
        || answer["success"] == false
        // MiniMax; Baidu.
        || is_code(&answer["base_resp"]["status_code"])
        || is_code(&answer["error_code"])
        || ["errors", "detail"].iter().any(|name| is_some(&answer[name]))
        || is_some(&choice["error"])
        || choice["finish_reason"] == "error"
        || is_some(&answer[0]["error"])
}

/// Members that hold an answer's content.
const CONTENTS: [&str; 10] = [
    "choices",
    "output",
    "content",
    "data",
    "results",
    "embeddings",
    "embedding",
    "text",
    "predictions",
    "images",
];

/// Whether a complete answer has nothing in place of its content, and its end is not to come. Servers may give
/// an empty list on purpose.
fn is_void(answer: &Value) -> bool {
    let Value::Object(members) = answer else { return answer.is_null() };
    let mut contents = CONTENTS.iter().filter_map(|name| members.get(*name)).peekable();
    members.get("usage").is_none_or(Value::is_null)
        && !matches!(members.get("status"), Some(Value::String(_)))
        && contents.peek().is_some()
        && contents.all(Value::is_null)
}

/// Whether an event only opens what content will follow in: a chunk of chat completions with a role at most
/// (OpenAI's first one, and Azure's before it), or an empty block, item or part.
fn announces(chunk: &Value) -> bool {
    let is = |value: &Value, kinds: [&str; 2]| kinds.iter().any(|kind| value == kind);
    match chunk["type"].as_str() {
        Some("content_block_start") => is(&chunk["content_block"]["type"], ["text", "thinking"]),
        Some("response.output_item.added") => is(&chunk["item"]["type"], ["message", "reasoning"]),
        Some("response.content_part.added") => true,
        Some(_) => false,
        None => has_role_at_most(chunk),
    }
}

fn has_role_at_most(chunk: &Value) -> bool {
    let is_nothing = |value: &Value| value.is_null() || value == "";
    chunk["choices"].as_array().is_some_and(|choices| {
        choices.iter().all(|choice| {
            let delta = choice["delta"].as_object();
            choice["finish_reason"].is_null()
                && delta.is_some_and(|delta| {
                    delta.iter().all(|(name, value)| name == "role" || is_nothing(value))
                })
        })
    })
}

/// Words of JSON for content, and parts of all words for a failure. They are made once: to make them takes longer
/// than to search a small answer.
static CONTENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"content\""));
static FAILURES: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new("error"), Finder::new("fail")]);

/// Judges a complete answer.
fn judged_json(body: &[u8]) -> Verdict {
    // Nearly all answers have content and no word of a failure, and need no reading.
    let has = |finder: &Finder<'_>| finder.find(body).is_some();
    if !FAILURES.iter().any(has) && CONTENT.find(body).is_some_and(|at| is_filled(&body[at..])) {
        return Verdict::Content;
    }
    let mut notes = Notes::default();
    let read = notes.body(body);
    if notes.metered.said_bytes > 0 {
        return Verdict::Content;
    }
    if read.as_ref().is_some_and(Read::has_failed) {
        return told(body);
    }
    if read.as_ref().is_some_and(|read| read.lacks_choices) {
        return SILENT;
    }
    match serde_json::from_slice::<Value>(body) {
        Ok(answer) if is_error(&answer) => told(body),
        Ok(answer) if is_void(&answer) => SILENT,
        // It was cut off, or is text of a proxy.
        Err(error) if read.is_none() && is_broken(&error, body) => SILENT,
        _ => Verdict::Content,
    }
}

/// Whether an answer was cut off, or is text of a proxy.
fn is_broken(error: &serde_json::Error, body: &[u8]) -> bool {
    let body = body.trim_ascii();
    !body.is_empty() && (error.is_eof() || !body.starts_with(b"{"))
}

/// Whether a member, with which `rest` begins, is neither null nor an empty list.
fn is_filled(rest: &[u8]) -> bool {
    let value = rest.get(b"\"content\"".len()..).unwrap_or_default().trim_ascii_start();
    let value = value.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
    let is_list = value.first() == Some(&b'[');
    let inner = value.get(1..).unwrap_or_default().trim_ascii_start();
    !(value.starts_with(b"null") || is_list && inner.first() == Some(&b']'))
}

fn told(data: &[u8]) -> Verdict {
    Verdict::Failed(Failure { status: status(data), is_told: true })
}

/// Returns the status that an error gives, as a number or by its type.
fn status(data: &[u8]) -> u16 {
    let data = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
    let answer: Value = serde_json::from_slice(data).unwrap_or_default();
    let inner = [&answer["error"], &answer["response"]["error"], &answer];
    let given = |name| inner.iter().map(move |error| &error[name]);
    let number = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    let of_http = ["code", "status", "status_code"].into_iter().flat_map(given).find_map(|value| {
        number(value)
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (400..600).contains(code))
    });
    let by_word = || {
        ["code", "type"].into_iter().flat_map(given).find_map(|value| {
            let word = value.as_str()?;
            STATUSES.iter().find(|(known, _)| *known == word).map(|(_, status)| *status)
        })
    };
    of_http.or_else(by_word).unwrap_or(OVERLOADED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(content_type: &str, body: &str) -> Verdict {
        let mut opening = Opening::new(Some(content_type));
        let mut bytewise = Opening::new(Some(content_type));
        opening.feed(body.as_bytes());
        body.as_bytes().chunks(1).for_each(|byte| bytewise.feed(byte));
        assert_eq!(opening.verdict(), bytewise.verdict(), "{body}");
        opening.finish(body.as_bytes())
    }

    fn failed(status: u16) -> Verdict {
        Verdict::Failed(Failure { status, is_told: true })
    }

    #[test]
    fn whole_answers_are_judged_by_their_members() {
        for (body, expected) in [
            (r#"{"error":{"message":"x","code":502}}"#, failed(502)),
            (r#"{"error":"x"}"#, failed(529)),
            (r#"{"error":{"code":"429"},"choices":null}"#, failed(429)),
            (
                r#"{"error":{"message":"x","type":"invalid_request_error","code":null}}"#,
                failed(400),
            ),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, failed(529)),
            (r#"{"status":"failed","error":{"code":"server_error"},"output":[]}"#, failed(500)),
            (r#"{"id":"c","choices":null}"#, SILENT),
            ("", Verdict::Content),
            ("{}", Verdict::Content),
            ("null", SILENT),
            (r#"{"object":"error","message":"x","code":503}"#, failed(503)),
            (r#"{"choices":[{"error":{"code":502},"finish_reason":"error"}]}"#, failed(529)),
            (r#"{"id":"c","choices":[]}"#, Verdict::Content),
            (r#"{"choices":[],"usage":{"prompt_tokens":3}}"#, Verdict::Content),
            (r#"{"type":"message","content":null,"stop_reason":null}"#, SILENT),
            (r#"{"id":"c","object":"chat.completion"}"#, Verdict::Content),
            (r#"{"errors":[{"message":"x"}]}"#, failed(529)),
            (r#"[{"error":{"code":503}}]"#, failed(529)),
            (r#"{"detail":"x"}"#, failed(529)),
            (r#"{"success":false}"#, failed(529)),
            (r#"{"error_code":336100,"error_msg":"x"}"#, failed(529)),
            (r#"{"choices":[],"base_resp":{"status_code":0}}"#, Verdict::Content),
            (r#"{"id":"c","choices":[{"index":0,"mess"#, SILENT),
            (r#"{"status":"failed","error":null,"output":[]}"#, failed(529)),
            (r#"{"data":[{"embedding":[1]}]}"#, Verdict::Content),
            (r#"{"type":"message","content":[],"usage":{"input_tokens":1}}"#, Verdict::Content),
            (r#"{"choices":[{"message":{"content":"a"}}],"error":null}"#, Verdict::Content),
            (r#"{"choices":[{"message":{"content":"a"}}],"error":{"code":502}}"#, Verdict::Content),
            (r#"{"id":"r","status":"queued","error":null,"output":[]}"#, Verdict::Content),
            ("<html>", SILENT),
        ] {
            assert_eq!(verdict("application/json", body), expected, "{body}");
        }
        assert_eq!(verdict("audio/mpeg", ""), Verdict::Content);
        for (body, expected) in [(" <html>", SILENT), ("", SILENT), ("{}", Verdict::Content)] {
            assert_eq!(verdict("Text/HTML; charset=utf-8", body), expected, "{body}");
        }
    }

    #[test]
    fn streams_are_judged_by_their_first_events() {
        for (body, expected) in [
            ("", SILENT),
            (": ping\n\n: ping\n\n", SILENT),
            ("data: [DONE]\n\n", SILENT),
            ("event: ping\ndata: {\"type\": \"ping\"}\n\n", SILENT),
            ("<html>", SILENT),
            ("data: {\"error\":{\"code\":503}}\n\n", failed(503)),
            (
                "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
                failed(529),
            ),
            (
                "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"rate_limit_exceeded\"}}}\n\n",
                failed(429),
            ),
            (
                "data: {\"error\":{\"code\":502},\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}\n\n",
                failed(502),
            ),
            (
                "data: {\"error\":{\"code\":502},\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
                Verdict::Content,
            ),
            ("data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n", SILENT),
            ("data: {\"choices\":null}\n\n", Verdict::Content),
            (": ping\n\ndata: {\"type\":\"response.created\"}\n\n", SILENT),
            ("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n", SILENT),
            (
                "data: {\"choices\":null,\"base_resp\":{\"status_code\":1002,\"status_msg\":\"x\"}}\n\n",
                failed(529),
            ),
            (
                "data: {\"type\":\"keepalive\"}\n\ndata: {\"type\":\"response.failed\"}\n\n",
                failed(529),
            ),
            (
                "data: {\"type\":\"response.created\"}\n\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n",
                failed(500),
            ),
            (
                "data: {\"choices\":[]}\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"finish_reason\":null}]}\n\ndata: {\"error\":{\"code\":502}}\n\n",
                failed(502),
            ),
            (
                "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: [DONE]\n\n",
                Verdict::Content,
            ),
        ] {
            assert_eq!(verdict("text/event-stream", body), expected, "{body}");
        }
    }

    #[test]
    fn streams_of_other_forms_are_judged_by_their_first_events() {
        for (body, expected) in [
            ("data: {\"object\":\"error\",\"code\":503}\n\n", failed(503)),
            ("event: error\ndata: overloaded\n\n", failed(529)),
            ("data: [{\"error\":{\"code\":503}}]\n\n", failed(529)),
            (
                "data: {\"type\":\"response.created\"}\n\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\"}}\n\ndata: {\"type\":\"response.failed\"}\n\n",
                failed(529),
            ),
            (
                "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"tool_calls\":[{}]}}]}\n\ndata: {\"error\":{\"code\":502}}\n\n",
                Verdict::Content,
            ),
            (
                "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"error\":{\"code\":502}}\n\n",
                Verdict::Content,
            ),
            (
                "data: {\"type\":\"message_start\"}\n\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\ndata: {\"type\":\"error\",\"error\":{}}\n\n",
                failed(529),
            ),
            (
                "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\"}}\n\ndata: {\"type\":\"error\",\"error\":{}}\n\n",
                Verdict::Content,
            ),
            ("data: 1\n\n", Verdict::Content),
            ("data: {\"choices\":[{\"delta\":", Verdict::Content),
        ] {
            assert_eq!(verdict("text/event-stream", body), expected, "{body}");
        }
        let large = format!("data: {}", "x".repeat(MAX_OPENING_BYTES));
        assert_eq!(verdict("text/event-stream; charset=utf-8", &large), Verdict::Content);
    }

    #[test]
    fn a_whole_answer_needs_no_more() {
        for (body, is_over) in [
            ("", false),
            (r#"{"error":{"message""#, false),
            (r#"{"choices":null,"#, false),
            ("{}", true),
            (r#"{"error":{}}"#, true),
        ] {
            let mut opening = Opening::new(Some("application/json"));
            opening.feed(body.as_bytes());
            assert_eq!((opening.verdict(), opening.is_over()), (None, is_over), "{body}");
        }
    }
}
