//! Conversations in a text: a request body, JSON lines of conversations or requests, a log of a gateway, an
//! HTTP archive, or the transcript of a coding agent. Finds them and returns each as a request body. Reads no
//! files.

use serde::Deserialize;
use serde_json::value::RawValue;

pub use crate::transcripts::{Recorded, RecordedExchange};
use crate::transcripts::{claude_code, codex, logs, pi};
use weir_engine::wire::{Protocol, json};

/// Number of first lines that show the form of a text.
const PROBED_LINES: usize = 64;

/// Form of a text with conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// One request body, or only its messages or items.
    Request,
    /// JSON lines of conversations `{id, source, messages}`, request bodies or records about requests.
    Trace,
    /// HTTP archive.
    Har,
    /// Transcript of Claude Code.
    ClaudeCode,
    /// Rollout of codex.
    Codex,
    /// Session of pi.
    Pi,
}

impl TextForm {
    /// Returns the name of the form in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Trace => "trace",
            Self::Har => "har",
            Self::ClaudeCode => "claude_code",
            Self::Codex => "codex",
            Self::Pi => "pi",
        }
    }
}

/// Forms that [`read`] knows, in words.
pub const KNOWN_FORMS: &str = "request bodies, JSON lines of conversations or requests, OpenAI batch files, \
                               LiteLLM's logs, HAR, and transcripts of Claude Code, codex or pi";

/// Finds the conversations of `text`. `protocol` is that of requests and lines; it is recognised by
/// their shape if absent.
///
/// # Errors
///
/// If the text has none of the forms, or a line cannot be read; the text names the line.
pub fn read(text: &str, protocol: Option<Protocol>) -> Result<(TextForm, Vec<Recorded>), String> {
    if let Ok(whole) = serde_json::from_str::<&RawValue>(text)
        && let Some(found) = whole_text(whole.get(), protocol)
    {
        return Ok(found);
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let form = lines.clone().take(PROBED_LINES).find_map(|(_, line)| form(line)).ok_or(
        "This is neither a request body, nor JSON lines of conversations, nor a transcript of Claude \
         Code, codex or pi.",
    )?;
    let found = match form {
        TextForm::Request | TextForm::Trace | TextForm::Har => trace(lines, protocol)?,
        TextForm::ClaudeCode => claude_code::conversations(&objects(lines)?),
        TextForm::Codex => codex::conversations(&objects(lines)?),
        TextForm::Pi => pi::conversations(&objects(lines)?),
    };
    match found.is_empty() {
        true => Err("The transcript has no messages yet.".to_owned()),
        false => Ok((form, found)),
    }
}

/// Reads a text that is one JSON value.
fn whole_text(text: &str, protocol: Option<Protocol>) -> Option<(TextForm, Vec<Recorded>)> {
    if text.starts_with('[') {
        let elements = json::elements(text)?;
        let has_role = |raw: &&str| json::member(raw, "role").is_some();
        // A list of records, rather than of messages or items.
        let records = elements.iter().enumerate();
        let records = records.map(|(place, raw)| logs::request(raw, place + 1, protocol));
        if !elements.is_empty()
            && !elements.iter().any(has_role)
            && let Some(found) = records.collect::<Option<Vec<_>>>()
        {
            return Some((TextForm::Trace, found));
        }
        let list = logs::list(text, protocol.unwrap_or_else(|| Protocol::recognise(text)));
        return Some((TextForm::Request, vec![list]));
    }
    if let Some(found) = logs::har(text, protocol) {
        return Some((TextForm::Har, found)).filter(|(_, found)| !found.is_empty());
    }
    Some((TextForm::Request, vec![logs::request(text, 1, protocol)?]))
}

/// Members that show the form of a line.
#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

fn form(line: &str) -> Option<TextForm> {
    let probe: Probe<'_> = serde_json::from_str(line).ok()?;
    let kind = probe.kind.as_deref().unwrap_or_default();
    match probe {
        Probe { messages: Some(_), .. } | Probe { input: Some(_), .. } => Some(TextForm::Trace),
        Probe { body: Some(_), .. } | Probe { request: Some(_), .. } if kind.is_empty() => {
            Some(TextForm::Trace)
        }
        Probe { payload: Some(_), .. } if !kind.is_empty() => Some(TextForm::Codex),
        Probe { message: Some(_), .. } if matches!(kind, "user" | "assistant") => {
            Some(TextForm::ClaudeCode)
        }
        _ if kind == "session" => Some(TextForm::Pi),
        // codex wrote bare items before it wrote payloads.
        _ if codex::is_item(kind) => Some(TextForm::Codex),
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
        logs::request(line.trim(), number + 1, protocol)
            .ok_or_else(|| format!("Line {} has neither messages nor input.", number + 1))
    });
    read.collect()
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
            (chat.clone(), TextForm::Request, "line-1", Protocol::Chat),
            (line.clone(), TextForm::Request, "a", Protocol::Chat),
            (format!("[\n{said}\n]"), TextForm::Request, "request", Protocol::Chat),
            (format!("[{item}]"), TextForm::Request, "request", Protocol::Responses),
            (format!("{line}\n\n{chat}\n"), TextForm::Trace, "a,line-3", Protocol::Chat),
            (
                format!(
                    "{{\"type\":\"summary\",\"summary\":\"s\"}}\n{}",
                    format_args!(r#"{{"type":"user","sessionId":"s1","message":{said}}}"#)
                ),
                TextForm::ClaudeCode,
                "s1",
                Protocol::Messages,
            ),
            (
                format!(r#"{{"timestamp":"t","type":"response_item","payload":{item}}}"#),
                TextForm::Codex,
                "rollout",
                Protocol::Responses,
            ),
            (
                format!("{{\"id\":\"old\",\"instructions\":\"Be brief.\"}}\n{item}"),
                TextForm::Codex,
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
