//! Conversations in a text: a request body, JSON lines of conversations or requests, or the transcript of
//! a coding agent. Finds them and returns each as a request body. Reads no files.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::transcripts::{claude_code, codex};
use weir_engine::wire::Protocol;

/// Number of first lines that show the form of a text.
const PROBED_LINES: usize = 64;

/// Form of a text with conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One request body, or only its messages or items.
    Request,
    /// JSON lines of conversations `{id, source, messages}` or request bodies.
    Trace,
    /// Transcript of Claude Code.
    ClaudeCode,
    /// Rollout of codex.
    Codex,
}

impl Form {
    /// Returns the name of the form in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Trace => "trace",
            Self::ClaudeCode => "claude_code",
            Self::Codex => "codex",
        }
    }
}

/// Conversation of a text, as a request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub id: String,
    pub protocol: Protocol,
    pub body: String,
    /// Whether the whole was one request. A conversation may go on behind its last one.
    pub is_request: bool,
}

/// Finds the conversations of `text`. `protocol` is that of requests and lines; it is recognised by
/// their shape if absent.
///
/// # Errors
///
/// If the text has none of the forms, or a line cannot be read; the text names the line.
pub fn read(text: &str, protocol: Option<Protocol>) -> Result<(Form, Vec<Recorded>), String> {
    if let Ok(whole) = serde_json::from_str::<&RawValue>(text)
        && let Some(own) = request(whole.get(), 1, protocol)
    {
        return Ok((Form::Request, vec![own]));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let form = lines.clone().take(PROBED_LINES).find_map(|(_, line)| form(line)).ok_or(
        "This is neither a request body, nor JSON lines of conversations, nor a transcript of Claude \
         Code or codex.",
    )?;
    let found = match form {
        Form::Request | Form::Trace => trace(lines, protocol)?,
        Form::ClaudeCode => claude_code::conversations(&objects(lines)?),
        Form::Codex => codex::conversations(&objects(lines)?),
    };
    match found.is_empty() {
        true => Err("The transcript has no messages yet.".to_owned()),
        false => Ok((form, found)),
    }
}

/// Members that show the form of a line.
#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

fn form(line: &str) -> Option<Form> {
    let probe: Probe<'_> = serde_json::from_str(line).ok()?;
    let kind = probe.kind.as_deref().unwrap_or_default();
    match probe {
        Probe { messages: Some(_), .. } | Probe { input: Some(_), .. } => Some(Form::Trace),
        Probe { payload: Some(_), .. } if !kind.is_empty() => Some(Form::Codex),
        Probe { message: Some(_), .. } if matches!(kind, "user" | "assistant") => {
            Some(Form::ClaudeCode)
        }
        // codex wrote bare items before it wrote payloads.
        _ if codex::is_item(kind) => Some(Form::Codex),
        _ => None,
    }
}

/// Parses each line; the last one may still be written to.
fn objects<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Vec<&'a RawValue>, String> {
    let mut lines = lines.peekable();
    let mut objects = Vec::new();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_str(line) {
            Ok(object) => objects.push(object),
            Err(_) if lines.peek().is_none() => {}
            Err(error) => return Err(format!("Line {} is not JSON: {error}.", number + 1)),
        }
    }
    Ok(objects)
}

fn trace<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
    protocol: Option<Protocol>,
) -> Result<Vec<Recorded>, String> {
    let read = lines.map(|(number, line)| {
        if let Err(error) = serde_json::from_str::<&RawValue>(line) {
            return Err(format!("Line {} is not JSON: {error}.", number + 1));
        }
        request(line.trim(), number + 1, protocol)
            .ok_or_else(|| format!("Line {} has neither messages nor input.", number + 1))
    });
    read.collect()
}

/// Reads a request, or a bare list of messages or items; `None` if `text` has no messages. `number` names
/// one without an `id`.
fn request(text: &str, number: usize, protocol: Option<Protocol>) -> Option<Recorded> {
    #[derive(Deserialize)]
    struct Head<'a> {
        id: Option<String>,
        #[serde(borrow)]
        model: Option<&'a RawValue>,
        #[serde(borrow)]
        messages: Option<&'a RawValue>,
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    let protocol = protocol.unwrap_or_else(|| Protocol::recognise(text));
    if text.trim_start().starts_with('[') {
        let list = if protocol == Protocol::Responses { "input" } else { "messages" };
        let body = format!(r#"{{"{list}":{text}}}"#);
        return Some(Recorded { id: "request".to_owned(), protocol, body, is_request: true });
    }
    let head: Head<'_> = serde_json::from_str(text).ok()?;
    if head.messages.is_none() && head.input.is_none() {
        return None;
    }
    let is_request = head.id.is_none() && head.model.is_some();
    let id = head.id.unwrap_or_else(|| format!("line-{number}"));
    Some(Recorded { id, protocol, body: text.to_owned(), is_request })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_recognised() {
        let said = r#"{"role":"user","content":"x"}"#;
        let chat = format!(r#"{{"model":"m","messages":[{said}]}}"#);
        let line = format!(r#"{{"id":"a","messages":[{said}]}}"#);
        let item =
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}"#;
        for (text, form, ids, protocol) in [
            (chat.clone(), Form::Request, "line-1", Protocol::Chat),
            (line.clone(), Form::Request, "a", Protocol::Chat),
            (format!("[\n{said}\n]"), Form::Request, "request", Protocol::Chat),
            (format!("[{item}]"), Form::Request, "request", Protocol::Responses),
            (format!("{line}\n\n{chat}\n"), Form::Trace, "a,line-3", Protocol::Chat),
            (
                format!(
                    "{{\"type\":\"summary\",\"summary\":\"s\"}}\n{}",
                    format_args!(r#"{{"type":"user","sessionId":"s1","message":{said}}}"#)
                ),
                Form::ClaudeCode,
                "s1",
                Protocol::Messages,
            ),
            (
                format!(r#"{{"timestamp":"t","type":"response_item","payload":{item}}}"#),
                Form::Codex,
                "rollout",
                Protocol::Responses,
            ),
            (
                format!("{{\"id\":\"old\",\"instructions\":\"Be brief.\"}}\n{item}"),
                Form::Codex,
                "old",
                Protocol::Responses,
            ),
        ] {
            let (found, all) = read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
            let own: Vec<&str> = all.iter().map(|own| own.id.as_str()).collect();
            assert_eq!((found, own.join(",").as_str()), (form, ids), "{text}");
            assert_eq!(all[0].protocol, protocol, "{text}");
            let request = protocol.read(all[0].body.as_bytes(), 100).expect("readable");
            assert_eq!(request.messages.len() - request.outside, 1, "{}", all[0].body);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        let line = r#"{"id":"a","messages":[{"role":"user","content":"x"}]}"#;
        for (text, reason) in [
            ("", "neither"),
            ("hello", "neither"),
            ("{}", "neither"),
            ("7", "neither"),
            (&format!("{line}\nx\n"), "Line 2 is not JSON"),
            (&format!("{line}\n{{}}\n"), "Line 2 has neither"),
            (
                "{\"type\":\"user\",\"message\":{}}\nx\n{\"type\":\"user\",\"message\":{}}",
                "Line 2 is not JSON",
            ),
            ("{\"type\":\"user\",\"message\":{}}\n{\"type\":", "no messages yet"),
        ] {
            let error = read(text, None).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
