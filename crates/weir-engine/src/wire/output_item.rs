//! Output item that weir adds in front of those of a Responses answer, whole or streamed. Every other
//! byte stays, but for the numbers behind the item.
//!
//! OpenAI's reference of streaming events gives their order: `response.created` and its like, then
//! `response.output_item.added` and `.done` of each item, at last the whole answer again.

use super::event_filter::{self, Judge, Verdict};
use super::json;
use super::json::rejoin;

/// Maximum size of an event that is examined. The last one holds the whole answer.
pub const MAX_EVENT_BYTES: usize = 32 << 20;

/// Events in front of the first item.
const LIFECYCLE: [&str; 3] = ["response.created", "response.in_progress", "response.queued"];
/// Events that end the stream with the whole answer.
const LAST: [&str; 3] = ["response.completed", "response.incomplete", "response.failed"];
/// Events that end a stream without an answer.
const ERRORS: [&str; 2] = ["response.failed", "error"];
/// Number of events that announce the item.
pub const ADDED_EVENTS: u64 = 2;

/// Adds `item`, a JSON text, to the whole answer `body`; `None` if that has no list of items.
pub fn added(body: &str, item: &str) -> Option<String> {
    let members = json::members(body)?;
    let (_, list) = members.into_iter().find(|(name, _)| name == "output")?;
    let longer = in_front(list, item)?;
    Some(rejoin(body, &[list], |_, _| Some(longer.as_str().into())))
}

/// Returns the list `raw` with `item` in front; `None` if it is no list.
fn in_front(raw: &str, item: &str) -> Option<String> {
    let is_empty = json::elements(raw)?.is_empty();
    let comma = if is_empty { "" } else { "," };
    Some(format!("[{item}{comma}{}", &raw[1..]))
}

/// Adds an item to the events of a stream.
#[derive(Debug)]
pub struct AddItem {
    /// JSON text of the item.
    item: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No item has begun.
    Before,
    /// The item was added.
    Added,
    /// The answer failed before its first item.
    Failed,
}

/// Start and end of a part of an event's data, and the text that replaces it.
type Change = (usize, usize, String);

impl AddItem {
    /// Creates a judge that adds `item`, a JSON text.
    pub fn new(item: String) -> Self {
        Self { item, state: State::Before }
    }

    /// Returns the events that announce the item, from the number `sequence` on.
    pub fn events(&self, sequence: Option<u64>) -> String {
        let event = |kind: &str, offset: u64| {
            let number = sequence
                .map(|number| format!(r#""sequence_number":{},"#, number.saturating_add(offset)));
            let (number, item) = (number.unwrap_or_default(), &self.item);
            format!(
                "event: {kind}\ndata: {{\"type\":\"{kind}\",{number}\"output_index\":0,\"item\":{item}}}\n\n"
            )
        };
        event("response.output_item.added", 0) + &event("response.output_item.done", 1)
    }

    /// Returns the events in front of an event, and the changes of its data; `None` if it stays as it is.
    fn changes(&mut self, data: &str) -> Option<(String, Vec<Change>)> {
        let members = json::members(data)?;
        let member =
            |name: &str| members.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
        let number = |name: &str| member(name).and_then(|raw| raw.parse::<u64>().ok());
        let kind = member("type").and_then(json::string)?;
        if self.state == State::Before && LIFECYCLE.contains(&&*kind) {
            return None;
        }
        if self.state == State::Before && ERRORS.contains(&&*kind) {
            self.state = State::Failed;
        }
        if self.state == State::Failed {
            return None;
        }
        let sequence = number("sequence_number");
        let before = match std::mem::replace(&mut self.state, State::Added) {
            State::Added => String::new(),
            _ => self.events(sequence),
        };
        let mut changes = Vec::new();
        let mut change = |raw: &str, text: String| {
            let start = raw.as_ptr() as usize - data.as_ptr() as usize;
            changes.push((start, start + raw.len(), text));
        };
        for (name, more) in [("sequence_number", ADDED_EVENTS), ("output_index", 1)] {
            if let (Some(raw), Some(number)) = (member(name), number(name)) {
                change(raw, number.saturating_add(more).to_string());
            }
        }
        if LAST.contains(&&*kind)
            && let Some(answer) = member("response")
            && let Some(added) = added(answer, &self.item)
        {
            change(answer, added);
        }
        changes.sort_unstable();
        Some((before, changes))
    }
}

impl Judge for AddItem {
    fn judge(&mut self, event: &[u8], at_start: bool) -> Verdict {
        let Ok(text) = std::str::from_utf8(event) else { return Verdict::Keep };
        let lines = event_filter::lines(text, at_start);
        let Some(data) = event_filter::joined(text, &lines) else { return Verdict::Keep };
        let Some((before, changes)) = self.changes(&data) else { return Verdict::Keep };
        let mut edited = before;
        let mut written = 0;
        for (start, end, new) in changes {
            edited.push_str(&text[written..event_filter::place(&lines, start)]);
            edited.push_str(&new);
            written = event_filter::place(&lines, end);
        }
        edited.push_str(&text[written..]);
        Verdict::Edit(edited.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::event_filter::Filter;
    use super::*;

    const ITEM: &str = r#"{"type":"compaction","id":"c"}"#;

    #[test]
    fn the_item_comes_first_in_a_whole_answer() {
        for (body, wanted) in [
            (r#"{"a":[1], "output" : [ {"b":2} ] }"#, r#"{"a":[1], "output" : [ITEM, {"b":2} ] }"#),
            (r#"{"output":[ ]}"#, r#"{"output":[ITEM ]}"#),
        ] {
            let item = |text: &str| text.replace("ITEM", ITEM);
            assert_eq!(added(body, ITEM), Some(item(wanted)));
        }
        for body in ["[]", "{}", r#"{"output":null}"#, "text"] {
            assert_eq!(added(body, ITEM), None, "{body}");
        }
    }

    fn filtered(pieces: &[&[u8]]) -> String {
        let mut filter = Filter::with(AddItem::new(ITEM.to_owned()), 10_000);
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&filter.feed(piece));
        }
        out.extend(filter.finish());
        String::from_utf8(out).expect("text went in")
    }

    /// Asserts the result of a stream, wherever it is split.
    fn check(stream: &str, wanted: &str) {
        let bytes = stream.as_bytes();
        let wanted = wanted.replace("ITEM", ITEM);
        for at in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(filtered(&[head, tail]), wanted, "cut at {at}");
        }
    }

    #[test]
    fn the_item_is_announced_behind_the_lifecycle_and_the_rest_is_numbered_anew() {
        check(
            ": hi\n\nevent: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"output\":[]}}\n\n\
             data: {\"type\":\"response.in_progress\",\"sequence_number\":1}\r\n\r\n\
             event: response.output_item.added\ndata: {\"output_index\":0,\"type\":\"response.output_item.added\", \"sequence_number\": 2}\n\n\
             data: {\"type\":\"response.output_text.delta\",\ndata: \"output_index\":9,\"sequence_number\":9,\"delta\":\"x\"}\n\n\
             data: {\"type\":\"response.completed\",\"sequence_number\":10,\"response\":{\"id\":\"r\",\"output\":[{}]}}\n\n\
             data: [DONE]\n\n",
            ": hi\n\nevent: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"output\":[]}}\n\n\
             data: {\"type\":\"response.in_progress\",\"sequence_number\":1}\r\n\r\n\
             event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"sequence_number\":2,\"output_index\":0,\"item\":ITEM}\n\n\
             event: response.output_item.done\ndata: {\"type\":\"response.output_item.done\",\"sequence_number\":3,\"output_index\":0,\"item\":ITEM}\n\n\
             event: response.output_item.added\ndata: {\"output_index\":1,\"type\":\"response.output_item.added\", \"sequence_number\": 4}\n\n\
             data: {\"type\":\"response.output_text.delta\",\ndata: \"output_index\":10,\"sequence_number\":11,\"delta\":\"x\"}\n\n\
             data: {\"type\":\"response.completed\",\"sequence_number\":12,\"response\":{\"id\":\"r\",\"output\":[ITEM,{}]}}\n\n\
             data: [DONE]\n\n",
        );
    }

    #[test]
    fn a_failure_before_the_first_item_stays_as_it_is() {
        for stream in [
            "data: {\"type\":\"response.created\",\"sequence_number\":0}\n\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"output\":[]}}\n\n",
            "data: {\"type\":\"error\",\"sequence_number\":1}\n\ndata: {\"type\":\"x\",\"sequence_number\":2}\n\n",
            "data: not json\n\n",
            "event: x\n\n",
        ] {
            check(stream, stream);
        }
    }
}
