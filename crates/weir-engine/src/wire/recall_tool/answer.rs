//! Whole answers: their calls of the tool, and the one answer that the client gets for several.

use std::borrow::Cow;

use super::super::json;
use super::calls::{self, Tally};
use super::text::{self, Object};
use super::usage::summed_usage;
use super::{Next, Protocol, Round, valid_arguments};

/// Reads an answer, which is [`Next::Cut`] if it is none of the protocol. `name` is the tool's.
pub fn read(protocol: Protocol, name: &str, body: &[u8]) -> Round {
    let read = |body: &str| {
        let answer = Object::read(body)?;
        if answer.get("error").is_some() {
            return Some(Round::default());
        }
        let mut round = match protocol {
            Protocol::Chat => read_chat(name, &answer),
            Protocol::Responses => read_responses(name, &answer),
            Protocol::Messages => read_messages(name, &answer),
        }?;
        round.usage = answer.get("usage").filter(|raw| text::is_object(raw)).map(str::to_owned);
        Some(round)
    };
    let round = std::str::from_utf8(body).ok().and_then(read);
    round.unwrap_or(Round { next: Next::Cut, ..Round::default() })
}

/// Returns a round of these calls, whose answer is `assistant`.
fn round(tally: Tally, is_whole: bool, assistant: impl FnOnce() -> String) -> Round {
    let assistant = assistant();
    let next = tally.next(is_whole).sound(&assistant);
    Round { next, calls: tally.calls, others: tally.others, assistant, usage: None }
}

/// Whether an element of a chat's `tool_calls` is a call of the tool.
fn is_chat_call(call: &str, name: &str) -> bool {
    chat_function(call).is_some_and(|own| own.text("name").as_deref() == Some(name))
}

fn chat_function(call: &str) -> Option<Object<'_>> {
    Object::read(Object::read(call)?.get("function")?)
}

/// Members that answers have empty, and that some providers refuse in requests.
const ANSWERED_ONLY: [&str; 4] = ["refusal", "annotations", "audio", "function_call"];

fn read_chat(name: &str, answer: &Object<'_>) -> Option<Round> {
    let choices = answer.list("choices");
    let first = Object::read(choices.first()?)?;
    let mut tally = Tally::default();
    for choice in &choices {
        let message = Object::read(choice).and_then(|choice| choice.get("message"));
        for call in
            message.and_then(Object::read).map(|own| own.list("tool_calls")).unwrap_or_default()
        {
            let id = text::member_text(call, "id").unwrap_or_default().into_owned();
            if is_chat_call(call, name) {
                let arguments = chat_function(call).and_then(|own| own.text("arguments"));
                let raw = with_valid_arguments(call);
                tally.call(id, arguments.unwrap_or_default().into_owned(), raw);
            } else {
                tally.other(id);
            }
        }
    }
    let reason = first.text("finish_reason");
    let is_whole = choices.len() == 1 && calls::is_chat_whole(reason.as_deref());
    Some(round(tally, is_whole, || {
        let message = first.get("message").unwrap_or("{}");
        let own = Object::read(message).and_then(|own| own.get("tool_calls")).unwrap_or("[]");
        let list = text::edited(own, |_, call| Some(with_valid_arguments(call).into()));
        let message = match list == own {
            true => message.to_owned(),
            false => text::with(message, "tool_calls", &list),
        };
        let message = match text::member_text(&message, "role") {
            Some(_) => message,
            None => text::with(&message, "role", r#""assistant""#),
        };
        ANSWERED_ONLY.iter().fold(message, |message, name| {
            let raw = Object::read(&message).and_then(|own| own.get_any(name));
            if raw.is_some_and(text::is_empty) { text::without(&message, name) } else { message }
        })
    }))
}

/// Returns a chat's call with arguments that every upstream can read.
fn with_valid_arguments(call: &str) -> String {
    let Some(function) = Object::read(call).and_then(|own| own.get("function")) else {
        return call.to_owned();
    };
    let arguments = text::member_text(function, "arguments").unwrap_or_default();
    match valid_arguments(&arguments) == arguments {
        true => call.to_owned(),
        false => text::with(call, "function", &text::with(function, "arguments", "\"{}\"")),
    }
}

fn read_responses(name: &str, answer: &Object<'_>) -> Option<Round> {
    let output = json::elements(answer.get("output")?)?;
    let mut tally = Tally::default();
    for raw in &output {
        let Some(item) = Object::read(raw) else { continue };
        if calls::is_call_item(&item, name) {
            let (id, arguments, raw) = call_item(raw, &item);
            tally.call(id, arguments, raw);
        } else if let Some(id) = calls::client_call(&item) {
            tally.other(id);
        }
    }
    let status = answer.text("status");
    let is_whole = matches!(status.as_deref(), None | Some("completed"));
    Some(round(tally, is_whole, || echoed_items(&output)))
}

/// Returns ID, arguments and request's form of a call in Responses.
pub(super) fn call_item(raw: &str, item: &Object<'_>) -> (String, String, String) {
    let arguments = item.text("arguments").unwrap_or_default();
    let raw = match valid_arguments(&arguments) == arguments {
        true => raw.to_owned(),
        false => text::with(raw, "arguments", "\"{}\""),
    };
    (item.text("call_id").unwrap_or_default().into_owned(), arguments.into_owned(), raw)
}

/// Returns output items as items of a request, joined by commas.
pub(super) fn echoed_items(items: &[&str]) -> String {
    let echoed = items.iter().map(|raw| match Object::read(raw) {
        Some(item) if item.text("type").as_deref() == Some("function_call") => {
            call_item(raw, &item).2
        }
        _ => (*raw).to_owned(),
    });
    echoed.collect::<Vec<_>>().join(",")
}

fn read_messages(name: &str, answer: &Object<'_>) -> Option<Round> {
    let content = json::elements(answer.get("content")?)?;
    let mut tally = Tally::default();
    for raw in &content {
        let Some(block) = Object::read(raw) else { continue };
        let id = || block.text("id").unwrap_or_default().into_owned();
        if calls::is_call_block(&block, name) {
            let input = block.get("input").unwrap_or("{}");
            tally.call(id(), input.to_owned(), (*raw).to_owned());
        } else if block.text("type").as_deref() == Some("tool_use") {
            tally.other(id());
        }
    }
    let is_whole = calls::is_messages_whole(answer.text("stop_reason").as_deref());
    Some(round(tally, is_whole, || echoed_blocks(&content)))
}

/// Returns blocks of an answer as the assistant's message of a request. Providers refuse empty texts in
/// requests, and return them.
pub(super) fn echoed_blocks(blocks: &[&str]) -> String {
    let is_kept = |raw: &&&str| {
        let Some(block) = Object::read(raw) else { return true };
        let is_text = block.text("type").as_deref() == Some("text");
        !(is_text && block.text("text").is_some_and(|text| text.trim().is_empty()))
    };
    let kept: Vec<&str> = blocks.iter().filter(is_kept).copied().collect();
    format!(r#"{{"role":"assistant","content":[{}]}}"#, kept.join(","))
}

/// Returns the answer that the client gets for `answers`, bodies in order. All but the last are
/// [`Next::Recall`]. It is the last one, without calls of the tool called `name`, with the model's texts
/// from before and the sum of usage. `None` if the last body is that answer already, or cannot be read.
pub fn joined(protocol: Protocol, name: &str, answers: &[&[u8]]) -> Option<Vec<u8>> {
    let texts: Vec<&str> =
        answers.iter().map(|body| std::str::from_utf8(body)).collect::<Result<_, _>>().ok()?;
    let (last, earlier) = texts.split_last()?;
    Object::read(last)?;
    let mut body = match protocol {
        Protocol::Chat => joined_chat(name, earlier, last),
        Protocol::Responses => joined_responses(name, earlier, last),
        Protocol::Messages => joined_messages(name, earlier, last),
    };
    if !earlier.is_empty() {
        let usages = texts.iter().filter_map(|own| Object::read(own)?.get("usage"));
        if let Some(sum) = summed_usage(&usages.collect::<Vec<_>>()) {
            body = text::with(&body, "usage", &sum);
        }
    }
    (body != *last).then(|| body.into_bytes())
}

/// Texts of a chat's answer that are joined over rounds.
pub(super) const CHAT_TEXTS: [&str; 3] = ["content", "reasoning_content", "reasoning"];

fn joined_chat(name: &str, earlier: &[&str], last: &str) -> String {
    let Some(choices) = Object::read(last).and_then(|own| own.get("choices")) else {
        return last.to_owned();
    };
    let list = text::edited(choices, |index, choice| {
        let mut choice = Cow::Borrowed(choice);
        if let Some(less) = chat_choice_without(name, &choice) {
            choice = Cow::Owned(less);
        }
        if index == 0 && !earlier.is_empty() {
            choice = Cow::Owned(chat_choice_behind(earlier, &choice));
        }
        Some(choice)
    });
    if list == choices { last.to_owned() } else { text::with(last, "choices", &list) }
}

/// Returns a choice without calls of the tool; `None` if it has none.
fn chat_choice_without(name: &str, choice: &str) -> Option<String> {
    let object = Object::read(choice)?;
    let message = object.get("message")?;
    let calls = Object::read(message)?.get("tool_calls")?;
    let less = text::edited(calls, |_, call| (!is_chat_call(call, name)).then_some(call.into()));
    if less == calls {
        return None;
    }
    let is_left = json::elements(&less).is_some_and(|left| !left.is_empty());
    let message = match is_left {
        true => text::with(message, "tool_calls", &less),
        false => text::without(message, "tool_calls"),
    };
    let choice = text::with(choice, "message", &message);
    Some(match object.get("finish_reason") {
        Some(reason) if !is_left => {
            text::with(&choice, "finish_reason", calls::chat_reason(reason))
        }
        _ => choice,
    })
}

/// Returns a choice with the texts of earlier answers in front of its own.
fn chat_choice_behind(earlier: &[&str], choice: &str) -> String {
    fn message_of(body: &str) -> Option<&str> {
        Object::read(Object::read(body)?.list("choices").first()?)?.get("message")
    }
    let Some(message) = Object::read(choice).and_then(|own| own.get("message")) else {
        return choice.to_owned();
    };
    let mut whole = message.to_owned();
    for member in CHAT_TEXTS {
        let texts = earlier.iter().filter_map(|body| text_of(message_of(body)?, member));
        let before = texts.fold(String::new(), |all, more| behind(&all, more));
        if before.is_empty() {
            continue;
        }
        let own = text_of(message, member).unwrap_or_default();
        whole = text::with(&whole, member, &format!("\"{}\"", behind(&before, own)));
    }
    text::with(choice, "message", &whole)
}

/// Returns the inside of the JSON string `member`.
fn text_of<'a>(message: &'a str, member: &str) -> Option<&'a str> {
    text::inner(Object::read(message)?.get(member)?)
}

/// Joins insides of JSON strings as paragraphs.
fn behind(before: &str, more: &str) -> String {
    let gap = if more.is_empty() || ends_paragraph(before) { "" } else { GAP };
    format!("{before}{gap}{more}")
}

/// Empty line between texts of two rounds, inside a JSON string.
pub(super) const GAP: &str = "\\n\\n";

/// Whether the inside of a JSON string is empty or ends in white space.
pub(super) fn ends_paragraph(inner: &str) -> bool {
    // A `\n` after a backslash is no line end; then the gap is missing, which harms nothing.
    inner.is_empty() || inner.ends_with(' ') || inner.ends_with("\\n")
}

fn joined_responses(name: &str, earlier: &[&str], last: &str) -> String {
    let visible = |body: &str, is_marked: bool| {
        let output = Object::read(body).map(|own| own.list("output")).unwrap_or_default();
        let is_call =
            |raw: &&str| Object::read(raw).is_some_and(|item| calls::is_call_item(&item, name));
        let items: Vec<&str> = output.into_iter().filter(|raw| !is_call(raw)).collect();
        let is_reasoning =
            |raw: &&str| text::member_text(raw, "type").as_deref() == Some("reasoning");
        let bare = items.iter().rev().take_while(|raw| is_marked && is_reasoning(raw)).count();
        let kept = items.len() - bare;
        let marked = items[kept..].iter().map(|raw| calls::marked_item(raw));
        items[..kept].iter().map(|raw| (*raw).to_owned()).chain(marked).collect::<Vec<_>>()
    };
    let before: Vec<String> = earlier.iter().flat_map(|body| visible(body, true)).collect();
    response_without(name, last, &before.join(",")).unwrap_or_else(|| last.to_owned())
}

/// Returns a response object without calls of the tool and without its definition, with `before`, items
/// joined by commas, in front of its output; `None` if nothing changes.
pub(super) fn response_without(name: &str, response: &str, before: &str) -> Option<String> {
    let object = Object::read(response)?;
    let mut changed = Cow::Borrowed(response);
    if let Some(output) = object.get("output") {
        let less = text::edited(output, |_, raw| {
            let is_call = Object::read(raw).is_some_and(|item| calls::is_call_item(&item, name));
            (!is_call).then_some(raw.into())
        });
        let whole = text::prepended(&less, before).unwrap_or(less);
        if whole != output {
            changed = Cow::Owned(text::with(&changed, "output", &whole));
        }
    }
    if let Some(tools) = object.get("tools") {
        let less = text::edited(tools, |_, tool| {
            let is_own = Object::read(tool).is_some_and(|tool| {
                tool.text("type").as_deref() == Some("function")
                    && tool.text("name").as_deref() == Some(name)
            });
            (!is_own).then_some(tool.into())
        });
        if less != tools {
            changed = Cow::Owned(text::with(&changed, "tools", &less));
        }
    }
    match changed {
        Cow::Borrowed(_) => None,
        Cow::Owned(changed) => Some(changed),
    }
}

fn joined_messages(name: &str, earlier: &[&str], last: &str) -> String {
    let is_call = |raw: &str| Object::read(raw).is_some_and(|own| calls::is_call_block(&own, name));
    let mut before = Vec::new();
    for body in earlier {
        let content = Object::read(body).map(|own| own.list("content")).unwrap_or_default();
        let blocks: Vec<&str> = content.into_iter().filter(|raw| !is_call(raw)).collect();
        let is_thinking =
            |raw: &&str| Object::read(raw).is_some_and(|own| calls::is_thinking(&own));
        let kept = blocks.len() - blocks.iter().rev().take_while(|raw| is_thinking(raw)).count();
        before.extend(blocks[..kept].iter().map(|raw| (*raw).to_owned()));
        before.extend(blocks[kept..].iter().map(|raw| calls::marked_block(raw)));
    }
    let Some(object) = Object::read(last) else { return last.to_owned() };
    let Some(content) = object.get("content") else { return last.to_owned() };
    let less = text::edited(content, |_, raw| (!is_call(raw)).then_some(raw.into()));
    let mut body = last.to_owned();
    if less != content
        && let Some(reason) = object.get("stop_reason")
    {
        let is_use = |raw: &&str| text::member_text(raw, "type").as_deref() == Some("tool_use");
        let has_other = json::elements(&less).unwrap_or_default().iter().any(is_use);
        let reason = if has_other { reason } else { calls::messages_reason(reason) };
        body = text::with(&body, "stop_reason", reason);
    }
    let whole = text::prepended(&less, &before.join(",")).unwrap_or(less);
    if whole != content {
        body = text::with(&body, "content", &whole);
    }
    body
}
