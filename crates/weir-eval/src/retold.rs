//! Conversations of Responses and Messages, retold as chat completions with the same texts, calls and
//! results. Their plans are the same there. Reads no files.

use super::conversation::Message;
use super::transcripts::quoted;
use weir_engine::wire::Protocol;
use weir_engine::wire::json;
use weir_engine::wire::message::{self, Call, Content, Part};

/// Reads the messages of a request body of `protocol`.
///
/// # Errors
///
/// If the body or a message of it cannot be read, or it has none; the text names the place.
pub(crate) fn messages(protocol: Protocol, body: &str) -> Result<Vec<Message>, String> {
    let request =
        protocol.read(body.as_bytes(), usize::MAX).map_err(|error| format!("{error:?}"))?;
    if request.messages.is_empty() {
        return Err("no messages are where this protocol has them".to_owned());
    }
    let read = request.messages.iter().enumerate().map(|(index, raw)| {
        let message = protocol.read_message(raw).ok();
        let read = message.and_then(|message| Message::read(&chat(&message)));
        read.ok_or_else(|| format!("{} cannot be read", request.place(index)))
    });
    read.collect()
}

/// Returns the JSON text of a message of `protocol` as chat completions have it; `None` if it cannot be read.
pub(crate) fn retold(protocol: Protocol, raw: &str) -> Option<String> {
    protocol.read_message(raw).ok().map(|message| chat(&message))
}

/// Returns the JSON text of a message as chat completions have it.
fn chat(message: &message::Message<'_>) -> String {
    let role = message.role.word();
    let mut text = format!(r#"{{"role":"{role}","content":{}"#, content(message));
    if let Some(answers) = message.answers {
        text.push_str(&format!(r#","tool_call_id":{answers}"#));
    }
    let thinking: Vec<_> = parts(message).filter_map(thinking).collect();
    if !thinking.is_empty() {
        text.push_str(&format!(r#","reasoning_content":{}"#, quoted(&thinking.join("\n"))));
    }
    if !message.calls.is_empty() {
        let calls: Vec<String> = message.calls.iter().map(call).collect();
        text.push_str(&format!(r#","tool_calls":[{}]"#, calls.join(",")));
    }
    text.push('}');
    text
}

/// Returns all parts of a message, in the content and outside.
fn parts<'m, 'a>(message: &'m message::Message<'a>) -> impl Iterator<Item = &'m Part<'a>> {
    let inside = match &message.content {
        Content::Parts(parts) => parts.as_slice(),
        Content::None | Content::Text(_) => &[],
    };
    inside.iter().chain(&message.others)
}

fn thinking<'a>(part: &Part<'a>) -> Option<std::borrow::Cow<'a, str>> {
    match part {
        Part::Thinking(raw) => json::string(raw),
        _ => None,
    }
}

/// Returns the JSON text of the content.
fn content(message: &message::Message<'_>) -> String {
    let shown: Vec<String> = parts(message).filter_map(part).collect();
    match (&message.content, shown.is_empty()) {
        (Content::Text(raw), true) => (*raw).to_owned(),
        (Content::Text(raw), false) => {
            format!(r#"[{{"type":"text","text":{raw}}},{}]"#, shown.join(","))
        }
        (_, true) => "null".to_owned(),
        (_, false) => format!("[{}]", shown.join(",")),
    }
}

/// Returns the JSON text of a part; `None` if a chat has no place for it.
fn part(part: &Part<'_>) -> Option<String> {
    match part {
        Part::Text(raw) => Some(format!(r#"{{"type":"text","text":{raw}}}"#)),
        Part::Image { url, detail } => {
            let detail = quoted(detail.as_deref().unwrap_or("auto"));
            let url = quoted(url);
            Some(format!(r#"{{"type":"image_url","image_url":{{"url":{url},"detail":{detail}}}}}"#))
        }
        Part::Audio { data, format } => {
            let (data, format) = (quoted(data), quoted(format));
            Some(format!(
                r#"{{"type":"input_audio","input_audio":{{"data":{data},"format":{format}}}}}"#
            ))
        }
        Part::Other(raw) | Part::Ambiguous(raw) | Part::Tools(raw) => {
            Some(format!(r#"{{"type":"text","text":{}}}"#, quoted(raw)))
        }
        Part::Thinking(_) | Part::Sealed(_) => None,
    }
}

fn call(call: &Call<'_>) -> String {
    let or_empty = |raw: &str| if raw.is_empty() { r#""""#.to_owned() } else { raw.to_owned() };
    let (id, name) = (or_empty(call.id), or_empty(call.name));
    let arguments = quoted(&call.text());
    format!(
        r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::super::conversation::Conversation;
    use super::*;
    use weir_engine::wire::Role;

    const RESPONSES: &str = r#"{"model":"gpt-5","instructions":"Be brief.","input":[
        {"role":"user","content":[{"type":"input_text","text":"Fix \"a\"."}]},
        {"type":"reasoning","summary":[{"type":"summary_text","text":"Look."}],"encrypted_content":"abcd"},
        {"type":"function_call","call_id":"c1","name":"read","arguments":"{\"path\":\"a.rs\"}"},
        {"type":"function_call_output","call_id":"c1","output":"fn a() {}"},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Done."}]}]}"#;
    const MESSAGES: &str = r#"{"model":"claude-opus-5-5","max_tokens":9,"system":"Be brief.","messages":[
        {"role":"user","content":"Fix \"a\"."},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Look.","signature":"abcd"},
            {"type":"tool_use","id":"c1","name":"read","input":{"path":"a.rs"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"fn a() {}"}]},
        {"role":"assistant","content":"Done."}]}"#;

    #[test]
    fn both_are_the_same_conversation() {
        type Shown = (Role, String, Vec<String>, Vec<String>, Option<String>);
        let shown = |line: &str| -> Vec<Shown> {
            let read = Conversation::read(line, 1, None).expect("it is one");
            assert_eq!(read.turns, [2, 4]);
            let messages = read.messages.into_iter();
            messages
                .map(|own| (own.role, own.content, own.first_arguments, own.calls, own.answers))
                .collect()
        };
        let own = shown(RESPONSES);
        assert_eq!(own, shown(MESSAGES));
        let contents: Vec<&str> = own.iter().map(|message| message.1.as_str()).collect();
        assert_eq!(contents, ["Be brief.", "Fix \"a\".", "", "fn a() {}", "Done."]);
        assert_eq!(
            (own[2].2.as_slice(), own[2].3.as_slice()),
            (&["a.rs".to_owned()][..], &["c1".to_owned()][..])
        );
        assert_eq!(own[3].4.as_deref(), Some("c1"));
    }

    #[test]
    fn a_named_protocol_takes_precedence_and_errors_name_the_place() {
        let chat = Conversation::read(MESSAGES, 1, Some(Protocol::Chat)).expect("it is readable");
        assert_eq!(chat.messages.len(), 4);
        let wrong = r#"{"input":[{"role":"user","content":"x"},{"role":7,"content":"y"}]}"#;
        let error = Conversation::read(wrong, 1, None).expect_err("it is none");
        assert_eq!(error, "input[1] cannot be read");
        let error = Conversation::read(MESSAGES, 1, Some(Protocol::Responses));
        let error = error.expect_err("its messages are elsewhere");
        assert_eq!(error, "no messages are where this protocol has them");
    }
}
