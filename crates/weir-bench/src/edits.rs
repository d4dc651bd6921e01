//! Files that the calls of a conversation edited, each with a line of its last edit.

use serde_json::{Map, Value};

use weir_eval::conversation::{Conversation, Message};
use weir_eval::sent::Other;
use weir_eval::text::Text;

/// Parts of the names of tools that change files.
const EDITING: [&str; 7] = ["edit", "write", "create", "replace", "patch", "insert", "append"];
/// Names of the argument with the path.
const PATHS: [&str; 6] = ["path", "file_path", "filename", "file", "target_file", "file_name"];
/// Names of the argument with the new text, the most telling first.
const TEXTS: [&str; 10] = [
    "new_text",
    "new_string",
    "new_str",
    "replacement",
    "content",
    "contents",
    "file_text",
    "text",
    "patch",
    "code",
];
/// Length of a line that says enough, and of one that is too long to ask for.
const LINE_CHARACTERS: std::ops::RangeInclusive<usize> = 8..=160;

/// Edit of a file.
#[derive(Debug)]
pub(crate) struct Edit {
    /// Message with the call.
    pub message: usize,
    pub path: String,
    /// Longest line of the new text.
    pub line: String,
    /// Messages in which the path and the line can be read.
    path_in: Vec<usize>,
    line_in: Vec<usize>,
}

impl Edit {
    /// Whether both path and line can be read in the messages kept whole, or in the others.
    pub(crate) fn is_readable(&self, is_kept: &[bool], others: &[&Other]) -> bool {
        let shows = |places: &[usize], text: &str| {
            places.iter().any(|place| is_kept[*place]) || others.iter().any(|own| own.says(text))
        };
        shows(&self.path_in, &self.path) && shows(&self.line_in, &self.line)
    }
}

/// Returns all edits of a conversation, in order.
pub(crate) fn of(conversation: &Conversation) -> Vec<Edit> {
    let messages = &conversation.messages;
    let holding = |text: &str| -> Vec<usize> {
        let holds = |message: &Message| message.texts.iter().any(|own| own.text.contains(text));
        (0..messages.len()).filter(|index| holds(&messages[*index])).collect()
    };
    let mut edits = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for (path, line) in of_message(message) {
            let (path_in, line_in) = (holding(&path), holding(&line));
            edits.push(Edit { message: index, path, line, path_in, line_in });
        }
    }
    edits
}

/// Returns the newest edit of each file among the first `length` messages.
pub(crate) fn last(edits: &[Edit], length: usize) -> Vec<&Edit> {
    let mut newest: Vec<&Edit> = Vec::new();
    for edit in edits.iter().take_while(|edit| edit.message < length) {
        newest.retain(|own| own.path != edit.path);
        newest.push(edit);
    }
    newest
}

fn of_message(message: &Message) -> Vec<(String, String)> {
    if message.calls.is_empty() {
        return Vec::new();
    }
    let value: Value = serde_json::from_str(&message.raw).unwrap_or_default();
    let calls = value["tool_calls"].as_array().cloned().unwrap_or_default();
    calls.iter().filter_map(of_call).collect()
}

fn of_call(call: &Value) -> Option<(String, String)> {
    let name = call["function"]["name"].as_str()?.to_ascii_lowercase();
    if !EDITING.iter().any(|own| name.contains(own)) {
        return None;
    }
    let arguments = call["function"]["arguments"].as_str()?;
    let arguments: Map<String, Value> = serde_json::from_str(arguments).ok()?;
    let member =
        |names: &[&str]| names.iter().find_map(|name| arguments.get(*name).and_then(Value::as_str));
    let path = member(&PATHS).filter(|path| !path.is_empty())?;
    let text = Text::new(member(&TEXTS)?);
    let line = text
        .lines()
        .filter(|line| LINE_CHARACTERS.contains(&line.chars().count()))
        .max_by_key(|line| line.chars().count())?;
    Some((Text::new(path).text, line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_edit_of_each_file_counts() {
        let call = |id: &str, name: &str, arguments: Value| {
            let function = serde_json::json!({"name": name, "arguments": arguments.to_string()});
            serde_json::json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": id, "type": "function", "function": function}]})
        };
        let result =
            |id: &str| serde_json::json!({"role": "tool", "tool_call_id": id, "content": "ok"});
        let messages = serde_json::json!([
            {"role": "user", "content": "u"},
            call("1", "edit_file", serde_json::json!({"path": "a.rs", "new_text": "let first = 1;\nx"})),
            result("1"),
            call("2", "read_file", serde_json::json!({"path": "b.rs"})),
            result("2"),
            call("3", "str_replace", serde_json::json!({"path": "a.rs", "old_str": "let first", "new_str": "let second = 2;"})),
            result("3"),
        ]);
        let line = serde_json::json!({"messages": messages}).to_string();
        let conversation = Conversation::read(&line, 1, None).expect("it is one");
        let edits = of(&conversation);
        let shown = |length| -> Vec<(String, String)> {
            last(&edits, length).iter().map(|own| (own.path.clone(), own.line.clone())).collect()
        };
        assert_eq!(shown(3), [("a.rs".to_owned(), "let first = 1;".to_owned())]);
        assert_eq!(shown(7), [("a.rs".to_owned(), "let second = 2;".to_owned())]);
        let mut is_kept = vec![false; 7];
        let other =
            Other::read(r#"{"role":"user","content":"edited a.rs:\nlet  second = 2;"}"#, None);
        let other = other.expect("a message");
        let newest = last(&edits, 7)[0];
        assert!(!newest.is_readable(&is_kept, &[]));
        assert!(newest.is_readable(&is_kept, &[&other]));
        is_kept[5] = true;
        assert!(newest.is_readable(&is_kept, &[]));
    }
}
