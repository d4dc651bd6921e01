//! Conversations in a text: a request body, JSON lines of conversations or requests, a log or export of a
//! gateway, an HTTP archive, or the transcript of a coding agent. Finds them and returns each as a request body.
//! `FORMS` lists the forms, `form` recognises them, and `transcripts` has a reader for each. Reads no files.

use serde_json::value::RawValue;

use crate::transcripts::{
    LineMembers, claude_code, codex, gemini, langfuse, logs, opencode, otel, pi,
};
pub use crate::transcripts::{Recorded, RecordedExchange};
use weir_engine::wire::{Protocol, json};

/// Maximum number of lists of records in one another.
const MOST_LISTS: u8 = 2;

/// Form of a text with conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// One request body, or only its messages or items.
    Request,
    /// JSON lines of conversations `{id, source, messages}`, request bodies or records about requests.
    Trace,
    /// HTTP archive.
    Har,
    Langfuse,
    Helicone,
    OpenTelemetry,
    ClaudeCode,
    /// Rollout of codex.
    Codex,
    GeminiCli,
    Opencode,
    Pi,
    QwenCode,
}

/// Forms that are read, in the order of [`TextForm`]: their name in answers, and what they are in words.
const FORMS: [(&str, &str); 12] = [
    ("request", "request bodies"),
    ("trace", "JSON lines of conversations or requests, OpenAI batch files, LiteLLM's logs"),
    ("har", "HAR"),
    ("langfuse", "exports of Langfuse"),
    ("helicone", "exports of Helicone"),
    ("otel", "OpenTelemetry's traces and logs in JSON"),
    ("claude_code", "transcripts of Claude Code"),
    ("codex", "codex"),
    ("gemini_cli", "gemini-cli"),
    ("opencode", "opencode"),
    ("pi", "pi"),
    ("qwen_code", "qwen-code"),
];

impl TextForm {
    /// Returns the name of the form in answers.
    pub fn name(self) -> &'static str {
        FORMS[self as usize].0
    }
}

/// Returns the forms that [`read`] knows, in words.
pub fn known_forms() -> String {
    FORMS.map(|(_, words)| words).join(", ")
}

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
        && let Some(read) = whole_text(whole, protocol)
    {
        return read;
    }
    let table = table(text);
    let text = table.as_deref().unwrap_or(text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let form = lines.clone().find_map(|(_, line)| form(line)).ok_or(
        "This is neither a request body, nor JSON lines of conversations, nor a transcript of a coding agent.",
    )?;
    let mut left_out = LeftOut::default();
    let parsed = lines.filter_map(|(place, line)| {
        let parsed = serde_json::from_str::<&RawValue>(line);
        let number = place + 1;
        let parsed =
            parsed.map_err(|error| left_out.add(number, &format!("is not JSON ({error})")));
        Some((number, parsed.ok()?))
    });
    // The last one may still be written to, and a machine that stopped leaves a broken one.
    let parsed: Vec<(usize, &RawValue)> = parsed.collect();
    let objects = || parsed.iter().map(|(_, raw)| *raw).collect::<Vec<_>>();
    let recorded = match form {
        TextForm::ClaudeCode => claude_code::conversations(&objects()),
        TextForm::Codex => codex::conversations(&objects()),
        TextForm::GeminiCli => gemini::gemini_cli(&objects()),
        TextForm::Pi => pi::conversations(&objects()),
        TextForm::QwenCode => gemini::qwen(&objects()),
        _ => {
            let mut found = Vec::new();
            for (number, raw) in &parsed {
                add_records(raw.get(), (*number, MOST_LISTS), protocol, &mut left_out, &mut found);
            }
            found
        }
    };
    ReadText::new(form, recorded, left_out)
}

impl ReadText {
    fn new(form: TextForm, recorded: Vec<Recorded>, left_out: LeftOut) -> Result<Self, String> {
        let left_out = left_out.said();
        match recorded.is_empty() {
            true => Err(left_out.unwrap_or_else(|| "It has no messages yet.".to_owned())),
            false => Ok(Self { form, recorded, left_out }),
        }
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

/// Returns the rows of a table with commas as lines of JSON, if it has requests' bodies; `None` for other texts.
fn table(text: &str) -> Option<String> {
    let head = text.lines().next()?;
    if head.starts_with(['{', '[']) || !head.contains("request_body") {
        return None;
    }
    let mut rows = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let names = rows.headers().ok()?.clone();
    let mut lines = String::new();
    for row in rows.records() {
        // What is no row is no JSON either, and is named by its line.
        let row = row.unwrap_or_default();
        let member = |(name, value): (&str, &str)| {
            let is_json = value.starts_with(|first: char| !first.is_alphabetic())
                && serde_json::from_str::<&RawValue>(value).is_ok();
            let value =
                if is_json { value.replace('\n', " ") } else { crate::transcripts::quoted(value) };
            (!value.is_empty()).then(|| format!("{}:{value}", crate::transcripts::quoted(name)))
        };
        let members: Vec<String> = names.iter().zip(row.iter()).filter_map(member).collect();
        lines.push_str(&format!("{{{}}}\n", members.join(",")));
    }
    Some(lines)
}

/// Reads a text that is one JSON value; `None` if it is only one line of many.
fn whole_text(whole: &RawValue, protocol: Option<Protocol>) -> Option<Result<ReadText, String>> {
    let text = whole.get();
    let mut left_out = LeftOut::default();
    let mut found = Vec::new();
    if text.starts_with('[') {
        let elements = json::elements(text)?;
        let has_role = |raw: &&str| json::member(raw, "role").is_some();
        // A list of records, rather than of messages or items.
        if !elements.is_empty() && !elements.iter().any(has_role) {
            for (place, raw) in elements.iter().enumerate() {
                add_records(raw, (place + 1, MOST_LISTS), protocol, &mut left_out, &mut found);
            }
            let form = elements.iter().find_map(|raw| form(raw));
            let is_list = |form: &TextForm| *form == TextForm::Trace || is_export(*form);
            if let Some(form) = form.filter(|form| !found.is_empty() || is_list(form)) {
                return Some(ReadText::new(form, found, left_out));
            }
        }
        let list = logs::list(text, protocol.unwrap_or_else(|| Protocol::recognise(text)));
        return Some(ReadText::new(TextForm::Request, vec![list], LeftOut::default()));
    }
    let line = LineMembers::of(text)?;
    let form = form(text);
    let recorded = match form {
        Some(TextForm::GeminiCli) => gemini::gemini_cli(&[whole]),
        Some(TextForm::Opencode) => opencode::conversations(&line),
        Some(form) if is_export(form) || listed(&line).is_some() => {
            add_records(text, (1, MOST_LISTS), protocol, &mut left_out, &mut found);
            found
        }
        _ => match logs::har(text, protocol) {
            Some(found) => {
                let found = Some(found).filter(|found| !found.is_empty())?;
                return Some(ReadText::new(TextForm::Har, found, left_out));
            }
            None => {
                let request = logs::request(text, 1, protocol)?;
                return Some(ReadText::new(TextForm::Request, vec![request], left_out));
            }
        },
    };
    Some(ReadText::new(form?, recorded, left_out))
}

/// Whether each record of a form may be something else than a request.
fn is_export(form: TextForm) -> bool {
    matches!(form, TextForm::Langfuse | TextForm::Helicone | TextForm::OpenTelemetry)
}

/// Returns the form that the members of a line show.
fn form(line: &str) -> Option<TextForm> {
    let raw: &RawValue = serde_json::from_str(line).ok()?;
    let line = LineMembers::of(raw.get())?;
    let kind = line.text("type").unwrap_or_default();
    let has = |name| line.get(name).is_some();
    let has_parts = || line.get("message").is_some_and(|own| json::member(own, "parts").is_some());
    match kind.as_str() {
        _ if opencode::is_export(&line) => Some(TextForm::Opencode),
        _ if gemini::is_session(&line) => Some(TextForm::GeminiCli),
        _ if otel::spans(&line, raw.get()).is_some() => Some(TextForm::OpenTelemetry),
        _ if langfuse::is_observation(&line) => Some(TextForm::Langfuse),
        _ if let Some(list) = listed(&line) => form(list[0]).or(Some(TextForm::Langfuse)),
        _ if has("request_created_at") || has("request_body") => Some(TextForm::Helicone),
        _ if has("messages") || has("input") => Some(TextForm::Trace),
        "" => (has("body") || has("request")).then_some(TextForm::Trace),
        _ if has("payload") => Some(TextForm::Codex),
        "user" | "assistant" | "tool_result" if has_parts() => Some(TextForm::QwenCode),
        "user" | "assistant" if has("message") => Some(TextForm::ClaudeCode),
        "session" => Some(TextForm::Pi),
        // codex wrote bare items before it wrote payloads.
        kind => codex::is_item(kind).then_some(TextForm::Codex),
    }
}

/// Returns the observations of a trace or of a page, the traces of a page, or the rows of one of LiteLLM's.
fn listed<'a>(line: &LineMembers<'a>) -> Option<Vec<&'a str>> {
    let is_one = |raw: &&str| {
        let own = LineMembers::of(raw);
        own.is_some_and(|own| {
            langfuse::is_observation(&own)
                || own.get("observations").is_some()
                || logs::is_log(&own)
        })
    };
    let list = ["observations", "data"].into_iter().find_map(|name| line.get(name));
    list.and_then(json::elements).filter(|list| list.first().is_some_and(is_one))
}

/// Reads the requests of a record. Logs of gateways have other records, too.
fn add_records(
    raw: &str,
    (number, lists): (usize, u8),
    protocol: Option<Protocol>,
    left_out: &mut LeftOut,
    found: &mut Vec<Recorded>,
) {
    let Some(line) = LineMembers::of(raw) else {
        left_out.add(number, "is no object");
        return;
    };
    if let Some(list) = listed(&line).filter(|_| lists > 0) {
        for own in list {
            add_records(own, (number, lists - 1), protocol, left_out, found);
        }
        return;
    }
    let read: Vec<Result<Option<Recorded>, &str>> = match otel::spans(&line, raw) {
        Some(spans) => spans.into_iter().map(|span| otel::request(span, number)).collect(),
        None if langfuse::is_observation(&line) => vec![langfuse::request(&line, number)],
        None if opencode::is_export(&line) => {
            found.extend(opencode::conversations(&line));
            return;
        }
        None => {
            let read = logs::request(raw, number, protocol);
            vec![read.map(Some).ok_or_else(|| logs::reason(&line))]
        }
    };
    for read in read {
        match read {
            Ok(request) => found.extend(request),
            Err(reason) => left_out.add(number, reason),
        }
    }
}

#[cfg(test)]
mod tests;
