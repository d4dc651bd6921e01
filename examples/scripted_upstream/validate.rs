//! Validation as the API does it, in its own words: members, messages, pairing and alternation.
//!
//! Reads requests and answers none; `chat.rs` judges sizes.

use serde_json::{Map, Value, json};

use super::count::{Encoding, Tally};
use super::script;
use super::strict;

/// Refusal in OpenAI's shape.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub status: u16,
    pub message: String,
    pub kind: &'static str,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl Refusal {
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            kind: "invalid_request_error",
            param: None,
            code: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    pub fn coded(code: &'static str, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message).param(param).code(code)
    }

    /// Refuses a missing member.
    pub fn missing(place: impl Into<String>) -> Self {
        let place = place.into();
        let message = format!("Missing required parameter: '{place}'.");
        Self::coded("missing_required_parameter", place, message)
    }

    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }

    /// Moves a refusal found inside a message to that message's position.
    fn at(&self, index: usize) -> Self {
        let place = format!("messages[{index}]");
        let mut refusal = self.clone();
        refusal.message = refusal.message.replace(HERE, &place);
        refusal.param = refusal.param.map(|param| param.replace(HERE, &place));
        refusal
    }
}

/// Placeholder for a message's position in error texts, since one text may occur at many positions.
const HERE: &str = "{here}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
    Function,
    /// Tools, functions or an answer's schema, which are a piece of the prompt like any other.
    Definitions,
}

/// Known facts of one message, or of definitions.
pub struct Message {
    pub role: Role,
    pub tokens: u64,
    pub ranks: Box<[u32]>,
    /// Equal for messages that a model reads alike.
    pub identity: u128,
    calls: Vec<String>,
    answers: Option<String>,
    pub script: Option<String>,
    problem: Option<Refusal>,
}

impl Message {
    pub fn from_tally(role: Role, mut tally: Tally) -> Self {
        Self {
            role,
            tokens: tally.tokens(),
            identity: tally.identity(),
            ranks: tally.ranks.into(),
            calls: Vec::new(),
            answers: None,
            script: None,
            problem: None,
        }
    }

    /// Reads and counts one message; its errors are kept until its position is known.
    pub fn read(text: &str, encoding: Encoding, suffix: &str, allow_unknown: bool) -> Self {
        let mut tally = Tally::new(encoding);
        let value = match strict::value(text) {
            Ok(Value::Object(object)) => object,
            Ok(other) => {
                let message = format!(
                    "Invalid type for '{HERE}': expected an object, but got {} instead.",
                    kind_of(&other)
                );
                return Self::wrong(tally, Refusal::invalid(message).code("invalid_type"));
            }
            Err(error) => {
                let message = format!("Could not parse '{HERE}': {error}");
                return Self::wrong(tally, Refusal::invalid(message));
            }
        };
        tally.message(&value, suffix);
        let role = match role_of(&value) {
            Ok(role) => role,
            Err(refusal) => return Self::wrong(tally, refusal),
        };
        let mut message = Self::from_tally(role, tally);
        message.problem = check_members(&value, role, allow_unknown).err();
        let calls = value.get("tool_calls").and_then(Value::as_array);
        message.calls = calls.into_iter().flatten().map(id_of).collect();
        let answers = value.get("tool_call_id").and_then(Value::as_str);
        message.answers = answers.map(str::to_owned);
        if role == Role::User {
            message.script = script_of(value.get("content"));
        }
        message
    }

    fn wrong(tally: Tally, problem: Refusal) -> Self {
        let mut message = Self::from_tally(Role::User, tally);
        message.problem = Some(match problem.param {
            Some(_) => problem,
            None => problem.param(HERE),
        });
        message
    }
}

fn id_of(call: &Value) -> String {
    call["id"].as_str().unwrap_or("").to_owned()
}

fn script_of(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => script::line_of(text).map(str::to_owned),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| script::line_of(part["text"].as_str()?))
            .next_back()
            .map(str::to_owned),
        _ => None,
    }
}

fn role_of(message: &Map<String, Value>) -> Result<Role, Refusal> {
    let role = match message.get("role") {
        None | Some(Value::Null) => {
            return Err(Refusal::missing(format!("{HERE}.role")));
        }
        Some(role) => role,
    };
    match role.as_str() {
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("tool") => Ok(Role::Tool),
        Some("function") => Ok(Role::Function),
        _ => {
            let message = format!(
                "Invalid value: {}. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.",
                role.to_string().replace('"', "'")
            );
            Err(Refusal::coded("invalid_value", format!("{HERE}.role"), message))
        }
    }
}

/// Members that SDKs and agents send with messages, the API's own and those it tolerates.
const MESSAGE_MEMBERS: [&str; 16] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "refusal",
    "audio",
    "annotations",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "cache_control",
    "provider_specific_fields",
    "prefix",
    "id",
];

fn check_members(
    message: &Map<String, Value>,
    role: Role,
    allow_unknown: bool,
) -> Result<(), Refusal> {
    for name in message.keys() {
        let known = MESSAGE_MEMBERS.contains(&name.as_str());
        if !known && (!allow_unknown || is_private(name)) {
            return Err(unknown(name, &format!("{HERE}.")));
        }
    }
    if let Some(name) = message.get("name").filter(|name| !name.is_null()) {
        let refused = |character: char| character.is_whitespace() || "<|\\/>".contains(character);
        if name.as_str().is_none_or(|name| name.is_empty() || name.contains(refused)) {
            let message = format!("Invalid '{HERE}.name': string does not match pattern.");
            return Err(Refusal::coded("invalid_value", format!("{HERE}.name"), message));
        }
    }
    check_calls(message.get("tool_calls"), role)?;
    if role == Role::Tool && !message.get("tool_call_id").is_some_and(Value::is_string) {
        return Err(Refusal::missing(format!("{HERE}.tool_call_id")));
    }
    let says_otherwise = ["tool_calls", "function_call", "refusal", "audio"]
        .iter()
        .any(|name| message.get(*name).is_some_and(|value| !value.is_null()));
    let may_be_null = match role {
        Role::Assistant => says_otherwise,
        Role::Function => true,
        _ => false,
    };
    check_content(message.get("content"), role, may_be_null)
}

fn check_content(content: Option<&Value>, role: Role, may_be_null: bool) -> Result<(), Refusal> {
    match content {
        None | Some(Value::Null) if may_be_null => Ok(()),
        None | Some(Value::Null) => {
            let message = "Invalid value for 'content': expected a string, got null.";
            Err(Refusal::invalid(message).param(format!("{HERE}.content")))
        }
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => {
            let mut parts = parts.iter().enumerate();
            parts.try_for_each(|(index, part)| check_part(part, index, role))
        }
        Some(other) => {
            let message = format!(
                "Invalid type for '{HERE}.content': expected one of a string or array of objects, but got {} instead.",
                kind_of(other)
            );
            Err(Refusal::coded("invalid_type", format!("{HERE}.content"), message))
        }
    }
}

fn check_part(part: &Value, index: usize, role: Role) -> Result<(), Refusal> {
    let place = format!("{HERE}.content[{index}]");
    let (needed, holds) = match part["type"].as_str().unwrap_or("") {
        "text" => ("text", part["text"].is_string()),
        "refusal" if role == Role::Assistant => ("refusal", part["refusal"].is_string()),
        "image_url" if role == Role::User => {
            ("image_url.url", part["image_url"]["url"].is_string())
        }
        "input_audio" if role == Role::User => {
            ("input_audio.data", part["input_audio"]["data"].is_string())
        }
        "file" if role == Role::User => ("file", part["file"].is_object()),
        _ => {
            let supported = match role {
                Role::User => "'text', 'image_url', 'input_audio', and 'file'",
                Role::Assistant => "'text' and 'refusal'",
                _ => "'text'",
            };
            let value = part["type"].to_string().replace('"', "'");
            let message = format!("Invalid value: {value}. Supported values are: {supported}.");
            return Err(Refusal::coded("invalid_value", format!("{place}.type"), message));
        }
    };
    if holds {
        return Ok(());
    }
    Err(Refusal::missing(format!("{place}.{needed}")))
}

fn check_calls(calls: Option<&Value>, role: Role) -> Result<(), Refusal> {
    let place = format!("{HERE}.tool_calls");
    let calls = match calls {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) if role == Role::Assistant => calls,
        Some(_) => return Err(unknown("tool_calls", &format!("{HERE}."))),
    };
    if calls.is_empty() {
        let message = format!(
            "Invalid '{place}': empty array. Expected an array with minimum length 1, but got an empty array instead."
        );
        return Err(Refusal::coded("empty_array", place, message));
    }
    for (index, call) in calls.iter().enumerate() {
        let place = format!("{place}[{index}]");
        let missing = match call["type"].as_str() {
            _ if !call["id"].is_string() => "id",
            Some("function") if !call["function"]["name"].is_string() => "function.name",
            Some("function") if !call["function"]["arguments"].is_string() => "function.arguments",
            Some("custom") if !call["custom"]["input"].is_string() => "custom.input",
            Some("function" | "custom") => continue,
            _ => "type",
        };
        return Err(Refusal::missing(format!("{place}.{missing}")));
    }
    Ok(())
}

/// Whether a member belongs to the proxy and must never reach an upstream.
pub fn is_private(name: &str) -> bool {
    name.starts_with("weir") || name.starts_with("x_weir") || name.starts_with("x-weir")
}

pub fn unknown(name: &str, place: &str) -> Refusal {
    let message = if place.is_empty() {
        format!("Unrecognized request argument supplied: {name}")
    } else {
        format!("Unknown parameter: '{place}{name}'.")
    };
    Refusal::coded("unknown_parameter", format!("{place}{name}"), message)
}

pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Judges messages in order: each by itself, then calls and their results.
pub fn conversation<M: AsRef<Message>>(messages: &[M]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let message = message.as_ref();
        if let Some(problem) = &message.problem {
            return Err(problem.at(index));
        }
        if message.role == Role::Tool {
            let id = message.answers.as_deref().unwrap_or("");
            let Some(at) = open.iter().position(|open| *open == id) else {
                let message = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
                return Err(Refusal::invalid(message).param(format!("messages.[{index}].role")));
            };
            open.remove(at);
            continue;
        }
        if !open.is_empty() {
            return Err(unanswered(&open, index));
        }
        open.extend(message.calls.iter().map(String::as_str));
    }
    if open.is_empty() { Ok(()) } else { Err(unanswered(&open, messages.len())) }
}

fn unanswered(open: &[&str], before: usize) -> Refusal {
    let message = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
        open.join(", ")
    );
    Refusal::invalid(message).param(format!("messages.[{before}].role"))
}

/// Checks the rule of strict chat templates: roles alternate, and system messages come first only.
pub fn alternation<M: AsRef<Message>>(messages: &[M]) -> Result<(), Refusal> {
    let mut previous = Role::System;
    for (index, message) in messages.iter().enumerate() {
        let role = message.as_ref().role;
        let problem = match role {
            Role::User | Role::Assistant if role == previous => {
                "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
            }
            Role::System if previous != Role::System => {
                "System message must be at the beginning of the conversation."
            }
            _ => {
                previous = role;
                continue;
            }
        };
        return Err(Refusal::invalid(problem).param(format!("messages.[{index}].role")));
    }
    Ok(())
}
