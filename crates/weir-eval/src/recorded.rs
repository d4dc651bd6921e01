//! Conversations in a text: a request body, JSON lines of conversations or requests, a log of a gateway, an
//! HTTP archive, or the transcript of a coding agent. Finds them and returns each as a request body. Reads no
//! files.

use serde_json::value::RawValue;

use crate::transcripts::{LineMembers, claude_code, codex, logs, pi};
pub use crate::transcripts::{Recorded, RecordedExchange};
use weir_engine::wire::{Protocol, json};

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

/// What a text has.
#[derive(Debug)]
pub struct ReadText {
    pub form: TextForm,
    pub recorded: Vec<Recorded>,
    /// Says how many lines cannot be read, and why not the first of them.
    pub left_out: Option<String>,
}

/// Finds the conversations of `text`. `protocol` is that of requests and lines; it is recognised by
/// their shape if absent.
///
/// # Errors
///
/// If the text has none of the forms, or no line with a conversation.
pub fn read(text: &str, protocol: Option<Protocol>) -> Result<ReadText, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Ok(whole) = serde_json::from_str::<&RawValue>(text)
        && let Some((form, recorded)) = whole_text(whole.get(), protocol)
    {
        return Ok(ReadText { form, recorded, left_out: None });
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let form = lines.clone().find_map(|(_, line)| form(line)).ok_or(
        "This is neither a request body, nor JSON lines of conversations, nor a transcript of Claude \
         Code, codex or pi.",
    )?;
    let mut left_out = LeftOut::default();
    let lines = lines.map(|(place, line)| (place + 1, line));
    let recorded = match form {
        TextForm::Request | TextForm::Trace | TextForm::Har => {
            trace(lines, protocol, &mut left_out)
        }
        TextForm::ClaudeCode => claude_code::conversations(&objects(lines, &mut left_out)),
        TextForm::Codex => codex::conversations(&objects(lines, &mut left_out)),
        TextForm::Pi => pi::conversations(&objects(lines, &mut left_out)),
    };
    let left_out = left_out.said();
    match recorded.is_empty() {
        true => Err(left_out.unwrap_or_else(|| "The transcript has no messages yet.".to_owned())),
        false => Ok(ReadText { form, recorded, left_out }),
    }
}

/// Lines that cannot be read.
#[derive(Default)]
struct LeftOut {
    lines: usize,
    first: Option<String>,
}

impl LeftOut {
    fn add(&mut self, line: usize, reason: &str) {
        self.lines += 1;
        self.first.get_or_insert_with(|| format!("Line {line} {reason}"));
    }

    fn said(self) -> Option<String> {
        let more = match self.lines.saturating_sub(1) {
            0 => String::new(),
            more => format!(" with {more} more"),
        };
        Some(format!("{}; it is left out{more}", self.first?))
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

/// Returns the form that the members of a line show.
fn form(line: &str) -> Option<TextForm> {
    let raw: &RawValue = serde_json::from_str(line).ok()?;
    let line = LineMembers::of(raw.get())?;
    let kind = line.text("type").unwrap_or_default();
    let has = |name| line.get(name).is_some();
    match kind.as_str() {
        _ if has("messages") || has("input") => Some(TextForm::Trace),
        "" => (has("body") || has("request")).then_some(TextForm::Trace),
        _ if has("payload") => Some(TextForm::Codex),
        "user" | "assistant" if has("message") => Some(TextForm::ClaudeCode),
        "session" => Some(TextForm::Pi),
        // codex wrote bare items before it wrote payloads.
        kind => codex::is_item(kind).then_some(TextForm::Codex),
    }
}

/// Parses each line. The last one may still be written to, and a machine that stopped leaves a broken one.
fn objects<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
    left_out: &mut LeftOut,
) -> Vec<&'a RawValue> {
    let parsed = lines.filter_map(|(number, line)| {
        let parsed = serde_json::from_str(line);
        parsed.map_err(|error| left_out.add(number, &format!("is not JSON ({error})"))).ok()
    });
    parsed.collect()
}

/// Reads each line as a request or a conversation. Logs of gateways have other requests, too.
fn trace<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
    protocol: Option<Protocol>,
    left_out: &mut LeftOut,
) -> Vec<Recorded> {
    let mut found = Vec::new();
    for (number, line) in lines {
        for raw in objects(std::iter::once((number, line)), left_out) {
            match logs::request(raw.get(), number, protocol) {
                Some(own) => found.push(own),
                None => left_out.add(number, "has neither messages nor input"),
            }
        }
    }
    found
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
            let found = read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
            let (found, all) = (found.form, found.recorded);
            let own: Vec<&str> = all.iter().map(|own| own.id.as_str()).collect();
            assert_eq!((found, own.join(",").as_str()), (form, ids), "{text}");
            assert_eq!(all[0].protocol, protocol, "{text}");
            let request = protocol.read(all[0].body.as_bytes(), 100).expect("readable");
            assert_eq!(request.messages.len() - request.outside, 1, "{}", all[0].body);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "neither"),
            ("hello", "neither"),
            ("{}", "neither"),
            ("7", "neither"),
            (
                "{\"request\":7}\n{\"request\":8}\n",
                "Line 1 has neither messages nor input; it is left out with 1 more",
            ),
            ("{\"type\":\"user\",\"message\":{}}\n{\"type\":\"user\"}", "no messages yet"),
            ("{\"type\":\"user\",\"message\":{}}\n{\"type\":", "Line 2 is not JSON"),
        ] {
            let error = read(text, None).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn lines_that_cannot_be_read_are_left_out_and_named() {
        let line = r#"{"id":"a","messages":[{"role":"user","content":"x"}]}"#;
        let said = r#"{"type":"user","message":{"role":"user","content":"x"}}"#;
        let other = "{\"type\":\"queue-operation\"}\n".repeat(100);
        let empty = "\0".repeat(512);
        for (text, conversations, left_out) in [
            (format!("{line}\nx\n{{}}\n{line}"), 2, Some("Line 2 is not JSON")),
            (format!("{line}\n{{\"id\":\"b\"}}\n"), 1, Some("Line 2 has neither")),
            (format!("{said}\n{empty}\n{said}\n"), 1, Some("Line 2 is not JSON")),
            (format!("{said}\n{{\"type\":"), 1, Some("Line 2 is not JSON")),
            (format!("\u{feff}{said}\n{said}\n"), 1, None),
            (format!("{other}{said}\n"), 1, None),
        ] {
            let found = read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found.recorded.len(), conversations, "{text}");
            let said = found.left_out.as_deref();
            let is_named = said.zip(left_out).is_some_and(|(said, own)| said.starts_with(own));
            assert!(is_named || said == left_out, "{text}: {said:?}");
        }
    }
}
