//! Requests that go on behind an answer with calls of the tool, and later requests of the client in which
//! those calls are put back. Every other byte stays.

use std::borrow::Cow;

use super::super::json;
use super::super::messages::text_block;
use super::text::{self, Object};
use super::{Call, MARK, Protocol, ToolResult, Withheld};

/// Returns the list of messages or items of `body`.
fn list(protocol: Protocol, body: &str) -> Option<(&'static str, &str)> {
    let name = match protocol {
        Protocol::Chat | Protocol::Messages => "messages",
        Protocol::Responses => "input",
    };
    Some((name, Object::read(body)?.get(name)?))
}

/// Returns `body` continued behind its last message with an answer and the results of its calls. `None`
/// if it has no list of messages.
///
/// Messages' request may end in the beginning of the assistant's answer, which then becomes one with
/// `assistant`. A text as `input` of Responses becomes a list.
pub fn appended(
    protocol: Protocol,
    body: &str,
    assistant: &str,
    results: &[ToolResult<'_>],
) -> Option<String> {
    let (name, raw) = list(protocol, body)?;
    let results = results_of(protocol, results);
    let longer = match protocol {
        Protocol::Chat => text::appended(raw, &joined(assistant, &results))?,
        Protocol::Responses if raw.starts_with('"') => {
            let user = format!(r#"{{"type":"message","role":"user","content":{raw}}}"#);
            format!("[{user},{}]", joined(assistant, &results))
        }
        Protocol::Responses => text::appended(raw, &joined(assistant, &results))?,
        Protocol::Messages => {
            let user = format!(r#"{{"role":"user","content":[{results}]}}"#);
            match json::elements(raw)?.last().copied().filter(|last| is_role(last, "assistant")) {
                Some(begun) => {
                    let whole = merged(begun, assistant)?;
                    let count = json::elements(raw)?.len();
                    let list = text::edited(raw, |index, own| {
                        let is_last = index + 1 == count;
                        Some(if is_last { Cow::Borrowed(whole.as_str()) } else { own.into() })
                    });
                    text::appended(&list, &user)?
                }
                None => text::appended(raw, &joined(assistant, &user))?,
            }
        }
    };
    Some(text::with(body, name, &longer))
}

/// Joins two runs of elements, each of them possibly empty.
fn joined(left: &str, right: &str) -> String {
    let comma = if left.is_empty() || right.is_empty() { "" } else { "," };
    format!("{left}{comma}{right}")
}

fn is_role(message: &str, role: &str) -> bool {
    text::member_text(message, "role").as_deref() == Some(role)
}

/// Returns the message `begun` with the blocks of `answer` behind its own.
fn merged(begun: &str, answer: &str) -> Option<String> {
    let own = Object::read(begun)?.get("content")?;
    let more = Object::read(answer)?.get("content")?;
    let list = match text::inner(own) {
        Some("") => "[]".to_owned(),
        Some(escaped) => format!("[{}]", text_block(escaped)),
        None => own.to_owned(),
    };
    json::elements(more)?;
    let start = more.find('[')? + 1;
    let blocks = more[start..more.rfind(']')?].trim_ascii();
    Some(text::with(begun, "content", &text::appended(&list, blocks)?))
}

/// Returns results as elements of a request's list, or of a user message's content in Messages.
fn results_of(protocol: Protocol, results: &[ToolResult<'_>]) -> String {
    let one = |result: &ToolResult<'_>| {
        let (id, text) = (json::quoted(result.id), json::quoted(result.text));
        match protocol {
            Protocol::Chat => {
                format!(r#"{{"role":"tool","tool_call_id":{id},"content":{text}}}"#)
            }
            Protocol::Responses => {
                format!(r#"{{"type":"function_call_output","call_id":{id},"output":{text}}}"#)
            }
            Protocol::Messages => {
                format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{text}}}"#)
            }
        }
    };
    results.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Returns `body`, a later request of the client, with calls that it did not see and their results put
/// back into the answer that begins at the byte `start`; `None` if that is not possible.
///
/// The calls return to their old places next to the client's, and results stand first behind the answer.
/// No other answer is searched: upstreams may give the same IDs again. Calls that the answer has, and
/// those of an answer without any of the client's, are left out.
pub fn inserted(
    protocol: Protocol,
    body: &str,
    start: usize,
    withheld: &Withheld<'_>,
) -> Option<String> {
    let (name, raw) = list(protocol, body)?;
    let start = body.as_ptr() as usize + start;
    let place = json::elements(raw)?.iter().position(|own| own.as_ptr() as usize == start)?;
    let longer = match protocol {
        Protocol::Chat => in_chat(raw, place, withheld),
        Protocol::Responses => in_responses(raw, place, withheld),
        Protocol::Messages => in_messages(raw, place, withheld),
    };
    Some(text::with(body, name, &longer?))
}

/// Returns the calls that have a result, and those results, if none of them is in `ids`.
fn answered<'w>(
    withheld: &'w Withheld<'w>,
    ids: &[Option<Cow<'_, str>>],
) -> Option<(Vec<&'w Call>, Vec<ToolResult<'w>>)> {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for call in withheld.calls {
        let result = withheld.results.iter().find(|result| result.id == call.id)?;
        if ids.iter().flatten().any(|id| *id == call.id) || Object::read(&call.raw).is_none() {
            return None;
        }
        calls.push(call);
        results.push(*result);
    }
    (!calls.is_empty()).then_some((calls, results))
}

/// Returns a list of calls, or of blocks or items with calls among them, with `calls` at their places.
/// `ids` are the IDs of those elements that are calls of the same answer, in order.
fn with_calls(
    raw: &str,
    calls: &[&Call],
    others: &[String],
    ids: &[Option<Cow<'_, str>>],
) -> Option<String> {
    let is_other = |id: &Option<Cow<'_, str>>| {
        id.as_deref().is_some_and(|id| others.iter().any(|other| other == id))
    };
    let last = ids.iter().rposition(is_other)?;
    // Found once: a request may have very many items.
    let place = |call: &&Call| {
        let before = call.before.as_deref()?;
        ids.iter().position(|id| id.as_deref() == Some(before))
    };
    let places: Vec<usize> = calls.iter().map(|call| place(call).unwrap_or(last + 1)).collect();
    let run = |index: usize, own: &str| {
        let own = (!own.is_empty()).then_some(own);
        let here = calls.iter().zip(&places).filter(|(_, place)| **place == index);
        here.map(|(call, _)| call.raw.as_str()).chain(own).collect::<Vec<_>>().join(",")
    };
    let behind = run(last + 1, "");
    Some(text::edited(raw, |index, own| {
        let with_own = match index == last + 1 {
            true => own.to_owned(),
            false => run(index, own),
        };
        Some(match index == last {
            true => joined(&with_own, &behind).into(),
            false => with_own.into(),
        })
    }))
}

fn in_chat(raw: &str, place: usize, withheld: &Withheld<'_>) -> Option<String> {
    let messages = json::elements(raw)?;
    let answer = *messages.get(place)?;
    let calls_raw = Object::read(answer)?.get("tool_calls")?;
    let ids: Vec<_> =
        json::elements(calls_raw)?.into_iter().map(|call| text::member_text(call, "id")).collect();
    let (calls, results) = answered(withheld, &ids)?;
    let longer = with_calls(calls_raw, &calls, withheld.others, &ids)?;
    let message = text::with(answer, "tool_calls", &longer);
    let run = joined(&message, &results_of(Protocol::Chat, &results));
    Some(replaced(raw, place, &run))
}

/// Returns the list `raw` with `run` instead of the element `at`.
fn replaced(raw: &str, at: usize, run: &str) -> String {
    text::edited(raw, |index, own| {
        Some(if index == at { Cow::Borrowed(run) } else { Cow::Borrowed(own) })
    })
}

/// Returns the call ID of an item of Responses that is a call.
fn call_id(item: &str) -> Option<Cow<'_, str>> {
    let item = Object::read(item)?;
    let is_output = item.text("type").is_some_and(|kind| kind.ends_with("_output"));
    if is_output { None } else { item.text("call_id") }
}

/// Returns the IDs of the calls in the answer that begins at `place`, for each item up to the last of
/// `others`. It is over where the user speaks, or one of them comes again.
fn answer_ids<'a>(items: &[&'a str], place: usize, others: &[String]) -> Vec<Option<Cow<'a, str>>> {
    let mut ids = vec![None; place.min(items.len())];
    let mut missing: Vec<&str> = others.iter().map(String::as_str).collect();
    for item in items.iter().skip(place) {
        let id = call_id(item);
        let other = id.as_deref().filter(|id| others.iter().any(|other| other == id));
        let found = other.map(|id| missing.iter().position(|own| *own == id));
        if missing.is_empty() || found == Some(None) || is_role(item, "user") {
            break;
        }
        if let Some(Some(found)) = found {
            missing.swap_remove(found);
        }
        ids.push(id);
    }
    ids
}

fn in_responses(raw: &str, place: usize, withheld: &Withheld<'_>) -> Option<String> {
    let ids = answer_ids(&json::elements(raw)?, place, withheld.others);
    let (calls, results) = answered(withheld, &ids)?;
    let longer = with_calls(raw, &calls, withheld.others, &ids)?;
    // The last of the calls in the longer list has the results behind it.
    let is_own = |id: &str| {
        withheld.others.iter().any(|other| other == id) || calls.iter().any(|call| call.id == id)
    };
    let items = json::elements(&longer)?;
    let end = ids.len() + calls.len();
    let of_answer = items.get(..end)?;
    let last = of_answer.iter().rposition(|item| call_id(item).is_some_and(|id| is_own(&id)))?;
    let run = joined(items[last], &results_of(Protocol::Responses, &results));
    Some(replaced(&longer, last, &run))
}

fn in_messages(raw: &str, place: usize, withheld: &Withheld<'_>) -> Option<String> {
    fn use_id(block: &str) -> Option<Cow<'_, str>> {
        let block = Object::read(block)?;
        (block.text("type")? == "tool_use").then(|| block.text("id")).flatten()
    }
    let messages = json::elements(raw)?;
    let own = Object::read(messages.get(place)?)?.get("content")?;
    let ids: Vec<_> = json::elements(own)?.into_iter().map(use_id).collect();
    let (calls, results) = answered(withheld, &ids)?;
    // Results are in the next message of the user; without one the request is not valid anyway.
    let user = place + 1 + messages[place + 1..].iter().position(|own| is_role(own, "user"))?;
    let longer = with_calls(own, &calls, withheld.others, &ids)?;
    let assistant = text::with(messages[place], "content", &longer);
    let content = Object::read(messages[user])?.get("content")?;
    let run = results_of(Protocol::Messages, &results);
    let list = match text::inner(content) {
        Some("") => format!("[{run}]"),
        Some(escaped) => format!("[{run},{}]", text_block(escaped)),
        None => text::prepended(content, &run)?,
    };
    let answer = text::with(messages[user], "content", &list);
    Some(text::edited(raw, |index, own| {
        Some(match index {
            _ if index == place => assistant.as_str().into(),
            _ if index == user => answer.as_str().into(),
            _ => own.into(),
        })
    }))
}

/// Returns `body` without the thinking and reasoning that weir marked in earlier answers; `None` if it has
/// none. Such a part was signed over a call of the tool that the request does not have.
pub fn without_marked(protocol: Protocol, body: &str) -> Option<String> {
    memchr::memmem::find(body.as_bytes(), MARK.as_bytes())?;
    let (name, raw) = list(protocol, body)?;
    let shorter = match protocol {
        Protocol::Chat => return None,
        Protocol::Responses => {
            text::edited(raw, |_, item| (!is_marked_item(item)).then_some(item.into()))
        }
        Protocol::Messages => text::edited(raw, |_, message| {
            let content = Object::read(message).and_then(|own| own.get("content"));
            let Some(content) = content.filter(|_| is_role(message, "assistant")) else {
                return Some(message.into());
            };
            let blocks = json::elements(content).unwrap_or_default();
            if !blocks.iter().any(|block| is_marked_block(block)) {
                return Some(message.into());
            }
            let less =
                text::edited(content, |_, block| (!is_marked_block(block)).then_some(block.into()));
            // A message needs content; one that consisted of such thinking alone was nothing else.
            let is_left = json::elements(&less).is_some_and(|left| !left.is_empty());
            is_left.then(|| text::with(message, "content", &less).into())
        }),
    };
    (shorter.len() != raw.len()).then(|| text::with(body, name, &shorter))
}

fn is_marked_block(block: &str) -> bool {
    let Some(block) = Object::read(block) else { return false };
    let is_marked = |name| block.text(name).as_deref() == Some(MARK);
    match block.text("type").as_deref() {
        Some("thinking") => is_marked("signature"),
        Some("redacted_thinking") => is_marked("data"),
        _ => false,
    }
}

fn is_marked_item(item: &str) -> bool {
    let Some(item) = Object::read(item) else { return false };
    item.text("type").as_deref() == Some("reasoning")
        && item.text("encrypted_content").as_deref() == Some(MARK)
}
