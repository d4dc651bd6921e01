//! Transcript that is retold as chat completions, message by message. Reads no files.

use super::{Exchanges, Recorded, RecordedExchange, part_name, quoted};
use weir_engine::wire::{Protocol, json};

/// Conversation up to a compaction by its agent, or its end.
#[derive(Default)]
pub(crate) struct ChatPart {
    messages: Vec<String>,
    exchanges: Exchanges,
}

impl ChatPart {
    /// Adds a message of the user with this JSON content, which a request follows.
    pub(crate) fn user(&mut self, content: &str, at_ms: Option<u64>) {
        self.messages.push(format!(r#"{{"role":"user","content":{content}}}"#));
        self.exchanges.ask(at_ms);
    }

    /// Adds the result of a call. A request follows it.
    pub(crate) fn result(&mut self, id: &str, content: &str, at_ms: Option<u64>) {
        let id = quoted(id);
        self.messages.push(format!(r#"{{"role":"tool","tool_call_id":{id},"content":{content}}}"#));
        self.exchanges.ask(at_ms);
    }

    /// Notes that an answer begins, to a request of all messages so far.
    pub(crate) fn begin(&mut self, at_ms: Option<u64>) -> &mut RecordedExchange {
        self.exchanges.answer(self.messages.len(), at_ms)
    }

    /// Adds a message of the assistant with this JSON content and these calls.
    pub(crate) fn answer(&mut self, content: &str, calls: &[String]) {
        let calls = members(calls);
        self.messages.push(format!(r#"{{"role":"assistant","content":{content}{calls}}}"#));
    }
}

/// Returns the member with these calls, if there are any.
pub(crate) fn members(calls: &[String]) -> String {
    match calls.is_empty() {
        true => String::new(),
        false => format!(r#","tool_calls":[{}]"#, calls.join(",")),
    }
}

/// Returns the parts of a session as conversations, in order.
pub(crate) fn recorded(id: &str, project: Option<&str>, parts: Vec<ChatPart>) -> Vec<Recorded> {
    let parts = parts.into_iter().enumerate().filter(|(_, part)| !part.messages.is_empty());
    parts
        .map(|(number, part)| Recorded {
            id: part_name(id, number),
            protocol: Protocol::Chat,
            body: format!(r#"{{"messages":[{}]}}"#, part.messages.join(",")),
            is_request: false,
            project: project.map(str::to_owned),
            exchanges: part.exchanges.made,
        })
        .collect()
}

/// Returns a call with arguments as JSON or as a text.
pub(crate) fn call(id: &str, name: &str, arguments: Option<&str>) -> String {
    let arguments = arguments.unwrap_or("{}");
    let text = json::string(arguments).filter(|_| arguments.starts_with('"'));
    let arguments = quoted(text.as_deref().unwrap_or(arguments));
    let (id, name) = (quoted(id), quoted(name));
    format!(
        r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#
    )
}

/// Returns a part with this JSON text.
pub(crate) fn text(raw: &str) -> String {
    format!(r#"{{"type":"text","text":{raw}}}"#)
}

/// Returns a part with a picture; `None` for other media, which a chat has no place for.
pub(crate) fn picture(kind: &str, data: &str) -> Option<String> {
    let url = quoted(&format!("data:{kind};base64,{data}"));
    let part = || format!(r#"{{"type":"image_url","image_url":{{"url":{url}}}}}"#);
    kind.starts_with("image/").then(part)
}

/// Returns parts as content.
pub(crate) fn content(parts: &[String]) -> String {
    format!("[{}]", parts.join(","))
}
