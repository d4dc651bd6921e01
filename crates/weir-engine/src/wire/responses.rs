//! OpenAI's Responses: parses a body into members and messages. Reads spans; changes nothing.
//!
//! `instructions` is a system message outside the list. In `input`, the items that a model wrote one
//! after another (reasoning, a message, calls, built-in tools) are one message of the assistant, and
//! each output of a call is a tool's message: the conversation has the shape that it has in chat
//! completions. The API reference of Responses describes the items.

use std::borrow::Cow;
use std::collections::HashSet;

use super::allowance::output_limit;
use super::beginning::Begun;
use super::body::{Members, expect_string, fields, member_value, model, next_fields, pin, wrong};
use super::builtin;
use super::json;
use super::message::{Call, Content, Message, Naming, Part, Role};
use super::walk::Walk;
use super::{BodyError, Extra, ExtraKind, FieldError, Protocol, Request};

/// Top-level members that weir acts on; each may be given once.
const MEMBERS: [&str; 10] = [
    "model",
    "instructions",
    "input",
    "stream",
    "max_output_tokens",
    "tools",
    "text",
    "previous_response_id",
    "conversation",
    "prompt",
];

/// Members that refer to a conversation or a prompt kept by the provider.
const STATE: [&str; 3] = ["previous_response_id", "conversation", "prompt"];

/// Kind of an item, as far as the engine distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Written by the model; belongs to the items before it that the model wrote, too.
    Assistant,
    /// Output of a call.
    Output,
    /// Reference to an item kept by the provider.
    Reference,
    /// Any other: a message of its own.
    Other,
}

/// Determines the kind of an item by its `type` and `role`, and for a search of tools by `execution`.
fn kind(item: Option<&str>, role: Option<&str>, execution: Option<&str>) -> Kind {
    match item.unwrap_or(untyped(role)) {
        "message" if role == Some("assistant") => Kind::Assistant,
        "reasoning" | "program" | "program_output" => Kind::Assistant,
        "tool_search_output" if execution == Some("client") => Kind::Output,
        "tool_search_output" => Kind::Assistant,
        "item_reference" => Kind::Reference,
        "mcp_list_tools" | "mcp_approval_request" => Kind::Assistant,
        "mcp_approval_response" => Kind::Output,
        own if own.ends_with("_call_output") => Kind::Output,
        own if own.ends_with("_call") => Kind::Assistant,
        _ => Kind::Other,
    }
}

/// Returns the type of an item that names none: a message has a role, a reference has not.
fn untyped(role: Option<&str>) -> &'static str {
    if role.is_some() { "message" } else { "item_reference" }
}

/// Whether an item is a call that the client answers by an item of its own. The provider answers the
/// other calls inside the same item.
fn is_answered_by_client(item: &str) -> bool {
    matches!(
        item,
        "function_call"
            | "custom_tool_call"
            | "computer_call"
            | "local_shell_call"
            | "shell_call"
            | "apply_patch_call"
    )
}

/// Collects the messages of `input`, item by item.
struct Items<'a> {
    text: &'a str,
    max_messages: usize,
    messages: Vec<&'a str>,
    /// Start of the last message, if the model wrote it and the next item may belong to it.
    open: Option<usize>,
    has_reference: bool,
    /// Whether a program of the model still runs.
    is_in_program: bool,
}

impl<'a> Items<'a> {
    /// Reads the next item.
    fn item(&mut self, walk: &mut Walk<'a>) -> Option<Result<(), BodyError>> {
        if walk.peek()? != b'{' {
            walk.value()?;
            return Some(Err(wrong("input", "a string or a list of items, which are objects")));
        }
        let start = walk.position();
        let (mut own, mut role, mut execution, mut is_approved) = (None, None, None, false);
        walk.members(|name, walk| {
            let value = walk.value()?;
            match name {
                "\"type\"" => own = Some(value),
                "\"role\"" => role = Some(value),
                "\"execution\"" => execution = Some(value),
                "\"approval_request_id\"" => is_approved = value != "null",
                _ => {}
            }
            Some(())
        })?;
        let [own, role, execution] = [own, role, execution].map(|raw| raw.and_then(json::string));
        let kind = kind(own.as_deref(), role.as_deref(), execution.as_deref());
        self.has_reference |= kind == Kind::Reference;
        match own.as_deref() {
            Some("program") => self.is_in_program = true,
            Some("program_output") => self.is_in_program = false,
            _ => {}
        }
        // The outputs of calls that a program makes belong to the program.
        let is_programs = kind == Kind::Output && self.is_in_program;
        let from = self.open.filter(|_| kind == Kind::Assistant || is_programs);
        if from.is_some() {
            self.messages.pop();
        } else if self.messages.len() == self.max_messages {
            return Some(Err(BodyError::TooManyMessages { limit: self.max_messages }));
        }
        let from = from.unwrap_or(start);
        self.messages.push(self.text.get(from..walk.position())?);
        // A late result ends its message, so that what follows is not bound to what it names.
        let is_late = match own.as_deref() {
            Some("program_output") => true,
            Some("mcp_call") => is_approved,
            _ => false,
        };
        let is_open = kind == Kind::Assistant && !is_late;
        self.open = (is_open || is_programs).then_some(from);
        self.is_in_program &= self.open.is_some();
        Some(Ok(()))
    }
}

/// Reads a body in one validating pass, from where `begun` ends.
pub(super) fn read<'a>(
    text: &'a str,
    mut begun: Begun<'a>,
    max_messages: usize,
) -> Result<Request<'a>, BodyError> {
    let own = std::mem::take(&mut begun.messages);
    let mut items = Items {
        text,
        max_messages,
        messages: own,
        open: None,
        has_reference: false,
        is_in_program: false,
    };
    let members = Members::read(text, &begun, &MEMBERS, "input", |walk| items.item(walk))?;
    let [model_raw, instructions, input, stream_raw, most, tools, format, _, conversation, prompt] =
        members.values;
    let [metadata, client_metadata, cache_key, _] = members.labels;
    let mut messages = Vec::with_capacity(items.messages.len() + 1);
    let is_given = |raw: &Option<&str>| raw.is_some_and(|raw| raw != "null");
    if is_given(&instructions) {
        if !instructions.is_some_and(|raw| raw.starts_with('"')) {
            return Err(wrong("instructions", "a string"));
        }
        messages.extend(members.spans[1]);
    }
    let outside = messages.len();
    match input {
        None | Some("null") => messages.append(&mut items.messages),
        Some(raw) if raw.starts_with('"') => messages.extend(members.spans[2]),
        Some(_) => return Err(wrong("input", "a string or a list of items")),
    }
    let state = STATE.iter().zip(&members.values[7..]).find(|(_, raw)| is_given(raw));
    let format = format.and_then(format_of);
    let variables = prompt.and_then(|raw| json::member(raw, "variables"));
    let extras = [
        (ExtraKind::Tools, tools),
        (ExtraKind::ResponseFormat, format),
        (ExtraKind::Content, variables),
    ];
    Ok(Request {
        protocol: Protocol::Responses,
        text,
        model: model(model_raw)?,
        stream: stream_raw == Some("true"),
        missing_usage_option: None,
        max_output_tokens: most.and_then(|raw| output_limit(raw, Some(Protocol::Responses))),
        output_limits: most.filter(|raw| *raw != "null").into_iter().collect(),
        absent_limits: if most.is_none() { vec!["max_output_tokens"] } else { Vec::new() },
        choices: 1,
        extras: extras
            .into_iter()
            .filter_map(|(kind, raw)| Some(Extra { kind, raw: raw.filter(|raw| *raw != "null")? }))
            .collect(),
        messages,
        outside,
        containers: Vec::new(),
        provider_state: match state {
            Some((name, _)) => Some(*name),
            None => items.has_reference.then_some("item_reference"),
        },
        is_open: items.open.is_some(),
        leading: members.leading,
        labels: [metadata, client_metadata, cache_key, conversation],
    })
}

/// Returns the format in the member `text`, if it has one.
fn format_of(text: &str) -> Option<&str> {
    let members = json::members(text)?;
    members.into_iter().find(|(name, _)| name == "format").map(|(_, raw)| raw)
}

/// Members of an item that weir acts on; each may be given once.
const ITEM_MEMBERS: [&str; 18] = [
    "type",
    "role",
    "execution",
    "content",
    "output",
    "name",
    "arguments",
    "input",
    "action",
    "operation",
    "call_id",
    "summary",
    "encrypted_content",
    "id",
    "approval_request_id",
    "caller",
    "tools",
    "weir",
];

/// Reads one message: an item, a run of items that the model wrote, or a member of the body.
pub(super) fn read_message(raw: &str) -> Result<Message<'_>, FieldError> {
    let mut message = Message::empty(Protocol::Responses, raw, Role::Assistant);
    if raw.starts_with('"') {
        let (is_system, value) = member(raw);
        message.role = if is_system { Role::System } else { Role::User };
        message.content = Content::Text(value);
        return Ok(message);
    }
    let items = Item::run(raw).unwrap_or_default();
    let items: Vec<Item<'_>> = items.into_iter().collect::<Result<_, _>>()?;
    let is_alone = items.len() == 1;
    // The calls of a program have their outputs in the same run.
    let outputs = items.iter().filter(|item| item.kind == Kind::Output);
    let answered: HashSet<&str> = outputs.filter_map(|item| item.call_id).collect();
    let mut parts = Vec::new();
    for item in items {
        message.weir = message.weir.or(item.weir);
        if is_alone && item.kind != Kind::Assistant {
            return item.alone(message);
        }
        item.join((is_alone, &answered), &mut message, &mut parts)?;
    }
    let has_text = |parts: &[Part<'_>]| parts.iter().any(|part| matches!(part, Part::Text(_)));
    if !matches!(message.content, Content::Text(_)) {
        match has_text(&parts) {
            true => message.content = Content::Parts(parts),
            false => message.others.extend(parts),
        }
    }
    Ok(message)
}

/// Splits the text of a member of the body: whether it is `instructions`, and its value.
fn member(raw: &str) -> (bool, &str) {
    let is_system = raw.starts_with("\"instructions\"");
    (is_system, member_value(raw))
}

/// One item, with the members that weir acts on.
struct Item<'a> {
    raw: &'a str,
    kind: Kind,
    /// Whether it is a call that the client answers by an item of its own.
    is_answered: bool,
    own: Cow<'a, str>,
    role: Option<&'a str>,
    content: Option<&'a str>,
    output: Option<&'a str>,
    name: Option<&'a str>,
    arguments: Option<&'a str>,
    call_id: Option<&'a str>,
    /// Whether it gives an ID besides its own.
    has_call_id: bool,
    /// Request for approval that it belongs to.
    request: Option<&'a str>,
    caller: Option<&'a str>,
    summary: Option<&'a str>,
    sealed: Option<&'a str>,
    tools: Option<&'a str>,
    weir: Option<&'a str>,
}

impl<'a> Item<'a> {
    /// Reads the items of a message; `None` if `raw` is no run of values.
    fn run(raw: &'a str) -> Option<Vec<Result<Self, FieldError>>> {
        let mut items = Vec::new();
        Walk::new(raw).run(|walk| {
            walk.peek()?;
            let start = walk.position();
            let found = next_fields(walk, &ITEM_MEMBERS, "an item, which is an object")?;
            let raw = walk.since(start)?;
            items.push(found.and_then(|found| Self::of(raw, found)));
            Some(())
        })?;
        Some(items)
    }

    fn read(raw: &'a str) -> Result<Self, FieldError> {
        Self::of(raw, fields(raw, &ITEM_MEMBERS, "an item, which is an object")?)
    }

    fn of(raw: &'a str, found: [Option<&'a str>; ITEM_MEMBERS.len()]) -> Result<Self, FieldError> {
        let weir = pin(found[ITEM_MEMBERS.len() - 1])?;
        let found = found.map(|value| value.filter(|value| *value != "null"));
        let [
            own,
            role,
            execution,
            content,
            output,
            name,
            arguments,
            input,
            action,
            operation,
            call_id,
            summary,
            sealed,
            id,
            request,
            caller,
            tools,
            _,
        ] = found;
        let own = own.map(|own| expect_string(own, "type")).transpose()?;
        let said = role.map(|role| expect_string(role, "role")).transpose()?;
        let own = own.unwrap_or(Cow::Borrowed(untyped(said.as_deref())));
        let execution = execution.and_then(json::string);
        let kind = kind(Some(&own), said.as_deref(), execution.as_deref());
        // Codex declares its tools by such an item.
        let own_tools = own == "additional_tools";
        Ok(Self {
            raw,
            kind,
            is_answered: is_answered_by_client(&own)
                || (own == "tool_search_call" && execution.as_deref() == Some("client")),
            own,
            role,
            content,
            output,
            name,
            arguments: arguments.or(input).or(action).or(operation),
            call_id: call_id.or(request).or(id),
            has_call_id: call_id.is_some(),
            request,
            caller,
            summary,
            sealed: sealed.filter(|raw| raw.starts_with('"')),
            tools: tools.filter(|raw| own_tools && raw.starts_with('[')),
            weir,
        })
    }

    /// Adds the IDs with which it names itself or other items. A client's call and its output, which have
    /// members of their own, are left out.
    ///
    /// Source: OpenAI's API reference of Responses, and its guide to programmatic tool calling.
    fn name_in(&self, message: &mut Message<'a>) {
        let is_call = matches!(self.own.as_ref(), "program" | "mcp_approval_request");
        let is_output = self.kind == Kind::Output || self.own == "program_output";
        let naming = match self.kind {
            _ if is_output => Naming::Answer,
            _ if is_call => Naming::Call,
            Kind::Assistant => Naming::Own,
            _ => Naming::Mention,
        };
        let is_named = self.has_call_id || is_call || is_output;
        let own = self.call_id.filter(|_| is_named).map(|id| (naming, id));
        let caller = self.caller.and_then(|raw| fields(raw, &["caller_id"], "an object").ok());
        let caller = caller.and_then(|[id]| id);
        let inner = self.call_id.filter(|_| caller.is_some() && self.kind == Kind::Assistant);
        let others = self.request.into_iter().chain(caller);
        message.names.extend(own);
        message.names.extend(inner.map(|id| (Naming::Inner, id)));
        message.names.extend(others.map(|id| (Naming::Mention, id)));
    }

    /// Reads an item that is a message of its own.
    fn alone(self, mut message: Message<'a>) -> Result<Message<'a>, FieldError> {
        self.name_in(&mut message);
        if self.kind == Kind::Output {
            message.role = Role::Tool;
            message.answers = self.call_id;
            message.is_error = json::member(self.raw, "status") == Some("\"failed\"")
                || json::member(self.raw, "approve") == Some("false");
            match (self.own.as_ref(), self.output) {
                // It cannot be a text, so it is never replaced.
                ("computer_call_output", Some(output)) => message.others.push(read_part(output)),
                ("tool_search_output", _) => message.others.push(Part::Other(self.raw)),
                (_, Some(output)) if !output.starts_with('"') => add_output(output, &mut message),
                (_, output) => message.content = Content::read(output, read_part),
            }
            return Ok(message);
        }
        if self.own != "message" {
            // A compaction stands for all before it. It, settings given on the way and the developer's
            // items, such as codex's tools, are never removed.
            let is_compaction = self.own.starts_with("compaction");
            let is_kept = is_compaction || self.own == "configuration_update";
            let role = self.role.and_then(json::string);
            let is_system = matches!(role.as_deref(), Some("developer" | "system"));
            message.role = if is_kept || is_system { Role::System } else { Role::Other };
            message.others.push(match (self.sealed, self.tools) {
                (Some(sealed), _) if is_compaction => Part::Sealed(sealed),
                (_, Some(tools)) => Part::Tools(tools),
                _ => Part::Other(self.raw),
            });
            return Ok(message);
        }
        let role = self.role.ok_or(FieldError::WrongType { key: "role", expected: "a string" })?;
        message.role = match expect_string(role, "role")?.as_ref() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            _ => Role::Other,
        };
        message.content = Content::read(self.content, read_part);
        Ok(message)
    }

    /// Adds an item that the model wrote to its message.
    fn join(
        self,
        (is_alone, answered): (bool, &HashSet<&str>),
        message: &mut Message<'a>,
        parts: &mut Vec<Part<'a>>,
    ) -> Result<(), FieldError> {
        self.name_in(message);
        match self.own.as_ref() {
            "message" => match Content::read(self.content, read_part) {
                Content::Text(text) if is_alone => message.content = Content::Text(text),
                Content::Text(text) => parts.push(Part::Text(text)),
                Content::Parts(own) => parts.extend(own),
                Content::None => {}
            },
            "reasoning" => {
                for list in [self.summary, self.content].into_iter().flatten() {
                    for part in json::elements(list).unwrap_or_default() {
                        message.others.push(match read_part(part) {
                            Part::Text(text) => Part::Thinking(text),
                            other => other,
                        });
                    }
                }
                message.others.extend(self.sealed.map(Part::Sealed));
            }
            _ if self.is_answered && !self.call_id.is_some_and(|id| answered.contains(id)) => {
                message.calls.push(Call {
                    name: self.name.or(json::member(self.raw, "type")).unwrap_or_default(),
                    arguments: self.arguments.unwrap_or_default(),
                    id: self.call_id.unwrap_or_default(),
                    has_failed: false,
                });
            }
            _ => {
                message.inner_calls.extend(builtin::call(&self.own, self.raw));
                message.inner_outputs.extend(builtin::outputs(&self.own, self.raw));
                message.others.push(self.picture().unwrap_or_else(|| self.other()));
            }
        }
        Ok(())
    }

    /// Returns an item that has no kind of part of its own. All that counts in a client's call and its output
    /// are their texts.
    fn other(&self) -> Part<'a> {
        let is_text = self.output.is_none_or(|output| output.starts_with('"'));
        match (self.is_answered || self.own == "function_call_output") && is_text {
            true => Part::Ambiguous(self.raw),
            false => Part::Other(self.raw),
        }
    }

    /// Returns the picture of a generated image, which the provider counts as one.
    fn picture(&self) -> Option<Part<'a>> {
        let is_image = self.own == "image_generation_call";
        let [result] = fields(self.raw, &["result"], "an item").ok().filter(|_| is_image)?;
        let data = result.and_then(json::string)?;
        Some(Part::Image { url: Cow::Owned(format!("data:;base64,{data}")), detail: None })
    }
}

/// Reads the output of a call that is no string; the texts in structured parts are parts, too.
fn add_output<'a>(raw: &'a str, message: &mut Message<'a>) {
    let read = match raw.starts_with('{') {
        true => vec![Part::Other(raw)],
        false => match Content::read(Some(raw), read_part) {
            Content::Parts(parts) => parts,
            Content::Text(_) | Content::None => Vec::new(),
        },
    };
    let mut parts = Vec::with_capacity(read.len());
    for part in read {
        match part {
            // A shell's output without text takes no note.
            Part::Other(raw) if is_shell_output(message.raw) && builtin::texts(raw).is_empty() => {
                message.others.push(part);
            }
            Part::Other(raw) => builtin::add(raw, part, message, &mut parts),
            part => parts.push(part),
        }
    }
    message.content = if parts.is_empty() && !message.others.is_empty() {
        Content::None
    } else {
        Content::Parts(parts)
    };
}

/// Whether an item is the output of a shell, whose parts have no type.
pub(super) fn is_shell_output(raw: &str) -> bool {
    json::member(raw, "type") == Some("\"shell_call_output\"")
}

/// Reads a part; an unknown one becomes [`Part::Other`].
fn read_part(raw: &str) -> Part<'_> {
    if !raw.starts_with('{') {
        return Part::Other(raw);
    }
    let Some(members) = json::unique_members(raw) else { return Part::Ambiguous(raw) };
    let member = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw);
    let kind = member("type").and_then(json::string).unwrap_or_default();
    let text = |name: &str| member(name).filter(|text| text.starts_with('"')).map(Part::Text);
    let part = match kind.as_ref() {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => text("text"),
        "refusal" => text("refusal"),
        "input_image" | "computer_screenshot" => member("image_url")
            .and_then(json::string)
            .map(|url| Part::Image { url, detail: member("detail").and_then(json::string) }),
        "input_audio" => member("input_audio").and_then(|raw| {
            let members = json::unique_members(raw)?;
            let member =
                |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw);
            Some(Part::Audio {
                data: member("data").and_then(json::string)?,
                format: member("format").and_then(json::string).unwrap_or_default(),
            })
        }),
        _ => None,
    };
    part.unwrap_or(Part::Other(raw))
}

/// Whether the JSON text of an element is an item of Responses, and no message of a chat.
pub(super) fn is_item(raw: &str) -> bool {
    json::member(raw, "type").is_some()
}

/// Returns the number of items before message `index`, and of those in it before its first item that
/// cannot be read.
pub(super) fn items_before(messages: &[&str], outside: usize, index: usize) -> (usize, usize) {
    let items = |raw: &&str| json::run(raw).map_or(1, |items| items.len());
    let before = messages.iter().take(index).skip(outside).map(items).sum();
    let own = messages.get(index).and_then(|raw| json::run(raw)).unwrap_or_default();
    (before, own.iter().position(|item| read_message(item).is_err()).unwrap_or_default())
}

/// Returns the JSON text of a user message with the content `text`.
pub(super) fn user_message(text: &str) -> String {
    let text = json::quoted(text);
    format!(
        r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{text}}}]}}"#
    )
}

/// Returns the JSON text of a note as a message of its own, marked for later plans.
pub(crate) fn note(text: &str) -> String {
    let mut raw = user_message(text);
    raw.truncate(raw.len() - 1);
    raw.push_str(r#","weir":{"note":true}}"#);
    raw
}

/// Returns the item that says the same as `raw`, the member `input` with a text.
pub(crate) fn item_of(raw: &str) -> String {
    format!(
        r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{}}}]}}"#,
        member_value(raw)
    )
}

/// Returns the lists of parts in a message that text can be put into or removed from, in order.
pub(super) fn lists(raw: &str) -> Vec<Vec<&str>> {
    json::run(raw).unwrap_or_default().into_iter().filter_map(parts_of).collect()
}

/// Returns the parts of an item's content or output, if that is a list.
fn parts_of(item: &str) -> Option<Vec<&str>> {
    let item = Item::read(item).ok()?;
    let has_parts = item.own == "message" || item.kind == Kind::Output;
    json::elements(item.content.or(item.output).filter(|_| has_parts)?)
}

/// Returns the JSON text of a part with the text `escaped`, for a message of this role.
pub(super) fn text_part(role: Role, escaped: &str) -> String {
    let kind = if role == Role::Assistant { "output_text" } else { "input_text" };
    format!(r#"{{"type":"{kind}","text":"{escaped}"}}"#)
}

/// Returns the JSON text of a message's content, if it has one.
pub(super) fn content(raw: &str) -> Option<&str> {
    if raw.starts_with('"') {
        return Some(member(raw).1);
    }
    let [item] = json::run(raw)?[..] else { return None };
    let item = Item::read(item).ok()?;
    match item.kind {
        Kind::Output => item.output,
        _ => item.content,
    }
}

/// Returns the output of a shell with the text `escaped` and the outcome of the first part.
pub(super) fn shell_output(output: &str, escaped: &str) -> String {
    let first = json::elements(output).unwrap_or_default().first().copied().unwrap_or_default();
    let outcome = json::member(first, "outcome").unwrap_or(r#"{"type":"exit","exit_code":0}"#);
    format!(r#"[{{"stdout":"{escaped}","stderr":"","outcome":{outcome}}}]"#)
}

#[cfg(test)]
mod tests {
    use super::super::Edit;
    use super::super::splice::{Clip, TextCut, apply};
    use super::*;

    fn request(body: &str) -> Request<'_> {
        Protocol::Responses.read(body.as_bytes(), 100).expect("readable")
    }

    const ITEMS: &str = r#"{"model":"gpt-5","input":[
        {"role":"user","content":"Fix it."},
        {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Look."}],"encrypted_content":"abcd"},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
        {"type":"function_call","call_id":"c1","name":"read","arguments":"{\"path\":\"a.rs\"}"},
        {"type":"custom_tool_call","call_id":"c2","name":"patch","input":"*** Begin"},
        {"type":"function_call_output","call_id":"c1","output":"fn a() {}"},
        {"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"done"},{"type":"input_image","image_url":"data:image/png;base64,AA"}]},
        {"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}},
        {"type":"novelty","x":1}
    ],"max_output_tokens":99,"instructions":"Be brief."}"#;

    #[test]
    fn items_that_the_model_wrote_together_are_one_message() {
        let request = request(ITEMS);
        assert_eq!((request.messages.len(), request.outside), (7, 1));
        assert_eq!(request.messages[0], r#""instructions":"Be brief.""#);
        assert_eq!(request.max_output_tokens, Some(99));
        let read: Vec<Message<'_>> =
            request.messages.iter().map(|raw| read_message(raw).expect("readable")).collect();
        let roles: Vec<Role> = read.iter().map(|message| message.role).collect();
        use Role::{Assistant, Other, System, Tool, User};
        assert_eq!(roles, [System, User, Assistant, Tool, Tool, Assistant, Other]);
        assert_eq!(read[2].texts(), [r#""I look.""#]);
        let names: Vec<&str> = read[2].calls.iter().map(|call| call.name).collect();
        assert_eq!(names, [r#""read""#, r#""patch""#]);
        assert_eq!(read[2].calls[1].text(), "*** Begin");
        assert!(matches!(
            read[2].others[..],
            [Part::Thinking("\"Look.\""), Part::Sealed("\"abcd\"")]
        ));
        assert_eq!((read[3].answers, read[4].answers), (Some("\"c1\""), Some("\"c2\"")));
        assert!(matches!(&read[4].content, Content::Parts(parts) if parts.len() == 2));
        assert!(matches!(read[5].others[..], [Part::Other(_)]));
    }

    #[test]
    fn edits_stand_in_the_items_they_are_about() {
        let request = request(ITEMS);
        let clip =
            |head, tail| TextCut::Clip(Clip { kept: vec![0..head, tail..7], marker: "…".into() });
        let sent = apply(
            Protocol::Responses,
            &request,
            &[
                (0, Edit::InsertAfter("note".into())),
                (1, Edit::Prepend("Earlier.\n".into())),
                (2, Edit::Clip(vec![clip(1, 6)])),
                (2, Edit::Append("!".into())),
                (2, Edit::Arguments(vec![Some("{}".into()), Some("x".into())])),
                (3, Edit::Replace("masked".into())),
                (4, Edit::Parts(vec![None, Some("image".into())])),
                (5, Edit::Remove),
            ],
        );
        let sent: serde_json::Value = serde_json::from_str(&sent).expect("JSON");
        assert_eq!(
            sent["input"],
            serde_json::json!([
                {"type":"message","role":"user","content":[{"type":"input_text","text":"note"}]},
                {"role":"user","content":"Earlier.\nFix it."},
                {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Look."}],"encrypted_content":"abcd"},
                {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I…."},{"type":"output_text","text":"!"}]},
                {"type":"function_call","call_id":"c1","name":"read","arguments":"{}"},
                {"type":"custom_tool_call","call_id":"c2","name":"patch","input":"x"},
                {"type":"function_call_output","call_id":"c1","output":"masked"},
                {"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"done"},{"type":"input_text","text":"image"}]},
                {"type":"novelty","x":1}
            ])
        );
        assert_eq!(sent["instructions"], "Be brief.");
        let removed = [(2, Edit::Remove), (3, Edit::Remove), (4, Edit::Remove)];
        let sent = apply(Protocol::Responses, &request, &removed);
        let cut = ITEMS.find(r#"{"type":"reasoning""#).expect("received");
        let after = ITEMS.find(r#"{"type":"web_search_call""#).expect("received");
        assert_eq!(sent, [&ITEMS[..cut], &ITEMS[after..]].concat());
    }

    #[test]
    fn a_text_is_one_message_and_state_is_named() {
        let body = r#"{"input":"hi","instructions":null,"previous_response_id":"resp_1"}"#;
        let read = request(body);
        assert_eq!((read.messages.as_slice(), read.outside), ([r#""input":"hi""#].as_slice(), 0));
        assert_eq!(read.provider_state, Some("previous_response_id"));
        let message = read_message(read.messages[0]).expect("readable");
        assert_eq!((message.role, message.texts()), (Role::User, vec!["\"hi\""]));
        for (body, state) in [
            (r#"{"input":[{"type":"item_reference","id":"x"}]}"#, Some("item_reference")),
            (r#"{"input":[],"conversation":"conv"}"#, Some("conversation")),
            (r#"{"input":[],"previous_response_id":null,"prompt":null}"#, None),
            ("{}", None),
        ] {
            assert_eq!(request(body).provider_state, state, "{body}");
        }
    }

    #[test]
    fn places_are_those_of_the_body() {
        let body = request(ITEMS);
        let places: Vec<String> = (0..body.messages.len()).map(|index| body.place(index)).collect();
        let expected = [
            "instructions",
            "input[0]",
            "input[1]",
            "input[5]",
            "input[6]",
            "input[7]",
            "input[8]",
        ];
        assert_eq!(places, expected);
        let text = request(r#"{"input":"hi"}"#);
        assert_eq!(text.place(0), "input");
        let wrong = request(
            r#"{"input":[{"role":"user","content":"x"},{"type":"reasoning","summary":[]},{"role":"assistant","content":"y","content":"z"}]}"#,
        );
        assert!(read_message(wrong.messages[1]).is_err());
        assert_eq!(wrong.place(1), "input[2]");
    }

    #[test]
    fn items_of_the_developer_and_compactions_are_system_messages() {
        for (item, role) in [
            (
                r#"{"type":"additional_tools","role":"developer","tools":[{"type":"custom","name":"exec"}]}"#,
                Role::System,
            ),
            (r#"{"type":"novelty","role":"system"}"#, Role::System),
            (r#"{"type":"compaction","encrypted_content":"abcd"}"#, Role::System),
            (r#"{"type":"novelty","role":"user"}"#, Role::Other),
        ] {
            assert_eq!(read_message(item).expect("readable").role, role, "{item}");
        }
    }

    #[test]
    fn refuses_with_the_place() {
        let type_of = |key: &str, expected| BodyError::WrongType { key: key.into(), expected };
        for (body, refusal) in [
            (r#"{"input":3}"#, type_of("input", "a string or a list of items")),
            (
                r#"{"input":["x"]}"#,
                type_of("input", "a string or a list of items, which are objects"),
            ),
            (r#"{"instructions":[]}"#, type_of("instructions", "a string")),
            (r#"{"input":[],"input":[]}"#, BodyError::DuplicateKey { key: "input".into() }),
            (r#"{"Input":[]}"#, BodyError::OtherCase { key: "Input".into(), known: "input" }),
            (r#"{"input":[{},{},{}]}"#, BodyError::TooManyMessages { limit: 2 }),
        ] {
            let refused = Protocol::Responses.read(body.as_bytes(), 2).expect_err("refused");
            assert_eq!(refused, refusal, "{body}");
        }
        for body in [r#"{"input":[{]}"#, r#"{"input":[{}}"#, "[]", r#"{"input":[{}]} x"#] {
            let read = Protocol::Responses.read(body.as_bytes(), 2);
            assert!(matches!(read, Err(BodyError::NotJson { .. })), "{body}");
        }
    }

    #[test]
    fn what_belongs_to_a_program_or_a_search_for_tools_stays_with_it() {
        let read = |items: &str| -> Vec<(Role, usize, usize)> {
            let body = format!(r#"{{"input":[{items}]}}"#);
            let request = request(&body);
            let read = request.messages.iter().map(|raw| read_message(raw).expect("readable"));
            read.map(|own| (own.role, own.calls.len(), own.others.len())).collect()
        };
        let result = Protocol::Responses.read_message(r#"{"type":"program","call_id":"p","code":"x"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"}"#);
        let result = result.expect("a message");
        assert_eq!(result.arguments().collect::<Vec<_>>(), [r#""o""#]);
        let program = r#"{"type":"program","call_id":"p","code":"x"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"},{"type":"program_output","call_id":"p","result":"r"}"#;
        assert_eq!(read(program), [(Role::Assistant, 0, 4)]);
        let own = r#"{"type":"function_call","call_id":"d"},{"type":"function_call_output","call_id":"d","output":"o"}"#;
        let all = [(Role::Assistant, 0, 4), (Role::Assistant, 1, 0), (Role::Tool, 0, 0)];
        assert_eq!(read(&format!("{program},{own}")), all);
        let call = r#"{"type":"mcp_call","id":"m","approval_request_id":"r","output":"o"}"#;
        let all = [(Role::Assistant, 0, 1), (Role::Assistant, 1, 0), (Role::Tool, 0, 0)];
        assert_eq!(read(&format!("{call},{own}")), all);
        let search = |execution: &str| {
            read(&format!(
                r#"{{"type":"tool_search_call","execution":"{execution}","arguments":{{}}}},{{"type":"tool_search_output","execution":"{execution}","tools":[]}}"#
            ))
        };
        assert_eq!(search("server"), [(Role::Assistant, 0, 2)]);
        assert_eq!(search("client"), [(Role::Assistant, 1, 0), (Role::Tool, 0, 1)]);
        let kept = r#"{"type":"additional_tools","role":"developer","tools":[]},{"type":"configuration_update"}"#;
        assert_eq!(read(kept), [(Role::System, 0, 1), (Role::System, 0, 1)]);
    }

    #[test]
    fn outputs_that_are_no_text_are_not_replaced() {
        let raw = r#"{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,AA"}}"#;
        let message = read_message(raw).expect("readable");
        assert!(matches!(message.content, Content::None) && message.others.len() == 1);
    }
}
