//! OpenAI's chat completions: parses a body into members and messages. Reads spans; changes
//! nothing.

use std::borrow::Cow;

use serde::Deserialize;

use super::allowance::output_limit;
use super::beginning::Begun;
use super::body::model as read_model;
use super::body::{Members, expect_string, fields, pin, wrong};
use super::json;
use super::json::without_member;
use super::message::{Call, Content, Message, Part, Role};
use super::usage_option::UsageOption;
use super::{BodyError, Extra, ExtraKind, FieldError, Protocol, Request};

/// Top-level members that weir acts on; each may be given once.
const MEMBERS: [&str; 12] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "tools",
    "functions",
    "response_format",
    "prediction",
    "n",
    "documents",
];

/// Content of an answer: a text, or parts as Mistral's reasoning models have them: the thoughts are parts
/// of their own.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum AnswerContent {
    /// A text.
    Text(String),
    /// Parts; not all have a text.
    Parts(Vec<ContentPart>),
}

/// One part of an answer's content.
#[derive(Deserialize)]
pub struct ContentPart {
    text: Option<String>,
}

impl AnswerContent {
    /// Returns the text; `None` if no part has one.
    pub fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Parts(parts) => {
                parts.into_iter().filter_map(|part| part.text).reduce(|a, b| a + &b)
            }
        }
    }
}

/// Reads a body in one validating pass, from where `begun` ends.
pub(super) fn read<'a>(
    text: &'a str,
    mut begun: Begun<'a>,
    max_messages: usize,
) -> Result<Request<'a>, BodyError> {
    let mut messages = std::mem::take(&mut begun.messages);
    let members = Members::read(text, &begun, &MEMBERS, "messages", |walk| {
        let raw = walk.value()?;
        if messages.len() == max_messages {
            return Some(Err(BodyError::TooManyMessages { limit: max_messages }));
        }
        messages.push(raw);
        Some(Ok(()))
    })?;
    let [
        model,
        no_list,
        stream,
        stream_options,
        max_tokens,
        max_completion_tokens,
        tools,
        functions,
        format,
        prediction,
        choices,
        documents,
    ] = members.values;
    if no_list.is_some() {
        return Err(wrong("messages", "an array of messages"));
    }
    let given = [max_completion_tokens, max_tokens].into_iter().flatten();
    let limits = [("max_completion_tokens", max_completion_tokens), ("max_tokens", max_tokens)];
    let extras = [
        (ExtraKind::Tools, tools),
        (ExtraKind::Functions, functions),
        (ExtraKind::ResponseFormat, format),
        (ExtraKind::Content, prediction),
        (ExtraKind::Content, documents),
    ];
    Ok(Request {
        protocol: Protocol::Chat,
        text,
        model: read_model(model)?,
        // Another value than true or false is the upstream's to read.
        stream: stream == Some("true"),
        missing_usage_option: stream
            .filter(|stream| *stream == "true")
            .and_then(|stream| UsageOption::missing(text, stream, stream_options)),
        max_output_tokens: given.clone().filter_map(limit).max(),
        output_limits: given.filter(|raw| *raw != "null").collect(),
        absent_limits: limits
            .into_iter()
            .filter_map(|(name, raw)| raw.is_none().then_some(name))
            .collect(),
        // A value that is not a number is left for the upstream to refuse.
        choices: choices.and_then(|raw| raw.parse().ok()).unwrap_or(1),
        extras: extras
            .into_iter()
            .filter_map(|(kind, raw)| Some(Extra { kind, raw: raw.filter(|raw| *raw != "null")? }))
            .collect(),
        messages,
        outside: 0,
        containers: Vec::new(),
        provider_state: None,
        is_open: false,
        leading: members.leading,
        labels: members.labels,
    })
}

fn limit(raw: &str) -> Option<u64> {
    output_limit(raw, Some(Protocol::Chat))
}

/// Members of a message that weir acts on; each may be given once.
const MESSAGE_MEMBERS: [&str; 14] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "function_call",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "refusal",
    "audio",
    "images",
    "weir",
];

/// Reads one message.
pub fn read_message(raw: &str) -> Result<Message<'_>, FieldError> {
    let found = fields(raw, &MESSAGE_MEMBERS, "an object with a role")?;
    // weir's own member is never forwarded.
    let weir = pin(found[MESSAGE_MEMBERS.len() - 1])?;
    let found = found.map(|value| value.filter(|value| *value != "null"));
    let [
        role,
        content,
        name,
        tool_calls,
        function_call,
        answers,
        reasoning_content,
        reasoning,
        reasoning_details,
        thinking_blocks,
        refusal,
        audio,
        images,
        _,
    ] = found;
    let thinking = [reasoning_content, reasoning, reasoning_details, thinking_blocks];
    let is_signed = [reasoning_details, thinking_blocks].into_iter().flatten().any(is_signed);
    let side_texts: Vec<&str> = thinking.into_iter().chain([refusal]).flatten().collect();
    let thinking_texts = if is_signed { thinking.into_iter().flatten().count() } else { 0 };
    Ok(Message {
        name: name.and_then(json::string),
        content: Content::read(content, read_part),
        calls: read_calls(tool_calls, function_call),
        answers,
        side_texts,
        thinking_texts,
        others: images.map(read_images).unwrap_or_default(),
        opaque_members: u32::from(audio.is_some()),
        weir,
        ..Message::empty(Protocol::Chat, raw, read_role(role)?)
    })
}

/// Whether a list of the model's thinking has an entry that its provider signed or encrypted:
/// `reasoning_details` as OpenRouter writes them, or `thinking_blocks` as LiteLLM does. Thinking in
/// plain text is bound to nothing.
///
/// Sources: OpenRouter's guide to reasoning tokens, LiteLLM's guide to reasoning content.
fn is_signed(raw: &str) -> bool {
    let has = |name: &str| memchr::memmem::find(raw.as_bytes(), name.as_bytes()).is_some();
    has(r#""signature""#) || has(r#""data""#)
}

/// Returns a message without the members that hold the model's signed thinking.
pub(super) fn without_thinking(raw: &str) -> String {
    let mut text = raw.to_owned();
    let thinking = read_message(raw).map_or(0, |message| message.thinking_texts);
    for _ in 0..thinking {
        let message = read_message(&text).ok();
        let Some(value) = message.and_then(|message| message.side_texts.first().copied()) else {
            break;
        };
        text = without_member(&text, value);
    }
    text
}

/// Returns the JSON text of a user message with the content `text`.
pub(super) fn user_message(text: &str) -> String {
    format!(r#"{{"role":"user","content":{}}}"#, json::quoted(text))
}

fn read_role(raw: Option<&str>) -> Result<Role, FieldError> {
    let raw = raw.ok_or(FieldError::WrongType { key: "role", expected: "a string" })?;
    Ok(match expect_string(raw, "role")?.as_ref() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        _ => Role::Other,
    })
}

/// Reads a part; an unknown one becomes [`Part::Other`].
fn read_part(raw: &str) -> Part<'_> {
    if raw.starts_with('"') {
        return Part::Text(raw);
    }
    if !raw.starts_with('{') {
        return Part::Other(raw);
    }
    let Some(members) = json::unique_members(raw) else { return Part::Ambiguous(raw) };
    let member = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw);
    let kind = member("type").and_then(json::string).unwrap_or_default();
    let text = |name: &str| member(name).filter(|text| text.starts_with('"')).map(Part::Text);
    let part = match kind.as_ref() {
        "text" => text("text"),
        "refusal" => text("refusal"),
        "image_url" => member("image_url").map(read_image),
        "input_audio" => member("input_audio").map(read_audio),
        _ => None,
    };
    part.unwrap_or(Part::Other(raw))
}

/// Reads images next to the content: OpenRouter's parts, or Ollama's base64.
fn read_images(raw: &str) -> Vec<Part<'_>> {
    let image = |raw| match json::string(raw) {
        Some(data) => {
            Part::Image { url: Cow::Owned(format!("data:image/png;base64,{data}")), detail: None }
        }
        None => read_part(raw),
    };
    json::elements(raw).unwrap_or_default().into_iter().map(image).collect()
}

fn read_image(raw: &str) -> Part<'_> {
    if let Some(url) = json::string(raw) {
        return Part::Image { url, detail: None };
    }
    let Some(members) = json::unique_members(raw) else { return Part::Ambiguous(raw) };
    let member = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw);
    match member("url").and_then(json::string) {
        Some(url) => Part::Image { url, detail: member("detail").and_then(json::string) },
        None => Part::Other(raw),
    }
}

fn read_audio(raw: &str) -> Part<'_> {
    let Some(members) = json::unique_members(raw) else { return Part::Ambiguous(raw) };
    let member = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw);
    match member("data").and_then(json::string) {
        Some(data) => Part::Audio {
            data,
            format: member("format").and_then(json::string).unwrap_or_default(),
        },
        None => Part::Other(raw),
    }
}

fn read_calls<'a>(tool_calls: Option<&'a str>, function_call: Option<&'a str>) -> Vec<Call<'a>> {
    let mut calls = Vec::new();
    if let Some(raw) = tool_calls {
        for call in json::elements(raw).unwrap_or_else(|| vec![raw]) {
            let members = json::unique_members(call).unwrap_or_default();
            let mut bodies = members.iter().filter(|(key, _)| key == "function" || key == "custom");
            calls.push(match (bodies.next(), bodies.next()) {
                (Some((_, body)), None) => {
                    let id = members.iter().find(|(key, _)| key == "id");
                    Call { id: id.map_or("", |(_, id)| id), ..read_call(body) }
                }
                _ => Call { arguments: call, ..Call::default() },
            });
        }
    }
    calls.extend(function_call.map(read_call));
    calls
}

/// Returns the name and arguments of a call's `function` (or `custom`) member. If it is unclear
/// which member counts, the whole call serves as its arguments, so that everything is counted.
fn read_call(raw: &str) -> Call<'_> {
    let Some(members) = json::unique_members(raw) else {
        return Call { arguments: raw, ..Call::default() };
    };
    let member =
        |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, member)| *member);
    match (member("arguments"), member("input")) {
        (Some(_), Some(_)) => Call { arguments: raw, ..Call::default() },
        (arguments, input) => Call {
            name: member("name").unwrap_or_default(),
            arguments: arguments.or(input).unwrap_or_default(),
            ..Call::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8], max_messages: usize) -> Result<Request<'_>, BodyError> {
        Protocol::Chat.read(body, max_messages)
    }

    #[test]
    fn signed_thinking_leaves_with_all_its_members() {
        let kept = r#"{"role":"assistant", "content":"I look.","tool_calls":[]}"#;
        for members in [
            r#""reasoning":"a","reasoning_details":[{"type":"reasoning.text","text":"a","signature":"s"}],"#,
            r#""reasoning_details":[{"data":"s"}],"thinking_blocks":[{"thinking":"a"}],"#,
            r#""reasoning_content":"a","thinking_blocks":[{"thinking":"a","signature":"s"}],"#,
        ] {
            let raw = kept.replace(r#""content""#, &format!(r#"{members}"content""#));
            assert_eq!(without_thinking(&raw), kept, "{members}");
        }
        for members in [r#""reasoning_content":"a","#, r#""reasoning_details":[{"text":"a"}],"#] {
            let raw = kept.replace(r#""content""#, &format!(r#"{members}"content""#));
            assert_eq!(without_thinking(&raw), raw, "{members}");
        }
    }

    #[test]
    fn reads_what_it_acts_on_and_borrows_the_rest() {
        let body = br#" {"model":"gpt-4o","messages":[ {"role":"user","content":"hi"} ,{"role":"x"}],
            "stream":true,"max_tokens":10,"max_completion_tokens":7,"tools":[{"a":1}],"other":{"b":[1e999]}} "#;
        let request = read(body, 10).expect("readable");
        assert_eq!(request.model.as_deref(), Some("gpt-4o"));
        assert!(request.stream);
        assert_eq!(request.max_output_tokens, Some(10));
        assert_eq!(request.messages, [r#"{"role":"user","content":"hi"}"#, r#"{"role":"x"}"#]);
        assert_eq!(request.extras, [Extra { kind: ExtraKind::Tools, raw: r#"[{"a":1}]"# }]);
    }

    #[test]
    fn refuses_with_the_place() {
        let duplicate = |key: &str| BodyError::DuplicateKey { key: key.into() };
        let other_case = |key: &str, known| BodyError::OtherCase { key: key.into(), known };
        for (body, refusal) in [
            (&b"{\"a\":\xff}"[..], BodyError::NotUtf8 { valid_up_to_bytes: 5 }),
            (br#"{"model":"a","model":"b"}"#, duplicate("model")),
            (br#"{"model":"a","mo\u0064el":"b"}"#, duplicate("model")),
            (br#"{"messages":[],"messages":[]}"#, duplicate("messages")),
            (br#"{"tools":null,"tools":[]}"#, duplicate("tools")),
            (br#"{"stream_options":{},"stream_options":{}}"#, duplicate("stream_options")),
            (br#"{"messages":{}}"#, wrong("messages", "an array of messages")),
            (br#"{"messages":null}"#, wrong("messages", "an array of messages")),
            (br#"{"messages":"x"}"#, wrong("messages", "an array of messages")),
            (br#"{"model":3}"#, wrong("model", "a string")),
            (br#"{"Model":"a"}"#, other_case("Model", "model")),
            (br#"{"messages":[],"MESSAGES":[]}"#, other_case("MESSAGES", "messages")),
            (br#"{"Fallbacks":[]}"#, other_case("Fallbacks", "fallbacks")),
            (br#"{"messages":[1,2,3]}"#, BodyError::TooManyMessages { limit: 2 }),
        ] {
            assert_eq!(read(body, 2).expect_err("refused"), refusal);
        }
        for body in [&b""[..], b"[]", b"{", b"{} x", b"\"x\"", b"{\"a\":01}"] {
            assert!(matches!(read(body, 2), Err(BodyError::NotJson { .. })), "{body:?}");
        }
    }

    #[test]
    fn values_that_need_not_be_understood_are_read_by_their_text() {
        for (value, tokens) in [
            ("-1", None),
            ("4096.0", Some(4096)),
            ("1e3", Some(1000)),
            ("\"1024\"", Some(1024)),
            ("18446744073709551616", None),
            ("1.5", None),
            ("\"many\"", None),
            ("true", None),
            ("{}", None),
        ] {
            let body = format!(r#"{{"messages":[],"stream":"yes","max_tokens":{value}}}"#);
            let request = read(body.as_bytes(), 2).expect("readable");
            assert_eq!(request.max_output_tokens, tokens, "{value}");
            assert_eq!(request.output_limits, [value]);
        }
        for (raw, texts) in [
            (r#"{"role":"user","content":3}"#, 0),
            (r#"{"role":"user","content":{"type":"text","text":"a"},"name":7}"#, 0),
            (r#"{"role":"assistant","content":"a","tool_calls":{"a":1}}"#, 1),
        ] {
            assert_eq!(read_message(raw).expect(raw).texts().len(), texts, "{raw}");
        }
    }

    #[test]
    fn messages_are_read_by_their_roles_and_parts() {
        let message = read_message(
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}},
               {"custom":{"name":"g","input":"x"}}],"refusal":"no","audio":{"id":"a"},"weir":{"pin":true}}"#,
        )
        .expect("readable");
        assert_eq!(message.role, Role::Assistant);
        assert_eq!(message.calls.len(), 2);
        assert_eq!(message.calls[1].arguments, "\"x\"");
        assert_eq!(message.side_texts, ["\"no\""]);
        assert_eq!(message.opaque_members, 1);
        assert!(message.is_pinned());

        let message = read_message(
            r#"{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"image_url","image_url":{"url":"u","detail":"low"}},
               {"type":"input_audio","input_audio":{"data":"AA","format":"wav"}},{"type":"file"},7]}"#,
        )
        .expect("readable");
        let Content::Parts(parts) = &message.content else { panic!("parts") };
        assert_eq!(parts.len(), 6);
        assert!(matches!(&parts[2], Part::Image { detail: Some(detail), .. } if detail == "low"));
        assert_eq!(message.texts(), ["\"a\"", "\"b\""]);

        for (raw, key) in [("3", ""), ("{}", "role"), (r#"{"role":1}"#, "role")] {
            let Err(FieldError::WrongType { key: found, .. }) = read_message(raw) else {
                panic!("{raw} was read")
            };
            assert_eq!(found, key);
        }
        assert_eq!(
            read_message(r#"{"role":"user","role":"system"}"#).expect_err("refused"),
            FieldError::DuplicateKey { key: "role" }
        );
    }
}
