//! Anthropic's Messages: parses a body into members and messages. Reads spans; changes nothing.
//!
//! `system` is a system message outside the list. A user's message that holds results of tools is one
//! message for each result and one for each run of other blocks, so that the conversation has the shape
//! that it has in chat completions. `containers` joins them again. The API reference of Messages
//! describes the blocks.

use std::borrow::Cow;
use std::ops::Range;

use super::beginning::Begun;
use super::body::{Members, expect_string, fields, member_value, model, next_fields, pin, wrong};
use super::builtin;
use super::json;
use super::json::rejoin;
use super::message::{Call, Content, Message, Naming, Part, Role};
use super::request::Container;
use super::walk::Walk;
use super::{BodyError, Extra, ExtraKind, FieldError, Protocol, Request};

/// Top-level members that weir acts on; each may be given once.
const MEMBERS: [&str; 8] = [
    "model",
    "system",
    "messages",
    "stream",
    "max_tokens",
    "tools",
    "output_config",
    // The name of the beta.
    "output_format",
];

/// Type of a block with the result of a tool, as JSON text.
pub(super) const RESULT: &str = "\"tool_result\"";

/// Collects the messages of `messages`.
struct List<'a> {
    text: &'a str,
    max_messages: usize,
    messages: Vec<&'a str>,
    containers: Vec<Container<'a>>,
}

/// Place of a block in the body, whether it is a result, and whether it names a role.
struct Place {
    span: Range<usize>,
    is_result: bool,
    has_role: bool,
}

impl<'a> List<'a> {
    /// Reads the next message.
    fn message(&mut self, walk: &mut Walk<'a>) -> Option<Result<(), BodyError>> {
        if walk.peek()? != b'{' {
            walk.value()?;
            return Some(Err(wrong("messages", "an array of messages, which are objects")));
        }
        let start = walk.position();
        let (mut role, mut blocks, mut is_marked) = (None, None, false);
        let mut twice = None;
        walk.members(|name, walk| {
            match name {
                "\"role\"" => twice = twice.or(role.replace(walk.value()?).map(|_| "role")),
                "\"content\"" => {
                    let own = content_blocks(walk)?;
                    twice = twice.or(blocks.replace(own).map(|_| "content"));
                }
                name => {
                    is_marked |= name == "\"weir\"";
                    walk.value()?;
                }
            }
            Some(())
        })?;
        if let Some(key) = twice {
            return Some(Err(BodyError::DuplicateKey { key: key.to_owned() }));
        }
        let raw = self.text.get(start..walk.position())?;
        let role = role.unwrap_or_default();
        let blocks = blocks.unwrap_or_default();
        let is_user = json::string(role).is_some_and(|role| role == "user");
        // A block with a role, which no provider has, would look like a message if it stood alone.
        let has_roles = blocks.iter().any(|block| block.has_role);
        let is_split = is_user && !has_roles && blocks.iter().any(|block| block.is_result);
        if is_split && is_marked {
            let expected = "on a block of the content, if a message holds results of tools";
            return Some(Err(wrong("weir", expected)));
        }
        let first = self.messages.len();
        match is_split {
            true => self.split(&blocks)?,
            false => self.messages.push(raw),
        }
        if self.messages.len() > self.max_messages {
            return Some(Err(BodyError::TooManyMessages { limit: self.max_messages }));
        }
        let messages = first..self.messages.len();
        self.containers.push(Container { raw, role, messages, is_split });
        Some(Ok(()))
    }

    /// Adds one message for each result among `blocks`, and one for each run of others.
    fn split(&mut self, blocks: &[Place]) -> Option<()> {
        let mut at = 0;
        while let Some(block) = blocks.get(at) {
            let others = blocks[at..].iter().take_while(|own| !own.is_result).count();
            let end = if block.is_result { at + 1 } else { at + others };
            self.messages.push(self.text.get(block.span.start..blocks[end - 1].span.end)?);
            at = end;
        }
        Some(())
    }
}

/// Skips a message's content, and returns its blocks; none if it is not a list.
fn content_blocks(walk: &mut Walk<'_>) -> Option<Vec<Place>> {
    let mut blocks = Vec::new();
    if walk.peek()? != b'[' {
        walk.value()?;
        return Some(blocks);
    }
    walk.elements(|walk| {
        let is_object = walk.peek()? == b'{';
        let start = walk.position();
        let (mut is_result, mut has_role) = (false, false);
        if is_object {
            walk.members(|name, walk| {
                let value = walk.value()?;
                has_role |= name == "\"role\"" || name.contains('\\');
                is_result |= name == "\"type\"" && value == RESULT;
                Some(())
            })?;
        } else {
            walk.value()?;
        }
        blocks.push(Place { span: start..walk.position(), is_result, has_role });
        Some(())
    })?;
    Some(blocks)
}

/// Reads a body in one validating pass, from where `begun` ends.
pub(super) fn read<'a>(
    text: &'a str,
    mut begun: Begun<'a>,
    max_messages: usize,
) -> Result<Request<'a>, BodyError> {
    let messages = std::mem::take(&mut begun.messages);
    let containers = std::mem::take(&mut begun.containers);
    let mut list = List { text, max_messages, messages, containers };
    let members = Members::read(text, &begun, &MEMBERS, "messages", |walk| list.message(walk))?;
    let [model_raw, system, no_list, stream_raw, most, tools, output, beta] = members.values;
    let List { messages: mut own, mut containers, .. } = list;
    if no_list.is_some() {
        return Err(wrong("messages", "an array of messages"));
    }
    let mut messages = Vec::with_capacity(own.len() + 1);
    match system {
        None | Some("null") => {}
        Some(raw) if raw.starts_with(['"', '[']) => messages.extend(members.spans[1]),
        Some(_) => return Err(wrong("system", "a string or a list of blocks")),
    }
    let outside = messages.len();
    for container in &mut containers {
        let Range { start, end } = container.messages;
        container.messages = start + outside..end + outside;
    }
    messages.append(&mut own);
    let format = output.and_then(|raw| json::member(raw, "format")).or(beta);
    let extras = [(ExtraKind::Tools, tools), (ExtraKind::ResponseFormat, format)];
    Ok(Request {
        protocol: Protocol::Messages,
        text,
        model: model(model_raw)?,
        stream: stream_raw == Some("true"),
        missing_usage_option: None,
        max_output_tokens: most.and_then(json::count),
        output_limits: most.filter(|raw| *raw != "null").into_iter().collect(),
        absent_limits: Vec::new(),
        choices: 1,
        extras: extras
            .into_iter()
            .filter_map(|(kind, raw)| Some(Extra { kind, raw: raw.filter(|raw| *raw != "null")? }))
            .collect(),
        messages,
        outside,
        containers,
        provider_state: None,
        is_open: false,
        leading: members.leading,
        labels: members.labels,
    })
}

/// Whether the JSON text of a message has blocks that chat completions do not know.
pub(super) fn has_own_blocks(raw: &str) -> bool {
    let blocks = json::member(raw, "content").and_then(json::elements).unwrap_or_default();
    blocks.iter().any(|block| {
        let kind = json::member(block, "type").and_then(json::string).unwrap_or_default();
        matches!(
            kind.as_ref(),
            "tool_use" | "tool_result" | "thinking" | "redacted_thinking" | "document" | "image"
        ) || builtin::is_known(&kind)
    })
}

/// Members of a message that weir acts on; each may be given once.
const MESSAGE_MEMBERS: [&str; 3] = ["role", "content", "weir"];

/// Reads one message: an object of the list, blocks of one, or `system`.
pub(super) fn read_message(raw: &str) -> Result<Message<'_>, FieldError> {
    let mut message = Message::empty(Protocol::Messages, raw, Role::User);
    if raw.starts_with('"') {
        message.role = Role::System;
        let value = member_value(raw);
        add_content(&mut message, Some(value))?;
        return Ok(message);
    }
    let [role, content, weir] = fields(raw, &MESSAGE_MEMBERS, "an object with a role")?;
    let Some(role) = role else { return read_blocks(raw, message) };
    message.role = match expect_string(role, "role")?.as_ref() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        _ => Role::Other,
    };
    message.weir = pin(weir)?;
    add_content(&mut message, content)?;
    Ok(message)
}

/// Reads a run of blocks of a user's message, or one result of a tool.
fn read_blocks<'a>(raw: &'a str, mut message: Message<'a>) -> Result<Message<'a>, FieldError> {
    let mut parts = Vec::new();
    for block in Parsed::run(raw).unwrap_or_default() {
        let block = block?;
        message.weir = message.weir.or(block.weir);
        if block.kind == "tool_result" {
            message.role = Role::Tool;
            message.answers = block.tool_use_id;
            message.is_error = block.is_error;
            add_content(&mut message, block.content)?;
            return Ok(message);
        }
        block.name_in(&mut message);
        parts.push(block.part());
    }
    message.is_aside = true;
    message.content = Content::Parts(parts);
    Ok(message)
}

/// Members of a block that weir acts on; each may be given once.
const BLOCK_MEMBERS: [&str; 14] = [
    "type",
    "text",
    "thinking",
    "signature",
    "data",
    "id",
    "name",
    "input",
    "tool_use_id",
    "caller",
    "content",
    "source",
    "is_error",
    "weir",
];

/// One block, with the members that weir acts on.
struct Parsed<'a> {
    raw: &'a str,
    kind: Cow<'a, str>,
    text: Option<&'a str>,
    thinking: Option<&'a str>,
    sealed: Option<&'a str>,
    id: Option<&'a str>,
    name: Option<&'a str>,
    input: Option<&'a str>,
    tool_use_id: Option<&'a str>,
    caller: Option<&'a str>,
    content: Option<&'a str>,
    source: Option<&'a str>,
    is_error: bool,
    weir: Option<&'a str>,
}

impl<'a> Parsed<'a> {
    /// Reads the blocks of a run; `None` if `raw` is no run.
    fn run(raw: &'a str) -> Option<Vec<Result<Self, FieldError>>> {
        let mut blocks = Vec::new();
        Walk::new(raw).run(|walk| {
            blocks.push(Self::next(walk)?);
            Some(())
        })?;
        Some(blocks)
    }

    /// Reads the blocks of a list; `None` if `raw` is no list.
    fn list(raw: &'a str) -> Option<Vec<Result<Self, FieldError>>> {
        let mut blocks = Vec::new();
        let mut walk = Walk::new(raw);
        walk.elements(|walk| {
            blocks.push(Self::next(walk)?);
            Some(())
        })?;
        walk.end()?;
        Some(blocks)
    }

    /// Reads the next value of a walk; `None` if it is no JSON.
    fn next(walk: &mut Walk<'a>) -> Option<Result<Self, FieldError>> {
        walk.peek()?;
        let start = walk.position();
        let found = next_fields(walk, &BLOCK_MEMBERS, "a block, which is an object")?;
        let raw = walk.since(start)?;
        Some(found.and_then(|found| Self::of(raw, found)))
    }

    fn of(raw: &'a str, found: [Option<&'a str>; BLOCK_MEMBERS.len()]) -> Result<Self, FieldError> {
        let weir = pin(found[BLOCK_MEMBERS.len() - 1])?;
        let found = found.map(|value| value.filter(|value| *value != "null"));
        let [
            kind,
            text,
            thinking,
            signature,
            data,
            id,
            name,
            input,
            tool_use_id,
            caller,
            content,
            source,
            is_error,
            _,
        ] = found;
        let string = |raw: &&str| raw.starts_with('"');
        Ok(Self {
            raw,
            kind: kind.and_then(json::string).unwrap_or_default(),
            text: text.filter(string),
            thinking: thinking.filter(string),
            sealed: signature.or(data).filter(string),
            id,
            name,
            input,
            tool_use_id,
            caller,
            content,
            source,
            is_error: is_error == Some("true"),
            weir,
        })
    }

    /// Reads it as a part of a user's or a system's message, or of a result.
    fn part(&self) -> Part<'a> {
        match (self.kind.as_ref(), self.text, self.source) {
            ("text", Some(text), _) => Part::Text(text),
            ("image", _, Some(source)) => image(source).unwrap_or(Part::Other(self.raw)),
            ("document", _, Some(source)) => document(source).unwrap_or(Part::Other(self.raw)),
            _ => Part::Other(self.raw),
        }
    }

    /// Adds the IDs with which it names itself or other blocks: any block with a `tool_use_id` is a result,
    /// of any type, and a call waits for one, also if the provider carries it out. A client's own call is among
    /// the calls already.
    ///
    /// Source: Anthropic's guides to server tools and to programmatic tool calling.
    fn name_in(&self, message: &mut Message<'a>) {
        let naming = match self.kind.as_ref() {
            "tool_use" => None,
            kind if kind.ends_with("tool_use") => self.id.map(|id| (Naming::Call, id)),
            _ => self.id.map(|id| (Naming::Own, id)),
        };
        let answer = self.tool_use_id.map(|id| (Naming::Answer, id));
        let caller = self.caller.and_then(|raw| fields(raw, &["tool_id"], "an object").ok());
        let caller = caller.and_then(|[id]| id).map(|id| (Naming::Mention, id));
        let inner = self.id.filter(|_| caller.is_some() && self.kind == "tool_use");
        let inner = inner.map(|id| (Naming::Inner, id));
        message.names.extend(naming.into_iter().chain(answer).chain(caller).chain(inner));
    }

    /// Adds it to the assistant's message; a text goes to `parts`.
    fn said(self, message: &mut Message<'a>, parts: &mut Vec<Part<'a>>) {
        self.name_in(message);
        match self.kind.as_ref() {
            "text" => parts.push(self.part()),
            "thinking" | "redacted_thinking" => {
                message.others.extend(self.thinking.map(Part::Thinking));
                message.others.extend(self.sealed.map(Part::Sealed));
            }
            "tool_use" => message.calls.push(Call {
                name: self.name.unwrap_or_default(),
                arguments: self.input.unwrap_or_default(),
                id: self.id.unwrap_or_default(),
                has_failed: false,
            }),
            kind => {
                message.inner_calls.extend(builtin::call(kind, self.raw));
                message.inner_outputs.extend(builtin::outputs(kind, self.raw));
                message.others.push(Part::Other(self.raw));
            }
        }
    }

    /// Adds it to the result of a tool; the texts in a structured block go to `parts`.
    fn result(self, message: &mut Message<'a>, parts: &mut Vec<Part<'a>>) {
        let part = self.part();
        match part {
            Part::Other(_) | Part::Thinking(_) => builtin::add(self.raw, part, message, parts),
            part => parts.push(part),
        }
    }
}

/// Reads the source of an image.
fn image(source: &str) -> Option<Part<'_>> {
    let members = json::unique_members(source)?;
    let member = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw);
    let url = match member("url").and_then(json::string) {
        Some(url) => url,
        None => {
            let data = member("data").and_then(json::string)?;
            let kind = member("media_type").and_then(json::string).unwrap_or_default();
            Cow::Owned(format!("data:{kind};base64,{data}"))
        }
    };
    Some(Part::Image { url, detail: None })
}

/// Reads the source of a document, if that is its text.
fn document(source: &str) -> Option<Part<'_>> {
    let [kind, data] = fields(source, &["type", "data"], "an object").ok()?;
    let is_text = kind.and_then(json::string).as_deref() == Some("text");
    data.filter(|data| is_text && data.starts_with('"')).map(Part::Thinking)
}

/// Reads the content of `message`, whose role is known.
fn add_content<'a>(message: &mut Message<'a>, raw: Option<&'a str>) -> Result<(), FieldError> {
    let Some(raw) = raw.filter(|raw| *raw != "null") else { return Ok(()) };
    if raw.starts_with('"') {
        message.content = Content::Text(raw);
        return Ok(());
    }
    let Some(blocks) = Parsed::list(raw) else {
        message.content = Content::Parts(vec![Part::Other(raw)]);
        return Ok(());
    };
    let mut parts = Vec::new();
    for block in blocks {
        let block = block?;
        message.weir = message.weir.or(block.weir);
        match message.role {
            Role::Assistant => block.said(message, &mut parts),
            Role::Tool => block.result(message, &mut parts),
            role => {
                if role == Role::User {
                    block.name_in(message);
                }
                parts.push(block.part());
            }
        }
    }
    // A note needs a text to stand next to.
    let is_empty = message.role == Role::Assistant && parts.is_empty();
    message.content = if is_empty { Content::None } else { Content::Parts(parts) };
    Ok(())
}

/// Returns a message without the blocks of the model's thinking; as it is, if it has no other blocks.
pub(super) fn without_thinking(raw: &str) -> String {
    let own = blocks(raw).unwrap_or_default();
    let is_thinking = |block: &str| {
        let kind = fields(block, &["type"], "an object").ok().and_then(|[kind]| kind);
        matches!(kind, Some("\"thinking\"" | "\"redacted_thinking\""))
    };
    if own.iter().all(|block| is_thinking(block)) {
        return raw.to_owned();
    }
    rejoin(raw, &own, |_, block| (!is_thinking(block)).then_some(Cow::Borrowed(block)))
}

/// Returns a message without the blocks that are calls with these IDs or answer them. A text stands for them if
/// nothing else is said.
pub(super) fn without_blocks(raw: &str, ids: &[String]) -> String {
    let own = blocks(raw).unwrap_or_default();
    let mut gone = Vec::new();
    let mut says_more = false;
    for (place, block) in own.iter().enumerate() {
        let [kind, id, answers] =
            fields(block, &["type", "id", "tool_use_id"], "an object").unwrap_or_default();
        let names =
            |raw: &str| json::string(raw).is_some_and(|id| ids.iter().any(|own| *own == id));
        match id.into_iter().chain(answers).any(names) {
            true => gone.push(place),
            false => {
                says_more |= !matches!(kind, Some("\"thinking\"" | "\"redacted_thinking\""));
            }
        }
    }
    let text = Cow::Borrowed(r#"{"type":"text","text":"[weir: left out]"}"#);
    rejoin(raw, &own, |place, block| match gone.contains(&place) {
        true if says_more || gone.last() != Some(&place) => None,
        true => Some(text.clone()),
        false => Some(Cow::Borrowed(block)),
    })
}

/// Whether a model refuses thinking that follows other messages than it was written after: Claude
/// Fable from 5.1 on, and all Claude models from 5.5 on.
pub fn binds_thinking(model: &str) -> bool {
    claude(model)
        .is_some_and(|(family, version)| version >= if family == "fable" { (5, 1) } else { (5, 5) })
}

/// Whether the provider leaves thinking of earlier rounds out of a model's prompt: Claude models before
/// Opus 4.5, Sonnet 4.6 and those of their time. A name without a version means a newer one.
///
/// Source: Anthropic's guide to extended thinking.
pub fn strips_thinking(model: &str) -> bool {
    claude(model).is_some_and(|(family, version)| {
        let kept_from = match family.as_str() {
            "opus" => (4, 5),
            "sonnet" | "haiku" => (4, 6),
            _ => return false,
        };
        version > (0, 0) && version < kept_from
    })
}

/// Returns the family and the version of a Claude model, in whichever order its name has them.
fn claude(model: &str) -> Option<(String, (u32, u32))> {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let words = name.split(['-', '.', '@', '[', ':']).skip_while(|word| *word != "claude").skip(1);
    // A date may follow the version, and a revision the date.
    let words: Vec<&str> = words
        .take_while(|word| {
            word.parse().is_ok_and(|own: u32| own < 100)
                || !word.starts_with(|own: char| own.is_ascii_digit())
        })
        .collect();
    let family = words.iter().find(|word| word.parse::<u32>().is_err())?;
    let mut numbers = words.iter().filter_map(|word| word.parse().ok());
    Some(((*family).to_owned(), (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))))
}

/// Start of weir's own user messages, up to their content.
pub(super) const USER_HEAD: &str = r#"{"role":"user","content":"#;

/// Returns the JSON text of a user message with the content `text`.
pub(super) fn user_message(text: &str) -> String {
    format!("{USER_HEAD}[{}]}}", text_block(&json::escaped(text)))
}

/// Returns the JSON text of a block with the text `escaped`.
pub(super) fn text_block(escaped: &str) -> String {
    format!(r#"{{"type":"text","text":"{escaped}"}}"#)
}

/// Returns the blocks of a message: the elements of its content, if that is a list, or the run itself.
pub(super) fn blocks(raw: &str) -> Option<Vec<&str>> {
    match content(raw) {
        Some(content) => json::elements(content),
        None => json::run(raw),
    }
}

/// Returns the JSON text of a message's content; `None` if the message is a run of blocks.
pub(super) fn content(raw: &str) -> Option<&str> {
    if raw.starts_with('"') {
        return Some(member_value(raw));
    }
    let [kind, role, content] =
        fields(raw, &["type", "role", "content"], "an object").unwrap_or_default();
    let is_result = kind == Some(RESULT);
    (is_result || role.is_some()).then_some(content?)
}

#[cfg(test)]
mod tests {
    use super::super::Edit;
    use super::super::splice::apply;
    use super::*;

    const BODY: &str = r#"{"model":"claude","max_tokens":64,"messages":[
        {"role":"user","content":"Fix it."},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Look.","signature":"c2ln"},{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"read","input":{"path":"a.rs"}},{"type":"tool_use","id":"t2","name":"run","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"fn a() {}"},{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"ok"},{"type":"image","source":{"type":"url","url":"u"}}]},{"type":"text","text":"Go on."},{"type":"text","text":"Quick.","cache_control":{"type":"ephemeral"}}]},
        {"role":"assistant","content":"Done."},
        {"role":"user","content":[{"type":"text","text":"Thanks."}]}
    ],"system":[{"type":"text","text":"Be brief."}]}"#;

    fn request(body: &str) -> Request<'_> {
        Protocol::Messages.read(body.as_bytes(), 100).expect("readable")
    }

    #[test]
    fn results_are_messages_of_their_own() {
        let request = request(BODY);
        let read: Vec<Message<'_>> =
            request.messages.iter().map(|raw| read_message(raw).expect("readable")).collect();
        let roles: Vec<Role> = read.iter().map(|message| message.role).collect();
        use Role::{Assistant, System, Tool, User};
        assert_eq!(roles, [System, User, Assistant, Tool, Tool, User, Assistant, User]);
        assert_eq!(read[0].texts(), [r#""Be brief.""#]);
        assert_eq!(read[2].calls.len(), 2);
        assert_eq!(read[2].calls[0].text(), r#"{"path":"a.rs"}"#);
        assert!(matches!(read[2].others[..], [Part::Thinking("\"Look.\""), Part::Sealed(_)]));
        assert_eq!((read[3].answers, read[3].texts()), (Some("\"t1\""), vec!["\"fn a() {}\""]));
        assert!(matches!(&read[4].content, Content::Parts(parts) if parts.len() == 2));
        assert_eq!(read[5].texts(), ["\"Go on.\"", "\"Quick.\""]);
        let places: Vec<_> = request.containers.iter().map(|own| own.messages.clone()).collect();
        assert_eq!(places, [1..2, 2..3, 3..6, 6..7, 7..8]);
    }

    /// A block that names a role looks like a message if it stands alone, and would hide what follows it.
    #[test]
    fn blocks_with_a_role_stay_in_their_message() {
        for key in ["role", r"r\u006fle"] {
            let body = format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":"ok"}},{{"{key}":"user","type":"text","text":"Go."}},{{"type":"text","text":"On."}}]}}]}}"#
            );
            let request = Protocol::Messages.read(body.as_bytes(), 10).expect("readable");
            let [raw] = request.messages[..] else { panic!("{:?}", request.messages) };
            let message = Protocol::Messages.read_message(raw).expect("readable");
            let texts = message.texts();
            assert!(texts.iter().any(|text| text.contains("On.")), "{key}: {texts:?}");
        }
    }

    #[test]
    fn roles_alternate_after_edits() {
        let request = request(BODY);
        let sent = |edits: &[(usize, Edit)]| -> serde_json::Value {
            let sent = apply(Protocol::Messages, &request, edits);
            let mut sent: serde_json::Value = serde_json::from_str(&sent).expect("JSON");
            assert_eq!(sent["system"][0]["text"], "Be brief.");
            sent["messages"].take()
        };
        let last = serde_json::json!({"role":"user","content":[{"type":"text","text":"Thanks."}]});
        assert_eq!(
            sent(&[(2, Edit::Remove), (3, Edit::Remove), (4, Edit::Remove)]),
            serde_json::json!([
                {"role":"user","content":[{"type":"text","text":"Fix it."},{"type":"text","text":"Go on."},{"type":"text","text":"Quick.","cache_control":{"type":"ephemeral"}}]},
                {"role":"assistant","content":"Done."},
                last
            ])
        );
        let all = (2..7).map(|message| (message, Edit::Remove));
        let note = std::iter::once((1, Edit::InsertAfter("note".into())));
        assert_eq!(
            sent(&note.chain(all).collect::<Vec<_>>()),
            serde_json::json!([{"role":"user","content":[
                {"type":"text","text":"Fix it."},{"type":"text","text":"note"},{"type":"text","text":"Thanks."}
            ]}])
        );
        assert_eq!(
            sent(&[
                (0, Edit::InsertAfter("note".into())),
                (1, Edit::Append("after".into())),
                (2, Edit::Arguments(vec![Some("{\"path\":\"…\"}".into()), None])),
                (3, Edit::Replace("masked".into())),
                (4, Edit::Parts(vec![None, Some("image".into())])),
                (5, Edit::InsertBefore("mind".into())),
            ]),
            serde_json::json!([
                {"role":"user","content":[{"type":"text","text":"note"},{"type":"text","text":"Fix it."},{"type":"text","text":"after"}]},
                {"role":"assistant","content":[{"type":"thinking","thinking":"Look.","signature":"c2ln"},{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"read","input":{"path":"…"}},{"type":"tool_use","id":"t2","name":"run","input":{}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"masked"},{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"ok"},{"type":"text","text":"image"}]},{"type":"text","text":"Go on."},{"type":"text","text":"Quick.","cache_control":{"type":"ephemeral"}},{"type":"text","text":"mind"}]},
                {"role":"assistant","content":"Done."},
                last
            ])
        );
        assert_eq!(apply(Protocol::Messages, &request, &[]), BODY);
    }

    #[test]
    fn thinking_can_be_left_out() {
        let request = request(BODY);
        let sent = apply(Protocol::Messages, &request, &[(2, Edit::DropThinking)]);
        let thinking = r#"{"type":"thinking","thinking":"Look.","signature":"c2ln"},"#;
        assert_eq!(sent, BODY.replace(thinking, ""));
        let alone = r#"{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"}]}"#;
        assert_eq!(without_thinking(alone), alone);
        for (model, is_bound) in [
            ("claude-fable-5-1", true),
            ("claude-fable-5-0", false),
            ("anthropic/claude-opus-5.5", true),
            ("claude-sonnet-5-5-20261001", true),
            ("claude-sonnet-4-5-20250929", false),
            ("us.anthropic.claude-haiku-6-0", true),
            ("claude-opus-5-20260301", false),
            ("claude-3-7-sonnet-20250219", false),
            ("gpt-5.5", false),
        ] {
            assert_eq!(binds_thinking(model), is_bound, "{model}");
        }
    }

    #[test]
    fn calls_and_results_can_be_left_out() {
        let result = r#"{"type":"web_search_tool_result","tool_use_id":"s1","content":[]}"#;
        let call = r#"{"type":"server_tool_use","id":"s2","name":"web_search","input":{}}"#;
        let thinking = r#"{"type":"thinking","thinking":"Look.","signature":"c2ln"}"#;
        let of =
            |blocks: &[&str]| format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(","));
        let said = r#"{"type":"text","text":"[weir: left out]"}"#;
        for (blocks, ids, wanted) in [
            (vec![result, call], vec!["s1"], vec![call]),
            (vec![result, call], vec!["s2"], vec![result]),
            (vec![thinking, result, call], vec!["s2", "s1"], vec![thinking, said]),
            (vec![result, call], vec!["s3"], vec![result, call]),
        ] {
            let ids: Vec<String> = ids.into_iter().map(str::to_owned).collect();
            assert_eq!(without_blocks(&of(&blocks), &ids), of(&wanted));
        }
        assert_eq!(without_blocks(r#"{"content":"x"}"#, &["x".into()]), r#"{"content":"x"}"#);
    }

    #[test]
    fn refuses_with_the_place() {
        let type_of = |key: &str, expected| BodyError::WrongType { key: key.into(), expected };
        let duplicate = |key: &str| BodyError::DuplicateKey { key: key.into() };
        let marked = "on a block of the content, if a message holds results of tools";
        for (body, refusal) in [
            (r#"{"messages":3}"#, type_of("messages", "an array of messages")),
            (r#"{"messages":[3]}"#, type_of("messages", "an array of messages, which are objects")),
            (r#"{"messages":[{"role":"user","role":"user"}]}"#, duplicate("role")),
            (r#"{"messages":[{"content":[],"content":[]}]}"#, duplicate("content")),
            (r#"{"system":3}"#, type_of("system", "a string or a list of blocks")),
            (r#"{"System":3}"#, BodyError::OtherCase { key: "System".into(), known: "system" }),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"tool_result"}],"weir":{"pin":true}}]}"#,
                type_of("weir", marked),
            ),
            (r#"{"messages":[{},{},{}]}"#, BodyError::TooManyMessages { limit: 2 }),
        ] {
            let refused = Protocol::Messages.read(body.as_bytes(), 2).expect_err("refused");
            assert_eq!(refused, refusal, "{body}");
        }
    }

    #[test]
    fn earlier_thinking_is_in_the_prompt_of_newer_models_alone() {
        for model in [
            "claude-3-7-sonnet-20250219",
            "claude-opus-4-20250514",
            "claude-opus-4-1",
            "anthropic.claude-sonnet-4-5-20250929-v1:0",
            "claude-haiku-4-5@20251001",
            "anthropic/claude-4.5-sonnet",
        ] {
            assert!(strips_thinking(model), "{model}");
        }
        for model in [
            "claude-opus-4-5@20251101",
            "anthropic/claude-4.5-opus",
            "claude-opus-4-6[1m]",
            "claude-sonnet-4-6",
            "claude-sonnet-5",
            "claude-fable-5-1",
            "claude-opus-latest",
            "gpt-5",
        ] {
            assert!(!strips_thinking(model), "{model}");
        }
    }

    #[test]
    fn blocks_can_be_pinned() {
        let raw = r#"{"type":"tool_result","tool_use_id":"t","content":"a","weir":{"pin":true}}"#;
        let message = read_message(raw).expect("readable");
        assert!(message.is_pinned() && message.role == Role::Tool);
        let body = format!(r#"{{"messages":[{{"role":"user","content":[{raw}]}}]}}"#);
        let sent = apply(Protocol::Messages, &request(&body), &[(0, Edit::Unmark)]);
        assert_eq!(sent, body.replace(r#","weir":{"pin":true}"#, ""));
    }

    #[test]
    fn the_providers_own_compaction_replaces_what_is_before_it() {
        let raw = r#"{"role":"assistant","content":[{"type":"compaction","content":"All before."},{"type":"text","text":"Go on."}]}"#;
        let replaces = |raw: &str| read_message(raw).expect("readable").replaces_earlier();
        assert!(replaces(raw) && !replaces(&raw.replace("compaction", "other")));
    }

    #[test]
    fn the_text_of_a_document_is_counted() {
        let raw = r#"{"role":"user","content":[{"type":"document","source":{"type":"text","data":"a b"}},{"type":"document","source":{"type":"base64","data":"AA"}}]}"#;
        let message = read_message(raw).expect("readable");
        let Content::Parts(parts) = &message.content else { panic!("no parts") };
        assert!(matches!(parts[..], [Part::Thinking("\"a b\""), Part::Other(_)]));
    }

    #[test]
    fn system_messages_move_behind_the_users_and_assistants_never_begin() {
        let body = |list: &[&str]| {
            let list = list
                .iter()
                .enumerate()
                .map(|(place, role)| format!(r#"{{"role":"{role}","content":"{place}"}}"#));
            format!(r#"{{"messages":[{}]}}"#, list.collect::<Vec<_>>().join(","))
        };
        let (u, a, s) = ("user", "assistant", "system");
        for (list, gone, expected) in [
            (&[u, s, a, u, a][..], &[2][..], "user:03 system:1 assistant:4"),
            (&[u, s, a, u, s, a], &[2], "user:03 system:14 assistant:5"),
            (&[u, s, a, u], &[2], "user:03 system:1"),
            (&[u, a, u, s, a], &[0, 1], "user:2 system:3 assistant:4"),
            (&[u, s, a, u], &[0], "user:1 assistant:2 user:3"),
            (&[u, s, a, u], &[0, 2], "user:3 system:1"),
            (&[u, a, u, s, a, u], &[2], "user:0 assistant:1 user:3 assistant:4 user:5"),
            // Left as the caller sent them.
            (&[s, u, a, s, u, a], &[5], "system:0 user:1 assistant:2 system:3 user:4"),
            (&[u, s, s, a], &[], "user:0 system:1 system:2 assistant:3"),
        ] {
            let body = body(list);
            let request = request(&body);
            let edits: Vec<_> = gone.iter().map(|message| (*message, Edit::Remove)).collect();
            let sent = apply(Protocol::Messages, &request, &edits);
            let sent: serde_json::Value = serde_json::from_str(&sent).expect("JSON");
            let words = sent["messages"].as_array().expect("a list").iter().map(|own| {
                let texts = match &own["content"] {
                    serde_json::Value::String(text) => text.clone(),
                    blocks => blocks
                        .as_array()
                        .expect("blocks")
                        .iter()
                        .filter_map(|block| block["text"].as_str())
                        .collect(),
                };
                format!("{}:{texts}", own["role"].as_str().expect("a role"))
            });
            assert_eq!(words.collect::<Vec<_>>().join(" "), expected, "{list:?} {gone:?}");
        }
    }
}
