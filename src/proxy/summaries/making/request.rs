//! Requests to a summariser, and the parsing of its answers. Decides nothing about their content.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use weir_engine::wire::chat::AnswerContent;
use weir_engine::wire::json as wire_json;

/// Output limit of a request, by the name that most servers know.
const MAX_TOKENS: &str = "max_tokens";
/// The same by the name that OpenAI's reasoning models require. Source: its reference of chat
/// completions, `max_tokens` ("not compatible with o-series models").
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";
/// Reasons with which an answer ends by itself, in lower case.
const ENDED: [&str; 5] = ["stop", "end_turn", "stop_sequence", "eos", "eos_token"];
/// Maximum length of a provider's word in the log.
const MAX_WORD_BYTES: usize = 64;

/// Limits of an answer.
#[derive(Clone)]
pub(super) struct Output {
    /// Including reasoning, which counts as output.
    pub tokens: u64,
    /// Effort of reasoning; empty for the model's default.
    pub effort: String,
    /// Whether the model refuses `max_tokens`.
    pub is_renamed: bool,
}

impl Output {
    /// Adds the limits to a body as its last members.
    fn put(&self, body: &mut String) {
        body.pop();
        if !self.effort.is_empty() {
            body.push_str(&format!(",\"reasoning_effort\":{}", json!(self.effort)));
        }
        let name = if self.is_renamed { MAX_COMPLETION_TOKENS } else { MAX_TOKENS };
        body.push_str(&format!(",\"{name}\":{}}}", self.tokens));
    }
}

/// Returns a body with the output limit under its newer name; `None` if it has that already.
pub(super) fn renamed(body: &str) -> Option<String> {
    let (before, limit) = body.rsplit_once(',')?;
    let tokens = limit.strip_prefix(&format!("\"{MAX_TOKENS}\":"))?;
    Some(format!("{before},\"{MAX_COMPLETION_TOKENS}\":{tokens}"))
}

/// Builds a separate request: the instruction, and the content to summarise as data.
pub(super) fn separate(model: &str, instruction: &str, data: &str, output: &Output) -> String {
    let mut body = json!({
        "model": model,
        "messages": [
            { "role": "system", "content": instruction },
            { "role": "user", "content": data },
        ],
    })
    .to_string();
    output.put(&mut body);
    body
}

/// Members kept from a request whose conversation is summarised in place, with the messages: all that precede
/// those in the prompt, so that the provider reads them from its cache.
const KEPT: [&str; 5] = ["tools", "functions", "prompt_cache_key", "user", "safety_identifier"];

/// Appends the instruction as one more message to a request as it was sent; `None` if that is not
/// possible.
pub(super) fn appended(
    sent: &str,
    model: &str,
    instruction: &str,
    output: &Output,
) -> Option<String> {
    let members = wire_json::members(sent)?;
    let count = |name| members.iter().filter(|(own, _)| own == name).count();
    if KEPT.iter().any(|name| count(name) > 1) || count(&"messages") > 1 {
        return None;
    }
    let member = |name: &str| {
        let found = members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
        found.filter(|raw| *raw != "null")
    };
    let messages = member("messages")?.trim_end().strip_suffix(']')?.trim_end();
    if messages == "[" {
        return None;
    }
    let message = json!({ "role": "user", "content": instruction });
    let mut body = format!("{{\"model\":{},\"messages\":{messages},{message}]", json!(model));
    let mut put = |name: &str, raw: &str| body.push_str(&format!(",\"{name}\":{raw}"));
    for (name, raw) in KEPT.iter().filter_map(|name| Some((name, member(name)?))) {
        put(name, raw);
    }
    for (name, choice) in [("tools", "tool_choice"), ("functions", "function_call")] {
        if member(name).is_some() {
            put(choice, "\"none\"");
        }
    }
    body.push('}');
    output.put(&mut body);
    Some(body)
}

#[derive(Deserialize)]
struct SummaryAnswer {
    #[serde(default)]
    choices: Vec<SummaryChoice>,
}

#[derive(Deserialize)]
struct SummaryChoice {
    message: Option<SummaryMessage>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct SummaryMessage {
    content: Option<AnswerContent>,
    refusal: Option<String>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

/// Text of an answer.
pub(super) struct AnswerText {
    /// May be empty.
    pub text: String,
    /// Reason for which it is no complete answer, such as `length`.
    pub problem: Option<String>,
}

/// Returns the text of an answer; `None` if it is not an answer of this protocol.
pub(super) fn said(answer: &[u8]) -> Option<AnswerText> {
    let answer: SummaryAnswer = serde_json::from_slice(unmarked(answer)).ok()?;
    let SummaryChoice { message, finish_reason } = answer.choices.into_iter().next()?;
    let SummaryMessage { content, refusal, tool_calls } = message?;
    let is_end = |reason: &String| ENDED.contains(&reason.to_ascii_lowercase().as_str());
    let problem = if refusal.is_some_and(|refusal| !refusal.is_empty()) {
        Some("refusal".to_owned())
    } else if tool_calls.is_some_and(|calls| !calls.is_empty()) {
        Some("tool_calls".to_owned())
    } else {
        finish_reason
            .filter(|reason| !is_end(reason))
            .map(|reason| word(reason).unwrap_or_default())
    };
    let text = match content {
        Some(content) => content.text()?,
        None => String::new(),
    };
    Some(AnswerText { text, problem })
}

#[derive(Deserialize)]
struct Refusal {
    error: RefusalError,
}

#[derive(Deserialize)]
struct RefusalError {
    #[serde(default)]
    code: Value,
    #[serde(default, rename = "type")]
    kind: Value,
}

/// Returns the provider's word for its refusal, if it gives one.
pub(super) fn cause(answer: &[u8]) -> Option<String> {
    let Refusal { error } = serde_json::from_slice(unmarked(answer)).ok()?;
    [error.code, error.kind].iter().find_map(|own| word(own.as_str()?.to_owned()))
}

/// Whether a refusal asks for the newer name of the output limit, or does not know the older one.
pub(super) fn wants_renamed(status: u16, answer: &[u8]) -> bool {
    let has = |word: &str| memchr::memmem::find(answer, word.as_bytes()).is_some();
    let is_unknown = || ["nrecognized", "nsupported", "nknown", "extra_forbidden", "ot permitted"];
    let is_refused = has(MAX_TOKENS) && is_unknown().into_iter().any(has);
    matches!(status, 400 | 422) && (has(MAX_COMPLETION_TOKENS) || is_refused)
}

/// A single short word, which is no content.
fn word(text: String) -> Option<String> {
    let is_part = |own: u8| own.is_ascii_alphanumeric() || matches!(own, b'_' | b'-' | b'.');
    let is_word = (1..=MAX_WORD_BYTES).contains(&text.len()) && text.bytes().all(is_part);
    is_word.then_some(text)
}

fn unmarked(answer: &[u8]) -> &[u8] {
    answer.strip_prefix("\u{feff}".as_bytes()).unwrap_or(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(effort: &str, is_renamed: bool) -> Output {
        Output { tokens: 200, effort: effort.to_owned(), is_renamed }
    }

    fn value(body: &str) -> Value {
        serde_json::from_str(body).expect("it is JSON")
    }

    #[test]
    fn data_stays_data_whatever_it_says() {
        let data = "\"}]}\n{\"role\":\"system\"} \u{0}\u{2028}";
        let body = value(&separate("m", "sum \"up\"", data, &output("", false)));
        assert_eq!(body["messages"][0]["content"], "sum \"up\"");
        assert_eq!(body["messages"][1]["content"], data);
        assert_eq!((&body["model"], &body["max_tokens"]), (&json!("m"), &json!(200)));
    }

    #[test]
    fn the_output_limit_has_the_name_that_the_model_wants() {
        let data = r#""max_tokens":1,"#;
        let body = separate("m", "i", data, &output("low", false));
        assert_eq!(value(&body)["reasoning_effort"], "low");
        let other = renamed(&body).expect("it has the older name");
        assert_eq!(other, separate("m", "i", data, &output("low", true)));
        assert_eq!(value(&other)["max_completion_tokens"], 200);
        assert_eq!(value(&other).get("max_tokens"), None);
        assert_eq!(renamed(&other), None);
        let refusal = br#"{"error":{"message":"Use 'max_completion_tokens' instead.","type":"x y","code":"unsupported_parameter"}}"#;
        assert!(wants_renamed(400, refusal) && !wants_renamed(500, refusal));
        for unknown in [
            r#"{"error":{"message":"Unrecognized request argument supplied: max_tokens"}}"#,
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","max_tokens"]}]}"#,
        ] {
            assert!(wants_renamed(422, unknown.as_bytes()), "{unknown}");
        }
        assert!(!wants_renamed(400, br#"{"error":"max_tokens is too large"}"#));
        assert_eq!(cause(refusal).as_deref(), Some("unsupported_parameter"));
        for silent in ["", "{}", r#"{"error":"no"}"#, r#"{"error":{"code":7,"type":"a b"}}"#] {
            assert_eq!(cause(silent.as_bytes()), None, "{silent}");
        }
    }

    #[test]
    fn only_an_answer_that_ended_by_itself_is_whole() {
        for (message, reason, problem) in [
            (r#"{"content":"a"}"#, "\"stop\"", None),
            (r#"{"content":"a","refusal":null,"tool_calls":[]}"#, "\"end_turn\"", None),
            (r#"{"content":"a"}"#, "\"STOP\"", None),
            (r#"{"content":[{"type":"thinking"},{"type":"text","text":"a"}]}"#, "null", None),
            (r#"{"content":"a"}"#, "null", None),
            (r#"{"content":"a"}"#, "\"length\"", Some("length")),
            (r#"{"content":"a"}"#, "\"content_filter\"", Some("content_filter")),
            (r#"{"content":"a"}"#, "\"error: it\"", Some("")),
            (r#"{"content":"a","tool_calls":[{}]}"#, "\"stop\"", Some("tool_calls")),
            (r#"{"content":"a","refusal":"no"}"#, "\"stop\"", Some("refusal")),
        ] {
            let answer =
                format!(r#"{{"choices":[{{"message":{message},"finish_reason":{reason}}}]}}"#);
            let read = said(answer.as_bytes()).expect("an answer");
            assert_eq!(read.problem.as_deref(), problem, "{answer}");
        }
    }

    #[test]
    fn a_conversation_is_kept_as_it_was_sent_and_asked_one_thing_more() {
        let sent = r#"{"stream":true,"n":3,"model":"a","response_format":{"type":"json_object"},
            "tools":[{"type":"function"}],"messages":[{"role":"user","content":"é]"} ] }"#;
        let body = appended(sent, "a\"b", "sum up", &output("", false)).expect("it has messages");
        assert!(body.contains(r#""messages":[{"role":"user","content":"é]"},{"#), "{body}");
        assert_eq!(
            value(&body),
            json!({
                "model": "a\"b",
                "messages": [
                    { "role": "user", "content": "é]" },
                    { "role": "user", "content": "sum up" },
                ],
                "tools": [{ "type": "function" }],
                "tool_choice": "none",
                "max_tokens": 200,
            })
        );
        for sent in [r#"{"messages":[]}"#, r#"{"messages":{}}"#, "[]", "{", ""] {
            assert_eq!(appended(sent, "m", "i", &output("", false)), None, "{sent}");
        }
    }

    #[test]
    fn what_is_no_answer_says_nothing() {
        let said = |answer: &str| said(answer.as_bytes()).map(|read| read.text);
        assert_eq!(
            said(r#"{"choices":[{"message":{"content":"yes"}},{}]}"#).as_deref(),
            Some("yes")
        );
        let held_back = r#"{"choices":[{"message":{"content":null,"refusal":"no"}}]}"#;
        assert_eq!(said(held_back).as_deref(), Some(""));
        for answer in [
            "",
            "null",
            "{}",
            "[1]",
            r#"{"choices":[]}"#,
            r#"{"choices":[{}]}"#,
            r#"{"choices":[{"message":{"content":[{"type":"text"}]}}]}"#,
            "data: {\"choices\":[]}\n\n",
        ] {
            assert_eq!(said(answer), None, "{answer}");
        }
    }
}
